//! Writes held in memory.

use super::{Event, Events, EventsError, LeaseGrant};
use crate::mvcc::{KeyValue, Revision};

/// One write that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnedEvent {
    /// The transaction, and the write's place in it.
    pub at: Revision,
    /// Whether it deletes the key.
    pub tombstone: bool,
    /// The user's key.
    pub key: Vec<u8>,
    /// The user's value.
    pub value: Vec<u8>,
    /// Revision that created the key's present generation.
    pub create_revision: i64,
    /// Writes since creation, this one included.
    pub version: i64,
    /// Lease that the key is attached to, or 0.
    pub lease: i64,
    /// When it was recorded.
    pub time_ms: Option<i64>,
}

impl OwnedEvent {
    /// Copies a borrowed write.
    pub fn of(event: &Event<'_>) -> OwnedEvent {
        OwnedEvent {
            at: event.at,
            tombstone: event.tombstone,
            key: event.kv.key.to_vec(),
            value: event.kv.value.to_vec(),
            create_revision: event.kv.create_revision,
            version: event.kv.version,
            lease: event.kv.lease,
            time_ms: event.time_ms,
        }
    }

    /// Lends it.
    pub fn lend(&self) -> Event<'_> {
        Event {
            at: self.at,
            tombstone: self.tombstone,
            kv: KeyValue {
                key: &self.key,
                create_revision: self.create_revision,
                mod_revision: i64::try_from(self.at.main).unwrap_or(i64::MAX),
                version: self.version,
                value: &self.value,
                lease: self.lease,
            },
            time_ms: self.time_ms,
        }
    }
}

/// A stream over writes that are all in memory.
#[derive(Debug, Clone, Default)]
pub struct VecEvents {
    events: Vec<OwnedEvent>,
    leases: Vec<LeaseGrant>,
    next: usize,
}

impl VecEvents {
    /// Streams these writes; all the grants are known from the start.
    pub fn new(events: Vec<OwnedEvent>, leases: Vec<LeaseGrant>) -> VecEvents {
        VecEvents { events, leases, next: 0 }
    }
}

impl Events for VecEvents {
    fn next(&mut self) -> Result<Option<Event<'_>>, EventsError> {
        let event = self.events.get(self.next);
        self.next = self.next.saturating_add(1);
        Ok(event.map(OwnedEvent::lend))
    }

    fn leases(&self) -> &[LeaseGrant] {
        &self.leases
    }
}
