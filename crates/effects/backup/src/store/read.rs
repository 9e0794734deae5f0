//! Reads objects: plain files as they are, objects of a bucket in ranges, the next one asked for while one is used.
//!
//! **Invariant:** all ranges are of one and the same object, and two of them are in memory at most.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path as Name;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectStore, ObjectStoreExt};
use quorate_faults::Result;
use tokio::task::JoinHandle;

use super::Store;

/// Bytes that are asked for at once: lost connections repeat no more than this.
const RANGE_BYTES: u64 = 4 << 20;

/// Opens an object; its first bytes have been asked for when this returns.
pub(super) fn open(store: &Store, name: &str) -> Result<Box<dyn Read + Send>> {
    let path = store.name(name)?;
    let fault = |error| store.fault(&format!("cannot read `{name}` in"), error);
    if store.folder().is_some() {
        let found = store.wait(store.inner().get(&path)).map_err(fault)?;
        return match found.payload {
            GetResultPayload::File(file, _) => Ok(Box::new(file)),
            payload @ GetResultPayload::Stream(_) => {
                let bytes = store.wait(object_store::GetResult { payload, ..found }.bytes()).map_err(fault)?;
                Ok(Box::new(io::Cursor::new(bytes)))
            }
        };
    }
    let first = store.wait(range(store.inner(), path.clone(), 0, None));
    let (here, size, tag) = match first {
        Ok(first) => first,
        // Nothing can be asked of an object without bytes.
        Err(error) => match store.wait(store.inner().head(&path)) {
            Ok(meta) if meta.size == 0 => (Bytes::new(), 0, None),
            _ => return Err(fault(error)),
        },
    };
    let at = here.len() as u64;
    Ok(Box::new(Ranges { store: store.clone(), path, tag, size, at, here, next: None }))
}

/// An object, read range by range.
struct Ranges {
    store: Store,
    path: Name,
    tag: Option<String>,
    size: u64,
    /// Where the next range begins.
    at: u64,
    here: Bytes,
    next: Option<JoinHandle<object_store::Result<Range>>>,
}

type Range = (Bytes, u64, Option<String>);

async fn range(inner: Arc<dyn ObjectStore>, path: Name, from: u64, tag: Option<String>) -> object_store::Result<Range> {
    let range = Some(GetRange::Bounded(from..from.saturating_add(RANGE_BYTES)));
    let found = inner.get_opts(&path, GetOptions { range, if_match: tag, ..GetOptions::default() }).await?;
    let (size, tag) = (found.meta.size, found.meta.e_tag.clone());
    Ok((found.bytes().await?, size, tag))
}

impl Ranges {
    fn ask(&mut self) -> JoinHandle<object_store::Result<Range>> {
        let inner = self.store.inner();
        self.store.handle().spawn(range(inner, self.path.clone(), self.at, self.tag.clone()))
    }

    fn advance(&mut self) -> io::Result<()> {
        let asked = match self.next.take() {
            Some(asked) => asked,
            None => self.ask(),
        };
        let attempt = || format!("cannot read `{}` in", self.path);
        let (bytes, _, _) = match self.store.wait(asked) {
            Ok(answer) => answer.map_err(|error| io::Error::other(self.store.fault(&attempt(), error)))?,
            Err(ended) => return Err(io::Error::other(ended)),
        };
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += bytes.len() as u64;
        self.here = bytes;
        if self.at < self.size {
            self.next = Some(self.ask());
        }
        Ok(())
    }
}

impl Read for Ranges {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.here.is_empty() && self.at < self.size && !buf.is_empty() {
            self.advance()?;
        }
        let length = self.here.len().min(buf.len());
        let piece = self.here.split_to(length);
        buf[..length].copy_from_slice(&piece);
        Ok(length)
    }
}

impl Drop for Ranges {
    fn drop(&mut self) {
        if let Some(asked) = self.next.take() {
            asked.abort();
        }
    }
}
