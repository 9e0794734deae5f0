//! This node's ledger, shared by whoever may write it: the turn loop, what goes on beside etcd, and peers that are heard.
//!
//! **Invariant:** a change reads what is on disk, and is on disk when it returns; two changes never overlap.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use quorate_etcd::ledger::{ensure_ledger, observe_ledger};
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::ledger::{Ledger, LedgerSeen};

/// The ledger.
#[derive(Debug)]
pub(crate) struct Book {
    path: PathBuf,
    writing: Mutex<()>,
    read: Mutex<Option<(Stamp, LedgerSeen)>>,
}

/// What changes whenever the file is written or replaced: inode, length, time of content, time of change.
type Stamp = (u64, u64, (i64, i64), (i64, i64));

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::symlink_metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    Some((meta.ino(), meta.len(), (meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())))
}

impl Book {
    pub(crate) fn new(path: PathBuf) -> Book {
        Book { path, writing: Mutex::new(()), read: Mutex::new(None) }
    }

    /// What is there. It is asked for several times a second, so a file that is as it was is not read again.
    pub(crate) fn read(&self) -> LedgerSeen {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(&self.path);
        match (&*read, now) {
            (Some((before, seen)), Some(now)) if *before == now => seen.clone(),
            (_, now) => {
                let seen = observe_ledger(&self.path);
                *read = now.filter(|_| matches!(seen, LedgerSeen::There(_))).map(|now| (now, seen.clone()));
                seen
            }
        }
    }

    /// Changes it durably; one that would not change is not written. Returns what is there now.
    pub(crate) fn change(&self, with: impl FnOnce(&mut Ledger)) -> Result<Ledger, Fault> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, there) = match observe_ledger(&self.path) {
            LedgerSeen::There(ledger) => (*ledger, true),
            LedgerSeen::Absent => (Ledger::default(), false),
            LedgerSeen::Unreadable(why) => {
                let attempt = format!("cannot read the ledger `{}`", self.path.display());
                return Err(Fault::new(Code::LedgerUnreadable, attempt)
                    .hint("see `quorate explain Q0935`")
                    .caused_by(why));
            }
        };
        let mut next = before.clone();
        with(&mut next);
        if next != before || !there {
            let written = ensure_ledger(&RealDisk, &self.path, &next);
            // Two that follow at once could look alike.
            *self.read.lock().unwrap_or_else(PoisonError::into_inner) = None;
            written?;
        }
        Ok(next)
    }
}
