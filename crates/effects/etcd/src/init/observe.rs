//! Looks at the target of `data init` without changing it.
//!
//! **Invariant:** "could not look" is reported as unknown, never as absent or empty.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use quorate_etcd_formats::dir::{DB, SNAP_DIR};
use quorate_etcd_formats::founding::{FoundingFiles, NamedFile};
use quorate_host::durable::is_partial_of;
use quorate_host::locks::{self, LockState};
use quorate_plan::init::{SeenData, SeenMember, SeenTarget, SeenWal, Used};

use super::paths::Target;
use crate::aside::is_replaced_member;
use crate::datadir::FileSource;
use crate::identity;
use crate::place::is_marker;

/// At most this many names of strangers' files are shown.
const SHOWN_MAX: usize = 3;

/// Looks at the data dir and, if there is one, the separate WAL dir.
pub(super) fn observe_target(target: &Target, files: &FoundingFiles) -> SeenTarget {
    SeenTarget {
        data: observe_data(target.data_dir(), target.wal_name_in_data()),
        wal: target.wal_dir().map(|wal| observe_wal(wal, &files.wal, &target.data_dir().join(DB))),
    }
}

/// What a path is, before anyone knows what it should be.
enum Listing {
    Absent,
    Names(Vec<OsString>),
    /// Not a directory, and what instead.
    Other(String),
    /// It could not be found out, and why.
    Unknown(String),
}

fn observe_data(dir: &Path, wal_inside: Option<PathBuf>) -> SeenData {
    let mut names = match list(dir) {
        Listing::Absent => return SeenData::Absent,
        Listing::Other(what) => return SeenData::Foreign(what),
        Listing::Unknown(why) => return SeenData::Unknown(why),
        Listing::Names(names) => names,
    };
    let member = OsStr::new("member");
    names.retain(|name| {
        let of_wal =
            wal_inside.as_ref().is_some_and(|wal| name == wal.as_os_str() || is_partial_of(name, wal.as_os_str()));
        !of_wal && name != "lost+found" && !is_partial_of(name, member) && !is_marker(name) && !is_replaced_member(name)
    });
    if names.is_empty() {
        return SeenData::Empty;
    }
    if names.iter().any(|name| name == member) {
        return observe_member(dir);
    }
    if ["snap", "wal"].iter().all(|part| names.iter().any(|name| name == part)) {
        return SeenData::Foreign("it is the `member` part of a data dir; give the directory above it".into());
    }
    SeenData::Foreign(not_empty(&names))
}

fn observe_member(dir: &Path) -> SeenData {
    let db_path = dir.join(DB);
    let (has_db, db_used) = match File::open(&db_path) {
        Ok(db) => (true, used(locks::probe_flock(&db))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (false, Used::No),
        Err(error) => return SeenData::Unknown(format!("`{}`: {error}", db_path.display())),
    };
    let segments = match segments(&dir.join("member/wal")) {
        Ok(segments) => segments,
        Err(why) => return SeenData::Unknown(why),
    };
    let has_snap = match list(&dir.join(SNAP_DIR)) {
        Listing::Names(names) => names.iter().any(|name| name.as_encoded_bytes().ends_with(b".snap")),
        Listing::Absent | Listing::Other(_) => false,
        Listing::Unknown(why) => return SeenData::Unknown(why),
    };
    if segments.is_empty() {
        return SeenData::NoWal { has_db, has_snap, used: db_used };
    }
    match whose(&segments, has_db.then_some(db_path.as_path())) {
        Ok(of) => SeenData::Member(SeenMember { has_db, used: either(of.used, db_used), ..of }),
        Err(NotRead::NotUnderstood(_)) if matches!(db_used, Used::By(_)) => {
            // Locked first, understood later: etcd may be writing its first segment this very moment.
            SeenData::NoWal { has_db, has_snap, used: db_used }
        }
        Err(NotRead::NotUnderstood(why)) => SeenData::Unreadable(why),
        Err(NotRead::Unknown(why)) => SeenData::Unknown(why),
    }
}

fn observe_wal(dir: &Path, ours: &NamedFile, db: &Path) -> SeenWal {
    let mut names = match list(dir) {
        Listing::Absent => return SeenWal::Absent,
        Listing::Other(what) => return SeenWal::Foreign(what),
        Listing::Unknown(why) => return SeenWal::Unknown(why),
        Listing::Names(names) => names,
    };
    names.retain(|name| name != "lost+found" && !is_partial_of(name, OsStr::new(&ours.name)) && !is_marker(name));
    if names.is_empty() {
        return SeenWal::Empty;
    }
    let mut segments: Vec<PathBuf> = names.iter().filter(|name| is_segment(name)).map(|name| dir.join(name)).collect();
    segments.sort();
    if segments.is_empty() {
        return SeenWal::Foreign(not_empty(&names));
    }
    match whose(&segments, db.exists().then_some(db)) {
        Ok(of) => {
            let only = segments.len() == 1 && segments.iter().all(|segment| segment.ends_with(&ours.name));
            let as_written = only && segments.iter().all(|segment| holds_only(segment, &ours.bytes));
            SeenWal::Wal { of, as_written }
        }
        Err(NotRead::NotUnderstood(why)) => SeenWal::Unreadable(why),
        Err(NotRead::Unknown(why)) => SeenWal::Unknown(why),
    }
}

fn list(dir: &Path) -> Listing {
    let unknown = |error: io::Error| Listing::Unknown(format!("`{}`: {error}", dir.display()));
    let is_link = match dir.symlink_metadata() {
        Ok(meta) => meta.is_symlink(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Listing::Absent,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Listing::Other("a part of its path is a file, not a directory".into());
        }
        Err(error) => return unknown(error),
    };
    match dir.metadata() {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Listing::Other("it is a file, not a directory".into()),
        Err(error) if is_link && error.kind() == io::ErrorKind::NotFound => {
            return Listing::Other("it is a symbolic link that leads nowhere".into());
        }
        Err(error) => return unknown(error),
    }
    let names = std::fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    names.map_or_else(unknown, Listing::Names)
}

/// WAL segments in the order of their names. A directory that does not exist has none.
fn segments(wal: &Path) -> Result<Vec<PathBuf>, String> {
    match list(wal) {
        Listing::Absent => Ok(vec![]),
        Listing::Other(what) => Err(format!("`{}`: {what}", wal.display())),
        Listing::Unknown(why) => Err(why),
        Listing::Names(names) => {
            let mut segments: Vec<_> =
                names.iter().filter(|name| is_segment(name)).map(|name| wal.join(name)).collect();
            segments.sort();
            Ok(segments)
        }
    }
}

/// As etcd decides whether there is a WAL: by the ending alone.
fn is_segment(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(b".wal")
}

enum NotRead {
    NotUnderstood(String),
    Unknown(String),
}

/// Reads the ids from the first segment, and asks who holds the last.
fn whose(segments: &[PathBuf], db: Option<&Path>) -> Result<SeenMember, NotRead> {
    let unknown =
        |path: &Path, error: &dyn std::fmt::Display| NotRead::Unknown(format!("`{}`: {error}", path.display()));
    let (Some(first), Some(last)) = (segments.first(), segments.last()) else {
        return Err(NotRead::NotUnderstood("there is no WAL".into()));
    };
    let used = used(locks::probe_ofd(&File::open(last).map_err(|error| unknown(last, &error))?));
    let segment = FileSource::open(first).map_err(|error| unknown(first, &error))?;
    let Some(ids) = identity::read_ids(&segment).map_err(|error| unknown(first, &error))? else {
        return Err(NotRead::NotUnderstood(format!("`{}` does not begin with a member's ids", first.display())));
    };
    let name = db.and_then(|db| identity::name_in_db(db, ids.member)).or(ids.name);
    Ok(SeenMember { cluster: ids.cluster, member: ids.member, name, has_db: db.is_some(), used })
}

fn used(state: LockState) -> Used {
    match state {
        LockState::Free => Used::No,
        LockState::Held { pid } => Used::By(pid),
        LockState::Unknown(error) => Used::Unknown(error.to_string()),
    }
}

/// Of two answers the one that says most: a holder with its process, a holder, not known, no one.
fn either(one: Used, other: Used) -> Used {
    let weight = |used: &Used| match used {
        Used::By(Some(_)) => 3,
        Used::By(None) => 2,
        Used::Unknown(_) => 1,
        Used::No => 0,
    };
    if weight(&one) >= weight(&other) { one } else { other }
}

/// Whether a segment holds these bytes and no record behind them. etcd, when it opens one, adds room for 64 MB of zeros.
fn holds_only(path: &Path, bytes: &[u8]) -> bool {
    const LENGTH_FIELD: usize = 8;
    let mut there = Vec::new();
    let read = File::open(path).and_then(|file| file.take((bytes.len() + LENGTH_FIELD) as u64).read_to_end(&mut there));
    let rest = there.strip_prefix(bytes).filter(|_| read.is_ok());
    rest.is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
}

fn not_empty(names: &[OsString]) -> String {
    let mut shown: Vec<String> = names.iter().map(|name| format!("`{}`", name.display())).collect();
    shown.sort();
    let more = shown.len().saturating_sub(SHOWN_MAX);
    shown.truncate(SHOWN_MAX);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("it is not empty and is not an etcd data dir: {}{tail}", shown.join(", "))
}
