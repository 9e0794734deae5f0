//! Looks at everything that a start depends on.
//!
//! **Rule:** no answer is Unknown, never empty; and the store is asked only where its answer could change what is done, so
//! that good local data starts whatever the store does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quorate_backup::session::Session;
use quorate_backup::spool::{Waiting, observe_waiting};
use quorate_etcd::ledger::observe_ledger;
use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::Fault;
use quorate_host::exit_record::{self, ExitRecord, Reason, Recorded};
use quorate_plan::chain::Target;
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::start::{ClusterSeen, DataSeen, EndSeen, Held, Observed, PlaceState, StoreSeen, Verdict};

use super::cluster;
use super::data::{Checked, in_words, observe_data};
use super::node::Node;
use super::place::observe_place;
use super::sightings;
use crate::peering::fill_random;
use crate::peers::Peers;
use crate::trust;

/// How long the store may take to be listed before it counts as silent.
const STORE_LIMIT: Duration = Duration::from_secs(60);

/// The same where good data waits for its start meanwhile. What is not learned by then is learned by the first backup.
const STORE_GLANCE: Duration = Duration::from_secs(2);

/// What is known and cannot be observed again.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    /// What checking the data gave, since etcd last ran on it.
    pub(super) checked: Option<Checked>,
    /// This very run made the data.
    pub(super) fresh: bool,
}

impl Memory {
    /// Forgets what does not hold for the data that was just seen: it is other data, or was out of sight or in other hands.
    pub(super) fn keep_for(&mut self, data: &DataSeen) {
        match data {
            DataSeen::Absent | DataSeen::Unknown(_) => *self = Memory::default(),
            DataSeen::There(facts) if facts.verdict == Verdict::Unchecked => self.checked = None,
            DataSeen::There(_) => {}
        }
    }
}

/// Looks at all of it.
pub(super) async fn observe(node: &Arc<Node>, peers: &Arc<Peers>, memory: &Memory) -> Observed {
    let ledger = observe_ledger(&node.ledger());
    let (there, known, recorded) = (Arc::clone(node), memory.clone(), ledger.clone());
    let local = tokio::task::spawn_blocking(move || {
        let data = observe_data(&there.target, known.checked.as_ref());
        let place = observe_place(&there, &recorded, &data);
        let end = if known.fresh { EndSeen::NeverRan } else { end_seen(&there) };
        (data, place, end, trust::rotates(&there))
    });
    let here = async {
        let (data, place, end, rotates) = local.await.unwrap_or_else(|error| {
            let why = format!("looking at it came to a halt: {error}");
            (DataSeen::Unknown(why.clone()), PlaceState::NotCompared, EndSeen::Unreadable(why), true)
        });
        let store = match store_matters(&data, &place) {
            true => observe_store(node, STORE_LIMIT).await,
            // Whole data of the only member starts whatever the store does; but it may be an older copy, and only the store can tell.
            false if tells_of_older_copy(node, &data) => observe_store(node, STORE_GLANCE).await,
            false => not_asked(node),
        };
        (data, place, end, store, rotates)
    };
    let elsewhere = async {
        if !node.has_peers() {
            return (ClusterSeen::Unreachable("this is the only member".to_owned()), BTreeMap::new());
        }
        let heard = cluster::hear(peers, &ledger).await;
        let confirmed = cluster::observe_cluster(node, &heard, &ledger).await;
        (confirmed, heard)
    };
    let elsewhere = async {
        let ((cluster, heard), seen) = tokio::join!(elsewhere, sightings::observe(node, peers, &ledger));
        let seen = sightings::complete(seen, node, &cluster, &heard).await;
        let peers = cluster::seen(&heard, node.name(), &ledger);
        (cluster, peers, seen)
    };
    let ((data, place, end, store, rotates), (cluster, peers, sightings)) = tokio::join!(here, elsewhere);
    let (ledger, nonce) = match fresh_nonce() {
        Ok(nonce) => (ledger, nonce),
        // Without a nonce nothing may be promised, as without a ledger.
        Err(fault) => (LedgerSeen::Unreadable(in_words(&fault)), String::new()),
    };
    Observed { data, place, ledger, end, cluster, peers, store, sightings, nonce, rotates }
}

/// 128 random bits, for the next promise.
fn fresh_nonce() -> Result<String, Fault> {
    let mut random = [0_u8; 16];
    fill_random(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// How etcd last ended, in a few words.
pub(crate) fn end_words(record: &ExitRecord) -> String {
    let asked = record.asked_by.as_deref().unwrap_or("someone");
    let how = match (record.code, record.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => record.error.clone().unwrap_or_else(|| "no one knows how".to_owned()),
    };
    match record.reason {
        Reason::Stopped => format!("stopped as asked by {asked}"),
        Reason::StoppedBadly => format!("stopped by {asked}, with {how}"),
        Reason::Killed => format!("killed: {asked} asked it to stop, and it did not in time"),
        Reason::Exited | Reason::Signalled => format!("ended by itself, with {how}"),
        Reason::NotStarted => format!("could not be executed: {how}"),
    }
}

fn end_seen(node: &Node) -> EndSeen {
    match exit_record::read(&node.state_path().join("exit-record")) {
        Recorded::Absent => EndSeen::Absent,
        Recorded::Unreadable(why) => EndSeen::Unreadable(why),
        Recorded::Record(record) if record.clean => EndSeen::Clean,
        Recorded::Record(record) => EndSeen::Unclean(end_words(&record)),
    }
}

fn store_matters(data: &DataSeen, place: &PlaceState) -> bool {
    match data {
        _ if matches!(place, PlaceState::NotMounted { .. } | PlaceState::Unknown(_)) => false,
        DataSeen::Absent => true,
        DataSeen::Unknown(_) => false,
        DataSeen::There(facts) => matches!(facts.verdict, Verdict::Corrupt(_)),
    }
}

fn tells_of_older_copy(node: &Node, data: &DataSeen) -> bool {
    let whole = matches!(data, DataSeen::There(facts) if facts.reach.is_some());
    whole && !node.has_peers() && node.spec.backup.is_some()
}

fn not_asked(node: &Node) -> StoreSeen {
    match node.spec.backup {
        None => StoreSeen::NotDeclared,
        Some(_) => StoreSeen::Unknown("it was not asked".to_owned()),
    }
}

async fn observe_store(node: &Arc<Node>, limit: Duration) -> StoreSeen {
    let Some(backup) = &node.spec.backup else { return StoreSeen::NotDeclared };
    let (url, scratch, own) = (backup.store.clone(), node.scratch(), own_clusters(node));
    let spool = node.spool();
    let asked = tokio::task::spawn_blocking(move || {
        Session::open(&url, &scratch).map(|session| and_spooled(seen(session, &own), &spool))
    });
    match tokio::time::timeout(limit, asked).await {
        Ok(Ok(Ok(seen))) => seen,
        Ok(Ok(Err(fault))) => StoreSeen::Unknown(match fault.hint_text() {
            Some(hint) if !hint.is_empty() => format!("{} ({hint})", in_words(&fault)),
            _ => in_words(&fault),
        }),
        Ok(Err(error)) => StoreSeen::Unknown(format!("asking it came to a halt: {error}")),
        Err(_) => StoreSeen::Unknown(format!("no answer within {} s", limit.as_secs())),
    }
}

/// What waits in the spool of this node follows on the store: it is uploaded before a restore.
fn and_spooled(seen: StoreSeen, spool: &Path) -> StoreSeen {
    let StoreSeen::Chain { cluster, revision: Some(stored), held } = seen else { return seen };
    // A spool that cannot be read adds nothing.
    let waiting = observe_waiting(spool).unwrap_or_default();
    let same = |part: &&Waiting| cluster.is_none_or(|cluster| cluster.0 == part.cluster_id);
    let revision = waiting
        .iter()
        .filter(same)
        .fold(stored, |reach, part| if part.first <= reach.saturating_add(1) { reach.max(part.last) } else { reach });
    StoreSeen::Chain { cluster, revision: Some(revision), held }
}

/// The cluster of this node by its ledger, and those that it descends from.
pub(crate) fn own_clusters(node: &Node) -> Vec<u64> {
    match observe_ledger(&node.ledger()) {
        LedgerSeen::There(ledger) => {
            ledger.cluster().into_iter().chain(ledger.ancestors()).map(|cluster| cluster.0).collect()
        }
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => Vec::new(),
    }
}

/// What the store holds. The newest chain is that of this node's own lineage, whatever else lies beside it.
fn seen(mut session: Session, own: &[u64]) -> StoreSeen {
    let catalog = &mut session.catalog;
    let objects = catalog.objects.iter().map(|object| (object.cluster_id, object.epoch));
    let mut held = Held::all(objects, &catalog.opened);
    // An epoch that cannot be read is somebody's.
    if catalog.notes.iter().any(|(name, _)| name.contains("/epoch/")) {
        held.push(Held { cluster: None, declared: None });
    }
    if held.is_empty() {
        return StoreSeen::Empty;
    }
    if let Some(mine) = catalog.lineages(own).into_iter().find(|lineage| lineage.has_any(own)) {
        catalog.narrow(&mine);
    }
    let chain = catalog.decide(Target::Newest).chain;
    let newest = chain.as_ref().map(|chain| chain.base).or(catalog.objects.len().checked_sub(1));
    let id = newest.and_then(|index| catalog.objects.get(index)).map_or(0, |object| object.cluster_id);
    let cluster = (id != 0).then_some(ClusterId(id));
    StoreSeen::Chain { cluster, revision: chain.map(|chain| chain.reach), held }
}
