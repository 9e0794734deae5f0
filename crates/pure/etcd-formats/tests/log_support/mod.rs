//! Files for the tests of the log: fixtures, folded fixtures, and files with a reserved end.

// Each test file uses a part of it.
#![allow(dead_code)]

use quorate_etcd_formats::wal::{ScanOptions, WalFile, WalSummary, scan};
use quorate_etcd_formats::{ReadAt, ReadError};

pub(crate) const FIRST: &str = "0000000000000000-0000000000000000.wal";

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/log/", $name)).as_slice()
    };
}
pub(crate) use fixture;

/// Scans one segment, the first of its log.
pub(crate) fn scan_first(bytes: &[u8], applied: Option<u64>) -> WalSummary {
    scan(&[WalFile { name: FIRST, source: &bytes }], &ScanOptions { applied }).expect("bytes in memory can be read")
}

/// Bytes followed by zeros up to a length, as etcd reserves space; counts how far it is read.
pub(crate) struct Reserved<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) length: u64,
    pub(crate) read_to: std::sync::atomic::AtomicU64,
}

impl<'a> Reserved<'a> {
    pub(crate) fn new(bytes: &'a [u8], length: u64) -> Self {
        Reserved { bytes, length, read_to: Default::default() }
    }
}

impl ReadAt for Reserved<'_> {
    fn len(&self) -> u64 {
        self.length
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ReadError> {
        let end = offset + buf.len() as u64;
        if end > self.length {
            return Err(ReadError { offset, wanted: buf.len(), cause: None });
        }
        self.read_to.fetch_max(end, std::sync::atomic::Ordering::Relaxed);
        buf.fill(0);
        let from = self.bytes.len().min(offset as usize);
        let there = &self.bytes[from..self.bytes.len().min(end as usize).max(from)];
        buf[..there.len()].copy_from_slice(there);
        Ok(())
    }

    fn next_used(&self, offset: u64) -> Option<u64> {
        (offset < self.bytes.len() as u64).then_some(offset)
    }
}

/// A file whose runs of equal bytes are folded; see the README beside the fixtures.
pub(crate) fn unfold(runs: &[u8]) -> Vec<u8> {
    let number = |at: usize| u32::from_le_bytes(runs[at..at + 4].try_into().expect("four bytes")) as usize;
    let (mut file, mut at) = (Vec::new(), 0);
    while at < runs.len() {
        let literal = number(at);
        file.extend_from_slice(&runs[at + 4..at + 4 + literal]);
        at += 4 + literal;
        file.resize(file.len() + number(at + 1), runs[at]);
        at += 5;
    }
    file
}
