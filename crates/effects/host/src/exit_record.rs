//! How the program ended: written by its shim once the program is gone, read before it is started again.
//!
//! A clean record is the reason to look at the data only briefly next time, so it must never be there when it is not
//! true: it is consumed, durably, before the program starts again.
//!
//! **Invariant:** absent, unreadable and read are three answers; only the last can say "clean".

use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use serde::{Deserialize, Serialize};

use crate::durable::{Access, Disk, DiskError, DiskFile, partial_path};
use crate::sealed::{read_small, seal, unseal};

/// Why it ended, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It was asked to stop and did, in its orderly way.
    Stopped,
    /// It was asked to stop, and ended in another way than an orderly one.
    StoppedBadly,
    /// It was asked to stop, did not in time, and was made to.
    Killed,
    /// It ended by itself.
    Exited,
    /// It died from a signal that we did not send.
    Signalled,
    /// It could not be executed at all.
    NotStarted,
}

/// One end of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// Why.
    pub reason: Reason,
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that it died from, if it did.
    pub signal: Option<i32>,
    /// Whether it was asked to stop and ended as it does when it has closed its files.
    pub clean: bool,
    /// Who asked for the end, if someone did.
    pub asked_by: Option<String>,
    /// What the system said when it could not be executed.
    pub error: Option<String>,
    /// When it was started, in milliseconds of Unix time.
    pub started_at_ms: u64,
    /// When it was seen to be over, in milliseconds of Unix time.
    pub ended_at_ms: u64,
    /// Its process id; 0 where it never had one.
    pub pid: u32,
    /// The hash of the configuration that it ran with.
    pub config_hash: String,
    /// The version that it was started as.
    pub etcd_version: String,
    /// The last revision that was known: to whoever asked for the stop, or to the agent while it ran.
    pub last_revision: Option<u64>,
}

/// What is known about the last end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing was recorded: a first start, a power cut, or the shim was killed.
    Absent,
    /// There is something that cannot be read, and why.
    Unreadable(String),
    /// It was recorded.
    Record(ExitRecord),
}

/// Reads the record.
pub fn read(path: &Path) -> Recorded {
    match read_small(path) {
        Ok(None) => Recorded::Absent,
        Ok(Some(bytes)) => unseal(&bytes).map_or_else(Recorded::Unreadable, Recorded::Record),
        Err(error) => Recorded::Unreadable(error.to_string()),
    }
}

/// Writes a record where there is none, durably.
pub fn write<D: Disk>(disk: &D, path: &Path, record: &ExitRecord) -> Result<(), Fault> {
    let bytes = seal(record).map_err(|error| internal(path, error))?;
    let partial = partial(path)?;
    disk.remove_partial(&partial)?;
    let mut file = disk.create_file(&partial, Access::mode(0o600))?;
    file.write_all(&bytes)?;
    file.sync()?;
    drop(file);
    rename_over(disk, &partial, path)?;
    Ok(disk.sync_dir(parent(path))?)
}

/// Takes the record away, durably, and returns what it was. It stays as `<name>.last` for people to read.
pub fn consume<D: Disk>(disk: &D, path: &Path) -> Result<Recorded, Fault> {
    let found = read(path);
    if found == Recorded::Absent {
        return Ok(found);
    }
    let last = last_path(path);
    let partial = partial(&last)?;
    disk.remove_partial(&partial)?;
    // Under a partial name in between: cut off here, there is no record, which errs on the careful side.
    disk.rename_new(path, &partial)?;
    rename_over(disk, &partial, &last)?;
    disk.sync_dir(parent(path))?;
    Ok(found)
}

/// Where a consumed record lies.
pub fn last_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".last");
    path.with_file_name(name)
}

fn rename_over<D: Disk>(disk: &D, partial: &Path, to: &Path) -> Result<(), DiskError> {
    if to.symlink_metadata().is_ok() { disk.replace_file(partial, to) } else { disk.rename_new(partial, to) }
}

fn partial(path: &Path) -> Result<PathBuf, Fault> {
    partial_path(path, std::process::id()).ok_or_else(|| internal(path, "it has no name"))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn internal(path: &Path, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    Fault::new(Code::Internal, format!("cannot write the exit record `{}`", path.display())).caused_by(cause)
}
