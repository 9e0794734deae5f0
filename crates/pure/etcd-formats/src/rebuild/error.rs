//! Why a database could not be rebuilt.

use crate::bolt::BoltError;
use crate::delta::EventsError;
use crate::mvcc::Revision;

/// Why a database could not be rebuilt. `E` is what the sink fails with.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError<E> {
    /// The base cannot be read.
    #[error(transparent)]
    Base(#[from] BoltError),
    /// The history cannot be read.
    #[error(transparent)]
    Events(#[from] EventsError),
    /// The output could not be written.
    #[error("cannot write the new database")]
    Sink(E),
    /// The wanted revision is gone.
    #[error("revision {up_to} has been compacted: the base knows the state from revision {compacted} on")]
    Compacted {
        /// What was wanted.
        up_to: u64,
        /// From where on the base is complete.
        compacted: u64,
    },
    /// A key of the `key` bucket that is no revision, or a value that is none.
    #[error("the base holds a {what} on page {page} that etcd could not read")]
    NotAWrite {
        /// Where.
        page: u64,
        /// A key or a value.
        what: &'static str,
    },
    /// A value of a small bucket that is not in etcd's form.
    #[error("`{key}` in bucket `{bucket}` of the base is not {wanted}")]
    Malformed {
        /// The bucket.
        bucket: &'static str,
        /// Its key.
        key: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// The history goes back, or repeats itself.
    #[error("the history goes from revision {}.{} to {}.{}", before.main, before.sub, at.main, at.sub)]
    OutOfOrder {
        /// What came before.
        before: Revision,
        /// What came then.
        at: Revision,
    },
    /// A revision that etcd cannot count to.
    #[error("revision {revision} cannot be raised by {bump}")]
    TooHigh {
        /// The newest revision.
        revision: u64,
        /// By how much it was to be raised.
        bump: u64,
    },
    /// More unknown leases than are looked after.
    #[error("live keys refer to more than {limit} leases that do not exist")]
    TooManyLeases {
        /// How many are looked after.
        limit: usize,
    },
}
