//! One page of a tree: its header, its element table and the keys and values behind it.
//!
//! bbolt packs keys and values behind the table in element order without gaps. The parser insists on that, so every
//! damaged position or size is noticed.

use super::PageProblem;

/// Bytes of a page header, and of each element of its table.
pub const HEADER_BYTES: usize = 16;
/// Flag of a branch page.
pub const BRANCH: u16 = 0x01;
/// Flag of a leaf page.
pub const LEAF: u16 = 0x02;
/// Flag of a freelist page.
pub const FREELIST: u16 = 0x10;
/// Element flag: the value is a bucket.
pub const BUCKET: u32 = 0x01;
/// Longest key that bbolt accepts.
pub const KEY_BYTES_MAX: usize = 32768;

/// The 16 bytes that open every page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its own page id.
    pub id: u64,
    /// What kind of page it is.
    pub flags: u16,
    /// Number of elements.
    pub count: u16,
    /// Number of further pages that belong to it.
    pub overflow: u32,
}

impl Header {
    /// Decodes the first 16 bytes.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let [id @ .., f0, f1, c0, c1, o0, o1, o2, o3] = bytes.first_chunk::<HEADER_BYTES>()?;
        Some(Header {
            id: u64::from_le_bytes(*id.first_chunk()?),
            flags: u16::from_le_bytes([*f0, *f1]),
            count: u16::from_le_bytes([*c0, *c1]),
            overflow: u32::from_le_bytes([*o0, *o1, *o2, *o3]),
        })
    }

    /// The 16 bytes.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.flags.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.overflow.to_le_bytes());
        bytes
    }
}

/// A branch or leaf page whose table has not been walked yet.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// Its header.
    pub header: Header,
    bytes: &'a [u8],
}

/// One element of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafItem<'a> {
    /// Whether the value is a bucket.
    pub is_bucket: bool,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// One element of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BranchItem<'a> {
    /// First key below the child, as of when the branch was written.
    pub key: &'a [u8],
    /// The child's page.
    pub child: u64,
}

impl<'a> Page<'a> {
    /// Takes the whole logical page (overflow included).
    pub fn new(bytes: &'a [u8]) -> Result<Page<'a>, PageProblem> {
        let header = Header::decode(bytes).ok_or(PageProblem::Table { element: 0 })?;
        if header.flags != BRANCH && header.flags != LEAF {
            return Err(PageProblem::NotTree { flags: header.flags });
        }
        Ok(Page { header, bytes })
    }

    /// Whether its elements point to further pages.
    pub fn is_branch(&self) -> bool {
        self.header.flags == BRANCH
    }

    /// The elements of a leaf, in order. Ends after the first error.
    pub fn leaf_items(&self) -> impl Iterator<Item = Result<LeafItem<'a>, PageProblem>> + use<'a> {
        self.elements().map(|element| {
            let element = element?;
            let [flags, _, ksize, _] = element.words;
            if flags & !BUCKET != 0 {
                return Err(PageProblem::Table { element: element.index });
            }
            let split = element.bytes.split_at_checked(ksize as usize);
            let (key, value) = split.ok_or(PageProblem::Table { element: element.index })?;
            Ok(LeafItem { is_bucket: flags & BUCKET != 0, key, value })
        })
    }

    /// The elements of a branch, in order. Ends after the first error.
    pub fn branch_items(&self) -> impl Iterator<Item = Result<BranchItem<'a>, PageProblem>> + use<'a> {
        self.elements().map(|element| {
            let element = element?;
            let [_, _, low, high] = element.words;
            Ok(BranchItem { key: element.bytes, child: u64::from(high) << 32 | u64::from(low) })
        })
    }

    /// How many bytes the header, table, keys and values take; the rest of the page means nothing.
    pub fn used_bytes(&self) -> Result<usize, PageProblem> {
        let mut used = HEADER_BYTES + usize::from(self.header.count) * HEADER_BYTES;
        for element in self.elements() {
            used += element?.bytes.len();
        }
        Ok(used)
    }

    fn elements(&self) -> Elements<'a> {
        let count = usize::from(self.header.count);
        let behind = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        match behind.split_at_checked(count * HEADER_BYTES) {
            Some((table, packed)) => {
                let (table, _) = table.as_chunks::<HEADER_BYTES>();
                Elements {
                    table,
                    packed,
                    leaf: !self.is_branch(),
                    index: 0,
                    packed_at: table.len() * HEADER_BYTES,
                    failed: false,
                }
            }
            // A table that does not fit yields its error at once.
            None => Elements { table: &[], packed: &[], leaf: true, index: 0, packed_at: 0, failed: true },
        }
    }
}

/// A table entry with the bytes it stands for (key, or key and value).
struct Element<'a> {
    index: u32,
    words: [u32; 4],
    bytes: &'a [u8],
}

struct Elements<'a> {
    table: &'a [[u8; HEADER_BYTES]],
    packed: &'a [u8],
    leaf: bool,
    index: u32,
    /// Where the packed bytes of the next element begin, counted from the start of the table.
    packed_at: usize,
    failed: bool,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, PageProblem>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.index;
        if std::mem::take(&mut self.failed) {
            self.table = &[];
            return Some(Err(PageProblem::Table { element: index }));
        }
        let (entry, rest) = self.table.split_first()?;
        let (words, _) = entry.as_chunks::<4>();
        let &[a, b, c, d] = words else { return None };
        let words = [a, b, c, d].map(u32::from_le_bytes);
        let (pos, ksize, vsize) = if self.leaf { (words[1], words[2], words[3]) } else { (words[0], words[1], 0) };
        // `pos` counts from the element itself.
        let expected_pos = self.packed_at - index as usize * HEADER_BYTES;
        let size = ksize as usize + vsize as usize;
        let fits = pos as usize == expected_pos && (1..=KEY_BYTES_MAX).contains(&(ksize as usize));
        let Some((bytes, packed)) = self.packed.split_at_checked(size).filter(|_| fits) else {
            self.table = &[];
            return Some(Err(PageProblem::Table { element: index }));
        };
        self.table = rest;
        self.packed = packed;
        self.packed_at += size;
        self.index += 1;
        Some(Ok(Element { index, words, bytes }))
    }
}
