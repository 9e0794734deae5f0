//! Membership as the cluster sees it.

use quorate_faults::Fault;

use super::Client;
use super::call::Procedure;
use super::messages::{MemberListRequest, MemberListResponse};

const MEMBER_LIST: Procedure = Procedure::read("/etcdserverpb.Cluster/MemberList", "list members");

/// How far an answer can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// Confirmed by a quorum. etcd 3.4 does not know the difference and always answers as [`Consistency::Local`].
    Linearizable,
    /// What the asked member knows, which may be old; answered without a quorum.
    Local,
}

impl Client {
    /// All members.
    pub async fn member_list(&self, consistency: Consistency) -> Result<MemberListResponse, Fault> {
        let linearizable = consistency == Consistency::Linearizable;
        self.call(MEMBER_LIST, MemberListRequest { linearizable }).await
    }
}
