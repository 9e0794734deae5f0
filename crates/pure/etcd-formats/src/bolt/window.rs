//! Reads pages through one reused buffer, neighbours together.
//!
//! **Invariant:** the buffer holds at most one window or one leaf, and no id or length from the file is used before it
//! has been compared with the number of pages in use.

use super::page::{BRANCH, HEADER_BYTES, Header, LEAF, Page};
use super::{BoltError, Meta, PageProblem};
use crate::{ReadAt, ReadError};

/// Largest leaf that is examined. etcd's own limit on a request is 1.5 MiB, and a leaf may hold a few of them.
pub const LEAF_BYTES_MAX: u64 = 64 << 20;
/// Largest branch that is examined. Branches hold keys of at most 32 KiB and are split at a page.
pub const BRANCH_BYTES_MAX: u64 = 1 << 20;
/// How much is read at once where pages lie next to each other.
const WINDOW_BYTES: u64 = 256 << 10;

/// The bytes read last.
#[derive(Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    first: u64,
}

/// Why a page could not be had.
pub(super) enum Failure {
    Read(ReadError),
    Page(PageProblem),
}

impl Failure {
    pub(super) fn into_error(self, page: u64) -> BoltError {
        match self {
            Failure::Read(error) => BoltError::Read(error),
            Failure::Page(problem) => BoltError::Page { page, problem },
        }
    }
}

impl Window {
    /// How many pages are worth reading at once.
    pub(super) fn pages(meta: &Meta) -> u64 {
        (WINDOW_BYTES / u64::from(meta.page_size)).max(1)
    }

    /// The page with its overflow, reading up to `ahead` pages at once where it is not in the window yet.
    pub(super) fn page<S: ReadAt + ?Sized>(
        &mut self,
        source: &S,
        meta: &Meta,
        id: u64,
        ahead: u64,
    ) -> Result<Page<'_>, Failure> {
        let Meta { hwm, page_size, .. } = *meta;
        if !(2..hwm).contains(&id) {
            return Err(Failure::Page(PageProblem::OutOfRange { hwm }));
        }
        let page_bytes = page_size as usize;
        let in_window = id
            .checked_sub(self.first)
            .and_then(|pages| usize::try_from(pages).ok()?.checked_mul(page_bytes))
            .filter(|start| start.checked_add(page_bytes).is_some_and(|end| end <= self.bytes.len()));
        let start = match in_window {
            Some(start) => start,
            None => {
                self.fill(source, meta, id, ahead.clamp(1, hwm - id))?;
                0
            }
        };
        let header = Header::decode(&self.bytes[start..]).unwrap_or(Header { id, flags: 0, count: 0, overflow: 0 });
        let bytes = logical_bytes(meta, id, &header)?;
        let start = if start + bytes > self.bytes.len() {
            self.fill(source, meta, id, u64::from(header.overflow) + 1)?;
            0
        } else {
            start
        };
        Page::new(&self.bytes[start..start + bytes]).map_err(Failure::Page)
    }

    fn fill<S: ReadAt + ?Sized>(&mut self, source: &S, meta: &Meta, id: u64, pages: u64) -> Result<(), Failure> {
        let page_size = u64::from(meta.page_size);
        self.bytes.resize((pages * page_size) as usize, 0);
        self.bytes.shrink_to((2 * WINDOW_BYTES) as usize);
        self.first = id;
        let read = source.read_exact_at(&mut self.bytes, id * page_size);
        read.map_err(|error| {
            self.bytes.clear();
            Failure::Read(error)
        })
    }
}

/// The size of a page with its overflow, once its header makes sense.
fn logical_bytes(meta: &Meta, id: u64, header: &Header) -> Result<usize, Failure> {
    if header.id != id {
        return Err(Failure::Page(PageProblem::WrongId { found: header.id }));
    }
    let limit = match header.flags {
        BRANCH => BRANCH_BYTES_MAX,
        LEAF => LEAF_BYTES_MAX,
        flags => return Err(Failure::Page(PageProblem::NotTree { flags })),
    };
    if u64::from(header.overflow) >= meta.hwm - id {
        return Err(Failure::Page(PageProblem::RunsPastEnd { overflow: header.overflow }));
    }
    let bytes = (u64::from(header.overflow) + 1) * u64::from(meta.page_size);
    if bytes > limit.max(u64::from(meta.page_size)) {
        return Err(Failure::Page(PageProblem::TooLarge { bytes, limit }));
    }
    debug_assert!(bytes as usize >= HEADER_BYTES, "pages are at least 1 KiB");
    Ok(bytes as usize)
}
