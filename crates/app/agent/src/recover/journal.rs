//! What was ordered, and how far it has come: one small file in the state dir.
//!
//! **Invariant:** an order is taken once. The same one again finds its progress; another of the same or an older generation is
//! refused.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_backup::catalog::Catalog;
use quorate_backup::claims::{self, Claim};
use quorate_backup::store::Store;
use quorate_etcd::aside::ensure_file;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_etcd_formats::rebuild::BUMP_DEFAULT;
use quorate_faults::{Code, Fault};
use quorate_host::audit::{self, Entry, Who};
use quorate_host::durable::RealDisk;
use quorate_plan::change::recover::{Evidence, Point, Probe, Reply, StoreWatch};
use quorate_plan::check::{RecoveryParts, check_recovery};
use quorate_plan::ledger::{Ledger, LedgerSeen, State};
use serde::{Deserialize, Serialize};

use super::carry::founding;
use super::probe::{ProbeAnswer, members_of, observe_absent};
use crate::turn::{Book, Node, ensure_mounted, own_clusters};

/// The file's name in the state dir.
const FILE: &str = "recovery.json";

/// Far more than an order needs.
const BYTES_MAX: u64 = 1 << 20;

/// What a node is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The generation of the recovered cluster.
    pub generation: u64,
    /// Tells two recoveries of one generation apart, and their clusters.
    pub nonce: u64,
    /// Its part in it.
    pub role: Role,
    /// Nodes that are to join the cluster that this one begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejoin: Vec<String>,
    /// Who asks.
    pub asked_by: String,
    /// Nodes whose machines the operator stated to be off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fenced: Vec<String>,
    /// Nodes that answer, and whose data the operator gave up without a look at it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<String>,
    /// What the survivors received from members whose agents are silent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Probe>,
    /// What the survivors saw in the store of backups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watches: Vec<(String, StoreWatch)>,
    /// The last revision that survivors hold, or have uploaded from their spools: that the store grew up to there is no sign of a quorum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploaded: Option<u64>,
    /// The highest revision that any node or the store has seen: the recovered cluster begins above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<u64>,
    /// The generation is claimed in the store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub claimed: bool,
    /// The operator does without the store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_store: bool,
    /// The user of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<Who>,
}

/// A node's part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Begin the cluster anew.
    Begin(Source),
    /// Set everything aside and join it.
    Join,
}

/// From what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The data of this node, whose log ends with this very entry.
    Data {
        /// The term of the entry.
        term: u64,
        /// Its index.
        index: u64,
        /// Refuse if it turns out to end before this revision: the newest backup has it.
        at_least: Option<u64>,
    },
    /// The newest backup, which reaches at least this revision.
    Backup {
        /// The revision.
        revision: u64,
    },
    /// The state of the backup at this point.
    Point(Point),
}

/// How far an order has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Progress {
    /// Nothing was changed yet.
    Ordered,
    /// What the new data dir is made from is there, and proven.
    Built {
        /// The revision that it reaches.
        revision: u64,
    },
    /// It is done.
    Done {
        /// The revision that was recovered; none for who joins.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<u64>,
        /// The new cluster, where this node began it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<ClusterId>,
        /// This node in it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        member: Option<MemberId>,
        /// What was renamed, and to what.
        #[serde(default)]
        renamed: Vec<(PathBuf, PathBuf)>,
    },
    /// It cannot be done, and nothing was changed.
    Failed {
        /// The page that says more.
        code: String,
        /// Why.
        why: String,
    },
}

/// An order and its progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryNow {
    /// What is to be done.
    pub order: Order,
    /// How far it is.
    pub progress: Progress,
}

/// What is written there, if anything.
pub fn observe_progress(state: &Path) -> Result<Option<RecoveryNow>, Fault> {
    let path = state.join(FILE);
    let fail = |error| Fault::io(format!("cannot read `{}`", path.display()), error);
    let bytes = match std::fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
        Ok(meta) if meta.len() > BYTES_MAX => return Err(fail(ErrorKind::FileTooLarge.into())),
        Ok(_) => std::fs::read(&path).map_err(fail)?,
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Fault::new(Code::RecoverOther, format!("cannot read the order in `{}`", path.display()))
            .hint("rename it, and run `quorate cluster recover` again")
            .caused_by(error)
    })
}

/// The order that is to be carried out now.
pub(crate) fn pending(state: &Path) -> Result<Option<RecoveryNow>, Fault> {
    let open = |now: &RecoveryNow| match now.progress {
        Progress::Ordered | Progress::Built { .. } => true,
        Progress::Done { .. } | Progress::Failed { .. } => false,
    };
    Ok(observe_progress(state)?.filter(open))
}

/// Writes progress down, durably.
pub(super) fn write(state: &Path, now: &RecoveryNow) -> Result<(), Fault> {
    let mut bytes = serde_json::to_vec_pretty(now)
        .map_err(|error| Fault::new(Code::Internal, "cannot write an order down").caused_by(error))?;
    bytes.push(b'\n');
    ensure_file(&RealDisk, &state.join(FILE), &bytes)
}

/// Writes down that it cannot be done.
pub(crate) fn write_failed(state: &Path, now: &RecoveryNow, fault: &Fault, why: String) -> Result<(), Fault> {
    let progress = Progress::Failed { code: fault.code().as_str().to_owned(), why };
    write(state, &RecoveryNow { order: now.order.clone(), progress })
}

/// Queries the absent members once more, right before an order is taken, and checks it against the rules.
pub(crate) async fn audit_order(node: &Arc<Node>, ledger: &LedgerSeen, order: &Order) -> Result<(), Fault> {
    let known = match ledger {
        LedgerSeen::There(ledger) => ledger.as_ref().clone(),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => Ledger::default(),
    };
    let members = members_of(node, &known);
    // Also those that are passed over: what cannot be looked at may serve.
    let absent = |name: &&String| **name != node.name() && !order.rejoin.contains(name);
    let absent: Vec<String> = members.iter().filter(absent).cloned().collect();
    let ProbeAnswer { probes, store } = observe_absent(node, ledger, &absent).await;
    let probes: Vec<Probe> = order.probes.iter().cloned().chain(probes).collect();
    let now = store.map(|store| (node.name().to_owned(), store));
    let own = |watch: &StoreWatch| order.uploaded.is_some_and(|uploaded| watch.is_own(uploaded));
    // Where every member takes part, or a quorum may serve until it is stopped for an earlier state, backups go on.
    let expected = absent.is_empty() || is_to_a_point(order);
    let watches: Vec<(String, StoreWatch)> =
        order.watches.iter().cloned().chain(now).filter(|(_, watch)| !expected && !own(watch)).collect();
    let parts = RecoveryParts {
        begins: node.name(),
        members: &members,
        joins: &order.rejoin,
        passed_over: &order.passed_over,
        fenced: &order.fenced,
        evidence: Evidence { probes: &probes, watches: &watches, ..Evidence::default() },
    };
    let Err(broken) = check_recovery(&parts) else { return Ok(()) };
    let code = match () {
        () if probes.iter().any(|probe| matches!(probe.reply, Reply::Answered { .. })) => Code::RecoverMemberAnswers,
        () if watches.iter().any(|(_, watch)| matches!(watch, StoreWatch::Grew { .. })) => Code::RecoverStoreGrows,
        () => Code::RecoverUnfenced,
    };
    Err(Fault::new(code, format!("`{}` does not take the order: {}", node.name(), broken.join("; ")))
        .hint(format!("see `quorate explain {code}`")))
}

/// How far revisions are raised, where the restored state is at least at revision `least`: above all that were seen anywhere.
pub(super) fn bump(order: &Order, least: u64) -> u64 {
    BUMP_DEFAULT.saturating_add(order.above.unwrap_or(0).saturating_sub(least))
}

/// The revision that the recovered cluster begins with, made of a state at revision `restored`.
pub(super) fn begins_at(order: &Order, restored: u64) -> u64 {
    let least = match &order.role {
        Role::Begin(Source::Backup { revision } | Source::Point(Point::Revision(revision))) => *revision,
        Role::Begin(Source::Point(Point::Time(_))) => 0,
        Role::Begin(Source::Data { .. }) | Role::Join => restored,
    };
    restored.saturating_add(bump(order, least))
}

/// Whether the order is for an earlier state, which a quorum that serves is no reason against.
pub(crate) fn is_to_a_point(order: &Order) -> bool {
    matches!(order.role, Role::Begin(Source::Point(_)))
}

/// The highest revision that a store has seen of these clusters. Where none is known, all of a store counts that holds one lineage.
fn highest_in(store: &Store, own: &[u64]) -> Result<u64, Fault> {
    let all = Catalog::read(store)?.lineages(&[]);
    let only = own.is_empty() && all.len() == 1;
    let ours = all.iter().filter(|lineage| only || lineage.has_any(own));
    Ok(ours.map(|lineage| lineage.highest_revision).max().unwrap_or(0))
}

/// Claims the generation of an order in the store, or returns why it cannot be had.
pub(crate) fn claim(node: &Node, order: &Order) -> Result<(), Fault> {
    let refuse = |why: String| {
        Fault::new(Code::GenerationClaimed, format!("cannot claim generation {}: {why}", order.generation))
            .hint("run `quorate cluster recover` again: it surveys the store; or do without it: `--without-store`")
    };
    let Some(backup) = &node.spec.backup else {
        return if order.claimed { Err(refuse(format!("`{}` declares no store", node.name()))) } else { Ok(()) };
    };
    if order.without_store {
        return Ok(());
    }
    if !order.claimed {
        return Err(refuse("the order does not say so, and a store is declared".to_owned()));
    }
    let unread = |fault: Fault| refuse(format!("the store does not answer ({fault})"));
    let store = Store::open(&backup.store, false).map_err(unread)?;
    // A cluster that is brought back to an earlier state may serve until it is stopped, and its backups continue.
    if let Some(known) = order.above.filter(|_| !is_to_a_point(order)) {
        let stored = highest_in(&store, &own_clusters(node)).map_err(unread)?;
        if stored > known {
            return Err(refuse(format!("the store has seen revision {stored}, and the survey knew of {known}")));
        }
    }
    let claim = Claim {
        token: node.spec.token.clone(),
        generation: order.generation,
        nonce: order.nonce,
        node: node.name().to_owned(),
        at: jiff::Timestamp::now().to_string(),
        cluster: Some(founding(node, order)?.cluster_id),
    };
    let others = claims::list(&store, &claim.token).map_err(unread)?;
    let newer = others.iter().find(|it| it.generation >= claim.generation && it.nonce != claim.nonce);
    if let Some(Claim { generation, node, at, .. }) = newer {
        return Err(refuse(format!("`{node}` claimed generation {generation} at {at}")));
    }
    match claims::take(&store, &claim).map_err(unread)? {
        true => Ok(()),
        false => Err(refuse("another recovery claimed it at the same time".to_owned())),
    }
}

/// Records in the audit log what the operator stated.
fn record_statement(node: &Node, order: &Order) -> Result<(), Fault> {
    let named = |flag: &str, names: &[String]| names.iter().map(|name| format!("{flag} {name}")).collect::<Vec<_>>();
    let mut words = vec!["recover".to_owned(), format!("generation {}", order.generation)];
    words.extend(named("--fenced", &order.fenced));
    words.extend(named("--pass-over", &order.passed_over));
    words.extend(order.without_store.then(|| "--without-store".to_owned()));
    let entry = Entry {
        at: jiff::Timestamp::now().to_string(),
        command: "cluster".to_owned(),
        words,
        member: node.name().to_owned(),
        process: None,
        target_pid: None,
        who: order.who.clone().unwrap_or_else(|| Who::us(None)),
        remote: None,
        result_of: None,
    };
    audit::record(node.state_path(), &entry).map(drop)
}

/// Whether nothing is left to be done for an order.
fn is_over(now: &RecoveryNow) -> bool {
    matches!(now.progress, Progress::Done { .. } | Progress::Failed { .. })
}

/// Takes an order: writes it down, and the generation into the ledger, from where it keeps older ones away.
pub(crate) fn accept(node: &Node, book: &Book, order: &Order) -> Result<RecoveryNow, Fault> {
    let state = node.state_path();
    let refuse = |why: String| {
        Fault::new(Code::RecoverOther, format!("`{}` does not take the order: {why}", node.name()))
            .hint("run `quorate cluster recover` again: it looks at what there is")
    };
    // What lost against another recovery of the same generation is given up by a join.
    let lost = order.role == Role::Join && matches!(book.read(), LedgerSeen::There(ledger) if ledger.is_outdated());
    let known = observe_progress(state)?.filter(|known| !(lost && is_over(known) && known.order != *order));
    if let Some(known) = &known {
        let (theirs, ours) = (&known.order, order);
        // A failed one is begun again by the same order.
        let failed = matches!(known.progress, Progress::Failed { .. });
        match theirs.generation.cmp(&ours.generation) {
            std::cmp::Ordering::Greater => return Err(refuse(format!("generation {} was ordered", theirs.generation))),
            std::cmp::Ordering::Equal if theirs != ours => {
                return Err(refuse(format!("another recovery of generation {} was ordered", theirs.generation)));
            }
            std::cmp::Ordering::Equal if !failed => return Ok(known.clone()),
            std::cmp::Ordering::Equal | std::cmp::Ordering::Less => {}
        }
        if !failed && theirs.generation < ours.generation && !matches!(known.progress, Progress::Done { .. }) {
            return Err(refuse(format!("generation {} is being recovered here", theirs.generation)));
        }
    }
    let (generation, joined) = match book.read() {
        // Who joins may have heard of it already; who begins makes one that nobody has heard of.
        LedgerSeen::There(ledger) => match order.role {
            Role::Join if lost => (0, false),
            Role::Join => (ledger.generation, ledger.state != State::Empty),
            Role::Begin(_) => (ledger.newest().number, ledger.state != State::Empty),
        },
        LedgerSeen::Absent => (0, false),
        LedgerSeen::Unreadable(why) => return Err(refuse(format!("its ledger cannot be read: {why}"))),
    };
    if generation >= order.generation && known.is_none_or(|known| known.order != *order) {
        if order.role == Role::Join && generation == order.generation && joined {
            let progress = Progress::Done { revision: None, cluster: None, member: None, renamed: Vec::new() };
            return Ok(RecoveryNow { order: order.clone(), progress });
        }
        return Err(refuse(format!("it has generation {generation} already")));
    }
    ensure_mounted(node, &book.read(), &format!("`{}` does not take the order", node.name()))?;
    let now = RecoveryNow { order: order.clone(), progress: Progress::Ordered };
    if matches!(order.role, Role::Begin(_)) {
        record_statement(node, order)?;
    }
    write(state, &now)?;
    // Who joins forgets its ledger anyway, and has nothing to say to older ones.
    if matches!(order.role, Role::Begin(_)) {
        book.change(|ledger| ledger.generation = ledger.generation.max(order.generation))?;
    }
    Ok(now)
}
