//! Watching a service: the whole list, whenever it has changed.
//!
//! **Rule:** the list is the truth, so what happened between two looks is not told, only what it led to.

use std::time::Duration;

use quorate_faults::Result;
use tokio::time::{Instant, sleep};

use super::{Seen, service_scope};
use crate::store::{Backend, Store};
use crate::watch::{Turn, Watch};

/// The pause after a look that came at once and showed nothing new.
const PAUSE: Duration = Duration::from_millis(200);

/// What a watch on a service tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceTurn {
    /// All instances, as they are now.
    Changed(Vec<Seen>),
    /// The store answers, and nothing has changed.
    Quiet,
}

/// A watch on a service. Dropped, it ends.
#[derive(Debug)]
pub struct ServiceWatch {
    store: Store,
    service: String,
    told: Option<Vec<Seen>>,
    /// Of keys.
    watch: Option<Watch>,
    /// Of Consul's catalogue.
    index: u64,
}

impl ServiceWatch {
    pub(super) fn new(store: Store, service: &str) -> ServiceWatch {
        ServiceWatch { store, service: service.to_owned(), told: None, watch: None, index: 0 }
    }

    /// Waits for a change; the first turn comes at once. A fault says that the store does not answer; asked again, the watch
    /// goes on.
    pub async fn next(&mut self, limit: Duration) -> Result<ServiceTurn> {
        let end = Instant::now() + limit;
        loop {
            let started = Instant::now();
            let left = end.saturating_duration_since(started);
            let seen = match self.store.backend.clone() {
                Backend::Consul(consul) => {
                    let wait = (self.index > 0 && !left.is_zero()).then_some((self.index, left));
                    let name = self.store.service_name(&self.service);
                    let looked = consul.services(&name, &self.service, wait).await;
                    let (index, seen) = looked.inspect_err(|_| self.index = 0)?;
                    self.index = if index < self.index { 0 } else { index };
                    Some(seen)
                }
                Backend::Etcd(_) | Backend::Memory(_) => self.look(left).await?,
            };
            if let Some(mut seen) = seen {
                seen.sort_by(|a, b| a.instance.id.cmp(&b.instance.id));
                if self.told.as_ref() != Some(&seen) {
                    self.told = Some(seen.clone());
                    return Ok(ServiceTurn::Changed(seen));
                }
            }
            if Instant::now() >= end {
                return Ok(ServiceTurn::Quiet);
            }
            if started.elapsed() < PAUSE && self.told.is_some() {
                sleep(PAUSE.min(end.saturating_duration_since(Instant::now()))).await;
            }
        }
    }

    /// Waits for a change of the keys, and lists them.
    async fn look(&mut self, limit: Duration) -> Result<Option<Vec<Seen>>> {
        if let Some(watch) = &mut self.watch
            && watch.next(limit).await? == Turn::Quiet
        {
            return Ok(None);
        }
        // What was told is used up, so a fault from here on must lead to a new list.
        self.watch = None;
        let scope = service_scope(&self.service);
        let listing = self.store.list(&scope).await?;
        self.watch = Some(self.store.watch(&scope, listing.position())?);
        self.store.seen(&self.service, &listing.entries).map(Some)
    }
}
