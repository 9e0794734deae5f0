//! A stretch of decoded writes that share one buffer.

use std::ops::Range;

use super::{Event, LeaseGrant};
use crate::mvcc::{KeyValue, Revision};

/// Decoded writes; keys and values are ranges of one buffer, so that a batch costs two allocations.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) entries: Vec<Entry>,
    pub(super) grants: Vec<LeaseGrant>,
}

/// One write of a batch.
#[derive(Debug, Clone, Default)]
pub(super) struct Entry {
    pub(super) at: Revision,
    pub(super) tombstone: bool,
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
    pub(super) create_revision: i64,
    pub(super) version: i64,
    pub(super) lease: i64,
    pub(super) time_ms: Option<i64>,
}

impl Batch {
    /// How many writes it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Lease grants that were recorded before the end of this batch.
    pub fn grants(&self) -> &[LeaseGrant] {
        &self.grants
    }

    /// One write.
    pub fn get(&self, index: usize) -> Option<Event<'_>> {
        let entry = self.entries.get(index)?;
        let kv = KeyValue {
            key: self.bytes.get(entry.key.clone())?,
            create_revision: entry.create_revision,
            mod_revision: i64::try_from(entry.at.main).ok()?,
            version: entry.version,
            value: self.bytes.get(entry.value.clone())?,
            lease: entry.lease,
        };
        Some(Event { at: entry.at, tombstone: entry.tombstone, kv, time_ms: entry.time_ms })
    }
}

/// Gives each write its place in its transaction, and sees that revisions go up one by one.
#[derive(Debug, Default)]
pub(super) struct Order {
    last: Option<Revision>,
    first: u64,
    events: u64,
}

impl Order {
    /// The place of the next write, whose transaction is `main`.
    pub(super) fn place(&mut self, main: i64) -> Result<Revision, Disorder> {
        let wrong = || Disorder::Impossible { revision: main };
        let revision = u64::try_from(main).ok().filter(|main| *main > 0).ok_or_else(wrong)?;
        let at = match self.last {
            None => {
                self.first = revision;
                Revision { main: revision, sub: 0 }
            }
            Some(last) if last.main == revision => Revision { main: revision, sub: last.sub.saturating_add(1) },
            Some(last) if last.main.checked_add(1) == Some(revision) => Revision { main: revision, sub: 0 },
            Some(last) if last.main < revision => return Err(Disorder::Hole { after: last.main, before: revision }),
            Some(last) => return Err(Disorder::Backwards { from: last.main, to: revision }),
        };
        self.last = Some(at);
        self.events = self.events.saturating_add(1);
        Ok(at)
    }

    pub(super) fn summary(&self) -> Option<Summary> {
        self.last.map(|last| Summary { first: self.first, last: last.main, events: self.events })
    }
}

/// What a whole object turned out to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Revision of its first write.
    pub first: u64,
    /// Revision of its last write.
    pub last: u64,
    /// How many writes.
    pub events: u64,
}

/// Revisions that are not a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disorder {
    /// etcd numbers transactions from 1 without leaving one out.
    #[error("revision {before} follows revision {after}")]
    Hole {
        /// The last revision before the hole.
        after: u64,
        /// The first one behind it.
        before: u64,
    },
    /// A revision that is lower than the one before it.
    #[error("revision {to} stands behind revision {from}")]
    Backwards {
        /// The revision before.
        from: u64,
        /// The lower one.
        to: u64,
    },
    /// A revision that no etcd writes.
    #[error("revision {revision} is impossible")]
    Impossible {
        /// The number.
        revision: i64,
    },
}

/// Why an object is not a delta.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// The object ends before its end.
    #[error("it ends in the middle")]
    Truncated,
    /// Its hash does not match.
    #[error("its SHA-256 does not match")]
    Hash,
    /// A frame's checksum does not match.
    #[error("the frame at byte {offset} does not match its CRC-32C")]
    Checksum {
        /// Place in the decompressed object.
        offset: u64,
    },
    /// Bytes behind the end.
    #[error("there are bytes behind its end")]
    TooLong,
    /// The bytes are not in the form.
    #[error("{what} at byte {offset}")]
    Malformed {
        /// What is wrong.
        what: &'static str,
        /// Place in the decompressed object.
        offset: u64,
    },
    /// The revisions are not a history.
    #[error(transparent)]
    Disorder(#[from] Disorder),
    /// More bytes in one piece than we take.
    #[error("one write is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}

/// Reads the bytes of one delta object, in pieces of any size.
pub trait Decoder: Send {
    /// Takes the next bytes.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), DeltaError>;

    /// Decoded writes, once there are about `want_bytes` of them; ask again until there is none.
    fn take(&mut self, want_bytes: usize) -> Option<Batch>;

    /// After the last byte: what is still held, and what the object as a whole proved to be. `None`: it has no writes.
    fn finish(&mut self) -> Result<(Batch, Option<Summary>), DeltaError>;
}
