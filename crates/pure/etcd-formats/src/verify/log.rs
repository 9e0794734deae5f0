//! The WAL and the raft snapshots, each by itself.

use quorate_faults::{Code, Place, Severity};

use super::layout::is_unreadable;
use super::{GoOn, Mode, Report, Settings};
use crate::ReadError;
use crate::database::Facts;
use crate::dir::{DataDir, Named, SNAP_DIR};
use crate::snap::{SnapFile, SnapName};
use crate::v2store::V2Store;
use crate::wal::{self, NameProblem, ScanOptions, SegmentName, Tail, WalFile, WalProblem, WalReadError, WalSummary};

/// What the log says, as far as it could be read.
pub(super) struct LogFacts {
    /// How much of the WAL was read: a full check that was told to end early looks at the newest segment only.
    pub(super) mode: Mode,
    /// The WAL; in sanity mode its newest segment only.
    pub(super) wal: Option<WalSummary>,
    /// Where the WAL is, for places.
    pub(super) wal_dir: String,
    /// The newest raft snapshot that is intact.
    pub(super) snap: Option<Snap>,
    /// All intact raft snapshots that were looked at.
    pub(super) snap_points: Vec<SnapName>,
    /// Indexes of databases received from a leader and not yet put in place.
    pub(super) received: Vec<u64>,
    /// Whether a part of the log or a raft snapshot is there and could not be read: what is missing then proves nothing.
    pub(super) unreadable: bool,
}

impl LogFacts {
    /// The newest raft snapshot, unless the WAL does not mark it: such a one was never put to use.
    pub(super) fn snap_in_use(&self) -> Option<&Snap> {
        let snap = self.snap.as_ref()?;
        let point = (snap.file.point.index, snap.file.point.term);
        let marked = self.wal.as_ref().is_none_or(|wal| {
            wal.snapshots.is_empty() || wal.candidates().any(|mark| (mark.index, mark.term) == point)
        });
        marked.then_some(snap)
    }
}

/// A raft snapshot with what it says of members.
pub(super) struct Snap {
    pub(super) path: String,
    pub(super) file: SnapFile,
    pub(super) store: Option<V2Store>,
}

pub(super) fn check(
    dir: &DataDir<'_>,
    facts: Option<&Facts>,
    settings: &Settings<'_>,
    go_on: Option<&GoOn<'_>>,
    report: &mut Report,
) -> LogFacts {
    let files = dir.wal_files();
    let wal_files: Vec<_> = files.iter().map(|file| WalFile { name: file.name, source: file.source }).collect();
    let options = ScanOptions { applied: facts.and_then(|facts| facts.consistent_index) };
    check_names(dir, report);
    let unreadable_segment = is_unreadable(dir, &dir.wal_dir, ".wal");
    let (mode, scanned) = scan(&wal_files, &options, settings.mode, go_on);
    if mode == Mode::Sanity && !unreadable_segment {
        check_heads(&files, &dir.wal_dir, report);
    }
    let wal = match scanned {
        // The layout has told of segments that are not there or cannot be opened; without them the rest tells nothing.
        Ok(wal) if wal.segments.is_empty() || unreadable_segment => None,
        Ok(wal) => {
            report_wal(&wal, &dir.wal_dir, report);
            if mode == Mode::Full {
                report.wal_entries = Some(wal.segments.iter().map(|segment| segment.entries).sum());
            }
            Some(wal)
        }
        Err(error) => {
            unreadable(&format!("{}/{}", dir.wal_dir, error.file), &error.source, report);
            None
        }
    };
    let (snap, snap_points) = check_snaps(dir, settings.mode, report);
    let received = dir
        .entries
        .iter()
        .filter_map(|entry| SnapName::parse_db(entry.path.strip_prefix(SNAP_DIR)?.strip_prefix('/')?));
    let unreadable = unreadable_segment || is_unreadable(dir, SNAP_DIR, ".snap");
    LogFacts { mode, wal, wal_dir: dir.wal_dir.clone(), snap, snap_points, received: received.collect(), unreadable }
}

/// Reads the whole WAL if that is asked for and there is time for it, else its newest segment: all of it before a start.
fn scan(
    files: &[WalFile<'_>],
    options: &ScanOptions,
    mode: Mode,
    go_on: Option<&GoOn<'_>>,
) -> (Mode, Result<WalSummary, WalReadError>) {
    if mode == Mode::Full {
        match wal::scan_while(files, options, go_on.unwrap_or(&|| true)) {
            Ok(Some(whole)) => return (Mode::Full, Ok(whole)),
            Err(error) => return (Mode::Full, Err(error)),
            Ok(None) => {}
        }
    }
    let newest = if go_on.is_some() { wal::scan_newest_whole } else { wal::scan_newest };
    (Mode::Sanity, newest(files, options))
}

/// etcd passes over files that end as segments do and are not named as one.
fn check_names(dir: &DataDir<'_>, report: &mut Report) {
    for file in dir.wal_files().iter().filter(|file| SegmentName::parse(file.name).is_none()) {
        let what = "the name is not a WAL segment's, so etcd does not read it";
        report.add(Code::WalNames, Severity::Warning, Place::file(file.path), what);
    }
}

fn unreadable(path: &str, error: &ReadError, report: &mut Report) {
    let why = error.cause.as_ref().map_or_else(|| "the file ends before it".to_owned(), ToString::to_string);
    report.add(Code::Io, Severity::Error, Place::file(path).at(error.offset), format!("{error}: {why}"));
}

/// The quick look at every segment: names in order, the first records there and the same in all.
fn check_heads(files: &[Named<'_>], wal_dir: &str, report: &mut Report) {
    let names: Vec<_> = files.iter().filter_map(|file| SegmentName::parse(file.name)).collect();
    for problem in wal::check_order(&names) {
        report.add(Code::WalNames, severity(&WalProblem::Names(problem)), Place::file(wal_dir), problem.to_string());
    }
    let mut first = None;
    for file in files.iter().filter(|file| SegmentName::parse(file.name).is_some()) {
        let place = Place::file(file.path);
        match wal::head(file.source) {
            Err(error) => unreadable(file.path, &error, report),
            Ok(head) if head.crc.is_none() || head.metadata.is_none() => {
                report.add(Code::WalHeader, Severity::Error, place, "the segment does not begin as every segment does");
            }
            Ok(head) if *first.get_or_insert(head.metadata) != head.metadata => {
                report.add(
                    Code::WalHeader,
                    Severity::Error,
                    place,
                    "the segment belongs to another member than the first",
                );
            }
            Ok(_) => {}
        }
    }
}

fn report_wal(wal: &WalSummary, wal_dir: &str, report: &mut Report) {
    let place = |file: &str, offset| Place::file(format!("{wal_dir}/{file}")).at(offset);
    for found in &wal.problems {
        // The layout says it already.
        if found.problem != WalProblem::NoSegments {
            let what = found.problem.to_string();
            report.add(code_of(&found.problem), severity(&found.problem), place(&found.file, found.offset), what);
        }
    }
    if wal.problems_left_out > 0 {
        let what = format!("{} more problems", wal.problems_left_out);
        report.add(Code::WalEntries, Severity::Error, Place::file(wal_dir), what);
    }
    match &wal.tail {
        Tail::None | Tail::Clean { .. } => {}
        Tail::Torn { file, offset, dropped, damage } => {
            let what = format!("the log ends in a torn write ({damage}); a repair drops {dropped} bytes");
            report.add(Code::WalTornTail, Severity::Warning, place(file, *offset), what);
        }
        Tail::Corrupt(found) => {
            let what = format!("{}; this cannot be repaired", found.problem);
            report.add(Code::WalCorrupt, Severity::Error, place(&found.file, found.offset), what);
        }
    }
}

fn code_of(problem: &WalProblem) -> Code {
    match problem {
        WalProblem::Names(_) | WalProblem::NoSegments => Code::WalNames,
        WalProblem::NoCrcFirst
        | WalProblem::NoMetadataSecond
        | WalProblem::BadMetadata
        | WalProblem::MetadataConflict => Code::WalHeader,
        WalProblem::UnknownRecordType(_)
        | WalProblem::IrregularRecord
        | WalProblem::DirtyPadding
        | WalProblem::BadContent
        | WalProblem::DataAfterEnd => Code::WalCorrupt,
        WalProblem::UnknownEntryType { .. }
        | WalProblem::ImpossibleEntry { .. }
        | WalProblem::IndexGap { .. }
        | WalProblem::TermDecreases { .. }
        | WalProblem::CommittedOverwritten { .. }
        | WalProblem::LogStartsLate { .. }
        | WalProblem::NoSegmentForStart { .. }
        | WalProblem::UndecodableEntry { .. } => Code::WalEntries,
        WalProblem::StateBackwards { .. } | WalProblem::CommitBeyondLog { .. } | WalProblem::StateTermBehind { .. } => {
            Code::WalHardState
        }
    }
}

fn severity(problem: &WalProblem) -> Severity {
    match problem {
        WalProblem::DirtyPadding => Severity::Info,
        // Junk that etcd overwrites looks no different from a length that was zeroed and hides what follows.
        WalProblem::DataAfterEnd
        | WalProblem::IrregularRecord
        | WalProblem::StateTermBehind { .. }
        | WalProblem::Names(NameProblem::IndexBackwards { .. }) => Severity::Warning,
        // What etcd would start on and what no etcd ever wrote is damage all the same.
        _ => Severity::Error,
    }
}

/// All raft snapshots, or only the newest. etcd passes over a damaged one and takes the next older.
fn check_snaps(dir: &DataDir<'_>, mode: Mode, report: &mut Report) -> (Option<Snap>, Vec<SnapName>) {
    let mut newest = None;
    let mut points = Vec::new();
    for (age, file) in dir.snap_files().iter().rev().enumerate() {
        if mode == Mode::Sanity && newest.is_some() {
            break;
        }
        let severity = if age == 0 { Severity::Error } else { Severity::Warning };
        let place = Place::file(file.path);
        let Some(name) = SnapName::parse(file.name) else {
            report.add(Code::SnapName, Severity::Warning, place, "the name is not a raft snapshot's");
            continue;
        };
        let snap = match SnapFile::read(file.source) {
            Ok(snap) => snap,
            Err(error) => {
                report.add(Code::SnapInvalid, severity, place, error.to_string());
                continue;
            }
        };
        if snap.point != name {
            let what = format!("the content is of term {} and index {}", snap.point.term, snap.point.index);
            report.add(Code::SnapName, severity, place, what);
            continue;
        }
        points.push(name);
        if newest.is_none() {
            let store = check_store(&snap, &place, report);
            newest = Some(Snap { path: file.path.to_owned(), file: snap, store });
        }
    }
    (newest, points)
}

fn check_store(snap: &SnapFile, place: &Place, report: &mut Report) -> Option<V2Store> {
    match V2Store::read(snap.store_json()) {
        Ok(store) => {
            if store.user_keys > 0 {
                let what = format!("the v2 store holds {} keys of users", store.user_keys);
                report.add(Code::SnapStore, Severity::Warning, place.clone(), what);
            }
            Some(store)
        }
        Err(error) => {
            report.add(
                Code::SnapStore,
                Severity::Error,
                place.clone(),
                format!("the member list cannot be read: {error}"),
            );
            None
        }
    }
}
