//! A lease that is kept, and whose loss is noticed.
//!
//! **Invariant:** a lease counts as lost no later than its time after the last renewal was *asked for*, by this machine's own
//! clock. The store counts from when it *got* the renewal, so we know before it gives anything away.

use std::sync::Arc;
use std::time::Duration;

use quorate_faults::Result;
use quorate_kv::LeaseId;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::store::Store;

/// The longest pause between two attempts at a store that does not answer.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Why a lease is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseLost {
    /// The store says that it is gone: someone ended it, or it ended while the store could not be reached.
    Gone,
    /// It could not be renewed in time.
    NotRenewed,
}

impl std::fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LeaseLost::Gone => "the store ended the lease",
            LeaseLost::NotRenewed => "the lease could not be renewed in time",
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// It lives at least until then.
    until: Instant,
    lost: Option<LeaseLost>,
}

/// A lease that is renewed in the background. Dropped, it is no longer renewed and ends after its time; see [`Lease::end`].
#[derive(Debug)]
pub struct Lease {
    id: LeaseId,
    ttl: Duration,
    store: Store,
    state: Arc<watch::Sender<State>>,
    keeper: AbortHandle,
}

/// Tells whether a lease lives. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct LeaseSignal {
    state: watch::Receiver<State>,
}

impl Store {
    /// Gets a lease and keeps it. Must be called within a tokio runtime.
    pub async fn lease(&self, ttl: Duration) -> Result<Lease> {
        let asked = Instant::now();
        let (id, ttl) = self.grant(ttl).await?;
        let state = Arc::new(watch::Sender::new(State { until: asked + ttl, lost: None }));
        let keeper = tokio::spawn(keep(self.clone(), id.clone(), ttl, asked, Arc::clone(&state))).abort_handle();
        Ok(Lease { id, ttl, store: self.clone(), state, keeper })
    }
}

impl Lease {
    /// Its id, to hold keys with.
    pub fn id(&self) -> &LeaseId {
        &self.id
    }

    /// How long it lives without being renewed: what the store granted, which may be more than was asked for.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Whether it surely lives now.
    pub fn is_alive(&self) -> bool {
        self.signal().is_alive()
    }

    /// Waits until it is lost.
    pub async fn lost(&self) -> LeaseLost {
        self.signal().lost().await
    }

    pub(crate) fn signal(&self) -> LeaseSignal {
        LeaseSignal { state: self.state.subscribe() }
    }

    /// Ends it now, and deletes what it holds.
    pub async fn end(self) -> Result<()> {
        self.keeper.abort();
        // Who holds something by it knows before the store gives it away.
        lose(&self.state, LeaseLost::Gone);
        self.store.end(&self.id).await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl LeaseSignal {
    pub(crate) fn is_alive(&self) -> bool {
        let state = *self.state.borrow();
        state.lost.is_none() && Instant::now() < state.until
    }

    pub(crate) async fn lost(&self) -> LeaseLost {
        let mut state = self.state.clone();
        loop {
            let now = *state.borrow_and_update();
            if let Some(lost) = now.lost {
                return lost;
            }
            // A keeper that was aborted says nothing more; then the time runs out.
            tokio::select! {
                changed = state.changed() => if changed.is_err() {
                    sleep_until(now.until).await;
                    return LeaseLost::NotRenewed;
                },
                () = sleep_until(now.until) => if state.borrow().until <= now.until {
                    return LeaseLost::NotRenewed;
                },
            }
        }
    }
}

fn lose(state: &watch::Sender<State>, lost: LeaseLost) {
    state.send_modify(|state| state.lost = Some(lost));
}

/// Renews at every third of the time, and more often while the store does not answer.
async fn keep(store: Store, id: LeaseId, ttl: Duration, granted: Instant, state: Arc<watch::Sender<State>>) {
    let (mut until, mut due) = (granted + ttl, granted + ttl / 3);
    loop {
        sleep_until(due.min(until)).await;
        let asked = Instant::now();
        if asked >= until {
            break lose(&state, LeaseLost::NotRenewed);
        }
        // An attempt that hangs leaves time for another one.
        match timeout_at(until.min(asked + ttl / 3), store.renew(&id)).await {
            Ok(Ok(Some(ttl))) => {
                (until, due) = (asked + ttl, asked + ttl / 3);
                state.send_modify(|state| state.until = until);
            }
            Ok(Ok(None)) => break lose(&state, LeaseLost::Gone),
            Ok(Err(_)) | Err(_) => due = Instant::now() + (ttl / 10).min(RETRY_MAX),
        }
    }
}
