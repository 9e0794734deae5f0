//! Records and entries, borrowed from the bytes they stand in.
//!
//! `regular` says whether the bytes are what etcd itself would have written. etcd reads some irregular records all the
//! same (unknown fields, a CRC of more than 32 bits), but never writes them: they are damage that its CRC cannot see.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::fields::{Fields, Head, NotProtobuf, Value};

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i64)]
pub enum RecordType {
    Metadata = 1,
    Entry = 2,
    State = 3,
    Crc = 4,
    Snapshot = 5,
}

impl RecordType {
    /// From the number in the record.
    pub fn of(number: u64) -> Option<RecordType> {
        Some(match number {
            1 => RecordType::Metadata,
            2 => RecordType::Entry,
            3 => RecordType::State,
            4 => RecordType::Crc,
            5 => RecordType::Snapshot,
            _ => return None,
        })
    }
}

/// One record of a WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// The type's number; see [`RecordType::of`].
    pub kind: u64,
    /// The running CRC after this record's data.
    pub crc: u32,
    /// The data, or as much of it as is held when the record is a long one.
    pub data: Option<&'a [u8]>,
    /// The whole length of the data.
    pub data_length: u64,
    /// Whether etcd would have written it this way.
    pub regular: bool,
}

impl<'a> RecordView<'a> {
    #[inline]
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<RecordView<'a>, NotProtobuf> {
        let mut record = RecordView::EMPTY;
        let mut fields = Fields::new(bytes);
        let mut last = 0;
        while let Some((field, value)) = fields.next()? {
            record.regular &= field > last;
            last = field;
            record.take(field, value)?;
        }
        Ok(record)
    }

    /// Decodes a record of which only the beginning is held. Returns where in `head` the data begins, too.
    pub(crate) fn decode_head(head: &'a [u8]) -> Result<(RecordView<'a>, usize), NotProtobuf> {
        let mut record = RecordView::EMPTY;
        let mut fields = Fields::new(head);
        loop {
            match fields.head()? {
                Head::Whole(field, value) if field != 3 => record.take(field, value)?,
                Head::Long { field: 3, length, here } => {
                    record.data = Some(here);
                    record.data_length = length;
                    return Ok((record, head.len().saturating_sub(here.len())));
                }
                Head::Whole(..) | Head::Long { .. } => return Err(NotProtobuf),
            }
        }
    }

    const EMPTY: RecordView<'static> = RecordView { kind: 0, crc: 0, data: None, data_length: 0, regular: true };

    #[inline]
    fn take(&mut self, field: u64, value: Value<'a>) -> Result<(), NotProtobuf> {
        match (field, value) {
            (1, Value::Varint(kind)) => self.kind = kind,
            (2, Value::Varint(crc)) => {
                self.regular &= crc <= u64::from(u32::MAX);
                // etcd drops the upper bits too.
                self.crc = crc as u32;
            }
            (3, Value::Bytes(data)) => {
                self.data = Some(data);
                self.data_length = data.len() as u64;
            }
            (1..=3, _) => return Err(NotProtobuf),
            _ => self.regular = false,
        }
        Ok(())
    }
}

/// One entry of the raft log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryView<'a> {
    /// 0 normal, 1 change of membership; etcd stops on others.
    pub kind: u64,
    /// The leader's term.
    pub term: u64,
    /// The place in the log.
    pub index: u64,
    /// The data, or as much of it as is held when the record is a long one.
    pub data: &'a [u8],
    /// Whether all of the data is held.
    pub whole: bool,
    /// Whether etcd would have written it this way.
    pub regular: bool,
}

impl<'a> EntryView<'a> {
    #[inline]
    pub(crate) fn decode(record: &RecordView<'a>) -> Result<EntryView<'a>, NotProtobuf> {
        let bytes = record.data.unwrap_or_default();
        let mut entry = EntryView { whole: true, regular: true, ..EntryView::default() };
        let mut fields = Fields::new(bytes);
        if (bytes.len() as u64) < record.data_length {
            return entry.decode_head(fields);
        }
        while let Some((field, value)) = fields.next()? {
            entry.take(field, value)?;
        }
        Ok(entry)
    }

    fn decode_head(mut self, mut fields: Fields<'a>) -> Result<EntryView<'a>, NotProtobuf> {
        self.whole = false;
        loop {
            match fields.head()? {
                Head::Whole(field, value) if field != 4 => self.take(field, value)?,
                Head::Whole(4, Value::Bytes(data)) | Head::Long { field: 4, here: data, .. } => {
                    self.data = data;
                    return Ok(self);
                }
                Head::Whole(..) | Head::Long { .. } => return Err(NotProtobuf),
            }
        }
    }

    #[inline]
    fn take(&mut self, field: u64, value: Value<'a>) -> Result<(), NotProtobuf> {
        match (field, value) {
            (1, Value::Varint(kind)) => self.kind = kind,
            (2, Value::Varint(term)) => self.term = term,
            (3, Value::Varint(index)) => self.index = index,
            (4, Value::Bytes(data)) => self.data = data,
            (1..=4, _) => return Err(NotProtobuf),
            _ => self.regular = false,
        }
        Ok(())
    }
}
