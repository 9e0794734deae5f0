//! The revision of a snapshot, found while its bytes pass by once, in pieces of any size.
//!
//! A snapshot is sent from front to back, and where its newest write lies is known only at the end: branches may come
//! before or after their leaves, and pages that were free when it was taken may hold anything, newer writes included. So
//! of every page that could be part of a tree the one fact is kept that a walk down its right edge would need, and the walk
//! is made at the end, from the root that the meta pages name. The SHA-256 behind the database is checked on the way.
//!
//! **Invariant:** memory is nine bytes for each page (as many again to grow into), some more for each page that holds
//! buckets, and one page; whatever the bytes claim, it stays below 200 bytes for each page that came, and 64 MiB.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod pages;

use sha2::{Digest, Sha256};

use crate::bolt::meta::{PAGE_SIZE_MAX, PAGE_SIZE_MIN};
use crate::bolt::{Meta, MetaPages};
use crate::snapshot_file::HASH_BYTES;
use pages::Pages;

const HASH: usize = HASH_BYTES as usize;
/// Bytes of a meta page that mean something.
const META_BYTES: usize = 80;

/// What a snapshot turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// The revision that a server on it would report.
    pub revision: u64,
    /// Bytes that passed, the hash included.
    pub bytes: u64,
    /// Bytes per page.
    pub page_size: u32,
    /// SHA-256 of the database, which is also what the snapshot says it is.
    pub sha256: [u8; HASH],
}

/// Why a snapshot is not one that can be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PassingError {
    /// The first bytes are not those of a bolt database.
    #[error("does not begin like a bolt database")]
    NotBolt,
    /// It ended early, or without its hash.
    #[error("ended after {bytes} of {wanted} bytes")]
    Truncated {
        /// What came.
        bytes: u64,
        /// What its first page says should come, the hash included.
        wanted: u64,
    },
    /// Its bytes are not those that its hash was made of.
    #[error("does not match the SHA-256 at its end")]
    Hash,
    /// The way to the newest write is blocked.
    #[error("cannot be followed to its newest write: page {page} does not add up")]
    Page {
        /// The page.
        page: u64,
    },
    /// The way to the newest write leads to something else.
    #[error("has something else on page {page} where its newest write should be")]
    NoRevision {
        /// The page.
        page: u64,
    },
    /// A tree that etcd keeps small is not, or what is kept inside it does not add up.
    #[error("keeps its `{0}` tree in a way that no etcd writes")]
    Layout(&'static str),
}

/// Reads a snapshot as it passes.
#[derive(Debug)]
pub struct Passing {
    hasher: Sha256,
    bytes: u64,
    /// The newest bytes, which may be the hash.
    tail: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Not enough to know the page size and the root.
    Head(Vec<u8>),
    /// Pages pass.
    Body { meta: Meta, pages: Box<Pages> },
    /// The first bytes are not bolt's.
    NotBolt,
}

impl Default for Passing {
    fn default() -> Passing {
        Passing::new()
    }
}

impl Passing {
    /// Nothing has passed yet.
    pub fn new() -> Passing {
        let tail = Vec::with_capacity(HASH.saturating_mul(2));
        Passing { hasher: Sha256::new(), bytes: 0, tail, state: State::Head(Vec::new()) }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes = self.bytes.saturating_add(piece.len() as u64);
        // All but the newest 32 bytes surely belong to the database.
        match piece.len().checked_sub(HASH).and_then(|split| piece.split_at_checked(split)) {
            Some((body, tail)) => {
                let before = std::mem::take(&mut self.tail);
                self.database(&before);
                self.database(body);
                self.tail = before;
                self.tail.clear();
                self.tail.extend_from_slice(tail);
            }
            None => {
                self.tail.extend_from_slice(piece);
                let surplus = self.tail.len().saturating_sub(HASH);
                let body: Vec<u8> = self.tail.drain(..surplus).collect();
                self.database(&body);
            }
        }
    }

    /// How many bytes have passed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Everything has passed.
    pub fn finish(self) -> Result<Passed, PassingError> {
        let (meta, pages) = match self.state {
            State::Body { meta, pages } => (meta, pages),
            State::NotBolt => return Err(PassingError::NotBolt),
            State::Head(head) => {
                let wanted = HASH_BYTES.saturating_add(u64::from(PAGE_SIZE_MIN).saturating_mul(4));
                // What is too short to be looked at is not bolt's unless it begins like it.
                let begins = MetaPages::read(&head).is_ok_and(|metas| metas.pages.iter().any(Result::is_ok));
                return Err(match begins || head.is_empty() {
                    true => PassingError::Truncated { bytes: self.bytes, wanted },
                    false => PassingError::NotBolt,
                });
            }
        };
        let wanted = meta.hwm.saturating_mul(u64::from(meta.page_size)).saturating_add(HASH_BYTES);
        if self.bytes < wanted {
            return Err(PassingError::Truncated { bytes: self.bytes, wanted });
        }
        let sha256: [u8; HASH] = self.hasher.finalize().into();
        if self.tail != sha256 {
            return Err(PassingError::Hash);
        }
        let revision = pages.revision()?;
        Ok(Passed { revision, bytes: self.bytes, page_size: meta.page_size, sha256 })
    }

    fn database(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        match &mut self.state {
            State::Body { pages, .. } => pages.push(bytes),
            State::NotBolt => {}
            State::Head(head) => {
                head.extend_from_slice(bytes);
                self.begin();
            }
        }
    }

    /// Goes on to the body once the head holds both meta pages.
    fn begin(&mut self) {
        let State::Head(head) = &self.state else { return };
        if head.len() < META_BYTES {
            return;
        }
        // Whoever sends a snapshot writes both meta pages anew, so the first one is good or nothing is.
        let Some(page_size) = MetaPages::read(head).ok().and_then(|metas| metas.pages.first().copied()?.ok()) else {
            self.state = State::NotBolt;
            return;
        };
        debug_assert!(page_size.page_size <= PAGE_SIZE_MAX, "the meta page was checked");
        if head.len() < (page_size.page_size as usize).saturating_add(META_BYTES) {
            return;
        }
        let Some(meta) = MetaPages::read(head).ok().and_then(|metas| metas.chosen()) else {
            self.state = State::NotBolt;
            return;
        };
        let mut pages = Box::new(Pages::new(meta));
        pages.push(head);
        self.state = State::Body { meta, pages };
    }
}
