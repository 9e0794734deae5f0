//! Takes fulls on schedule, removes what need not be kept, and shortens chains, all beside the deltas.
//!
//! **Rule:** nothing here holds up the watch or the spool. What fails is tried again, ever more slowly.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_backup::own_fulls;
use quorate_backup::session::{Session, Whose};
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::Layout;
use quorate_plan::follow::{Lists, bound_by_members};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::keeper::Told;
use super::observe::{Accept, whose_fulls};
use super::patience::{Patience, in_words};
use super::{Again, Ending, Run, halted};
use crate::backups::full::{self, Cuts, NoCuts, Order, Taken};
use crate::backups::metrics::{CLOCK_AHEAD, CLOCK_UNKNOWN, Kind};
use crate::backups::objects::{StoreTime, Times};
use crate::backups::{compact, objects, size};

/// Clocks are set and machines sleep, so that the schedule is looked at at least this often.
const LOOK: Duration = Duration::from_secs(20);

/// Compactions are at least this far apart: each reads the whole chain.
const COMPACT_PAUSE: Duration = Duration::from_secs(600);

/// What was not removed because of the clock is tried again after this long: somebody may have set it right.
const PRUNE_AGAIN: Duration = Duration::from_secs(60);

/// In a layout where a full waits for the watch, how long it does.
const BEHIND_LIMIT: Duration = Duration::from_secs(60);

pub(super) struct Fulls {
    pub(super) run: Arc<Run>,
    pub(super) keeper: Sender<Told>,
    pub(super) quit: CancellationToken,
    pub(super) endings: tokio::sync::mpsc::Sender<Ending>,
    /// The first revision that is recorded.
    pub(super) from: u64,
}

impl Fulls {
    /// `now`: why one is taken at once. `last_ms`: when the newest one was made.
    pub(super) async fn work(self, now: Option<String>, last_ms: Option<i64>) {
        let mut patience = Patience::new(Duration::from_secs(1), Duration::from_secs(300));
        let (mut wanted, mut last_ms, mut turn) = (now, last_ms, 0);
        let mut compacted: Option<Instant> = None;
        // The full that was taken last, since when, and when removing was last tried.
        let mut proven: Option<(String, Instant, Instant)> = None;
        loop {
            let now_ms = Timestamp::now().as_millisecond();
            let schedule = &self.run.settings.full_schedule;
            if wanted.is_none() && schedule.due(last_ms, now_ms) {
                // One that somebody else took counts as well.
                last_ms = last_ms.max(self.newest_full().await.map(|(_, ms)| ms));
                wanted = schedule.due(last_ms, now_ms).then(|| format!("it is due by `{schedule}`"));
            }
            let mut wait = LOOK;
            if let Some(why) = wanted.take() {
                let began = Instant::now();
                match self.take(&why, turn).await {
                    Ok(taken) => {
                        last_ms = Some(taken.manifest.created_ms);
                        proven = Some((taken.name.clone(), began, Instant::now()));
                        if let Some(failures) = patience.worked() {
                            info!(failures, "fulls can be taken again");
                        }
                        if !self.settle(&taken.name, began).await {
                            return;
                        }
                    }
                    Err(_) if self.quit.is_cancelled() => return,
                    Err(fault) => {
                        self.run.metrics.failed(Kind::full, began.elapsed());
                        self.run.metrics.hindered(&fault);
                        let (pause, say) = patience.failed(&fault);
                        if say {
                            let hint = fault.hint_text().unwrap_or_default();
                            error!(code = %fault.code(), hint, "cannot take a full backup: {}", in_words(&fault));
                        }
                        if fault.code() == Code::OtherCluster {
                            let _ = self.endings.try_send(Ending::Again(Again::OtherCluster(fault)));
                            return;
                        }
                        (wanted, wait, turn) = (Some(why), pause, turn + 1);
                        // Where this user may not, another one may.
                        if let Some(ms) = self.taken_by_another(&fault, last_ms).await {
                            (wanted, last_ms) = (None, Some(ms));
                            patience.worked();
                        }
                    }
                }
            } else if compacted.is_none_or(|at| at.elapsed() > COMPACT_PAUSE) && self.chain_is_long() {
                compacted = Some(Instant::now());
                self.compact().await;
            }
            if let Some((name, began, at)) = proven.as_mut().filter(|_| self.clock_was_doubted())
                && at.elapsed() > PRUNE_AGAIN
            {
                *at = Instant::now();
                self.prune(name, *began).await;
            }
            if wanted.is_none() {
                wait = wait.min(self.until_due(last_ms));
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.quit.cancelled() => return,
            }
        }
    }

    /// What follows a full that is proven. False: backups end here.
    async fn settle(&self, name: &str, began: Instant) -> bool {
        if let Err(fault) = self.check_others(name).await {
            let _ = self.endings.try_send(Ending::Failed(fault));
            return false;
        }
        self.prune(name, began).await;
        true
    }

    /// Records a full of this node, and compares the members of fulls that it did not write: in a store that records no cluster, another
    /// one may have begun at the same time.
    async fn check_others(&self, name: &str) -> Result<()> {
        let run = &self.run;
        if run.layout != Layout::Gardener || run.settings.is_descendant() {
            return Ok(());
        }
        let (settings, name, cluster_id) = (Arc::clone(&run.settings), name.to_owned(), run.cluster_id);
        let noted = tokio::task::spawn_blocking(move || {
            let mut record = own_fulls::read(&settings.spool).of(cluster_id);
            record.names.insert(name);
            own_fulls::write(&settings.spool, &record)
        });
        noted.await.map_err(halted)??;
        match whose_fulls(&run.settings, &run.client, cluster_id, Accept::Compared).await {
            Ok(Lists::Others(members)) => Err(bound_by_members(cluster_id, &members)),
            Ok(Lists::OwnMembers | Lists::NotCompared) => Ok(()),
            // It is compared again after the next full, and when backups begin again.
            Err(fault) => {
                warn!(code = %fault.code(), "cannot compare the fulls of the store: {}", in_words(&fault));
                Ok(())
            }
        }
    }

    /// When somebody else made the full that we were not allowed to take, if so.
    async fn taken_by_another(&self, fault: &Fault, last_ms: Option<i64>) -> Option<i64> {
        if fault.code() != Code::EtcdRefused {
            return None;
        }
        let (floor, ms) = self.newest_full().await?;
        if floor + 1 < self.from || Some(ms) <= last_ms {
            return None;
        }
        info!(revision = floor, "somebody else has stored a full backup, which will do");
        self.run.full_seen(floor);
        Some(ms)
    }

    /// The newest full of this epoch by the names in the store: a revision that it holds, and when it was made.
    async fn newest_full(&self) -> Option<(u64, i64)> {
        let run = Arc::clone(&self.run);
        let newest = tokio::task::spawn_blocking(move || objects::newest_full(&run.store, run.epoch)).await;
        newest.ok()?.ok()?
    }

    fn until_due(&self, last_ms: Option<i64>) -> Duration {
        let now_ms = Timestamp::now().as_millisecond();
        let next = self.run.settings.full_schedule.next_after(last_ms.map_or(now_ms, |last| last.min(now_ms)));
        Duration::from_millis(u64::try_from(next - now_ms).unwrap_or(0)).clamp(Duration::from_millis(200), LOOK)
    }

    async fn take(&self, why: &str, turn: usize) -> Result<Taken> {
        let run = &self.run;
        info!("taking a full backup: {why}");
        let order = Order { cluster_id: run.cluster_id, epoch: run.epoch, layout: run.layout, turn };
        let taken = match run.layout {
            Layout::Gardener => {
                full::take(&run.client, &run.store, &order, &Cutting(self.keeper.clone()), &self.quit).await?
            }
            Layout::Quorate => full::take(&run.client, &run.store, &order, &NoCuts, &self.quit).await?,
        };
        let manifest = &taken.manifest;
        run.metrics.uploaded(Kind::full, manifest.stored.bytes, taken.took);
        run.full_stored(manifest);
        let ms = u64::try_from(taken.took.as_millis()).unwrap_or(u64::MAX);
        info!(
            revision = manifest.last,
            size = size(manifest.stored.bytes),
            database = size(manifest.content.bytes),
            ms,
            endpoint = taken.endpoint,
            "stored a full backup and read it back"
        );
        Ok(taken)
    }

    /// Removes what need not be kept, now that a new full is proven.
    async fn prune(&self, proven: &str, taken: Instant) {
        let Some(policy) = self.run.settings.keep else { return };
        let (run, base) = (Arc::clone(&self.run), proven.to_owned());
        let position = &self.run.metrics.position;
        let peers = match &self.run.settings.peers {
            Some(peers) => Some(peers.read().await),
            None => None,
        };
        let store = match self.run.layout {
            Layout::Quorate => StoreTime::Probe,
            Layout::Gardener => StoreTime::OfFull { since: taken.elapsed() },
        };
        let times = Times { store, peers };
        let began = Instant::now();
        let work =
            tokio::task::spawn_blocking(move || objects::prune(&run.store, &policy, &base, &run.clusters, times));
        match work.await.map_err(|error| Fault::new(Code::Internal, "removing came to a halt").caused_by(error)) {
            Ok(Ok(done)) => {
                position.clock_doubt.store(0, Ordering::Relaxed);
                self.run.metrics.uploaded(Kind::prune, 0, began.elapsed());
                self.run.metrics.removed(done.fulls, done.removed - done.fulls, done.locked.len());
                for what in &done.locked {
                    warn!(code = %Code::PruneLocked, "{what}");
                }
                if done.removed > 0 {
                    info!(objects = done.removed, size = size(done.bytes), "removed what need not be kept");
                }
            }
            Ok(Err(fault)) | Err(fault) => {
                let doubt = match fault.code() {
                    Code::ClockAhead => CLOCK_AHEAD,
                    Code::ClockUnknown => CLOCK_UNKNOWN,
                    _ => 0,
                };
                position.clock_doubt.store(doubt, Ordering::Relaxed);
                self.run.metrics.failed(Kind::prune, began.elapsed());
                warn!(code = %fault.code(), "cannot remove old backups: {}", in_words(&fault));
            }
        }
    }

    fn clock_was_doubted(&self) -> bool {
        self.run.metrics.position.clock_doubt.load(Ordering::Relaxed) != 0
    }

    fn chain_is_long(&self) -> bool {
        let Some(limit) = self.run.settings.max_restore_time else { return false };
        self.run.layout == Layout::Quorate && self.run.restore_time() > limit
    }

    /// Makes one full of the newest chain.
    async fn compact(&self) {
        let run = Arc::clone(&self.run);
        let estimate = run.restore_time();
        info!(estimate = format!("{:.0} s", estimate.as_secs_f64()), "a restore would take too long: compacting");
        let began = Instant::now();
        let work = tokio::task::spawn_blocking(move || {
            let scratch = &run.settings.scratch;
            let whose = Whose::Of(run.clusters.clone());
            let mut session = Session::open_for(&run.settings.store, scratch, &whose)?;
            compact::compact(&mut session, scratch, &compact::Nobody)
        });
        let done = tokio::select! {
            done = work => done.map_err(|error| Fault::new(Code::Internal, "a compaction came to a halt").caused_by(error)),
            () = self.quit.cancelled() => return,
        };
        match done {
            Ok(Ok(done)) => {
                let Some(manifest) = &done.full else { return };
                self.run.metrics.uploaded(Kind::compaction, manifest.stored.bytes, began.elapsed());
                self.run.chain_begins(manifest);
                info!(
                    revision = done.revision,
                    writes = done.writes_merged,
                    deltas = done.deltas,
                    "compacted the chain"
                );
            }
            Ok(Err(fault)) | Err(fault) => {
                self.run.metrics.failed(Kind::compaction, began.elapsed());
                warn!(code = %fault.code(), "cannot compact: {}", in_words(&fault));
            }
        }
    }
}

/// Tells the keeper where it may cut.
struct Cutting(Sender<Told>);

impl Cuts for Cutting {
    async fn hold(&self) {
        let (done, held) = oneshot::channel();
        let _ = self.0.send(Told::Hold(done));
        let _ = held.await;
        // Names of this layout have seconds: one that is made later has a later one.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    fn not_before(&self, revision: u64) {
        let _ = self.0.send(Told::NotBefore(revision));
    }

    async fn recorded(&self, revision: u64) -> Result<()> {
        let (done, synced) = oneshot::channel();
        let _ = self.0.send(Told::Await { revision, done });
        match tokio::time::timeout(BEHIND_LIMIT, synced).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => {
                let what = format!("gave up a full backup: revision {revision} was not recorded in time");
                Err(Fault::new(Code::CutShort, what).hint("it is taken when the watch has caught up"))
            }
        }
    }
}
