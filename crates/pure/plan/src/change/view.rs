//! The whole cluster as one agent, or an operator's command, sees it. "Did not answer" is a value of its own, everywhere.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use serde::{Deserialize, Serialize};

use crate::ledger::{IntentKind, LearnerSince, Ledger, State};
use crate::spec::Spec;
use crate::start::{ClusterSeen, Health, ListedMember};

/// How far a learner may be behind and still count as caught up. etcd itself is content with nine tenths of the log.
pub const LAG_MAX: u64 = 500;

/// Whether a learner at `its` index has caught up with a cluster that has committed `leads`.
pub fn has_caught_up(its: u64, leads: u64) -> bool {
    its.saturating_add(LAG_MAX) >= leads
}

/// How long a learner may take to come up, unless someone says otherwise.
pub const LEARNER_UP_MS: u64 = 5 * 60 * 1000;

/// How many of so many voters may get another address at once: those that stay are a majority, and everyone who moved finds them.
pub fn moved_at_once_max(voters: usize) -> usize {
    (voters.saturating_sub(1) / 2).max(1)
}

/// Everything that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    /// The member list that a quorum confirmed just now, with how each member is.
    pub cluster: ClusterSeen,
    /// Who leads, where known.
    pub leader: Option<MemberId>,
    /// The raft index that each member answered with.
    pub indexes: BTreeMap<MemberId, u64>,
    /// The index up to which each member has applied its log, where it told.
    pub applied: BTreeMap<MemberId, u64>,
    /// The members that etcd's alarm CORRUPT is about; one without a name is about nobody in particular.
    pub corrupt: BTreeSet<MemberId>,
    /// The members that were found with other data than the others at one revision.
    pub differing: BTreeSet<MemberId>,
    /// What the agents say, by name of the node, one's own included. One that is missing was not asked: unknown.
    pub nodes: BTreeMap<String, NodeSeen>,
    /// The learner that there is, and since when it is known (see [`note_learner`]).
    pub learner: Option<LearnerSince>,
    /// The newest revision that can be restored from the store, as far as any agent knows.
    pub stored: Option<u64>,
    /// Now, in ms since 1970.
    pub now_ms: u64,
    /// How long a learner may take to come up.
    pub learner_up_ms: u64,
}

/// The agent of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeSeen {
    /// It did not answer.
    Unknown(String),
    /// It did.
    Answered(Box<NodeNow>),
}

/// What the agent of a node says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNow {
    /// Its generation of the cluster.
    pub generation: u64,
    /// The hash of its cluster file ([`Spec::hash`]).
    pub file: String,
    /// How far it has come.
    pub stage: Stage,
    /// Which member it is, where it is one.
    pub member: Option<MemberId>,
    /// The release of etcd that runs there, such as `3.5.16`; `None` where none runs.
    pub etcd: Option<String>,
    /// The schema of its database, such as `3.6`, where etcd tells it (3.6 and later).
    pub storage: Option<String>,
    /// How many entries its log holds behind its newest raft snapshot that etcd 3.7 cannot read; `None` where that is unknown.
    pub v2_entries: Option<u64>,
    /// Which part of its log that count is about; `None` where that is unknown.
    pub log: Option<LogRead>,
    /// Why its etcd has to be restarted, where it has to.
    pub restart: Option<Restart>,
    /// What an operator asked of it, where that is not done yet, or holds on.
    pub intent: Option<IntentKind>,
    /// It pauses its etcd, or is about to.
    pub pausing: bool,
    /// The cluster's revision when its agent first looked since its etcd runs, since another release was wished for, and since
    /// every voter takes part; `None` where it has not looked yet. What is in the store up to there was put there after all that.
    pub since: Option<u64>,
}

/// The part of a log that a start would read, as its agent read it some seconds ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRead {
    /// The entry of the newest raft snapshot, 0 where there is none.
    pub snapshot: u64,
    /// The last entry.
    pub last: u64,
}

/// How far a node has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// It holds nothing, or has only promised a founding.
    Blank,
    /// It joins.
    Joining,
    /// It runs, or ran, as a member.
    Member,
    /// It was removed for good.
    Removed,
}

/// Why an etcd that runs has to be restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// In a few words: `flags: snapshot-count`, `trust: peer-ca.crt`.
    pub why: String,
    /// The release that it starts with then, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// It was started with other trust than its files say now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust: bool,
    /// Peers find it elsewhere then, or that is not known.
    #[serde(default = "unsaid")]
    pub moves: bool,
}

/// An agent that does not say may mean it.
fn unsaid() -> bool {
    true
}

/// Where the other members look for a member that has no leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// Where the file declares it.
    AsDeclared,
    /// At another address, or that is not known.
    Elsewhere,
    /// A quorum of its own cluster confirms a list without it: it was removed.
    Removed,
}

/// Whether a restart may heal a member that has no leader; `due`: the restart that is due anyway. It moves to where the others look for
/// it, or stays there and accepts them. One that was removed may reject every peer that would report that: its start decision finds out.
/// It is part of no quorum meanwhile, so no other member has to agree.
pub fn heals_alone(due: Option<&Restart>, listing: Listing) -> bool {
    let heals =
        |due: &Restart| due.release.is_none() && if due.moves { listing == Listing::AsDeclared } else { due.trust };
    listing == Listing::Removed || due.is_some_and(heals)
}

impl Stage {
    /// What a ledger says.
    pub fn of(ledger: &Ledger) -> Stage {
        match &ledger.state {
            State::Empty | State::Promised(_) | State::Inited(_) => Stage::Blank,
            State::PendingAdd(_) => Stage::Joining,
            State::Started(_) => Stage::Member,
            // Declared again, it joins like any other.
            State::Tombstone(stone) if stone.undeclared => Stage::Blank,
            State::Tombstone(_) => Stage::Removed,
        }
    }
}

impl NodeNow {
    /// Whether its etcd has to be restarted to be found where it is declared.
    pub fn is_to_move(&self) -> bool {
        self.restart.as_ref().is_some_and(|restart| restart.moves)
    }
}

impl NodeSeen {
    /// What it answered.
    pub fn answer(&self) -> Option<&NodeNow> {
        match self {
            NodeSeen::Answered(now) => Some(now),
            NodeSeen::Unknown(_) => None,
        }
    }
}

impl ClusterView {
    /// The confirmed list.
    pub fn members(&self) -> Option<(ClusterId, &[ListedMember])> {
        match &self.cluster {
            ClusterSeen::Confirmed { cluster, members } => Some((*cluster, members)),
            ClusterSeen::Unreachable(_) => None,
        }
    }

    /// What the agent of a node answered.
    pub fn answer(&self, node: &str) -> Option<&NodeNow> {
        self.nodes.get(node).and_then(NodeSeen::answer)
    }

    /// The revision up to which the store has to hold everything before a release changes: as the cluster was after the last
    /// step. Clocks of nodes have no say in it. Otherwise the voters that have not said.
    pub fn to_be_stored(&self) -> Result<u64, Vec<MemberId>> {
        let voters = self.members().map_or(&[][..], |(_, members)| members).iter().filter(|member| !member.learner);
        let said = |id: MemberId| self.answers().find(|(_, now)| now.member == Some(id)).and_then(|(_, now)| now.since);
        let (known, unknown): (Vec<_>, Vec<_>) =
            voters.map(|voter| (voter.id, said(voter.id))).partition(|(_, since)| since.is_some());
        match unknown.is_empty() {
            true => Ok(known.into_iter().filter_map(|(_, since)| since).max().unwrap_or(0)),
            false => Err(unknown.into_iter().map(|(id, _)| id).collect()),
        }
    }

    /// All answers.
    pub fn answers(&self) -> impl Iterator<Item = (&str, &NodeNow)> {
        self.nodes.iter().filter_map(|(name, seen)| seen.answer().map(|now| (name.as_str(), now)))
    }
}

/// Whether a member takes part.
pub fn is_up(member: &ListedMember) -> bool {
    member.health == Health::Healthy
}

/// Whether a declared member and a listed one are the same: by name, or by address while it has no name.
pub fn is_same(declared: &crate::spec::Member, listed: &ListedMember) -> bool {
    let at = listed.peer_urls.iter().any(|url| declared.peer_urls.contains(url));
    if listed.name.is_empty() { at } else { listed.name == declared.name }
}

/// The node that a listed member is on, as the file and the agents tell; otherwise its name in the list, or its id.
pub fn node_of(spec: &Spec, view: &ClusterView, listed: &ListedMember) -> String {
    if let Some(declared) = spec.members.iter().find(|declared| is_same(declared, listed)) {
        return declared.name.clone();
    }
    let told = view.answers().find(|(_, now)| now.member == Some(listed.id)).map(|(name, _)| name.to_owned());
    told.unwrap_or_else(|| if listed.name.is_empty() { listed.id.to_string() } else { listed.name.clone() })
}

/// Writes down since when a learner is known, and forgets one that is none any more. Unchanged where nothing is new.
#[must_use]
pub fn note_learner(ledger: &Ledger, members: &[ListedMember], now_ms: u64) -> Ledger {
    let learner = members.iter().find(|member| member.learner).map(|member| member.id);
    // One that is known from the future was noted by a clock that has been set back.
    let ahead = ledger.learner.is_some_and(|known| known.since_ms > now_ms);
    if ledger.learner.map(|known| known.member) == learner && !ahead {
        return ledger.clone();
    }
    Ledger { learner: learner.map(|member| LearnerSince { member, since_ms: now_ms }), ..ledger.clone() }
}
