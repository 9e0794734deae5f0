//! Runs the engine into a file: reading and merging on one core, hashing on another, writing a mebibyte at a time.
//!
//! **Invariant:** a database is whole in the file only after its source's hash, where one is to be checked, was found
//! right. Memory is a handful of buffers besides what the engine itself needs.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::bolt::build::Sink;
use quorate_etcd_formats::delta::Events;
use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::rebuild::{Options, RebuildError, Rebuilt, rebuild};
use quorate_etcd_formats::snapshot_file::{Body, HashCheck};
use quorate_etcd_formats::{ReadAt, ReadError};
use quorate_faults::{Code, Fault};
use quorate_host::durable::{DiskError, DiskFile};

use crate::datadir::{FileSource, not_a_database};

/// Buffers on their way to the disk.
const IN_FLIGHT: usize = 4;
/// How often the kernel is asked to begin carrying them there, so that little is left to wait for at the end.
const START_SYNC_BYTES: u64 = 32 << 20;

/// What a database is made from.
pub struct Ingredients<'a> {
    /// A snapshot file or a database.
    pub base: Option<BaseFile<'a>>,
    /// The writes after it.
    pub events: Option<&'a mut (dyn Events + Send)>,
    /// What becomes of both.
    pub options: Options<'a>,
    /// Counts bytes of the base that are done.
    pub progress: &'a AtomicU64,
}

/// A base, and how far it is trusted.
#[derive(Clone, Copy)]
pub struct BaseFile<'a> {
    /// The file.
    pub source: &'a FileSource,
    /// As the operator named it.
    pub name: &'a str,
    /// Whether its SHA-256 must be right.
    pub check_hash: bool,
}

/// Writes the database into an empty file. It is on its way to the disk, and not synced.
pub fn write_database(file: &mut dyn DiskFile, ingredients: Ingredients<'_>) -> Result<Rebuilt, Fault> {
    let Ingredients { base, events, options, progress } = ingredients;
    if base.is_none() && events.is_none() {
        // A blank database is a few pages, not worth a second thread.
        let (bytes, rebuilt) = rebuild(None::<&Db<'_, FileSource>>, None, &options, Vec::new(), progress)
            .map_err(|error| fault("", error))?;
        file.write_all(&bytes)?;
        return Ok(rebuilt);
    }
    let body = base.map(|base| Body::new(base.source));
    let name = base.map_or("", |base| base.name);
    let db = match &body {
        Some(body) => Some(Db::open(body).map_err(|error| not_a_database(cannot_use(name), error))?),
        None => None,
    };
    let hashed = base.filter(|base| base.check_hash);
    let given_up = AtomicBool::new(false);
    thread::scope(|scope| {
        let hash = hashed.map(|base| {
            let source = Unless { source: base.source, given_up: &given_up };
            scope.spawn(move || Body::new(&source).check_hash(|_| ()))
        });
        let (to_disk, parts) = sync_channel(IN_FLIGHT);
        let (give_back, spare) = channel();
        let db = db.as_ref();
        let build = scope.spawn(move || {
            let events = events.map(|events| events as &mut dyn Events);
            rebuild(db, events, &options, Pipe { to_disk, spare }, progress).map(|(_, rebuilt)| rebuilt)
        });
        let written = drain(file, &parts, &give_back);
        // With no one to take its parts, the engine stops.
        drop(parts);
        let built = build.join();
        given_up.store(written.is_err(), Ordering::Relaxed);
        let hash = hash.map(|hash| hash.join());
        written?;
        // A wrong hash explains whatever else the engine found, so it is said first.
        if let Some(hash) = hash {
            check(name, hash.map_err(|_| bug())?)?;
        }
        built.map_err(|_| bug())?.map_err(|error| fault(name, error))
    })
}

/// Takes the engine's output to the file, each buffer by one call. They are aligned mebibytes: the kernel then fills the
/// same large blocks of memory as for any other program that copies a file. What smaller pieces cost depends on the
/// machine (decision 0275).
fn drain(file: &mut dyn DiskFile, parts: &Receiver<Part>, give_back: &Sender<Vec<u8>>) -> Result<(), DiskError> {
    let mut unsynced = 0;
    for part in parts {
        match part {
            Part::Append(mut bytes) => {
                file.write_all(&bytes)?;
                unsynced += bytes.len() as u64;
                if unsynced >= START_SYNC_BYTES {
                    file.start_sync();
                    unsynced = 0;
                }
                bytes.clear();
                // The engine may be done and want none back.
                let _ = give_back.send(bytes);
            }
            Part::Overwrite(bytes, offset) => file.write_all_at(&bytes, offset)?,
        }
    }
    // The rest is on its way while the hash is still being computed.
    file.start_sync();
    Ok(())
}

/// A piece of output.
enum Part {
    Append(Vec<u8>),
    Overwrite(Vec<u8>, u64),
}

/// The writer has failed and takes nothing more.
#[derive(Debug)]
struct Stopped;

struct Pipe {
    to_disk: SyncSender<Part>,
    spare: Receiver<Vec<u8>>,
}

impl Sink for Pipe {
    type Error = Stopped;

    fn append(&mut self, bytes: &[u8]) -> Result<(), Stopped> {
        self.to_disk.send(Part::Append(bytes.to_vec())).map_err(|_| Stopped)
    }

    fn overwrite(&mut self, bytes: &[u8], offset: u64) -> Result<(), Stopped> {
        self.to_disk.send(Part::Overwrite(bytes.to_vec(), offset)).map_err(|_| Stopped)
    }

    fn append_buffer(&mut self, buffer: &mut Vec<u8>) -> Result<(), Stopped> {
        let next = self.spare.try_recv().unwrap_or_default();
        self.to_disk.send(Part::Append(std::mem::replace(buffer, next))).map_err(|_| Stopped)
    }
}

/// A source that ends when it is no longer needed.
struct Unless<'a> {
    source: &'a FileSource,
    given_up: &'a AtomicBool,
}

impl ReadAt for Unless<'_> {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ReadError> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(ReadError { offset, wanted: buf.len(), cause: None });
        }
        self.source.read_exact_at(buf, offset)
    }
}

/// Refuses a snapshot whose bytes do not give its hash.
pub(crate) fn check(name: &str, hash: Result<Option<HashCheck>, ReadError>) -> Result<(), Fault> {
    match hash {
        Ok(Some(hash)) if hash.agrees() => Ok(()),
        Ok(Some(hash)) => Err(Fault::new(Code::SnapshotHash, cannot_use(name))
            .caused_by(format!("it should have the SHA-256 {}, and has {}", hex(&hash.stored), hex(&hash.computed)))
            .hint("copy it again from where it was stored, or take another one; nothing was written")),
        Ok(None) => Err(no_hash(name)),
        Err(error) => Err(read_fault(name, error)),
    }
}

/// The fault for a snapshot without a hash.
pub fn no_hash(name: &str) -> Fault {
    Fault::new(Code::RestoreNoHash, cannot_use(name))
        .caused_by("it carries no SHA-256: it is a copied database, or its end is cut off")
        .hint("if it was copied from a data dir while etcd did not run, give `--skip-hash`")
}

/// The fault for a source that could not be read.
pub(crate) fn read_fault(name: &str, error: ReadError) -> Fault {
    let cause = error.cause.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
    Fault::io(format!("cannot read `{name}`"), cause)
}

fn cannot_use(name: &str) -> String {
    format!("cannot use `{name}`")
}

fn bug() -> Fault {
    Fault::new(Code::Internal, "a part of the work ended early")
}

/// What the engine has against its input, in the operator's words.
fn fault<E: std::fmt::Debug + Send + Sync + 'static>(name: &str, error: RebuildError<E>) -> Fault {
    let attempt = if name.is_empty() { "cannot build the database".to_owned() } else { cannot_use(name) };
    match error {
        RebuildError::Base(error) => not_a_database(attempt, error),
        RebuildError::Sink(_) => bug(),
        RebuildError::Compacted { .. } => Fault::new(Code::RestoreCompacted, attempt)
            .caused_by(error)
            .hint("restore that revision or a later one, or begin from an older snapshot"),
        RebuildError::NotAWrite { .. } | RebuildError::Malformed { .. } | RebuildError::TooManyLeases { .. } => {
            Fault::new(Code::RestoreBase, attempt)
                .caused_by(error)
                .hint("`quorate data verify` lists everything that is wrong with it")
        }
        RebuildError::TooHigh { .. } => {
            Fault::new(Code::Usage, attempt).caused_by(error).hint("give a smaller `--bump-revision`")
        }
        RebuildError::Events(_) | RebuildError::OutOfOrder { .. } => Fault::new(Code::RestoreHistory, attempt)
            .caused_by(error)
            .hint("`quorate backup verify` names every object that is damaged or out of order"),
    }
}
