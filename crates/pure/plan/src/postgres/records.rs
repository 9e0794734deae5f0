//! What the nodes of a group write down for each other in the store.
//!
//! **Invariant:** a record that cannot be read is a mistake that is told, never a record that is not there.

use std::collections::BTreeMap;

use quorate_kv::{Entry, Listing, Revision};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The keys, below the namespace of the group.
pub mod keys {
    /// Everything of ours.
    pub const ALL: &str = "pg/";
    /// Who leads the bootstrap.
    pub const LEADER: &str = "pg/leader";
    /// The group itself.
    pub const GROUP: &str = "pg/group";
    /// Who is bound to it.
    pub const BOUND: &str = "pg/bound/";
    /// Who is linked with every other node.
    pub const JOINED: &str = "pg/joined/";
    /// The schema that was laid.
    pub const SCHEMA: &str = "pg/schema";
    /// Who may write; held by a lease.
    pub const WRITER: &str = "pg/writer";
    /// The last one who could, for ever.
    pub const WRITER_EPOCH: &str = "pg/writer-epoch";
    /// Who could be the next, and how far it is.
    pub const CANDIDATES: &str = "pg/candidates/";
    /// To whom the place is handed.
    pub const HANDOVER: &str = "pg/handover";
    /// What an operator asks for.
    pub const ORDER: &str = "pg/order";
    /// The journal of a change of members.
    pub const OPERATION: &str = "pg/operation";
}

/// Who leads the bootstrap, and for the how-many-th time someone does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// The node.
    pub node: String,
    /// Grows with every leader.
    pub epoch: u64,
}

/// The group: written once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// What no other group has.
    pub id: String,
    /// The numbers of its nodes, by name; none is used again.
    pub nodes: BTreeMap<String, u16>,
    /// The highest number that was ever given.
    pub last_id: u16,
    /// Who wrote it, as leader of which epoch.
    pub epoch: u64,
}

/// That a node has done something, as it says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// In which group.
    pub group: String,
}

/// The schema that was laid on every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaNote {
    /// Its version.
    pub version: u32,
    /// By the leader of which epoch.
    pub epoch: u64,
}

/// Who may write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriterNote {
    /// The node.
    pub node: String,
    /// Grows with every write master.
    pub epoch: u64,
}

/// One that could be the next write master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// For which epoch.
    pub epoch: u64,
    /// How far it has applied what the last one wrote; all there is, if it was the last one itself.
    pub applied: u64,
}

/// The place is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// To whom.
    pub to: String,
    /// For which epoch.
    pub epoch: u64,
}

/// What an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Make this node the write master.
    pub writer: String,
    /// Tells one order from another.
    pub id: String,
}

/// A record and when it was last changed.
pub type Kept<T> = (T, Revision);

/// All records of a group, as they were at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// Who leads.
    pub leader: Option<Kept<Leader>>,
    /// The group.
    pub group: Option<Kept<Group>>,
    /// Who is bound to it.
    pub bound: BTreeMap<String, Noted>,
    /// Who is linked.
    pub joined: BTreeMap<String, Noted>,
    /// The schema.
    pub schema: Option<Kept<SchemaNote>>,
    /// Who may write.
    pub writer: Option<Kept<WriterNote>>,
    /// The last one who could.
    pub last_writer: Option<Kept<WriterNote>>,
    /// Who could be next.
    pub candidates: BTreeMap<String, Candidate>,
    /// To whom the place is handed.
    pub handover: Option<Kept<Handover>>,
    /// What is asked for.
    pub order: Option<Kept<Order>>,
}

/// Reads the records. An error names the key.
pub fn read_records(listing: &Listing) -> Result<Records, String> {
    let mut found = Records::default();
    for entry in &listing.entries {
        let key = String::from_utf8_lossy(&entry.key).into_owned();
        match key.as_str() {
            keys::LEADER => found.leader = Some(record(&key, entry)?),
            keys::GROUP => found.group = Some(record(&key, entry)?),
            keys::SCHEMA => found.schema = Some(record(&key, entry)?),
            keys::WRITER => found.writer = Some(record(&key, entry)?),
            keys::WRITER_EPOCH => found.last_writer = Some(record(&key, entry)?),
            keys::HANDOVER => found.handover = Some(record(&key, entry)?),
            keys::ORDER => found.order = Some(record(&key, entry)?),
            _ => {
                // What else lies there belongs to a later release.
                if let Some(node) = key.strip_prefix(keys::BOUND) {
                    found.bound.insert(node.to_owned(), record(&key, entry)?.0);
                } else if let Some(node) = key.strip_prefix(keys::JOINED) {
                    found.joined.insert(node.to_owned(), record(&key, entry)?.0);
                } else if let Some(node) = key.strip_prefix(keys::CANDIDATES) {
                    found.candidates.insert(node.to_owned(), record(&key, entry)?.0);
                }
            }
        }
    }
    Ok(found)
}

fn record<T: DeserializeOwned>(key: &str, entry: &Entry) -> Result<Kept<T>, String> {
    let value = serde_json::from_slice(&entry.value).map_err(|error| format!("`{key}` is not one of ours: {error}"))?;
    Ok((value, entry.revision))
}
