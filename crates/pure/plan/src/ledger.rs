//! The ledger: what a node must remember and cannot observe again. One small file, written durably before each step that it
//! speaks of.
//!
//! **Invariant:** a ledger that does not match its checksum is unreadable, never empty; and what has been started is never
//! forgotten by encoding and decoding.

mod places;
mod progress;

use std::collections::BTreeMap;

use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use places::{AcceptedEmpty, Place, Places};
pub use progress::{Progress, RolledBack, StartMark};

/// The newest form that is written; readers refuse a newer one.
pub const VERSION: u32 = 4;

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
}

/// A generation of the cluster: what an operator made of its remains, or what was there before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// They are counted.
    pub number: u64,
    /// The id that the cluster has in it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
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

/// How far a node has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case", deny_unknown_fields)]
pub enum State {
    /// Nothing was ever promised or run.
    #[default]
    Empty,
    /// Promised to found this very cluster; peers may have been told.
    Promised(Promise),
    /// The data dir was made; etcd never ran on it.
    Inited(Promise),
    /// etcd runs or ran as this member.
    Started(Identity),
    /// An existing cluster was, or is about to be, asked to add us.
    PendingAdd(PendingAdd),
    /// This member was removed for good.
    Tombstone(Tombstone),
}

/// What a node has promised to found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promise {
    /// The declaration's number.
    pub bootstrap: u64,
    /// The hash of members, token and number.
    pub declaration: String,
    /// The cluster that comes of it.
    pub cluster: ClusterId,
    /// Our member in it.
    pub member: MemberId,
    /// The names of all its members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// Another member is known to have given it up, so nothing comes of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
    /// Random, drawn for this promise. None in promises of earlier releases, whose ids follow from the file alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// The nonces of all members by name, once every one is known: the promise is sealed, and its ids are computed from them. Until
    /// then `cluster` and `member` are those of the file alone, which no member is ever started with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nonces: BTreeMap<String, String>,
}

/// The nonces that the cluster of this node was bootstrapped with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seal {
    /// The hash of members, token and number.
    pub declaration: String,
    /// The cluster that came of it.
    pub cluster: ClusterId,
    /// By name of the member.
    pub nonces: BTreeMap<String, String>,
}

/// A promise that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropped {
    /// The declaration's number.
    pub bootstrap: u64,
    /// The cluster that would have come of it.
    pub cluster: ClusterId,
    /// The names of all its members.
    pub members: Vec<String>,
    /// The hash of members, token and number. None where an earlier release wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declaration: Option<String>,
}

/// Which member of which cluster this node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The member.
    pub member: MemberId,
    /// How it came to be.
    pub origin: Origin,
}

/// How a member came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// With its cluster.
    Founded,
    /// Into a cluster that was there.
    Joined,
    /// From a backup.
    Restored,
    /// Others founded it; we took it over.
    Adopted,
}

/// A wish to join that may or may not have been heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PendingAdd {
    /// The cluster that was asked.
    pub cluster: ClusterId,
    /// The id that it gave us, once it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
    /// Under which URLs.
    pub peer_urls: Vec<String>,
    /// The member of this node that it takes the place of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<MemberId>,
    /// The generation of the cluster that was asked.
    #[serde(default)]
    pub generation: u64,
}

/// A member that is no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tombstone {
    /// The cluster.
    pub cluster: ClusterId,
    /// The member.
    pub member: MemberId,
    /// Who removed it, or why.
    pub why: String,
    /// When, in ms since 1970.
    pub at_ms: u64,
    /// It was removed because its file did not declare it: declared again, it may come back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undeclared: bool,
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
            () if self.places.is_some() || self.accepted_empty.is_some() || self.archiving => VERSION,
            () if !self.progress.is_empty() || self.last_start.is_some() || self.rolled_back.is_some() => VERSION,
            () if self.has_nonces() => VERSION,
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

    /// The newest generation of the cluster that this node knows of, its own or another.
    pub fn newest(&self) -> Generation {
        let own = Generation { number: self.generation, cluster: self.cluster() };
        self.outdated_by.filter(|newer| newer.number > self.generation || self.loses_to(*newer)).unwrap_or(own)
    }

    /// Whether what this node holds is of an older generation than it has heard of.
    pub fn is_outdated(&self) -> bool {
        self.outdated_by.is_some_and(|newer| newer.number > self.generation || self.loses_to(newer))
    }

    /// Whether another cluster of the same generation wins over the one of this node. Two recoveries made both: the lower id
    /// wins, and the ids of generations that were claimed in a store are lower than all others.
    pub fn loses_to(&self, other: Generation) -> bool {
        let own = self.cluster().filter(|_| self.generation > 0 && other.number == self.generation);
        own.zip(other.cluster).is_some_and(|(own, other)| other < own && !self.was.contains(&other))
    }

    /// The same, knowing of a generation that is newer than its own.
    #[must_use]
    pub fn outdated_by(&self, newer: Generation) -> Ledger {
        let known = self.newest();
        let says_more = newer.number == known.number && self.is_outdated() && known.cluster.is_none();
        let forks = self.loses_to(newer) && !self.is_outdated();
        let newer = (newer.number > known.number || says_more || forks).then_some(newer);
        Ledger { outdated_by: newer.or(self.outdated_by), ..self.clone() }
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
        let mut was = self.was.clone();
        if let State::Started(Identity { cluster, .. }) = &self.state
            && !was.contains(cluster)
        {
            was.push(*cluster);
        }
        Ledger { consumed, dropped: self.dropped.clone(), was, last_start: self.last_start, ..Ledger::default() }
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
            }
            (State::PendingAdd(new), earlier) => {
                // A recovered cluster descends from the one that this node was in; another one need not.
                if new.generation == 0 && *earlier == State::Empty {
                    next.was.clear();
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

impl Promise {
    /// Whether both are of the same declaration. Which cluster comes of it is decided when they are sealed.
    pub fn is_same_founding(&self, other: &Promise) -> bool {
        self.bootstrap == other.bootstrap && self.declaration == other.declaration
    }

    /// Whether its ids are final: every nonce is known, or it is of an earlier release and has none.
    pub fn is_sealed(&self) -> bool {
        self.nonce.is_none() || !self.nonces.is_empty()
    }

    /// Whether both lead to the very same cluster.
    pub fn is_same_cluster(&self, other: &Promise) -> bool {
        self.is_same_founding(other) && self.is_sealed() && other.is_sealed() && self.cluster == other.cluster
    }

    /// The nonces that it was sealed with; none for one of an earlier release.
    fn seal(&self) -> Option<Seal> {
        let Promise { declaration, cluster, nonces, .. } = self.clone();
        (!nonces.is_empty()).then_some(Seal { declaration, cluster, nonces })
    }
}

impl State {
    /// The word for it.
    pub fn word(&self) -> &'static str {
        match self {
            State::Empty => "empty",
            State::Promised(_) => "promised",
            State::Inited(_) => "inited",
            State::Started(_) => "started",
            State::PendingAdd(_) => "pending add",
            State::Tombstone(_) => "tombstone",
        }
    }
}

fn sum(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests;
