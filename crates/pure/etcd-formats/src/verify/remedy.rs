//! What to do about each finding, in one sentence; the page of its code says more.

use quorate_faults::{Code, Severity};

const REPLACE: &str = "do not start etcd on it; restore this member from a backup, or remove it and add it again to receive the data from its peers";
const LOOK: &str =
    "etcd starts on it; compare this member's hash with the others' (`etcdctl endpoint hashkv --cluster`)";

/// What is being examined: it decides what can be done about damage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Subject {
    /// A member's data dir.
    #[default]
    Member,
    /// A snapshot file.
    Snapshot,
}

pub(super) fn of(code: Code, severity: Severity, subject: Subject) -> &'static str {
    match code {
        Code::DataInUse => "stop etcd first, or examine a snapshot of it (`etcdctl snapshot save`)",
        Code::DataMissingPart => {
            "check the path and that the right disk is mounted; an etcd started on it as it is could come up empty"
        }
        Code::DataModeOpen => "`chmod 0700` the directories and `chmod 0600` the files",
        Code::DataOwnerMixed => "`chown -R` the directory to the user that etcd runs as",
        Code::DataLeftOver => "nothing; etcd removes it or ignores it",
        Code::Io => "check the file's permissions and the disk (`dmesg`)",
        Code::BoltMeta if severity == Severity::Warning => {
            "etcd falls back to the other meta page, which may be one transaction older; take a backup now"
        }
        Code::BoltTooLarge => "no etcd with usual limits writes such a page; if yours does, this page was not examined",
        Code::BoltSingleChild => "rewrite the database (`etcdutl defrag --data-dir`) before etcd compacts it",
        Code::BucketMissing if severity == Severity::Info => "nothing; etcd creates it at its next start",
        Code::LeaseMissing => "the key will never expire; delete it or put it again with a lease",
        Code::AlarmRaised => "find the cause, then `etcdctl alarm disarm`",
        Code::AuthInconsistent => {
            "add what is missing (`etcdctl user add root`, `etcdctl role add root`) as a user that has the role `root`"
        }
        Code::WalTornTail => {
            "usual after a crash, where nothing is lost that was acknowledged: etcd cuts it off at its next start and keeps the old file as `.broken`; without a crash, compare this member's index with its peers'"
        }
        Code::UpgradeOldEntries => {
            "start the release that it ran last by its agent; `quorate cluster upgrade --to VERSION` then takes a raft snapshot behind them first"
        }
        Code::WalCorrupt if severity == Severity::Warning => {
            "etcd starts on it and overwrites what follows; compare this member's index with its peers' before trusting it"
        }
        Code::SnapStore if severity == Severity::Warning => "etcd 3.4 and 3.5 start on it; 3.6 refuses it",
        Code::SnapInvalid | Code::SnapName if severity != Severity::Error => {
            "etcd passes over it; keep it aside and take a backup"
        }
        Code::NoSnapshotPoint => {
            "do not add members to this cluster; restore the data with a tool that writes a raft snapshot, then add them"
        }
        Code::MembershipDisagrees if severity != Severity::Error => {
            "compare with `etcdctl member list` on a healthy member before upgrading or restoring"
        }
        Code::TermDisagrees if severity == Severity::Info => "nothing; etcd 3.4 does not keep the term up to date",
        Code::IndexAhead if severity != Severity::Error => "nothing; this is usual after a crash",
        Code::SnapshotHash => "do not restore from it; use another snapshot or another copy of this one",
        Code::SnapshotNoHash => "prefer snapshots made by `etcdctl snapshot save`, which carry their hash",
        _ if severity == Severity::Error && subject == Subject::Snapshot => {
            "do not restore from it; use another snapshot, or take a new one (`etcdctl snapshot save`)"
        }
        _ if severity == Severity::Error => REPLACE,
        _ => LOOK,
    }
}
