//! What was seen before a start is decided on. "Did not answer" is a value of its own, everywhere.

use std::borrow::Cow;
use std::collections::BTreeMap;

use quorate_etcd_formats::delta::quorate::{Declared, Epoch};
use quorate_etcd_formats::membership::{ClusterId, MemberId};

use super::sightings::Sightings;
use crate::fork::{Fork, Report};
use crate::ledger::{Generation, LedgerSeen, Promise, RolledBack, Seal, StartMark};

/// Everything that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// The data dir.
    pub data: DataSeen,
    /// Whether directories without data are where the data was.
    pub place: PlaceState,
    /// This node's ledger.
    pub ledger: LedgerSeen,
    /// How etcd last ended here.
    pub end: EndSeen,
    /// The cluster, as its other members see it.
    pub cluster: ClusterSeen,
    /// The agents of the other declared members, by name. One that is missing here was not asked: unknown.
    pub peers: BTreeMap<String, PeerSeen>,
    /// The store of backups.
    pub store: StoreSeen,
    /// Other machines with this node's name, address or member.
    pub sightings: Sightings,
    /// A random text that no promise has: the nonce of the next one.
    pub nonce: String,
    /// This node trusts more than one authority of a kind: they are being rotated.
    pub rotates: bool,
}

impl Observed {
    /// The same without a confirmed list of another recovered cluster of this node's generation: it says nothing about the members of
    /// the own one, whose etcd has to run before it can be decided which of the two stops. A node without data runs none, and its
    /// cluster may be gone for good: the operator decides for it.
    pub(crate) fn without_rival(&self) -> Cow<'_, Observed> {
        let (LedgerSeen::There(ledger), ClusterSeen::Confirmed { cluster, .. }) = (&self.ledger, &self.cluster) else {
            return Cow::Borrowed(self);
        };
        if self.data == DataSeen::Absent {
            return Cow::Borrowed(self);
        }
        let reports = |peer: &PeerSeen| match peer {
            PeerSeen::Answered(answer) => {
                let Report { newest, cluster: own, .. } = answer.report();
                ledger.is_rival(newest) && newest.cluster == Some(*cluster) && own == Some(*cluster)
            }
            PeerSeen::Unknown(_) => false,
        };
        if !self.peers.values().any(reports) {
            return Cow::Borrowed(self);
        }
        let why = format!("the members that answer are `{cluster}`, another recovery of the same generation");
        Cow::Owned(Observed { cluster: ClusterSeen::Unreachable(why), ..self.clone() })
    }
}

/// The data dir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSeen {
    /// It could not be read, or a stranger holds it.
    Unknown(String),
    /// There is nothing.
    Absent,
    /// There is data of this member.
    There(DataFacts),
}

/// Data that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFacts {
    /// Whose it is; `None` where that cannot be read any more.
    pub ids: Option<(ClusterId, MemberId)>,
    /// The last index in its WAL, where known.
    pub last_index: Option<u64>,
    /// The term of the entry at that index, where known.
    pub last_term: Option<u64>,
    /// What checking it gave.
    pub verdict: Verdict,
    /// The newest revision that can still be read of it, where it was found damaged.
    pub readable: Option<u64>,
    /// The highest revision that it can lead to, its log included, where it was found whole.
    pub reach: Option<u64>,
}

/// Whether the directories that hold no data are where the member's data was when etcd last started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceState {
    /// Nothing to compare: the data is there, or no place is recorded.
    NotCompared,
    /// The recorded file system is mounted and holds the marker: the data was removed from it.
    Same,
    /// No file system is mounted at the recorded mount point.
    NotMounted {
        /// The directory without data.
        dir: String,
        /// The recorded mount point.
        mount_point: String,
        /// The recorded type of its file system.
        fs_type: String,
    },
    /// The directory is in a file system that does not hold the marker.
    OtherFileSystem {
        /// The directory without data.
        dir: String,
        /// Where the file system that holds it is mounted.
        mount_point: String,
    },
    /// It could not be found out.
    Unknown(String),
}

/// What checking the data gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It has not been checked since etcd last ended.
    Unchecked,
    /// Nothing that matters.
    Valid,
    /// A torn last record, which can be cut off.
    RepairableTail(String),
    /// etcd would fail or lose data on it.
    Corrupt(String),
    /// Either the data dir or the separate WAL dir holds nothing, and which.
    Half(String),
}

/// How etcd last ended here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndSeen {
    /// It closed its files as asked.
    Clean,
    /// Anything else, and what.
    Unclean(String),
    /// Nothing was written down: a power cut, or the first run.
    Absent,
    /// A record that cannot be read.
    Unreadable(String),
    /// etcd never ran on this data: it was made by this very run.
    NeverRan,
}

/// The cluster, as its other members see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterSeen {
    /// Nobody answered, or no quorum did.
    Unreachable(String),
    /// A quorum confirmed its members.
    Confirmed {
        /// Its id.
        cluster: ClusterId,
        /// Its members.
        members: Vec<ListedMember>,
    },
}

/// A member of a confirmed list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedMember {
    /// Its id.
    pub id: MemberId,
    /// Its name; empty while it never started.
    pub name: String,
    /// Where peers reach it.
    pub peer_urls: Vec<String>,
    /// Whether it ever started: it has told its client URLs. A founding member has its name before that.
    pub started: bool,
    /// Whether it only listens to the log and does not vote.
    pub learner: bool,
    /// How it is.
    pub health: Health,
}

/// How a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It was not asked, or its answer got lost.
    Unknown(String),
    /// It answered that it takes part.
    Healthy,
    /// It is known not to take part, and why.
    Unhealthy(String),
}

/// The agent of another member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there are as many as nodes, and each is looked at once")]
pub enum PeerSeen {
    /// It did not answer.
    Unknown(String),
    /// It did.
    Answered(PeerAnswer),
}

/// What another agent says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAnswer {
    /// What it has promised, if it has not founded yet.
    pub founding: PeerFounding,
    /// Whether it remembers this node as started.
    pub remembers_me_started: bool,
    /// The cluster that it recorded that start in, where it knows.
    pub remembers_me_in: Option<ClusterId>,
    /// Whether it keeps a tombstone of this node.
    pub my_tombstone: bool,
    /// The newest generation of the cluster that it knows of.
    pub generation: u64,
    /// The id that the cluster has in it, where it says so.
    pub generation_of: Option<ClusterId>,
    /// What its cluster recorded about itself against others of the same generation. None from agents of earlier releases.
    pub forks: Option<Vec<Fork>>,
    /// The highest index that it knows this very member (not an earlier one of this node) to have acknowledged.
    pub acknowledged: Option<u64>,
    /// The term of an entry that this member had applied by then. None where it is not recorded, and from agents of earlier releases.
    pub acknowledged_term: Option<u64>,
    /// The newest start of this very member that it knows of.
    pub my_start: Option<StartMark>,
    /// It knows that this very member was started on an older copy of its data.
    pub rolled_back: Option<RolledBack>,
    /// Bootstrap declarations that have been used there.
    pub consumed: Vec<u64>,
    /// Those of them that it gave up before anyone had started on them.
    pub dropped: Vec<u64>,
    /// Whom it remembers as started.
    pub started: Vec<String>,
    /// The nonces that its cluster was bootstrapped with, where it has them.
    pub seal: Option<Seal>,
}

impl PeerAnswer {
    /// What it says of generations.
    pub fn report(&self) -> Report {
        let newest = Generation { number: self.generation, cluster: self.generation_of };
        let cluster = match &self.founding {
            PeerFounding::Founded(cluster) => Some(*cluster),
            PeerFounding::Nothing | PeerFounding::Promised(_) | PeerFounding::Removed => None,
        };
        Report { newest, cluster, forks: self.forks.clone() }
    }
}

/// How far another node has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerFounding {
    /// It has promised nothing.
    Nothing,
    /// It has promised to found this.
    Promised(Promise),
    /// It is, or is about to become, a member of this cluster.
    Founded(ClusterId),
    /// It was removed for good, and takes part in nothing until it is reset.
    Removed,
}

/// The store of backups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreSeen {
    /// The file declares none.
    NotDeclared,
    /// It did not answer. Not the same as empty.
    Unknown(String),
    /// It holds nothing.
    Empty,
    /// It holds a chain.
    Chain {
        /// Whose; `None` where the layout does not say.
        cluster: Option<ClusterId>,
        /// The newest revision that can be proven, if any.
        revision: Option<u64>,
        /// Every cluster that has ever written there, as far as the store says.
        held: Vec<Held>,
    },
}

/// A cluster whose backups lie, or lay, in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its id; `None` where the layout does not say.
    pub cluster: Option<ClusterId>,
    /// The declaration that it comes of; `None` where its writer did not say. A restored cluster has another id, and the same
    /// declaration.
    pub declared: Option<Declared>,
}

impl Held {
    /// Of what objects and epochs say, each with its cluster's id (0: unknown) and number of its epoch.
    pub fn all(objects: impl IntoIterator<Item = (u64, u64)>, epochs: &[Epoch]) -> Vec<Held> {
        let id = |epoch: &Epoch| u64::from_str_radix(&epoch.cluster_id, 16).unwrap_or(0);
        let opened = epochs.iter().map(|epoch| (id(epoch), epoch.epoch));
        let mut held: Vec<Held> = Vec::new();
        for (said, number) in objects.into_iter().chain(opened) {
            let writer = epochs.iter().find(|epoch| epoch.epoch == number);
            let cluster = if said == 0 { writer.map_or(0, id) } else { said };
            let own = writer.filter(|epoch| id(epoch) == cluster).and_then(|epoch| epoch.declared.as_ref());
            let mut same = epochs.iter().filter(|epoch| cluster != 0 && id(epoch) == cluster);
            let declared = own.or_else(|| same.find_map(|epoch| epoch.declared.as_ref())).cloned();
            let one = Held { cluster: (cluster != 0).then_some(ClusterId(cluster)), declared };
            if !held.contains(&one) {
                held.push(one);
            }
        }
        held
    }
}
