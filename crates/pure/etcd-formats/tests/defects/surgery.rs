//! Changes a bolt file page by page, as no writer would.

use quorate_etcd_formats::bolt::meta::{self, Meta};
use quorate_etcd_formats::bolt::page::{BRANCH, FREELIST, HEADER_BYTES, Header};
use quorate_etcd_formats::bolt::{Bucket, Db, MetaPages};
use quorate_etcd_formats::{ReadAt, ReadError};

/// A database on the table.
pub(crate) struct Bolt {
    pub(crate) bytes: Vec<u8>,
    pub(crate) meta: Meta,
}

impl Bolt {
    pub(crate) fn open(bytes: Vec<u8>) -> Bolt {
        let meta = MetaPages::read(&bytes).unwrap().chosen().unwrap();
        Bolt { bytes, meta }
    }

    fn page_bytes(&self) -> usize {
        self.meta.page_size as usize
    }

    pub(crate) fn page(&mut self, id: u64) -> &mut [u8] {
        let size = self.page_bytes();
        &mut self.bytes[id as usize * size..(id as usize + 1) * size]
    }

    /// Appends pages and returns the first one's id.
    pub(crate) fn append(&mut self, mut image: Vec<u8>) -> u64 {
        let id = self.meta.hwm;
        let size = self.page_bytes();
        image.resize(image.len().div_ceil(size) * size, 0);
        image[..8].copy_from_slice(&id.to_le_bytes());
        self.meta.hwm += (image.len() / size) as u64;
        self.bytes.extend_from_slice(&image);
        id
    }

    /// The root page of a bucket that is a tree.
    pub(crate) fn root_of(&self, bucket: &str) -> u64 {
        let db = Db::with_meta(&self.bytes, self.meta).unwrap();
        let buckets = db.buckets().unwrap();
        let found = buckets.iter().find(|(name, _)| name == bucket.as_bytes()).map(|(_, bucket)| bucket);
        let Some(Bucket::Tree(root)) = found else { panic!("`{bucket}` is not a tree: {found:?}") };
        *root
    }

    /// Lets a bucket begin at another page.
    pub(crate) fn set_root_of(&mut self, bucket: &str, root: u64) {
        let old = self.root_of(bucket).to_le_bytes();
        let entry = [bucket.as_bytes(), &old].concat();
        let top = self.meta.root;
        let at = find(self.page(top), &entry) + bucket.len();
        self.page(top)[at..at + 8].copy_from_slice(&root.to_le_bytes());
    }

    /// The file with both meta pages as they are now.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let meta = self.meta;
        for id in 0..2 {
            let image = meta::encode(&Meta { txid: meta.txid + id, ..meta }, id);
            self.page(id)[..image.len()].copy_from_slice(&image);
        }
        self.bytes
    }
}

/// Where `wanted` is.
pub(crate) fn find(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|window| window == wanted).unwrap()
}

/// A branch page; its id comes when it is placed.
pub(crate) fn branch(children: &[(&[u8], u64)]) -> Vec<u8> {
    let header = Header { id: 0, flags: BRANCH, count: children.len() as u16, overflow: 0 };
    let mut image = header.encode().to_vec();
    let mut packed = Vec::new();
    for (index, (key, child)) in children.iter().enumerate() {
        let pos = (children.len() - index) * HEADER_BYTES + packed.len();
        image.extend_from_slice(&(pos as u32).to_le_bytes());
        image.extend_from_slice(&(key.len() as u32).to_le_bytes());
        image.extend_from_slice(&child.to_le_bytes());
        packed.extend_from_slice(key);
    }
    [image, packed].concat()
}

/// A freelist of so many pages of `page_bytes`.
pub(crate) fn freelist(ids: &[u64], page_bytes: usize) -> Vec<u8> {
    let many = ids.len() >= 0xFFFF;
    let bytes = HEADER_BYTES + 8 * (ids.len() + usize::from(many));
    let count = if many { 0xFFFF } else { ids.len() as u16 };
    let overflow = bytes.div_ceil(page_bytes) - 1;
    let mut image = Header { id: 0, flags: FREELIST, count, overflow: overflow as u32 }.encode().to_vec();
    if many {
        image.extend_from_slice(&(ids.len() as u64).to_le_bytes());
    }
    image.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    image
}

/// Bytes followed by zeros: a large file that takes no memory.
pub(crate) struct Sparse {
    pub(crate) bytes: Vec<u8>,
    pub(crate) length: u64,
}

impl ReadAt for Sparse {
    fn len(&self) -> u64 {
        self.length
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ReadError> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.length) {
            return Err(ReadError { offset, wanted: buf.len(), cause: None });
        }
        for (at, byte) in (offset..).zip(buf) {
            *byte = usize::try_from(at).ok().and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
        Ok(())
    }
}
