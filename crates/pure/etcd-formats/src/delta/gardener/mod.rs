//! The store layout of etcd-backup-restore: names, and deltas as JSON followed by their SHA-256.

mod encode;
mod names;
mod scan;
mod time;

pub use encode::GardenerWriter;
pub(in crate::delta) use names::digits;
pub use names::{Compression, Name};
pub use scan::GardenerDecoder;
pub use time::parse_ms;
