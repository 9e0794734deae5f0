//! Whether a release of etcd can start on what an earlier one has written.

use quorate_faults::{Code, Place, Severity};

use super::Report;
use crate::dir::DataDir;
use crate::wal::{self, ScanOptions, Tail, WalFile, WalReadError};

/// The first release that reads no entries in the form of the v2 API.
pub const WITHOUT_V2: (u64, u64) = (3, 7);

/// Entries of a log that a start would read and that are in the form of the v2 API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum V2Entries {
    /// How many, and the last one; behind which raft snapshot, and up to which entry.
    Known { count: u64, last: Option<u64>, snapshot: u64, end: u64 },
    /// The log cannot be read to its end.
    Unknown(String),
}

impl V2Entries {
    /// None at all.
    pub const NONE: V2Entries = V2Entries::Known { count: 0, last: None, snapshot: 0, end: 0 };
}

/// Looks for entries in the form of the v2 API. `files`: all files of the WAL. It may be that of a running etcd.
pub fn v2_entries(files: &[WalFile<'_>]) -> Result<V2Entries, WalReadError> {
    let log = wal::scan(files, &ScanOptions::default())?;
    Ok(match &log.tail {
        Tail::None => V2Entries::NONE,
        Tail::Corrupt(found) => V2Entries::Unknown(format!("`{}`: {}", found.file, found.problem)),
        Tail::Clean { .. } | Tail::Torn { .. } => {
            let behind = log.v2_behind_start();
            let (count, last) = (behind.len() as u64, behind.last().copied());
            let snapshot = log.start().map_or(0, |point| point.index);
            V2Entries::Known { count, last, snapshot, end: log.last_index() }
        }
    })
}

/// Adds to a report what keeps etcd of this minor version (`(3, 7)`) from starting on a data dir.
pub fn check_release(dir: &DataDir<'_>, minor: (u64, u64), report: &mut Report) {
    if minor < WITHOUT_V2 {
        return;
    }
    let named = dir.wal_files();
    let files: Vec<_> = named.iter().map(|file| WalFile { name: file.name, source: file.source }).collect();
    let (major, minor) = minor;
    let what = match v2_entries(&files) {
        Ok(V2Entries::Known { count: 0, .. }) => return,
        Ok(V2Entries::Known { count, last, .. }) => {
            let last = last.map(|last| format!(", the last is entry {last}")).unwrap_or_default();
            format!(
                "entries behind the newest raft snapshot that etcd {major}.{minor} cannot read, written by 3.5 or earlier: {count}{last}"
            )
        }
        Ok(V2Entries::Unknown(why)) => format!("whether etcd {major}.{minor} can read its entries is not known: {why}"),
        Err(error) => format!("whether etcd {major}.{minor} can read its entries is not known: {error}"),
    };
    report.add(Code::UpgradeOldEntries, Severity::Error, Place::file(dir.wal_dir.clone()), what);
    report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
}
