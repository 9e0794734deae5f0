//! What this node has to tell its peers beyond its ledger, and what their questions tell us.
//!
//! **Rule:** all of it is memory that may be lost: it is seen again, or it only makes waiting shorter.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quorate_etcd_formats::membership::MemberId;
use quorate_plan::change::{LogRead, Restart};
use quorate_plan::ledger::Progress;
use tokio::sync::{Notify, watch};

use super::connections::Samples;
use super::publish::{Shared, now_ms};
use super::role::Leader;
use super::status::Notice;
use crate::peers::{Acknowledged, PlanAnswer, Upkeep};

/// How long an ordered backup may take before it is ordered again: uploads have their own patience.
const BACKUP_AGAIN: Duration = Duration::from_secs(10);

/// Between two reads of a log that holds entries of early releases: it may be hundreds of MB.
const OLD_ENTRIES: Duration = Duration::from_secs(30);
/// The same while a change waits for it.
const OLD_ENTRIES_AWAITED: Duration = Duration::from_secs(2);

/// How many entries of early releases a log holds, and which part of it was read for them.
pub(crate) type OldEntries = (u64, LogRead);

/// The memory.
#[derive(Debug)]
pub(super) struct Talk {
    acknowledged: Mutex<BTreeMap<MemberId, Seen>>,
    upkeep: Mutex<Upkeep>,
    plan: Mutex<PlanAnswer>,
    /// How far peers said they were when they last asked.
    states: Mutex<BTreeMap<String, String>>,
    news: Notify,
    leader: watch::Sender<Leader>,
    /// What there is to say about users and roles.
    auth: Mutex<Vec<Notice>>,
    /// Why etcd is to be stopped and started again.
    restart: watch::Sender<Option<String>>,
    /// Whether it is this member's turn to be started again.
    restarting: AtomicBool,
    /// Whether an operator has asked for the restart that an etcd which was taken over waits for.
    may_restart: AtomicBool,
    /// Why the running etcd has to be restarted.
    stale: Mutex<Option<Restart>>,
    /// The schema of its database.
    storage: Mutex<Option<String>>,
    /// Entries of its log that etcd 3.7 cannot read, where known, and when that was observed.
    old_entries: Mutex<Option<(Instant, Option<OldEntries>)>>,
    /// The hash of the settings that it runs with.
    runs_with: Mutex<Option<String>>,
    /// Whether the running etcd was compared with the file.
    settled: AtomicBool,
    stored: Mutex<Stored>,
    /// The cluster's revision at the first look since etcd runs, and the release that was wished for then.
    since: Mutex<Option<(u64, Option<String>)>>,
    /// The members that this agent found with other data than the others.
    differing: Mutex<Vec<MemberId>>,
    /// Tells that what is recorded is to be in the store now, and when that was last asked for.
    backup: Notify,
    backup_asked: Mutex<Option<(u64, Instant)>>,
    /// Connections to client ports.
    connections: Mutex<Samples>,
}

/// A revision that was seen, when, and until when all that was written is known to be in the store.
type Stored = (Option<(u64, u64)>, Option<u64>);

/// How far a member was seen.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// At the last look.
    last: LogPosition,
    /// At the look before: what it told then has long been on its disk.
    sure: LogPosition,
}

/// How far a member has committed, and the term of the entry that it applied last. Both come from one status, in which etcd reports
/// the term of an applied entry and not the newest term that it voted in.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogPosition {
    pub(super) index: u64,
    pub(super) term: u64,
}

impl Talk {
    /// `alone`: there is no other member that could lead.
    pub(super) fn new(alone: bool) -> Talk {
        let leader = if alone { Leader::Me } else { Leader::Unknown };
        Talk {
            acknowledged: Mutex::default(),
            upkeep: Mutex::default(),
            plan: Mutex::default(),
            states: Mutex::default(),
            news: Notify::new(),
            leader: watch::Sender::new(leader),
            auth: Mutex::default(),
            restart: watch::Sender::new(None),
            restarting: AtomicBool::new(false),
            may_restart: AtomicBool::new(false),
            stale: Mutex::default(),
            storage: Mutex::default(),
            old_entries: Mutex::default(),
            runs_with: Mutex::default(),
            settled: AtomicBool::new(false),
            stored: Mutex::default(),
            since: Mutex::default(),
            differing: Mutex::default(),
            backup: Notify::new(),
            backup_asked: Mutex::default(),
            connections: Mutex::default(),
        }
    }
}

impl Shared {
    pub(super) fn samples(&self) -> MutexGuard<'_, Samples> {
        lock(&self.talk.connections)
    }

    /// The highest index that each member was seen at, by this agent or by an earlier one that recorded it.
    pub(crate) fn acknowledged_with(&self, recorded: &[Progress]) -> Vec<Acknowledged> {
        let mut known: BTreeMap<MemberId, Acknowledged> = BTreeMap::new();
        for Progress { member, index, term, start, rolled_back, .. } in recorded.iter().copied() {
            known.insert(member, Acknowledged { member, index, term: Some(term), start, rolled_back });
        }
        for (member, seen) in lock(&self.talk.acknowledged).iter() {
            let none = Acknowledged { member: *member, index: 0, term: None, start: None, rolled_back: None };
            let known = known.entry(*member).or_insert(none);
            known.index = known.index.max(seen.sure.index);
            known.term = known.term.max(Some(seen.sure.term).filter(|term| *term > 0));
        }
        known.into_values().collect()
    }

    /// The position in the log of a member that has long been on its disk.
    pub(super) fn sure_position(&self, member: MemberId) -> Option<LogPosition> {
        lock(&self.talk.acknowledged).get(&member).map(|seen| seen.sure).filter(|sure| sure.index > 0)
    }

    /// Members were seen at these positions; those that are not listed are dropped.
    pub(super) fn saw_positions(&self, seen: &[(MemberId, Option<LogPosition>)]) {
        let mut known = lock(&self.talk.acknowledged);
        known.retain(|member, _| seen.iter().any(|(listed, _)| listed == member));
        for (member, position) in seen {
            if let Some(position) = position {
                let seen = known.entry(*member).or_default();
                let last = if position.index >= seen.last.index { *position } else { seen.last };
                *seen = Seen { last, sure: seen.last };
            }
        }
    }

    /// Whether upkeep or a restart pauses this member.
    pub(crate) fn upkeep(&self) -> Upkeep {
        if self.restarting() { Upkeep::Running } else { *lock(&self.talk.upkeep) }
    }

    /// Whether it is this member's turn to be started again.
    pub(super) fn restarting(&self) -> bool {
        self.talk.restarting.load(Ordering::Relaxed)
    }

    pub(super) fn set_restarting(&self, restarting: bool) {
        self.talk.restarting.store(restarting, Ordering::Relaxed);
    }

    /// Has etcd stopped, and everything looked at again, which starts it.
    pub(crate) fn order_restart(&self, why: impl Into<String>) {
        self.talk.restart.send_replace(Some(why.into()));
    }

    /// Waits for that order, and takes it.
    pub(super) async fn restart_order(&self) -> String {
        let mut orders = self.talk.restart.subscribe();
        loop {
            if orders.wait_for(Option::is_some).await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Some(why) = self.talk.restart.send_replace(None) {
                return why;
            }
        }
    }

    /// Whether an operator has asked for the restart that an etcd which was taken over waits for.
    pub(super) fn may_restart(&self) -> bool {
        self.talk.may_restart.load(Ordering::Relaxed)
    }

    /// An operator asks for it: it comes in this member's turn.
    pub(crate) fn allow_restart(&self) {
        self.talk.may_restart.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Why the running etcd has to be restarted, where it has to.
    pub(crate) fn restart(&self) -> Option<Restart> {
        lock(&self.talk.stale).clone()
    }

    pub(super) fn set_restart(&self, restart: Option<Restart>) {
        *lock(&self.talk.stale) = restart;
        self.talk.settled.store(true, Ordering::Relaxed);
    }

    /// Whether the running etcd was compared with the file.
    pub(crate) fn settled(&self) -> bool {
        self.talk.settled.load(Ordering::Relaxed)
    }

    /// etcd was seen at a revision. Once the store has it, all that was written until then is backed up.
    pub(super) fn saw_revision(&self, revision: i64) {
        let stored = self.backups.position.stored.load(Ordering::Relaxed);
        let mut known = lock(&self.talk.stored);
        match known.0 {
            Some((seen, at)) if self.leads() && stored >= seen => *known = (None, Some(at)),
            Some(_) => return,
            None => {}
        }
        known.0 = u64::try_from(revision).ok().map(|revision| (revision, now_ms()));
    }

    /// Has everything that is recorded, up to this revision at least, put into the store now. Returns whether that is new: what is
    /// under way is given its time.
    pub(crate) fn order_backup(&self, revision: u64) -> bool {
        let mut asked = lock(&self.talk.backup_asked);
        if asked.is_some_and(|(known, at)| revision <= known && at.elapsed() < BACKUP_AGAIN) {
            return false;
        }
        *asked = Some((revision, Instant::now()));
        self.talk.backup.notify_one();
        true
    }

    /// Waits for that order.
    pub(super) async fn backup_order(&self) {
        self.talk.backup.notified().await;
    }

    /// Until when all that was written is known to be in the store.
    pub(crate) fn backed_up_ms(&self) -> Option<u64> {
        lock(&self.talk.stored).1
    }

    /// The newest revision that can be restored from the store, where this agent has put something there.
    pub(crate) fn stored_revision(&self) -> Option<u64> {
        Some(self.backups.position.stored.load(Ordering::Relaxed)).filter(|stored| *stored > 0)
    }

    /// The cluster's revision when this agent first looked since all is as it is: what a backup has to reach to have been taken
    /// after that.
    pub(crate) fn since(&self) -> Option<u64> {
        lock(&self.talk.since).as_ref().map(|(revision, _)| *revision)
    }

    /// The cluster is at a revision. `anew`: something is not as it should be, and a backup is to be taken after that.
    pub(super) fn note_since(&self, revision: u64, anew: bool) {
        let wished = self.restart().and_then(|restart| restart.release);
        let mut since = lock(&self.talk.since);
        if anew || since.as_ref().is_none_or(|(_, noted)| *noted != wished) {
            *since = Some((revision, wished));
        }
    }

    /// The members that this agent found with other data than the others.
    pub(crate) fn differing(&self) -> Vec<MemberId> {
        lock(&self.talk.differing).clone()
    }

    pub(super) fn set_differing(&self, differing: Vec<MemberId>) {
        *lock(&self.talk.differing) = differing;
    }

    /// The schema of the database, where etcd told it.
    pub(crate) fn storage(&self) -> Option<String> {
        lock(&self.talk.storage).clone()
    }

    pub(super) fn set_storage(&self, storage: Option<String>) {
        *lock(&self.talk.storage) = storage;
    }

    /// How many entries the log holds that etcd 3.7 cannot read, and behind which raft snapshot, where that is known.
    pub(crate) fn old_entries(&self) -> Option<OldEntries> {
        (*lock(&self.talk.old_entries)).and_then(|(_, observed)| observed)
    }

    /// Whether the log has to be read again. `awaited`: a change waits for it. Otherwise often until it holds no such entry, seldom
    /// afterwards.
    pub(super) fn old_entries_due(&self, awaited: bool) -> bool {
        let every = |observed: Option<OldEntries>| match observed {
            _ if awaited => OLD_ENTRIES_AWAITED,
            Some((0, _)) => OLD_ENTRIES.saturating_mul(20),
            Some(_) | None => OLD_ENTRIES,
        };
        (*lock(&self.talk.old_entries)).is_none_or(|(at, observed)| at.elapsed() >= every(observed))
    }

    /// `None`: nothing is known, and the log was not read.
    pub(super) fn set_old_entries(&self, observed: Option<Option<OldEntries>>) {
        *lock(&self.talk.old_entries) = observed.map(|observed| (Instant::now(), observed));
    }

    /// etcd was found or started with these settings.
    pub(super) fn runs_with(&self, hash: &str) {
        self.talk.may_restart.store(false, Ordering::Relaxed);
        *lock(&self.talk.runs_with) = Some(hash.to_owned());
        *lock(&self.talk.stale) = None;
        *lock(&self.talk.since) = None;
        self.talk.settled.store(false, Ordering::Relaxed);
    }

    /// The hash of the settings that etcd runs with.
    pub(super) fn running_hash(&self) -> Option<String> {
        lock(&self.talk.runs_with).clone()
    }

    pub(super) fn set_upkeep(&self, upkeep: Upkeep) {
        *lock(&self.talk.upkeep) = upkeep;
    }

    /// Who leads, as last seen.
    pub(super) fn leader(&self) -> Leader {
        self.talk.leader.borrow().clone()
    }

    /// Tells who leads from here on.
    pub(super) fn leaders(&self) -> watch::Receiver<Leader> {
        self.talk.leader.subscribe()
    }

    pub(super) fn saw_leader(&self, leader: Leader) {
        self.talk.leader.send_if_modified(|known| {
            let news = *known != leader;
            *known = leader;
            news
        });
    }

    /// Whether this member leads.
    pub(crate) fn leads(&self) -> bool {
        self.leader().is_me()
    }

    /// Shows what there is to say about users and roles, instead of what was said before.
    pub(super) fn set_auth(&self, now: Vec<Notice>) {
        let before = std::mem::replace(&mut *lock(&self.talk.auth), now.clone());
        let mut fresh = Vec::new();
        self.change(|status| {
            status.warnings.retain(|notice| !before.contains(notice));
            fresh.extend(now.iter().filter(|notice| !before.contains(notice)).cloned());
            status.warnings.extend(now);
        });
        for notice in fresh {
            self.log(&notice);
        }
    }

    /// What there is to say about users and roles.
    pub(super) fn auth(&self) -> Vec<Notice> {
        lock(&self.talk.auth).clone()
    }

    /// What was decided last.
    pub(crate) fn plan(&self) -> PlanAnswer {
        lock(&self.talk.plan).clone()
    }

    pub(super) fn set_plan(&self, plan: PlanAnswer) {
        *lock(&self.talk.plan) = plan;
    }

    /// A peer asked, and said how far it is. What is new ends our waiting: it may be what we wait for.
    pub(crate) fn heard_from(&self, peer: &str, state: &str) {
        let before = lock(&self.talk.states).insert(peer.to_owned(), state.to_owned());
        if before.as_deref() != Some(state) {
            self.talk.news.notify_one();
        }
    }

    /// Ends a wait: something that others decide on was written down.
    pub(crate) fn wake(&self) {
        self.talk.news.notify_one();
    }

    /// Waits until the next survey is due, or until something was written down that may change what is to be done.
    pub(super) async fn survey_pause(&self, pause: Duration) {
        let _ = tokio::time::timeout(pause, self.talk.news.notified()).await;
    }

    /// The running etcd told its version.
    pub(super) fn saw_version(&self, version: &str) {
        self.change(|status| {
            if let Some(etcd) = &mut status.etcd {
                etcd.version = Some(version.to_owned());
            }
        });
    }

    /// Waits for news from a peer.
    pub(super) async fn news(&self) {
        self.talk.news.notified().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
