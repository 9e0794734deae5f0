//! Membership.

use prost::Message;

use super::ResponseHeader;

/// One member as the cluster knows it.
#[derive(Clone, PartialEq, Message)]
pub struct Member {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name; empty until it has started once.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Where the others reach it.
    #[prost(string, repeated, tag = "3")]
    pub peer_urls: Vec<String>,
    /// Where clients reach it; empty until it has started once.
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
    /// Whether it only learns and does not vote.
    #[prost(bool, tag = "5")]
    pub is_learner: bool,
}

/// Asks for all members.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct MemberListRequest {
    /// Ask a quorum first. Unknown to 3.4.
    #[prost(bool, tag = "1")]
    pub linearizable: bool,
}

/// All members.
#[derive(Clone, PartialEq, Message)]
pub struct MemberListResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The members.
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}

/// Adds a member.
#[derive(Clone, PartialEq, Message)]
pub struct MemberAddRequest {
    /// Where the others will reach it.
    #[prost(string, repeated, tag = "1")]
    pub peer_urls: Vec<String>,
    /// Let it learn before it votes.
    #[prost(bool, tag = "2")]
    pub is_learner: bool,
}

/// The member was added.
#[derive(Clone, PartialEq, Message)]
pub struct MemberAddResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The new member.
    #[prost(message, optional, tag = "2")]
    pub member: Option<Member>,
    /// All members.
    #[prost(message, repeated, tag = "3")]
    pub members: Vec<Member>,
}

/// Removes a member, or makes a learner vote.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct MemberIdRequest {
    /// Which.
    #[prost(uint64, tag = "1")]
    pub id: u64,
}

/// Gives a member other peer URLs.
#[derive(Clone, PartialEq, Message)]
pub struct MemberUpdateRequest {
    /// Which.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Where the others reach it from now on.
    #[prost(string, repeated, tag = "2")]
    pub peer_urls: Vec<String>,
}
