//! Uploads what waits in the spool of this node, so that a recovery from the backup has it.
//!
//! **Rule:** a spool that its writer works on is left to the writer, which receives the request to store what it recorded; a
//! segment stays until the store has it.

use std::path::Path;
use std::time::{Duration, Instant};

use quorate_backup::spool::observe_waiting;
use quorate_etcd::aside::ensure_file;
use quorate_etcd::ledger::observe_ledger;
use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::ledger::LedgerSeen;
use serde::{Deserialize, Serialize};

use crate::backups::spooled::flush;
use crate::turn::Node;

/// The record of what was uploaded, in the state dir.
const FILE: &str = "recovery-upload.json";
/// How long the writer of backups may take to store what it recorded.
const WRITER_LIMIT: Duration = Duration::from_secs(10);
const WRITER_POLL: Duration = Duration::from_millis(200);

/// What was uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploaded {
    /// First revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    /// Last revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
}

/// Uploads all of it, or returns why the store did not take the rest. `order_backup`: has the writer of backups of this node store what it
/// recorded, where it works on the spool because the cluster serves.
pub(crate) fn upload(node: &Node, order_backup: &dyn Fn(u64)) -> Result<Uploaded, Fault> {
    let began = Instant::now();
    let last = observe_waiting(&node.spool())?.iter().map(|part| part.last).max();
    loop {
        match (upload_now(node), last) {
            (Err(fault), Some(last)) if fault.code() == Code::SpoolLocked && began.elapsed() < WRITER_LIMIT => {
                order_backup(last);
                std::thread::sleep(WRITER_POLL);
                if observe_waiting(&node.spool())?.iter().all(|part| part.first > last) {
                    return Ok(Uploaded { first: None, last: Some(last) });
                }
            }
            (uploaded, _) => return uploaded,
        }
    }
}

fn upload_now(node: &Node) -> Result<Uploaded, Fault> {
    let Some(backup) = &node.spec.backup else {
        return Err(Fault::new(Code::RecoverNothing, "cannot upload a spool: no store is declared"));
    };
    let flushed = flush(&node.spool(), backup.spool_max, &backup.store)?;
    if let Some(span) = flushed.stored {
        record(node, span.to)?;
    }
    match flushed.refused {
        Some(fault) => Err(fault),
        None => Ok(Uploaded { first: flushed.stored.map(|span| span.from), last: flushed.stored.map(|span| span.to) }),
    }
}

/// The last revision that was uploaded for a recovery of a cluster: that the store grew up to it is no sign of another quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterId>,
    revision: u64,
}

fn record(node: &Node, revision: u64) -> Result<(), Fault> {
    let cluster = cluster_of(&observe_ledger(&node.ledger()));
    let earlier = read_record(node.state_path()).filter(|it| it.cluster == cluster).map_or(0, |it| it.revision);
    let bytes = serde_json::to_vec(&Record { cluster, revision: revision.max(earlier) })
        .map_err(|error| Fault::new(Code::Internal, "cannot record what was uploaded").caused_by(error))?;
    ensure_file(&RealDisk, &node.state_path().join(FILE), &bytes)
}

/// The last revision that this node uploaded for a recovery of the cluster of its ledger.
pub(super) fn observe_uploaded(node: &Node, ledger: &LedgerSeen) -> Option<u64> {
    read_record(node.state_path()).filter(|it| it.cluster == cluster_of(ledger)).map(|it| it.revision)
}

fn read_record(state: &Path) -> Option<Record> {
    serde_json::from_slice(&std::fs::read(state.join(FILE)).ok()?).ok()
}

fn cluster_of(ledger: &LedgerSeen) -> Option<ClusterId> {
    match ledger {
        LedgerSeen::There(ledger) => ledger.cluster(),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => None,
    }
}
