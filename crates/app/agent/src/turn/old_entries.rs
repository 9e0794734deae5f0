//! Entries of early releases in the raft log that the next minor version of etcd cannot read: counts them while etcd runs, and has
//! every member take a raft snapshot behind them.
//!
//! **Rule:** what is added to the log changes nothing. etcd passes a list of alarms through the log; that touches no key, no revision
//! and no lease, and is accepted while the database is full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_etcd::client::Client;
use quorate_etcd_formats::verify::V2Entries;
use quorate_faults::Fault;
use quorate_plan::change::upgrade::Release;
use quorate_plan::change::{ChangeStep, LogRead};
use tokio::task::JoinSet;
use tracing::{debug, info};

use super::beside::Beside;
use super::change::Took;
use super::data::{self, in_words};
use super::membership::{Through, through};
use crate::peering::point;

/// Entries that are added before the cluster is observed again.
const ENTRIES: u64 = 2_000;
/// Requests at once: etcd puts what waits into one write of its log.
const AT_ONCE: usize = 32;
/// For how long entries are added before the cluster is observed again.
const LIMIT: Duration = Duration::from_secs(2);

impl Beside {
    /// Reads the log for entries that the next minor version of etcd cannot read, where that is so of the release that runs.
    pub(super) async fn notice_old_entries(&self, version: &str) {
        let Some(runs) = Release::parse(version).filter(|release| release.is_last_with_v2()) else {
            return self.shared.set_old_entries(None);
        };
        let declared = self.node.spec.agent.etcd_version.as_deref().and_then(Release::parse);
        if !self.shared.old_entries_due(declared.is_some_and(|to| runs.drops_v2(to))) {
            return;
        }
        let node = Arc::clone(&self.node);
        let observed = tokio::task::spawn_blocking(move || data::v2_entries(&node.target)).await;
        let observed = match observed {
            Ok(Ok(V2Entries::Known { count, snapshot, end, .. })) => Some((count, LogRead { snapshot, last: end })),
            Ok(Ok(V2Entries::Unknown(why))) => {
                debug!(why, "the log cannot be searched for entries of earlier releases");
                None
            }
            Ok(Err(fault)) => {
                debug!("the log cannot be searched for entries of earlier releases: {}", in_words(&fault));
                None
            }
            Err(_) => None,
        };
        self.shared.set_old_entries(Some(observed));
    }

    /// Adds entries to the raft log. Whether there are enough is seen by what the agents read in their logs.
    pub(super) async fn snapshot_log(&self, step: &ChangeStep) -> Result<Took, Fault> {
        let client = Client::connect(&self.node.client()?).await?;
        let Through { client, .. } = through(&client, &self.book.read()).await?;
        let added = add_entries(&client).await?;
        info!(added, "{} ({})", step.act, step.why);
        point("entries-added");
        Ok(Took::Step)
    }
}

/// Adds up to [`ENTRIES`] entries that change nothing. Returns how many.
async fn add_entries(client: &Client) -> Result<u64, Fault> {
    let (begun, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + LIMIT);
    let mut adding = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (client, begun) = (client.clone(), Arc::clone(&begun));
        adding.spawn(async move {
            let mut added = 0;
            while Instant::now() < end && begun.fetch_add(1, Ordering::Relaxed) < ENTRIES {
                client.alarms().await?;
                added += 1;
            }
            Ok::<u64, Fault>(added)
        });
    }
    let mut all = 0;
    while let Some(added) = adding.join_next().await {
        // A task that was dropped has added nothing that counts.
        all += added.unwrap_or(Ok(0))?;
    }
    Ok(all)
}
