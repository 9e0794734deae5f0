//! Keys, values and transactions.

use prost::{Enumeration, Message, Oneof};

use super::ResponseHeader;

/// One key with its value and history.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Revision at which it came into being.
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    /// Revision of its last change.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// How often it was written since it came into being.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// The value.
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    /// The lease it dies with, or 0.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// The order of a range's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SortOrder {
    /// As stored.
    None = 0,
    /// Lowest first.
    Ascend = 1,
    /// Highest first.
    Descend = 2,
}

/// What a range's answer is ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SortTarget {
    /// Key.
    Key = 0,
    /// Version.
    Version = 1,
    /// Create revision.
    Create = 2,
    /// Mod revision.
    Mod = 3,
    /// Value.
    Value = 4,
}

/// Reads the keys from `key` up to, not including, `range_end`.
#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    /// First key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// End of the range; empty for one key, a zero byte for no end.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// At most this many keys; 0 for all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// As it was at this revision; 0 for now.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// Order.
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub sort_order: i32,
    /// Ordered by what.
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub sort_target: i32,
    /// Let the asked member answer alone, possibly from the past.
    #[prost(bool, tag = "7")]
    pub serializable: bool,
    /// No values.
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    /// Only the count.
    #[prost(bool, tag = "9")]
    pub count_only: bool,
    /// Only keys changed at or after this revision.
    #[prost(int64, tag = "10")]
    pub min_mod_revision: i64,
    /// Only keys changed at or before this revision.
    #[prost(int64, tag = "11")]
    pub max_mod_revision: i64,
    /// Only keys created at or after this revision.
    #[prost(int64, tag = "12")]
    pub min_create_revision: i64,
    /// Only keys created at or before this revision.
    #[prost(int64, tag = "13")]
    pub max_create_revision: i64,
}

/// The keys that were asked for.
#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The keys.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether the limit cut the answer short.
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// How many there are, limit or not.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

/// Writes one key.
#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The value.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// The lease it shall die with, or 0.
    #[prost(int64, tag = "3")]
    pub lease: i64,
    /// Return what was there.
    #[prost(bool, tag = "4")]
    pub prev_kv: bool,
    /// Keep the value.
    #[prost(bool, tag = "5")]
    pub ignore_value: bool,
    /// Keep the lease.
    #[prost(bool, tag = "6")]
    pub ignore_lease: bool,
}

/// The key was written.
#[derive(Clone, PartialEq, Message)]
pub struct PutResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// What was there, when asked for.
    #[prost(message, optional, tag = "2")]
    pub prev_kv: Option<KeyValue>,
}

/// Deletes the keys from `key` up to, not including, `range_end`.
#[derive(Clone, PartialEq, Message)]
pub struct DeleteRangeRequest {
    /// First key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// End of the range, as in [`RangeRequest`].
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// Return what was there.
    #[prost(bool, tag = "3")]
    pub prev_kv: bool,
}

/// The keys were deleted.
#[derive(Clone, PartialEq, Message)]
pub struct DeleteRangeResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// How many.
    #[prost(int64, tag = "2")]
    pub deleted: i64,
    /// What was there, when asked for.
    #[prost(message, repeated, tag = "3")]
    pub prev_kvs: Vec<KeyValue>,
}

/// How a comparison is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum CompareResult {
    /// Equal.
    Equal = 0,
    /// Greater.
    Greater = 1,
    /// Less.
    Less = 2,
    /// Not equal.
    NotEqual = 3,
}

/// What a comparison looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum CompareTarget {
    /// Version; 0 means that the key does not exist.
    Version = 0,
    /// Create revision.
    Create = 1,
    /// Mod revision.
    Mod = 2,
    /// Value.
    Value = 3,
    /// Lease.
    Lease = 4,
}

/// The value to compare with; must fit the target.
#[derive(Clone, PartialEq, Oneof)]
pub enum CompareWith {
    /// Version.
    #[prost(int64, tag = "4")]
    Version(i64),
    /// Create revision.
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    /// Mod revision.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    /// Value.
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
    /// Lease.
    #[prost(int64, tag = "8")]
    Lease(i64),
}

/// One condition of a transaction.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    /// How.
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub result: i32,
    /// What.
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub target: i32,
    /// Of which key.
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    /// With what.
    #[prost(oneof = "CompareWith", tags = "4, 5, 6, 7, 8")]
    pub with: Option<CompareWith>,
    /// End of a range of keys that must all fit.
    #[prost(bytes = "vec", tag = "64")]
    pub range_end: Vec<u8>,
}

impl Compare {
    /// The key does not exist.
    pub fn absent(key: impl Into<Vec<u8>>) -> Compare {
        Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Version.into(),
            key: key.into(),
            with: Some(CompareWith::Version(0)),
            range_end: Vec::new(),
        }
    }

    /// The key was last changed at this very revision.
    pub fn unchanged_since(key: impl Into<Vec<u8>>, mod_revision: i64) -> Compare {
        Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.into(),
            with: Some(CompareWith::ModRevision(mod_revision)),
            range_end: Vec::new(),
        }
    }
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Oneof)]
pub enum Request {
    /// Read.
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    /// Write.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Delete.
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

/// One operation of a transaction, as it is sent.
#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    /// The operation.
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub request: Option<Request>,
}

impl From<Request> for RequestOp {
    fn from(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }
}

/// The answer to one operation of a transaction.
#[derive(Clone, PartialEq, Oneof)]
pub enum Response {
    /// To a read.
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    /// To a write.
    #[prost(message, tag = "2")]
    Put(PutResponse),
    /// To a delete.
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeResponse),
}

/// The answer to one operation of a transaction, as it is sent.
#[derive(Clone, PartialEq, Message)]
pub struct ResponseOp {
    /// The answer.
    #[prost(oneof = "Response", tags = "1, 2, 3")]
    pub response: Option<Response>,
}

/// Runs `success` when all of `compare` hold, else `failure`, in one step.
#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    /// The conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// Run when they hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    /// Run when they do not.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// What a transaction did.
#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether the conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// The answers, in the order of the operations that ran.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// Forgets the history up to a revision.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct CompactionRequest {
    /// The revision.
    #[prost(int64, tag = "1")]
    pub revision: i64,
    /// Answer only when it is done on disk.
    #[prost(bool, tag = "2")]
    pub physical: bool,
}

/// The history is forgotten.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct CompactionResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}
