//! Whether database, WAL and raft snapshot tell the same story.
//!
//! Which file a server believes depends on its version: 3.4 and 3.5 take members from the raft snapshot, 3.6 and later
//! from the database. What only hurts versions that did not write this data is a warning.

use std::collections::BTreeSet;

use quorate_faults::{Code, Place, Severity};

use super::log::{LogFacts, Snap};
use super::{Mode, Report, Settings};
use crate::database::Facts;
use crate::membership::MemberId;
use crate::messages::ConfState;
use crate::wal::WalSummary;

pub(super) fn check(facts: Option<&Facts>, log: &LogFacts, settings: &Settings<'_>, report: &mut Report) {
    check_database_alone(facts, report);
    let Some(facts) = facts else { return };
    check_snapshot_index(facts, log, report);
    let Some(wal) = &log.wal else { return };
    check_log_index(facts, wal, settings.mode, report);
    check_local_member(facts, log, wal, report);
    if settings.mode == Mode::Full && wal.is_complete() {
        check_snapshot_point(facts, log, wal, report);
        check_membership(facts, log, wal, report);
    }
}

pub(super) fn check_database_alone(facts: Option<&Facts>, report: &mut Report) {
    let Some(facts) = facts else { return };
    for member in facts.members.iter().filter(|member| facts.removed.contains(&member.id)) {
        let what = format!("member {} is listed both as a member and as removed", member.id);
        report.add(Code::MembershipDisagrees, by_writer(facts), report.db_place(), what);
    }
}

/// What 3.6 and later stop on, and earlier versions do not even look at.
fn by_writer(facts: &Facts) -> Severity {
    if facts.storage_version.is_some() { Severity::Error } else { Severity::Warning }
}

fn check_snapshot_index(facts: &Facts, log: &LogFacts, report: &mut Report) {
    let Some(snap) = &log.snap else { return };
    let (index, applied) = (snap.file.point.index, facts.consistent_index.unwrap_or(0));
    // A snapshot that the WAL does not mark was never put to use.
    let marked = log.wal.as_ref().is_none_or(|wal| {
        wal.snapshots.is_empty()
            || wal.candidates().any(|mark| (mark.index, mark.term) == (index, snap.file.point.term))
    });
    if applied >= index || !marked {
        return;
    }
    let what =
        format!("the database has applied entries up to {applied}, the raft snapshot `{}` ends at {index}", snap.path);
    if log.received.contains(&index) {
        let what = format!("{what}; a received database for it is there, and etcd puts it in place at its next start");
        report.add(Code::IndexBehind, Severity::Info, report.db_place(), what);
    } else {
        report.add(Code::IndexBehind, Severity::Error, report.db_place(), what);
    }
}

fn check_log_index(facts: &Facts, wal: &WalSummary, mode: Mode, report: &mut Report) {
    let Some(applied) = facts.consistent_index else {
        if wal.last_index() > 0 && wal.start().is_some_and(|start| start.index > 0) {
            let what = "the database does not say which log entries it has applied";
            report.add(Code::IndexBehind, Severity::Error, report.db_place(), what);
        }
        return;
    };
    // The newest segment alone may hold no entry yet, and a log that could not be read to its end has no end to compare.
    let seen_whole = mode == Mode::Full && !wal.segments.is_empty();
    let known = wal.is_complete() && (seen_whole || wal.last_entry.is_some());
    let last = wal.last_index();
    if known && applied > last {
        let what = format!("the database has applied entries up to {applied}, the log ends at {last}");
        report.add(Code::IndexAhead, Severity::Error, report.db_place(), what);
    } else if known && applied > wal.commit() {
        let what =
            format!("the database has applied entry {applied}, the hard state says {} is committed", wal.commit());
        report.add(Code::IndexAhead, Severity::Info, report.db_place(), what);
    }
    if let (Some(stored), Some(logged)) = (facts.term, wal.term_at(applied))
        && stored != logged
    {
        let what = format!("the database says that entry {applied} is of term {stored}, the log says {logged}");
        // 3.4 moves the index on and leaves the term, which it does not know, as an older file or `data init` wrote it.
        let left_by_3_4 = stored < logged && facts.cluster_version.as_deref().is_some_and(|v| v.starts_with("3.4."));
        let severity = if left_by_3_4 { Severity::Info } else { Severity::Error };
        report.add(Code::TermDisagrees, severity, report.db_place(), what);
    }
}

fn check_local_member(facts: &Facts, log: &LogFacts, wal: &WalSummary, report: &mut Report) {
    let Some(local) = wal.member_id() else { return };
    if facts.members.iter().any(|member| member.id == local) {
        return;
    }
    // A member that joined and has not caught up yet knows nobody, not even itself.
    if facts.members.is_empty() && facts.consistent_index.unwrap_or(0) == 0 {
        return;
    }
    let in_raft = raft_members(log, wal, u64::MAX).is_some_and(|raft| raft.has(local));
    let severity = if in_raft { by_writer(facts) } else { Severity::Error };
    let removed = if facts.removed.contains(&local) { " (it was removed)" } else { "" };
    let what = format!("the WAL belongs to member {local}, which is not in the database's member list{removed}");
    report.add(Code::IdsDisagree, severity, Place::file(&log.wal_dir), what);
}

/// Data that the log does not explain must lie behind a raft snapshot, or members added later never receive it.
fn check_snapshot_point(facts: &Facts, log: &LogFacts, wal: &WalSummary, report: &mut Report) {
    let usable = wal
        .candidates()
        .filter(|mark| log.snap_points.iter().any(|snap| (snap.index, snap.term) == (mark.index, mark.term)))
        .map(|mark| mark.index)
        .max()
        .unwrap_or(0);
    if usable > 0 {
        return;
    }
    let place = Place::file(&log.wal_dir);
    if wal.first_entry.is_some_and(|first| first > 1) || wal.first_entry.is_none() && wal.commit() > 0 {
        let what = "the log does not begin at entry 1, and no intact raft snapshot marked in it precedes it";
        return report.add(Code::NoSnapshotPoint, Severity::Error, place, what);
    }
    // Every revision is the work of at least one entry.
    let (revision, applied) = (facts.revision_now(), facts.consistent_index.unwrap_or(0));
    if revision > applied.saturating_add(1) {
        let what = format!("the database is at revision {revision}, more than {applied} log entries can have written");
        report.add(Code::NoSnapshotPoint, Severity::Error, place, what);
    }
}

/// Who votes and who learns.
#[derive(Default)]
struct RaftMembers {
    voters: BTreeSet<u64>,
    learners: BTreeSet<u64>,
}

impl RaftMembers {
    fn of(state: &ConfState) -> RaftMembers {
        let voters = state.voters.iter().chain(&state.voters_outgoing).copied().collect();
        let learners = state.learners.iter().chain(&state.learners_next).copied().collect();
        RaftMembers { voters, learners }
    }

    fn has(&self, id: MemberId) -> bool {
        self.voters.contains(&id.0) || self.learners.contains(&id.0)
    }
}

/// Membership as raft has it at an index: that of the raft snapshot, and every change logged since.
fn raft_members(log: &LogFacts, wal: &WalSummary, index: u64) -> Option<RaftMembers> {
    let (from, mut members) = match &log.snap {
        Some(Snap { file, .. }) => (file.point.index, RaftMembers::of(&file.conf_state)),
        None => (0, RaftMembers::default()),
    };
    let begins_there = wal.continues_from(from) && wal.conf_changes_left_out == 0;
    if !begins_there || from > index {
        return None;
    }
    for entry in wal.conf_changes.iter().filter(|entry| entry.index > from && entry.index <= index) {
        let id = entry.change.node_id();
        match entry.change.r#type() {
            0 => {
                members.learners.remove(&id);
                members.voters.insert(id);
            }
            1 => {
                members.learners.remove(&id);
                members.voters.remove(&id);
            }
            3 => {
                members.learners.insert(id);
            }
            _ => {}
        }
    }
    Some(members)
}

fn check_membership(facts: &Facts, log: &LogFacts, wal: &WalSummary, report: &mut Report) {
    let applied = facts.consistent_index.unwrap_or(0);
    let Some(raft) = raft_members(log, wal, applied) else { return };
    let listed: BTreeSet<u64> = facts.members.iter().map(|member| member.id.0).collect();
    let in_raft: BTreeSet<u64> = raft.voters.union(&raft.learners).copied().collect();
    let show = |ids: Vec<&u64>| ids.iter().map(|id| MemberId(**id).to_string()).collect::<Vec<_>>().join(", ");
    let missing: Vec<_> = in_raft.difference(&listed).collect();
    let extra: Vec<_> = listed.difference(&in_raft).collect();
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
            report.add(Code::MembershipDisagrees, Severity::Warning, report.db_place(), what);
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
