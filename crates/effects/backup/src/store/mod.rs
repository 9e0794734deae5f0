//! A place that holds objects by name: a folder, or a bucket of one of three clouds, behind one blocking API.
//!
//! **Invariant:** what cannot be listed or read is a fault, never absent. A finished upload is durable, and an
//! unfinished one is not seen by anyone.
//!
//! A store brings its own runtime and its calls block. From asynchronous code they go through `spawn_blocking`; a clone
//! is the same store.

mod clients;
mod credentials;
mod fault;
mod open;
mod read;
mod upload;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use quorate_faults::{Code, Fault, Result};
use quorate_host::durable::{Disk, RealDisk};
use tokio::runtime::Runtime;

pub use fault::is_temporary;
pub use open::Patience;
pub use upload::Upload;

/// Manifests and epochs are far below this.
const SMALL_MAX: u64 = 1 << 20;

/// A bucket answers in tens of milliseconds, and a chain may have thousands of manifests.
const SMALL_AT_A_TIME: usize = 32;

/// Attempts to make an object that must not be there yet.
const CREATE_ATTEMPTS: u32 = 5;

/// A store, opened.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    url: String,
    clients: clients::Clients,
    runtime: Option<Runtime>,
    folder: Option<PathBuf>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A runtime may not be waited for where the last clone happens to be dropped.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// When it was last written, in milliseconds since 1970, by the store's clock.
    pub modified_ms: i64,
}

/// What became of an object that was to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// It is not there any more, or was not.
    Gone,
    /// The store keeps it, because.
    Locked(String),
}

impl Store {
    /// Opens the store that a URL names. `create`: a folder that is not there is made; a bucket never is.
    pub fn open(url: &str, create: bool) -> Result<Store> {
        Store::open_with(url, create, Patience::default())
    }

    /// The same with other limits of time.
    pub fn open_with(url: &str, create: bool, patience: Patience) -> Result<Store> {
        let environment =
            std::env::vars_os().filter_map(|(key, value)| key.into_string().ok().zip(value.into_string().ok()));
        open::open(url, create, patience, environment.collect())
    }

    /// The same with variables of its own in place of the environment's.
    pub fn open_in(url: &str, create: bool, patience: Patience, environment: &[(String, String)]) -> Result<Store> {
        open::open(url, create, patience, environment.to_vec())
    }

    /// The URL it was opened with.
    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// The path of an object that is a plain file on this machine.
    pub fn local_path(&self, name: &str) -> Option<PathBuf> {
        let path = self.folder()?.join(name);
        path.is_file().then_some(path)
    }

    /// The folder on this machine, if the store is one.
    pub fn folder(&self) -> Option<&Path> {
        self.shared.folder.as_deref()
    }

    /// Whether the files with its credentials have changed since the last request; the next one uses them.
    pub fn has_new_credentials(&self) -> bool {
        self.shared.clients.are_outdated()
    }

    /// All objects, by name.
    pub fn list(&self) -> Result<Vec<Listed>> {
        self.listing(None)
    }

    /// The objects below a folder of the store, by name. There may be none.
    pub fn list_under(&self, folder: &str) -> Result<Vec<Listed>> {
        let folder = self.name(folder.trim_end_matches('/'))?;
        self.listing(Some(&folder))
    }

    fn listing(&self, under: Option<&Name>) -> Result<Vec<Listed>> {
        let attempt = "cannot list the store";
        if let Some(folder) = self.folder() {
            // A folder that went away lists as an empty one.
            std::fs::read_dir(folder).map_err(|error| self.io_fault(attempt, error))?;
        }
        let listing = self.wait(self.inner().list(under).try_collect::<Vec<_>>());
        let listing = listing.map_err(|error| self.fault(attempt, error))?;
        let mut listed: Vec<Listed> = listing.iter().map(Listed::of).collect();
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        listed.dedup_by(|one, other| one.name == other.name);
        Ok(listed)
    }

    /// What a listing would say about one object; `None` if it is not there.
    pub fn head(&self, name: &str) -> Result<Option<Listed>> {
        let path = self.name(name)?;
        let attempt = || format!("cannot look at `{name}` in");
        match self.wait(self.inner().head(&path)) {
            Ok(meta) => Ok(Some(Listed::of(&meta))),
            Err(object_store::Error::NotFound { .. }) if self.folder().is_some() => {
                self.folder().map_or(Ok(()), |folder| {
                    std::fs::read_dir(folder).map(|_| ()).map_err(|error| self.io_fault(&attempt(), error))
                })?;
                Ok(None)
            }
            // An answer without a body does not tell a missing object from a missing bucket; this one does.
            Err(object_store::Error::NotFound { .. }) => match self.wait(self.inner().get(&path)) {
                Ok(there) => Ok(Some(Listed::of(&there.meta))),
                Err(error) if fault::is_missing_object(&error) => Ok(None),
                Err(error) => Err(self.fault(&attempt(), error)),
            },
            Err(error) => Err(self.fault(&attempt(), error)),
        }
    }

    /// A small object as a whole.
    pub fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.reader(name)?.take(SMALL_MAX).read_to_end(&mut bytes);
        read.map_err(|error| Fault::io(format!("cannot read `{name}` in `{}`", self.url()), error))?;
        Ok(bytes)
    }

    /// Small objects as wholes, many at a time. `None`: it is gone since it was listed. What is too large to be small is cut.
    pub fn read_all_small(&self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>> {
        let read = |name: &String| {
            let (inner, path, name) = (self.inner(), self.name(name), name.clone());
            async move {
                let mut pieces = match inner.get(&path?).await {
                    Ok(found) => found.into_stream(),
                    Err(object_store::Error::NotFound { .. }) => return Ok(None),
                    Err(error) => return Err(self.fault(&format!("cannot read `{name}` in"), error)),
                };
                let mut bytes = Vec::new();
                while let Some(piece) = pieces.next().await {
                    let piece = piece.map_err(|error| self.fault(&format!("cannot read `{name}` in"), error))?;
                    bytes.extend_from_slice(&piece);
                    if bytes.len() as u64 >= SMALL_MAX {
                        break;
                    }
                }
                Ok(Some(bytes))
            }
        };
        self.wait(stream::iter(names.iter().map(read)).buffered(SMALL_AT_A_TIME).try_collect())
    }

    /// An object's bytes, one after the other. An error of the store carries its [`Fault`].
    pub fn reader(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        read::open(self, name)
    }

    /// Makes a small object, unless one of that name is there: then says `false`.
    ///
    /// Where an answer was lost and an object of exactly these bytes is there afterwards, it counts as made: bytes that
    /// name their writer make this exact.
    pub fn create(&self, name: &str, bytes: Vec<u8>) -> Result<bool> {
        let made = self.put_new(name, bytes)?;
        // Also where it was there: whoever made it may have been killed before its name lasted.
        self.make_lasting(name)?;
        Ok(made)
    }

    fn put_new(&self, name: &str, bytes: Vec<u8>) -> Result<bool> {
        let path = self.name(name)?;
        let payload = bytes::Bytes::from(bytes);
        let mut unclear = false;
        for attempt in 1.. {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let error =
                match self.wait(self.shared.clients.current().once.put_opts(&path, payload.clone().into(), options)) {
                    Ok(_) => return Ok(true),
                    Err(error) => error,
                };
            match fault::refusal(&error) {
                fault::Refusal::Exists if !unclear => return Ok(false),
                fault::Refusal::Exists => return Ok(self.read_small(name)? == payload),
                fault::Refusal::Later if attempt < CREATE_ATTEMPTS => {}
                fault::Refusal::Later | fault::Refusal::Never => {
                    return Err(self.fault(&format!("cannot write `{name}` in"), error));
                }
            }
            unclear = true;
            std::thread::sleep(Duration::from_millis(50 << attempt));
        }
        unreachable!("the last attempt returns")
    }

    /// Begins an object of any size. It is there once [`Upload::finish`] returns.
    pub fn upload(&self, name: &str) -> Result<Upload<'_>> {
        Upload::begin(self, name)
    }

    /// Removes an object. What the store protects stays, and that is no fault.
    pub fn delete(&self, name: &str) -> Result<Deleted> {
        let path = self.name(name)?;
        match self.wait(self.inner().delete(&path)) {
            Ok(()) => self.sync_parent(name).map(|()| Deleted::Gone),
            Err(error) if fault::is_missing_object(&error) => Ok(Deleted::Gone),
            Err(error) => {
                let fault = self.fault(&format!("cannot remove `{name}` from"), error);
                match fault.code() {
                    Code::StoreLocked => Ok(Deleted::Locked(fault::cause_of(&fault))),
                    _ => Err(fault),
                }
            }
        }
    }

    /// Left-overs of uploads to a folder that were killed: their paths below it, and their age. A bucket keeps them out
    /// of sight, and a rule of its own removes them.
    pub fn staged(&self) -> Result<Vec<(String, Duration)>> {
        let Some(folder) = self.folder() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        let mut left = vec![folder.to_owned()];
        while let Some(dir) = left.pop() {
            let entries = std::fs::read_dir(&dir).map_err(|error| self.io_fault("cannot list the store", error))?;
            for entry in entries.flatten() {
                let path = entry.path();
                let Ok(meta) = entry.metadata() else { continue };
                if meta.is_dir() {
                    left.push(path);
                } else if is_staged(&entry.file_name().to_string_lossy()) {
                    let age = meta.modified().ok().and_then(|then| SystemTime::now().duration_since(then).ok());
                    let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
                    found.push((name, age.unwrap_or_default()));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Removes a left-over of [`Store::staged`].
    pub fn remove_staged(&self, name: &str) -> Result<()> {
        let Some(folder) = self.folder().filter(|_| is_staged(name)) else { return Ok(()) };
        match std::fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.io_fault(&format!("cannot remove `{name}` from"), error))
            }
            _ => Ok(()),
        }
    }

    /// Removes an object that this run made and that proved to be wrong.
    pub(crate) fn withdraw(&self, name: &str) -> Result<()> {
        match self.delete(name)? {
            Deleted::Gone => Ok(()),
            Deleted::Locked(why) => {
                Err(Fault::new(Code::StoreLocked, format!("cannot remove `{name}` from `{}`", self.url()))
                    .caused_by(why))
            }
        }
    }

    /// Syncs the folders that lead to an object, up to the one that holds the store's own. What writes files below us syncs
    /// the folders that it made itself; the store's own, and those that a killed run had made, are left to us.
    fn make_lasting(&self, name: &str) -> Result<()> {
        let Some(folder) = self.folder() else { return Ok(()) };
        let object = folder.join(name);
        let inside = object.ancestors().skip(1).take_while(|path| path.starts_with(folder));
        for path in inside {
            RealDisk.sync_dir(path)?;
        }
        let parent = folder.parent().map_or(Ok(()), |parent| std::fs::File::open(parent)?.sync_all());
        match parent {
            // A folder that was given to us, in a place that is not ours to read.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            synced => synced.map_err(|error| self.io_fault(&format!("cannot write `{name}` in"), error)),
        }
    }

    fn sync_parent(&self, name: &str) -> Result<()> {
        let Some(folder) = self.folder() else { return Ok(()) };
        let path = folder.join(name);
        let synced = std::fs::File::open(path.parent().unwrap_or(folder)).and_then(|dir| dir.sync_all());
        match synced {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.io_fault(&format!("cannot remove `{name}` from"), error))
            }
            _ => Ok(()),
        }
    }

    fn inner(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.shared.clients.current().inner)
    }

    fn handle(&self) -> tokio::runtime::Handle {
        self.shared.runtime.as_ref().map(|runtime| runtime.handle().clone()).expect("taken only when dropped")
    }

    fn wait<F: Future>(&self, work: F) -> F::Output {
        self.handle().block_on(work)
    }

    fn name(&self, name: &str) -> Result<Name> {
        Name::parse(name).map_err(|error| {
            Fault::new(Code::StoreInvalid, format!("cannot use the name `{name}` in `{}`", self.url()))
                .hint("objects are named by letters, digits, `-`, `.` and `/`")
                .caused_by(error.to_string())
        })
    }

    fn fault(&self, attempt: &str, error: object_store::Error) -> Fault {
        fault::fault(attempt, self.url(), &error, &self.shared.clients.last().secrets)
    }

    fn io_fault(&self, attempt: &str, error: io::Error) -> Fault {
        Fault::new(Code::StoreUnreachable, format!("{attempt} `{}`", self.url()))
            .hint("see the cause; nothing that was there before has been changed")
            .caused_by(error)
    }
}

impl Listed {
    fn of(meta: &object_store::ObjectMeta) -> Listed {
        let modified_ms = meta.last_modified.timestamp_millis();
        Listed { name: meta.location.to_string(), bytes: meta.size, modified_ms }
    }
}

/// Whether a file is an upload that has not ended: `name#N`.
fn is_staged(name: &str) -> bool {
    name.rsplit_once('#')
        .is_some_and(|(_, digits)| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}
