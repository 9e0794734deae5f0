//! A member that knows no leader: the others may look for it elsewhere, or it lets none of them in, since its address or its trust has
//! changed and it was not started again yet.
//!
//! **Rule:** it carries no quorum, so nobody has to agree to its restart; but only a restart that is due anyway, and that may heal.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_etcd::client::{Client, Consistency};
use quorate_faults::Fault;

use super::beside::Beside;
use super::cluster::quorum_list;

/// How long a member may know no leader before that is tried: longer than any election takes.
const LEADERLESS_MAX: Duration = Duration::from_secs(15);

impl Beside {
    /// Has etcd started again, where that may bring it back.
    pub(super) async fn heal_alone(&mut self) {
        if self.leaderless.is_none_or(|since| since.elapsed() < LEADERLESS_MAX) {
            return;
        }
        self.notice_settings().await;
        let Some(restart) = self.shared.restart() else { return };
        let awaited = self.is_awaited().await.unwrap_or(false);
        if restart.heals_alone(awaited) {
            self.leaderless = None;
            self.shared.order_restart(format!("it knows no leader, and {}", restart.why));
        }
    }

    /// Whether the others look for this member where the file says: as a quorum of them tells, or as its own etcd knows.
    async fn is_awaited(&self) -> Result<bool, Fault> {
        let own = Client::connect(&self.node.client()?).await?.member_list(Consistency::Local).await?;
        let me = own.header.as_ref().map(|header| header.member_id);
        let told = async { quorum_list(&Client::connect(&self.node.client_of_others()?).await?).await };
        let list = told.await.unwrap_or(own);
        let listed = list.members.iter().find(|member| Some(member.id) == me);
        let declared: BTreeSet<&String> = self.node.member.peer_urls.iter().collect();
        Ok(listed.is_some_and(|listed| listed.peer_urls.iter().collect::<BTreeSet<_>>() == declared))
    }
}
