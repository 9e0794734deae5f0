//! The ledger: what a node must remember and cannot observe again. One small file, written durably before each step that it
//! speaks of.
//!
//! **Invariant:** a ledger that does not match its checksum is unreadable, never empty; and what has been started is never
//! forgotten by encoding and decoding.

mod generations;
mod places;
mod progress;
mod state;

use std::collections::BTreeMap;

use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::fork::Fork;

pub use generations::{Generation, RecoveredAt};
pub use places::{AcceptedEmpty, Place, Places};
pub use progress::{Progress, RolledBack, StartMark};
pub use state::{Dropped, Identity, Origin, PendingAdd, Promise, Seal, State, Tombstone};

/// The newest form that is written; readers refuse a newer one.
pub const VERSION: u32 = 6;

/// Longest ledger that is read: thousands of peers fit.
pub const BYTES_MAX: usize = 4 << 20;

/// What a node remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// How far this node has come.
    pub state: State,
    /// Grows with each recovery of the cluster from its remains; the highest one is the cluster.
    #[serde(default)]
    pub generation: u64,
    /// A newer generation that this node has heard of. What it holds is of the time before, and is not started any more, also when
    /// nobody is left who could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outdated_by: Option<Generation>,
    /// Bootstrap declarations that have been used. They stay inert for ever, also after a reset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consumed: Vec<u64>,
    /// Promises that were given up before anyone started on them. Nobody's start on them is written down here any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
    /// What is known of the other members, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<String, PeerMemory>,
    /// The member list that a quorum last confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<Confirmed>,
    /// The cluster file that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_hash: Option<String>,
    /// How far backups have come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupCursor>,
    /// The clusters that this one was restored from: their backups are its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub was: Vec<ClusterId>,
    /// The clusters that this node left by a reset, with those that they were restored from. Their backups may be its own; they are
    /// not its past where two recoveries made the same generation. A reset by an earlier release recorded them in `was`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<ClusterId>,
    /// What an operator asked of this node, until it is done or withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<Intent>,
    /// The learner that the cluster has, and since when this node knows of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learner: Option<LearnerSince>,
    /// Where the data was when etcd last started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<Places>,
    /// The operator accepted that the data dir is empty on another file system; used up by the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_empty: Option<AcceptedEmpty>,
    /// The data dir and the separate WAL dir are being renamed: one of them may be gone already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archiving: bool,
    /// How far each member was seen, this one included: evidence against a disk that is put back to an older copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<Progress>,
    /// The newest start of etcd on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_start: Option<StartMark>,
    /// The data of a member of this node was put back to an older copy. It holds for that member's id alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
    /// The nonces that its cluster was bootstrapped with, for members that lost theirs before they started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Seal>,
    /// What the recovered cluster of this node recorded about itself when it met others of the same generation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forks: Vec<Fork>,
    /// The operator took the data over as it is: until it was backed up, the store may hold more of its cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_over: bool,
    /// Where the history of the recovered cluster of this node begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered: Option<RecoveredAt>,
}

/// What an operator asked of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// What.
    pub kind: IntentKind,
    /// Who asked, or why.
    pub why: String,
    /// When, in ms since 1970.
    pub at_ms: u64,
}

/// What a node can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IntentKind {
    /// To leave the cluster for good.
    Leave,
    /// To stop with the whole cluster. Nobody leaves it, and nobody starts.
    Teardown,
}

/// A learner, and since when it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnerSince {
    /// Its id.
    pub member: MemberId,
    /// In ms since 1970.
    pub since_ms: u64,
}

/// What is known of another member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerMemory {
    /// Whether it ever started, in the cluster that is ours.
    pub started: bool,
    /// Its id, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
    /// The cluster that it said to start in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Whether it was removed for good.
    #[serde(default)]
    pub tombstone: bool,
}

/// A member list that a quorum confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirmed {
    /// When, in ms since 1970.
    pub at_ms: u64,
    /// The members.
    pub members: Vec<ConfirmedMember>,
}

/// A member of a confirmed list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfirmedMember {
    /// Its id.
    pub id: MemberId,
    /// Its name; empty while it never started.
    pub name: String,
    /// Where peers reach it.
    pub peer_urls: Vec<String>,
    /// Whether it only listens.
    #[serde(default)]
    pub learner: bool,
}

/// How far backups have come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupCursor {
    /// The store, without secrets.
    pub store: String,
    /// The epoch that we write in.
    pub epoch: u32,
    /// Everything up to it is in the store.
    pub revision: u64,
}

/// What was found where the ledger should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerSeen {
    /// No file: this node never promised anything.
    Absent,
    /// A file that does not say what it should, and why. Not the same as none.
    Unreadable(String),
    /// The ledger.
    There(Box<Ledger>),
}

/// Why bytes are not a ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Longer than any ledger.
    #[error("it is longer than {BYTES_MAX} bytes")]
    TooLong,
    /// It does not begin as ledgers do.
    #[error("it does not begin with `quorate-ledger`")]
    NotOne,
    /// Written by a newer Quorate.
    #[error("it has version {0}, and this program reads up to {VERSION}")]
    Newer(u32),
    /// Changed since it was written.
    #[error("its checksum does not match")]
    Damaged,
    /// The checksum is right and the content is not.
    #[error("its content cannot be understood: {0}")]
    Content(String),
}

impl Ledger {
    /// The bytes to be written.
    pub fn encode(&self) -> Vec<u8> {
        // Nothing in a ledger can fail to serialise: its map has text for keys.
        let mut body = serde_json::to_string_pretty(self).unwrap_or_default();
        body.push('\n');
        format!("quorate-ledger {} sha256:{}\n{body}", self.version(), sum(body.as_bytes())).into_bytes()
    }

    /// The oldest form that says all of it: an earlier program reads what it understands still.
    fn version(&self) -> u32 {
        let undeclared = matches!(&self.state, State::Tombstone(stone) if stone.undeclared);
        match () {
            () if !self.left.is_empty() => VERSION,
            () if !self.forks.is_empty() || self.recovered.is_some() || self.taken_over => 5,
            () if self.rolled_back.is_some_and(|it| it.by_store) => 5,
            () if self.places.is_some() || self.accepted_empty.is_some() || self.archiving => 4,
            () if !self.progress.is_empty() || self.last_start.is_some() || self.rolled_back.is_some() => 4,
            () if self.has_nonces() => 4,
            () if self.outdated_by.is_some() => 3,
            () if self.intent.is_some() || self.learner.is_some() || undeclared => 2,
            () => 1,
        }
    }

    /// Whether it holds what earlier releases do not read: nonces, or the declaration of a withdrawn promise.
    fn has_nonces(&self) -> bool {
        let promise = match &self.state {
            State::Promised(promise) | State::Inited(promise) => promise.nonce.is_some() || !promise.nonces.is_empty(),
            State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => false,
        };
        promise || self.seal.is_some() || self.dropped.iter().any(|dropped| dropped.declaration.is_some())
    }

    /// The cluster that this node belongs to, or is about to.
    pub fn cluster(&self) -> Option<ClusterId> {
        match &self.state {
            State::Started(identity) => Some(identity.cluster),
            State::PendingAdd(add) => Some(add.cluster),
            State::Empty | State::Promised(_) | State::Inited(_) | State::Tombstone(_) => None,
        }
    }

    /// Reads what was written.
    pub fn decode(bytes: &[u8]) -> Result<Ledger, LedgerError> {
        if bytes.len() > BYTES_MAX {
            return Err(LedgerError::TooLong);
        }
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(LedgerError::NotOne)?;
        let (head, rest) = bytes.split_at_checked(end).ok_or(LedgerError::NotOne)?;
        let body = rest.get(1..).unwrap_or_default();
        let head = std::str::from_utf8(head).map_err(|_| LedgerError::NotOne)?;
        let words: Vec<&str> = head.split(' ').collect();
        let ["quorate-ledger", version, checksum] = words.as_slice() else { return Err(LedgerError::NotOne) };
        let version: u32 = version.parse().map_err(|_| LedgerError::NotOne)?;
        if version > VERSION {
            return Err(LedgerError::Newer(version));
        }
        if checksum.strip_prefix("sha256:") != Some(sum(body).as_str()) {
            return Err(LedgerError::Damaged);
        }
        let ledger: Ledger = serde_json::from_slice(body).map_err(|error| LedgerError::Content(error.to_string()))?;
        // The sum does not cover the number, but what is told decides it.
        if ledger.version() == version { Ok(ledger) } else { Err(LedgerError::Damaged) }
    }

    /// The ids that are ours, where there are any.
    pub fn ids(&self) -> Option<(ClusterId, MemberId)> {
        match &self.state {
            State::Promised(promise) | State::Inited(promise) => {
                promise.is_sealed().then_some((promise.cluster, promise.member))
            }
            State::Started(identity) => Some((identity.cluster, identity.member)),
            State::PendingAdd(add) => add.member.map(|member| (add.cluster, member)),
            State::Tombstone(stone) => Some((stone.cluster, stone.member)),
            State::Empty => None,
        }
    }

    /// What is left after `quorate data reset`: nothing but the declarations that were used, and which
    /// clusters it was in.
    #[must_use]
    pub fn reset(&self) -> Ledger {
        let mut consumed = self.consumed.clone();
        if let State::Promised(promise) | State::Inited(promise) = &self.state {
            consumed.push(promise.bootstrap);
        }
        consumed.sort_unstable();
        consumed.dedup();
        // Backups are continued where restored data is adopted here next; a bootstrap begins a lineage of its own.
        let mut left = self.ancestors();
        if let State::Started(Identity { cluster, .. }) = &self.state
            && !left.contains(cluster)
        {
            left.push(*cluster);
        }
        Ledger { consumed, dropped: self.dropped.clone(), left, last_start: self.last_start, ..Ledger::default() }
    }

    /// The clusters whose backups may be those of this node, beside its own one.
    pub fn ancestors(&self) -> Vec<ClusterId> {
        let mut all = self.was.clone();
        all.extend(self.left.iter().filter(|cluster| !self.was.contains(cluster)));
        all
    }

    /// The same with another state. Once started, the declaration that led there is used up; a promise that makes room for
    /// nothing is given up for good; once restored, the cluster that it was before is remembered; and who asks to join keeps
    /// what it takes the place of, and takes over the generation.
    #[must_use]
    pub fn with(&self, state: State) -> Ledger {
        let mut next = Ledger { state, ..self.clone() };
        match (&mut next.state, &self.state) {
            (State::Started(_), State::Promised(promise) | State::Inited(promise)) => {
                if !next.consumed.contains(&promise.bootstrap) {
                    next.consumed.push(promise.bootstrap);
                }
                next.seal = promise.seal();
            }
            (State::Promised(new), State::Promised(old) | State::Inited(old)) => {
                // Another member may have begun since it was decided to replace what was sealed.
                let replaces = old.is_sealed() && old.nonces != new.nonces;
                if replaces && self.began(old).next().is_some() {
                    return self.clone();
                }
            }
            (State::Empty, State::Promised(promise) | State::Inited(promise)) => {
                // Someone may have begun since it was decided to give it up.
                if !promise.over && self.began(promise).next().is_some() {
                    return self.clone();
                }
                next.give_up(promise);
            }
            (State::Started(new), State::Started(old)) => {
                if new.origin == Origin::Restored && new.cluster != old.cluster && !next.was.contains(&old.cluster) {
                    next.was.push(old.cluster);
                }
            }
            // What is bootstrapped descends from nothing.
            (State::Promised(new), State::Empty) => {
                // A peer may have begun another bootstrap since this was decided.
                if self.bound().any(|cluster| !new.is_sealed() || cluster != new.cluster) {
                    return self.clone();
                }
                next.was.clear();
                next.left.clear();
            }
            (State::PendingAdd(new), earlier) => {
                // A recovered cluster descends from the one that this node was in; another one need not.
                if new.generation == 0 && *earlier == State::Empty {
                    next.was.clear();
                    next.left.clear();
                }
                if let State::PendingAdd(old) = earlier
                    && old.cluster == new.cluster
                {
                    new.replaces = new.replaces.or(old.replaces);
                }
                new.generation = new.generation.max(self.generation);
                next.generation = new.generation;
            }
            (
                State::Empty | State::Promised(_) | State::Inited(_) | State::Started(_) | State::Tombstone(_),
                State::Empty
                | State::Promised(_)
                | State::Inited(_)
                | State::Started(_)
                | State::PendingAdd(_)
                | State::Tombstone(_),
            ) => {}
        }
        // What a cluster recorded about itself is not true of another one.
        if next.cluster() != self.cluster() {
            next.forks.clear();
        }
        next
    }

    /// What others were said to have started was in this founding, of which now nothing comes.
    fn give_up(&mut self, promise: &Promise) {
        let Promise { bootstrap, cluster, members, .. } = promise;
        if !self.consumed.contains(bootstrap) {
            self.consumed.push(*bootstrap);
        }
        let declaration = promise.nonce.is_some().then(|| promise.declaration.clone());
        let dropped = Dropped { bootstrap: *bootstrap, cluster: *cluster, members: members.clone(), declaration };
        self.dropped.push(dropped);
        for memory in self.peers.values_mut().filter(|memory| memory.is_of(*cluster)) {
            (memory.started, memory.member, memory.cluster) = (false, None, None);
        }
    }

    /// The clusters that peers said to start in.
    pub fn bound(&self) -> impl Iterator<Item = ClusterId> {
        self.peers.values().filter(|memory| memory.started).filter_map(|memory| memory.cluster)
    }

    /// Who said to have started on a promise.
    pub fn began(&self, promise: &Promise) -> impl Iterator<Item = &str> {
        let began = |memory: &PeerMemory| memory.started && memory.is_of(promise.cluster);
        self.peers.iter().filter(move |(_, memory)| began(memory)).map(|(name, _)| name.as_str())
    }
}

impl PeerMemory {
    /// Whether the node that asks was removed for good. One that has become another member since was not.
    pub fn buries(&self, asker: Option<MemberId>) -> bool {
        self.tombstone && asker.is_none_or(|asker| self.member == Some(asker))
    }

    /// Whether it may be of this cluster.
    pub fn is_of(&self, cluster: ClusterId) -> bool {
        self.cluster.is_none_or(|its| its == cluster)
    }
}

fn sum(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests;
