//! The store in memory: one process, no clock of its own.
//!
//! **Rule:** leases end when [`Memory::pass`] says how much time has passed, and never otherwise.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quorate_faults::Result;
use quorate_kv::{Gone, LeaseId, LeaseUnknown, Listing, Model, Outcome, Position, Revision, Scope, Txn};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::errors::Attempt;
use crate::limits::Limits;
use crate::watch::Turn;

pub(crate) const LIMITS: Limits = Limits { bytes_max: 512 << 10, operations_max: 100 };

const PLACE: &str = "memory";

/// A store that lives as long as this value and its clones.
#[derive(Debug, Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    model: Mutex<Model>,
    /// Counts what may interest those who wait.
    changed: watch::Sender<u64>,
    away: AtomicBool,
}

impl Memory {
    /// An empty store that keeps at most so many events of its history.
    pub fn new(history_max: usize) -> Memory {
        let (changed, _) = watch::channel(0);
        let model = Mutex::new(Model::new(history_max));
        Memory { shared: Arc::new(Shared { model, changed, away: AtomicBool::new(false) }) }
    }

    /// Lets time pass, and ends the leases whose time is over.
    pub fn pass(&self, time: Duration) {
        self.changing(|model| model.pass(time));
    }

    /// Forgets the history up to a revision.
    pub fn compact(&self, upto: Revision) {
        self.changing(|model| model.compact(upto));
    }

    /// Ends a lease, as an operator would.
    pub fn end_lease(&self, lease: &LeaseId) {
        // One that is gone already is as good as ended.
        let _ = self.changing(|model| model.end(lease));
    }

    /// Makes the store answer nobody, or answer again.
    pub fn set_away(&self, away: bool) {
        self.shared.away.store(away, Ordering::SeqCst);
        self.shared.changed.send_modify(|count| *count += 1);
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        // Nothing in the model panics half-way through a change.
        self.shared.model.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn changing<T>(&self, change: impl FnOnce(&mut Model) -> T) -> T {
        let result = change(&mut self.model());
        self.shared.changed.send_modify(|count| *count += 1);
        result
    }

    fn answers(&self, attempt: Attempt) -> Result<()> {
        match self.shared.away.load(Ordering::SeqCst) {
            true => Err(attempt.silent(PLACE, "is away")),
            false => Ok(()),
        }
    }

    pub(crate) fn look(&self, scope: &Scope) -> Result<Listing> {
        self.answers(Attempt::LOOK)?;
        Ok(self.model().list(scope))
    }

    pub(crate) fn txn(&self, txn: &Txn) -> Result<Outcome> {
        self.answers(Attempt::TXN)?;
        self.changing(|model| model.txn(txn)).map_err(|LeaseUnknown| Attempt::TXN.lease_gone(PLACE))
    }

    pub(crate) fn grant(&self, ttl: Duration) -> Result<(LeaseId, Duration)> {
        self.answers(Attempt::GRANT)?;
        Ok((self.model().grant(ttl), ttl))
    }

    pub(crate) fn renew(&self, lease: &LeaseId) -> Result<Option<Duration>> {
        self.answers(Attempt::RENEW)?;
        Ok(self.model().renew(lease).ok())
    }

    pub(crate) fn end(&self, lease: &LeaseId) -> Result<()> {
        self.answers(Attempt::END)?;
        self.end_lease(lease);
        Ok(())
    }

    pub(crate) fn watch(&self, scope: Scope, position: Position) -> MemoryWatch {
        MemoryWatch { changed: self.shared.changed.subscribe(), memory: self.clone(), scope, position }
    }
}

/// A watch on the store in memory.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    memory: Memory,
    changed: watch::Receiver<u64>,
    scope: Scope,
    position: Position,
}

impl MemoryWatch {
    pub(crate) fn position(&self) -> Position {
        Position::at(self.position.revision)
    }

    pub(crate) async fn next(&mut self, limit: Duration) -> Result<Turn> {
        let end = Instant::now() + limit;
        loop {
            // Marked as seen before looking, so that what comes after the look wakes us.
            self.changed.borrow_and_update();
            let silent = self.memory.answers(Attempt::WATCH).err();
            if silent.is_none() {
                let model = self.memory.model();
                let events = match model.events_after(&self.scope, self.position.revision) {
                    Ok(events) => events,
                    Err(Gone { oldest }) => return Ok(Turn::Compacted { oldest: Some(oldest) }),
                };
                self.position.revision = model.revision();
                if !events.is_empty() {
                    return Ok(Turn::Events(events));
                }
            }
            // The sender lives in the store that we hold, so this only ends by a change or by the limit.
            if timeout_at(end, self.changed.changed()).await.is_err() {
                return silent.map_or(Ok(Turn::Quiet), Err);
            }
        }
    }
}
