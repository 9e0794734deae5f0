//! PostgreSQL: its program and data dir, its configuration, SQL, and the group of servers that replicate to each other.
//!
//! A **group** is a set of servers of which each replicates to each by native logical replication (`origin = none`): one
//! publication on every node, one slot and one subscription for every ordered pair. Its schema is a journal of versions.
//!
//! **Invariant:** every function looks first and may be called again after a kill at any point; every statement has a limit.

pub mod conflicts;
pub mod group;
pub mod join;
pub mod proxies;
pub mod schema;
mod scram;
mod secret;
pub mod server;
pub mod sql;

pub use secret::Secret;

/// Whether something was done or was so already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was done now.
    Done,
    /// It was so already.
    AlreadyDone,
}
