//! One turn: the tasks that work side by side, and how they are brought to an end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate_backup::spool::{Segment, Spool};
use quorate_backup::store::Store;
use quorate_etcd::client::Client;
use quorate_etcd_formats::delta::quorate::{Manifest, Origin};
use quorate_faults::Result;
use quorate_plan::chain::Layout;
use quorate_plan::estimate::{Cost, Rates, restore_time};
use quorate_plan::follow::FollowPlan;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::capture::{Capture, pulse};
use super::fulls::Fulls;
use super::keeper::{Keeper, Told, Ways};
use super::observe::answers;
use super::upload::Uploads;
use super::{Again, Ending, FollowSettings, TakeOver, halted, leases};
use crate::backups::full::ask;
use crate::backups::metrics::Metrics;

/// What all tasks of a turn share.
pub(super) struct Run {
    pub(super) settings: Arc<FollowSettings>,
    pub(super) client: Client,
    pub(super) store: Arc<Store>,
    pub(super) metrics: Metrics,
    pub(super) cluster_id: u64,
    /// This cluster, and those of its lineage that it overrules.
    pub(super) clusters: Vec<u64>,
    pub(super) origin: Origin,
    pub(super) epoch: u64,
    pub(super) layout: Layout,
    last_full_ms: Option<i64>,
    cost: Mutex<Cost>,
    /// The newest delta of this turn in the store.
    uploaded: AtomicU64,
}

/// Whose history it is, and what the store had of it.
pub(super) struct Origins {
    pub(super) origin: Origin,
    pub(super) clusters: Vec<u64>,
    pub(super) epoch: u64,
    pub(super) last_full_ms: Option<i64>,
    pub(super) cost: Option<Cost>,
}

/// How long the end may be put off for writes that are on their way.
const CATCH_UP: Duration = Duration::from_secs(2);

const NOTHING: Cost = Cost { stored_bytes: 0, database_bytes: 0, events: 0, gardener_events: 0, assumed_objects: 0 };

impl Run {
    pub(super) fn new(
        settings: Arc<FollowSettings>,
        client: Client,
        store: Arc<Store>,
        metrics: Metrics,
        of: Origins,
    ) -> Run {
        Run {
            layout: settings.layout,
            settings,
            client,
            store,
            metrics,
            cluster_id: of.origin.cluster_id,
            clusters: of.clusters,
            origin: of.origin,
            epoch: of.epoch,
            last_full_ms: of.last_full_ms,
            cost: Mutex::new(of.cost.unwrap_or(NOTHING)),
            uploaded: AtomicU64::new(0),
        }
    }

    /// A delta is in the store. It leads somewhere if a full leads to it.
    pub(super) fn delta_stored(&self, segment: &Segment, stored_bytes: u64) {
        let position = &self.metrics.position;
        self.uploaded.fetch_max(segment.last, Ordering::SeqCst);
        if position.full_missing_since_ms.load(Ordering::SeqCst) == 0 {
            position.stored.fetch_max(segment.last, Ordering::Relaxed);
        }
        position.delta_revision.store(segment.last, Ordering::Relaxed);
        position.delta_ms.store(segment.created_ms, Ordering::Relaxed);
        position.deltas.fetch_add(1, Ordering::Relaxed);
        let mut cost = self.cost.lock().unwrap_or_else(PoisonError::into_inner);
        cost.stored_bytes += stored_bytes;
        cost.events += segment.events;
    }

    /// A full is in the store that holds this revision at least, and deltas behind it lead somewhere again.
    pub(super) fn full_seen(&self, revision: u64) {
        let position = &self.metrics.position;
        let missing = position.full_missing_since_ms.swap(0, Ordering::SeqCst) != 0;
        let reach = revision.max(self.uploaded.load(Ordering::SeqCst));
        match missing {
            true => {
                position.stored.store(reach, Ordering::Relaxed);
                // The first full of a take-over completes it.
                if matches!(self.settings.take_over, TakeOver::Of(cluster) if self.clusters.contains(&cluster)) {
                    position.take_over_done.store(1, Ordering::Relaxed);
                }
            }
            false => {
                position.stored.fetch_max(reach, Ordering::Relaxed);
            }
        }
    }

    /// Our own full is.
    pub(super) fn full_stored(&self, full: &Manifest) {
        self.full_seen(full.last);
        let position = &self.metrics.position;
        position.full_revision.store(full.last, Ordering::Relaxed);
        position.full_ms.store(full.created_ms, Ordering::Relaxed);
        position.deltas.store(0, Ordering::Relaxed);
        self.chain_begins(full);
    }

    /// A restore begins with this full from now on.
    pub(super) fn chain_begins(&self, full: &Manifest) {
        let mut cost = self.cost.lock().unwrap_or_else(PoisonError::into_inner);
        *cost = Cost { stored_bytes: full.stored.bytes, database_bytes: full.content.bytes, ..NOTHING };
    }

    /// How long a restore would take now.
    pub(super) fn restore_time(&self) -> Duration {
        let cost = *self.cost.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = if self.store.folder().is_some() { Rates::local() } else { Rates::remote() };
        restore_time(&cost, &rates)
    }
}

/// Works until something ends it. Gives the spool back.
pub(super) async fn turn(
    run: Arc<Run>,
    spool: Spool,
    plan: FollowPlan,
    stop: &CancellationToken,
) -> Result<(Spool, Ending)> {
    let (quit, give_up) = (CancellationToken::new(), CancellationToken::new());
    let (endings, mut ended) = mpsc::channel(16);
    let (tell, told) = std::sync::mpsc::channel();
    let (segments, to_upload) = mpsc::unbounded_channel();
    let (ask, to_ask) = mpsc::channel(leases::QUEUE);
    let (room, has_room) = watch::channel(true);
    let ways = Ways { segments, leases: ask, room, endings: endings.clone() };
    let keeper = Keeper::new(Arc::clone(&run), spool, ways);
    let keeper = tokio::task::spawn_blocking(move || keeper.work(&told));
    let uploads = Uploads {
        run: Arc::clone(&run),
        segments: to_upload,
        keeper: tell.clone(),
        endings: endings.clone(),
        hurry: quit.clone(),
        give_up: give_up.clone(),
    };
    let known = !plan.ask_again;
    // Nothing is stored in a store that was not seen.
    let mut uploads = tokio::spawn(async move {
        if known {
            uploads.work().await;
        }
    });
    let lookups = tokio::spawn(leases::run(Arc::clone(&run), to_ask, tell.clone(), quit.clone()));
    let heartbeat = tokio::spawn(pulse(Arc::clone(&run), quit.clone(), endings.clone()));
    let capture = Capture {
        run: Arc::clone(&run),
        keeper: tell.clone(),
        room: has_room,
        quit: quit.clone(),
        endings: endings.clone(),
    };
    let capture = tokio::spawn(capture.work(plan.watch_from));
    let fulls = Fulls {
        run: Arc::clone(&run),
        keeper: tell.clone(),
        quit: quit.clone(),
        endings: endings.clone(),
        from: plan.watch_from,
    };
    let (asking, until) = (Arc::clone(&run), quit.clone());
    let fulls = tokio::spawn(async move {
        if known {
            fulls.work(plan.take_full, asking.last_full_ms).await;
        } else if let Ok(Some(())) = answers(&asking.store, &until).await {
            let _ = endings.send(Ending::Again(Again::StoreSeen)).await;
        }
    });
    let ending = tokio::select! {
        ending = ended.recv() => ending.unwrap_or(Ending::Stopped),
        () = stop.cancelled() => Ending::Stopped,
    };
    if matches!(ending, Ending::Stopped) {
        catch_up(&run).await;
    }
    quit.cancel();
    capture.await.map_err(halted)?;
    lookups.await.map_err(halted)?;
    heartbeat.await.map_err(halted)?;
    // Everything that was seen is with the keeper now.
    let _ = tell.send(Told::Finish);
    drop(tell);
    if !matches!(ending, Ending::Stopped) {
        give_up.cancel();
    }
    let flush = run.settings.flush_timeout;
    let limit = async {
        stop.cancelled().await;
        tokio::time::sleep(flush).await;
    };
    tokio::select! {
        done = &mut uploads => done.map_err(halted)?,
        () = limit => {
            give_up.cancel();
            uploads.abort();
        }
    }
    // A full that is under way notices the end at its next piece, and leaves nothing.
    let mut fulls = fulls;
    if tokio::time::timeout(flush, &mut fulls).await.is_err() {
        fulls.abort();
        let _ = fulls.await;
    }
    let spool = keeper.await.map_err(halted)?;
    Ok((spool, ending))
}

/// Lets the watch bring what the cluster had when the end was asked for, if that does not take long.
async fn catch_up(run: &Run) {
    let reached = async {
        let Ok(now) = ask(&run.client).await else { return };
        while run.metrics.position.recorded.load(Ordering::Relaxed) < now.revision {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(CATCH_UP.min(run.settings.flush_timeout), reached).await;
}
