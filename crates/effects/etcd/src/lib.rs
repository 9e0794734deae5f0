//! etcd as it is: its data dirs, its program, and running clusters.

pub mod binary;
pub mod client;
pub mod datadir;
mod identity;
pub mod init;
