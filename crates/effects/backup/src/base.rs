//! Full backups: brought here, hashed, and asked for the revision that they really hold.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::delta::Event;
use quorate_etcd_formats::delta::gardener::Compression;
use quorate_etcd_formats::mvcc::{KeyValue, RevisionKey};
use quorate_etcd_formats::snapshot_file::{self, HASH_BYTES};
use quorate_etcd_formats::{ReadAt, ReadError};
use quorate_faults::Fault;
use sha2::{Digest, Sha256};

use crate::body::Body;
use crate::catalog::Handle;
use crate::decode::{Failure, read_failure};
use crate::store::Store;

/// Bytes that are moved at once.
const PIECE_BYTES: usize = 1 << 20;

/// A snapshot file on this machine whose SHA-256 was found right.
pub struct Base {
    /// The object, as the operator finds it in the store.
    pub name: String,
    path: PathBuf,
    /// A file without a name: it is gone when this run ends, however it ends.
    _scratch: Option<File>,
    /// What its small buckets say.
    pub facts: Facts,
    /// SHA-256 of the stored bytes.
    pub stored_sha256: [u8; 32],
    /// SHA-256 of the snapshot file.
    pub content_sha256: [u8; 32],
    /// Bytes of the snapshot file.
    pub bytes: u64,
}

impl Base {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The revision that it holds.
    pub fn revision(&self) -> u64 {
        self.facts.revision_now()
    }

    /// Brings a full here and checks it. A plain file of this machine is checked where it is.
    pub(crate) fn fetch(store: &Store, name: &str, handle: &Handle, scratch: &Path) -> Result<Base, Failure> {
        let here = match (handle.compression, handle.parts.as_slice()) {
            (Compression::None, [only]) => store.local_path(only),
            _ => None,
        };
        let mut copy = match &here {
            Some(_) => None,
            None => {
                let made = tempfile::tempfile_in(scratch);
                let attempt = || format!("cannot make a scratch file in `{}`", scratch.display());
                Some(made.map_err(|error| Failure::Store(Fault::io(attempt(), error)))?)
            }
        };
        let mut body = Body::open(store, handle).map_err(Failure::Store)?;
        let hashed = copy_hashed(name, &mut body, copy.as_mut())?;
        let stored_sha256 = body.stored_sha256().map_err(|error| read_failure(name, error))?;
        if handle.stored_sha256.is_some_and(|said| said != stored_sha256) {
            return Err(Failure::Damaged("its bytes are not those that its manifest was made for".to_owned()));
        }
        let unnamed = |copy: &File| PathBuf::from(format!("/proc/self/fd/{}", copy.as_raw_fd()));
        let path = here.or_else(|| copy.as_ref().map(unnamed)).unwrap_or_default();
        let facts = facts(&path).map_err(|why| Failure::Damaged(format!("it is not an etcd database: {why}")))?;
        let Hashed { bytes, content_sha256 } = hashed;
        Ok(Base { name: name.to_owned(), path, _scratch: copy, facts, stored_sha256, content_sha256, bytes })
    }
}

struct Hashed {
    bytes: u64,
    content_sha256: [u8; 32],
}

/// Moves the content and compares the hash at its end with that of what stands before it.
fn copy_hashed(name: &str, body: &mut Body, mut to: Option<&mut File>) -> Result<Hashed, Failure> {
    const TAIL: usize = HASH_BYTES as usize;
    let (mut before, mut all) = (Sha256::new(), Sha256::new());
    let mut piece = vec![0; TAIL + PIECE_BYTES];
    // The last bytes may be the hash, so they wait at the front of the piece.
    let (mut held, mut bytes) = (0, 0);
    loop {
        let length = match body.read(&mut piece[held..]) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(read_failure(name, error)),
        };
        let fresh = &piece[held..held + length];
        all.update(fresh);
        if let Some(to) = &mut to {
            let attempt = || format!("cannot unpack `{name}` into a scratch file");
            to.write_all(fresh).map_err(|error| Failure::Store(Fault::io(attempt(), error)))?;
        }
        bytes += length as u64;
        let there = held + length;
        let certain = there.saturating_sub(TAIL);
        before.update(&piece[..certain]);
        piece.copy_within(certain..there, 0);
        held = there - certain;
    }
    if !snapshot_file::has_hash(bytes) || held < TAIL {
        return Err(Failure::Damaged("it carries no SHA-256, so it is cut off or no snapshot".to_owned()));
    }
    if before.finalize().as_slice() != &piece[..held] {
        return Err(Failure::Damaged("its SHA-256 does not match".to_owned()));
    }
    Ok(Hashed { bytes, content_sha256: all.finalize().into() })
}

/// Reads what the small buckets of a snapshot file say.
pub fn facts(path: &Path) -> Result<Facts, String> {
    let file = PlainFile::open(path).map_err(|error| error.to_string())?;
    let body = snapshot_file::Body::new(&file);
    let db = Db::open(&body).map_err(|error| error.to_string())?;
    let buckets = db.buckets().map_err(|error| error.to_string())?;
    Facts::read(&db, &buckets).map_err(|error| error.to_string())
}

/// Writes of a full, looked up one by one: for the few that a delta tells again.
pub(crate) struct Lookup {
    file: Option<PlainFile>,
    left: u32,
}

impl Lookup {
    /// Of a full that was checked. At most `limit` writes are looked up.
    pub(crate) fn of(base: &Base, limit: u32) -> Lookup {
        Lookup { file: PlainFile::open(base.path()).ok(), left: limit }
    }

    /// Whether the full tells this write otherwise. What it has compacted away is not known.
    pub(crate) fn denies(&mut self, event: &Event<'_>) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        self.file.as_ref().and_then(|file| differs(file, event)).unwrap_or(false)
    }
}

fn differs(file: &PlainFile, event: &Event<'_>) -> Option<bool> {
    let body = snapshot_file::Body::new(file);
    let db = Db::open(&body).ok()?;
    let buckets = db.buckets().ok()?;
    let (_, bucket) = buckets.iter().find(|(name, _)| name == b"key")?;
    let at = |tombstone| RevisionKey { revision: event.at, tombstone }.encode();
    if let Some(value) = db.get(bucket, &at(event.tombstone)).ok()? {
        let there = KeyValue::decode(&value)?;
        return Some(if event.tombstone { there.key != event.kv.key } else { there != event.kv });
    }
    db.get(bucket, &at(!event.tombstone)).ok().map(|other| other.is_some())
}

/// A file that is read at any place.
pub(crate) struct PlainFile {
    file: File,
    len: u64,
}

impl PlainFile {
    pub(crate) fn open(path: &Path) -> io::Result<PlainFile> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(PlainFile { file, len })
    }
}

impl ReadAt for PlainFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ReadError> {
        let wanted = buf.len();
        self.file.read_exact_at(buf, offset).map_err(|cause| ReadError { offset, wanted, cause: Some(cause) })
    }
}
