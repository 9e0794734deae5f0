//! Everything that can be wrong with a WAL, as values with a place.

use std::fmt;

use super::names::{NameProblem, SegmentName};

/// A problem and where it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<P> {
    /// The segment's file name.
    pub file: String,
    /// Where the record begins; 0 for what concerns the file as a whole.
    pub offset: u64,
    /// What is wrong there.
    pub problem: P,
}

/// Why a record cannot be read. Reading ends there, for etcd as for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// The record is not protobuf.
    Undecodable,
    /// The data does not match the running CRC.
    Crc { stored: u32, computed: u32 },
    /// A CRC record does not continue the chain: the bytes before it, or whole segments, are not those that were written.
    Chain { stored: u32, computed: u32 },
    /// The record (or its length field) goes on beyond the end of the file.
    BeyondEnd { length: u64 },
    /// Bytes are missing, and intact records follow at `until`: no torn write, but a hole in the middle of the log.
    Hole {
        /// Where the first intact record behind the hole begins.
        until: u64,
        /// How many follow each other from there; 0 where there are too many that look like records to prove one.
        records: u64,
        /// The lowest and the highest entry among them.
        entries: Option<(u64, u64)>,
    },
}

/// What is wrong with a log whose records can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WalProblem {
    /// The names of the segments do not form a sequence.
    Names(NameProblem),
    /// There is no segment at all.
    NoSegments,
    /// The first record of a segment is not a CRC record.
    NoCrcFirst,
    /// The second record of a segment is not metadata.
    NoMetadataSecond,
    /// Metadata that is not {node id, cluster id}.
    BadMetadata,
    /// The metadata differs from that of the segments before.
    MetadataConflict,
    /// A record type that etcd does not know; it stops on it.
    UnknownRecordType(u64),
    /// etcd reads this record, but never writes one like it: bytes that no CRC covers have been changed.
    IrregularRecord,
    /// Padding behind a record, or unused bits of its length field, are not as etcd writes them. It does not look at them.
    DirtyPadding,
    /// A hard state, snapshot mark or entry whose content is not one, although its CRC is right.
    BadContent,
    /// An entry type that etcd stops on.
    UnknownEntryType { index: u64, kind: u64 },
    /// An entry that cannot be part of any log: index or term 0.
    ImpossibleEntry { index: u64, term: u64 },
    /// Entries are missing between `after` and `next`, and no snapshot covers them.
    IndexGap { after: u64, next: u64 },
    /// An entry's term is below that of the entry before it.
    TermDecreases { index: u64, term: u64, before: u64 },
    /// An entry was written again although it had been committed.
    CommittedOverwritten { index: u64, commit: u64 },
    /// The hard state went backwards.
    StateBackwards { term: u64, commit: u64 },
    /// The hard state commits more than the log holds.
    CommitBeyondLog { commit: u64, last: u64 },
    /// The hard state's term is below that of the last entry (0 when there is none). Possible after a torn write.
    StateTermBehind { term: u64, last_term: u64 },
    /// The log does not reach back to the snapshot it starts from.
    LogStartsLate { first: u64, start: u64 },
    /// No segment is named for the index that the log starts from.
    NoSegmentForStart { start: u64, oldest: SegmentName },
    /// A committed entry that is not applied yet cannot be decoded; etcd panics on it.
    UndecodableEntry { index: u64 },
    /// Bytes that are not zero follow the end of the log. etcd overwrites them. Left-overs of a torn write look like this,
    /// and so does a length field that was set to zero in the middle of the log.
    DataAfterEnd,
}

impl WalProblem {
    /// Whether etcd refuses to start, or fails right after, because of it.
    pub fn stops_etcd(&self) -> bool {
        match self {
            WalProblem::Names(NameProblem::IndexBackwards { .. }) => false,
            WalProblem::Names(_)
            | WalProblem::NoSegments
            | WalProblem::BadMetadata
            | WalProblem::MetadataConflict
            | WalProblem::UnknownRecordType(_)
            | WalProblem::BadContent
            | WalProblem::UnknownEntryType { .. }
            | WalProblem::ImpossibleEntry { .. }
            | WalProblem::IndexGap { .. }
            | WalProblem::CommitBeyondLog { .. }
            | WalProblem::LogStartsLate { .. }
            | WalProblem::NoSegmentForStart { .. }
            | WalProblem::UndecodableEntry { .. } => true,
            WalProblem::NoCrcFirst
            | WalProblem::NoMetadataSecond
            | WalProblem::IrregularRecord
            | WalProblem::DirtyPadding
            | WalProblem::TermDecreases { .. }
            | WalProblem::CommittedOverwritten { .. }
            | WalProblem::StateBackwards { .. }
            | WalProblem::StateTermBehind { .. }
            | WalProblem::DataAfterEnd => false,
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Undecodable => f.write_str("the record cannot be decoded"),
            Damage::Crc { stored, computed } => {
                write!(f, "the record has CRC `{computed:08x}`, the log says `{stored:08x}`")
            }
            Damage::Chain { stored, computed } => {
                write!(f, "the log so far has CRC `{computed:08x}`, the record says `{stored:08x}`")
            }
            Damage::BeyondEnd { length } => write!(f, "a record of {length} bytes goes beyond the end of the file"),
            Damage::Hole { until, records: 0, .. } => {
                write!(f, "the log has a hole here, and bytes that look like records follow at {until}")
            }
            Damage::Hole { until, records, entries: None } => {
                write!(f, "the log has a hole here, and {records} intact records follow at {until}")
            }
            Damage::Hole { until, records, entries: Some((low, high)) } => {
                write!(f, "the log has a hole here, and {records} intact records follow at {until}, ")?;
                write!(f, "with entries {low} to {high}")
            }
        }
    }
}

impl fmt::Display for NameProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameProblem::Gap { expected, found } => {
                write!(f, "segment {expected} is missing before `{found}`")
            }
            NameProblem::Twice { found } => write!(f, "`{found}` has the sequence number of another segment"),
            NameProblem::IndexBackwards { before, found } => {
                write!(f, "`{found}` claims to begin before `{before}` does")
            }
        }
    }
}

impl fmt::Display for WalProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WalProblem::Names(problem) => problem.fmt(f),
            WalProblem::NoSegments => f.write_str("there is no WAL segment"),
            WalProblem::NoCrcFirst => f.write_str("the segment does not begin with a CRC record"),
            WalProblem::NoMetadataSecond => f.write_str("the segment's second record is not metadata"),
            WalProblem::BadMetadata => f.write_str("the metadata does not name a member and a cluster"),
            WalProblem::MetadataConflict => f.write_str("the metadata differs from that of earlier segments"),
            WalProblem::UnknownRecordType(kind) => write!(f, "the record has the unknown type {kind}"),
            WalProblem::IrregularRecord => f.write_str("the record is not written as etcd writes it"),
            WalProblem::DirtyPadding => f.write_str("the record's padding is not as etcd writes it"),
            WalProblem::BadContent => f.write_str("the record's content cannot be decoded although its CRC is right"),
            WalProblem::UnknownEntryType { index, kind } => write!(f, "entry {index} has the unknown type {kind}"),
            WalProblem::ImpossibleEntry { index, term } => write!(f, "entry {index} of term {term} cannot exist"),
            WalProblem::IndexGap { after, next } => write!(f, "entry {next} follows entry {after}"),
            WalProblem::TermDecreases { index, term, before } => {
                write!(f, "entry {index} has term {term}, the one before it {before}")
            }
            WalProblem::CommittedOverwritten { index, commit } => {
                write!(f, "entry {index} is written again although entries up to {commit} were committed")
            }
            WalProblem::StateBackwards { term, commit } => {
                write!(f, "the hard state goes back to term {term}, commit {commit}")
            }
            WalProblem::CommitBeyondLog { commit, last } => {
                write!(f, "entries up to {commit} are committed, the log ends at {last}")
            }
            WalProblem::StateTermBehind { term, last_term } => {
                write!(f, "the hard state has term {term}, the last entry {last_term}")
            }
            WalProblem::LogStartsLate { first, start } => {
                write!(f, "the log begins with entry {first}, the snapshot it continues ends at {start}")
            }
            WalProblem::NoSegmentForStart { start, oldest } => {
                write!(f, "no segment covers index {start}: the oldest is `{oldest}`")
            }
            WalProblem::UndecodableEntry { index } => {
                write!(f, "entry {index} is committed, not applied yet, and cannot be decoded")
            }
            WalProblem::DataAfterEnd => f.write_str("bytes that are not zero follow the end of the log"),
        }
    }
}
