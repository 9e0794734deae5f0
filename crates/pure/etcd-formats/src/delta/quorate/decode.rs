//! Reads a delta, after decompression, one frame at a time.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::encode::end_frame;
use super::{FRAME_HEAD, FRAME_MAX, MAGIC, field};
use crate::delta::LeaseGrant;
use crate::delta::batch::{Batch, Decoder, DeltaError, Entry, Order, Summary};
use crate::fields::{Fields, Value};
use crate::mvcc::KeyValue;

/// Reads one delta.
#[derive(Default)]
pub struct QuorateDecoder {
    buffer: Vec<u8>,
    at: usize,
    passed: u64,
    begun: bool,
    ended: bool,
    hasher: Sha256,
    order: Order,
    batch: Batch,
    last_write_ms: Option<i64>,
    whole: Option<Salvage>,
}

/// The longest part of a delta without an end that holds whole transactions only.
#[derive(Debug, Clone)]
pub struct Salvage {
    /// How many bytes of it, from its beginning.
    pub bytes: u64,
    /// What they hold.
    pub summary: Summary,
    /// When the last write in them was recorded.
    pub last_write_ms: Option<i64>,
    hasher: Sha256,
}

impl Salvage {
    /// The bytes that make a delta of them when they are put behind.
    pub fn end(&self) -> Vec<u8> {
        end_frame(Some(self.summary), &self.hasher)
    }
}

impl Decoder for QuorateDecoder {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), DeltaError> {
        self.forget();
        self.buffer.extend_from_slice(bytes);
        if !self.begun {
            let Some(magic) = self.buffer.first_chunk::<8>() else { return Ok(()) };
            if magic != MAGIC {
                return Err(DeltaError::Malformed { what: "no magic number", offset: 0 });
            }
            self.hasher.update(magic);
            self.at = MAGIC.len();
            self.begun = true;
        }
        while let Some(payload) = self.whole_frame()? {
            self.frame(payload)?;
        }
        if self.ended && self.at < self.buffer.len() { Err(DeltaError::TooLong) } else { Ok(()) }
    }

    fn take(&mut self, want_bytes: usize) -> Option<Batch> {
        (self.batch.bytes() >= want_bytes).then(|| std::mem::take(&mut self.batch))
    }

    fn finish(&mut self) -> Result<(Batch, Option<Summary>), DeltaError> {
        if !self.ended {
            return Err(DeltaError::Truncated);
        }
        Ok((std::mem::take(&mut self.batch), self.order.summary()))
    }
}

impl QuorateDecoder {
    /// What can be kept of what was fed so far, also after an error. `None`: no whole transaction.
    pub fn salvage(&self) -> Option<&Salvage> {
        self.whole.as_ref()
    }

    /// Bytes from the beginning that good frames make up.
    pub fn good_bytes(&self) -> u64 {
        self.offset()
    }

    /// Whether the end was read.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// When the last write so far was recorded.
    pub fn last_write_ms(&self) -> Option<i64> {
        self.last_write_ms
    }

    fn forget(&mut self) {
        self.passed = self.passed.saturating_add(self.at as u64);
        self.buffer.drain(..self.at.min(self.buffer.len()));
        self.at = 0;
    }

    /// Where the next frame's payload is, once all of it is here and its checksum holds.
    fn whole_frame(&mut self) -> Result<Option<Range<usize>>, DeltaError> {
        if self.ended {
            return Ok(None);
        }
        let rest = self.buffer.get(self.at..).unwrap_or_default();
        let Some(([l0, l1, l2, l3, c0, c1, c2, c3], rest)) = rest.split_first_chunk::<FRAME_HEAD>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
        if length > FRAME_MAX {
            return Err(DeltaError::TooLarge { limit: FRAME_MAX });
        }
        // A checksum of nothing is zero, so zeros would pass for frames without end.
        if length == 0 {
            return Err(DeltaError::Malformed { what: "an empty frame", offset: self.offset() });
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        if crc32c::crc32c(payload) != u32::from_le_bytes([*c0, *c1, *c2, *c3]) {
            return Err(DeltaError::Checksum { offset: self.offset() });
        }
        let from = self.at.saturating_add(FRAME_HEAD);
        Ok(Some(from..from.saturating_add(length)))
    }

    fn frame(&mut self, payload: Range<usize>) -> Result<(), DeltaError> {
        let offset = self.offset();
        let malformed = |what| DeltaError::Malformed { what, offset };
        let base = self.batch.bytes.len();
        let bytes = self.buffer.get(payload.clone()).unwrap_or_default();
        self.batch.bytes.extend_from_slice(bytes);
        let mut fields = Fields::new(bytes);
        let (mut first, mut open) = (true, false);
        while let Some((number, value)) = fields.next().map_err(|_| malformed("a frame that is not protobuf"))? {
            // The end covers what stands before its frame, so it stands alone in it.
            if self.ended || (number == field::END && !first) {
                return Err(malformed("an end that is not alone in its frame"));
            }
            first = false;
            match (number, value) {
                (field::EVENT, Value::Bytes(event)) => {
                    let entry = read_event(&mut self.order, bytes, base, event);
                    let entry = entry.map_err(|problem| problem.at(offset))?;
                    self.last_write_ms = entry.time_ms.or(self.last_write_ms);
                    self.batch.entries.push(entry);
                }
                (field::GRANT, Value::Bytes(grant)) => {
                    self.batch.grants.push(read_grant(grant).ok_or_else(|| malformed("a grant that is not one"))?);
                }
                (field::END, Value::Bytes(end)) => {
                    read_end(&self.order, &self.hasher, end).map_err(|problem| problem.at(offset))?;
                    self.ended = true;
                }
                (field::OPEN, Value::Varint(value)) => open = value == 1,
                _ => return Err(malformed("a field that no frame has")),
            }
        }
        let whole = self.at..payload.end;
        self.hasher.update(self.buffer.get(whole).unwrap_or_default());
        self.at = payload.end;
        if let Some(summary) = self.order.summary().filter(|_| !open && !self.ended) {
            let (bytes, last_write_ms) = (self.offset(), self.last_write_ms);
            self.whole = Some(Salvage { bytes, summary, last_write_ms, hasher: self.hasher.clone() });
        }
        Ok(())
    }

    fn offset(&self) -> u64 {
        self.passed.saturating_add(self.at as u64)
    }
}

fn read_event(order: &mut Order, frame: &[u8], base: usize, event: &[u8]) -> Result<Entry, Problem> {
    let mut entry = Entry::default();
    let mut kv = None;
    let mut fields = Fields::new(event);
    while let Some((number, value)) = fields.next().map_err(|_| Problem::What("a write that is not protobuf"))? {
        match (number, value) {
            (1, Value::Bytes(bytes)) => kv = KeyValue::decode(bytes),
            (2, Value::Varint(tombstone)) => entry.tombstone = tombstone == 1,
            (3, Value::Varint(time)) => entry.time_ms = Some(time as i64),
            _ => return Err(Problem::What("a field that no write has")),
        }
    }
    let kv = kv.ok_or(Problem::What("a write without its key and value"))?;
    entry.at = order.place(kv.mod_revision).map_err(|disorder| Problem::Error(disorder.into()))?;
    entry.key = range_in(frame, kv.key, base);
    entry.value = range_in(frame, kv.value, base);
    if kv.key.is_empty() {
        return Err(Problem::What("a write without a key"));
    }
    if !entry.tombstone && (kv.create_revision <= 0 || kv.version <= 0) {
        return Err(Problem::What("a put without a create revision or version"));
    }
    (entry.create_revision, entry.version, entry.lease) = (kv.create_revision, kv.version, kv.lease);
    Ok(entry)
}

/// Compares what was read with what the writer says it wrote.
fn read_end(order: &Order, hasher: &Sha256, end: &[u8]) -> Result<(), Problem> {
    let (mut said, mut hash) = ([0u64; 3], [].as_slice());
    let mut fields = Fields::new(end);
    while let Some((number, value)) = fields.next().map_err(|_| Problem::What("an end that is not protobuf"))? {
        match (number, value) {
            (1, Value::Varint(number)) => said[0] = number,
            (2, Value::Varint(number)) => said[1] = number,
            (3, Value::Varint(number)) => said[2] = number,
            (4, Value::Bytes(bytes)) => hash = bytes,
            _ => return Err(Problem::What("a field that no end has")),
        }
    }
    let read = order.summary().map_or([0; 3], |read| [read.first, read.last, read.events]);
    if said != read {
        return Err(Problem::What("other writes than its end says"));
    }
    if hasher.clone().finalize().as_slice() != hash {
        return Err(Problem::Error(DeltaError::Hash));
    }
    Ok(())
}

/// A problem whose place is known one step further out.
enum Problem {
    What(&'static str),
    Error(DeltaError),
}

impl Problem {
    fn at(self, offset: u64) -> DeltaError {
        match self {
            Problem::What(what) => DeltaError::Malformed { what, offset },
            Problem::Error(error) => error,
        }
    }
}

fn read_grant(grant: &[u8]) -> Option<LeaseGrant> {
    let (mut id, mut ttl) = (0, 0);
    let mut fields = Fields::new(grant);
    while let Some((number, value)) = fields.next().ok()? {
        match (number, value) {
            (1, Value::Varint(number)) => id = number as i64,
            (2, Value::Varint(number)) => ttl = number as i64,
            _ => return None,
        }
    }
    (id != 0 && ttl > 0).then_some(LeaseGrant { id, ttl })
}

/// Where a part of the frame lies in the batch that the frame was copied to.
fn range_in(frame: &[u8], part: &[u8], base: usize) -> Range<usize> {
    let offset = (part.as_ptr() as usize).wrapping_sub(frame.as_ptr() as usize);
    // An empty part may point anywhere.
    let offset = if part.is_empty() { 0 } else { offset };
    let from = base.saturating_add(offset);
    from..from.saturating_add(part.len())
}
