//! The `key` bucket: the base's writes, then the history's, then a placeholder that raises the revision.
//!
//! **Invariant:** revisions strictly ascend, and a transaction is taken whole or not at all: only main revisions are
//! compared with a limit.

use std::sync::atomic::AtomicU64;

use prost::encoding::encode_varint;

use super::copy::{Hashed, each_item};
use super::leases::Leases;
use super::{Base, Options, RebuildError, Rebuilt};
use crate::ReadAt;
use crate::bolt::build::Sink;
use crate::delta::Events;
use crate::mvcc::{KeyValue, Revision, RevisionKey};

pub(super) fn write<R: ReadAt + ?Sized, S: Sink>(
    base: Option<&Base<'_, '_, R>>,
    events: Option<&mut dyn Events>,
    options: &Options<'_>,
    progress: &AtomicU64,
    leases: &mut Option<Leases>,
    rebuilt: &mut Rebuilt,
    out: &mut Hashed<'_, '_, S>,
) -> Result<(), RebuildError<S::Error>> {
    let mut keys = Keys { up_to: options.up_to.unwrap_or(u64::MAX), last: None, leases, rebuilt, out };
    // A copy moves bytes, whatever they mean.
    let copy = keys.leases.is_none() && options.up_to.is_none() && options.bump.is_none();
    // What the base has seen: also writes that compaction took away.
    let mut seen = 0;
    if let Some(base) = base {
        seen = base.facts.revision_now();
        let limit = keys.up_to.checked_add(1).map(|above| revision_key(Revision { main: above, sub: 0 }, false));
        let below = options.up_to.and(limit.as_ref()).map(Key::bytes);
        if let Some(bucket) = base.bucket("key") {
            each_item(base.db, bucket, below, progress, |item| {
                if copy { keys.copy(item.key, item.value) } else { keys.of_base(item.page, item.key, item.value) }
            })?;
        }
    }
    if let Some(events) = events {
        keys.history(events, seen)?;
    }
    let written = keys.last.map_or(1, |last| last.main);
    let compacted = base.and_then(|base| base.facts.compact_revision());
    rebuilt.last_write = written;
    rebuilt.compact_revision = compacted;
    rebuilt.revision = written.max(compacted.unwrap_or(0));
    if let Some(bump) = options.bump {
        let too_high = RebuildError::TooHigh { revision: rebuilt.revision, bump };
        let main = rebuilt.revision.checked_add(bump).filter(|main| i64::try_from(*main).is_ok()).ok_or(too_high)?;
        // As etcd's own tool does: a write without a key, in a transaction of its own.
        out.put(revision_key(Revision { main, sub: 0 }, false).bytes(), &[])?;
        rebuilt.revisions += 1;
        rebuilt.revision = main;
    }
    Ok(())
}

struct Keys<'k, 'o, 'w, S: Sink> {
    up_to: u64,
    last: Option<Revision>,
    leases: &'k mut Option<Leases>,
    rebuilt: &'k mut Rebuilt,
    out: &'k mut Hashed<'o, 'w, S>,
}

impl<S: Sink> Keys<'_, '_, '_, S> {
    fn copy(&mut self, key: &[u8], value: &[u8]) -> Result<(), RebuildError<S::Error>> {
        if let Some(at) = RevisionKey::decode(key) {
            self.last = Some(at.revision);
        }
        self.rebuilt.revisions += 1;
        self.out.put(key, value)
    }

    fn of_base(&mut self, page: u64, key: &[u8], value: &[u8]) -> Result<(), RebuildError<S::Error>> {
        let at = RevisionKey::decode(key).ok_or(RebuildError::NotAWrite { page, what: "key" })?;
        if at.revision.main > self.up_to {
            self.rebuilt.dropped += 1;
            return Ok(());
        }
        let kv = KeyValue::decode(value).ok_or(RebuildError::NotAWrite { page, what: "value" })?;
        self.note(at.tombstone, &kv)?;
        self.last = Some(at.revision);
        self.rebuilt.revisions += 1;
        self.out.put(key, value)
    }

    /// Takes the writes above `seen`. What comes at or below it is in the base, whatever its object is called.
    fn history(&mut self, events: &mut dyn Events, seen: u64) -> Result<(), RebuildError<S::Error>> {
        let mut before: Option<Revision> = None;
        let mut encoded = Vec::new();
        while let Some(event) = events.next()? {
            let at = event.at;
            if let Some(before) = before.filter(|before| *before >= at) {
                return Err(RebuildError::OutOfOrder { before, at });
            }
            before = Some(at);
            if at.main > self.up_to {
                break;
            }
            if at.main <= seen {
                self.rebuilt.events_skipped += 1;
                continue;
            }
            self.note(event.tombstone, &event.kv)?;
            encoded.clear();
            encode(&event.kv, event.tombstone, &mut encoded);
            self.out.put(revision_key(at, event.tombstone).bytes(), &encoded)?;
            self.last = Some(at);
            self.rebuilt.revisions += 1;
            self.rebuilt.events_applied += 1;
        }
        Ok(())
    }

    fn note(&mut self, tombstone: bool, kv: &KeyValue<'_>) -> Result<(), RebuildError<S::Error>> {
        match self.leases {
            Some(leases) => leases.note(tombstone, kv),
            None => Ok(()),
        }
    }
}

/// A key of the `key` bucket without an allocation.
struct Key {
    bytes: [u8; 18],
    len: usize,
}

impl Key {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn revision_key(at: Revision, tombstone: bool) -> Key {
    let mut bytes = [b't'; 18];
    bytes[..8].copy_from_slice(&at.main.to_be_bytes());
    bytes[8] = b'_';
    bytes[9..17].copy_from_slice(&at.sub.to_be_bytes());
    Key { bytes, len: if tombstone { 18 } else { 17 } }
}

/// As etcd encodes it: zeros are left away, and a deletion holds the key alone.
fn encode(kv: &KeyValue<'_>, tombstone: bool, out: &mut Vec<u8>) {
    bytes_field(0x0a, kv.key, out);
    if tombstone {
        return;
    }
    for (tag, number) in [(0x10, kv.create_revision), (0x18, kv.mod_revision), (0x20, kv.version)] {
        number_field(tag, number, out);
    }
    bytes_field(0x2a, kv.value, out);
    number_field(0x30, kv.lease, out);
}

fn bytes_field(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    if !bytes.is_empty() {
        out.push(tag);
        encode_varint(bytes.len() as u64, out);
        out.extend_from_slice(bytes);
    }
}

fn number_field(tag: u8, number: i64, out: &mut Vec<u8>) {
    if number != 0 {
        out.push(tag);
        encode_varint(number as u64, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_encoded_as_etcd_does() {
        let kv = KeyValue { key: b"foo", create_revision: 2, mod_revision: 300, version: 1, value: b"", lease: -1 };
        let mut bytes = Vec::new();
        encode(&kv, false, &mut bytes);
        assert_eq!(KeyValue::decode(&bytes), Some(kv));
        assert_eq!(&bytes[..11], b"\x0a\x03foo\x10\x02\x18\xac\x02\x20");
        bytes.clear();
        encode(&kv, true, &mut bytes);
        assert_eq!(bytes, b"\x0a\x03foo");
        let at = Revision { main: 7, sub: 3 };
        for tombstone in [false, true] {
            assert_eq!(revision_key(at, tombstone).bytes(), RevisionKey { revision: at, tombstone }.encode());
        }
    }
}
