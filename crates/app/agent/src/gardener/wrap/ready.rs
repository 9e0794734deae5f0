//! Whether this etcd serves: a read that a quorum confirms, asked again and again.
//!
//! **Rule:** no user is needed. etcd confirms with a quorum before it looks at who asks, so being turned down for that
//! means that it serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorate_etcd::client::Client;
use quorate_faults::{Code, Result};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::settings::Probe;

/// Between two probes.
const PERIOD: Duration = Duration::from_secs(2);

/// The same until the first one has succeeded, so that nobody waits for longer than etcd needs.
const PERIOD_FIRST: Duration = Duration::from_millis(100);

/// What the last probe said.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    now: AtomicBool,
    ever: AtomicBool,
}

impl Readiness {
    pub(super) fn is(&self) -> bool {
        self.now.load(Ordering::Acquire)
    }

    pub(super) fn has_been(&self) -> bool {
        self.ever.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, ready: bool) {
        self.now.store(ready, Ordering::Release);
        self.ever.fetch_or(ready, Ordering::AcqRel);
    }
}

/// Probes until the end.
pub(super) async fn watch(probe: Probe, readiness: Arc<Readiness>, stop: CancellationToken) {
    let began = Instant::now();
    let mut complain_after = probe.complain_after;
    let mut client = None;
    while !stop.is_cancelled() {
        let asked = ask(&probe, &mut client).await;
        if asked.is_err() {
            // Certificates may have been replaced.
            client = None;
        }
        let before = readiness.is();
        if stop.is_cancelled() {
            return;
        }
        readiness.set(asked.is_ok());
        match &asked {
            Ok(()) if !before => info!(ms = began.elapsed().as_millis() as u64, "etcd serves"),
            Err(fault) if before => warn!(code = %fault.code(), "etcd does not serve: {fault}"),
            Err(fault) if fault.code() != Code::EtcdUnreachable => warn!(code = %fault.code(), "{fault}"),
            Ok(()) | Err(_) => {}
        }
        if complain_after.is_some_and(|limit| began.elapsed() > limit) && !readiness.has_been() {
            warn!("etcd is not ready in the time of `--etcd-ready-timeout`; it is given more");
            complain_after = None;
        }
        tokio::time::sleep(if readiness.has_been() { PERIOD } else { PERIOD_FIRST }).await;
    }
}

async fn ask(probe: &Probe, client: &mut Option<Client>) -> Result<()> {
    let client = match client {
        Some(client) => client,
        None => client.insert(Client::connect(&probe.etcd).await?),
    };
    client.serves().await
}
