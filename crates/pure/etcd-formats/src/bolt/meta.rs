//! The two meta pages, which name the root and count the pages in use.

use crate::{ReadAt, ReadError};

/// First bytes of every meta.
pub const MAGIC: u32 = 0xED0C_DAED;
/// The only version there is.
pub const VERSION: u32 = 2;
/// Freelist field of a file that keeps none, as etcd writes on Linux.
pub const NO_FREELIST: u64 = u64::MAX;
/// Smallest page size that bbolt looks for.
pub const PAGE_SIZE_MIN: u32 = 1 << 10;
/// Largest page size that bbolt looks for.
pub const PAGE_SIZE_MAX: u32 = 1 << 24;

const META_FLAG: u16 = 0x04;
const HEADER_BYTES: usize = 16;
const META_BYTES: usize = 64;

/// What a meta page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Bytes per page.
    pub page_size: u32,
    /// Root page of the tree of buckets.
    pub root: u64,
    /// Page of the freelist, or [`NO_FREELIST`].
    pub freelist: u64,
    /// Number of pages in use: the first id that was never allocated.
    pub hwm: u64,
    /// Transaction that wrote it.
    pub txid: u64,
}

/// Why one meta page cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetaProblem {
    /// The file ends before it.
    #[error("is missing")]
    Missing,
    /// The page header is not a meta page's.
    #[error("does not have the header of a meta page")]
    Header,
    /// Not bolt's magic number.
    #[error("does not begin with bolt's magic number")]
    Magic,
    /// A version this format does not have.
    #[error("has format version {0}")]
    Version(u32),
    /// The checksum does not match.
    #[error("does not match its checksum")]
    Checksum,
    /// A value no bolt file can have.
    #[error("has an impossible page size or root")]
    Impossible,
}

/// Both meta pages, each as found.
#[derive(Debug, Clone, Copy)]
pub struct MetaPages {
    /// Pages 0 and 1.
    pub pages: [Result<Meta, MetaProblem>; 2],
}

impl MetaPages {
    /// Reads both. Where the first is damaged, the second is looked for at every page size bbolt knows.
    pub fn read<S: ReadAt + ?Sized>(source: &S) -> Result<MetaPages, ReadError> {
        let first = read_one(source, 0, 0)?;
        if let Ok(meta) = first {
            let second = read_one(source, u64::from(meta.page_size), 1)?;
            return Ok(MetaPages { pages: [first, second] });
        }
        let mut second = Err(MetaProblem::Missing);
        let mut size = PAGE_SIZE_MIN;
        while size <= PAGE_SIZE_MAX && second.is_err() {
            match read_one(source, u64::from(size), 1)? {
                Ok(meta) if meta.page_size == size => second = Ok(meta),
                _ => size <<= 1,
            }
        }
        Ok(MetaPages { pages: [first, second] })
    }

    /// The meta that bbolt would use: of the valid ones, that of the later transaction.
    pub fn chosen(&self) -> Option<Meta> {
        match self.pages {
            [Ok(first), Ok(second)] if second.txid > first.txid => Some(second),
            [Ok(first), _] => Some(first),
            [Err(_), Ok(second)] => Some(second),
            [Err(_), Err(_)] => None,
        }
    }
}

fn read_one<S: ReadAt + ?Sized>(source: &S, offset: u64, id: u64) -> Result<Result<Meta, MetaProblem>, ReadError> {
    let mut page = [0u8; HEADER_BYTES + META_BYTES];
    if offset.checked_add(page.len() as u64).is_none_or(|end| end > source.len()) {
        return Ok(Err(MetaProblem::Missing));
    }
    source.read_exact_at(&mut page, offset)?;
    Ok(decode(&page, id))
}

fn decode(page: &[u8; HEADER_BYTES + META_BYTES], id: u64) -> Result<Meta, MetaProblem> {
    let u32_at = |at: usize| page.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
    let u64_at = |at: usize| page.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b));
    if u32_at(16) != MAGIC {
        return Err(MetaProblem::Magic);
    }
    if u32_at(20) != VERSION {
        return Err(MetaProblem::Version(u32_at(20)));
    }
    if u64_at(72) != fnv1a(page.get(16..72).unwrap_or_default()) {
        return Err(MetaProblem::Checksum);
    }
    // The checksum leaves out the page header, so that is looked at by itself.
    if u64_at(0) != id || u32_at(8) != u32::from(META_FLAG) {
        return Err(MetaProblem::Header);
    }
    let meta =
        Meta { page_size: u32_at(24), root: u64_at(32), freelist: u64_at(48), hwm: u64_at(56), txid: u64_at(64) };
    let size_ok = meta.page_size.is_power_of_two() && (PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&meta.page_size);
    let freelist_ok = meta.freelist == NO_FREELIST || (2..meta.hwm).contains(&meta.freelist);
    if !size_ok || !freelist_ok || !(2..meta.hwm).contains(&meta.root) {
        return Err(MetaProblem::Impossible);
    }
    Ok(meta)
}

/// The first bytes of the page that carries `meta`; the rest of the page is zeros.
pub fn encode(meta: &Meta, id: u64) -> [u8; HEADER_BYTES + META_BYTES] {
    let mut page = [0u8; HEADER_BYTES + META_BYTES];
    let fields: [(usize, &[u8]); 9] = [
        (0, &id.to_le_bytes()),
        (8, &META_FLAG.to_le_bytes()),
        (16, &MAGIC.to_le_bytes()),
        (20, &VERSION.to_le_bytes()),
        (24, &meta.page_size.to_le_bytes()),
        (32, &meta.root.to_le_bytes()),
        (48, &meta.freelist.to_le_bytes()),
        (56, &meta.hwm.to_le_bytes()),
        (64, &meta.txid.to_le_bytes()),
    ];
    for (at, bytes) in fields {
        page[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let checksum = fnv1a(&page[16..72]);
    page[72..80].copy_from_slice(&checksum.to_le_bytes());
    page
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_bbolts() {
        let meta = Meta { page_size: 4096, root: 2, freelist: NO_FREELIST, hwm: 5, txid: 18 };
        let page = encode(&meta, 0);
        assert_eq!(page[72..80], [0x56, 0x62, 0x8b, 0x05, 0xe5, 0x69, 0xfc, 0xec]);
        assert_eq!(decode(&page, 0), Ok(meta));
    }

    #[test]
    fn any_flipped_byte_of_a_meta_page_is_noticed() {
        let page = encode(&Meta { page_size: 4096, root: 2, freelist: NO_FREELIST, hwm: 5, txid: 18 }, 1);
        // Bytes 12..16 are the overflow count, which bbolt never looks at on a meta page.
        for at in (0..12).chain(16..page.len()) {
            let mut bad = page;
            bad[at] ^= 0x10;
            assert!(decode(&bad, 1).is_err(), "byte {at}");
        }
    }

    #[test]
    fn the_later_valid_transaction_wins() {
        let meta = |txid| Meta { page_size: 4096, root: 2, freelist: NO_FREELIST, hwm: 5, txid };
        let chosen = |pages| MetaPages { pages }.chosen().map(|meta| meta.txid);
        assert_eq!(chosen([Ok(meta(4)), Ok(meta(5))]), Some(5));
        assert_eq!(chosen([Ok(meta(6)), Ok(meta(5))]), Some(6));
        assert_eq!(chosen([Err(MetaProblem::Checksum), Ok(meta(5))]), Some(5));
        assert_eq!(chosen([Ok(meta(4)), Err(MetaProblem::Checksum)]), Some(4));
        assert_eq!(chosen([Err(MetaProblem::Checksum), Err(MetaProblem::Magic)]), None);
    }
}
