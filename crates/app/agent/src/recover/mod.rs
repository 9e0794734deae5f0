//! Recovers a cluster that has lost its quorum for good, on the node that begins it anew and on those that join it.
//!
//! ```text
//!   survey ──► plan_recovery (pure) ──► order, on disk ──► copy ──► etcd alone on the copy ──► rebuilt, new cluster ──► in place
//! ```
//!
//! **Invariant:** what was ordered is on disk before it is answered for, and each step may be cut off and taken again; the
//! data that is recovered from is only ever copied and renamed.

mod boot;
mod carry;
mod copy;
mod export;
mod journal;
mod probe;
mod spooled;
mod survey;

pub use carry::Tools;
pub(crate) use carry::carry_out;
pub(crate) use export::{Exported, export_writes, recovered_at};
pub(crate) use journal::is_to_a_point;
pub use journal::{Order, Progress, RecoveryNow, Role, Source, observe_progress};
pub(crate) use journal::{accept, audit_order, claim, pending, write_failed};
pub(crate) use probe::observe_absent;
pub use probe::{ProbeAnswer, ProbeRequest};
pub use spooled::Uploaded;
pub(crate) use spooled::upload;
pub(crate) use survey::observe_remains;
pub use survey::{Remains, Seen, Spooled, Standing, Voter};

/// Where a node tells what is left on it.
pub(crate) const REMAINS: &str = "/v1/remains";
/// Where a node is asked to query members whose agents are silent.
pub(crate) const PROBE: &str = "/v1/probe";
/// Where a node is told to upload what waits in its spool.
pub(crate) const SPOOL: &str = "/v1/spool";
/// Where a node is told to recover.
pub(crate) const RECOVER: &str = "/v1/recover";
