//! What one member says about itself.
//!
//! **Rule:** these answers differ from member to member, so ask through [`Client::each`].

use quorate_faults::Fault;

use super::Client;
use super::call::Procedure;
use super::messages::{AlarmRequest, AlarmResponse, HashKvRequest, HashKvResponse, StatusRequest, StatusResponse};

const STATUS: Procedure = Procedure::read("/etcdserverpb.Maintenance/Status", "ask for the status");
const HASH_KV: Procedure = Procedure::read("/etcdserverpb.Maintenance/HashKV", "ask for the hash of all keys");
const ALARM: Procedure = Procedure::read("/etcdserverpb.Maintenance/Alarm", "list alarms");

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
}
