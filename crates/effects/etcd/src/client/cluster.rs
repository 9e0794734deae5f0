//! Membership as the cluster sees it, and changing it.
//!
//! **Rule:** a change is sent once. Whether it took effect is seen in the list, not guessed.

use quorate_faults::Fault;

use super::Client;
use super::call::Procedure;
use super::messages::{
    MemberAddRequest, MemberAddResponse, MemberIdRequest, MemberListRequest, MemberListResponse, MemberUpdateRequest,
};

const MEMBER_LIST: Procedure = Procedure::read("/etcdserverpb.Cluster/MemberList", "list members");
const MEMBER_ADD: Procedure = Procedure::write("/etcdserverpb.Cluster/MemberAdd", "add a member");
const MEMBER_REMOVE: Procedure = Procedure::write("/etcdserverpb.Cluster/MemberRemove", "remove a member");
const MEMBER_UPDATE: Procedure = Procedure::write("/etcdserverpb.Cluster/MemberUpdate", "change a member's URLs");
const MEMBER_PROMOTE: Procedure = Procedure::write("/etcdserverpb.Cluster/MemberPromote", "let a learner vote");

/// How far an answer can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// Confirmed by a quorum. etcd 3.4 does not know the difference and always answers as [`Consistency::Local`].
    Linearizable,
    /// What the asked member knows, which may be old; answered without a quorum.
    Local,
}

/// What a new member may do at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joins {
    /// It receives the data and does not vote until it is promoted.
    Learning,
    /// It votes at once.
    Voting,
}

impl Client {
    /// All members.
    pub async fn member_list(&self, consistency: Consistency) -> Result<MemberListResponse, Fault> {
        let linearizable = consistency == Consistency::Linearizable;
        self.call(MEMBER_LIST, MemberListRequest { linearizable }).await
    }

    /// Adds a member that the others will reach at these URLs.
    pub async fn member_add(&self, peer_urls: Vec<String>, joins: Joins) -> Result<MemberAddResponse, Fault> {
        self.call(MEMBER_ADD, MemberAddRequest { peer_urls, is_learner: joins == Joins::Learning }).await
    }

    /// Removes a member for good, and returns those that are left.
    pub async fn member_remove(&self, id: u64) -> Result<MemberListResponse, Fault> {
        self.call(MEMBER_REMOVE, MemberIdRequest { id }).await
    }

    /// Gives a member other peer URLs, and returns all members.
    pub async fn member_update(&self, id: u64, peer_urls: Vec<String>) -> Result<MemberListResponse, Fault> {
        self.call(MEMBER_UPDATE, MemberUpdateRequest { id, peer_urls }).await
    }

    /// Lets a learner vote, and returns all members. Refused while the learner is behind.
    pub async fn member_promote(&self, id: u64) -> Result<MemberListResponse, Fault> {
        self.call(MEMBER_PROMOTE, MemberIdRequest { id }).await
    }
}
