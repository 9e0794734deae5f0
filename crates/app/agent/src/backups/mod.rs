//! Backups: taking fulls, following a cluster, and keeping chains short.
//!
//! ```text
//!                 ┌─ watch ──► keeper (spool on disk) ──► uploads ─┐
//!  etcd ──────────┤               ▲ leases                         ├──► store
//!                 └─ snapshot ───────────────────► fulls ──────────┘
//! ```
//!
//! **Rule:** what is done comes from `plan`; nothing here changes etcd.

mod clock_steps;
pub mod compact;
pub mod follow;
pub mod full;
pub mod metrics;
mod objects;
mod peer_clocks;
pub mod restore;
pub(crate) mod spooled;
mod words;

pub use objects::clock_doubted;
pub use peer_clocks::PeerClocks;
pub use words::{cluster_hex, size};
