//! What agents tell each other.
//!
//! **Rule:** readers pass over what they do not know, so that agents of neighbouring versions understand each other; what is
//! missing is never made up.

use std::collections::BTreeMap;

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::change::{LogRead, NodeNow, Restart, Stage};
use quorate_plan::file_order::SignedFileOrder;
use quorate_plan::fork::Fork;
use quorate_plan::ledger::{
    Confirmed, Intent, IntentKind, Ledger, PeerMemory, Promise, RolledBack, Seal, StartMark, State,
};
use quorate_plan::peering::Role;
use quorate_plan::peers::founding;
use quorate_plan::start::{PeerAnswer, PeerFounding};
use serde::{Deserialize, Serialize};

/// What a node tells of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// Its name.
    pub name: String,
    /// The newest generation of the cluster that it knows of: its own, or one that was made without it.
    pub generation: u64,
    /// The id that the cluster has in it. None while it is being made, and from agents of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation_of: Option<ClusterId>,
    /// What its cluster recorded about itself against other recovered ones of the same generation. None from agents of earlier
    /// releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forks: Option<Vec<Fork>>,
    /// What its cluster file declares to found, as a hash.
    pub declaration: String,
    /// Its whole cluster file, as a hash.
    pub file: String,
    /// How far it has come.
    pub founding: FoundingAnswer,
    /// Which member it is, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
    /// Bootstrap declarations that it has used.
    #[serde(default)]
    pub consumed: Vec<u64>,
    /// Those of them that it gave up before anyone had started on them.
    #[serde(default)]
    pub dropped: Vec<u64>,
    /// What it remembers of others, by name.
    #[serde(default)]
    pub peers: BTreeMap<String, PeerMemory>,
    /// The member list that a quorum last confirmed to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<Confirmed>,
    /// The highest index that it saw each member at.
    #[serde(default)]
    pub acknowledged: Vec<Acknowledged>,
    /// The newest start of its etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartMark>,
    /// What its agent is doing, in one word.
    pub phase: String,
    /// Whether its member leads.
    #[serde(default)]
    pub leads: bool,
    /// Whether it pauses its member, for upkeep or to start it again.
    #[serde(default)]
    pub upkeep: Upkeep,
    /// How far it has come as a member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// The release of etcd that runs there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<String>,
    /// The schema of its database, where etcd tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// How many entries its log holds behind its newest raft snapshot that etcd 3.7 cannot read, where its agent has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v2_entries: Option<u64>,
    /// Which part of its log that count is about. None from agents of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogRead>,
    /// Why its etcd has to be restarted, where it has to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Whether its agent has looked at the cluster and at its etcd since it has this file.
    #[serde(default)]
    pub settled: bool,
    /// What was asked of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<Intent>,
    /// All that was written until then is in the store, in ms since 1970, where its agent backs up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backed_up_ms: Option<u64>,
    /// The newest revision that can be restored from the store, where its agent has put something there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_revision: Option<u64>,
    /// The cluster's revision when its agent first looked since its etcd runs, with the release that it is to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_revision: Option<u64>,
    /// The members that it found with other data than the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differing: Vec<MemberId>,
    /// What it is, in a cluster by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// What time it is there, in ms since 1970. None from agents of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ms: Option<u64>,
    /// Whether it holds the issuing keys, where its certificates are renewed by agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issues_certificates: Option<bool>,
    /// Which machine its agent runs on: a nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The same in words: its host name and address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The members that answered when its agent last looked, some seconds ago at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sees: Option<Vec<MemberId>>,
    /// The nonce of its promise. None where it has promised nothing, and from agents of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// The nonces that its promise is sealed with, or that its cluster was bootstrapped with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Seal>,
    /// The serial of the last signed cluster file that it followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_serial: Option<u64>,
}

/// Whether etcd waited for a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartAnswer {
    /// It did; it is restarted in its turn.
    pub waits: bool,
}

/// How far a member was seen to have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// The member.
    pub member: MemberId,
    /// The raft index.
    pub index: u64,
    /// The term of an entry that it had applied by then. None from agents of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// Its newest start that was heard of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartMark>,
    /// It was started on data that ended before what it had committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
}

/// How far a node has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum FoundingAnswer {
    /// It has promised nothing.
    Nothing,
    /// It has promised to found this.
    Promised(Promise),
    /// It belongs, or belonged, to this cluster.
    Founded {
        /// The cluster.
        cluster: ClusterId,
    },
    /// It was removed for good.
    Removed,
}

/// Upkeep that pauses a member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Upkeep {
    /// None.
    #[default]
    None,
    /// It would like to, and asks whether it may.
    Wanted,
    /// It does, or is about to.
    Running,
}

impl FoundingAnswer {
    /// What a ledger says.
    pub fn of(ledger: &Ledger) -> FoundingAnswer {
        match founding(ledger) {
            PeerFounding::Nothing => FoundingAnswer::Nothing,
            // Its nonces are told beside it: agents of earlier releases refuse a promise with keys that they do not know.
            PeerFounding::Promised(promise) => {
                FoundingAnswer::Promised(Promise { nonce: None, nonces: BTreeMap::new(), ..promise })
            }
            PeerFounding::Founded(cluster) => FoundingAnswer::Founded { cluster },
            PeerFounding::Removed => FoundingAnswer::Removed,
        }
    }
}

/// The nonces of a node, as its ledger has them: that of its promise, and those that it is sealed with.
pub(super) fn nonces_of(ledger: &Ledger) -> (Option<String>, Option<Seal>) {
    match &ledger.state {
        State::Promised(promise) | State::Inited(promise) => {
            let Promise { declaration, cluster, nonces, nonce, .. } = promise.clone();
            (nonce, (!nonces.is_empty()).then_some(Seal { declaration, cluster, nonces }))
        }
        State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => {
            (None, ledger.seal.clone().filter(|seal| ledger.cluster() == Some(seal.cluster)))
        }
    }
}

impl NodeAnswer {
    /// A promise with the nonces that were told beside it.
    fn with_nonces(&self, promise: &Promise) -> Promise {
        let same = |seal: &&Seal| seal.declaration == promise.declaration && seal.cluster == promise.cluster;
        let nonces = self.seal.as_ref().filter(same).map(|seal| seal.nonces.clone()).unwrap_or_default();
        Promise { nonce: self.nonce.clone(), nonces, ..promise.clone() }
    }

    /// What it means for the node `me`, which is member `mine`.
    pub fn seen_by(&self, me: &str, mine: Option<MemberId>) -> PeerAnswer {
        let memory = self.peers.get(me);
        let acknowledged = self.acknowledged.iter().find(|seen| Some(seen.member) == mine);
        PeerAnswer {
            founding: match &self.founding {
                FoundingAnswer::Nothing => PeerFounding::Nothing,
                FoundingAnswer::Promised(promise) => PeerFounding::Promised(self.with_nonces(promise)),
                FoundingAnswer::Founded { cluster } => PeerFounding::Founded(*cluster),
                FoundingAnswer::Removed => PeerFounding::Removed,
            },
            remembers_me_started: memory.is_some_and(|memory| memory.started),
            remembers_me_in: memory.and_then(|memory| memory.cluster),
            my_tombstone: memory.is_some_and(|memory| memory.buries(mine)),
            generation: self.generation,
            generation_of: self.generation_of,
            forks: self.forks.clone(),
            acknowledged: acknowledged.map(|seen| seen.index),
            acknowledged_term: acknowledged.and_then(|seen| seen.term),
            my_start: acknowledged.and_then(|seen| seen.start),
            rolled_back: acknowledged.and_then(|seen| seen.rolled_back),
            consumed: self.consumed.clone(),
            dropped: self.dropped.clone(),
            started: self.peers.iter().filter(|(_, memory)| memory.started).map(|(name, _)| name.clone()).collect(),
            seal: self.seal.clone(),
        }
    }
}

impl NodeAnswer {
    /// What it means for changes of the whole cluster.
    pub fn now(&self) -> NodeNow {
        let guessed = match self.founding {
            FoundingAnswer::Nothing | FoundingAnswer::Promised(_) => Stage::Blank,
            FoundingAnswer::Founded { .. } => Stage::Member,
            FoundingAnswer::Removed => Stage::Removed,
        };
        NodeNow {
            generation: self.generation,
            file: self.file.clone(),
            stage: self.stage.unwrap_or(guessed),
            member: self.member,
            etcd: self.etcd.clone(),
            storage: self.storage.clone(),
            v2_entries: self.v2_entries,
            log: self.log,
            restart: self.restart.clone(),
            intent: self.intent.as_ref().map(|intent| intent.kind),
            pausing: self.upkeep == Upkeep::Running,
            since: self.since_revision,
        }
    }
}

/// "I am about to start": what a peer writes down before it says yes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedRequest {
    /// Who.
    pub name: String,
    /// In which cluster.
    pub cluster: ClusterId,
    /// As which member.
    pub member: MemberId,
    /// The hash of what it bootstraps. None from agents of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declaration: Option<String>,
}

/// It is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedAnswer {
    /// Always true: it would have been refused otherwise.
    pub recorded: bool,
}

/// Another cluster file, for the place of the one that the node has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRequest {
    /// Its text.
    pub text: String,
    /// The hash of the file that it is to replace, as `/v1/node` tells it.
    pub replaces: String,
    /// The operator's signature over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<SignedFileOrder>,
    /// The word of a second server for nodes that it adds to a peer-managed cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<serde_json::Value>,
}

impl FileRequest {
    /// A file in the place of the one with this hash.
    pub fn new(text: String, replaces: String) -> FileRequest {
        FileRequest { text, replaces, order: None, approvals: Vec::new() }
    }
}

/// The cluster file that a node acts on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTold {
    /// Its text.
    pub text: String,
    /// Its hash, as `/v1/node` tells it.
    pub file: String,
    /// The operator's signature that it came with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<SignedFileOrder>,
}

/// A cluster file that is shown to a node, and not given to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTrial {
    /// Its text.
    pub text: String,
    /// The operator's signature over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<SignedFileOrder>,
    /// Whether it is also refused where the node would not take it from this caller with this signature.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub will_be_sent: bool,
}

/// What such a file would mean for the node that it was shown to. One that it would not take is refused instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTried {
    /// Why its etcd would be restarted, where it would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// The file does not declare the node: it would leave.
    #[serde(default)]
    pub leaves: bool,
}

/// It is taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAnswer {
    /// The hash of the file that the node acts on from here on.
    pub file: String,
    /// Under which name the file from before is kept; none where the same file was there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// The file does not declare this node: it leaves.
    #[serde(default)]
    pub leaves: bool,
}

/// What a node is asked to become.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentRequest {
    /// What; none: nothing any more.
    pub intent: Option<IntentKind>,
    /// Why, for whoever looks later.
    pub why: String,
}

/// It is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentAnswer {
    /// What holds from here on.
    pub intent: Option<Intent>,
}

/// Leadership was handed over, or there was none to hand over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOverAnswer {
    /// To whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<MemberId>,
}

/// What a node decided last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanAnswer {
    /// Its name.
    pub name: String,
    /// Why.
    pub because: String,
    /// The steps, in their order.
    pub steps: Vec<String>,
    /// Whether something has to happen first.
    pub waiting: bool,
    /// Whether someone has to decide first.
    pub refused: bool,
    /// The hash of its cluster file.
    pub file: String,
}

/// No.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The page that says more.
    pub code: String,
    /// Lower case, no full stop.
    pub why: String,
    /// The newest generation that whoever refuses knows of, where that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The id that the cluster has in it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation_of: Option<ClusterId>,
}
