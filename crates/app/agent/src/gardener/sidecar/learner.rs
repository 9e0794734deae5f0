//! How a member without usable data comes into a running cluster: removed where it was in it, added as a learner, and
//! promoted once it has caught up.
//!
//! **Rule:** each step is sent once per initialization. What it led to is seen in the list of members at the next one, so that
//! a sidecar that is killed anywhere goes on where it was. Data is renamed, never deleted, and only after its member is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quorate_etcd::client::{Client, Consistency, Joins, Settings};
use quorate_faults::{Code, Fault, Result};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::config::Live;
use super::decide::ClusterSeen;
use super::etcdbr::Act;
use super::{Shared, in_words};

/// Between two looks at whether this member still learns. The original's period of elections.
const LOOK: Duration = Duration::from_secs(5);

/// How long a member that should not run is given to answer.
const ALIVE_LIMIT: Duration = Duration::from_secs(2);

/// What this member is to a list of members.
pub(super) fn place(live: Option<&[Live]>, name: &str, peer_urls: &[String]) -> ClusterSeen {
    let Some(live) = live else { return ClusterSeen::Silent };
    let ours = |member: &&Live| {
        member.name == name || (member.name.is_empty() && member.peer_urls.iter().any(|url| same(url, peer_urls)))
    };
    match live.iter().find(ours) {
        // A member has no name before it has started.
        Some(member) if member.name.is_empty() => ClusterSeen::Awaits,
        Some(member) => ClusterSeen::Lists { id: member.id, client_urls: member.client_urls.clone() },
        None => ClusterSeen::WithoutUs,
    }
}

fn same(url: &str, ours: &[String]) -> bool {
    ours.iter().any(|own| own.trim_end_matches('/') == url.trim_end_matches('/'))
}

/// A client of the running cluster.
pub(super) async fn cluster(shared: &Shared) -> Result<Client> {
    let settings = &shared.settings;
    Client::connect(&Settings { endpoints: settings.service_endpoints.clone(), ..settings.etcd.clone() }).await
}

/// Who is in the running cluster.
pub(super) async fn members(client: &Client) -> Result<Vec<Live>> {
    let members = client.member_list(Consistency::Linearizable).await?.members;
    let live = members.into_iter().map(|member| Live {
        id: member.id,
        name: member.name,
        learner: member.is_learner,
        peer_urls: member.peer_urls,
        client_urls: member.client_urls,
    });
    Ok(live.collect())
}

/// Takes the member out that has lost its data. One that answers has not.
pub(super) async fn remove(shared: &Shared, id: u64, client_urls: &[String]) -> Result<()> {
    if answers(shared, id, client_urls).await {
        let what = format!("etcd is not started: the member {id:x} that has its name serves elsewhere");
        return Err(Fault::new(Code::InitRefused, what).hint("two pods must not have one name; see POD_NAME of both"));
    }
    let began = Instant::now();
    let done = async { cluster(shared).await?.member_remove(id).await }.await;
    shared.etcdbr.did(Act::RemoveMember, began.elapsed(), done.is_ok());
    done?;
    warn!("removed this member's former self ({id:x}) from the cluster");
    Ok(())
}

async fn answers(shared: &Shared, id: u64, client_urls: &[String]) -> bool {
    let etcd = Settings { endpoints: client_urls.to_vec(), timeout: ALIVE_LIMIT, ..shared.settings.etcd.clone() };
    let Ok(client) = Client::connect(&etcd).await else { return false };
    for one in client.each() {
        let status = tokio::time::timeout(ALIVE_LIMIT, one.status()).await;
        if status
            .is_ok_and(|status| status.is_ok_and(|status| status.header.is_some_and(|header| header.member_id == id)))
        {
            return true;
        }
    }
    false
}

/// Adds this member, which receives the data before it votes.
pub(super) async fn add(shared: &Shared, peer_urls: Vec<String>) -> Result<()> {
    let began = Instant::now();
    let done = async { cluster(shared).await?.member_add(peer_urls, Joins::Learning).await }.await;
    shared.etcdbr.did(Act::AddLearner, began.elapsed(), done.is_ok());
    let id = done?.member.map_or(0, |member| member.id);
    info!("added this member to the cluster as a learner ({id:x})");
    Ok(())
}

/// Promotes this member whenever it learns, until the end.
pub(super) async fn work(shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stop.cancelled() => return,
        }
        if shared.members() < 2 || shared.settings.service_endpoints.is_empty() {
            continue;
        }
        let status = async { Client::connect(&shared.settings.etcd).await?.status().await };
        let Ok(Ok(status)) = tokio::time::timeout(LOOK, status).await else { continue };
        shared.etcdbr.set_learner(status.is_learner);
        let Some(header) = status.header.filter(|_| status.is_learner) else { continue };
        let began = Instant::now();
        match async { cluster(&shared).await?.member_promote(header.member_id).await }.await {
            Ok(_) => {
                shared.etcdbr.did(Act::Promote, began.elapsed(), true);
                shared.etcdbr.set_learner(false);
                shared.joined.store(false, Ordering::Relaxed);
                info!("this member has caught up, and votes now");
            }
            Err(fault) => {
                shared.etcdbr.did(Act::Promote, began.elapsed(), false);
                debug!(code = %fault.code(), "not promoted yet: {}", in_words(&fault));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_known_by_its_name_or_before_its_first_start_by_its_urls() {
        let member = |id, name: &str, url: &str| Live {
            id,
            name: name.to_owned(),
            learner: false,
            peer_urls: vec![url.to_owned()],
            client_urls: Vec::new(),
        };
        let ours = ["http://b:2380".to_owned()];
        let seen = |live: &[Live]| place(Some(live), "etcd-1", &ours);
        assert_eq!(place(None, "etcd-1", &ours), ClusterSeen::Silent);
        assert_eq!(seen(&[member(1, "etcd-0", "http://a:2380")]), ClusterSeen::WithoutUs);
        assert_eq!(seen(&[member(1, "", "http://b:2380/")]), ClusterSeen::Awaits);
        assert_eq!(seen(&[member(1, "", "http://c:2380")]), ClusterSeen::WithoutUs, "somebody else is awaited");
        let lists = ClusterSeen::Lists { id: 2, client_urls: Vec::new() };
        assert_eq!(seen(&[member(2, "etcd-1", "http://former:2380")]), lists);
    }
}
