//! Asks the other agents what time it is, right before something is removed by age.
//!
//! **Invariant:** no answer is Unknown, never "not ahead"; an answer from an earlier moment is not used again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_plan::retention::OtherClock;

type Asking = Pin<Box<dyn Future<Output = Option<i64>> + Send>>;

/// How the clocks of the other agents are read.
#[derive(Clone)]
pub struct PeerClocks(Arc<dyn Fn() -> Asking + Send + Sync>);

impl fmt::Debug for PeerClocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerClocks")
    }
}

impl PeerClocks {
    /// `ask` returns the earliest of the clocks that were read, in milliseconds since 1970; `None`: no agent reported its time.
    pub fn new<F>(ask: impl Fn() -> F + Send + Sync + 'static) -> PeerClocks
    where
        F: Future<Output = Option<i64>> + Send + 'static,
    {
        PeerClocks(Arc::new(move || Box::pin(ask())))
    }

    /// Reads them now.
    pub(super) async fn read(&self) -> PeersTime {
        let earliest_ms = (self.0)().await;
        PeersTime { earliest_ms, read: Instant::now() }
    }
}

/// What they showed.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeersTime {
    earliest_ms: Option<i64>,
    read: Instant,
}

impl PeersTime {
    /// What the earliest of them shows by now.
    pub(super) fn now(&self) -> OtherClock {
        let passed = millis(self.read.elapsed());
        self.earliest_ms.map_or(OtherClock::Unknown, |ms| OtherClock::At(ms.saturating_add(passed)))
    }
}

pub(super) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
