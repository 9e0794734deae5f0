//! What is remembered of each page, and the walk at the end.
//!
//! **Rule:** a page is judged by itself. What an earlier page claims to stretch over is looked at all the same, because the
//! earlier page may be one that was free and means nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::PassingError;
use crate::bolt::page::{BRANCH, HEADER_BYTES, Header, LEAF, LeafItem, Page};
use crate::bolt::tree::DEPTH_MAX;
use crate::bolt::tree::bucket_of;
use crate::bolt::{Bucket, LEAF_BYTES_MAX, Meta};
use crate::mvcc::RevisionKey;

/// Longest key of the `key` bucket.
const REVISION_BYTES: usize = 18;
/// Largest leaf of buckets that is read. etcd has ten buckets, and a small one kept inside takes a quarter of a page at most.
const BUCKETS_PAGES_MAX: u32 = 15;
/// The same in bytes, which counts where pages are large: all that are open at once stay below 16 MiB.
const BUCKETS_BYTES_MAX: usize = 1 << 20;
/// Most leaves that a tree of buckets is followed to.
const ROOT_CHILDREN_MAX: usize = 64;

/// What a page was found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// No page of a tree, or one that does not add up.
    Other,
    /// A branch; its last child.
    Branch,
    /// A leaf whose last key is a revision.
    Revisions,
    /// A leaf without items.
    Empty,
    /// Another leaf.
    Leaf,
}

/// Where a bucket is, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// A tree below this page.
    Tree(u64),
    /// Inside its parent, with this as the newest revision in it.
    Inline(Option<u64>),
    /// Inside its parent, unreadable.
    Broken,
}

/// What a leaf says besides its last key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Small {
    key: Option<Found>,
    meta: Option<Found>,
    /// The newest of the two compacted revisions, where it holds any.
    compacted: Option<u64>,
    /// Whether it does not add up.
    broken: bool,
}

/// Bytes that are still to come and that a leaf's last key is in.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Await {
    /// Where the next of them lies in the file.
    at: u64,
    /// The leaf.
    page: u64,
    /// End of the leaf.
    end: u64,
    what: Want,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Want {
    /// The last entry of its table.
    Entry,
    /// Its last key: what is there of it, and how long it is.
    Key { bytes: Vec<u8>, len: usize },
}

/// Everything that is known of the pages so far.
#[derive(Debug)]
pub(super) struct Pages {
    meta: Meta,
    /// The page that is passing, as far as it came.
    partial: Vec<u8>,
    kinds: Vec<Kind>,
    /// A branch's last child or a leaf's last revision.
    words: Vec<u64>,
    awaited: BinaryHeap<Reverse<Await>>,
    /// Leaves of buckets that go on in the next pages.
    open: Vec<(u64, usize, Vec<u8>)>,
    small: BTreeMap<u64, Small>,
    /// The leaves of the tree of buckets, where that is more than one.
    root_children: Option<Vec<u64>>,
}

impl Pages {
    pub(super) fn new(meta: Meta) -> Pages {
        Pages {
            meta,
            partial: Vec::new(),
            kinds: Vec::new(),
            words: Vec::new(),
            awaited: BinaryHeap::new(),
            open: Vec::new(),
            small: BTreeMap::new(),
            root_children: None,
        }
    }

    fn page_size(&self) -> usize {
        self.meta.page_size as usize
    }

    /// Takes the next bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        let size = self.page_size();
        while !bytes.is_empty() && (self.kinds.len() as u64) < self.meta.hwm {
            if self.partial.is_empty()
                && let Some((page, rest)) = bytes.split_at_checked(size)
            {
                self.page(page);
                bytes = rest;
                continue;
            }
            let missing = size.saturating_sub(self.partial.len()).min(bytes.len());
            let (more, rest) = bytes.split_at(missing);
            self.partial.extend_from_slice(more);
            bytes = rest;
            if self.partial.len() == size {
                let page = std::mem::take(&mut self.partial);
                self.page(&page);
                self.partial = page;
                self.partial.clear();
            }
        }
    }

    /// Looks at one whole page.
    fn page(&mut self, bytes: &[u8]) {
        let id = self.kinds.len() as u64;
        self.kinds.push(Kind::Other);
        self.words.push(0);
        self.collect(id, bytes);
        self.go_on(bytes);
        let Some(header) = Header::decode(bytes).filter(|header| header.id == id && id >= 2) else { return };
        match header.flags {
            BRANCH => self.branch(id, &header, bytes),
            LEAF => self.leaf(id, &header, bytes),
            _ => {}
        }
    }

    fn set(&mut self, id: u64, kind: Kind, word: u64) {
        let at = usize::try_from(id).unwrap_or(usize::MAX);
        if let (Some(kinds), Some(words)) = (self.kinds.get_mut(at), self.words.get_mut(at)) {
            *kinds = kind;
            *words = word;
        }
    }

    /// A branch's table lies on its first page unless its keys are long; then that is not etcd's.
    fn branch(&mut self, id: u64, header: &Header, bytes: &[u8]) {
        let table = bytes.get(HEADER_BYTES..).unwrap_or_default();
        let (entries, _) = table.as_chunks::<HEADER_BYTES>();
        let Some(entries) = entries.get(..usize::from(header.count)) else { return };
        // An entry ends with its child: position and size of the key take the first half.
        let child = |entry: &[u8; HEADER_BYTES]| entry.last_chunk().map_or(0, |child| u64::from_le_bytes(*child));
        if id == self.meta.root {
            self.root_children = Some(entries.iter().take(ROOT_CHILDREN_MAX).map(child).collect());
        }
        if let Some(last) = entries.last() {
            self.set(id, Kind::Branch, child(last));
        }
    }

    fn leaf(&mut self, id: u64, header: &Header, bytes: &[u8]) {
        self.set(id, Kind::Leaf, 0);
        let start = id.saturating_mul(bytes.len() as u64);
        let pages = u64::from(header.overflow).saturating_add(1);
        let len = pages.saturating_mul(bytes.len() as u64);
        if len > LEAF_BYTES_MAX.max(bytes.len() as u64) || pages > self.meta.hwm.saturating_sub(id) {
            return self.set(id, Kind::Other, 0);
        }
        if header.count == 0 {
            return self.set(id, Kind::Empty, 0);
        }
        if id == self.meta.root || !begins_with_revision(bytes) {
            self.small_leaf(id, header, bytes);
        }
        let entry = u64::from(header.count).saturating_mul(HEADER_BYTES as u64);
        self.wait(Await {
            at: start.saturating_add(entry),
            page: id,
            end: start.saturating_add(len),
            what: Want::Entry,
        });
        self.collect(id, bytes);
    }

    fn wait(&mut self, wait: Await) {
        let need = match &wait.what {
            Want::Entry => HEADER_BYTES,
            Want::Key { bytes, len } => len.saturating_sub(bytes.len()),
        };
        if wait.at.saturating_add(need as u64) <= wait.end {
            self.awaited.push(Reverse(wait));
        } else {
            self.set(wait.page, Kind::Other, 0);
        }
    }

    /// Takes from page `id` what leaves wait for.
    fn collect(&mut self, id: u64, bytes: &[u8]) {
        let start = id.saturating_mul(bytes.len() as u64);
        while let Some(Reverse(first)) = self.awaited.peek() {
            let Some(there) = usize::try_from(first.at.saturating_sub(start)).ok().and_then(|at| bytes.get(at..))
            else {
                break;
            };
            if there.is_empty() {
                break;
            }
            if let Some(Reverse(wait)) = self.awaited.pop() {
                self.answer(wait, there);
            }
        }
    }

    fn answer(&mut self, wait: Await, there: &[u8]) {
        match wait.what {
            Want::Entry => {
                // Tables are aligned, so an entry never lies across two pages.
                let (words, _) = there.as_chunks::<4>();
                let Some(&[_, pos, ksize, _]) = words.first_chunk::<4>() else { return };
                let (pos, len) = (u32::from_le_bytes(pos), u32::from_le_bytes(ksize) as usize);
                // Keys lie behind the table.
                if (pos as usize) < HEADER_BYTES || len == 0 {
                    return self.set(wait.page, Kind::Other, 0);
                }
                if !(REVISION_BYTES.saturating_sub(1)..=REVISION_BYTES).contains(&len) {
                    return;
                }
                let at = wait.at.saturating_add(u64::from(pos));
                self.wait(Await { at, what: Want::Key { bytes: Vec::new(), len }, ..wait });
            }
            Want::Key { mut bytes, len } => {
                let more = there.get(..len.saturating_sub(bytes.len())).unwrap_or(there);
                bytes.extend_from_slice(more);
                if bytes.len() < len {
                    let at = wait.at.saturating_add(more.len() as u64);
                    return self.wait(Await { at, what: Want::Key { bytes, len }, ..wait });
                }
                if let Some(key) = RevisionKey::decode(&bytes) {
                    self.set(wait.page, Kind::Revisions, key.revision.main);
                }
            }
        }
    }

    /// A leaf that may hold buckets, or the compacted revisions.
    fn small_leaf(&mut self, id: u64, header: &Header, bytes: &[u8]) {
        let len = (header.overflow as usize).saturating_add(1).saturating_mul(bytes.len());
        if header.overflow == 0 {
            self.read_small(id, bytes);
        } else if header.overflow <= BUCKETS_PAGES_MAX && len <= BUCKETS_BYTES_MAX {
            self.open.push((id, len, bytes.to_vec()));
        } else {
            self.small.insert(id, Small { broken: true, ..Small::default() });
        }
    }

    /// Adds a page to the leaves that go on in it, and reads those that are whole.
    fn go_on(&mut self, bytes: &[u8]) {
        for mut leaf in std::mem::take(&mut self.open) {
            leaf.2.extend_from_slice(bytes);
            match leaf.2.len() < leaf.1 {
                true => self.open.push(leaf),
                false => self.read_small(leaf.0, &leaf.2),
            }
        }
    }

    fn read_small(&mut self, id: u64, bytes: &[u8]) {
        let Ok(page) = Page::new(bytes) else { return };
        let mut small = Small::default();
        for item in page.leaf_items() {
            let Ok(item) = item else {
                small.broken = true;
                break;
            };
            match (item.is_bucket, item.key) {
                (true, b"key") => small.key = Some(bucket(&item, last_revision)),
                (true, b"meta") => small.meta = Some(bucket(&item, newest_compacted)),
                (false, _) => small.compacted = small.compacted.max(compacted_by(&item)),
                (true, _) => {}
            }
        }
        if small != Small::default() {
            self.small.insert(id, small);
        }
    }

    /// Walks from the root to the newest write and the compacted revisions.
    pub(super) fn revision(&self) -> Result<u64, PassingError> {
        let root = self.meta.root;
        let leaves = match self.kind(root) {
            Kind::Branch => self.root_children.as_deref().unwrap_or_default(),
            _ => &[root],
        };
        let mut found = Small::default();
        for leaf in leaves {
            if let Some(small) = self.small_at(*leaf, "root")? {
                found.key = small.key.or(found.key);
                found.meta = small.meta.or(found.meta);
            }
        }
        let written = match found.key {
            Some(Found::Tree(page)) => self.last_below(page)?,
            Some(Found::Inline(last)) => last,
            Some(Found::Broken) => return Err(PassingError::Layout("key")),
            None => None,
        };
        let compacted = match found.meta {
            Some(Found::Tree(page)) => self.small_at(page, "meta")?.and_then(|small| small.compacted),
            Some(Found::Inline(newest)) => newest,
            Some(Found::Broken) => return Err(PassingError::Layout("meta")),
            None => None,
        };
        // A store begins at revision 1, before anything is written.
        Ok(written.unwrap_or(1).max(compacted.unwrap_or(0)))
    }

    /// The last revision of the tree below a page.
    fn last_below(&self, mut page: u64) -> Result<Option<u64>, PassingError> {
        for _ in 0..DEPTH_MAX {
            let word = usize::try_from(page).ok().and_then(|at| self.words.get(at)).copied().unwrap_or(0);
            match self.kind(page) {
                Kind::Branch => page = word,
                Kind::Revisions => return Ok(Some(word)),
                Kind::Empty => return Ok(None),
                Kind::Leaf => return Err(PassingError::NoRevision { page }),
                Kind::Other => break,
            }
        }
        Err(PassingError::Page { page })
    }

    /// What a leaf of a small tree says.
    fn small_at(&self, page: u64, tree: &'static str) -> Result<Option<&Small>, PassingError> {
        match self.kind(page) {
            Kind::Branch => Err(PassingError::Layout(tree)),
            Kind::Other => Err(PassingError::Page { page }),
            Kind::Revisions | Kind::Empty | Kind::Leaf => match self.small.get(&page) {
                Some(small) if small.broken => Err(PassingError::Page { page }),
                small => Ok(small),
            },
        }
    }

    fn kind(&self, page: u64) -> Kind {
        usize::try_from(page).ok().and_then(|at| self.kinds.get(at)).copied().unwrap_or(Kind::Other)
    }
}

/// Whether the first key of a leaf, which lies behind its table, is a revision.
fn begins_with_revision(bytes: &[u8]) -> bool {
    let entry = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let (words, _) = entry.as_chunks::<4>();
    let Some(&[_, pos, ksize, _]) = words.first_chunk::<4>() else { return false };
    let (pos, len) = (u32::from_le_bytes(pos) as usize, u32::from_le_bytes(ksize) as usize);
    let key = pos.checked_add(len).and_then(|end| entry.get(pos..end));
    key.is_some_and(|key| RevisionKey::decode(key).is_some())
}

/// A bucket; one that is kept inside is read by `inside`, which says nothing if it cannot.
fn bucket(item: &LeafItem<'_>, inside: fn(&Page<'_>) -> Option<Option<u64>>) -> Found {
    match bucket_of(item) {
        Some(Bucket::Tree(root)) => Found::Tree(root),
        Some(Bucket::Inline(bytes)) => {
            let page = Page::new(&bytes).ok().filter(|page| !page.is_branch());
            page.as_ref().and_then(inside).map_or(Found::Broken, Found::Inline)
        }
        None => Found::Broken,
    }
}

fn last_revision(page: &Page<'_>) -> Option<Option<u64>> {
    let mut last = None;
    for item in page.leaf_items() {
        last = Some(item.ok()?.key);
    }
    match last {
        Some(key) => RevisionKey::decode(key).map(|key| Some(key.revision.main)),
        None => Some(None),
    }
}

fn newest_compacted(page: &Page<'_>) -> Option<Option<u64>> {
    let mut newest = None;
    for item in page.leaf_items() {
        newest = newest.max(compacted_by(&item.ok()?));
    }
    Some(newest)
}

fn compacted_by(item: &LeafItem<'_>) -> Option<u64> {
    let wanted = matches!(item.key, b"finishedCompactRev" | b"scheduledCompactRev");
    let key = RevisionKey::decode(item.value).filter(|key| wanted && !key.tombstone)?;
    Some(key.revision.main)
}
