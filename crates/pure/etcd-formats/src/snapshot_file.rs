//! The file that `etcdctl snapshot save` writes: a database followed by its SHA-256.

use sha2::{Digest, Sha256};

use crate::{ReadAt, ReadError};

/// Bytes of the trailing hash.
pub const HASH_BYTES: u64 = 32;

/// Whether a file of this size carries a hash: databases are whole pages, so the hash shows in the size.
pub fn has_hash(len: u64) -> bool {
    len % 512 == HASH_BYTES
}

/// A database file without what follows it.
pub struct Body<'s> {
    source: &'s dyn ReadAt,
    len: u64,
}

impl<'s> Body<'s> {
    /// Leaves the hash out, if there is one.
    pub fn new(source: &'s dyn ReadAt) -> Body<'s> {
        let hash = if has_hash(source.len()) { HASH_BYTES } else { 0 };
        Body { source, len: source.len() - hash }
    }

    /// Hashes the database and compares. `None` if the file carries no hash. Calls `step` with each number of bytes.
    pub fn check_hash(&self, step: impl FnMut(u64)) -> Result<Option<HashCheck>, ReadError> {
        if self.len == self.source.len() {
            return Ok(None);
        }
        let computed = sha256(self.source, self.len, step)?;
        let mut stored = [0; HASH_BYTES as usize];
        self.source.read_exact_at(&mut stored, self.len)?;
        Ok(Some(HashCheck { stored, computed }))
    }
}

/// The SHA-256 of the first `len` bytes. Calls `step` with each number of bytes.
pub fn sha256(source: &dyn ReadAt, len: u64, mut step: impl FnMut(u64)) -> Result<[u8; 32], ReadError> {
    /// Small enough to stay in a core's cache between reading and hashing.
    const CHUNK_BYTES: usize = 256 << 10;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut done = 0;
    while done < len {
        let size = (len - done).min(CHUNK_BYTES as u64);
        let bytes = &mut chunk[..size as usize];
        source.read_exact_at(bytes, done)?;
        hasher.update(bytes);
        done += size;
        step(size);
    }
    Ok(hasher.finalize().into())
}

/// A stored and a computed hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashCheck {
    /// What the file says.
    pub stored: [u8; HASH_BYTES as usize],
    /// What its bytes give.
    pub computed: [u8; HASH_BYTES as usize],
}

impl HashCheck {
    /// Whether they agree.
    pub fn agrees(&self) -> bool {
        self.stored == self.computed
    }
}

impl ReadAt for Body<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ReadError> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return Err(ReadError { offset, wanted: buf.len(), cause: None });
        }
        self.source.read_exact_at(buf, offset)
    }
}
