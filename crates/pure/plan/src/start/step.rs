//! The steps of a start, and the words in which they are shown and logged.

use std::time::Duration;

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::Code;
use serde::Serialize;

use crate::ledger::{Generation, RolledBack, State};
use crate::spec::duration_text;

/// One step. Nothing here deletes anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Check the data, then look again.
    Validate(Depth),
    /// Cut the torn end off a copy of the WAL, keep the original, then look again.
    RepairTail,
    /// Rename the data dir to `<dir>.replaced-<time>` and say so.
    Archive,
    /// Make the data dir from the newest provable backup; the ledger gets the new ids before the rename.
    Restore {
        /// The revision that it leads to.
        revision: u64,
        /// The cluster that made it, where that is recorded.
        cluster: Option<ClusterId>,
        /// The token of that cluster's file, where that is recorded.
        token: Option<String>,
    },
    /// Make the data dir of a founding member, offline.
    Init {
        /// The cluster.
        cluster: ClusterId,
        /// The member.
        member: MemberId,
    },
    /// Write this into the ledger, durably, before the next step.
    Write(State),
    /// Write down that what this node holds is of this generation of the cluster.
    WriteGeneration(u64),
    /// Write down that there is this generation of the cluster, which is newer than the one that this node holds.
    WriteOutdated(Generation),
    /// Record that the data of this node's member is an older copy, and what shows it.
    WriteRolledBack(RolledBack, String),
    /// Have every declared peer write down durably that this node is about to start for the first time.
    TellPeers,
    /// Remove a member from the cluster.
    RemoveMember(MemberId),
    /// Add this node to the cluster as a learner, and write the id that it is given into the ledger.
    AddLearner,
    /// Start etcd.
    Start {
        /// Whether it has no data and joins a cluster that is there.
        joining: bool,
    },
    /// Promote this node from learner to voter once it has caught up.
    Promote,
    /// Do nothing for now, and look again later.
    Wait(Halt),
    /// Do nothing until a person has decided.
    Refuse(Halt),
}

/// How deep the data is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Depth {
    /// How much.
    pub mode: Mode,
    /// Why so much.
    pub why: String,
}

/// How much of the data is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// What every start depends on.
    Sanity,
    /// Every page and record.
    Full,
    /// Every page and record, or as many of them as fit into this time.
    Within(Duration),
}

/// Why nothing is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halt {
    /// The page that says more.
    pub code: Code,
    /// Lower case, no full stop.
    pub why: String,
    /// The way out.
    pub way_out: String,
    /// What would be lost by going on, where something would.
    pub lost: Option<String>,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Validate(depth) => write!(f, "check the data ({}): {}", depth.mode, depth.why),
            Step::RepairTail => f.write_str("cut the torn end off a copy of the WAL and keep the original"),
            Step::Archive => f.write_str("rename the data dir to `….replaced-<time>`; nothing is deleted"),
            Step::Restore { revision, cluster, token } => {
                write!(f, "restore revision {revision}")?;
                if let Some(cluster) = cluster {
                    write!(f, " of cluster `{cluster}`")?;
                }
                if let Some(token) = token {
                    write!(f, " (token `{token}`)")?;
                }
                write!(f, " from the newest provable backup")
            }
            Step::Init { cluster, member } => {
                write!(f, "make the data dir of member `{member}` of cluster `{cluster}`")
            }
            Step::Write(State::Promised(promise)) if promise.over => {
                write!(f, "write down that founding {} is over: a peer gave it up", promise.bootstrap)
            }
            Step::Write(State::Promised(promise)) if !promise.is_sealed() => {
                f.write_str("write `promised` with a new nonce into the ledger")
            }
            Step::Write(State::Promised(promise)) if promise.nonce.is_some() => {
                f.write_str("write `promised` with the nonces of all members into the ledger")
            }
            Step::Write(State::Empty) => f.write_str("give the promise up, in the ledger and for good"),
            Step::Write(state) => write!(f, "write `{}` into the ledger", state.word()),
            Step::WriteGeneration(number) => write!(f, "write down that this is generation {number} of the cluster"),
            Step::WriteOutdated(newer) => {
                write!(f, "write down that there is generation {} of the cluster", newer.number)
            }
            Step::WriteRolledBack(it, why) => {
                write!(f, "record that the data of member `{}` is an older copy: {why}", it.member)
            }
            Step::TellPeers => f.write_str("have every peer write down that this node started"),
            Step::RemoveMember(id) => write!(f, "remove member `{id}` from the cluster"),
            Step::AddLearner => f.write_str("add this node to the cluster as a learner"),
            Step::Start { joining: false } => f.write_str("start etcd on its data"),
            Step::Start { joining: true } => f.write_str("start etcd without data; it joins the cluster"),
            Step::Promote => f.write_str("promote it to a voter once it has caught up"),
            Step::Wait(halt) => write!(f, "wait: {halt}"),
            Step::Refuse(halt) => write!(f, "refuse: {halt}"),
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mode::Sanity => f.write_str("sanity"),
            Mode::Full => f.write_str("full"),
            Mode::Within(span) => write!(f, "full, for at most {}", duration_text(*span)),
        }
    }
}

impl std::fmt::Display for Halt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} [{}]", self.why, self.code)?;
        if let Some(lost) = &self.lost {
            write!(f, "\n     going on would lose: {lost}")?;
        }
        write!(f, "\n     {}", self.way_out)
    }
}
