//! Exports what was written to a recovered cluster that lost against another recovery of the same generation.
//!
//! **Rule:** the data dir is only read; the file has its name once it is whole and durable; one that is there is left alone; what is
//! missing from it is reported.

use std::path::PathBuf;

use quorate_etcd::aside::ensure_file;
use quorate_etcd::datadir::{self, Found};
use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::dir::InUse;
use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::mvcc::{KeyValue, Revision, RevisionKey};
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, RealDisk};
use quorate_plan::ledger::{Ledger, LedgerSeen};
use serde::Serialize;

use super::copy;
use super::journal::{Progress, RecoveryNow, begins_at, observe_progress};
use crate::turn::Node;

/// Bytes that are written at once.
const PIECE_BYTES: usize = 1 << 20;

/// One write.
#[derive(Serialize)]
struct Line {
    revision: u64,
    sub: u64,
    deleted: bool,
    key_hex: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    value_hex: String,
}

/// The revision that the recovered cluster of this node began with, where this node began it.
pub(crate) fn recovered_at(node: &Node, ledger: &Ledger) -> Result<Option<u64>, Fault> {
    let now = observe_progress(node.state_path())?.filter(|now| now.order.generation == ledger.generation);
    let Some(RecoveryNow { order, progress: Progress::Done { revision: Some(restored), cluster, .. } }) = now else {
        return Ok(None);
    };
    Ok((cluster.is_some() && cluster == ledger.cluster()).then(|| begins_at(&order, restored)))
}

/// A file of writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exported {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Which writes since the recovery are not in it.
    pub(crate) missing: Vec<String>,
}

/// Writes every write since the recovery that the database holds into a file of the state dir, one JSON object per line, and what is missing
/// from it into another one. None where this node never learned which revision the recovered cluster began with: other members export the same.
pub(crate) fn export_writes(node: &Node, ledger: &LedgerSeen) -> Result<Option<Exported>, Fault> {
    let LedgerSeen::There(ledger) = ledger else { return Ok(None) };
    let began = match ledger.recovered_at() {
        Some(revision) => Some(revision),
        None => recovered_at(node, ledger)?,
    };
    let (Some(began), Some(cluster)) = (began, ledger.cluster()) else { return Ok(None) };
    let path = node.state_path().join(format!("writes-of-generation-{}-{cluster}.jsonl", ledger.generation));
    let notes = path.with_extension("missing.txt");
    if let (true, Ok(text)) = (path.exists(), std::fs::read_to_string(&notes)) {
        return Ok(Some(Exported { path, missing: text.lines().map(str::to_owned).collect() }));
    }
    let target = &node.target;
    let attempt = || format!("cannot export the writes in `{}`", target.data_dir().display());
    let Found::DataDir(open) = datadir::open(target.data_dir(), target.wal_dir())? else {
        return Err(datadir::not_etcd(attempt(), "it is a file"));
    };
    let view = open.view();
    if view.in_use != InUse::No {
        return Err(Fault::new(Code::DataInUse, format!("{}: an etcd works on it", attempt())));
    }
    let Some(file) = view.db() else { return Err(datadir::not_etcd(attempt(), "there is no database")) };
    let unread = |error: String| Fault::new(Code::NotEtcdData, attempt()).caused_by(error);
    let db = Db::open(file.source).map_err(|error| unread(error.to_string()))?;
    let buckets = db.buckets().map_err(|error| unread(error.to_string()))?;
    let facts = Facts::read(&db, &buckets).map_err(|error| unread(error.to_string()))?;
    let end = copy::scan(&view).ok().map(|(_, end)| end.index);
    let compacted = facts.scheduled_compact.max(facts.finished_compact);
    let missing = missing(facts.consistent_index, end, compacted, began);
    ensure_file(&RealDisk, &notes, missing.iter().map(|line| format!("{line}\n")).collect::<String>().as_bytes())?;
    // An earlier release exported it, and recorded nothing about it.
    if path.exists() {
        return Ok(Some(Exported { path, missing }));
    }
    let partial = path.with_extension("partial-0");
    RealDisk.remove_partial(&partial)?;
    let mut written = RealDisk.create_file(&partial, Access::mode(0o600))?;
    let first = Revision { main: began.saturating_add(1), sub: 0 };
    let lower = RevisionKey { revision: first, tombstone: false }.encode();
    let (mut piece, mut failed) = (Vec::new(), None);
    for (_, bucket) in buckets.iter().filter(|(name, _)| name == b"key") {
        let visited = db.for_each_from(bucket, &lower, |key, value| {
            let Some((at, kv)) = RevisionKey::decode(key).zip(KeyValue::decode(value)) else { return };
            if at.revision < first || failed.is_some() {
                return;
            }
            let line = Line {
                revision: at.revision.main,
                sub: at.revision.sub,
                deleted: at.tombstone,
                key_hex: hex(kv.key),
                value_hex: hex(kv.value),
            };
            piece.extend(serde_json::to_vec(&line).unwrap_or_default());
            piece.push(b'\n');
            if piece.len() >= PIECE_BYTES {
                failed = written.write_all(&piece).err();
                piece.clear();
            }
        });
        visited.map_err(|error| unread(error.to_string()))?;
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    written.write_all(&piece)?;
    written.sync()?;
    RealDisk.rename_new(&partial, &path)?;
    RealDisk.sync_dir(node.state_path())?;
    Ok(Some(Exported { path, missing }))
}

/// Which writes since revision `began` a database lacks that holds the log up to entry `applied`. The log ends with entry `end`.
fn missing(applied: Option<u64>, end: Option<u64>, compacted: Option<u64>, began: u64) -> Vec<String> {
    let mut missing = Vec::new();
    match (applied, end) {
        (Some(applied), Some(end)) if applied >= end => {}
        (Some(applied), Some(end)) => missing.push(format!(
            "up to {} log entries that were not applied, after entry {applied}; the WAL in the data dir holds them",
            end - applied
        )),
        (_, None) => missing.push("log entries that were not applied: the WAL cannot be read to its end".to_owned()),
        (None, Some(end)) => missing.push(format!(
            "log entries that were not applied: the database does not record how many of the {end} it holds"
        )),
    }
    if let Some(compacted) = compacted.filter(|compacted| *compacted > began) {
        missing.push(format!("values superseded before revision {compacted}, which were compacted"));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_unapplied_entries_and_compacted_values() {
        assert_eq!(missing(Some(40), Some(40), Some(1_000), 1_000), Vec::<String>::new(), "stopped in order");
        let killed = missing(Some(37), Some(40), Some(1_020), 1_000);
        assert_eq!(killed.len(), 2);
        assert!(killed[0].starts_with("up to 3 log entries that were not applied, after entry 37"), "{killed:?}");
        assert!(killed[1].starts_with("values superseded before revision 1020"), "{killed:?}");
        for (applied, end) in [(None, Some(40)), (Some(37), None), (None, None)] {
            assert_eq!(missing(applied, end, None, 1_000).len(), 1, "{applied:?} {end:?}");
        }
    }
}
