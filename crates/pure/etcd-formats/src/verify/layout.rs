//! What is there, who owns it, who may read it, and whether somebody works on it.

use quorate_faults::{Code, Place, Severity};

use super::Report;
use crate::dir::{DB, DataDir, Entry, InUse, Kind, SNAP_DIR};
use crate::wal::SegmentName;

pub(super) fn check(dir: &DataDir<'_>, report: &mut Report) {
    match &dir.in_use {
        InUse::No => {}
        InUse::Yes { pid } => {
            let by = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            report.add(
                Code::DataInUse,
                Severity::Error,
                Place::file(DB),
                format!("a running etcd{by} holds the data dir"),
            );
        }
        InUse::Unknown(why) => {
            let what = format!("cannot tell whether a running etcd holds the data dir: {why}");
            report.add(Code::DataInUse, Severity::Error, Place::file(DB), what);
        }
    }
    for wanted in ["member", SNAP_DIR, dir.wal_dir.as_str()] {
        if !is_there(dir, wanted) {
            report.add(Code::DataMissingPart, Severity::Error, Place::file(wanted), "the directory is missing");
        }
    }
    if !is_there(dir, DB) && dir.has_dir(SNAP_DIR) {
        report.add(Code::DataMissingPart, Severity::Error, Place::file(DB), "the database is missing");
    }
    let segments = dir.entries.iter().filter(|entry| is_segment(entry, &dir.wal_dir)).count();
    if segments == 0 && dir.has_dir(&dir.wal_dir) {
        report.add(Code::DataMissingPart, Severity::Error, Place::file(&dir.wal_dir), "there is no WAL segment");
    }
    for entry in &dir.entries {
        if let Kind::Unreadable(why) = &entry.kind {
            report.add(Code::Io, Severity::Error, Place::file(&entry.path), format!("cannot be read: {why}"));
        }
    }
    check_modes(dir, report);
    check_owner(dir, report);
    check_left_overs(dir, report);
}

/// Whether anything is at a path, readable or not.
fn is_there(dir: &DataDir<'_>, path: &str) -> bool {
    dir.entries.iter().any(|entry| entry.path == path)
}

/// Whether a directory, or a file directly in it with a given ending, is there and cannot be read.
pub(super) fn is_unreadable(dir: &DataDir<'_>, folder: &str, ending: &str) -> bool {
    let concerned = |entry: &Entry<'_>| entry.path == folder || lies_in(entry, folder) && entry.path.ends_with(ending);
    dir.entries.iter().any(|entry| matches!(entry.kind, Kind::Unreadable(_)) && concerned(entry))
}

fn is_segment(entry: &Entry<'_>, wal_dir: &str) -> bool {
    lies_in(entry, wal_dir) && SegmentName::parse(entry.name()).is_some()
}

fn lies_in(entry: &Entry<'_>, folder: &str) -> bool {
    entry.path.rsplit_once('/').is_some_and(|(parent, _)| parent == folder)
}

fn check_modes(dir: &DataDir<'_>, report: &mut Report) {
    for entry in &dir.entries {
        // etcd writes raft snapshots readable to all, and the directory around them keeps others out.
        let is_open = match entry.kind {
            Kind::Dir => entry.mode & 0o077 != 0,
            Kind::File(_) | Kind::Unreadable(_) => entry.mode & 0o022 != 0,
        };
        if is_open {
            let what = format!("others than the owner have access (mode {:04o})", entry.mode & 0o7777);
            report.add(Code::DataModeOpen, Severity::Warning, Place::file(&entry.path), what);
        }
    }
}

fn check_owner(dir: &DataDir<'_>, report: &mut Report) {
    let Some(first) = dir.entries.first() else { return };
    if let Some(other) = dir.entries.iter().find(|entry| entry.uid != first.uid) {
        let what = format!("belongs to user {}, but `{}` to user {}", other.uid, first.path, first.uid);
        report.add(Code::DataOwnerMixed, Severity::Warning, Place::file(&other.path), what);
    }
}

fn check_left_overs(dir: &DataDir<'_>, report: &mut Report) {
    for entry in dir.entries.iter().filter(|entry| !matches!(entry.kind, Kind::Dir)) {
        let name = entry.name();
        let of_snap = entry.path.starts_with(SNAP_DIR);
        // `0.tmp` and `1.tmp` of the WAL are segments made ready in advance.
        let left_over = name.ends_with(".broken") || of_snap && (name.starts_with("tmp") || name.starts_with("db.tmp"));
        if left_over {
            report.add(Code::DataLeftOver, Severity::Info, Place::file(&entry.path), "left over from interrupted work");
        }
    }
}
