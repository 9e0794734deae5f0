//! What this node has to tell its peers beyond its ledger, and what their questions tell us.
//!
//! **Rule:** all of it is memory that may be lost: it is seen again, or it only makes waiting shorter.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_etcd_formats::membership::MemberId;
use tokio::sync::{Notify, watch};

use super::publish::Shared;
use super::role::Leader;
use super::status::Notice;
use crate::peers::{Acknowledged, PlanAnswer, Upkeep};

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
}

/// How far a member was seen.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// At the last look.
    last: u64,
    /// At the look before: what it told then has long been on its disk.
    sure: u64,
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
        }
    }
}

impl Shared {
    /// The highest index that each member was seen at.
    pub(crate) fn acknowledged(&self) -> Vec<Acknowledged> {
        let known = lock(&self.talk.acknowledged);
        known.iter().map(|(member, seen)| Acknowledged { member: *member, index: seen.sure }).collect()
    }

    /// Members were seen at these indexes; whoever is not named is forgotten.
    pub(super) fn saw_indexes(&self, seen: &[(MemberId, Option<u64>)]) {
        let mut known = lock(&self.talk.acknowledged);
        known.retain(|member, _| seen.iter().any(|(listed, _)| listed == member));
        for (member, index) in seen {
            if let Some(index) = index {
                let seen = known.entry(*member).or_default();
                *seen = Seen { last: seen.last.max(*index), sure: seen.last };
            }
        }
    }

    /// Whether upkeep pauses this member.
    pub(crate) fn upkeep(&self) -> Upkeep {
        *lock(&self.talk.upkeep)
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
            tracing::warn!(code = %notice.code, "{}", notice.text);
        }
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

    /// Waits for news from a peer.
    pub(super) async fn news(&self) {
        self.talk.news.notified().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
