//! What a member says about itself.

use bytes::Bytes;
use prost::{Enumeration, Message};

use super::ResponseHeader;

/// Asks a member about itself.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct StatusRequest {}

/// What a member says about itself.
#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Its etcd version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Bytes of its db file.
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    /// The leader it knows; 0 for none.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// Committed raft index.
    #[prost(uint64, tag = "5")]
    pub raft_index: u64,
    /// Raft term.
    #[prost(uint64, tag = "6")]
    pub raft_term: u64,
    /// Applied raft index.
    #[prost(uint64, tag = "7")]
    pub raft_applied_index: u64,
    /// What is wrong with it, in its own words.
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    /// Bytes of the db in use.
    #[prost(int64, tag = "9")]
    pub db_size_in_use: i64,
    /// Whether it only learns and does not vote.
    #[prost(bool, tag = "10")]
    pub is_learner: bool,
    /// Version of its storage; since 3.6.
    #[prost(string, tag = "11")]
    pub storage_version: String,
    /// Quota of the db in bytes; since 3.6.
    #[prost(int64, tag = "12")]
    pub db_size_quota: i64,
}

/// Asks for the hash of all keys up to a revision.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct HashKvRequest {
    /// The revision; 0 for the newest.
    #[prost(int64, tag = "1")]
    pub revision: i64,
}

/// The hash of all keys.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct HashKvResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The hash.
    #[prost(uint32, tag = "2")]
    pub hash: u32,
    /// The compact revision when it was taken.
    #[prost(int64, tag = "3")]
    pub compact_revision: i64,
    /// The revision up to which it was taken; since 3.6.
    #[prost(int64, tag = "4")]
    pub hash_revision: i64,
}

/// Kinds of alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum AlarmKind {
    /// Any.
    None = 0,
    /// The quota is used up.
    NoSpace = 1,
    /// Members disagree about data.
    Corrupt = 2,
}

/// Lists alarms (action 0).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct AlarmRequest {
    /// 0 lists, 1 raises, 2 clears.
    #[prost(int32, tag = "1")]
    pub action: i32,
    /// Of which member; 0 for all.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// Of which kind.
    #[prost(enumeration = "AlarmKind", tag = "3")]
    pub alarm: i32,
}

/// One raised alarm.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Alarm {
    /// The member.
    #[prost(uint64, tag = "1")]
    pub member_id: u64,
    /// The kind.
    #[prost(enumeration = "AlarmKind", tag = "2")]
    pub alarm: i32,
}

/// All alarms.
#[derive(Clone, PartialEq, Message)]
pub struct AlarmResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The alarms.
    #[prost(message, repeated, tag = "2")]
    pub alarms: Vec<Alarm>,
}

/// Rewrites a member's db without its free pages.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct DefragmentRequest {}

/// The db was rewritten.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct DefragmentResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// Makes another member the leader.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct MoveLeaderRequest {
    /// Which.
    #[prost(uint64, tag = "1")]
    pub target_id: u64,
}

/// The other member leads.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct MoveLeaderResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// Has the cluster store its data as an earlier release reads it, or asks whether it could.
#[derive(Clone, PartialEq, Message)]
pub struct DowngradeRequest {
    /// What to do: see [`super::super::Downgrade`].
    #[prost(int32, tag = "1")]
    pub action: i32,
    /// The release, such as `3.5`.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// It was asked, begun or given up.
#[derive(Clone, PartialEq, Message)]
pub struct DowngradeResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The version that the cluster has now.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// Asks for the whole database.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SnapshotRequest {}

/// A piece of the database.
#[derive(Clone, PartialEq, Message)]
pub struct SnapshotResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Bytes of the database that are still to come.
    #[prost(uint64, tag = "2")]
    pub remaining_bytes: u64,
    /// The piece; it shares the buffer of its message.
    #[prost(bytes = "bytes", tag = "3")]
    pub blob: Bytes,
    /// Version of the storage; since 3.6.
    #[prost(string, tag = "4")]
    pub version: String,
}
