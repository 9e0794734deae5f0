//! Walks the base strictly, and hashes what is written.

use std::sync::atomic::{AtomicU64, Ordering};

use super::RebuildError;
use crate::bolt::build::{BucketWriter, Sink};
use crate::bolt::page::LeafItem;
use crate::bolt::tree::{Subtree, Visitor, walk_inline};
use crate::bolt::{BoltError, Bucket, Db, PageProblem};
use crate::{ReadAt, ReadError};

/// etcd's hash over all buckets: each name, then each key and value.
#[derive(Default)]
pub(super) struct Hash(u32);

impl Hash {
    pub(super) fn bucket(&mut self, name: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, name);
    }

    fn item(&mut self, key: &[u8], value: &[u8]) {
        self.0 = crc32c::crc32c_append(crc32c::crc32c_append(self.0, key), value);
    }

    pub(super) fn value(&self) -> u32 {
        self.0
    }
}

/// A bucket being written and hashed.
pub(super) struct Hashed<'o, 'w, S: Sink> {
    pub(super) bucket: &'o mut BucketWriter<'w, S>,
    pub(super) hash: &'o mut Hash,
}

impl<S: Sink> Hashed<'_, '_, S> {
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), RebuildError<S::Error>> {
        self.hash.item(key, value);
        self.bucket.put(key, value).map_err(RebuildError::Sink)
    }
}

/// An item of the base, and where it is.
pub(super) struct Found<'i> {
    pub(super) page: u64,
    pub(super) key: &'i [u8],
    pub(super) value: &'i [u8],
}

/// Hands every item of a bucket on, in order; with `below`, at least all whose key is below it. The first thing wrong
/// ends it.
pub(super) fn each_item<R: ReadAt + ?Sized, E>(
    db: &Db<'_, R>,
    bucket: &Bucket,
    below: Option<&[u8]>,
    progress: &AtomicU64,
    visit: impl FnMut(Found<'_>) -> Result<(), RebuildError<E>>,
) -> Result<(), RebuildError<E>> {
    let page_size = u64::from(db.meta().page_size);
    let mut walk = Walk { below, progress, page_size, visit };
    match bucket {
        Bucket::Tree(root) => db.walk(&Subtree::root(*root), &mut walk),
        Bucket::Inline(bytes) => walk_inline(bytes, db.meta().root, &mut walk),
    }
}

struct Walk<'w, F> {
    below: Option<&'w [u8]>,
    progress: &'w AtomicU64,
    page_size: u64,
    visit: F,
}

impl<E, F: FnMut(Found<'_>) -> Result<(), RebuildError<E>>> Visitor for Walk<'_, F> {
    type Stop = RebuildError<E>;

    fn wants(&self, subtree: &Subtree) -> bool {
        match (self.below, subtree.lower.as_deref()) {
            (Some(below), Some(lower)) => lower < below,
            _ => true,
        }
    }

    fn reached(&mut self, _page: u64, pages: u64) -> Result<bool, Self::Stop> {
        self.progress.fetch_add(pages * self.page_size, Ordering::Relaxed);
        Ok(true)
    }

    fn problem(&mut self, page: u64, problem: PageProblem) -> Result<(), Self::Stop> {
        // A single-child branch reads well, and the rebuilt tree has none.
        if problem == PageProblem::SingleChild { Ok(()) } else { Err(BoltError::Page { page, problem }.into()) }
    }

    fn unreadable(&mut self, error: ReadError) -> Result<(), Self::Stop> {
        Err(BoltError::from(error).into())
    }

    fn item(&mut self, page: u64, item: LeafItem<'_>) -> Result<(), Self::Stop> {
        if item.is_bucket {
            // No bucket of etcd's holds buckets.
            return Err(BoltError::Page { page, problem: PageProblem::Bucket { element: 0 } }.into());
        }
        (self.visit)(Found { page, key: item.key, value: item.value })
    }
}
