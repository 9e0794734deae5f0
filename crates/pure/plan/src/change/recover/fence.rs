//! Evidence that the members which take no part do not serve: those whose agents are silent, and those whose data cannot be looked at.
//!
//! **Rule:** an answer of such a member, or a store that grows, proves that a quorum may serve, and no statement of the operator
//! outweighs it. Silence proves nothing: the operator states for each of these machines that it is off.

use std::fmt;

use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::Code;
use serde::{Deserialize, Serialize};

use super::{SpoolSeen, refused};
use crate::change::ChangeHalt;
use crate::roster::names;

/// What one node received from the etcd of another member, whose agent is silent or cannot tell what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The node that sent the queries.
    pub from: String,
    /// The member.
    pub member: String,
    /// What came of them.
    pub reply: Reply,
}

/// The outcome of the queries to all client and peer URLs of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// A URL sent bytes back: TLS records or HTTP, whatever they say.
    Answered {
        /// The URL.
        url: String,
    },
    /// None of them sent a byte, in any attempt.
    Silent,
    /// The queries could not be sent.
    Unknown {
        /// Why.
        why: String,
    },
}

/// What a node saw in the store of backups since the first survey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "store", rename_all = "kebab-case")]
pub enum StoreWatch {
    /// The store could not be read.
    Unknown {
        /// Why.
        why: String,
    },
    /// Nothing newer appeared.
    Quiet {
        /// When the watch began.
        since: String,
        /// When it has lasted for two delta periods; none where it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<String>,
    },
    /// Newer backups of this cluster appeared.
    Grew {
        /// The newest revision before.
        from: u64,
        /// The newest revision now.
        to: u64,
        /// Until when that counts.
        until: String,
        /// Another writer took over, which no upload from a spool causes.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        taken_over: bool,
    },
}

/// What is known beside the data of the nodes that answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Evidence<'a> {
    /// The replies of those members.
    pub probes: &'a [Probe],
    /// What each node saw in the store.
    pub watches: &'a [(String, StoreWatch)],
    /// What waits in the spools of the nodes that answer.
    pub spools: &'a [SpoolSeen],
    /// Generations that recoveries of this cluster claimed in the store.
    pub claims: &'a [ClaimSeen],
    /// The highest revision that the nodes which answer have uploaded from their spools for a recovery.
    pub uploaded: u64,
    /// How far the store reaches at its end, where the state of an earlier point is wanted.
    pub newest: Option<u64>,
    /// The clusters that the nodes which answer belong to, and those that these were restored from.
    pub belongs: &'a [ClusterId],
    /// The clusters that these nodes left by a reset.
    pub left: &'a [ClusterId],
}

impl StoreWatch {
    /// Whether the store grew by no more than what the nodes that answer hold, up to revision `held`, or have uploaded themselves. That is no
    /// sign of another quorum; another writer is.
    pub fn is_own(&self, held: u64) -> bool {
        matches!(self, StoreWatch::Grew { from, to, taken_over: false, .. } if from < to && *to <= held)
    }
}

/// A generation that a recovery claimed in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimSeen {
    /// The number.
    pub generation: u64,
    /// The node that began it.
    pub node: String,
    /// When.
    pub at: String,
    /// The cluster that comes of it. None in claims of earlier releases.
    pub cluster: Option<ClusterId>,
}

impl Evidence<'_> {
    /// Why nothing is recovered, whatever the operator states.
    pub fn contradiction(&self) -> Option<ChangeHalt> {
        let answered = self.probes.iter().find_map(|probe| match &probe.reply {
            Reply::Answered { url } => Some((probe, url)),
            Reply::Silent | Reply::Unknown { .. } => None,
        });
        if let Some((Probe { from, member, .. }, url)) = answered {
            let why = format!(
                "`{member}` takes no part, and its etcd is not stopped: `{url}` answered `{from}`, so a quorum may serve"
            );
            let way_out = format!(
                "start the agent of `{member}` again, or make its data readable; or power the machine off; then repeat this"
            );
            return Some(refused(Code::RecoverMemberAnswers, why, &way_out));
        }
        self.watches.iter().find_map(|(node, watch)| match watch {
            StoreWatch::Grew { from, to, until, .. } => {
                let why = format!(
                    "newer backups appeared in the store: `{node}` saw revision {from} become {to}, so a quorum may serve"
                );
                let way_out = format!("find the members that still serve; or repeat this after {until}");
                Some(refused(Code::RecoverStoreGrows, why, &way_out))
            }
            StoreWatch::Unknown { .. } | StoreWatch::Quiet { .. } => None,
        })
    }

    /// Why silence is not enough: these members are not fenced.
    pub fn unfenced(&self, members: &[String]) -> Option<ChangeHalt> {
        if members.is_empty() {
            return None;
        }
        let list = names(members.iter().map(String::as_str));
        let mut why = format!("{list} do not answer, which does not prove that their etcd is stopped");
        for (node, watch) in self.watches {
            why += &format!("; {}", WatchLine(node, watch));
        }
        let flags: Vec<String> = members.iter().map(|name| format!("--fenced {name}")).collect();
        let way_out = format!("power these machines off, and state it: `{}`", flags.join(" "));
        Some(refused(Code::RecoverUnfenced, why, &way_out))
    }
}

/// One line about the store, as a node saw it.
#[derive(Debug, Clone, Copy)]
pub struct WatchLine<'a>(pub &'a str, pub &'a StoreWatch);

impl fmt::Display for WatchLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WatchLine(node, watch) = self;
        match watch {
            StoreWatch::Unknown { why } => write!(f, "`{node}` cannot read the store ({why})"),
            StoreWatch::Quiet { since, until: None } => write!(f, "`{node}` saw no newer backup since {since}"),
            StoreWatch::Quiet { since, until: Some(until) } => {
                write!(f, "`{node}` watches the store for newer backups since {since}, until {until}")
            }
            StoreWatch::Grew { from, to, .. } => write!(f, "`{node}` saw the store grow from revision {from} to {to}"),
        }
    }
}
