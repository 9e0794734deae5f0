//! Writes a whole bolt file in one sequential pass from sorted input.
//!
//! Leaves are written as they fill and branches as their children are known, so memory is a few pages per level,
//! whatever the size of the file.
//!
//! **Invariant:** no branch page has fewer than two children. bbolt accepts such a page, and etcd dies on it during a
//! later compaction.

use super::meta::{self, Meta, NO_FREELIST};
use super::page::{BRANCH, BUCKET, HEADER_BYTES, Header, KEY_BYTES_MAX, LEAF};

/// Where the pages go: written in order, with the two meta pages put in place at the end.
pub trait Sink {
    /// What can go wrong.
    type Error;
    /// Appends.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;
    /// Overwrites bytes at the beginning.
    fn overwrite(&mut self, bytes: &[u8], offset: u64) -> Result<(), Self::Error>;

    /// Appends what a buffer holds, and leaves an empty one. A sink that hands buffers on swaps it for another.
    fn append_buffer(&mut self, buffer: &mut Vec<u8>) -> Result<(), Self::Error> {
        self.append(buffer)?;
        buffer.clear();
        Ok(())
    }
}

impl Sink for Vec<u8> {
    type Error = std::convert::Infallible;

    fn append(&mut self, bytes: &[u8]) -> Result<(), Self::Error> {
        self.extend_from_slice(bytes);
        Ok(())
    }

    fn overwrite(&mut self, bytes: &[u8], offset: u64) -> Result<(), Self::Error> {
        let start = offset as usize;
        self[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// Writes the buckets of one file, in the order of their names.
pub struct BoltWriter<S: Sink> {
    pages: Pages<S>,
    buckets: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One bucket being written.
pub struct BucketWriter<'w, S: Sink> {
    writer: &'w mut BoltWriter<S>,
    name: Vec<u8>,
    tree: TreeWriter,
    last_key: Vec<u8>,
}

/// A key and its value.
pub type Item = (Vec<u8>, Vec<u8>);

/// The sink gets whole multiples of this, until the end.
pub const WRITE_BYTES: usize = 1 << 20;

/// Least elements of a page, as bbolt has it. Two values that are a little longer than a page share three pages; each by
/// itself would take two.
const KEYS_MIN: usize = 2;

/// Most bytes of a leaf that was given a second item: what bounds memory where values are giants.
const SHARED_MAX: usize = 4 << 20;

/// How full a page gets before the next one is begun, in percent. Leaves room for the first changes in place.
const FILL_PERCENT: usize = 90;

impl<S: Sink> BoltWriter<S> {
    /// Begins a file with pages of `page_size` bytes.
    pub fn new(sink: S, page_size: u32) -> Result<Self, S::Error> {
        let page_size = page_size as usize;
        // The meta pages are put in place at the end.
        let pages = Pages { sink, page_size, next: 2, buffer: vec![0; page_size * 2] };
        Ok(BoltWriter { pages, buckets: Vec::new() })
    }

    /// Begins the next bucket. Names must ascend.
    pub fn bucket(&mut self, name: &[u8]) -> BucketWriter<'_, S> {
        debug_assert!(self.buckets.last().is_none_or(|(last, _)| last.as_slice() < name), "bucket names ascend");
        let tree = TreeWriter::new(self.pages.page_size);
        BucketWriter { writer: self, name: name.to_vec(), tree, last_key: Vec::new() }
    }

    /// Writes the tree of buckets and both meta pages, and gives the sink back.
    pub fn finish(mut self) -> Result<S, S::Error> {
        let mut root = TreeWriter::new(self.pages.page_size);
        for (name, value) in &self.buckets {
            root.put(&mut self.pages, BUCKET, name, value)?;
        }
        let root = root.finish(&mut self.pages)?;
        let Pages { mut sink, page_size, next, mut buffer } = self.pages;
        let whole = buffer.len() as u64 == next * page_size as u64;
        let metas = [0u64, 1].map(|id| {
            let meta = Meta { page_size: page_size as u32, root, freelist: NO_FREELIST, hwm: next, txid: id };
            (meta::encode(&meta, id), id as usize * page_size)
        });
        if whole {
            // A small file is written in one piece.
            for (meta, at) in &metas {
                buffer[*at..*at + meta.len()].copy_from_slice(meta);
            }
            sink.append_buffer(&mut buffer)?;
            return Ok(sink);
        }
        sink.append_buffer(&mut buffer)?;
        for (meta, at) in &metas {
            sink.overwrite(meta, *at as u64)?;
        }
        Ok(sink)
    }
}

impl<S: Sink> BucketWriter<'_, S> {
    /// Adds a key above every key so far.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), S::Error> {
        debug_assert!(!key.is_empty() && key.len() <= KEY_BYTES_MAX, "bolt keys have 1 to 32768 bytes");
        debug_assert!(self.last_key.as_slice() < key, "keys ascend");
        if cfg!(debug_assertions) {
            self.last_key.clear();
            self.last_key.extend_from_slice(key);
        }
        self.tree.put(&mut self.writer.pages, 0u64, key, value)
    }

    /// Ends the bucket.
    pub fn finish(self) -> Result<(), S::Error> {
        let pages = &mut self.writer.pages;
        let value = match self.tree.into_inline(pages.page_size) {
            Ok(inline) => inline,
            Err(tree) => bucket_header(tree.finish(pages)?),
        };
        self.writer.buckets.push((self.name, value));
        Ok(())
    }
}

/// A whole small database in memory. Buckets and keys come sorted.
pub fn small_db(buckets: &[(&[u8], Vec<Item>)], page_size: u32) -> Vec<u8> {
    let build = || {
        let mut writer = BoltWriter::new(Vec::new(), page_size)?;
        for (name, items) in buckets {
            let mut bucket = writer.bucket(name);
            for (key, value) in items {
                bucket.put(key, value)?;
            }
            bucket.finish()?;
        }
        writer.finish()
    };
    match build() {
        Ok(bytes) => bytes,
        Err(never) => match never {},
    }
}

/// {root page, sequence}: what a bucket's value begins with.
fn bucket_header(root: u64) -> Vec<u8> {
    let mut value = root.to_le_bytes().to_vec();
    value.extend_from_slice(&[0; 8]);
    value
}

/// The sink with its page numbering.
struct Pages<S> {
    sink: S,
    page_size: usize,
    next: u64,
    /// Whole pages that the sink has not been given yet.
    buffer: Vec<u8>,
}

impl<S: Sink> Pages<S> {
    fn write(&mut self, group: &Group) -> Result<u64, S::Error> {
        let id = self.next;
        let pages = group.bytes().div_ceil(self.page_size);
        let end = self.buffer.len() + pages * self.page_size;
        group.image(id, (pages - 1) as u32, &mut self.buffer);
        self.buffer.resize(end, 0);
        if self.buffer.len() >= WRITE_BYTES {
            let behind = self.buffer.split_off(self.buffer.len() - self.buffer.len() % WRITE_BYTES);
            self.sink.append_buffer(&mut self.buffer)?;
            self.buffer.extend_from_slice(&behind);
        }
        self.next += pages as u64;
        Ok(id)
    }
}

/// The elements of one page to be.
#[derive(Default)]
struct Group {
    branch: bool,
    /// Each element's flags or child, and the lengths of key and value.
    table: Vec<(u64, u32, u32)>,
    packed: Vec<u8>,
}

impl Group {
    fn bytes(&self) -> usize {
        HEADER_BYTES * (1 + self.table.len()) + self.packed.len()
    }

    fn push(&mut self, word: u64, key: &[u8], value: &[u8]) {
        self.table.push((word, key.len() as u32, value.len() as u32));
        self.packed.extend_from_slice(key);
        self.packed.extend_from_slice(value);
    }

    fn first_key(&self) -> &[u8] {
        self.table.first().map(|(_, key, _)| &self.packed[..*key as usize]).unwrap_or_default()
    }

    /// Takes the elements of the page behind it.
    fn absorb(&mut self, behind: &mut Group) {
        self.table.append(&mut behind.table);
        self.packed.append(&mut behind.packed);
    }

    /// Forgets its elements and keeps its room, unless a giant has passed through.
    fn clear(&mut self) {
        self.table.clear();
        self.packed.clear();
        self.packed.shrink_to(WRITE_BYTES);
    }

    /// Takes the last element away again.
    fn pop(&mut self) -> Option<(u64, Vec<u8>)> {
        let (word, key, value) = self.table.pop()?;
        let tail = self.packed.split_off(self.packed.len() - key as usize - value as usize);
        Some((word, tail))
    }

    /// Appends the page's bytes, without padding.
    fn image(&self, id: u64, overflow: u32, image: &mut Vec<u8>) {
        let flags = if self.branch { BRANCH } else { LEAF };
        let header = Header { id, flags, count: self.table.len() as u16, overflow };
        image.reserve(self.bytes());
        image.extend_from_slice(&header.encode());
        let mut packed_at = self.table.len() * HEADER_BYTES;
        for (index, (word, key, value)) in self.table.iter().enumerate() {
            let pos = (packed_at - index * HEADER_BYTES) as u32;
            if self.branch {
                image.extend_from_slice(&pos.to_le_bytes());
                image.extend_from_slice(&key.to_le_bytes());
                image.extend_from_slice(&word.to_le_bytes());
            } else {
                image.extend_from_slice(&(*word as u32).to_le_bytes());
                image.extend_from_slice(&pos.to_le_bytes());
                image.extend_from_slice(&key.to_le_bytes());
                image.extend_from_slice(&value.to_le_bytes());
            }
            packed_at += *key as usize + *value as usize;
        }
        image.extend_from_slice(&self.packed);
    }
}

/// One level of a tree: the page being filled, and the full one before it, held back so that the last page of a branch
/// level can always be given a second child.
#[derive(Default)]
struct Level {
    filling: Group,
    held: Option<Group>,
    /// A page that was written, to be filled again.
    spare: Option<Group>,
}

/// Builds one tree bottom-up. Level 0 holds the leaves.
struct TreeWriter {
    levels: Vec<Level>,
    threshold: usize,
    /// Most elements of a page: the count has 16 bits, and 0xFFFF means something else on freelist pages.
    count_max: usize,
}

impl TreeWriter {
    fn new(page_size: usize) -> TreeWriter {
        TreeWriter { levels: vec![Level::default()], threshold: page_size * FILL_PERCENT / 100, count_max: 0xFFF0 }
    }

    fn put<S: Sink>(
        &mut self,
        pages: &mut Pages<S>,
        word: impl Into<u64>,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), S::Error> {
        self.push(pages, 0, word.into(), key, value)
    }

    fn push<S: Sink>(
        &mut self,
        pages: &mut Pages<S>,
        depth: usize,
        word: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), S::Error> {
        if self.levels.len() == depth {
            self.levels.push(Level { filling: Group { branch: true, ..Group::default() }, ..Level::default() });
        }
        let level = &mut self.levels[depth];
        let grown = level.filling.bytes() + HEADER_BYTES + key.len() + value.len();
        let full = grown > self.threshold || level.filling.table.len() >= self.count_max;
        let giant = !level.filling.branch && grown > SHARED_MAX && !level.filling.table.is_empty();
        if full && (level.filling.table.len() >= KEYS_MIN || giant) {
            let branch = level.filling.branch;
            let next = level.spare.take().unwrap_or_else(|| Group { branch, ..Group::default() });
            let done = std::mem::replace(&mut level.filling, next);
            let before = level.held.replace(done);
            level.filling.push(word, key, value);
            if let Some(mut before) = before {
                self.write(pages, depth, &before)?;
                before.clear();
                self.levels[depth].spare = Some(before);
            }
        } else {
            level.filling.push(word, key, value);
        }
        Ok(())
    }

    fn write<S: Sink>(&mut self, pages: &mut Pages<S>, depth: usize, group: &Group) -> Result<(), S::Error> {
        let id = pages.write(group)?;
        self.push(pages, depth + 1, id, group.first_key(), &[])
    }

    /// Writes what is left and returns the root page.
    fn finish<S: Sink>(mut self, pages: &mut Pages<S>) -> Result<u64, S::Error> {
        let mut depth = 0;
        loop {
            let Level { mut filling, held, .. } = std::mem::take(&mut self.levels[depth]);
            let Some(mut held) = held else {
                // A single page on this level: the root, unless pages of this level were written before.
                let is_top = self.levels.len() == depth + 1;
                debug_assert!(is_top, "a level above exists only once a held page was written");
                return pages.write(&filling);
            };
            if is_better_merged(&held, &filling, pages.page_size) {
                held.absorb(&mut filling);
            } else if filling.branch && filling.table.len() < KEYS_MIN {
                balance(&mut held, &mut filling);
            }
            let is_top = self.levels.len() == depth + 1;
            if is_top && filling.table.is_empty() {
                return pages.write(&held);
            }
            self.write(pages, depth, &held)?;
            if !filling.table.is_empty() {
                self.write(pages, depth, &filling)?;
            }
            depth += 1;
        }
    }

    /// The bucket as a value of its parent, if it is small enough for bbolt to keep it there.
    fn into_inline(self, page_size: usize) -> Result<Vec<u8>, TreeWriter> {
        let [Level { filling, held: None, .. }] = self.levels.as_slice() else { return Err(self) };
        if filling.bytes() > page_size / 4 {
            return Err(self);
        }
        let mut value = bucket_header(0);
        filling.image(0, 0, &mut value);
        Ok(value)
    }
}

/// Whether the last two pages of a level are written as one: where that takes fewer, and bbolt would not split it either.
fn is_better_merged(held: &Group, last: &Group, page_size: usize) -> bool {
    let bytes = held.bytes() + last.bytes() - HEADER_BYTES;
    let whole = bytes <= page_size || held.table.len() + last.table.len() <= 2 * KEYS_MIN && bytes <= SHARED_MAX;
    let apart = held.bytes().div_ceil(page_size) + last.bytes().div_ceil(page_size);
    whole && bytes.div_ceil(page_size) < apart
}

/// Gives a last page with a single child a second one, or hands its child to the page before.
fn balance(held: &mut Group, last: &mut Group) {
    let Some((word, key)) = last.pop() else { return };
    if held.table.len() > 2 {
        if let Some((stolen, stolen_key)) = held.pop() {
            last.push(stolen, &stolen_key, &[]);
        }
        last.push(word, &key, &[]);
    } else {
        held.push(word, &key, &[]);
    }
}
