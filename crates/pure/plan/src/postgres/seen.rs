//! What a node of a group sees before it decides.
//!
//! **Rule:** unknown is a value: what could not be looked at is neither there nor not there.

use std::collections::BTreeMap;

use super::records::Records;
use super::unsent::Unsent;

/// Everything that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// On this machine.
    pub mine: Mine,
    /// In the store.
    pub store: StoreNow,
}

/// This machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mine {
    /// The data dir.
    pub data: DataNow,
    /// Whether the server answers.
    pub serves: bool,
    /// Whether users, database and extensions are as declared; asked only of a server that answers.
    pub prepared: bool,
    /// The group that the database is bound to.
    pub bound: Option<String>,
    /// Whether every declared node has a link to here.
    pub linked: bool,
    /// The node that no longer keeps what this one has missed of it.
    pub lost: Option<String>,
    /// The version of the schema here, where every link has every table; 0: none.
    pub schema: u32,
    /// Whether pooler and proxy run as they should.
    pub configured: bool,
    /// Whether they are offered in the store.
    pub offered: bool,
    /// Whether the server runs without connections to other nodes.
    pub isolated: bool,
    /// The subscriptions of this node, by the member that they follow.
    pub links: BTreeMap<String, LinkNow>,
    /// What the own log holds beyond the cutoff of this node.
    pub unsent: UnsentNow,
}

/// A subscription of this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkNow {
    /// It is stopped because of a change of the writer.
    pub held: bool,
    /// The position in the other node's log up to which this node has applied it.
    pub applied: u64,
    /// Its changes may have been applied after newer ones of the writer: rows are to be compared.
    pub unordered: bool,
}

/// What the own log holds beyond the cutoff of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnsentNow {
    /// There is no cutoff, or the log was not read yet.
    NotRead,
    /// The log cannot be read, and why.
    Unknown(String),
    /// It was read.
    Known(Unsent),
}

/// A data dir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataNow {
    /// There is nothing.
    Absent,
    /// It is this node's.
    Ours,
    /// It is not, and why.
    Foreign(String),
    /// It cannot be told, and why.
    Unknown(String),
}

/// The store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreNow {
    /// It does not answer, and why.
    Unknown(String),
    /// It does.
    Known(Box<StoreSeen>),
}

/// What the store has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSeen {
    /// The nodes that are registered, and the group that each says it is bound to.
    pub registered: BTreeMap<String, Option<String>>,
    /// The lock of the bootstrap.
    pub lock: LockNow,
    /// All records.
    pub records: Records,
    /// For how long no record has changed while we waited, in milliseconds.
    pub still_ms: u64,
}

/// The lock of the bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockNow {
    /// We hold it.
    Mine,
    /// We do not.
    NotMine,
}
