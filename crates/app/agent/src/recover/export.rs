//! Exports what was written to a recovered cluster that lost against another recovery of the same generation.
//!
//! **Rule:** the data dir is only read; the file has its name once it is whole and durable; one that is there is left alone.

use std::path::PathBuf;

use quorate_etcd::datadir::{self, Found};
use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::dir::InUse;
use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::mvcc::{KeyValue, Revision, RevisionKey};
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, RealDisk};
use quorate_plan::ledger::{Ledger, LedgerSeen};
use serde::Serialize;

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

/// Writes every write since the recovery into a file of the state dir, one JSON object per line. None where this node never learned which
/// revision the recovered cluster began with: other members export the same.
pub(crate) fn export_writes(node: &Node, ledger: &LedgerSeen) -> Result<Option<PathBuf>, Fault> {
    let LedgerSeen::There(ledger) = ledger else { return Ok(None) };
    let began = match ledger.recovered_at() {
        Some(revision) => Some(revision),
        None => recovered_at(node, ledger)?,
    };
    let (Some(began), Some(cluster)) = (began, ledger.cluster()) else { return Ok(None) };
    let path = node.state_path().join(format!("writes-of-generation-{}-{cluster}.jsonl", ledger.generation));
    if path.exists() {
        return Ok(Some(path));
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
    Ok(Some(path))
}
