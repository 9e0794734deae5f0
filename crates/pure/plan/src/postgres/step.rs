//! The steps of a bootstrap. Each may be repeated.

use std::collections::BTreeMap;
use std::fmt;

use super::records::Diverged;
use super::unsent::counted;

/// One step of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PgStep {
    /// Make the data dir.
    InitData,
    /// Start the server.
    StartServer,
    /// Make users, database and extensions.
    Prepare,
    /// Say in the store that this node is here.
    Register,
    /// Take the lock of the bootstrap.
    TakeLock,
    /// Become the leader.
    Lead {
        /// Of this epoch.
        epoch: u64,
    },
    /// Write the group down.
    CreateGroup {
        /// As leader of this epoch.
        epoch: u64,
        /// The id, where nodes are bound to one already; else a fresh one.
        id: Option<String>,
        /// The numbers of the nodes.
        nodes: BTreeMap<String, u16>,
    },
    /// Give the lock back.
    ReleaseLock,
    /// Write the group into the own database, and note it.
    Bind {
        /// Its id.
        group: String,
    },
    /// Make the links with every other node, and note it.
    Link {
        /// The group's id.
        group: String,
    },
    /// Note in the store that the links are made.
    NoteLinked {
        /// The group's id.
        group: String,
    },
    /// Lay schema and first rows on every node, see them arrive everywhere, and note it.
    LaySchema {
        /// As leader of this epoch.
        epoch: u64,
    },
    /// Take the place of the write master.
    ClaimWriter,
    /// Bring pooler and proxy to what they should be.
    Configure,
    /// Offer them in the store.
    Offer,
    /// Start the server without connections to other nodes.
    StartIsolated,
    /// Restart the server with connections to other nodes.
    EndIsolation,
    /// Stop applying the changes of a node.
    HoldLink {
        /// The node.
        from: String,
        /// In which order its changes were applied is not known from here on: rows are to be compared with those of the writer.
        unordered: bool,
    },
    /// Apply the changes of a node again.
    ReleaseLink {
        /// The node.
        from: String,
    },
    /// Remove the cutoff of this node: its log holds nothing beyond it.
    ClearCutoff {
        /// The epoch of the cutoff.
        epoch: u64,
    },
    /// Record what this node holds that the writer does not have.
    NoteDiverged(Diverged),
    /// Make the rows of this node those of the writer, and skip the logs of former writers up to where the writer has them.
    TakeRows {
        /// The writer.
        writer: String,
        /// The former writers, and how far the writer has applied each.
        skip: BTreeMap<String, u64>,
    },
    /// Confirm that this node holds all changes of a former writer below its floor.
    ConfirmFloor {
        /// The former writer.
        from: String,
    },
    /// Compare the rows of this node with those of the writer, and record how many differ.
    CompareRows,
    /// Rename the data dir; the next one is empty.
    ReplaceData,
}

impl fmt::Display for PgStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PgStep::InitData => f.write_str("make the data dir"),
            PgStep::StartServer => f.write_str("start the server"),
            PgStep::Prepare => f.write_str("make users, database and extensions"),
            PgStep::Register => f.write_str("register this node"),
            PgStep::TakeLock => f.write_str("take the bootstrap lock"),
            PgStep::Lead { epoch } => write!(f, "lead the bootstrap, epoch {epoch}"),
            PgStep::CreateGroup { epoch, id: None, nodes } => {
                write!(f, "write down a new group of {} nodes, epoch {epoch}", nodes.len())
            }
            PgStep::CreateGroup { epoch, id: Some(id), nodes } => {
                write!(f, "write down group {id} of {} nodes again, epoch {epoch}", nodes.len())
            }
            PgStep::ReleaseLock => f.write_str("give the bootstrap lock back"),
            PgStep::Bind { group } => write!(f, "bind the database to group {group}"),
            PgStep::Link { .. } => f.write_str("link with every other node"),
            PgStep::NoteLinked { .. } => f.write_str("note that the links are made"),
            PgStep::LaySchema { epoch } => {
                write!(f, "lay the schema on every node and see it arrive, epoch {epoch}")
            }
            PgStep::ClaimWriter => f.write_str("become the write master"),
            PgStep::Configure => f.write_str("configure pooler and proxy"),
            PgStep::Offer => f.write_str("register the services"),
            PgStep::StartIsolated => f.write_str("start the server without connections to other nodes"),
            PgStep::EndIsolation => f.write_str("restart the server with connections to other nodes"),
            PgStep::HoldLink { from, .. } => write!(f, "stop applying changes of {from}"),
            PgStep::ReleaseLink { from } => write!(f, "apply changes of {from} again"),
            PgStep::ClearCutoff { epoch } => {
                write!(f, "remove the cutoff of epoch {epoch}: this node holds nothing beyond it")
            }
            PgStep::NoteDiverged(diverged) => write!(
                f,
                "record {} that the writer of epoch {} does not have",
                counted(diverged.transactions, "transaction"),
                diverged.epoch
            ),
            PgStep::TakeRows { writer, .. } => write!(f, "take the rows of {writer}"),
            PgStep::ConfirmFloor { from } => write!(f, "confirm that this node holds what the writer has of {from}"),
            PgStep::CompareRows => f.write_str("compare rows with the writer"),
            PgStep::ReplaceData => f.write_str("rename the data dir to `….replaced-<time>`; nothing is deleted"),
        }
    }
}

impl PgStep {
    /// A short name, for logs and for tests that stop there.
    pub fn name(&self) -> &'static str {
        match self {
            PgStep::InitData => "init-data",
            PgStep::StartServer => "start-server",
            PgStep::Prepare => "prepare",
            PgStep::Register => "register",
            PgStep::TakeLock => "take-lock",
            PgStep::Lead { .. } => "lead",
            PgStep::CreateGroup { .. } => "create-group",
            PgStep::ReleaseLock => "release-lock",
            PgStep::Bind { .. } => "bind",
            PgStep::Link { .. } => "link",
            PgStep::NoteLinked { .. } => "note-linked",
            PgStep::LaySchema { .. } => "lay-schema",
            PgStep::ClaimWriter => "claim-writer",
            PgStep::Configure => "configure",
            PgStep::Offer => "offer",
            PgStep::StartIsolated => "start-isolated",
            PgStep::EndIsolation => "end-isolation",
            PgStep::HoldLink { .. } => "hold-link",
            PgStep::ReleaseLink { .. } => "release-link",
            PgStep::ClearCutoff { .. } => "clear-cutoff",
            PgStep::NoteDiverged(_) => "note-diverged",
            PgStep::TakeRows { .. } => "take-rows",
            PgStep::ConfirmFloor { .. } => "confirm-floor",
            PgStep::CompareRows => "compare-rows",
            PgStep::ReplaceData => "replace-data",
        }
    }
}
