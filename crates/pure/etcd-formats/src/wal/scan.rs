//! A whole WAL: all segments in order, from their names to the end of the last one.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::behind::find_hole;
use super::log::{ConfChangeEntry, Jump, Log, Place, SnapshotPoint, TermRuns};
use super::names::{NameProblem, SegmentName, check_order};
use super::problem::{Damage, Located, WalProblem};
use super::reader::{SegmentReader, Step, for_chunks};
use super::view::RecordType;
use crate::membership::{ClusterId, MemberId};
use crate::messages::{HardState, Metadata};
use crate::{ReadAt, ReadError};

/// Problems that are kept; more are only counted.
const PROBLEMS_MAX: usize = 256;

/// How far behind the end of the log is looked for bytes that should not be there.
const LOOK_BEHIND_BYTES: u64 = 64 << 10;

/// A file of a WAL directory.
#[derive(Clone, Copy)]
pub struct WalFile<'a> {
    /// Its name, without directories.
    pub name: &'a str,
    /// Its bytes.
    pub source: &'a dyn ReadAt,
}

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanOptions {
    /// The database's consistent index: committed entries above it must be decodable, as etcd will apply them.
    pub applied: Option<u64>,
}

/// A segment could not be read: nothing can be said of it.
#[derive(Debug, thiserror::Error)]
#[error("cannot read WAL segment `{file}`")]
pub struct WalReadError {
    /// Its name.
    pub file: String,
    #[source]
    pub source: ReadError,
}

/// One segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Its name, taken apart.
    pub name: SegmentName,
    /// The file's length.
    pub length: u64,
    /// Where its intact records end.
    pub end: u64,
    /// Intact records.
    pub records: u64,
    /// Records that were only stepped over; 0 when the whole segment was read.
    pub skipped: u64,
    /// Intact entries, overwritten ones included.
    pub entries: u64,
    /// The first entry's index.
    pub first_entry: Option<u64>,
    /// The last entry's index.
    pub last_entry: Option<u64>,
}

/// How the log ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// There is no segment.
    None,
    /// With its last record.
    Clean { file: String, end: u64 },
    /// With a write that did not reach the disk whole. etcd cuts it off when it starts.
    Torn {
        file: String,
        /// Everything before is good.
        offset: u64,
        /// Bytes from there to the last one that is not zero: what the cut drops.
        dropped: u64,
        damage: Damage,
    },
    /// In the middle: a record cannot be read and nothing repairs it, or intact records follow a hole. They do not count.
    Corrupt(Located<Damage>),
}

/// What a WAL says.
#[derive(Debug, Clone)]
pub struct WalSummary {
    /// The segments that were read, in order.
    pub segments: Vec<SegmentSummary>,
    /// Whose log it is.
    pub metadata: Option<Metadata>,
    /// Snapshot marks in the order they were written; the oldest are left out when there are thousands.
    pub snapshots: Vec<SnapshotPoint>,
    /// How many were left out.
    pub snapshots_left_out: u64,
    /// The last hard state.
    pub hard_state: Option<HardState>,
    /// The lowest entry.
    pub first_entry: Option<u64>,
    /// Index and term of the last entry.
    pub last_entry: Option<(u64, u64)>,
    /// Changes of membership that were not overwritten.
    pub conf_changes: Vec<ConfChangeEntry>,
    /// How many more there are.
    pub conf_changes_left_out: u64,
    /// Where the log skips entries.
    pub jumps: Vec<Jump>,
    /// Indexes of the normal entries in the form of the v2 API, ascending; the lowest are left out when there are thousands.
    pub v2: Vec<u64>,
    /// How the log ends.
    pub tail: Tail,
    /// What is wrong with it, besides its tail.
    pub problems: Vec<Located<WalProblem>>,
    /// How many more problems there are.
    pub problems_left_out: u64,
    terms: TermRuns,
    start: Option<SnapshotPoint>,
}

impl WalSummary {
    /// The member whose log it is.
    pub fn member_id(&self) -> Option<MemberId> {
        self.metadata.map(|metadata| MemberId(metadata.node_id()))
    }

    /// The cluster it belongs to.
    pub fn cluster_id(&self) -> Option<ClusterId> {
        self.metadata.map(|metadata| ClusterId(metadata.cluster_id()))
    }

    /// Everything up to here is committed.
    pub fn commit(&self) -> u64 {
        self.hard_state.map_or(0, |state| state.commit())
    }

    /// The newest snapshot mark that is committed: where 3.7 starts from, and 3.4 to 3.6 if they find its `.snap`.
    pub fn start(&self) -> Option<&SnapshotPoint> {
        self.start.as_ref()
    }

    /// Snapshot marks that etcd may start from.
    pub fn candidates(&self) -> impl Iterator<Item = &SnapshotPoint> {
        self.snapshots.iter().filter(|point| point.index <= self.commit())
    }

    /// The last index that the log knows of: its last entry, or the snapshot it starts from.
    pub fn last_index(&self) -> u64 {
        let start = self.start.as_ref().map_or(0, |point| point.index);
        self.last_entry.map_or(start, |(index, _)| index.max(start))
    }

    /// The term of an entry, if the log holds it or a snapshot mark stands for it.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        let marked = self.snapshots.iter().rev().find(|point| point.index == index && index != 0);
        let skipped = self.jumps.iter().any(|jump| jump.after < index && index < jump.next);
        let logged = if skipped { None } else { self.terms.at(index) };
        logged.or(marked.map(|point| point.term))
    }

    /// Whether every entry after `index` up to the last one is there, so that etcd can start from a snapshot at `index`.
    pub fn continues_from(&self, index: u64) -> bool {
        let reaches_back = self.first_entry.is_none_or(|first| first <= index.saturating_add(1));
        reaches_back && self.jumps.iter().all(|jump| jump.next <= index.saturating_add(1))
    }

    /// Entries in the form of the v2 API that a start reads: those behind the newest snapshot mark that is committed. etcd
    /// 3.7 panics on each of them.
    pub fn v2_behind_start(&self) -> &[u64] {
        let start = self.start.as_ref().map_or(0, |point| point.index);
        self.v2.get(self.v2.partition_point(|index| *index <= start)..).unwrap_or_default()
    }

    /// Whether all that could be read was read: false after damage in the middle.
    pub fn is_complete(&self) -> bool {
        !matches!(self.tail, Tail::Corrupt(_))
    }
}

/// Reads all segments among `files`, in the order of their names.
pub fn scan(files: &[WalFile<'_>], options: &ScanOptions) -> Result<WalSummary, WalReadError> {
    let mut scan = named(files, options);
    scan.read(&in_order(files), &|| true)?;
    Ok(scan.finish(true))
}

/// The same for as long as `go_on` says so, which is asked before each segment. `None`: it said no, and half a log says
/// nothing.
pub fn scan_while(
    files: &[WalFile<'_>],
    options: &ScanOptions,
    go_on: &dyn Fn() -> bool,
) -> Result<Option<WalSummary>, WalReadError> {
    let mut scan = named(files, options);
    Ok(scan.read(&in_order(files), go_on)?.then(|| scan.finish(true)))
}

/// A scan that has looked at the names.
fn named(files: &[WalFile<'_>], options: &ScanOptions) -> Scan {
    let segments = in_order(files);
    let names: Vec<SegmentName> = segments.iter().map(|(name, _)| *name).collect();
    let mut scan = Scan::new(options);
    for problem in check_order(&names) {
        let found = match problem {
            NameProblem::Gap { found, .. }
            | NameProblem::Twice { found }
            | NameProblem::IndexBackwards { found, .. } => found,
        };
        scan.problems.add(found.to_string(), 0, WalProblem::Names(problem));
    }
    scan
}

/// How many records at the beginning of a segment are read before the look skips to its end: CRC, metadata, state.
const HEAD_RECORDS: u64 = 3;

/// A quick look at the newest segment: its first three records and its last ones (a thousand records or 4 MiB). That
/// is enough for the ids, the hard state, the last entry and the tail. What lies between is stepped over by its length
/// fields ([`SegmentSummary::skipped`]); what needs the older segments (gaps, snapshots they mark, the CRC that links
/// them) is not judged.
pub fn scan_newest(files: &[WalFile<'_>], options: &ScanOptions) -> Result<WalSummary, WalReadError> {
    let segments = in_order(files);
    let newest = segments.last().map(std::slice::from_ref).unwrap_or_default();
    let mut scan = Scan { quick: true, ..Scan::new(options) };
    scan.read(newest, &|| true)?;
    Ok(scan.finish(false))
}

/// The same for a start: every record of the newest segment is read. etcd cuts that one by itself where it finds a hole.
pub fn scan_newest_whole(files: &[WalFile<'_>], options: &ScanOptions) -> Result<WalSummary, WalReadError> {
    let segments = in_order(files);
    let newest = segments.last().map(std::slice::from_ref).unwrap_or_default();
    let mut scan = Scan::new(options);
    scan.read(newest, &|| true)?;
    Ok(scan.finish(false))
}

fn in_order<'a>(files: &[WalFile<'a>]) -> Vec<(SegmentName, WalFile<'a>)> {
    let named = files.iter().filter_map(|file| Some((SegmentName::parse(file.name)?, *file)));
    let mut segments: Vec<_> = named.collect();
    segments.sort_by_key(|(name, _)| *name);
    segments
}

/// The first records of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The CRC that the segment continues.
    pub crc: Option<u32>,
    /// Whose log it is.
    pub metadata: Option<Metadata>,
}

/// Reads a segment's first two records. What is not there, or not intact, is absent from the answer.
pub fn head(source: &dyn ReadAt) -> Result<Head, ReadError> {
    let mut reader = SegmentReader::brief(source);
    let mut head = Head { crc: None, metadata: None };
    let Step::Record { record, .. } = reader.step()? else { return Ok(head) };
    if RecordType::of(record.kind) != Some(RecordType::Crc) {
        return Ok(head);
    }
    head.crc = Some(record.crc);
    if let Step::Record { record, .. } = reader.step()?
        && RecordType::of(record.kind) == Some(RecordType::Metadata)
    {
        head.metadata = prost::Message::decode(record.data.unwrap_or_default()).ok();
    }
    Ok(head)
}

/// Problems with a limit.
#[derive(Default)]
struct Problems {
    kept: Vec<Located<WalProblem>>,
    left_out: u64,
}

impl Problems {
    fn add(&mut self, file: String, offset: u64, problem: WalProblem) {
        if self.kept.len() < PROBLEMS_MAX {
            self.kept.push(Located { file, offset, problem });
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }
}

struct Scan {
    /// Whether only the beginning and the end of a segment are read.
    quick: bool,
    log: Log,
    problems: Problems,
    segments: Vec<SegmentSummary>,
    tail: Tail,
}

impl Scan {
    fn new(options: &ScanOptions) -> Scan {
        let log = Log { applied: options.applied, ..Log::default() };
        Scan { quick: false, log, problems: Problems::default(), segments: Vec::new(), tail: Tail::None }
    }

    /// `false`: told to end before all was read.
    fn read(
        &mut self,
        segments: &[(SegmentName, WalFile<'_>)],
        go_on: &dyn Fn() -> bool,
    ) -> Result<bool, WalReadError> {
        let mut crc = None;
        for (place, (name, file)) in segments.iter().enumerate() {
            if !go_on() {
                return Ok(false);
            }
            let is_last = place.saturating_add(1) == segments.len();
            let mut reader = SegmentReader::new(file.source, crc, is_last);
            let result = self.segment(*name, file, &mut reader);
            result.map_err(|source| WalReadError { file: file.name.to_owned(), source })?;
            if !matches!(self.tail, Tail::Clean { .. }) {
                break;
            }
            crc = reader.crc();
        }
        Ok(true)
    }

    fn segment(
        &mut self,
        name: SegmentName,
        file: &WalFile<'_>,
        reader: &mut SegmentReader<'_>,
    ) -> Result<(), ReadError> {
        let mut summary = SegmentSummary {
            name,
            length: file.source.len(),
            end: 0,
            records: 0,
            skipped: 0,
            entries: 0,
            first_entry: None,
            last_entry: None,
        };
        let file_name = || name.to_string();
        let segment = self.segments.len();
        let tail = loop {
            if self.quick && summary.records == HEAD_RECORDS {
                summary.skipped = reader.skip_to_last()?;
            }
            let crc = reader.crc();
            let hole = |offset| find_hole(file.source, offset, crc);
            let (offset, record, clean_frame) = match reader.step()? {
                Step::Record { offset, record, clean_frame } => (offset, record, clean_frame),
                Step::End { offset } => {
                    summary.end = offset;
                    break match hole(offset)? {
                        Some(problem) => Tail::Corrupt(Located { file: file_name(), offset, problem }),
                        None => Tail::Clean { file: file_name(), end: offset },
                    };
                }
                Step::Torn { offset, damage } => {
                    summary.end = offset;
                    if let Some(problem) = hole(offset)? {
                        break Tail::Corrupt(Located { file: file_name(), offset, problem });
                    }
                    let dropped = bytes_in_use(file.source, offset)?.saturating_sub(offset);
                    break Tail::Torn { file: file_name(), offset, dropped, damage };
                }
                Step::Damaged { offset, damage } => {
                    summary.end = offset;
                    break Tail::Corrupt(Located { file: file_name(), offset, problem: damage });
                }
            };
            let problems = &mut self.problems;
            let mut problem = |problem| problems.add(name.to_string(), offset, problem);
            if !clean_frame {
                problem(WalProblem::DirtyPadding);
            }
            check_header(summary.records, record.kind, &mut problem);
            summary.records = summary.records.saturating_add(1);
            if let Some(index) = self.log.take(Place { segment, offset }, &record, &mut problem) {
                summary.entries = summary.entries.saturating_add(1);
                summary.first_entry = summary.first_entry.or(Some(index));
                summary.last_entry = Some(index);
            }
        };
        if matches!(tail, Tail::Clean { .. }) {
            self.look_behind(name, file.source, &summary)?;
        }
        self.segments.push(summary);
        self.tail = tail;
        Ok(())
    }

    /// What a segment lacks when its records end, and what should not follow them.
    fn look_behind(
        &mut self,
        name: SegmentName,
        source: &dyn ReadAt,
        summary: &SegmentSummary,
    ) -> Result<(), ReadError> {
        match summary.records {
            0 => self.problems.add(name.to_string(), summary.end, WalProblem::NoCrcFirst),
            1 => self.problems.add(name.to_string(), summary.end, WalProblem::NoMetadataSecond),
            _ => {}
        }
        let until = summary.end.saturating_add(LOOK_BEHIND_BYTES).min(summary.length);
        let mut dirty = false;
        for_chunks(source, summary.end, until, |_, bytes| dirty |= bytes.iter().any(|&byte| byte != 0))?;
        if dirty {
            self.problems.add(name.to_string(), summary.end, WalProblem::DataAfterEnd);
        }
        Ok(())
    }

    fn finish(mut self, whole: bool) -> WalSummary {
        let names: Vec<SegmentName> = self.segments.iter().map(|segment| segment.name).collect();
        let problems = &mut self.problems;
        let mut problem = |place: Option<Place>, problem| {
            let file = place.and_then(|place| names.get(place.segment)).map(SegmentName::to_string);
            problems.add(file.unwrap_or_default(), place.map_or(0, |place| place.offset), problem);
        };
        let complete = !matches!(self.tail, Tail::Corrupt(_));
        if names.is_empty() {
            problem(None, WalProblem::NoSegments);
        }
        if complete && whole {
            self.log.conclude(&mut problem);
            let start = self.log.start().map_or(0, |point| point.index);
            if let Some(&oldest) = names.first().filter(|name| name.index > start) {
                let place = Place { segment: 0, offset: 0 };
                problem(Some(place), WalProblem::NoSegmentForStart { start, oldest });
            }
        }
        if complete {
            self.log.conclude_end(&mut problem);
        }
        let start = self.log.start().cloned();
        let log = self.log;
        WalSummary {
            segments: self.segments,
            metadata: log.metadata.map(|(_, metadata)| metadata),
            snapshots: log.snapshots.into(),
            snapshots_left_out: log.snapshots_left_out,
            hard_state: log.state.map(|(_, state)| state),
            first_entry: log.first.map(|(_, index)| index),
            last_entry: log.last,
            conf_changes: log.conf_changes,
            conf_changes_left_out: log.conf_changes_left_out,
            jumps: log.jumps.into_iter().map(|(_, jump)| jump).collect(),
            v2: log.v2.into(),
            tail: self.tail,
            problems: self.problems.kept,
            problems_left_out: self.problems.left_out,
            terms: log.terms,
            start,
        }
    }
}

/// Every segment begins with its CRC and whose log it is.
fn check_header(records_before: u64, kind: u64, problem: &mut impl FnMut(WalProblem)) {
    match (records_before, RecordType::of(kind)) {
        (0, Some(RecordType::Crc)) | (1, Some(RecordType::Metadata)) => {}
        (0, _) => problem(WalProblem::NoCrcFirst),
        (1, _) => problem(WalProblem::NoMetadataSecond),
        _ => {}
    }
}

/// Where the last byte that is not zero ends.
fn bytes_in_use(source: &dyn ReadAt, from: u64) -> Result<u64, ReadError> {
    let mut end = from;
    for_chunks(source, from, source.len(), |at, bytes| {
        if let Some(last) = bytes.iter().rposition(|&byte| byte != 0) {
            end = at.saturating_add(last as u64).saturating_add(1);
        }
    })?;
    Ok(end)
}
