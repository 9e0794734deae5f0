//! This node's ledger, shared by whoever may write it: the turn loop, what goes on beside etcd, and peers that are heard.
//!
//! **Invariant:** a change reads what is on disk, and is on disk when it returns; two changes never overlap.

use std::path::PathBuf;
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
}

impl Book {
    pub(crate) fn new(path: PathBuf) -> Book {
        Book { path, writing: Mutex::new(()) }
    }

    /// What is there.
    pub(crate) fn read(&self) -> LedgerSeen {
        observe_ledger(&self.path)
    }

    /// Changes it durably; one that would not change is not written. Returns what is there now.
    pub(crate) fn change(&self, with: impl FnOnce(&mut Ledger)) -> Result<Ledger, Fault> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, there) = match self.read() {
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
            ensure_ledger(&RealDisk, &self.path, &next)?;
        }
        Ok(next)
    }
}
