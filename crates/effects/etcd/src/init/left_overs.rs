//! Partial files of runs that were interrupted, or are still at work.
//!
//! **Invariant:** a partial file or directory is removed only under its lock, which its maker holds while it lives.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use quorate_etcd_formats::founding::FoundingFiles;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Disk, is_partial_of};
use quorate_host::locks::{Lock, exclusive_lock};
use quorate_plan::Warning;

use super::paths::{Target, parent};

/// Something with a partial name of this very target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeftOver {
    path: PathBuf,
}

impl LeftOver {
    pub(super) fn warning(&self) -> Warning {
        Warning {
            code: Code::InitLeftOver,
            text: format!("`{}` was left by an interrupted run and is replaced", self.path.display()),
        }
    }
}

/// Finds the partial forms of each path that a run may build. A directory that cannot be listed has none that matter:
/// nothing can be built in it either, and the attempt will say so.
pub(super) fn observe_left_overs(target: &Target, files: &FoundingFiles) -> Vec<LeftOver> {
    let data = target.data_dir();
    let mut found = Vec::new();
    let mut look = |dir: &Path, of: &OsStr| {
        let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        found.extend(names.filter(|name| is_partial_of(name, of)).map(|name| LeftOver { path: dir.join(name) }));
    };
    if let Some(name) = data.file_name() {
        look(parent(data), name);
    }
    look(data, OsStr::new("member"));
    if let Some(wal) = target.wal_dir() {
        if let Some(name) = wal.file_name() {
            look(parent(wal), name);
        }
        look(wal, OsStr::new(&files.wal.name));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.dedup();
    found
}

/// Removes all of them, or none if another run is at work on one.
pub(super) fn ensure_removed(disk: &impl Disk, left_overs: &[LeftOver]) -> Result<(), Fault> {
    let mut held = Vec::new();
    for left_over in left_overs {
        match lock(&left_over.path)? {
            Locked::Ours(lock) => held.push((lock, left_over)),
            Locked::Gone => {}
            Locked::Busy => return Err(busy(&left_over.path)),
        }
    }
    for (_lock, left_over) in &held {
        disk.remove_partial(&left_over.path)?;
    }
    Ok(())
}

/// Removes those that no run is at work on.
pub(super) fn ensure_removed_unless_busy(disk: &impl Disk, left_overs: &[LeftOver]) -> Result<(), Fault> {
    for left_over in left_overs {
        if let Locked::Ours(_lock) = lock(&left_over.path)? {
            disk.remove_partial(&left_over.path)?;
        }
    }
    Ok(())
}

pub(crate) enum Locked {
    /// Until the lock is dropped, no other run touches it.
    Ours(Lock),
    /// It was removed or renamed meanwhile.
    Gone,
    /// Another run holds it.
    Busy,
}

/// Locks a partial file or directory, and makes sure that it is still the one that the path names.
pub(crate) fn lock(path: &Path) -> Result<Locked, Fault> {
    match exclusive_lock(path) {
        Ok(Some(lock)) if lock.is_still(path) => Ok(Locked::Ours(lock)),
        Ok(Some(_)) => Ok(Locked::Gone),
        Ok(None) => Ok(Locked::Busy),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Locked::Gone),
        Err(error) => Err(Fault::io(format!("cannot lock `{}`", path.display()), error)),
    }
}

pub(crate) fn busy(path: &Path) -> Fault {
    Fault::new(Code::InitBusy, format!("cannot initialise now: another quorate is at work on `{}`", path.display()))
        .hint("run it again in a moment; it will say so if the other run has done the work")
}
