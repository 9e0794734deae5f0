//! Revisions and key-values as the `key` bucket holds them.

use std::hash::Hasher;

use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};

/// When something was written: the transaction, and the write's place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Revision {
    /// The transaction.
    pub main: u64,
    /// The write's place in it, from 0.
    pub sub: u64,
}

/// A key of the `key` bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevisionKey {
    /// When.
    pub revision: Revision,
    /// Whether it records a deletion.
    pub tombstone: bool,
}

impl RevisionKey {
    /// Decodes 17 bytes (a put) or 18 bytes (a deletion).
    pub fn decode(bytes: &[u8]) -> Option<RevisionKey> {
        let (main, rest) = bytes.split_first_chunk::<8>()?;
        let (b'_', rest) = rest.split_first()? else { return None };
        let (sub, mark) = rest.split_first_chunk::<8>()?;
        let tombstone = match mark {
            [] => false,
            [b't'] => true,
            _ => return None,
        };
        let revision = Revision { main: u64::from_be_bytes(*main), sub: u64::from_be_bytes(*sub) };
        // etcd keeps revisions in signed integers.
        let fits = i64::try_from(revision.main).is_ok() && i64::try_from(revision.sub).is_ok();
        fits.then_some(RevisionKey { revision, tombstone })
    }

    /// The bytes it is stored as.
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(18);
        bytes.extend_from_slice(&self.revision.main.to_be_bytes());
        bytes.push(b'_');
        bytes.extend_from_slice(&self.revision.sub.to_be_bytes());
        if self.tombstone {
            bytes.push(b't');
        }
        bytes
    }
}

/// A value of the `key` bucket, borrowed from its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyValue<'a> {
    /// The user's key.
    pub key: &'a [u8],
    /// Revision that created the key's present generation.
    pub create_revision: i64,
    /// Revision that wrote this.
    pub mod_revision: i64,
    /// Writes since creation, this one included.
    pub version: i64,
    /// The user's value.
    pub value: &'a [u8],
    /// Lease that the key is attached to, or 0.
    pub lease: i64,
}

impl<'a> KeyValue<'a> {
    /// Decodes the protobuf message without copying; unknown fields are passed over.
    pub fn decode(mut bytes: &'a [u8]) -> Option<KeyValue<'a>> {
        let mut kv = KeyValue::default();
        while !bytes.is_empty() {
            let (field, wire) = decode_key(&mut bytes).ok()?;
            match (field, wire) {
                (1, WireType::LengthDelimited) => kv.key = take_bytes(&mut bytes)?,
                (5, WireType::LengthDelimited) => kv.value = take_bytes(&mut bytes)?,
                (2, WireType::Varint) => kv.create_revision = decode_varint(&mut bytes).ok()? as i64,
                (3, WireType::Varint) => kv.mod_revision = decode_varint(&mut bytes).ok()? as i64,
                (4, WireType::Varint) => kv.version = decode_varint(&mut bytes).ok()? as i64,
                (6, WireType::Varint) => kv.lease = decode_varint(&mut bytes).ok()? as i64,
                (1..=6, _) => return None,
                (_, wire) => skip(&mut bytes, wire)?,
            }
        }
        Some(kv)
    }
}

/// A short stand-in for a user's key: two of ten million keys share one with a probability of three in a million.
pub fn fingerprint(key: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(decode_varint(bytes).ok()?).ok()?;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn skip(bytes: &mut &[u8], wire: WireType) -> Option<()> {
    let len = match wire {
        WireType::Varint => {
            decode_varint(bytes).ok()?;
            0
        }
        WireType::ThirtyTwoBit => 4,
        WireType::SixtyFourBit => 8,
        WireType::LengthDelimited => usize::try_from(decode_varint(bytes).ok()?).ok()?,
        WireType::StartGroup | WireType::EndGroup => return None,
    };
    if bytes.len() < len {
        return None;
    }
    bytes.advance(len);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_stored_in_the_order_they_happened() {
        let at = |main, sub, tombstone| RevisionKey { revision: Revision { main, sub }, tombstone }.encode();
        assert!(
            at(2, 0, false) < at(2, 1, true)
                && at(2, 1, true) < at(3, 0, false)
                && at(255, 0, false) < at(256, 0, false)
        );
        assert_eq!(at(2, 1, true), b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\x01t");
    }

    #[test]
    fn only_whole_revisions_are_read() {
        let put = RevisionKey { revision: Revision { main: 7, sub: 3 }, tombstone: false };
        let bytes = put.encode();
        assert_eq!(RevisionKey::decode(&bytes), Some(put));
        for len in 0..bytes.len() {
            assert_eq!(RevisionKey::decode(&bytes[..len]), None);
        }
        assert_eq!(RevisionKey::decode(&[bytes.as_slice(), b"x"].concat()), None);
        assert_eq!(RevisionKey::decode(&[0xff; 17]), None);
    }

    #[test]
    fn a_key_value_is_read_without_copying() {
        let bytes = b"\x0a\x03foo\x10\x02\x18\x02\x20\x01\x2a\x03bar\x30\x05\x3a\x01x";
        let kv = KeyValue { key: b"foo", create_revision: 2, mod_revision: 2, version: 1, value: b"bar", lease: 5 };
        assert_eq!(KeyValue::decode(bytes), Some(kv));
        // The last three bytes are a field we do not know.
        for len in 1..bytes.len() - 3 {
            assert_ne!(KeyValue::decode(&bytes[..len]), Some(kv));
        }
    }
}
