//! etcd as it is: its data dirs, its program, and running clusters.

pub mod aside;
pub mod binary;
pub mod client;
pub mod datadir;
pub mod defrag;
pub mod engine;
mod identity;
pub mod init;
pub mod ledger;
pub mod place;
pub mod restore;
