//! Leases: granting, keeping, ending, and how long one was granted for.
//!
//! **Rule:** a lease that is gone is an answer, not a fault.

use quorate_faults::{Code, Fault};

use super::Client;
use super::call::Procedure;
use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};

const GRANT: Procedure = Procedure::write("/etcdserverpb.Lease/LeaseGrant", "grant a lease");
const REVOKE: Procedure = Procedure::write("/etcdserverpb.Lease/LeaseRevoke", "revoke a lease");
const KEEP_ALIVE: Procedure = Procedure::exchange("/etcdserverpb.Lease/LeaseKeepAlive", "keep a lease");
const TIME_TO_LIVE: Procedure = Procedure::read("/etcdserverpb.Lease/LeaseTimeToLive", "look up a lease");
const LEASES: Procedure = Procedure::read("/etcdserverpb.Lease/LeaseLeases", "list leases");

/// A lease that lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Seconds it was granted for.
    pub ttl: i64,
    /// Seconds it has left.
    pub left: i64,
}

impl Client {
    /// Grants a lease of `ttl` seconds and returns its id; `id` 0 lets etcd choose one.
    pub async fn lease_grant(&self, ttl: i64, id: i64) -> Result<i64, Fault> {
        self.lease_grant_for(ttl, id).await.map(|(id, _)| id)
    }

    /// The same, with the seconds that it was granted for: etcd grants no less than its elections may take.
    pub async fn lease_grant_for(&self, ttl: i64, id: i64) -> Result<(i64, i64), Fault> {
        let answer: LeaseGrantResponse = self.call(GRANT, LeaseGrantRequest { ttl, id }).await?;
        match answer.error.is_empty() {
            true => Ok((answer.id, answer.ttl)),
            false => {
                Err(Fault::new(Code::EtcdRefused, format!("etcd refused to grant lease `{id}`"))
                    .caused_by(answer.error))
            }
        }
    }

    /// Lets a lease live for its whole time again and returns that in seconds; `None` when there is no such lease any more.
    pub async fn lease_keep_alive(&self, id: i64) -> Result<Option<i64>, Fault> {
        let answer: LeaseKeepAliveResponse = self.call(KEEP_ALIVE, LeaseKeepAliveRequest { id }).await?;
        Ok((answer.ttl > 0).then_some(answer.ttl))
    }

    /// Ends a lease, and deletes its keys.
    pub async fn lease_revoke(&self, id: i64) -> Result<LeaseRevokeResponse, Fault> {
        self.call(REVOKE, LeaseRevokeRequest { id }).await
    }

    /// How long a lease was granted for; `None` when there is no such lease any more.
    pub async fn lease_time_to_live(&self, id: i64) -> Result<Option<Granted>, Fault> {
        let request = LeaseTimeToLiveRequest { id, keys: false };
        let answer: LeaseTimeToLiveResponse = self.call(TIME_TO_LIVE, request).await?;
        // One that is about to end still has its grant, with no time left.
        Ok((answer.granted_ttl > 0).then_some(Granted { ttl: answer.granted_ttl, left: answer.ttl.max(0) }))
    }

    /// The ids of all leases.
    pub async fn leases(&self) -> Result<Vec<i64>, Fault> {
        let answer: LeaseLeasesResponse = self.call(LEASES, LeaseLeasesRequest {}).await?;
        Ok(answer.leases.into_iter().map(|lease| lease.id).collect())
    }
}
