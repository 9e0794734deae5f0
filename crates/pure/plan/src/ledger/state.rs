//! How far a node has come, and what each stage of that remembers.
//!
//! **Invariant:** ids of a promise are final once it is sealed.

use std::collections::BTreeMap;

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use serde::{Deserialize, Serialize};

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
    pub(super) fn seal(&self) -> Option<Seal> {
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
