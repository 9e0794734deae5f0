//! A place that holds objects by name: a folder today, a bucket by the same trait.
//!
//! **Invariant:** what cannot be listed or read is a fault, never absent. A finished upload is durable, and an
//! unfinished one is not seen by anyone.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::{GetResultPayload, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use quorate_faults::{Code, Fault, Result};
use tokio::runtime::{Builder, Runtime};

/// Manifests and epochs are far below this.
const SMALL_MAX: u64 = 1 << 20;

/// Bytes that go to the store in one piece.
const PART_BYTES: usize = 8 << 20;

/// A store, opened.
pub struct Store {
    url: String,
    inner: Arc<dyn ObjectStore>,
    runtime: Runtime,
    folder: PathBuf,
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

impl Store {
    /// Opens the store that a URL names. `create`: a folder that is not there is made.
    pub fn open(url: &str, create: bool) -> Result<Store> {
        let invalid = |why: &str| {
            Fault::new(Code::StoreInvalid, format!("cannot use the store `{url}`: {why}"))
                .hint("write `--store file:///path/to/folder`")
        };
        let parsed = url::Url::parse(url).map_err(|_| invalid("it is not a URL"))?;
        if parsed.scheme() != "file" {
            return Err(invalid("only `file` URLs are supported"));
        }
        let folder = parsed.to_file_path().map_err(|()| invalid("it does not hold an absolute path"))?;
        if create {
            std::fs::create_dir_all(&folder)
                .map_err(|error| Fault::io(format!("cannot make the folder `{}`", folder.display()), error))?;
        }
        let unreachable = |error: &dyn std::fmt::Display| {
            Fault::new(Code::StoreUnreachable, format!("cannot open the store `{url}`"))
                .hint("check that the folder exists and can be read")
                .caused_by(error.to_string())
        };
        let inner = LocalFileSystem::new_with_prefix(&folder).map_err(|error| unreachable(&error))?.with_fsync(true);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| Fault::io("cannot start the runtime for the store", error))?;
        Ok(Store { url: url.to_owned(), inner: Arc::new(inner), runtime, folder })
    }

    /// The URL it was opened with.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The path of an object that is a plain file on this machine.
    pub fn local_path(&self, name: &str) -> Option<PathBuf> {
        let path = self.folder.join(name);
        path.is_file().then_some(path)
    }

    /// The folder on this machine.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All objects, by name.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let listing = self.runtime.block_on(self.inner.list(None).try_collect::<Vec<_>>());
        let listing = listing.map_err(|error| self.fault("cannot list the store", error))?;
        let mut listed: Vec<Listed> =
            listing.into_iter().map(|meta| Listed { name: meta.location.to_string(), bytes: meta.size }).collect();
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(listed)
    }

    /// A small object as a whole.
    pub fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.reader(name)?.take(SMALL_MAX).read_to_end(&mut bytes);
        read.map_err(|error| self.io_fault("cannot read", name, error))?;
        Ok(bytes)
    }

    /// An object's bytes, one after the other.
    pub fn reader(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        let path = self.name(name)?;
        let found = self.runtime.block_on(self.inner.get(&path));
        let found = found.map_err(|error| self.fault(&format!("cannot read `{name}` in"), error))?;
        Ok(match found.payload {
            GetResultPayload::File(file, _) => Box::new(file),
            GetResultPayload::Stream(stream) => {
                Box::new(Pulled { handle: self.runtime.handle().clone(), stream, here: Bytes::new() })
            }
        })
    }

    /// Makes a small object, unless one of that name is there: then says `false`.
    pub fn create(&self, name: &str, bytes: Vec<u8>) -> Result<bool> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let path = self.name(name)?;
        match self.runtime.block_on(self.inner.put_opts(&path, bytes.into(), options)) {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.fault(&format!("cannot write `{name}` in"), error)),
        }
    }

    /// Begins an object of any size. It is there once [`Upload::finish`] returns.
    pub fn upload(&self, name: &str) -> Result<Upload<'_>> {
        let path = self.name(name)?;
        let upload = self.runtime.block_on(self.inner.put_multipart(&path));
        let upload = upload.map_err(|error| self.fault(&format!("cannot write `{name}` in"), error))?;
        Ok(Upload { store: self, name: name.to_owned(), upload, part: BytesMut::new() })
    }

    /// Removes an object that this run made and that proved to be wrong.
    pub(crate) fn withdraw(&self, name: &str) -> Result<()> {
        let path = self.name(name)?;
        let removed = self.runtime.block_on(self.inner.delete(&path));
        removed.map_err(|error| self.fault(&format!("cannot remove `{name}` from"), error))
    }

    fn name(&self, name: &str) -> Result<Name> {
        Name::parse(name).map_err(|error| self.fault(&format!("cannot use the name `{name}` in"), error))
    }

    fn fault(&self, attempt: &str, error: impl std::error::Error + Send + Sync + 'static) -> Fault {
        Fault::new(Code::StoreUnreachable, format!("{attempt} `{}`", self.url))
            .hint("see the cause; nothing that was there before has been changed")
            .caused_by(error)
    }

    fn io_fault(&self, attempt: &str, name: &str, error: io::Error) -> Fault {
        self.fault(&format!("{attempt} `{name}` in"), error)
    }
}

/// An object on its way into the store.
pub struct Upload<'s> {
    store: &'s Store,
    name: String,
    upload: Box<dyn MultipartUpload>,
    part: BytesMut,
}

impl Upload<'_> {
    /// Puts the object in its place, durably.
    pub fn finish(mut self) -> Result<()> {
        let sent = self.send().and_then(|()| self.store.runtime.block_on(self.upload.complete()).map_err(other));
        sent.map(|_| ()).map_err(|error| {
            // The store forgets an aborted upload by itself, sooner or later.
            let _ = self.store.runtime.block_on(self.upload.abort());
            self.store.io_fault("cannot write", &self.name, error)
        })
    }

    /// Leaves nothing behind.
    pub fn abandon(mut self) {
        let _ = self.store.runtime.block_on(self.upload.abort());
    }

    fn send(&mut self) -> io::Result<()> {
        if self.part.is_empty() {
            return Ok(());
        }
        let part = self.part.split().freeze();
        self.store.runtime.block_on(self.upload.put_part(part.into())).map_err(other)
    }
}

impl Write for Upload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part.extend_from_slice(bytes);
        if self.part.len() >= PART_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream of pieces, read as bytes.
struct Pulled {
    handle: tokio::runtime::Handle,
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    here: Bytes,
}

impl Read for Pulled {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.here.is_empty() {
            match self.handle.block_on(self.stream.next()) {
                Some(piece) => self.here = piece.map_err(other)?,
                None => return Ok(0),
            }
        }
        let length = self.here.len().min(buf.len());
        let piece = self.here.split_to(length);
        buf[..length].copy_from_slice(&piece);
        Ok(length)
    }
}

fn other(error: object_store::Error) -> io::Error {
    io::Error::other(error)
}
