//! Quorate's own store layout: names, manifests, and deltas as framed protobuf. Drawn in `docs/formats/backup.md`.

mod decode;
mod encode;
mod manifest;
mod names;

pub use decode::{QuorateDecoder, Salvage};
pub use encode::{DeltaWriter, Written};
pub use manifest::{Declared, Epoch, FORMAT, Hashed, Kind, Manifest};
pub use names::{Name, ROOT, epoch_name};

/// What a delta begins with.
const MAGIC: &[u8; 8] = b"QRTDELT1";

/// Bytes before a frame's payload: its length and its CRC-32C, both little-endian.
const FRAME_HEAD: usize = 8;

/// A frame's payload; a writer closes one at 128 KiB, so only a single huge write makes it longer.
const FRAME_MAX: usize = 512 << 20;

/// Fields of a frame.
mod field {
    pub(super) const EVENT: u64 = 1;
    pub(super) const GRANT: u64 = 2;
    pub(super) const END: u64 = 3;
    /// The last transaction may go on in the next frame.
    pub(super) const OPEN: u64 = 4;
}

/// Who recorded an object, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The cluster; 0 if unknown.
    pub cluster_id: u64,
    /// The member that was read; 0 if unknown.
    pub member_id: u64,
    /// Its etcd's version; empty if unknown.
    pub etcd_version: String,
}
