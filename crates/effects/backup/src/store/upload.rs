//! Writes objects of any size in parts.
//!
//! **Invariant:** at most [`IN_FLIGHT`] parts are in memory beside the one being filled, and an object that was not
//! finished is not seen.

use std::collections::VecDeque;
use std::io::{self, Write};

use bytes::BytesMut;
use object_store::{MultipartUpload, ObjectStoreExt};
use quorate_faults::{Fault, Result};
use tokio::task::JoinHandle;

use super::Store;

/// Bytes that go to the store in one piece; every cloud takes parts of this size.
const PART_BYTES: usize = 8 << 20;

/// Parts on their way at once.
const IN_FLIGHT: usize = 2;

/// An object on its way into the store.
pub struct Upload<'s> {
    store: &'s Store,
    name: String,
    /// Gone once the upload has ended, one way or the other.
    upload: Option<Box<dyn MultipartUpload>>,
    part: BytesMut,
    sent: VecDeque<JoinHandle<object_store::Result<()>>>,
    parts: u64,
}

impl<'s> Upload<'s> {
    pub(super) fn begin(store: &'s Store, name: &str) -> Result<Upload<'s>> {
        let path = store.name(name)?;
        let upload = store.wait(store.inner().put_multipart(&path));
        let upload = upload.map_err(|error| store.fault(&format!("cannot write `{name}` in"), error))?;
        Ok(Upload {
            store,
            name: name.to_owned(),
            upload: Some(upload),
            part: BytesMut::new(),
            sent: VecDeque::new(),
            parts: 0,
        })
    }

    /// Puts the object in its place, durably.
    pub fn finish(mut self) -> Result<()> {
        self.complete().inspect_err(|_| self.give_up())
    }

    /// Leaves nothing behind.
    pub fn abandon(mut self) {
        self.give_up();
    }

    fn complete(&mut self) -> Result<()> {
        // An object without bytes is one part without bytes.
        if !self.part.is_empty() || self.parts == 0 {
            self.send()?;
        }
        self.settle(0)?;
        let Some(upload) = self.upload.as_mut() else { return Ok(()) };
        let completed = self.store.wait(upload.complete());
        completed.map_err(|error| self.fault(error))?;
        self.upload = None;
        self.store.make_lasting(&self.name)
    }

    fn send(&mut self) -> Result<()> {
        self.settle(IN_FLIGHT - 1)?;
        let part = self.part.split().freeze();
        if let Some(upload) = self.upload.as_mut() {
            let handle = self.store.handle();
            let _inside = handle.enter();
            self.sent.push_back(handle.spawn(upload.put_part(part.into())));
            self.parts += 1;
        }
        Ok(())
    }

    /// Waits until at most `left` parts are on their way.
    fn settle(&mut self, left: usize) -> Result<()> {
        while self.sent.len() > left {
            let Some(part) = self.sent.pop_front() else { break };
            match self.store.wait(part) {
                Ok(sent) => sent.map_err(|error| self.fault(error))?,
                Err(ended) => {
                    let attempt = format!("cannot write `{}` in `{}`", self.name, self.store.url());
                    return Err(Fault::new(quorate_faults::Code::Internal, attempt).caused_by(ended));
                }
            }
        }
        Ok(())
    }

    fn give_up(&mut self) {
        self.sent.drain(..).for_each(|part| part.abort());
        if let Some(mut upload) = self.upload.take() {
            // The store forgets an upload that was not finished by itself, sooner or later.
            let _ = self.store.wait(upload.abort());
        }
    }

    fn fault(&self, error: object_store::Error) -> Fault {
        self.store.fault(&format!("cannot write `{}` in", self.name), error)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Write for Upload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.part.capacity() == 0 {
            self.part.reserve(PART_BYTES);
        }
        let length = bytes.len().min(PART_BYTES - self.part.len());
        self.part.extend_from_slice(&bytes[..length]);
        if self.part.len() == PART_BYTES {
            self.send().map_err(io::Error::other)?;
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
