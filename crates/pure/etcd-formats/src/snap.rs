//! Raft snapshot files: `<term>-<index>.snap`, an envelope with a CRC around the v2 store and a point in the log.
//!
//! ```text
//! file     = { 1: crc-32c of data, 2: data }
//! data     = { 1: v2 store as JSON, 2: metadata }
//! metadata = { 1: conf state, 2: index, 3: term }
//! ```

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fmt;
use std::ops::Range;

use prost::Message;

use crate::fields::{Fields, NotProtobuf, Value};
use crate::messages::{ConfState, RaftSnapshot, RaftSnapshotMetadata, SnapEnvelope};
use crate::wal::hex16;
use crate::{ReadAt, ReadError};

/// The largest file that is read. etcd's own are a few kilobytes; they grow only with data of the old v2 API.
pub const SNAP_BYTES_MAX: u64 = 64 << 20;

/// A `.snap` file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapName {
    /// The term of the entry at `index`. First in the name, so that names sort by age.
    pub term: u64,
    /// The last entry that the snapshot contains.
    pub index: u64,
}

impl SnapName {
    /// Parses a name exactly as etcd writes it.
    pub fn parse(name: &str) -> Option<SnapName> {
        let (term, index) = name.strip_suffix(".snap")?.split_once('-')?;
        Some(SnapName { term: hex16(term)?, index: hex16(index)? })
    }

    /// The index of a `<index>.snap.db` file: a whole database received from the leader.
    pub fn parse_db(name: &str) -> Option<u64> {
        hex16(name.strip_suffix(".snap.db")?)
    }
}

impl fmt::Display for SnapName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.snap", self.term, self.index)
    }
}

/// Why a `.snap` file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum SnapError {
    /// Longer than [`SNAP_BYTES_MAX`].
    #[error("the file has {length} bytes, more than a raft snapshot can be")]
    TooLarge { length: u64 },
    /// No bytes, no data or no CRC: etcd calls it empty.
    #[error("the file is empty")]
    Empty,
    /// The envelope is not what etcd writes.
    #[error("the file is not a raft snapshot")]
    Envelope,
    /// The data does not match the CRC.
    #[error("the data has CRC `{computed:08x}`, the file says `{stored:08x}`")]
    Crc { stored: u32, computed: u32 },
    /// The CRC is right and the content is not a snapshot.
    #[error("the content is not a raft snapshot although its CRC is right")]
    Content,
    /// The bytes could not be read.
    #[error("cannot read the file")]
    Read(#[from] ReadError),
}

/// A `.snap` file that has been read and found intact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapFile {
    /// Term and index, from the content.
    pub point: SnapName,
    /// Who voted and learned at that point.
    pub conf_state: ConfState,
    bytes: Vec<u8>,
    store: Range<usize>,
}

impl SnapFile {
    /// Reads and checks a whole file.
    pub fn read<S: ReadAt + ?Sized>(source: &S) -> Result<SnapFile, SnapError> {
        let length = source.len();
        let size = usize::try_from(length).ok().filter(|_| length <= SNAP_BYTES_MAX);
        let Some(size) = size else { return Err(SnapError::TooLarge { length }) };
        let mut bytes = vec![0; size];
        source.read_exact_at(&mut bytes, 0)?;
        SnapFile::from_bytes(bytes)
    }

    fn from_bytes(bytes: Vec<u8>) -> Result<SnapFile, SnapError> {
        if bytes.is_empty() {
            return Err(SnapError::Empty);
        }
        let data = envelope(&bytes)?;
        let (store, metadata) = content(data).map_err(|_| SnapError::Content)?;
        let metadata = RaftSnapshotMetadata::decode(metadata).map_err(|_| SnapError::Content)?;
        // The data ends where the file ends, so places are kept as distances from there.
        let from = bytes.len().saturating_sub(data.len()).saturating_add(store.start);
        let store = from..from.saturating_add(store.len());
        let point = SnapName { term: metadata.term(), index: metadata.index() };
        Ok(SnapFile { point, conf_state: metadata.conf_state.unwrap_or_default(), bytes, store })
    }

    /// The v2 store's JSON; see [`crate::v2store::V2Store::read`].
    pub fn store_json(&self) -> &[u8] {
        self.bytes.get(self.store.clone()).unwrap_or_default()
    }
}

/// The data inside an intact envelope: the end of the file.
fn envelope(bytes: &[u8]) -> Result<&[u8], SnapError> {
    let mut fields = Fields::new(bytes);
    let (mut crc, mut data) = (0u64, &[][..]);
    while let Some((field, value)) = fields.next().map_err(|_| SnapError::Envelope)? {
        match (field, value) {
            (1, Value::Varint(stored)) if data.is_empty() => crc = stored,
            (2, Value::Bytes(found)) if data.is_empty() => data = found,
            // etcd would read it and never wrote it: only damage looks like this.
            _ => return Err(SnapError::Envelope),
        }
    }
    let stored = u32::try_from(crc).map_err(|_| SnapError::Envelope)?;
    if stored == 0 || data.is_empty() {
        return Err(SnapError::Empty);
    }
    let computed = crc32c::crc32c(data);
    if computed == stored { Ok(data) } else { Err(SnapError::Crc { stored, computed }) }
}

/// Where in the data the v2 store is, and the metadata.
fn content(data: &[u8]) -> Result<(Range<usize>, &[u8]), NotProtobuf> {
    let mut fields = Fields::new(data);
    let (mut store, mut metadata) = (0..0, &[][..]);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, Value::Bytes(found)) => {
                let end = data.len().saturating_sub(fields.remaining());
                store = end.saturating_sub(found.len())..end;
            }
            (2, Value::Bytes(found)) => metadata = found,
            (1 | 2, _) => return Err(NotProtobuf),
            _ => {}
        }
    }
    Ok((store, metadata))
}

/// The bytes of a `.snap` file.
pub fn encode(snapshot: &RaftSnapshot) -> Vec<u8> {
    let data = snapshot.encode_to_vec();
    SnapEnvelope { crc: Some(crc32c::crc32c(&data)), data: Some(data) }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_term_first() {
        let name = SnapName { term: 2, index: 0x97 };
        assert_eq!(name.to_string(), "0000000000000002-0000000000000097.snap");
        assert_eq!(SnapName::parse(&name.to_string()), Some(name));
        assert_eq!(SnapName::parse("0000000000000002-0000000000000097.snap.broken"), None);
        assert_eq!(SnapName::parse_db("0000000000000097.snap.db"), Some(0x97));
    }

    #[test]
    fn empty_and_huge_files_are_refused() {
        struct Huge;
        impl ReadAt for Huge {
            fn len(&self) -> u64 {
                u64::MAX
            }
            fn read_exact_at(&self, _: &mut [u8], _: u64) -> Result<(), ReadError> {
                unreachable!("too large to be read")
            }
        }
        assert!(matches!(SnapFile::read(&Huge), Err(SnapError::TooLarge { .. })));
        assert!(matches!(SnapFile::read(&Vec::new()), Err(SnapError::Empty)));
    }
}
