//! Records to bytes, with the CRC that runs through all of them.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use prost::Message;

use super::frame;
use super::view::RecordType;
use crate::messages::{Entry, HardState, Metadata, Record, WalSnapshot};

/// Writes one segment. What each message leaves unset stays unwritten, so the caller decides the version's form.
#[derive(Debug)]
pub struct WalWriter {
    bytes: Vec<u8>,
    crc: u32,
}

impl WalWriter {
    /// Begins a segment. `crc` is the one the segment before ended with; 0 for the first.
    pub fn new(crc: u32) -> WalWriter {
        let mut writer = WalWriter { bytes: Vec::new(), crc };
        writer.frame(RecordType::Crc, None);
        writer
    }

    /// Whose log it is.
    pub fn metadata(&mut self, metadata: &Metadata) {
        self.record(RecordType::Metadata, &metadata.encode_to_vec());
    }

    /// An entry of the log.
    pub fn entry(&mut self, entry: &Entry) {
        self.record(RecordType::Entry, &entry.encode_to_vec());
    }

    /// Votes and commit.
    pub fn state(&mut self, state: &HardState) {
        self.record(RecordType::State, &state.encode_to_vec());
    }

    /// A mark that a raft snapshot exists.
    pub fn snapshot(&mut self, snapshot: &WalSnapshot) {
        self.record(RecordType::Snapshot, &snapshot.encode_to_vec());
    }

    /// Any record with data.
    pub fn record(&mut self, kind: RecordType, data: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, data);
        self.frame(kind, Some(data.to_vec()));
    }

    /// The CRC so far: what the next segment begins with.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Bytes so far.
    pub fn offset(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The segment.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn frame(&mut self, kind: RecordType, data: Option<Vec<u8>>) {
        let record = Record { r#type: Some(kind as i64), crc: Some(self.crc), data }.encode_to_vec();
        let length = record.len() as u64;
        self.bytes.extend_from_slice(&frame::encode(length).to_le_bytes());
        self.bytes.extend_from_slice(&record);
        self.bytes.extend((0..frame::padding(length)).map(|_| 0));
    }
}
