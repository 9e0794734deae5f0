//! Leases.

use prost::Message;

use super::ResponseHeader;

/// Grants a lease.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseGrantRequest {
    /// Time to live in seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    /// The wanted id; 0 lets etcd choose.
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// A lease was granted.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Its id.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// Its time to live in seconds.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    /// Why not.
    #[prost(string, tag = "4")]
    pub error: String,
}

/// Ends a lease, and deletes its keys.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseRevokeRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The lease was ended.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseRevokeResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// Lets a lease live for its whole time again.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseKeepAliveRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The lease lives on, unless its time is zero.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseKeepAliveResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The lease.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// Seconds that it lives from now; 0 for a lease that is not there.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Asks how long a lease lives.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseTimeToLiveRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// Name its keys too.
    #[prost(bool, tag = "2")]
    pub keys: bool,
}

/// How long a lease lives.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseTimeToLiveResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The lease.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// Seconds left; -1 for a lease that is not there.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    /// Seconds it was granted for.
    #[prost(int64, tag = "4")]
    pub granted_ttl: i64,
    /// Its keys, when asked for.
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub keys: Vec<Vec<u8>>,
}

/// Asks for all leases.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseLeasesRequest {}

/// One lease.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseStatus {
    /// Its id.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// All leases.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseLeasesResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The leases.
    #[prost(message, repeated, tag = "2")]
    pub leases: Vec<LeaseStatus>,
}
