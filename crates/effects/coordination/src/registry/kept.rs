//! Keeps an instance registered in a key that a lease holds.
//!
//! **Rule:** an entry that is gone is made again; one that another process made is that process's.

use std::time::Duration;

use quorate_faults::Result;
use quorate_kv::{LeaseId, Outcome};
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Instance, Wanted, record};
use crate::errors::Attempt;
use crate::lease::Lease;
use crate::store::Store;

/// How often a key is tried that others change at the same time.
const TRIES: usize = 10;

/// The pause before another attempt at a store that does not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// What became of a look at our entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Ours,
    Others,
}

pub(super) struct Kept {
    store: Store,
    key: Vec<u8>,
    instance: Instance,
    wanted: watch::Receiver<Wanted>,
    ttl: Duration,
    lease: Lease,
    lease_now: watch::Sender<Option<LeaseId>>,
}

impl Kept {
    /// Registers for the first time. An entry of an earlier process is replaced.
    pub(super) async fn begin(
        store: Store,
        key: Vec<u8>,
        instance: Instance,
        wanted: watch::Receiver<Wanted>,
        ttl: Duration,
        lease_now: watch::Sender<Option<LeaseId>>,
    ) -> Result<Kept> {
        let lease = store.lease(ttl).await?;
        let mut kept = Kept { store, key, instance, wanted, ttl, lease, lease_now };
        kept.ensure(true).await?;
        kept.lease_now.send_replace(Some(kept.lease.id().clone()));
        Ok(kept)
    }

    pub(super) async fn keep(mut self, registered: watch::Sender<bool>) {
        let every = self.lease.ttl();
        loop {
            let ended = tokio::select! {
                _ = self.lease.lost() => true,
                changed = self.wanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    false
                }
                () = sleep(every) => false,
            };
            loop {
                let turn = if ended { self.renewed().await } else { self.ensure(false).await };
                match turn {
                    Ok(Entry::Ours) => {
                        registered.send_replace(true);
                        break;
                    }
                    Ok(Entry::Others) => {
                        registered.send_replace(false);
                        return;
                    }
                    Err(_) if !ended && !self.lease.is_alive() => break,
                    Err(_) => sleep(PAUSE.min(self.ttl / 3)).await,
                }
            }
        }
    }

    /// The same with a new lease.
    async fn renewed(&mut self) -> Result<Entry> {
        if !self.lease.is_alive() {
            self.lease = self.store.lease(self.ttl).await?;
            self.lease_now.send_replace(Some(self.lease.id().clone()));
        }
        self.ensure(false).await
    }

    /// Makes the entry what it should be. `first` replaces one of somebody else.
    async fn ensure(&mut self, first: bool) -> Result<Entry> {
        let wanted = self.wanted.borrow_and_update().clone();
        let value = record(&self.instance, &wanted)?;
        for _ in 0..TRIES {
            let outcome = match self.store.get(self.key.clone()).await? {
                None => self.store.hold(self.key.clone(), value.clone(), self.lease.id()).await?,
                Some(entry) if entry.lease.as_ref() == Some(self.lease.id()) => {
                    if entry.value == value {
                        return Ok(Entry::Ours);
                    }
                    self.store.replace(self.key.clone(), value.clone(), entry.revision).await?
                }
                Some(entry) if first => {
                    self.store.delete_unchanged(self.key.clone(), entry.revision).await?;
                    Outcome::Conflict
                }
                Some(_) => return Ok(Entry::Others),
            };
            if let Outcome::Committed(_) = outcome {
                return Ok(Entry::Ours);
            }
        }
        Err(Attempt::REGISTER.silent(self.store.place(), "changes the entry again and again"))
    }
}
