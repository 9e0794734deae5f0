//! A member that knows no leader: the others may look for it elsewhere, or it lets none of them in, since its address or its trust has
//! changed and it was not started again yet; or it was removed, and accepts no peer that would report that.
//!
//! **Rule:** it carries no quorum, so nobody has to agree to its restart; but only a restart that is due anyway and may heal, or one that
//! leads to the start decision of a member that was removed.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_etcd::client::messages::MemberListResponse;
use quorate_etcd::client::{Client, Consistency};
use quorate_faults::Fault;
use quorate_plan::change::{Listing, heals_alone};

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
        let due = self.shared.restart();
        let listing = self.listing().await.unwrap_or(Listing::Elsewhere);
        if heals_alone(due.as_ref(), listing) {
            self.leaderless = None;
            let why = match (listing, due) {
                (Listing::Removed, _) => "the cluster does not list it any more".to_owned(),
                (_, due) => due.map(|due| due.why).unwrap_or_default(),
            };
            self.shared.order_restart(format!("it knows no leader, and {why}"));
        }
    }

    /// Where the others look for this member: as a quorum of them reports, or as its own etcd has it.
    async fn listing(&self) -> Result<Listing, Fault> {
        let own = Client::connect(&self.node.client()?).await?.member_list(Consistency::Local).await?;
        let me = own.header.as_ref().map(|header| header.member_id);
        let cluster = |list: &MemberListResponse| list.header.as_ref().map(|header| header.cluster_id);
        let told = async { quorum_list(&Client::connect(&self.node.client_of_others()?).await?).await };
        let told = told.await.ok().filter(|told| cluster(told).is_some() && cluster(told) == cluster(&own));
        let confirmed = told.is_some();
        let list = told.unwrap_or(own);
        let Some(listed) = list.members.iter().find(|member| Some(member.id) == me) else {
            return Ok(if confirmed && me.is_some() { Listing::Removed } else { Listing::Elsewhere });
        };
        let declared: BTreeSet<&String> = self.node.member.peer_urls.iter().collect();
        let same = listed.peer_urls.iter().collect::<BTreeSet<_>>() == declared;
        Ok(if same { Listing::AsDeclared } else { Listing::Elsewhere })
    }
}
