//! etcd's files as bytes and structures: bolt database, WAL, raft snapshot, snapshot file, member ids.
//!
//! Everything here works on bytes handed in through [`ReadAt`] and produces bytes or findings. Readers never panic on
//! input, never trust a length before it has been compared with what is there, and never hold a database in memory.
//!
//! **Invariant:** nothing in this crate opens a file, asks the time or knows who its caller is.

pub mod bolt;
pub mod contents;
pub mod database;
pub mod delta;
pub mod dir;
mod fields;
pub mod founding;
pub mod hex;
pub mod inspect;
pub mod membership;
pub mod messages;
pub mod mvcc;
pub mod passing;
mod read_at;
pub mod rebuild;
pub mod snap;
pub mod snapshot_file;
pub mod v2store;
pub mod verify;
pub mod wal;

pub use read_at::{ReadAt, ReadError};
