//! What the nodes of a group write down for each other in the store.
//!
//! **Invariant:** a record that cannot be read is a mistake that is told, never a record that is not there.

use std::collections::{BTreeMap, BTreeSet};

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
    /// How far the writer had applied the changes of a writer that it took over from, by the old writer.
    pub const CUTOFFS: &str = "pg/cutoffs/";
    /// Up to where the log of a former writer is skipped by nodes that had not applied it in time, by former writer.
    pub const FLOORS: &str = "pg/floors/";
    /// Nodes that hold changes which the writer does not have.
    pub const DIVERGED: &str = "pg/diverged/";
    /// Nodes whose data dir is to be replaced by an empty one.
    pub const DISCARDS: &str = "pg/discards/";
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

/// How far the writer had applied the changes of an old writer when it took over. No node applies more of them until the old
/// writer has proven that it holds no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cutoff {
    /// The number of the old writer: a node that joined again is another one.
    pub id: u16,
    /// The epoch of the writer that took over.
    pub epoch: u64,
    /// The writer that took over.
    pub writer: String,
    /// The position in the old writer's log up to which that writer has applied it.
    pub applied: u64,
}

/// Up to where the log of a former writer counts as part of the writer's rows. A node that had not applied so much when the writer
/// changed takes the rows of the writer instead: applied late, older changes would overwrite newer ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// The number of the former writer.
    pub id: u16,
    /// The epoch of the writer that took over.
    pub epoch: u64,
    /// The position in the former writer's log.
    pub applied: u64,
    /// The numbers of the members that have not confirmed that they hold all changes below it.
    pub waiting: BTreeSet<u16>,
}

/// What a node holds that the writer does not have. It names tables and counts, and no values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diverged {
    /// The number of the node.
    pub id: u16,
    /// The epoch of the writer that does not have it.
    pub epoch: u64,
    /// The node that made the changes: the node itself, or the old writer that it had applied more of.
    pub origin: String,
    /// The position of the first such transaction in the log of `origin`.
    pub first: u64,
    /// How many transactions.
    pub transactions: u64,
    /// How many changed rows, by table; the tables with most changes.
    pub changes: BTreeMap<String, u64>,
    /// How many rows differ from those of the writer, by table; `None`: not compared yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<BTreeMap<String, u64>>,
}

/// The data dir of a node is to be replaced by an empty one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discard {
    /// The number that the node had.
    pub id: u16,
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
    /// How far old writers were applied, by old writer.
    pub cutoffs: BTreeMap<String, Kept<Cutoff>>,
    /// Up to where the logs of former writers are part of the writer's rows, by former writer.
    pub floors: BTreeMap<String, Kept<Floor>>,
    /// Nodes that hold changes which the writer does not have.
    pub diverged: BTreeMap<String, Kept<Diverged>>,
    /// Nodes whose data dir is to be replaced.
    pub discards: BTreeMap<String, Discard>,
}

impl Records {
    /// The number of a member.
    pub fn number(&self, node: &str) -> Option<u16> {
        self.group.as_ref().and_then(|(group, _)| group.nodes.get(node)).copied()
    }

    /// The cutoff of an old writer that is still the same member.
    pub fn cutoff(&self, node: &str) -> Option<&Kept<Cutoff>> {
        self.cutoffs.get(node).filter(|(cutoff, _)| self.number(node) == Some(cutoff.id))
    }

    /// The floor of a former writer that is still the same member.
    pub fn floor(&self, node: &str) -> Option<&Kept<Floor>> {
        self.floors.get(node).filter(|(floor, _)| self.number(node) == Some(floor.id))
    }

    /// Whether a node has not confirmed yet that it holds all changes of a former writer below its floor.
    pub fn is_awaited(&self, from: &str, node: &str) -> bool {
        let awaits = |number| self.floor(from).is_some_and(|(floor, _)| floor.waiting.contains(&number));
        self.number(node).is_some_and(awaits)
    }

    /// How far the writer has applied the changes of a node, where that is on record.
    pub fn reached(&self, from: &str) -> Option<u64> {
        let cutoff = self.cutoff(from).map(|(cutoff, _)| cutoff.applied);
        cutoff.max(self.floor(from).map(|(floor, _)| floor.applied))
    }

    /// Whether a node that stands at these positions lacks changes that the last writer has.
    pub fn lacks(&self, node: &str, positions: &BTreeMap<String, u64>) -> bool {
        let nodes = self.cutoffs.keys().chain(self.floors.keys());
        let lacks = |from: &String| {
            let applied = positions.get(from).copied().unwrap_or_default();
            self.is_awaited(from, node) || self.reached(from).is_some_and(|reached| applied < reached)
        };
        nodes.into_iter().any(|from| from != node && lacks(from))
    }

    /// What a node holds that the writer does not have, if it is still the same member.
    pub fn divergence(&self, node: &str) -> Option<&Kept<Diverged>> {
        self.diverged.get(node).filter(|(diverged, _)| self.number(node) == Some(diverged.id))
    }

    /// Whether a node stays out: it may hold, or holds, changes that the writer does not have.
    pub fn is_out(&self, node: &str) -> bool {
        self.cutoff(node).is_some() || self.divergence(node).is_some()
    }
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
                } else if let Some(node) = key.strip_prefix(keys::CUTOFFS) {
                    found.cutoffs.insert(node.to_owned(), record(&key, entry)?);
                } else if let Some(node) = key.strip_prefix(keys::FLOORS) {
                    found.floors.insert(node.to_owned(), record(&key, entry)?);
                } else if let Some(node) = key.strip_prefix(keys::DIVERGED) {
                    found.diverged.insert(node.to_owned(), record(&key, entry)?);
                } else if let Some(node) = key.strip_prefix(keys::DISCARDS) {
                    found.discards.insert(node.to_owned(), record(&key, entry)?.0);
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
