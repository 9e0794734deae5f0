//! Owns the spool: takes writes and grants, syncs, cuts, and hands segments to whoever uploads them.
//!
//! **Rule:** one thread, so that what is on disk has one order. What waits in its channel is bounded in bytes by those who
//! send. A sync comes at most once a second, and before every cut.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_backup::spool::{Segment, Spool};
use quorate_etcd::client::messages;
use quorate_etcd_formats::delta::{Event, LeaseGrant};
use quorate_etcd_formats::mvcc::{KeyValue, Revision};
use quorate_faults::{Code, Fault, Result};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tracing::{info, warn};

use super::{Again, Ending, Run};
use crate::backups::size;

const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How long writes are gathered before they are looked at together.
const GATHER: Duration = Duration::from_millis(10);

/// A cut waits this long for answers about leases that its writes refer to.
const LEASE_GRACE: Duration = Duration::from_secs(1);

/// Leases that are remembered as asked for; beyond that some are asked for again.
const LEASES_SEEN_MAX: usize = 100_000;

/// Recording goes on when the spool has come down to this part of its limit.
const ROOM_AGAIN: (u64, u64) = (9, 10);

/// What the keeper is told.
pub(super) enum Told {
    /// Writes, in the order of the watch.
    Events {
        events: Vec<messages::Event>,
        /// The last transaction is complete.
        whole: bool,
        /// Room in the channel, given back when they are in the spool.
        _room: OwnedSemaphorePermit,
    },
    /// The answer about a lease; `None`: there is none.
    Lease { id: i64, ttl: Option<i64>, asked: bool },
    /// This one is in the store.
    Stored(Segment),
    /// No cut from now on; answered when that holds.
    Hold(oneshot::Sender<()>),
    /// Answer when everything up to this revision is synced.
    Await { revision: u64, done: oneshot::Sender<()> },
    /// Cuts again, but not before this revision.
    NotBefore(u64),
    /// Everything was sent: sync, cut, and wait for the uploads.
    Finish,
}

/// Where its answers go.
pub(super) struct Ways {
    pub(super) segments: mpsc::UnboundedSender<Segment>,
    pub(super) leases: mpsc::Sender<i64>,
    pub(super) room: watch::Sender<bool>,
    pub(super) endings: mpsc::Sender<Ending>,
}

pub(super) struct Keeper {
    run: Arc<Run>,
    spool: Spool,
    segments: Option<mpsc::UnboundedSender<Segment>>,
    ways: Ways,
    asked: HashSet<i64>,
    outstanding: usize,
    last: Revision,
    dirty_since: Option<Instant>,
    open_since: Option<(Instant, i64)>,
    /// Of each pending segment: its last revision, and when its first write was recorded.
    waiting: VecDeque<(u64, i64)>,
    /// Who waits for a sync, and of what.
    awaited: Vec<(u64, oneshot::Sender<()>)>,
    held: bool,
    failed: bool,
    /// Writes came a moment ago.
    busy: bool,
}

impl Keeper {
    pub(super) fn new(run: Arc<Run>, spool: Spool, ways: Ways) -> Keeper {
        Keeper {
            run,
            spool,
            segments: Some(ways.segments.clone()),
            ways,
            asked: HashSet::new(),
            outstanding: 0,
            last: Revision::default(),
            dirty_since: None,
            open_since: None,
            waiting: VecDeque::new(),
            awaited: Vec::new(),
            held: false,
            failed: false,
            busy: false,
        }
    }

    /// Works until all who could tell it something are gone; gives the spool back.
    pub(super) fn work(mut self, told: &Receiver<Told>) -> Spool {
        for segment in self.spool.pending() {
            self.waiting.push_back((segment.last, segment.last_write_ms.unwrap_or(segment.created_ms)));
            self.hand_over(segment);
        }
        self.publish();
        loop {
            let Ok(next) = self.next(told) else { return self.spool };
            let outcome = next.map_or(Ok(()), |told| self.hear(told));
            if let Err(fault) = outcome.and_then(|()| self.tick()) {
                self.fail(fault);
            }
        }
    }

    /// What is to be done next; `None`: look at the clock.
    fn next(&mut self, told: &Receiver<Told>) -> std::result::Result<Option<Told>, TryRecvError> {
        match told.try_recv() {
            Err(TryRecvError::Empty) => {}
            next => return next.map(Some),
        }
        if std::mem::take(&mut self.busy) {
            // Writes come in crowds: one wake-up for many costs etcd's machine less than one for each.
            std::thread::sleep(GATHER);
            return Ok(None);
        }
        match told.recv_timeout(self.patience()) {
            Ok(next) => Ok(Some(next)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TryRecvError::Disconnected),
        }
    }

    fn hear(&mut self, told: Told) -> Result<()> {
        match told {
            // What follows a failure is asked for again later, from what is on disk.
            Told::Events { .. } | Told::Lease { .. } if self.failed => Ok(()),
            Told::Events { events, whole, _room } => self.append(&events, whole),
            Told::Lease { id, ttl, asked } => self.lease(id, ttl, asked),
            Told::Stored(segment) => {
                self.spool.stored(&segment)?;
                self.waiting.retain(|(last, _)| *last > segment.last);
                self.publish();
                Ok(())
            }
            Told::Hold(done) => {
                self.held = true;
                let _ = done.send(());
                Ok(())
            }
            Told::Await { revision, done } => {
                self.awaited.push((revision, done));
                self.dirty_since = self.dirty_since.or_else(|| Some(Instant::now()));
                Ok(())
            }
            Told::NotBefore(revision) => {
                self.held = false;
                self.spool.cut_not_before(revision);
                Ok(())
            }
            Told::Finish => {
                self.held = false;
                self.spool.cut_not_before(0);
                let cut = if self.failed { Ok(()) } else { self.spool.sync().and_then(|()| self.cut()) };
                // A full that waits for more than was recorded is given up.
                self.awaited.clear();
                self.segments = None;
                let (spare, _) = mpsc::unbounded_channel();
                self.ways.segments = spare;
                cut
            }
        }
    }

    fn append(&mut self, events: &[messages::Event], whole: bool) -> Result<()> {
        let now_ms = Timestamp::now().as_millisecond();
        let mut lent = Vec::with_capacity(events.len());
        for event in events {
            let kv =
                event.kv.as_ref().ok_or_else(|| Fault::new(Code::EtcdRefused, "etcd sent a write without a key"))?;
            let main = u64::try_from(kv.mod_revision).unwrap_or(0);
            let sub = if self.last.main == main { self.last.sub.saturating_add(1) } else { 0 };
            self.last = Revision { main, sub };
            if kv.lease != 0 {
                self.ask_lease(kv.lease);
            }
            let value = KeyValue {
                key: &kv.key,
                create_revision: kv.create_revision,
                mod_revision: kv.mod_revision,
                version: kv.version,
                value: &kv.value,
                lease: kv.lease,
            };
            lent.push(Event { at: self.last, tombstone: event.is_delete(), kv: value, time_ms: Some(now_ms) });
        }
        self.spool.append(&lent, whole)?;
        self.busy = true;
        let now = Instant::now();
        self.dirty_since.get_or_insert(now);
        self.open_since.get_or_insert((now, now_ms));
        self.run.metrics.recorded(events.len() as u64);
        if let Some(last) = self.spool.last() {
            self.run.metrics.position.recorded.store(last, Ordering::Relaxed);
        }
        self.publish();
        Ok(())
    }

    fn ask_lease(&mut self, id: i64) {
        if self.asked.len() >= LEASES_SEEN_MAX {
            self.asked.clear();
        }
        // With more questions than can be asked, the next write of that lease asks again.
        if !self.asked.contains(&id) && self.ways.leases.try_send(id).is_ok() {
            self.asked.insert(id);
            self.outstanding += 1;
        }
    }

    fn lease(&mut self, id: i64, ttl: Option<i64>, asked: bool) -> Result<()> {
        self.outstanding = self.outstanding.saturating_sub(1);
        match (ttl, asked) {
            (Some(ttl), _) => self.spool.grant(LeaseGrant { id, ttl })?,
            (None, true) => self.run.metrics.lease_gone(),
            // Nobody answered: the next write that refers to it asks again.
            (None, false) => {
                self.asked.remove(&id);
            }
        }
        Ok(())
    }

    /// How long there is nothing to do.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let sync = self.dirty_since.map(|since| since + SYNC_EVERY);
        let cut = self.open_since.filter(|_| !self.held).map(|(since, _)| since + self.run.settings.delta_period);
        let due = [sync, cut].into_iter().flatten().min();
        due.map_or(SYNC_EVERY, |due| due.saturating_duration_since(now)).clamp(Duration::from_millis(5), SYNC_EVERY)
    }

    fn tick(&mut self) -> Result<()> {
        if self.failed {
            return Ok(());
        }
        if self.dirty_since.is_some_and(|since| since.elapsed() >= SYNC_EVERY) {
            self.spool.sync()?;
            self.dirty_since = None;
            self.synced();
        }
        let Some((since, _)) = self.open_since else { return Ok(()) };
        let settings = &self.run.settings;
        let (age, bytes) = (since.elapsed(), self.spool.open_bytes());
        let due = age >= settings.delta_period || bytes >= settings.delta_bytes || self.spool.is_full();
        // A segment that grows beyond measure does not wait for anyone.
        let waits = self.outstanding > 0
            && age < settings.delta_period + LEASE_GRACE
            && bytes < settings.delta_bytes.saturating_mul(2);
        if due && !self.held && !waits { self.cut() } else { Ok(()) }
    }

    /// Tells those who wait for it.
    fn synced(&mut self) {
        let last = self.spool.last().unwrap_or(0);
        for (_, done) in self.awaited.extract_if(.., |(revision, _)| *revision <= last) {
            // Whoever has gone does not mind.
            let _ = done.send(());
        }
    }

    fn cut(&mut self) -> Result<()> {
        let Some(segment) = self.spool.cut()? else { return Ok(()) };
        self.synced();
        let first_ms = self.open_since.take().map_or(segment.created_ms, |(_, ms)| ms);
        self.dirty_since = None;
        self.waiting.push_back((segment.last, first_ms));
        self.hand_over(segment);
        self.publish();
        Ok(())
    }

    fn hand_over(&self, segment: Segment) {
        if let Some(segments) = &self.segments {
            // Nobody uploads any more: it stays where it is, for the next run.
            let _ = segments.send(segment);
        }
    }

    /// Says how full it is, and since when something waits.
    fn publish(&mut self) {
        let (bytes, max) = (self.spool.bytes(), self.run.settings.spool_max_bytes);
        let position = &self.run.metrics.position;
        position.spool_bytes.store(bytes, Ordering::Relaxed);
        let since = self.waiting.front().map(|(_, ms)| *ms).or(self.open_since.map(|(_, ms)| ms));
        position.waiting_since_ms.store(since.unwrap_or(0), Ordering::Relaxed);
        let had_room = *self.ways.room.borrow();
        let room = if had_room { !self.spool.is_full() } else { bytes < max / ROOM_AGAIN.1 * ROOM_AGAIN.0 };
        if room != had_room {
            self.run.metrics.paused(!room);
            match room {
                true => info!(spool = size(bytes), "the spool has room again, recording goes on"),
                false => warn!(
                    code = %Code::SpoolFull,
                    spool = size(bytes),
                    "the spool is full, recording waits until the store takes something"
                ),
            }
            self.ways.room.send_replace(room);
        }
    }

    fn fail(&mut self, fault: Fault) {
        if !self.failed {
            self.failed = true;
            let _ = self.ways.endings.try_send(Ending::Again(Again::Spool(fault)));
        }
    }
}
