//! Writes a delta, before compression.

use prost::encoding::{encode_varint, encoded_len_varint};
use sha2::{Digest, Sha256};

use super::{FRAME_HEAD, MAGIC, field};
use crate::delta::batch::{Disorder, Order, Summary};
use crate::delta::{Event, LeaseGrant};

/// Where a frame is closed.
const FRAME_FULL: usize = 128 << 10;

/// Turns writes into the bytes of one delta. Drain [`DeltaWriter::out`] as often as you like.
pub struct DeltaWriter {
    /// Finished bytes.
    pub out: Vec<u8>,
    /// The frame that is being filled.
    frame: Vec<u8>,
    hasher: Sha256,
    order: Order,
    bytes: u64,
    last_write_ms: Option<i64>,
}

/// What a finished delta holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Its writes; `None` if it has none.
    pub summary: Option<Summary>,
    /// Bytes before compression.
    pub bytes: u64,
    /// When its last write was recorded.
    pub last_write_ms: Option<i64>,
}

impl Default for DeltaWriter {
    fn default() -> DeltaWriter {
        let mut writer = DeltaWriter {
            out: Vec::new(),
            frame: Vec::new(),
            hasher: Sha256::new(),
            order: Order::default(),
            bytes: 0,
            last_write_ms: None,
        };
        writer.emit(MAGIC);
        writer
    }
}

impl DeltaWriter {
    /// Adds a write. Writes of one transaction follow each other, and transactions follow each other without a hole.
    pub fn push(&mut self, event: &Event<'_>) -> Result<(), Disorder> {
        let at = self.order.place(event.kv.mod_revision)?;
        if self.frame.len() >= FRAME_FULL {
            // Only now is it known whether the transaction goes on.
            self.close(at.sub > 0);
        }
        let kv = &event.kv;
        let mut kv_length = bytes_length(kv.key).saturating_add(number_length(kv.mod_revision));
        if !event.tombstone {
            let rest = [number_length(kv.create_revision), number_length(kv.version), number_length(kv.lease)];
            kv_length = rest.into_iter().fold(kv_length, usize::saturating_add).saturating_add(bytes_length(kv.value));
        }
        let time = event.time_ms.unwrap_or(0);
        let mark = if event.tombstone { 2 } else { 0 };
        let length = head_length(kv_length).saturating_add(kv_length).saturating_add(mark);
        head(&mut self.frame, field::EVENT, length.saturating_add(number_length(time)));
        head(&mut self.frame, 1, kv_length);
        bytes(&mut self.frame, 1, kv.key);
        if event.tombstone {
            number(&mut self.frame, 3, kv.mod_revision);
            number(&mut self.frame, 2, 1);
        } else {
            number(&mut self.frame, 2, kv.create_revision);
            number(&mut self.frame, 3, kv.mod_revision);
            number(&mut self.frame, 4, kv.version);
            bytes(&mut self.frame, 5, kv.value);
            number(&mut self.frame, 6, kv.lease);
        }
        number(&mut self.frame, 3, time);
        self.last_write_ms = event.time_ms.or(self.last_write_ms);
        Ok(())
    }

    /// Records a lease grant; before the first write that refers to it is the best place.
    pub fn grant(&mut self, grant: LeaseGrant) {
        let length = number_length(grant.id).saturating_add(number_length(grant.ttl));
        head(&mut self.frame, field::GRANT, length);
        number(&mut self.frame, 1, grant.id);
        number(&mut self.frame, 2, grant.ttl);
    }

    /// Closes the present frame, so that [`DeltaWriter::out`] holds everything so far. `open`: the last transaction may go
    /// on; whoever finds the file cut off behind this frame leaves out what such a frame holds.
    pub fn flush(&mut self, open: bool) {
        self.close(open);
    }

    /// Bytes so far, before compression.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that wait in the present frame.
    pub fn waiting(&self) -> usize {
        self.frame.len()
    }

    /// Revision of the last write.
    pub fn last(&self) -> Option<u64> {
        self.order.summary().map(|summary| summary.last)
    }

    /// What was written so far; `None`: no write.
    pub fn summary(&self) -> Option<Summary> {
        self.order.summary()
    }

    /// Writes the end, with the hash of everything before it. The last bytes are in [`DeltaWriter::out`].
    pub fn finish(&mut self) -> Written {
        self.close(false);
        let summary = self.order.summary();
        let end = end_frame(summary, &self.hasher);
        self.emit(&end);
        Written { summary, bytes: self.bytes, last_write_ms: self.last_write_ms }
    }

    fn close(&mut self, open: bool) {
        if self.frame.is_empty() {
            return;
        }
        if open {
            number(&mut self.frame, field::OPEN, 1);
        }
        let frame = std::mem::take(&mut self.frame);
        let head = frame_head(&frame);
        self.emit(&head);
        self.emit(&frame);
        self.frame = frame;
        self.frame.clear();
    }

    fn emit(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.out.extend_from_slice(bytes);
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
    }
}

/// The frame that ends a delta: what it holds, and the hash of every byte before it.
pub(super) fn end_frame(summary: Option<Summary>, before: &Sha256) -> Vec<u8> {
    let mut end = Vec::new();
    if let Some(summary) = summary {
        number(&mut end, 1, i64::try_from(summary.first).unwrap_or(i64::MAX));
        number(&mut end, 2, i64::try_from(summary.last).unwrap_or(i64::MAX));
        number(&mut end, 3, i64::try_from(summary.events).unwrap_or(i64::MAX));
    }
    bytes(&mut end, 4, before.clone().finalize().as_slice());
    let mut payload = Vec::new();
    head(&mut payload, field::END, end.len());
    payload.extend_from_slice(&end);
    [frame_head(&payload).as_slice(), &payload].concat()
}

fn frame_head(payload: &[u8]) -> [u8; FRAME_HEAD] {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut head = [0; FRAME_HEAD];
    head.iter_mut()
        .zip(length.to_le_bytes().into_iter().chain(crc32c::crc32c(payload).to_le_bytes()))
        .for_each(|(to, from)| *to = from);
    head
}

// All field numbers here are below 16, so that a tag is one byte.

fn head(out: &mut Vec<u8>, field: u64, length: usize) {
    encode_varint(field.wrapping_shl(3) | 2, out);
    encode_varint(length as u64, out);
}

fn bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        head(out, field, bytes.len());
        out.extend_from_slice(bytes);
    }
}

fn number(out: &mut Vec<u8>, field: u64, value: i64) {
    if value != 0 {
        encode_varint(field.wrapping_shl(3), out);
        encode_varint(value as u64, out);
    }
}

fn head_length(length: usize) -> usize {
    encoded_len_varint(length as u64).saturating_add(1)
}

fn bytes_length(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { head_length(bytes.len()).saturating_add(bytes.len()) }
}

fn number_length(value: i64) -> usize {
    if value == 0 { 0 } else { encoded_len_varint(value as u64).saturating_add(1) }
}
