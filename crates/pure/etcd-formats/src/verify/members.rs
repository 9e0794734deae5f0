//! Who is a member: the database's list, the raft snapshot's, and the changes in the log.
//!
//! etcd checks a change only when it applies it, so the log also holds changes that were refused. They are left out
//! here by etcd's own rules.

use std::collections::{BTreeMap, BTreeSet};

use quorate_faults::{Code, Place, Severity};

use super::Report;
use super::agreement::by_writer;
use super::log::{LogFacts, Snap};
use crate::database::Facts;
use crate::membership::{Member, MemberId};
use crate::messages::ConfState;
use crate::wal::{ConfChangeEntry, WalSummary};

/// Whether the member that the WAL belongs to is in the lists.
pub(super) fn check_local(facts: &Facts, log: &LogFacts, wal: &WalSummary, report: &mut Report) {
    let Some(local) = wal.member_id() else { return };
    let in_snap = log.snap_in_use().map(|snap| RaftMembers::of(snap).has(local));
    let place = Place::file(&log.wal_dir);
    if facts.members.iter().any(|member| member.id == local) {
        if in_snap == Some(false) {
            let what = format!("the WAL belongs to member {local}, which is not in the raft snapshot's member list");
            report.add(Code::IdsDisagree, Severity::Error, place, what);
        }
        return;
    }
    // A member that joined and has not caught up yet knows nobody, not even itself.
    if facts.members.is_empty() && facts.consistent_index.unwrap_or(0) == 0 {
        return;
    }
    // Where a part of the log was read, the raft snapshot must do; where there is none, the database decides alone.
    let in_raft = raft_members(log, wal, u64::MAX).map(|raft| raft.has(local)).or(in_snap);
    let severity = if in_raft == Some(false) { Severity::Error } else { by_writer(facts) };
    let removed = if facts.removed.contains(&local) { " (it was removed)" } else { "" };
    let what = format!("the WAL belongs to member {local}, which is not in the database's member list{removed}");
    report.add(Code::IdsDisagree, severity, place, what);
}

/// Whether the raft snapshot agrees with itself: its conf state says who votes, its member list how to reach them.
pub(super) fn check_snapshot(facts: Option<&Facts>, log: &LogFacts, report: &mut Report) {
    let Some(snap @ Snap { store: Some(store), .. }) = log.snap_in_use() else { return };
    let listed: BTreeSet<u64> = store.members.iter().map(|member| member.id.0).collect();
    if RaftMembers::of(snap).all() == listed {
        return;
    }
    // From 3.6 on etcd does not read this list any more.
    let unread = facts.is_some_and(|facts| facts.storage_version.is_some());
    let severity = if unread { Severity::Warning } else { Severity::Error };
    let what = "the raft snapshot's member list and its conf state name different members";
    report.add(Code::MembershipDisagrees, severity, Place::file(&snap.path), what);
}

/// Whether the database and raft have the same members, learners and peer URLs.
pub(super) fn check(facts: &Facts, log: &LogFacts, wal: &WalSummary, report: &mut Report) {
    let applied = facts.consistent_index.unwrap_or(0);
    let Some(raft) = raft_members(log, wal, applied) else { return };
    let listed: BTreeSet<u64> = facts.members.iter().map(|member| member.id.0).collect();
    let in_raft = raft.all();
    let show = |ids: Vec<&u64>| ids.iter().map(|id| MemberId(**id).to_string()).collect::<Vec<_>>().join(", ");
    let missing = in_raft.difference(&listed).filter(|id| !raft.unsure.contains(id)).collect::<Vec<_>>();
    let extra = listed.difference(&in_raft).collect::<Vec<_>>();
    for (ids, what) in [
        (missing, "raft has members that the database does not list"),
        (extra, "the database lists members that raft does not have"),
    ] {
        if !ids.is_empty() {
            let what = format!("{what}: {}", show(ids));
            report.add(Code::MembershipDisagrees, by_writer(facts), report.db_place(), what);
        }
    }
    for member in facts.members.iter().filter(|member| in_raft.contains(&member.id.0)) {
        if member.is_learner != raft.learners.contains(&member.id.0) {
            let what = format!("member {} is a learner in one list and a voter in the other", member.id);
            report.add(Code::MembershipDisagrees, by_writer(facts), report.db_place(), what);
        }
    }
    check_peer_urls(facts, log, wal, report);
}

/// The two member lists agree on where peers are, as long as no change was logged since the snapshot.
fn check_peer_urls(facts: &Facts, log: &LogFacts, wal: &WalSummary, report: &mut Report) {
    let Some(Snap { file, store: Some(store), .. }) = &log.snap else { return };
    if wal.conf_changes.iter().any(|entry| entry.index > file.point.index) {
        return;
    }
    for member in &facts.members {
        let Some(old) = store.members.iter().find(|old| old.id == member.id) else { continue };
        let sorted = |urls: &[String]| urls.iter().cloned().collect::<BTreeSet<_>>();
        if sorted(&old.peer_urls) != sorted(&member.peer_urls) {
            let what = format!("member {} has other peer URLs in the raft snapshot than in the database", member.id);
            report.add(Code::MembershipDisagrees, Severity::Warning, report.db_place(), what);
        }
    }
}

/// Who votes and who learns.
#[derive(Default)]
struct RaftMembers {
    voters: BTreeSet<u64>,
    learners: BTreeSet<u64>,
    /// Where each is reached, as far as that is known.
    urls: BTreeMap<u64, Vec<String>>,
    removed: BTreeSet<u64>,
    /// Learners that etcd may have refused: how many it takes is a setting.
    unsure: BTreeSet<u64>,
}

impl RaftMembers {
    fn of(snap: &Snap) -> RaftMembers {
        let ConfState { voters, learners, voters_outgoing, learners_next, .. } = &snap.file.conf_state;
        let mut members = RaftMembers {
            voters: voters.iter().chain(voters_outgoing).copied().collect(),
            learners: learners.iter().chain(learners_next).copied().collect(),
            ..RaftMembers::default()
        };
        if let Some(store) = &snap.store {
            members.urls = store.members.iter().map(|member| (member.id.0, member.peer_urls.clone())).collect();
            members.removed = store.removed.iter().map(|id| id.0).collect();
        }
        members
    }

    fn has(&self, id: MemberId) -> bool {
        self.voters.contains(&id.0) || self.learners.contains(&id.0)
    }

    fn all(&self) -> BTreeSet<u64> {
        self.voters.union(&self.learners).copied().collect()
    }

    fn apply(&mut self, entry: &ConfChangeEntry) {
        let id = entry.change.node_id();
        let urls = Member::from_json(entry.change.context()).map(|member| member.peer_urls).unwrap_or_default();
        let known = self.has(MemberId(id));
        let taken = self.urls.iter().any(|(other, theirs)| *other != id && theirs.iter().any(|url| urls.contains(url)));
        match entry.change.r#type() {
            0 if known => {
                self.learners.remove(&id);
                self.voters.insert(id);
            }
            0 | 3 if known || taken || self.removed.contains(&id) => {}
            0 => {
                self.voters.insert(id);
                self.urls.insert(id, urls);
            }
            3 => {
                if !self.learners.is_empty() {
                    self.unsure.insert(id);
                }
                self.learners.insert(id);
                self.urls.insert(id, urls);
            }
            1 => {
                self.learners.remove(&id);
                self.voters.remove(&id);
                self.urls.remove(&id);
                self.removed.insert(id);
            }
            2 if known && !taken => {
                self.urls.insert(id, urls);
            }
            _ => {}
        }
    }
}

/// Membership as raft has it at an index: that of the raft snapshot, and every change applied since.
fn raft_members(log: &LogFacts, wal: &WalSummary, index: u64) -> Option<RaftMembers> {
    let (from, mut members) = match &log.snap {
        Some(snap) => (snap.file.point.index, RaftMembers::of(snap)),
        None => (0, RaftMembers::default()),
    };
    let begins_there = wal.continues_from(from) && wal.conf_changes_left_out == 0;
    let says_nothing = log.snap.is_none() && wal.first_entry.is_none();
    if !begins_there || says_nothing || from > index {
        return None;
    }
    for entry in wal.conf_changes.iter().filter(|entry| entry.index > from && entry.index <= index) {
        members.apply(entry);
    }
    Some(members)
}
