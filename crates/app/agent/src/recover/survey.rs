//! What is left on this node: from its etcd where that runs, else from its files.
//!
//! **Invariant:** nothing is changed, and what cannot be read is said to be so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quorate_etcd::client::{Client, Consistency};
use quorate_etcd::datadir::{self, Found};
use quorate_etcd::init::Target;
use quorate_etcd_formats::dir::InUse;
use quorate_etcd_formats::inspect;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_etcd_formats::verify::{self, Mode};
use quorate_etcd_formats::wal;
use quorate_faults::{Code, Severity};
use quorate_plan::ledger::{Ledger, LedgerSeen};
use serde::{Deserialize, Serialize};

use super::copy;
use super::journal::{RecoveryNow, observe_progress};
use crate::peers::Acknowledged;
use crate::turn::Node;

/// How long its etcd may take for one answer; without a quorum, reads never come.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// What a node tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remains {
    /// Its name.
    pub name: String,
    /// Its generation of the cluster.
    pub generation: u64,
    /// Its data.
    pub seen: Seen,
    /// The clusters that its cluster was restored from: their backups are its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub was: Vec<ClusterId>,
    /// The last recovery that was ordered here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryNow>,
}

/// The data of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Seen {
    /// There is none.
    Absent,
    /// It cannot be looked at, or is damaged.
    Unusable {
        /// Why.
        why: String,
        /// Whose it is, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<ClusterId>,
    },
    /// It is there.
    There(Box<Standing>),
}

/// How far data reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The cluster.
    pub cluster: ClusterId,
    /// The member.
    pub member: MemberId,
    /// Whether a quorum answered a read through it just now.
    pub serves: bool,
    /// Whether etcd runs on it.
    pub runs: bool,
    /// The term of the last entry of its log.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// Up to where it knows that a quorum has the entries.
    pub commit: u64,
    /// The revision of its database.
    pub revision: u64,
    /// Entries behind what the database has applied: each may be one revision more.
    pub unapplied: u64,
    /// etcd's hash over its keys at that revision, where it was worth computing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<u32>,
    /// The voters that it knows.
    pub voters: Vec<Voter>,
    /// How far other members were seen from here.
    #[serde(default)]
    pub saw: Vec<Acknowledged>,
}

/// A voter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voter {
    /// Its id.
    pub id: MemberId,
    /// Its node.
    pub name: String,
}

/// Looks.
pub(crate) async fn observe_remains(node: &Arc<Node>, ledger: &LedgerSeen, saw: Vec<Acknowledged>) -> Remains {
    let known = match ledger {
        LedgerSeen::There(ledger) => ledger.as_ref().clone(),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => Ledger::default(),
    };
    let there = Arc::clone(node);
    let files = tokio::task::spawn_blocking(move || observe_files(&there.target)).await;
    let mut seen =
        files.unwrap_or_else(|_| Seen::Unusable { why: "looking at it came to a halt".to_owned(), cluster: None });
    if let Seen::There(standing) = &mut seen {
        standing.saw = saw;
        if standing.runs {
            ask_etcd(node, standing).await;
        }
        // Older releases forget in their database who was promoted; a list that a quorum confirmed does not.
        let confirmed = known.confirmed.iter().flat_map(|list| &list.members).filter(|member| !member.learner);
        let confirmed: Vec<Voter> =
            confirmed.map(|member| Voter { id: member.id, name: member.name.clone() }).collect();
        if confirmed.iter().any(|voter| voter.id == standing.member) {
            standing.voters = confirmed;
        }
        for voter in standing.voters.iter_mut().filter(|voter| voter.name.is_empty()) {
            voter.name = voter.id.to_string();
        }
    }
    let recovery = observe_progress(node.state_path()).unwrap_or(None);
    Remains { name: node.name().to_owned(), generation: known.generation, seen, was: known.was, recovery }
}

/// Whose the data is, by its WAL.
pub(super) fn ids(target: &Target) -> Option<(ClusterId, MemberId)> {
    let Ok(Found::DataDir(open)) = datadir::open(target.data_dir(), target.wal_dir()) else { return None };
    let view = open.view();
    let metadata = wal::head(view.wal_files().first()?.source).ok()?.metadata?;
    Some((ClusterId(metadata.cluster_id()), MemberId(metadata.node_id())))
}

fn observe_files(target: &Target) -> Seen {
    let open = match datadir::open(target.data_dir(), target.wal_dir()) {
        Ok(Found::DataDir(open)) => open,
        Ok(Found::File(_)) => return Seen::Unusable { why: "it is a file".to_owned(), cluster: None },
        Err(fault) if fault.code() == Code::NotFound => return Seen::Absent,
        Err(fault) => return Seen::Unusable { why: fault.to_string(), cluster: None },
    };
    let view = open.view();
    let runs = match &view.in_use {
        InUse::No => false,
        InUse::Yes { .. } => true,
        InUse::Unknown(why) => return Seen::Unusable { why: why.clone(), cluster: None },
    };
    let cluster = ids(target).map(|(cluster, _)| cluster);
    let (summary, end) = match copy::scan(&view) {
        Ok(scanned) => scanned,
        Err(why) => return Seen::Unusable { why, cluster },
    };
    let (Some(cluster_id), Some(member)) = (summary.cluster_id(), summary.member_id()) else {
        return Seen::Unusable { why: "its WAL does not say whose it is".to_owned(), cluster };
    };
    let mut standing = Standing {
        cluster: cluster_id,
        member,
        serves: false,
        runs,
        term: end.term,
        index: end.index,
        commit: end.commit,
        revision: 0,
        unapplied: 0,
        hash: None,
        voters: Vec::new(),
        saw: Vec::new(),
    };
    if runs {
        return Seen::There(Box::new(standing));
    }
    let progress = AtomicU64::new(0);
    let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8));
    let report = verify::data_dir(&view, &verify::Settings { mode: Mode::Sanity, workers, progress: &progress });
    if let Some(error) = report.findings.iter().find(|finding| finding.severity == Severity::Error) {
        return Seen::Unusable { why: format!("{} at {} [{}]", error.what, error.place, error.code), cluster };
    }
    let found =
        inspect::data_dir(&view, inspect::Settings { hash: None, count: false, workers, progress: &progress }).database;
    standing.revision = found.revision.unwrap_or(0);
    standing.unapplied = end.index.saturating_sub(found.consistent_index.unwrap_or(0));
    // Two releases differ in rare cases; a hash that depends on that proves nothing.
    standing.hash = found.hashkv.as_deref().and_then(|all| match all {
        [first, rest @ ..] if rest.iter().all(|other| other.hash == first.hash) => Some(first.hash),
        _ => None,
    });
    let voters = found.members.unwrap_or_default().into_iter().filter(|member| !member.learner);
    standing.voters = voters.map(|member| Voter { id: member.id, name: member.name }).collect();
    Seen::There(Box::new(standing))
}

/// Asks the etcd that runs; what it does not answer stays unknown.
async fn ask_etcd(node: &Node, standing: &mut Standing) {
    let Ok(mut settings) = node.client() else { return };
    settings.timeout = settings.timeout.min(ASK_LIMIT);
    let Ok(Ok(client)) = tokio::time::timeout(ASK_LIMIT, Client::connect(&settings)).await else { return };
    let (status, list, serves) = tokio::join!(client.status(), client.member_list(Consistency::Local), client.serves());
    standing.serves = serves.is_ok();
    if let Ok(status) = status {
        let applied = status.raft_applied_index.max(status.raft_index);
        standing.unapplied = standing.index.saturating_sub(applied);
        standing.commit = standing.commit.max(status.raft_index);
        standing.revision = status.header.map_or(0, |header| u64::try_from(header.revision).unwrap_or(0));
    }
    if let Ok(hash) = client.hash_kv(0).await {
        standing.hash = Some(hash.hash);
    }
    if let Ok(list) = list {
        let voters = list.members.into_iter().filter(|member| !member.is_learner);
        let by_id: BTreeMap<MemberId, String> = voters.map(|member| (MemberId(member.id), member.name)).collect();
        standing.voters = by_id.into_iter().map(|(id, name)| Voter { id, name }).collect();
    }
}
