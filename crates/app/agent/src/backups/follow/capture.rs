//! Reads the watch and hands every write to the keeper; opens a new watch wherever the last one ended.
//!
//! **Invariant:** what goes to the keeper is one history without a gap: each new watch begins with the first transaction
//! that was not handed over whole, and what of it was handed over already is left out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_etcd::client::messages::{Event, ResponseHeader};
use quorate_etcd::client::{Client, WatchFrom, WatchTurn};
use quorate_faults::Fault;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::keeper::Told;
use super::patience::{Patience, in_words};
use super::{Again, Ending, Run};
use crate::backups::full::{ask, check_cluster};

/// Bytes that may wait between the watch and the spool, counted in units of this many.
const UNIT: usize = 1024;
const UNITS: usize = 8 << 10;

/// How often the cluster is asked for its revision.
const PULSE: Duration = Duration::from_secs(3);

/// A watch that is this far behind what others say is on a member that lags.
const LAG_LIMIT: Duration = Duration::from_secs(10);

/// What comes next.
struct Place {
    /// The first revision that was not handed over whole.
    next: u64,
    /// Writes of it that were handed over.
    given: u64,
}

/// Why a watch ended.
enum End {
    /// Open another one.
    Lost(Fault),
    /// The member is behind the others.
    Lags,
    /// There is no room.
    Full,
    /// This run is over.
    Over,
}

pub(super) struct Capture {
    pub(super) run: Arc<Run>,
    pub(super) keeper: Sender<Told>,
    pub(super) room: watch::Receiver<bool>,
    pub(super) quit: CancellationToken,
    pub(super) endings: tokio::sync::mpsc::Sender<Ending>,
}

impl Capture {
    pub(super) async fn work(self, from: u64) {
        let units = Arc::new(Semaphore::new(UNITS));
        let members: Vec<Client> = self.run.client.each().collect();
        let mut patience = Patience::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut place = Place { next: from, given: 0 };
        let mut member = 0;
        let mut opened = 0u64;
        loop {
            let began = Instant::now();
            let end = tokio::select! {
                end = self.watch(&members[member % members.len()], &mut place, &units, opened > 0) => end,
                () = self.quit.cancelled() => End::Over,
            };
            opened += 1;
            self.run.metrics.connected(false);
            match end {
                End::Over => return,
                End::Full => {
                    let mut room = self.room.clone();
                    tokio::select! {
                        _ = room.wait_for(|room| *room) => {}
                        () = self.quit.cancelled() => return,
                    }
                }
                End::Lags => {
                    let url = members[member % members.len()].endpoints().next().unwrap_or_default().to_owned();
                    warn!(endpoint = url, "this member is behind the others; another one is watched");
                    member += 1;
                }
                End::Lost(fault) => {
                    if began.elapsed() > Duration::from_secs(30) {
                        patience.worked();
                    }
                    let (wait, say) = patience.failed(&fault);
                    if say {
                        warn!(code = %fault.code(), next = place.next, "the watch ended: {}", in_words(&fault));
                    }
                    member += 1;
                    // With several members the next one is asked at once.
                    let wait = if member % members.len() == 0 || members.len() == 1 { wait } else { Duration::ZERO };
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.quit.cancelled() => return,
                    }
                }
            }
        }
    }

    /// One watch on one member, until it ends.
    async fn watch(&self, member: &Client, place: &mut Place, units: &Arc<Semaphore>, again: bool) -> End {
        if !*self.room.borrow() {
            return End::Full;
        }
        let revision = i64::try_from(place.next).unwrap_or(i64::MAX);
        let mut watch = match member.watch(WatchFrom { revision, progress: true }).await {
            Ok(watch) => watch,
            Err(fault) => return End::Lost(fault),
        };
        self.run.metrics.connected(true);
        if again {
            self.run.metrics.reconnected();
            info!(endpoint = watch.endpoint(), from = place.next, "watching again");
        } else {
            debug!(endpoint = watch.endpoint(), from = place.next, "watching");
        }
        let mut behind: Option<Instant> = None;
        // A new watch tells the transaction from its beginning.
        let mut known = place.given;
        loop {
            if !*self.room.borrow() {
                return End::Full;
            }
            let turn = match tokio::time::timeout(PULSE, watch.next()).await {
                Ok(Ok(turn)) => turn,
                Ok(Err(fault)) => return End::Lost(fault),
                Err(_) => {
                    let heard = self.run.metrics.position.etcd.load(Ordering::Relaxed);
                    match (heard >= place.next, behind) {
                        (false, _) => behind = None,
                        (true, None) => behind = Some(Instant::now()),
                        (true, Some(since)) if since.elapsed() >= LAG_LIMIT => return End::Lags,
                        (true, Some(_)) => {}
                    }
                    continue;
                }
            };
            behind = None;
            if let Some(end) = self.turn(turn, place, &mut known, units).await {
                return end;
            }
        }
    }

    async fn turn(&self, turn: WatchTurn, place: &mut Place, known: &mut u64, units: &Arc<Semaphore>) -> Option<End> {
        match turn {
            WatchTurn::Progress { header, .. } => self.hear(&header).err(),
            WatchTurn::Compacted { oldest } => {
                self.end(Ending::Again(Again::Compacted { oldest: u64::try_from(oldest).unwrap_or(0) }));
                Some(End::Over)
            }
            WatchTurn::Events { mut events, more, header } => {
                if let Err(end) = self.hear(&header) {
                    return Some(end);
                }
                events.retain(|event| {
                    let given = *known > 0 && main(event) == place.next;
                    *known -= u64::from(given);
                    !given
                });
                self.hand_over(events, more, place, units).await
            }
        }
    }

    async fn hand_over(
        &self,
        events: Vec<Event>,
        more: bool,
        place: &mut Place,
        units: &Arc<Semaphore>,
    ) -> Option<End> {
        let (first, last) =
            events.first().zip(events.last()).map_or((place.next, place.next), |(a, b)| (main(a), main(b)));
        // A piece of an answer may end where its last transaction does; then the next one begins with the one after it.
        if first > place.next + u64::from(place.given > 0) {
            // etcd numbers transactions without leaving one out, so this history was not written by one cluster.
            warn!(expected = place.next, came = first, "etcd's history has a hole");
            self.end(Ending::Again(Again::Compacted { oldest: first }));
            return Some(End::Over);
        }
        let of_last = events.iter().rev().take_while(|event| main(event) == last).count() as u64;
        let bytes: usize = events.iter().map(size_of_event).sum();
        let wanted = (bytes / UNIT + 1).min(UNITS);
        let room = Arc::clone(units).acquire_many_owned(u32::try_from(wanted).unwrap_or(1)).await.ok()?;
        // From here on nothing waits, so that the place and what the keeper has are the same.
        *place = match more {
            true if last == place.next => Place { next: last, given: place.given + of_last },
            true => Place { next: last, given: of_last },
            false => Place { next: last + 1, given: 0 },
        };
        match self.keeper.send(Told::Events { events, whole: !more, _room: room }) {
            Ok(()) => None,
            Err(_) => Some(End::Over),
        }
    }

    /// Every answer says whose it is.
    fn hear(&self, header: &ResponseHeader) -> Result<(), End> {
        if let Err(fault) = check_cluster(self.run.cluster_id, header.cluster_id) {
            self.end(Ending::Again(Again::OtherCluster(fault)));
            return Err(End::Over);
        }
        heard(&self.run, u64::try_from(header.revision).unwrap_or(0));
        Ok(())
    }

    fn end(&self, ending: Ending) {
        let _ = self.endings.try_send(ending);
    }
}

fn main(event: &Event) -> u64 {
    event.kv.as_ref().and_then(|kv| u64::try_from(kv.mod_revision).ok()).unwrap_or(0)
}

fn size_of_event(event: &Event) -> usize {
    event.kv.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len()) + size_of::<Event>()
}

fn heard(run: &Run, revision: u64) {
    run.metrics.position.etcd.fetch_max(revision, Ordering::Relaxed);
    run.metrics.position.heard_ms.store(Timestamp::now().as_millisecond(), Ordering::Relaxed);
}

/// Asks the cluster for its revision now and then: that is what lag is measured by, and how a replaced history shows.
pub(super) async fn pulse(run: Arc<Run>, quit: CancellationToken, endings: tokio::sync::mpsc::Sender<Ending>) {
    loop {
        let recorded = run.metrics.position.recorded.load(Ordering::Relaxed);
        let answer = tokio::select! {
            answer = ask(&run.client) => answer,
            () = quit.cancelled() => return,
        };
        match answer {
            Ok(now) => {
                if let Err(fault) = check_cluster(run.cluster_id, now.origin.cluster_id) {
                    let _ = endings.try_send(Ending::Again(Again::OtherCluster(fault)));
                    return;
                }
                if now.revision < recorded {
                    let _ = endings.try_send(Ending::Again(Again::WentBack { recorded, now: now.revision }));
                    return;
                }
                heard(&run, now.revision);
            }
            Err(fault) => debug!("the cluster did not say its revision: {}", in_words(&fault)),
        }
        tokio::select! {
            () = tokio::time::sleep(PULSE) => {}
            () = quit.cancelled() => return,
        }
    }
}
