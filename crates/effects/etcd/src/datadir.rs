//! Opens a data dir or a snapshot file for reading, and finds out whether a running etcd holds it.
//!
//! **Invariant:** nothing here writes, creates or removes anything. While a database is open, a shared lock keeps
//! etcd from starting on it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use quorate_etcd_formats::dir::{DB, DataDir, Entry, InUse, Kind, SNAP_DIR};
use quorate_etcd_formats::{ReadAt, ReadError};
use quorate_faults::{Code, Fault, Result};
use quorate_host::locks::{self, Lock, LockState};

use crate::place::is_marker;

/// A file that is read at any place.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    len: u64,
}

impl FileSource {
    /// Opens it.
    pub fn open(path: &Path) -> io::Result<FileSource> {
        FileSource::of(File::open(path)?)
    }

    /// Takes an open file, as long as it is now.
    pub fn of(file: File) -> io::Result<FileSource> {
        let len = file.metadata()?.len();
        Ok(FileSource { file, len })
    }
}

impl ReadAt for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::result::Result<(), ReadError> {
        self.file.read_exact_at(buf, offset).map_err(|cause| ReadError {
            offset,
            wanted: buf.len(),
            cause: Some(cause),
        })
    }

    /// Reserved space reads as zeros and takes no reading: file systems report it as holes.
    fn next_used(&self, offset: u64) -> Option<u64> {
        if offset >= self.len {
            return None;
        }
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(used) => (used < self.len).then_some(used),
            Err(rustix::io::Errno::NXIO) => None,
            // A file system that cannot tell: everything is read.
            Err(_) => Some(offset),
        }
    }
}

/// What a path turned out to be.
pub enum Found {
    /// A member's data dir.
    DataDir(OpenDir),
    /// A snapshot file or a copied database.
    File(FileSource),
}

/// A data dir with its files open.
pub struct OpenDir {
    entries: Vec<OpenEntry>,
    wal_dir: String,
    in_use: InUse,
    _lock: Option<Lock>,
}

struct OpenEntry {
    path: String,
    mode: u32,
    uid: u32,
    kind: OpenKind,
}

enum OpenKind {
    Dir,
    File(FileSource),
    Unreadable(String),
}

/// Opens what is at `path`. `wal_dir` names a WAL that lives elsewhere.
pub fn open(path: &Path, wal_dir: Option<&Path>) -> Result<Found> {
    let metadata = fs::metadata(path).map_err(|error| {
        let attempt = format!("cannot find `{}`", path.display());
        match error.kind() {
            io::ErrorKind::NotFound => Fault::new(Code::NotFound, attempt)
                .caused_by(error)
                .hint("check the path, and that its disk is mounted"),
            _ => Fault::io(attempt, error),
        }
    })?;
    if metadata.is_dir() {
        return open_dir(path, wal_dir).map(Found::DataDir);
    }
    if !metadata.is_file() {
        let attempt = format!("cannot examine `{}`", path.display());
        return Err(not_etcd(attempt, "it is neither a directory nor a regular file"));
    }
    let file = FileSource::open(path).map_err(|error| Fault::io(format!("cannot open `{}`", path.display()), error))?;
    Ok(Found::File(file))
}

/// The fault for a path that holds something else.
pub fn not_etcd(attempt: String, why: &str) -> Fault {
    Fault::new(Code::NotEtcdData, attempt)
        .caused_by(why.to_owned())
        .hint("give a data dir (the one etcd gets as --data-dir), or a snapshot file")
}

fn open_dir(path: &Path, wal_dir: Option<&Path>) -> Result<OpenDir> {
    let attempt = || format!("cannot examine `{}`", path.display());
    // A directory that may not be entered says nothing about what is in it.
    let has_member = path.join("member").try_exists().map_err(|error| Fault::io(attempt(), error))?;
    if !has_member {
        let why = match path.file_name().and_then(|name| name.to_str()) {
            Some("member" | "snap" | "wal") => "it is a part of a data dir; the data dir itself lies above it",
            _ => "it has no directory `member`, so it is not an etcd data dir",
        };
        return Err(not_etcd(attempt(), why));
    }
    let mut entries = Vec::new();
    add(&mut entries, &path.join("member"), "member".to_owned());
    list(&mut entries, &path.join(SNAP_DIR), SNAP_DIR);
    let wal_name = match wal_dir {
        None => "member/wal".to_owned(),
        Some(elsewhere) => elsewhere.to_string_lossy().trim_end_matches('/').to_owned(),
    };
    let wal_path = wal_dir.map_or_else(|| path.join("member/wal"), PathBuf::from);
    list(&mut entries, &wal_path, &wal_name);
    let (in_use, lock) = in_use(&entries);
    Ok(OpenDir { entries, wal_dir: wal_name, in_use, _lock: lock })
}

/// Adds a directory and the files in it. What is not there is not added; what cannot be read says so.
fn list(entries: &mut Vec<OpenEntry>, dir: &Path, name: &str) {
    /// A data dir has a dozen files; this many are not etcd's, and are not all opened.
    const FILES_MAX: usize = 10_000;
    if matches!(dir.try_exists(), Ok(false)) {
        return;
    }
    add(entries, dir, name.to_owned());
    let Ok(files) = fs::read_dir(dir) else {
        if let Some(entry) = entries.last_mut() {
            entry.kind = OpenKind::Unreadable("the directory cannot be listed".to_owned());
        }
        return;
    };
    let names = files.flatten().map(|file| file.file_name()).filter(|name| !is_marker(name));
    let mut names: Vec<_> = names.take(FILES_MAX).collect();
    names.sort();
    for file in names {
        add(entries, &dir.join(&file), format!("{name}/{}", file.to_string_lossy()));
    }
}

fn add(entries: &mut Vec<OpenEntry>, path: &Path, name: String) {
    let (mode, uid, kind) = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => (metadata.mode(), metadata.uid(), OpenKind::Dir),
        Ok(metadata) if metadata.is_file() => {
            let kind = match FileSource::open(path) {
                Ok(source) => OpenKind::File(source),
                Err(error) => OpenKind::Unreadable(error.to_string()),
            };
            (metadata.mode(), metadata.uid(), kind)
        }
        Ok(metadata) => (metadata.mode(), metadata.uid(), OpenKind::Unreadable("not a regular file".to_owned())),
        Err(error) => (0, 0, OpenKind::Unreadable(error.to_string())),
    };
    entries.push(OpenEntry { path: name, mode, uid, kind });
}

/// Asks the database's lock and those of the WAL segments, and keeps a shared one on the database.
fn in_use(entries: &[OpenEntry]) -> (InUse, Option<Lock>) {
    let mut lock = None;
    for entry in entries {
        let OpenKind::File(source) = &entry.kind else { continue };
        let state = if entry.path == DB {
            match locks::share_lock(&source.file) {
                Ok(Some(taken)) => {
                    lock = Some(taken);
                    LockState::Free
                }
                Ok(None) => locks::probe_flock(&source.file),
                Err(error) => LockState::Unknown(error),
            }
        } else if entry.path.ends_with(".wal") {
            locks::probe_ofd(&source.file)
        } else {
            LockState::Free
        };
        match state {
            LockState::Free => {}
            LockState::Held { pid } => return (InUse::Yes { pid }, None),
            LockState::Unknown(error) => return (InUse::Unknown(error.to_string()), None),
        }
    }
    (InUse::No, lock)
}

impl OpenDir {
    /// The data dir as the readers take it.
    pub fn view(&self) -> DataDir<'_> {
        let entries = self.entries.iter().map(|entry| Entry {
            path: entry.path.clone(),
            mode: entry.mode,
            uid: entry.uid,
            kind: match &entry.kind {
                OpenKind::Dir => Kind::Dir,
                OpenKind::File(source) => Kind::File(source),
                OpenKind::Unreadable(why) => Kind::Unreadable(why.clone()),
            },
        });
        DataDir { entries: entries.collect(), wal_dir: self.wal_dir.clone(), in_use: self.in_use.clone() }
    }

    /// Bytes that a full check will look at, for whoever shows progress.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| if let OpenKind::File(source) = &entry.kind { source.len } else { 0 }).sum()
    }
}

/// The fault for a file that cannot be read as a database.
pub fn not_a_database(attempt: String, error: quorate_etcd_formats::bolt::BoltError) -> Fault {
    use quorate_etcd_formats::bolt::BoltError;
    match error {
        BoltError::NoMeta => {
            not_etcd(attempt, "neither meta page is valid: it is not an etcd database, or its head is damaged")
        }
        BoltError::Read(error) => match error.cause {
            Some(cause) => Fault::io(attempt, cause),
            None => not_etcd(attempt, "the file ends too early"),
        },
        error @ (BoltError::TooShort { .. } | BoltError::Page { .. }) => Fault::new(Code::NotEtcdData, attempt)
            .caused_by(error)
            .hint("the database is damaged; `quorate data verify` says where"),
    }
}
