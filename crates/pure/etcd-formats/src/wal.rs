//! The write-ahead log: its files, their records, and the raft log that the records tell.
//!
//! ```text
//! names     file names, their order, what else lies in the dir
//! frame     length field and padding around a record
//! writer    records -> bytes
//! view      records and entries, borrowed from the bytes they stand in
//! reader    one segment, record by record, CRC checked, in bounded memory
//! behind    intact records behind a hole: damage, and no torn write
//! log       what a sequence of records says: entries, terms, hard state, snapshots
//! scan      all segments, from names to tail
//! problem   everything that can be wrong, as values
//! ```
//!
//! **Invariant:** a reader holds at most one record of 8 MiB; longer ones are checked as they stream by.

mod behind;
mod frame;
mod log;
mod names;
mod problem;
mod reader;
mod scan;
mod view;
mod writer;

pub use behind::find_hole;
pub use log::{ConfChangeEntry, Jump, SnapshotPoint};
pub(crate) use names::hex16;
pub use names::{NameProblem, SegmentName, WalFileKind, check_order};
pub use problem::{Damage, Located, WalProblem};
pub use reader::{SegmentReader, Step};
pub use scan::{
    Head, ScanOptions, SegmentSummary, Tail, WalFile, WalReadError, WalSummary, head, scan, scan_newest,
    scan_newest_whole, scan_while,
};
pub use view::{EntryView, RecordType, RecordView};
pub use writer::WalWriter;
