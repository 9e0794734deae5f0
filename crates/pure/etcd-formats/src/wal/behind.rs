//! Intact records behind a place where reading a segment ended.
//!
//! A crash tears the end of the log: nothing intact follows. Records behind a hole that can still be proven were written
//! before, so the hole is corruption, and to cut the log there would drop acknowledged entries. The running CRC is lost
//! with the hole, but two consecutive records prove each other: the first states the CRC that the second extends.
//!
//! **Invariant:** time and memory are bounded, whatever the bytes say: 8-byte steps over the rest of the segment, and
//! at most [`WORK_MAX`] bytes of candidates.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::frame::{FIELD_BYTES, Frame};
use super::problem::Damage;
use super::reader::{SegmentReader, Step, stream_crc};
use super::view::{EntryView, RecordType, RecordView};
use crate::{ReadAt, ReadError};

/// How much is read at a time.
const CHUNK_BYTES: u64 = 256 << 10;

/// Bytes of a record that are looked at to tell what it is: type, CRC, length of the data, and an entry's index.
const HEAD_BYTES: u64 = 96;

/// The shortest record that has data: type, CRC and one byte of data.
const RECORD_MIN: u64 = 7;

/// Bytes of candidates that are summed before the search ends: a few segments' worth. Only bytes that were made to look
/// like records reach it.
const WORK_MAX: u64 = 512 << 20;

/// What one candidate costs at least.
const WORK_CANDIDATE: u64 = 512;

/// Looks for intact records behind `offset`, where a segment's records end or cannot be read. `Some`: it is a hole.
/// `crc` is the one that the log has up to `offset`.
pub fn find_hole(source: &dyn ReadAt, offset: u64, crc: Option<u32>) -> Result<Option<Damage>, ReadError> {
    let mut search = Search { source, length: source.len(), work: 0 };
    let Some(from) = search.begin(offset)? else { return Ok(None) };
    let Some(hole) = search.run(from)? else { return Ok(None) };
    // A running etcd may have written on meanwhile. Then what was missing is there now.
    let filled = matches!(SegmentReader::resume(source, offset, crc).step()?, Step::Record { .. });
    Ok((!filled).then_some(hole))
}

/// A record as its first bytes describe it.
struct Candidate {
    crc: u32,
    /// Where its data begins and ends.
    data: (u64, u64),
    /// Where the next record begins.
    next: u64,
    /// The entry's index, if it is one.
    entry: Option<u64>,
}

struct Search<'s> {
    source: &'s dyn ReadAt,
    length: u64,
    work: u64,
}

impl Search<'_> {
    /// Where the search begins. A record whose head is intact is passed over whole, so that what a value holds is not
    /// taken for records; if it goes beyond the end of the file, nothing can follow.
    fn begin(&self, offset: u64) -> Result<Option<u64>, ReadError> {
        let aligned = offset.checked_next_multiple_of(FIELD_BYTES);
        let after_field = aligned.and_then(|at| at.checked_add(FIELD_BYTES)).filter(|at| *at < self.length);
        if self.length.saturating_sub(offset) < FIELD_BYTES {
            return Ok(None);
        }
        let mut field = [0; 8];
        self.source.read_exact_at(&mut field, offset)?;
        let field = u64::from_le_bytes(field);
        let own = if is_plausible(field) { self.head(offset, field)? } else { None };
        Ok(match own {
            Some(own) => Some(own.next).filter(|next| *next < self.length),
            None => after_field,
        })
    }

    fn run(&mut self, from: u64) -> Result<Option<Damage>, ReadError> {
        let mut buffer = vec![0; usize::try_from(CHUNK_BYTES.min(self.length)).unwrap_or(0)];
        let mut at = from;
        while let Some(used) = self.source.next_used(at) {
            // Reserved space that was never written is stepped over.
            at = at.max(used & !7);
            let wanted = CHUNK_BYTES.min(self.length.saturating_sub(at)) & !7;
            let Some(chunk) = buffer.get_mut(..wanted as usize).filter(|chunk| !chunk.is_empty()) else { break };
            self.source.read_exact_at(chunk, at)?;
            let (fields, _) = chunk.as_chunks::<8>();
            for (place, field) in (0u64..).zip(fields) {
                let field = u64::from_le_bytes(*field);
                if is_plausible(field)
                    && let Some(hole) = self.prove(at.saturating_add(place.saturating_mul(FIELD_BYTES)), field)?
                {
                    return Ok(Some(hole));
                }
            }
            at = at.saturating_add(wanted);
        }
        Ok(None)
    }

    /// Whether a record begins here that the one behind it proves.
    fn prove(&mut self, offset: u64, field: u64) -> Result<Option<Damage>, ReadError> {
        self.work = self.work.saturating_add(WORK_CANDIDATE);
        let Some(first) = self.head(offset, field)?.filter(|first| first.next < self.length) else { return Ok(None) };
        if self.length.saturating_sub(first.next) < FIELD_BYTES {
            return Ok(None);
        }
        let mut field = [0; 8];
        self.source.read_exact_at(&mut field, first.next)?;
        let field = u64::from_le_bytes(field);
        let second = if is_plausible(field) { self.head(first.next, field)? } else { None };
        let Some(second) = second.filter(|second| second.next <= self.length) else { return Ok(None) };
        let (start, end) = second.data;
        self.work = self.work.saturating_add(end.saturating_sub(start));
        if self.work > WORK_MAX {
            // No crash leaves that many things that look like records.
            return Ok(Some(Damage::Hole { until: offset, records: 0, entries: None }));
        }
        if stream_crc(self.source, first.crc, start, end)? != second.crc {
            return Ok(None);
        }
        self.count(offset, &first).map(Some)
    }

    /// Follows the records behind a hole as far as they can be read.
    fn count(&self, until: u64, first: &Candidate) -> Result<Damage, ReadError> {
        let mut reader = SegmentReader::resume(self.source, first.next, Some(first.crc));
        let (mut records, mut entries) = (1u64, first.entry.map(|index| (index, index)));
        while let Step::Record { record, .. } = reader.step()? {
            records = records.saturating_add(1);
            if let Some(index) = entry_index(&record) {
                entries = Some(entries.map_or((index, index), |(low, high)| (low.min(index), high.max(index))));
            }
        }
        Ok(Damage::Hole { until, records, entries })
    }

    /// A record as etcd writes it: type, CRC, data to the end of the frame.
    fn head(&self, offset: u64, field: u64) -> Result<Option<Candidate>, ReadError> {
        let frame = Frame::decode(field);
        let start = offset.saturating_add(FIELD_BYTES);
        let here = HEAD_BYTES.min(frame.length).min(self.length.saturating_sub(start));
        let mut bytes = [0; HEAD_BYTES as usize];
        let Some(bytes) = bytes.get_mut(..here as usize) else { return Ok(None) };
        self.source.read_exact_at(bytes, start)?;
        let &mut [0x08, 1..=5, 0x10, ..] = bytes else { return Ok(None) };
        let record = if here == frame.length {
            RecordView::decode(bytes).map(|record| (record, here.saturating_sub(record.data_length)))
        } else {
            RecordView::decode_head(bytes).map(|(record, from)| (record, from as u64))
        };
        let Ok((record, data_from)) = record else { return Ok(None) };
        let fits = data_from.checked_add(record.data_length) == Some(frame.length) && record.data_length > 0;
        if !fits || !record.regular {
            return Ok(None);
        }
        Ok(Some(Candidate {
            crc: record.crc,
            data: (start.saturating_add(data_from), start.saturating_add(frame.length)),
            next: start.saturating_add(frame.body()),
            entry: entry_index(&record),
        }))
    }
}

/// Whether a length field is one that etcd writes before a record with data.
fn is_plausible(field: u64) -> bool {
    let frame = Frame::decode(field);
    frame.canonical && frame.length >= RECORD_MIN
}

fn entry_index(record: &RecordView<'_>) -> Option<u64> {
    let is_entry = RecordType::of(record.kind) == Some(RecordType::Entry);
    is_entry.then(|| EntryView::decode(record).ok()).flatten().map(|entry| entry.index)
}
