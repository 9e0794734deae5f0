//! Watching keys.
//!
//! **Rule:** keys and values share the buffer of the message they came in, so they are not to be kept for long.

use bytes::Bytes;
use prost::{Message, Oneof};

use super::ResponseHeader;

/// Starts a watch.
#[derive(Clone, PartialEq, Message)]
pub struct WatchCreateRequest {
    /// First key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// End of the range; a zero byte for no end.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// First wanted revision; 0 for what comes after now.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    /// Say from time to time how far the watch is when nothing happens.
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
    /// Cut large answers into pieces.
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

/// What a client may send on a watch.
#[derive(Clone, PartialEq, Oneof)]
pub enum WatchAsk {
    /// Start a watch.
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
}

/// What a client sends on a watch.
#[derive(Clone, PartialEq, Message)]
pub struct WatchRequest {
    /// The request.
    #[prost(oneof = "WatchAsk", tags = "1")]
    pub ask: Option<WatchAsk>,
}

/// One write as a watch tells it.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// 0 for a put, 1 for a deletion.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// What was written; of a deletion only the key and the revision.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<EventKv>,
}

impl Event {
    /// Whether it deletes its key.
    pub fn is_delete(&self) -> bool {
        self.kind == 1
    }
}

/// The key and value of an event; the same message as [`super::KeyValue`], without copies.
#[derive(Clone, PartialEq, Message)]
pub struct EventKv {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Revision at which it came into being.
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    /// Revision of this write.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// How often it was written since it came into being.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// The value.
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
    /// The lease it dies with, or 0.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// What a watch tells.
#[derive(Clone, PartialEq, Message)]
pub struct WatchResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Which watch of the connection.
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    /// The watch has begun.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// The watch has ended.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// The oldest revision that can be watched, where the wanted one is gone.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    /// Why it has ended.
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// The same answer goes on in the next message.
    #[prost(bool, tag = "7")]
    pub fragment: bool,
    /// The writes.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}
