//! etcd's client messages, declared by hand with its published field numbers (`rpc.proto`, `kv.proto`).
//!
//! **Rule:** a number here is a promise to every etcd from 3.4 on; fields that an older server does not send stay zero.

mod auth;
mod cluster;
mod kv;
mod lease;
mod maintenance;
mod watch;

use prost::Message;

pub use auth::*;
pub use cluster::*;
pub use kv::*;
pub use lease::*;
pub use maintenance::*;
pub use watch::*;

/// Who answered, and at which point of the log.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ResponseHeader {
    /// The cluster.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// The member that answered.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// Revision of the store when the request was applied.
    #[prost(int64, tag = "3")]
    pub revision: i64,
    /// Raft term when the request was applied.
    #[prost(uint64, tag = "4")]
    pub raft_term: u64,
}
