//! What one member says about itself.
//!
//! **Rule:** these answers differ from member to member, so ask through [`Client::each`].

use std::time::Duration;

use quorate_faults::Fault;

use super::Client;
use super::call::Procedure;
use super::messages::{
    Alarm, AlarmRequest, AlarmResponse, DefragmentRequest, DefragmentResponse, DowngradeRequest, DowngradeResponse,
    HashKvRequest, HashKvResponse, MoveLeaderRequest, MoveLeaderResponse, StatusRequest, StatusResponse,
};

const STATUS: Procedure = Procedure::read("/etcdserverpb.Maintenance/Status", "ask for the status");
const HASH_KV: Procedure = Procedure::read("/etcdserverpb.Maintenance/HashKV", "ask for the hash of all keys");
const ALARM: Procedure = Procedure::read("/etcdserverpb.Maintenance/Alarm", "list alarms");
const DISARM: Procedure = Procedure::write("/etcdserverpb.Maintenance/Alarm", "clear an alarm");
const DEFRAGMENT: Procedure = Procedure::write("/etcdserverpb.Maintenance/Defragment", "defragment");
const MOVE_LEADER: Procedure = Procedure::write("/etcdserverpb.Maintenance/MoveLeader", "move the leader");
const DOWNGRADE: Procedure = Procedure::write("/etcdserverpb.Maintenance/Downgrade", "prepare an earlier release");

/// What is to become of the way to an earlier release. The numbers are etcd's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Downgrade {
    /// Nothing: say whether it is possible.
    Validate = 0,
    /// From here on the cluster stores its data as that release reads it.
    Enable = 1,
    /// It goes on as it is.
    Cancel = 2,
}

/// How etcd calls the clearing of an alarm.
const DEACTIVATE: i32 = 2;
/// How long a member may take to rewrite its db: the largest that etcd recommends, 8 GiB, at 10 MB/s.
const DEFRAGMENT_LIMIT: Duration = Duration::from_secs(15 * 60);

impl Client {
    /// Version, leader, sizes and raft position of the member that answers.
    pub async fn status(&self) -> Result<StatusResponse, Fault> {
        self.call(STATUS, StatusRequest {}).await
    }

    /// The hash of all keys up to `revision` (0: the newest) in the member that answers.
    pub async fn hash_kv(&self, revision: i64) -> Result<HashKvResponse, Fault> {
        self.call(HASH_KV, HashKvRequest { revision }).await
    }

    /// Every alarm that is raised.
    pub async fn alarms(&self) -> Result<AlarmResponse, Fault> {
        self.call(ALARM, AlarmRequest::default()).await
    }

    /// Clears one alarm. etcd raises it again when its reason is still there.
    pub async fn disarm(&self, alarm: Alarm) -> Result<AlarmResponse, Fault> {
        let request = AlarmRequest { action: DEACTIVATE, member_id: alarm.member_id, alarm: alarm.alarm };
        self.call(DISARM, request).await
    }

    /// Rewrites the db of the member that answers without its free pages. That member serves nobody meanwhile.
    pub async fn defragment(&self) -> Result<DefragmentResponse, Fault> {
        self.with_timeout(DEFRAGMENT_LIMIT.max(self.timeout())).call(DEFRAGMENT, DefragmentRequest {}).await
    }

    /// Prepares the cluster for an earlier release, such as `3.5`; etcd has this since 3.5, and earlier ones say so.
    pub async fn downgrade(&self, what: Downgrade, version: &str) -> Result<DowngradeResponse, Fault> {
        self.call(DOWNGRADE, DowngradeRequest { action: what as i32, version: version.to_owned() }).await
    }

    /// Makes another member the leader. Only the present leader takes this.
    pub async fn move_leader(&self, to: u64) -> Result<MoveLeaderResponse, Fault> {
        self.call(MOVE_LEADER, MoveLeaderRequest { target_id: to }).await
    }
}
