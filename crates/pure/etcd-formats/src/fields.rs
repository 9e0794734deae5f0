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

    #[inline]
    fn varint(&mut self) -> Result<u64, NotProtobuf> {
        let (&first, rest) = self.rest.split_first().ok_or(NotProtobuf)?;
        if first < 0x80 {
            self.rest = rest;
            return Ok(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7u32;
        for (at, &byte) in rest.iter().enumerate().take(9) {
            value |= u64::from(byte & 0x7f).wrapping_shl(shift);
            if byte < 0x80 {
                self.rest = rest.get(at.saturating_add(1)..).unwrap_or_default();
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
    fn what_etcd_refuses_is_refused() {
        for bad in [&[0x00][..], &[0x08], &[0x0b], &[0x0c], &[0x12, 0x05, 1], &[0x08, 0xff, 0xff, 0xff]] {
            assert_eq!(Fields::new(bad).next(), Err(NotProtobuf), "{bad:x?}");
        }
        assert_eq!(Fields::new(&[0xff; 11]).next(), Err(NotProtobuf), "a varint longer than 64 bits");
    }
}
