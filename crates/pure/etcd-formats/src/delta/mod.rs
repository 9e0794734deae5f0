//! The history of a cluster as a stream of writes: what lies between a full backup and any later revision.
//!
//! Readers of both store layouts end here, and whoever rebuilds a database begins here.
//!
//! **Invariant:** a stream's revisions strictly ascend, and a transaction is in it whole or not at all.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod batch;
pub mod gardener;
mod memory;
pub mod quorate;

pub use batch::{Batch, Decoder, DeltaError, Disorder, Summary};
pub use memory::{OwnedEvent, VecEvents};

use crate::mvcc::{KeyValue, Revision};

/// One write, in the order it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The transaction, and the write's place in it.
    pub at: Revision,
    /// Whether it deletes the key; then `kv` has only the key and the revision.
    pub tombstone: bool,
    /// What was written.
    pub kv: KeyValue<'a>,
    /// When the write was recorded, in milliseconds since 1970, if the layout keeps that.
    pub time_ms: Option<i64>,
}

/// A lease that was granted while the history was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseGrant {
    /// Its id.
    pub id: i64,
    /// Its time to live in seconds, as granted.
    pub ttl: i64,
}

/// Why a stream of writes cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} in `{place}`")]
pub struct EventsError {
    /// The object, as the operator finds it in the store.
    pub place: String,
    /// What is wrong, as a phrase that fits before the place.
    pub what: String,
}

/// A stream of writes.
pub trait Events {
    /// The next write; none at the end. The write borrows from the stream and ends with the next call.
    fn next(&mut self) -> Result<Option<Event<'_>>, EventsError>;

    /// The lease grants met so far, each id once, the newest TTL of each.
    fn leases(&self) -> &[LeaseGrant];
}
