//! Whether database, WAL and raft snapshot tell the same story.
//!
//! Which file a server believes depends on its version: 3.4 and 3.5 take members from the raft snapshot, 3.6 and later
//! from the database. What only hurts versions that did not write this data is a warning.

use quorate_faults::{Code, Place, Severity};

use super::log::LogFacts;
use super::{Mode, Report, members};
use crate::database::Facts;
use crate::wal::WalSummary;

pub(super) fn check(facts: Option<&Facts>, log: &LogFacts, report: &mut Report) {
    check_database_alone(facts, report);
    members::check_snapshot(facts, log, report);
    let Some(facts) = facts else { return };
    if !index_malformed(facts) {
        check_snapshot_index(facts, log, report);
    }
    let Some(wal) = &log.wal else { return };
    check_log_index(facts, wal, log.mode, report);
    check_log_end(wal, log.mode, report, &log.wal_dir);
    members::check_local(facts, log, wal, report);
    if log.mode == Mode::Full && wal.is_complete() && !log.unreadable {
        check_snapshot_point(facts, log, wal, report);
        members::check(facts, log, wal, report);
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
pub(super) fn by_writer(facts: &Facts) -> Severity {
    if facts.storage_version.is_some() { Severity::Error } else { Severity::Warning }
}

/// A value that is not in its form has been reported as that.
fn index_malformed(facts: &Facts) -> bool {
    facts.malformed.iter().any(|wrong| (wrong.bucket, wrong.key.as_str()) == ("meta", "consistent_index"))
}

fn check_snapshot_index(facts: &Facts, log: &LogFacts, report: &mut Report) {
    let Some(snap) = log.snap_in_use() else { return };
    let (index, applied) = (snap.file.point.index, facts.consistent_index.unwrap_or(0));
    if applied >= index {
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
        let told = index_malformed(facts) || report.findings.iter().any(|finding| finding.code == Code::IndexBehind);
        if !told && wal.last_index() > 0 && wal.start().is_some_and(|start| start.index > 0) {
            let what = "the database does not say which log entries it has applied";
            report.add(Code::IndexBehind, Severity::Error, report.db_place(), what);
        }
        return;
    };
    // The newest segment alone may hold no entry yet, and a log that could not be read to its end has no end to compare.
    let known = wal.is_complete() && (is_whole(wal, mode) || wal.last_entry.is_some());
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
        let severity =
            if stored < logged && may_lag(facts, wal, applied, stored) { Severity::Info } else { Severity::Error };
        report.add(Code::TermDisagrees, severity, report.db_place(), what);
    }
}

/// Whether an honest etcd leaves a term behind its index.
fn may_lag(facts: &Facts, wal: &WalSummary, applied: u64, stored: u64) -> bool {
    // 3.4 moves the index on and leaves the term, which it does not know, as an older file or `data init` wrote it. It
    // founds clusters as version 3.0 and says 3.4 seconds later; before that there is none.
    let before_3_5 =
        facts.cluster_version.as_deref().is_none_or(|version| version.starts_with("3.4.") || version == "3.0.0");
    // 3.5 and 3.6 set index and term one after the other, and a commit can come between the two.
    let caught_between = applied > 0 && wal.term_at(applied - 1) == Some(stored);
    before_3_5 || caught_between
}

/// Whether all segments were read: a quick look reads the newest, which may be the only one.
fn is_whole(wal: &WalSummary, mode: Mode) -> bool {
    let first = wal.segments.first().is_some_and(|segment| segment.name.sequence == 0 && segment.skipped == 0);
    mode == Mode::Full && !wal.segments.is_empty() || first
}

/// A log without entries ends at its snapshot, and so does what can be committed.
fn check_log_end(wal: &WalSummary, mode: Mode, report: &mut Report, wal_dir: &str) {
    let last = wal.last_index();
    let known = wal.is_complete() && is_whole(wal, mode) && wal.last_entry.is_none() && last > 0;
    if known && wal.commit() > last {
        let what = format!("entries up to {} are committed, the log ends at {last}", wal.commit());
        report.add(Code::WalHardState, Severity::Error, Place::file(wal_dir), what);
    }
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
    // Every revision is the work of at least one entry, and changes of membership write none.
    let (revision, applied) = (facts.revision_now(), facts.consistent_index.unwrap_or(0));
    let changes = wal.conf_changes.iter().filter(|entry| entry.index <= applied).count() as u64;
    let writes = applied.saturating_sub(changes);
    if revision > writes.saturating_add(1) {
        let what = format!("the database is at revision {revision}, more than {writes} log entries can have written");
        report.add(Code::NoSnapshotPoint, Severity::Error, place, what);
    }
}
