//! The frame around a record: a 64-bit length field before it, padding to 8 bytes behind it.
//!
//! ```text
//! bit 63   62..59   58..56    55..0
//! padded?  unused   padding   length of the record
//! ```

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// Bytes of the length field.
pub(crate) const FIELD_BYTES: u64 = 8;

const LENGTH_MASK: u64 = (1 << 56) - 1;

/// A length field, taken apart as etcd does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Bytes of the record, below 2^56.
    pub(crate) length: u64,
    /// Bytes of padding, below 8.
    pub(crate) padding: u64,
    /// Whether etcd itself would have written the field this way.
    pub(crate) canonical: bool,
}

impl Frame {
    pub(crate) fn decode(field: u64) -> Frame {
        let length = field & LENGTH_MASK;
        let padding = if field.leading_zeros() == 0 { field.wrapping_shr(56) & 7 } else { 0 };
        Frame { length, padding, canonical: field == encode(length) }
    }

    /// Record and padding together.
    pub(crate) fn body(self) -> u64 {
        self.length.saturating_add(self.padding)
    }
}

/// The length field for a record.
pub(crate) fn encode(length: u64) -> u64 {
    match padding(length) {
        0 => length,
        padding => length | (0x80 | padding).wrapping_shl(56),
    }
}

/// Zero bytes behind a record of this length.
pub(crate) fn padding(length: u64) -> u64 {
    length.wrapping_neg() & 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_field_of_every_wal_is_as_etcd_writes_it() {
        assert_eq!(encode(4).to_le_bytes(), [0x04, 0, 0, 0, 0, 0, 0, 0x84]);
        assert_eq!(Frame::decode(encode(4)), Frame { length: 4, padding: 4, canonical: true });
        assert_eq!(encode(24), 24);
    }

    #[test]
    fn unused_bits_do_not_change_the_length_but_are_noticed() {
        let frame = Frame::decode(encode(4) | 1 << 60);
        assert_eq!((frame.length, frame.padding, frame.canonical), (4, 4, false));
    }
}
