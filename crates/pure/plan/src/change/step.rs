//! The steps of a change, who takes each, and the words in which they are shown, logged and approved.
//!
//! **Rule:** nothing here adds a voter: whoever comes in listens first.

use std::fmt;

use quorate_etcd_formats::membership::MemberId;

use crate::etcd_config::Minor;
use crate::quorum::Proof;

/// The doer of what no agent does: the person, or the command that the person runs.
pub const OPERATOR: &str = "operator";

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeStep {
    /// The node whose agent takes it, or [`OPERATOR`].
    pub doer: String,
    /// What is done.
    pub act: Act,
    /// Why, in a few words.
    pub why: String,
    /// What it does to the quorum, where it touches that.
    pub proof: Option<Proof>,
}

/// A member that a step is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// Its node.
    pub node: String,
    /// Its id, once the cluster has given it one.
    pub id: Option<MemberId>,
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Every one of these nodes gets the cluster file with this hash.
    Distribute {
        /// The nodes that hold another one, or do not answer.
        to: Vec<String>,
        /// Its hash.
        file: String,
    },
    /// The node has itself added as a learner and starts; its own start decision does it.
    AddLearner(Who),
    /// A learner comes up and catches up.
    WaitCaughtUp(Who),
    /// A learner gets a vote, by the word of a voter.
    Promote(Who),
    /// A learner that did not come up, or that nobody declares, is taken out again.
    UndoLearner(Who),
    /// Leadership is handed to another voter.
    MoveLeader {
        /// Who leads.
        from: Who,
        /// Who is to.
        to: Who,
    },
    /// A member is removed, by its id and through another member.
    Remove(Who),
    /// The etcd of a removed member ends by itself.
    WaitExit(Who),
    /// The node writes down that its member was removed for good, and renames its data.
    Bury(Who),
    /// The node stops its etcd and starts it again.
    Restart {
        /// The member.
        who: Who,
        /// The release that it starts with, where that is another one.
        release: Option<String>,
    },
    /// A backup is taken, and proven.
    Backup,
    /// Entries that change nothing are added to the raft log until every member has taken a raft snapshot behind those that the
    /// next release cannot read.
    SnapshotLog,
    /// The cluster is told to write its storage as an earlier release reads it.
    EnableDowngrade(Minor),
    /// The cluster is told where peers reach a member.
    ChangeUrls {
        /// The member.
        who: Who,
        /// Where.
        urls: Vec<String>,
    },
    /// The node stops its etcd and does not start it again by itself.
    Stop(Who),
}

impl Who {
    /// A member on a node.
    pub fn new(node: impl Into<String>, id: Option<MemberId>) -> Who {
        Who { node: node.into(), id }
    }
}

impl Act {
    /// Whether nothing is done but looking.
    pub fn is_wait(&self) -> bool {
        matches!(self, Act::WaitCaughtUp(_) | Act::WaitExit(_))
    }

    /// Whether etcd's list of members changes by it.
    pub fn changes_members(&self) -> bool {
        matches!(self, Act::AddLearner(_) | Act::Promote(_) | Act::UndoLearner(_) | Act::Remove(_))
    }

    /// What is approved: the same for every rendering of the same change, whoever leads and whoever takes the step. `None`
    /// for what follows from other steps, or from who leads.
    pub(super) fn approved(&self) -> Option<String> {
        Some(match self {
            Act::Distribute { file, .. } => format!("file {file}"),
            Act::AddLearner(who) => format!("add {}", who.node),
            Act::Promote(who) => format!("promote {}", who.node),
            Act::UndoLearner(who) => format!("undo {}", canonical(who)),
            Act::Remove(who) => format!("remove {}", canonical(who)),
            Act::Bury(who) => format!("bury {}", who.node),
            Act::Restart { who, release } => {
                format!("restart {} {}", who.node, release.as_deref().unwrap_or("as it is"))
            }
            Act::EnableDowngrade(minor) => format!("downgrade {minor}"),
            Act::ChangeUrls { who, urls } => format!("urls {} {}", canonical(who), urls.join(",")),
            Act::Stop(who) => format!("stop {}", who.node),
            Act::WaitCaughtUp(_) | Act::WaitExit(_) | Act::MoveLeader { .. } | Act::Backup | Act::SnapshotLog => {
                return None;
            }
        })
    }
}

fn canonical(who: &Who) -> String {
    format!("{}={}", who.node, who.id.map(|id| id.to_string()).unwrap_or_default())
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            Some(id) if id.to_string() != self.node => write!(f, "`{}` (member `{id}`)", self.node),
            Some(_) | None => write!(f, "`{}`", self.node),
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Distribute { to, .. } => {
                write!(f, "give the file to {}", crate::roster::names(to.iter().map(String::as_str)))
            }
            Act::AddLearner(who) => write!(f, "add {who} as a learner, and start its etcd"),
            Act::WaitCaughtUp(who) => write!(f, "wait until {who} has caught up"),
            Act::Promote(who) => write!(f, "promote {who} to a voter"),
            Act::UndoLearner(who) => write!(f, "take the learner {who} out again"),
            Act::MoveLeader { from, to } => write!(f, "hand leadership from {from} to {to}"),
            Act::Remove(who) => write!(f, "remove {who} through another member"),
            Act::WaitExit(who) => write!(f, "wait until the etcd of {who} has ended by itself"),
            Act::Bury(who) => write!(f, "write down that {who} was removed for good, and rename its data"),
            Act::Restart { who, release: None } => write!(f, "restart the etcd of {who}"),
            Act::Restart { who, release: Some(release) } => write!(f, "restart the etcd of {who} as {release}"),
            Act::Backup => f.write_str("take a backup, and prove it"),
            Act::SnapshotLog => {
                f.write_str("have every member take a raft snapshot behind the entries of earlier releases")
            }
            Act::EnableDowngrade(minor) => write!(f, "have the cluster store its data as etcd {minor} reads it"),
            Act::ChangeUrls { who, urls } => write!(f, "tell the cluster that {who} is at {}", urls.join(",")),
            Act::Stop(who) => write!(f, "stop the etcd of {who}"),
        }
    }
}

impl fmt::Display for ChangeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.doer, self.act, self.why)
    }
}
