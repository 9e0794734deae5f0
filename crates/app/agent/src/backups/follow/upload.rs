//! Brings segments into the store, oldest first, for as long as it takes.
//!
//! **Rule:** a segment leaves the spool after the store has its object. A newer epoch in the store ends this writer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use quorate_backup::spool::Segment;
use quorate_backup::store::{Store, is_temporary};
use quorate_backup::{drills, epochs};
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::Layout;
use quorate_plan::lineage::overruled_by;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::keeper::Told;
use super::patience::{Patience, in_words};
use super::{Again, Ending, Run};
use crate::backups::metrics::Kind;
use crate::backups::{objects, size};

/// How often the store is asked for a newer writer and for trials of a restore, whatever else happens.
const LOOK_AROUND: Duration = Duration::from_secs(30);

/// Of faults that only an operator can end, the wait between attempts.
const SLOW: Duration = Duration::from_secs(60);

/// Between two looks at the files of a store that denied access.
const LOOK_AT_FILES: Duration = Duration::from_secs(1);

/// When the end was asked for, the longest wait between attempts.
const HURRIED: Duration = Duration::from_millis(500);

pub(super) struct Uploads {
    pub(super) run: Arc<Run>,
    pub(super) segments: mpsc::UnboundedReceiver<Segment>,
    pub(super) keeper: Sender<Told>,
    pub(super) endings: mpsc::Sender<Ending>,
    /// The end was asked for: what is left is to be uploaded soon.
    pub(super) hurry: CancellationToken,
    /// Ends it before all is uploaded.
    pub(super) give_up: CancellationToken,
}

impl Uploads {
    /// Until there are no more segments; says how many are left.
    pub(super) async fn work(mut self) {
        let mut look = Instant::now();
        loop {
            let segment = tokio::select! {
                segment = self.segments.recv() => segment,
                () = tokio::time::sleep_until(look.into()) => {
                    look = Instant::now() + LOOK_AROUND;
                    if let Ok(Some(fault)) = self.replaced().await {
                        return self.end(Ending::Failed(fault));
                    }
                    self.see_drill().await;
                    continue;
                }
                () = self.give_up.cancelled() => return,
            };
            let Some(segment) = segment else { return };
            if !self.bring(segment).await {
                return;
            }
        }
    }

    /// One segment; `false`: it is over.
    async fn bring(&mut self, segment: Segment) -> bool {
        let mut patience = Patience::new(Duration::from_millis(500), Duration::from_secs(30));
        loop {
            if self.give_up.is_cancelled() {
                return false;
            }
            let began = Instant::now();
            let fault = match self.attempt(&segment).await {
                Ok(()) => {
                    if let Some(failures) = patience.worked() {
                        info!(failures, "the store takes deltas again");
                    }
                    return self.keeper.send(Told::Stored(segment)).is_ok();
                }
                Err(fault) => fault,
            };
            match fault.code() {
                Code::WriterReplaced => {
                    self.end(Ending::Failed(fault));
                    return false;
                }
                Code::SpoolBroken | Code::ObjectDamaged => {
                    self.end(Ending::Again(Again::Spool(fault)));
                    return false;
                }
                _ => {}
            }
            self.run.metrics.failed(Kind::delta, began.elapsed());
            self.run.metrics.hindered(&fault);
            let (wait, say) = patience.failed(&fault);
            let (first, last) = (segment.first, segment.last);
            let wait = match is_temporary(&fault) {
                true => {
                    if say {
                        warn!(code = %fault.code(), first, last, "a delta stays in the spool: {}", in_words(&fault));
                    }
                    wait
                }
                false => {
                    if say {
                        let hint = fault.hint_text().unwrap_or_default();
                        error!(code = %fault.code(), first, last, hint, "the store refuses a delta: {}", in_words(&fault));
                    }
                    patience.slowly();
                    SLOW
                }
            };
            // Towards the end there is no time to wait for long.
            let hurried = self.hurry.is_cancelled();
            tokio::select! {
                () = tokio::time::sleep(if hurried { wait.min(HURRIED) } else { wait }) => {}
                () = new_credentials(&self.run.store), if fault.code() == Code::StoreDenied => {}
                () = self.hurry.cancelled(), if !hurried => {}
                () = self.give_up.cancelled() => return false,
            }
        }
    }

    async fn attempt(&self, segment: &Segment) -> Result<()> {
        if let Some(fault) = self.replaced().await? {
            return Err(fault);
        }
        let began = Instant::now();
        let (run, what) = (Arc::clone(&self.run), segment.clone());
        let put = tokio::task::spawn_blocking(move || objects::put_segment(&run.store, &run.origin, &what, run.layout));
        let stored = put.await.map_err(halted)??;
        let took = began.elapsed();
        let metrics = &self.run.metrics;
        metrics.uploaded(Kind::delta, stored, took);
        self.run.delta_stored(segment, stored);
        let (first, last, events) = (segment.first, segment.last, segment.events);
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        info!(first, last, writes = events, size = size(stored), ms, "stored a delta");
        Ok(())
    }

    /// Looks for the last trial of a restore. What is not seen now is seen later.
    async fn see_drill(&self) {
        let run = Arc::clone(&self.run);
        let newest = tokio::task::spawn_blocking(move || drills::newest(&run.store)).await;
        if let Ok(Ok(Some(drill))) = newest {
            let position = &self.run.metrics.position;
            position.drill_ms.store(drill.ended_ms, Ordering::Relaxed);
            position.drill_revision.store(drill.revision, Ordering::Relaxed);
            position.drill_good.store(u64::from(drill.good), Ordering::Relaxed);
        }
    }

    /// Whether a newer writer is in the store.
    async fn replaced(&self) -> Result<Option<Fault>> {
        if self.run.layout != Layout::Quorate {
            return Ok(None);
        }
        let run = Arc::clone(&self.run);
        let newer = tokio::task::spawn_blocking(move || epochs::newer(&run.store, run.epoch)).await.map_err(halted)?;
        let newer = match newer {
            Ok(newer) => newer,
            Err(fault) => {
                debug!("the store did not show its epochs: {}", in_words(&fault));
                return Err(fault);
            }
        };
        let ours = self.run.epoch;
        // A store that two lineages share by mistake has newer epochs that overrule nothing of ours.
        Ok(overruled_by(&newer, ours, &self.run.clusters).map(|newest| {
            let what = format!("stopped: epoch {} is in the store, and this writer has epoch {ours}", newest.epoch);
            Fault::new(Code::WriterReplaced, what).hint("another follower records this cluster now; keep one of them")
        }))
    }

    fn end(&self, ending: Ending) {
        let _ = self.endings.try_send(ending);
    }
}

/// Returns when the files with the store's credentials have changed.
async fn new_credentials(store: &Store) {
    while !store.has_new_credentials() {
        tokio::time::sleep(LOOK_AT_FILES).await;
    }
}

fn halted(error: tokio::task::JoinError) -> Fault {
    Fault::new(Code::Internal, "an upload came to a halt").caused_by(error)
}
