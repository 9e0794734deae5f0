//! Protobuf fields, one after the other, borrowed from the bytes they stand in.
//!
//! For the hot and the foreign paths: nothing is copied, and what etcd's own decoders refuse is refused.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// One field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Fixed 32 or 64 bits: no message of etcd's files uses them, so they only need to be stepped over.
    Fixed,
}

/// Bytes that are not protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotProtobuf;

/// Walks the fields of one message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Fields { rest: message }
    }

    /// The next field's number and value; none at the end.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, NotProtobuf> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let Some(Tag { field, wire }) = self.tag()? else { return Err(NotProtobuf) };
        let value = match wire {
            0 => Value::Varint(self.varint()?),
            1 => self.skip(8)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| NotProtobuf)?;
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or(NotProtobuf)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => self.skip(4)?,
            _ => return Err(NotProtobuf),
        };
        Ok(Some((field, value)))
    }

    /// How many bytes have not been walked yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next field when it is too long to be here whole: its number, its length, and how many bytes of it are here.
    pub(crate) fn head(&mut self) -> Result<Head<'a>, NotProtobuf> {
        let before = *self;
        if let Ok(Some((field, value))) = self.next() {
            return Ok(Head::Whole(field, value));
        }
        *self = before;
        let Some(Tag { field, wire: 2 }) = self.tag()? else { return Err(NotProtobuf) };
        let length = self.varint()?;
        Ok(Head::Long { field, length, here: self.rest })
    }

    #[inline]
    fn tag(&mut self) -> Result<Option<Tag>, NotProtobuf> {
        let key = self.varint()?;
        let field = key.wrapping_shr(3);
        // Field numbers end at 2^29 - 1, and 0 is none.
        let valid = field != 0 && field < 1 << 29;
        Ok(valid.then_some(Tag { field, wire: key & 7 }))
    }

    fn skip(&mut self, bytes: usize) -> Result<Value<'a>, NotProtobuf> {
        let (_, rest) = self.rest.split_at_checked(bytes).ok_or(NotProtobuf)?;
        self.rest = rest;
        Ok(Value::Fixed)
    }

    #[inline(always)]
    fn varint(&mut self) -> Result<u64, NotProtobuf> {
        match self.rest.split_first() {
            Some((&byte, rest)) if byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, NotProtobuf> {
        // Up to eight bytes at once: find the byte without the top bit, then push the groups of seven bits together.
        if let Some(word) = self.rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) {
            let ends = !word & 0x8080_8080_8080_8080;
            if ends != 0 {
                let mut value = word & (ends ^ ends.wrapping_sub(1)) & 0x7f7f_7f7f_7f7f_7f7f;
                value = (value & 0x007f_007f_007f_007f) | ((value & 0x7f00_7f00_7f00_7f00) >> 1);
                value = (value & 0x0000_3fff_0000_3fff) | ((value & 0x3fff_0000_3fff_0000) >> 2);
                value = (value & 0x0000_0000_0fff_ffff) | ((value & 0x0fff_ffff_0000_0000) >> 4);
                let length = (ends.trailing_zeros() as usize >> 3).saturating_add(1);
                self.rest = self.rest.get(length..).unwrap_or_default();
                return Ok(value);
            }
        }
        let (mut value, mut shift) = (0u64, 0u32);
        for (&byte, length) in self.rest.iter().zip(1..=10usize) {
            value |= u64::from(byte & 0x7f).wrapping_shl(shift);
            if byte < 0x80 {
                self.rest = self.rest.get(length..).unwrap_or_default();
                return Ok(value);
            }
            shift = shift.saturating_add(7);
        }
        Err(NotProtobuf)
    }
}

/// A field seen from its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head<'a> {
    Whole(u64, Value<'a>),
    Long { field: u64, length: u64, here: &'a [u8] },
}

struct Tag {
    field: u64,
    wire: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_the_order_of_their_bytes() {
        let mut fields = Fields::new(&[0x08, 0x96, 0x01, 0x12, 0x02, b'a', b'b', 0x1d, 1, 2, 3, 4]);
        assert_eq!(fields.next(), Ok(Some((1, Value::Varint(150)))));
        assert_eq!(fields.next(), Ok(Some((2, Value::Bytes(b"ab")))));
        assert_eq!(fields.next(), Ok(Some((3, Value::Fixed))));
        assert_eq!(fields.next(), Ok(None));
    }

    #[test]
    fn numbers_of_every_length_are_read_with_and_without_bytes_behind_them() {
        for shift in 0..64 {
            for value in [1u64 << shift, u64::MAX >> shift] {
                for behind in [0, 1, 9] {
                    let mut bytes = vec![0x08];
                    prost::encoding::encode_varint(value, &mut bytes);
                    let length = bytes.len();
                    bytes.resize(length + behind, 0x10);
                    let mut fields = Fields::new(&bytes);
                    assert_eq!(fields.next(), Ok(Some((1, Value::Varint(value)))));
                    assert_eq!(fields.remaining(), behind);
                }
            }
        }
    }

    #[test]
    fn what_etcd_refuses_is_refused() {
        for bad in [&[0x00][..], &[0x08], &[0x0b], &[0x0c], &[0x12, 0x05, 1], &[0x08, 0xff, 0xff, 0xff]] {
            assert_eq!(Fields::new(bad).next(), Err(NotProtobuf), "{bad:x?}");
        }
        assert_eq!(Fields::new(&[0xff; 11]).next(), Err(NotProtobuf), "a varint longer than 64 bits");
    }
}
