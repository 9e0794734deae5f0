//! What can be wrong with a bolt file.

use crate::ReadError;

/// Why a bolt file could not be read on.
#[derive(Debug, thiserror::Error)]
pub enum BoltError {
    /// The bytes could not be had.
    #[error("the database could not be read")]
    Read(#[from] ReadError),
    /// Neither meta page validates.
    #[error("neither meta page of the database is valid")]
    NoMeta,
    /// The file ends before the pages that the meta page counts.
    #[error("the database has {len} bytes, but its meta page counts {wanted}")]
    TooShort {
        /// Bytes there are.
        len: u64,
        /// Bytes there should be.
        wanted: u64,
    },
    /// A page is not what it should be.
    #[error("page {page} {problem}")]
    Page {
        /// The page.
        page: u64,
        /// What is wrong with it.
        problem: PageProblem,
    },
}

/// What is wrong with one page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PageProblem {
    /// A reference to a page outside the file's used part.
    #[error("lies outside the {hwm} pages in use")]
    OutOfRange {
        /// Number of pages in use.
        hwm: u64,
    },
    /// The page says that it is another page.
    #[error("says that it is page {found}")]
    WrongId {
        /// The id in its header.
        found: u64,
    },
    /// Not a branch or leaf page.
    #[error("has flags {flags:#06x}, which is neither a branch nor a leaf")]
    NotTree {
        /// The flags in its header.
        flags: u16,
    },
    /// Its overflow reaches past the used part.
    #[error("claims {overflow} overflow pages, which lie outside the pages in use")]
    RunsPastEnd {
        /// Overflow count in its header.
        overflow: u32,
    },
    /// It has more or fewer pages than its elements need.
    #[error("has {overflow} overflow pages, which does not fit the {used} bytes it uses")]
    Overflow {
        /// Overflow count in its header.
        overflow: u32,
        /// Bytes that its elements take.
        used: usize,
    },
    /// Larger than is examined.
    #[error("spans {bytes} bytes, more than the {limit} that are examined")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The most that is examined.
        limit: u64,
    },
    /// Its elements do not fit into it or do not add up.
    #[error("has an element table that does not add up at element {element}")]
    Table {
        /// The first element that does not fit.
        element: u32,
    },
    /// Keys are not ascending.
    #[error("has keys out of order at element {element}")]
    Order {
        /// The first element that is not above its predecessor.
        element: u32,
    },
    /// Its keys lie outside what its parent says.
    #[error("has keys outside the range that its parent gives it")]
    Bounds,
    /// No elements, though not the root of a bucket.
    #[error("is empty, though it is not the root of a bucket")]
    Empty,
    /// A branch page with one child.
    #[error("is a branch with a single child")]
    SingleChild,
    /// Reached by two ways.
    #[error("is reached twice")]
    ReachedTwice,
    /// The tree is deeper than any real one.
    #[error("lies deeper than {limit} levels")]
    TooDeep {
        /// The deepest level that is followed.
        limit: usize,
    },
    /// A bucket's header or inline page is malformed.
    #[error("holds a malformed bucket at element {element}")]
    Bucket {
        /// The element.
        element: u32,
    },
}
