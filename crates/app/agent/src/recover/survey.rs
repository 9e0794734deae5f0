//! What is left on this node: from its etcd where that runs, else from its files.
//!
//! An etcd that was started without a quorum answers nothing, not even how far it is; then its log and its database tell it, as
//! they lie on disk.
//!
//! An etcd that still serves while its files cannot be read, or are not where they were, is asked all the same.
//!
//! **Invariant:** nothing is changed; what cannot be read is said to be so, and is neither empty nor damaged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quorate_backup::spool::{Waiting, observe_waiting};
use quorate_etcd::client::{Client, Consistency};
use quorate_etcd::datadir::{self, Found};
use quorate_etcd::init::Target;
use quorate_etcd_formats::bolt::{Db, MetaPages};
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::dir::{DataDir, InUse, Kind};
use quorate_etcd_formats::inspect;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_etcd_formats::verify::{self, Mode};
use quorate_etcd_formats::wal;
use quorate_faults::{Code, Severity};
use quorate_plan::ledger::{Ledger, LedgerSeen};
use serde::{Deserialize, Serialize};

use super::copy;
use super::journal::{RecoveryNow, observe_progress};
use super::spooled::observe_uploaded;
use crate::peers::Acknowledged;
use crate::turn::{Node, Presence, observe_presence, unmounted};

/// How long its etcd may take for one answer; without a quorum, reads never come.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// Segments of a spool that are reported: an answer has a limit.
const SPOOL_PARTS_MAX: usize = 2000;

/// What a node tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remains {
    /// Its name.
    pub name: String,
    /// Its generation of the cluster; none where its ledger cannot be read.
    pub generation: Option<u64>,
    /// A newer one that it has heard of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outdated_by: Option<u64>,
    /// Its data.
    pub seen: Seen,
    /// Its etcd confirms reads, whatever its files look like: a quorum is there. An agent of an earlier release tells it only with its data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serves: bool,
    /// The clusters that its cluster was restored from: their backups are its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub was: Vec<ClusterId>,
    /// The clusters that this node left by a reset: their backups may be its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<ClusterId>,
    /// The cluster of its ledger, which may have lost its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// The highest revision that its ledger has recorded.
    #[serde(default)]
    pub highest: u64,
    /// The last recovery that was ordered here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryNow>,
    /// What waits in its spool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spool: Option<Spooled>,
    /// The last revision that it uploaded from its spool for a recovery of its cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploaded: Option<u64>,
}

/// What waits in the spool of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spooled {
    /// The stretches of writes: first and last revision, epoch, cluster.
    pub parts: Vec<(u64, u64, u64, ClusterId)>,
    /// Why it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
}

/// What waits in the spool; none where there is nothing.
fn observe_spool(node: &Node) -> Option<Spooled> {
    match observe_waiting(&node.spool()) {
        Ok(waiting) if waiting.is_empty() => None,
        Ok(waiting) => {
            let part = |part: &Waiting| (part.first, part.last, part.epoch, ClusterId(part.cluster_id));
            Some(Spooled { parts: waiting.iter().take(SPOOL_PARTS_MAX).map(part).collect(), unread: None })
        }
        Err(fault) => Some(Spooled { parts: Vec::new(), unread: Some(fault.to_string()) }),
    }
}

/// The data of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Seen {
    /// There is none.
    Absent,
    /// It was read, and is damaged.
    Damaged {
        /// How.
        why: String,
    },
    /// It could not be looked at. An agent of an earlier release does not tell the two apart.
    #[serde(alias = "unusable")]
    Unknown {
        /// Why.
        why: String,
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
    /// The revision of its database, where that could be told.
    #[serde(default)]
    pub revision: Option<u64>,
    /// Entries behind what the database has applied: each may be one revision more.
    #[serde(default)]
    pub unapplied: Option<u64>,
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
    let (known, readable) = match ledger {
        LedgerSeen::There(ledger) => (ledger.as_ref().clone(), true),
        LedgerSeen::Absent => (Ledger::default(), true),
        LedgerSeen::Unreadable(_) => (Ledger::default(), false),
    };
    let (there, recorded) = (Arc::clone(node), ledger.clone());
    let files = tokio::task::spawn_blocking(move || {
        let seen = observe_files(&there.target);
        // What is on a disk that is not mounted may be the furthest of all.
        let seen = match unmounted(&there, &recorded).filter(|_| !matches!(seen, Seen::There(_))) {
            Some(why) => unknown(why),
            None => seen,
        };
        (seen, observe_spool(&there))
    });
    let (mut seen, spool) = files.await.unwrap_or_else(|_| (unknown("looking at it came to a halt"), None));
    let mut serves = false;
    if !matches!(&seen, Seen::There(standing) if standing.runs) {
        // Files that cannot be read, or were moved, do not keep an etcd from serving.
        serves = match connect(node).await {
            Some(client) => client.serves().await.is_ok(),
            None => false,
        };
    }
    if let Seen::There(standing) = &mut seen {
        standing.saw = saw;
        if standing.runs {
            ask_etcd(node, standing).await;
        }
        standing.serves |= serves;
        serves = standing.serves;
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
    let generation = readable.then_some(known.generation);
    let outdated_by = known.is_outdated().then(|| known.newest().number);
    let uploaded = observe_uploaded(node, ledger);
    let (name, cluster, highest) = (node.name().to_owned(), known.cluster(), known.highest_revision());
    let Ledger { was, left, .. } = known;
    Remains { name, generation, outdated_by, seen, serves, was, left, cluster, highest, recovery, spool, uploaded }
}

/// Whose the data is, by its WAL.
pub(super) fn ids(target: &Target) -> Option<(ClusterId, MemberId)> {
    let Ok(Found::DataDir(open)) = datadir::open(target.data_dir(), target.wal_dir()) else { return None };
    let view = open.view();
    let metadata = wal::head(view.wal_files().first()?.source).ok()?.metadata?;
    Some((ClusterId(metadata.cluster_id()), MemberId(metadata.node_id())))
}

fn unknown(why: impl Into<String>) -> Seen {
    Seen::Unknown { why: why.into() }
}

fn damaged(why: impl Into<String>) -> Seen {
    Seen::Damaged { why: why.into() }
}

fn observe_files(target: &Target) -> Seen {
    match observe_presence(target) {
        Ok(Presence::Data) => {}
        Ok(Presence::Nothing) => return Seen::Absent,
        Ok(Presence::WalAlone(why)) => return damaged(why),
        Err(why) => return unknown(why),
    }
    let open = match datadir::open(target.data_dir(), target.wal_dir()) {
        Ok(Found::DataDir(open)) => open,
        Ok(Found::File(_)) => return unknown("it is a file"),
        Err(fault) if fault.code() == Code::NotFound => return Seen::Absent,
        // There is something, and nothing of an etcd in it.
        Err(fault) if fault.code() == Code::NotEtcdData => return damaged(fault.to_string()),
        Err(fault) => return unknown(fault.to_string()),
    };
    let view = open.view();
    let runs = match &view.in_use {
        InUse::No => false,
        InUse::Yes { .. } => true,
        InUse::Unknown(why) => return unknown(why.clone()),
    };
    if let Some(why) = unreadable(&view) {
        return unknown(why);
    }
    let (summary, end) = match copy::scan(&view) {
        Ok(scanned) => scanned,
        // What etcd works on may be between two states.
        Err(why) if runs || !why.is_damage() => return unknown(why.to_string()),
        Err(why) => return damaged(why.to_string()),
    };
    let (Some(cluster_id), Some(member)) = (summary.cluster_id(), summary.member_id()) else {
        return damaged("its WAL does not say whose it is");
    };
    let mut standing = Standing {
        cluster: cluster_id,
        member,
        serves: false,
        runs,
        term: end.term,
        index: end.index,
        commit: end.commit,
        revision: None,
        unapplied: None,
        hash: None,
        voters: Vec::new(),
        saw: Vec::new(),
    };
    if runs {
        if let Some(facts) = observe_running_database(&view) {
            standing.revision = Some(facts.revision_now());
            standing.unapplied = facts.consistent_index.map(|applied| end.index.saturating_sub(applied));
            let voters = facts.members.into_iter().filter(|member| !member.is_learner);
            standing.voters = voters.map(|member| Voter { id: member.id, name: member.name }).collect();
        }
        return Seen::There(Box::new(standing));
    }
    let progress = AtomicU64::new(0);
    let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8));
    let report =
        verify::before_start(&view, &verify::Settings { mode: Mode::Sanity, workers, progress: &progress }, None);
    if let Some(error) = report.findings.iter().find(|finding| finding.severity == Severity::Error) {
        let why = format!("{} at {} [{}]", error.what, error.place, error.code);
        return if error.code == Code::Io { unknown(why) } else { damaged(why) };
    }
    let found =
        inspect::data_dir(&view, inspect::Settings { hash: None, count: false, workers, progress: &progress }).database;
    standing.revision = found.revision;
    standing.unapplied = found.consistent_index.map(|applied| end.index.saturating_sub(applied));
    // Two releases differ in rare cases; a hash that depends on that proves nothing.
    standing.hash = found.hashkv.as_deref().and_then(|all| match all {
        [first, rest @ ..] if rest.iter().all(|other| other.hash == first.hash) => Some(first.hash),
        _ => None,
    });
    let voters = found.members.unwrap_or_default().into_iter().filter(|member| !member.learner);
    standing.voters = voters.map(|member| Voter { id: member.id, name: member.name }).collect();
    Seen::There(Box::new(standing))
}

/// The first part that is there and cannot be read.
fn unreadable(view: &DataDir<'_>) -> Option<String> {
    view.entries.iter().find_map(|entry| match &entry.kind {
        Kind::Unreadable(why) => Some(format!("`{}` cannot be read: {why}", entry.path)),
        Kind::Dir | Kind::File(_) => None,
    })
}

/// The database that an etcd works on, as its last transaction left it. `None`: another one came in between, each time.
fn observe_running_database(view: &DataDir<'_>) -> Option<Facts> {
    /// Without a quorum nothing is applied, and the first look is undisturbed.
    const LOOKS: usize = 3;
    let source = view.db()?.source;
    let transaction = || MetaPages::read(source).ok().and_then(|metas| metas.chosen()).map(|meta| meta.txid);
    // Pages of a transaction are written to only after the next one is complete, which its number tells.
    (0..LOOKS).find_map(|_| {
        let before = transaction()?;
        let db = Db::open(source).ok()?;
        let facts = Facts::read(&db, &db.buckets().ok()?).ok()?;
        (transaction() == Some(before)).then_some(facts)
    })
}

/// A connection to this node's own etcd, where one answers.
async fn connect(node: &Node) -> Option<Client> {
    let mut settings = node.client().ok()?;
    settings.timeout = settings.timeout.min(ASK_LIMIT);
    tokio::time::timeout(ASK_LIMIT, Client::connect(&settings)).await.ok()?.ok()
}

/// Asks the etcd that runs; what it does not answer stays unknown.
async fn ask_etcd(node: &Node, standing: &mut Standing) {
    let Some(client) = connect(node).await else { return };
    let (status, list, serves) = tokio::join!(client.status(), client.member_list(Consistency::Local), client.serves());
    standing.serves = serves.is_ok();
    if let Ok(status) = status {
        standing.commit = standing.commit.max(status.raft_index);
        let revision = status.header.and_then(|header| u64::try_from(header.revision).ok());
        if let Some(revision) = revision.filter(|revision| *revision > 0) {
            standing.unapplied = Some(standing.index.saturating_sub(status.raft_applied_index));
            standing.revision = Some(revision);
            standing.hash = client.hash_kv(0).await.ok().map(|hash| hash.hash);
        }
    }
    if let Ok(list) = list {
        let voters = list.members.into_iter().filter(|member| !member.is_learner);
        let by_id: BTreeMap<MemberId, String> = voters.map(|member| (MemberId(member.id), member.name)).collect();
        standing.voters = by_id.into_iter().map(|(id, name)| Voter { id, name }).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wal_that_is_left_alone_is_damaged_data_and_not_none() {
        let root = tempfile::tempdir().unwrap();
        let (data, wal) = (root.path().join("data"), root.path().join("logs/wal"));
        let target = Target::new(&data, Some(&wal)).unwrap();
        assert_eq!(observe_files(&target), Seen::Absent);
        std::fs::create_dir_all(&wal).unwrap();
        assert_eq!(observe_files(&target), Seen::Absent);
        std::fs::File::create(wal.join("0000000000000000-0000000000000000.wal")).unwrap();
        let Seen::Damaged { why } = observe_files(&target) else { panic!("{:?}", observe_files(&target)) };
        assert!(why.contains(&format!("`{}` does", wal.display())), "{why}");
        std::fs::File::create(root.path().join("logs/wal/other")).unwrap();
        std::fs::remove_file(wal.join("0000000000000000-0000000000000000.wal")).unwrap();
        assert!(matches!(observe_files(&target), Seen::Unknown { .. }), "what is no WAL may be anything");
    }
}
