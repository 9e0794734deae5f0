//! What is said at the door, and between operators and agents about peers.
//!
//! **Rule:** tokens are in requests alone, and in no text that is logged or shown.

use quorate_plan::peering::{Newcomer, Role, Side};
use serde::{Deserialize, Serialize};

/// Whoever was invited asks whether it could join. Nothing changes.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct JoinAsk {
    /// The one-time token, in hex.
    pub(super) token: String,
    /// Tells two who have the same code apart; the same in every attempt of one.
    pub(super) claim: String,
    pub(super) role: Role,
    pub(super) side: Side,
    pub(super) newcomer: Newcomer,
    /// What it wants signed; none: it only asks.
    #[serde(default)]
    pub(super) requests: Option<String>,
    /// The second secret, of who has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<String>,
}

/// Whether it could, and what it would join.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct JoinTerms {
    pub(super) side: Side,
    /// The cluster file: as it is, or with the newcomer once that is decided.
    pub(super) file: String,
    /// Its certificates, once that is decided.
    #[serde(default)]
    pub(super) certificates: Option<String>,
    /// What speaks against it on this side. Who only asks is told all the rest with it, and adds what it sees itself.
    #[serde(default)]
    pub(super) objections: Vec<String>,
    /// Whether it has to be approved first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) awaits: bool,
}

/// Whether a node that waits has to go on waiting.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Approval {
    /// Nobody has approved it yet.
    pub(super) awaits: bool,
}

/// No.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) code: String,
    pub(super) why: String,
    /// All that speaks against it.
    #[serde(default)]
    pub(super) reasons: Vec<String>,
}

/// Asks for a join code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteRequest {
    /// As what.
    pub role: Role,
    /// For how long, in ms.
    pub ttl_ms: u64,
    /// Where the invited one reaches this node, if not at its own address.
    #[serde(default)]
    pub address: Option<String>,
    /// The name of the only node that may use the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_name: Option<String>,
    /// The IP address of the only node that may use the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_address: Option<String>,
    /// A code that can be read aloud.
    #[serde(default)]
    pub short: bool,
    /// With a second secret, where the code is for a server. Without, the node has to be approved.
    #[serde(default)]
    pub secret: bool,
}

/// A join code.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteAnswer {
    /// The line to be handed on. A client joins with it alone.
    pub code: String,
    /// The second secret, for another channel. A server joins with both, or with the code and an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Until when, in ms since 1970.
    pub expires_ms: u64,
    /// Where the newcomer reaches this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What was asked for and holds: agents of earlier releases bind codes to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_name: Option<String>,
    /// The same of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_address: Option<String>,
    /// Whether it can be read aloud.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub short: bool,
}

/// Approves a node that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApproveRequest {
    /// Its name.
    pub name: String,
    /// What it shows of itself, and the operator has compared.
    pub fingerprint: String,
}

/// A node that was invited and waits for approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingShown {
    /// The name that it wants.
    pub name: String,
    /// Where it says that it is reached.
    pub address: String,
    /// As what.
    pub role: Role,
    /// The same as the node itself shows, if it is that node.
    pub fingerprint: String,
    /// Where its connection comes from.
    pub from: String,
    /// Since when, in ms since 1970.
    pub since_ms: u64,
}

/// Takes a node out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachRequest {
    /// Which.
    pub name: String,
    /// Also if it does not answer.
    pub force: bool,
}

/// Gives a node another role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleRequest {
    /// Which node.
    pub name: String,
    /// `server` or `client`.
    pub role: Role,
}

/// What is about to be done to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VetoRequest {
    /// `join`, `detach`, `to-client` or `to-server`.
    pub what: String,
    /// The node.
    pub name: String,
}

/// Whether something objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VetoAnswer {
    /// Why, if so.
    #[serde(default)]
    pub objection: Option<String>,
    /// What a client that is to be a server tells of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<Side>,
}

/// Says that a node may become a server, as a second server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountersignRequest {
    /// Which node.
    pub name: String,
}

/// A node that waits for the word of a second server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalShown {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// What it is to be.
    pub role: String,
    /// The server that takes it in.
    pub by: String,
    /// Until when, in ms since 1970.
    pub deadline_ms: u64,
}

/// Everyone who belongs to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeersAnswer {
    /// Who answers.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// The cluster's token.
    pub cluster: String,
    /// The nodes.
    pub nodes: Vec<NodeShown>,
    /// What is being changed, or was last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationShown>,
    /// Codes that still let someone in.
    pub invitations: usize,
    /// Tells the issuing keys that lie open there apart from others; none: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuing: Option<String>,
    /// A node that waits until this server approves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalShown>,
    /// Why the record of clients could not be read: those that are told are the last that were known, and there may be others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
    /// Nodes that wait here for approval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingShown>,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeShown {
    /// Its name.
    pub name: String,
    /// What it is.
    pub role: String,
    /// Where its agent is asked.
    pub agent: String,
    /// `leader`, `voter`, `learner`, `not listed`; of a client `carries`, or `unknown`.
    pub state: String,
    /// Whether it answered.
    pub answers: bool,
    /// Since when it belongs to the cluster, in ms since 1970; 0: not on record.
    #[serde(default)]
    pub since_ms: u64,
}

/// A change of peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationShown {
    /// Which.
    pub id: String,
    /// `join`, `detach`, `to-client` or `to-server`.
    pub kind: String,
    /// The node that it is about.
    pub name: String,
    /// What the node is to be, or was until it is let go: `server`, `client` or `external`.
    #[serde(default)]
    pub role: String,
    /// How far it is: `reserved`, `given`, `undoing`, `joined`, `undone`, `detached`,
    /// `changed`.
    pub step: String,
    /// Who carries it out, if not the one that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// What is waited for.
    #[serde(default)]
    pub waits: Option<String>,
}
