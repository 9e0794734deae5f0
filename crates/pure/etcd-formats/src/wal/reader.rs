//! One segment, record by record.
//!
//! The rules are etcd's: a length field of zero ends the segment; a record that cannot be read is *torn* when it is in
//! the last segment and either goes beyond the end of the file or has a 512-byte sector (a part of one at its ends)
//! that is all zero; otherwise it is damage that nothing repairs.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::VecDeque;

use super::frame::{FIELD_BYTES, Frame};
use super::problem::Damage;
use super::view::{RecordType, RecordView};
use crate::{ReadAt, ReadError};

/// How much is read at a time. Small enough to be summed while it is still in the processor's cache.
const CHUNK_BYTES: usize = 256 << 10;

/// Records up to this length are held whole.
const HELD_MAX: u64 = 8 << 20;

/// Of longer records this much is held.
const HEAD_BYTES: u64 = 64 << 10;

const SECTOR_BYTES: u64 = 512;

/// A look at the end of a segment reads at most this many records and, unless the last two are longer, bytes.
const SKIP_KEEPS_RECORDS: usize = 1024;
const SKIP_KEEPS_BYTES: u64 = 4 << 20;

/// What comes next in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// An intact record.
    Record {
        /// Where its length field is.
        offset: u64,
        /// The record.
        record: RecordView<'a>,
        /// Whether frame and padding are as etcd writes them.
        clean_frame: bool,
    },
    /// Records end here: at the end of the file, or at a length field of zero.
    End { offset: u64 },
    /// A write that did not reach the disk whole. Everything before `offset` is good.
    Torn { offset: u64, damage: Damage },
    /// Not readable and not repairable.
    Damaged { offset: u64, damage: Damage },
}

/// Reads one segment in bounded memory.
pub struct SegmentReader<'s> {
    window: Window<'s>,
    offset: u64,
    crc: Option<u32>,
    is_last: bool,
}

impl<'s> SegmentReader<'s> {
    /// Begins a segment. `crc` is the one that the segment before ended with, if that is known; `is_last` says whether
    /// it is the log's last segment, where torn writes are to be expected.
    pub fn new(source: &'s dyn ReadAt, crc: Option<u32>, is_last: bool) -> Self {
        SegmentReader { window: Window::new(source, CHUNK_BYTES), offset: 0, crc, is_last }
    }

    /// The same, for a look at the first records only.
    pub(crate) fn brief(source: &'s dyn ReadAt) -> Self {
        SegmentReader { window: Window::new(source, 4096), offset: 0, crc: None, is_last: true }
    }

    /// Goes on at a record in the middle of a segment. `crc` is the one that the record before it states.
    pub(super) fn resume(source: &'s dyn ReadAt, offset: u64, crc: Option<u32>) -> Self {
        SegmentReader { window: Window::new(source, CHUNK_BYTES), offset, crc, is_last: true }
    }

    /// The running CRC, once a record has been read.
    pub fn crc(&self) -> Option<u32> {
        self.crc
    }

    /// The next record, or how the segment ends. Asked again after an end, it answers the same.
    pub fn step(&mut self) -> Result<Step<'_>, ReadError> {
        let offset = self.offset;
        let left = self.window.length.saturating_sub(offset);
        if left == 0 {
            return Ok(Step::End { offset });
        }
        if left < FIELD_BYTES {
            return Ok(self.beyond_end(left));
        }
        let field = self.window.field(offset)?;
        if field == 0 {
            return Ok(Step::End { offset });
        }
        let frame = Frame::decode(field);
        let start = offset.saturating_add(FIELD_BYTES);
        if frame.body() > left.saturating_sub(FIELD_BYTES) {
            return Ok(self.beyond_end(frame.length));
        }
        if frame.length > HELD_MAX { self.long_record(frame, start) } else { self.held_record(frame, start) }
    }

    /// Hops from length field to length field to the last records, and goes on there. What is hopped over is neither
    /// decoded nor summed; that its lengths lead to the end is all that is known of it. Returns how many records it was.
    pub(crate) fn skip_to_last(&mut self) -> Result<u64, ReadError> {
        let mut kept = VecDeque::with_capacity(SKIP_KEEPS_RECORDS);
        let (mut at, mut skipped, mut before) = (self.offset, 0u64, None);
        while let Some(frame) = self.window.frame(at)? {
            if kept.len() == SKIP_KEEPS_RECORDS {
                before = kept.pop_front();
                skipped = skipped.saturating_add(1);
            }
            kept.push_back(at);
            at = at.saturating_add(FIELD_BYTES).saturating_add(frame.body());
        }
        while kept.len() > 2 && kept.front().is_some_and(|first| at.saturating_sub(*first) > SKIP_KEEPS_BYTES) {
            before = kept.pop_front();
            skipped = skipped.saturating_add(1);
        }
        let (Some(before), Some(&first)) = (before, kept.front()) else { return Ok(0) };
        // The record before the first that is read tells the CRC to go on with.
        let Some(crc) = self.window.stored_crc(before)? else { return Ok(0) };
        self.crc = Some(crc);
        self.offset = first;
        Ok(skipped)
    }

    fn held_record(&mut self, frame: Frame, start: u64) -> Result<Step<'_>, ReadError> {
        self.window.load(start, frame.body())?;
        let (bytes, padding) = self.window.record(start, frame);
        let Ok(record) = RecordView::decode(bytes) else {
            return failed(self.window.source, self.is_last, start, frame, Damage::Undecodable);
        };
        let computed = crc32c::crc32c_append(self.crc.unwrap_or(0), record.data.unwrap_or_default());
        if let Some(step) = check_crc(&record, self.crc, computed) {
            return match step {
                Damage::Chain { .. } => Ok(damaged(start, step)),
                _ => failed(self.window.source, self.is_last, start, frame, step),
            };
        }
        self.crc = Some(record.crc);
        self.offset = start.saturating_add(frame.body());
        let clean_frame = frame.canonical && padding.iter().all(|&byte| byte == 0);
        Ok(Step::Record { offset: start.saturating_sub(FIELD_BYTES), record, clean_frame })
    }

    /// A record that is not held: its head is decoded, its data is summed as it streams by.
    fn long_record(&mut self, frame: Frame, start: u64) -> Result<Step<'_>, ReadError> {
        let source = self.window.source;
        self.window.load(start, HEAD_BYTES)?;
        let head = self.window.slice(start, HEAD_BYTES);
        let Some((record, data_from)) = RecordView::decode_head(head)
            .ok()
            .filter(|(record, from)| (*from as u64).checked_add(record.data_length) == Some(frame.length))
        else {
            return failed(source, self.is_last, start, frame, Damage::Undecodable);
        };
        let end = start.saturating_add(frame.length);
        let data_start = start.saturating_add(data_from as u64);
        let computed = stream_crc(source, self.crc.unwrap_or(0), data_start, end)?;
        if let Some(step) = check_crc(&record, self.crc, computed) {
            return match step {
                Damage::Chain { .. } => Ok(damaged(start, step)),
                _ => failed(source, self.is_last, start, frame, step),
            };
        }
        self.crc = Some(record.crc);
        self.offset = start.saturating_add(frame.body());
        let mut padding = [0; 8];
        let padding = padding.get_mut(..frame.padding as usize).unwrap_or_default();
        source.read_exact_at(padding, end)?;
        let clean_frame = frame.canonical && padding.iter().all(|&byte| byte == 0);
        Ok(Step::Record { offset: start.saturating_sub(FIELD_BYTES), record, clean_frame })
    }

    fn beyond_end(&self, length: u64) -> Step<'static> {
        let (offset, damage) = (self.offset, Damage::BeyondEnd { length });
        if self.is_last { Step::Torn { offset, damage } } else { Step::Damaged { offset, damage } }
    }
}

/// Compares a record with the running CRC. A CRC record restates it; the others extend it.
fn check_crc(record: &RecordView<'_>, before: Option<u32>, computed: u32) -> Option<Damage> {
    let stored = record.crc;
    if record.kind == RecordType::Crc as u64 {
        let chain = before.filter(|&before| before != stored)?;
        return Some(Damage::Chain { stored, computed: chain });
    }
    (stored != computed).then_some(Damage::Crc { stored, computed })
}

/// Decides between torn and damaged.
fn failed(
    source: &dyn ReadAt,
    is_last: bool,
    start: u64,
    frame: Frame,
    damage: Damage,
) -> Result<Step<'static>, ReadError> {
    let offset = start.saturating_sub(FIELD_BYTES);
    if is_last && has_zero_sector(source, start, start.saturating_add(frame.body()))? {
        return Ok(Step::Torn { offset, damage });
    }
    Ok(Step::Damaged { offset, damage })
}

fn damaged(start: u64, damage: Damage) -> Step<'static> {
    Step::Damaged { offset: start.saturating_sub(FIELD_BYTES), damage }
}

/// Whether any sector of the range, whole or cut off by the range's ends, is all zero.
fn has_zero_sector(source: &dyn ReadAt, start: u64, end: u64) -> Result<bool, ReadError> {
    let mut found = false;
    for_chunks(source, start, end, |mut at, mut bytes| {
        while !bytes.is_empty() {
            let in_sector = SECTOR_BYTES.saturating_sub(at & (SECTOR_BYTES - 1));
            let (sector, rest) = bytes.split_at(bytes.len().min(in_sector as usize));
            found |= sector.iter().all(|&byte| byte == 0);
            at = at.saturating_add(sector.len() as u64);
            bytes = rest;
        }
    })?;
    Ok(found)
}

pub(super) fn stream_crc(source: &dyn ReadAt, seed: u32, start: u64, end: u64) -> Result<u32, ReadError> {
    let mut crc = seed;
    for_chunks(source, start, end, |_, bytes| crc = crc32c::crc32c_append(crc, bytes))?;
    Ok(crc)
}

/// Reads a range in chunks that begin and end at sector boundaries, except at the range's ends.
pub(super) fn for_chunks(
    source: &dyn ReadAt,
    start: u64,
    end: u64,
    mut each: impl FnMut(u64, &[u8]),
) -> Result<(), ReadError> {
    let mut buffer = vec![0; CHUNK_BYTES.min(usize::try_from(end.saturating_sub(start)).unwrap_or(CHUNK_BYTES))];
    let mut at = start;
    while at < end {
        let misaligned = at & (SECTOR_BYTES - 1);
        let chunk = (CHUNK_BYTES as u64).saturating_sub(misaligned).min(end.saturating_sub(at));
        let Some(bytes) = buffer.get_mut(..chunk as usize) else { break };
        source.read_exact_at(bytes, at)?;
        each(at, bytes);
        at = at.saturating_add(chunk);
    }
    Ok(())
}

/// A part of the source, held in memory, that moves forward.
struct Window<'s> {
    source: &'s dyn ReadAt,
    /// The source's length when reading began.
    length: u64,
    chunk: usize,
    buffer: Vec<u8>,
    /// Where in the source the buffer begins, and how much of it is filled.
    start: u64,
    filled: usize,
}

impl<'s> Window<'s> {
    fn new(source: &'s dyn ReadAt, chunk: usize) -> Self {
        Window { source, length: source.len(), chunk, buffer: Vec::new(), start: 0, filled: 0 }
    }

    fn field(&mut self, offset: u64) -> Result<u64, ReadError> {
        self.load(offset, FIELD_BYTES)?;
        let bytes = self.slice(offset, FIELD_BYTES);
        Ok(bytes.try_into().map_or(0, u64::from_le_bytes))
    }

    /// The frame of a record that lies whole in the source; none at the end, or where the record goes beyond it.
    #[inline]
    fn frame(&mut self, offset: u64) -> Result<Option<Frame>, ReadError> {
        let left = self.length.saturating_sub(offset);
        if left < FIELD_BYTES {
            return Ok(None);
        }
        let field = self.field(offset)?;
        let frame = Frame::decode(field);
        Ok((field != 0 && frame.body() <= left.saturating_sub(FIELD_BYTES)).then_some(frame))
    }

    /// The CRC that a record states, unchecked.
    fn stored_crc(&mut self, offset: u64) -> Result<Option<u32>, ReadError> {
        let Some(frame) = self.frame(offset)? else { return Ok(None) };
        let start = offset.saturating_add(FIELD_BYTES);
        let held = frame.length.min(HEAD_BYTES);
        self.load(start, held)?;
        let bytes = self.slice(start, held);
        let record = if held < frame.length {
            RecordView::decode_head(bytes).map(|(record, _)| record)
        } else {
            RecordView::decode(bytes)
        };
        Ok(record.ok().map(|record| record.crc))
    }

    /// Sees to it that the range is held. The caller has compared it with the source's length.
    #[inline]
    fn load(&mut self, offset: u64, length: u64) -> Result<(), ReadError> {
        let end = offset.saturating_add(length);
        if offset >= self.start && end <= self.start.saturating_add(self.filled as u64) {
            return Ok(());
        }
        self.refill(offset, length)
    }

    #[cold]
    fn refill(&mut self, offset: u64, length: u64) -> Result<(), ReadError> {
        let left = self.length.saturating_sub(offset);
        let wanted = usize::try_from(length.max(self.chunk as u64).min(left)).unwrap_or(self.chunk);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        // What is held of the range already moves to the front.
        let from = usize::try_from(offset.saturating_sub(self.start)).unwrap_or(usize::MAX).min(self.filled);
        let kept = if offset < self.start { 0 } else { self.filled.saturating_sub(from) };
        self.buffer.copy_within(from..from.saturating_add(kept), 0);
        self.start = offset;
        self.filled = kept;
        if let Some(rest) = self.buffer.get_mut(kept..wanted) {
            self.source.read_exact_at(rest, offset.saturating_add(kept as u64))?;
            self.filled = wanted;
        }
        Ok(())
    }

    /// A range that has been loaded.
    #[inline]
    fn slice(&self, offset: u64, length: u64) -> &[u8] {
        let from = offset.saturating_sub(self.start) as usize;
        let range = from..from.saturating_add(length as usize);
        self.buffer.get(range).unwrap_or_default()
    }

    /// A record that has been loaded, and its padding.
    #[inline]
    fn record(&self, start: u64, frame: Frame) -> (&[u8], &[u8]) {
        self.slice(start, frame.body()).split_at_checked(frame.length as usize).unwrap_or_default()
    }
}
