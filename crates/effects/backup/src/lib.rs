//! Backup stores: listing them, reading chains of both layouts, writing our own.
//!
//! What to read is decided in `plan/chain`; here it is read, and what reading proves goes back there.
//!
//! **Invariant:** an object whose checksums were not seen to hold, to its last byte, is part of no result.

mod base;
mod body;
pub mod catalog;
pub mod check;
pub mod claims;
pub mod clock;
pub mod convert;
pub mod copy;
mod decode;
pub mod drills;
pub mod epochs;
pub mod equal;
pub mod events;
pub mod own_fulls;
pub mod prune;
pub mod session;
pub mod spool;
pub mod store;
pub mod write;

pub use base::{Base, facts};
