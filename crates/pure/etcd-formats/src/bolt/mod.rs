//! The bbolt file that holds etcd's keys: reading, checking and writing it, page by page.
//!
//! `docs/formats/bolt.md` draws the bytes. Data pages carry no checksum, so what can be proven is structure: that
//! every page is what it says, is reached once, and that keys are in order.
//!
//! **Invariant:** no length or page id read from a file is used before it has been compared with the file's size.

pub mod build;
pub mod check;
mod error;
pub mod meta;
pub mod page;
pub mod tree;
mod window;

pub use error::{BoltError, PageProblem};
pub use meta::{Meta, MetaPages};
pub use tree::{Bucket, Buckets, Db};
pub use window::{BRANCH_BYTES_MAX, LEAF_BYTES_MAX};
