//! Looks at a whole cluster from outside, for an operator's command: the list that a quorum confirms, and every agent.
//!
//! **Rule:** it asks and changes nothing; whoever does not answer is Unknown, with why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quorate_etcd::client::{Client, Settings};
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::{Code, Fault};
use quorate_plan::change::{ClusterView, NodeSeen, corrupt_in};
use quorate_plan::spec::Spec;
use quorate_plan::start::{ClusterSeen, Health, ListedMember};
use tokio::task::JoinSet;

use super::cluster::{listed_member, quorum_list};
use super::data::in_words;
use super::node::client_of;
use super::publish::now_ms;
use crate::peers::{NodeAnswer, Peers};

/// How long one member may take.
const LIMIT: Duration = Duration::from_secs(3);

/// Looks at the cluster that `spec` declares, with the certificates of member `files_of`.
pub async fn look(
    spec: &Spec,
    files_of: &str,
    peers: &Arc<Peers>,
) -> (ClusterView, BTreeMap<String, Result<NodeAnswer, Fault>>) {
    let answers: BTreeMap<String, Result<NodeAnswer, Fault>> = peers.ask_all("/v1/node", None).await;
    let nodes = answers.iter().map(|(name, answer)| {
        let seen = match answer {
            Ok(answer) if answer.name != *name => NodeSeen::Unknown(format!("it is the agent of `{}`", answer.name)),
            Ok(answer) => NodeSeen::Answered(Box::new(answer.now())),
            Err(fault) => NodeSeen::Unknown(in_words(fault)),
        };
        (name.clone(), seen)
    });
    let nodes = nodes.collect();
    let stored = answers.values().flatten().filter_map(|answer| answer.stored_revision).max();
    let mut view = ClusterView {
        cluster: ClusterSeen::Unreachable("no member answered".to_owned()),
        leader: None,
        indexes: BTreeMap::new(),
        applied: BTreeMap::new(),
        corrupt: BTreeSet::new(),
        differing: answers.values().flatten().flat_map(|answer| answer.differing.iter().copied()).collect(),
        nodes,
        learner: None,
        stored,
        now_ms: now_ms(),
        learner_up_ms: u64::try_from(spec.maintenance.join_timeout.as_millis()).unwrap_or(u64::MAX),
    };
    let mut whys = Vec::new();
    for member in &spec.members {
        let Some(url) = member.client_urls.first() else { continue };
        match ask(spec, files_of, url, &mut view).await {
            Ok(()) => return (view, answers),
            Err(fault) => whys.push(format!("`{}`: {}", member.name, in_words(&fault))),
        }
    }
    if !whys.is_empty() {
        view.cluster = ClusterSeen::Unreachable(whys.join("; "));
    }
    (view, answers)
}

async fn ask(spec: &Spec, files_of: &str, url: &str, view: &mut ClusterView) -> Result<(), Fault> {
    let settings = settings(spec, files_of, url)?;
    let list = async {
        let client = Client::connect(&settings).await?;
        quorum_list(&client).await
    };
    let silent = || Fault::new(Code::EtcdUnreachable, "no quorum confirmed its list in time");
    let list = tokio::time::timeout(LIMIT, list).await.map_err(|_| silent())??;
    let mut asked = JoinSet::new();
    for (at, member) in list.members.iter().enumerate() {
        let Some(url) = member.client_urls.first() else { continue };
        let settings = self::settings(spec, files_of, url)?;
        asked.spawn(async move {
            let status = async { Client::connect(&settings).await?.status().await };
            (at, tokio::time::timeout(LIMIT, status).await)
        });
    }
    let mut members: Vec<ListedMember> = list.members.iter().map(listed_member).collect();
    while let Some(answer) = asked.join_next().await {
        let Ok((at, status)) = answer else { continue };
        let Some(member) = members.get_mut(at) else { continue };
        member.health = match status {
            Ok(Ok(status)) if status.leader == 0 => Health::Unhealthy("it knows no leader".to_owned()),
            Ok(Ok(status)) => {
                view.leader = Some(MemberId(status.leader));
                view.indexes.insert(member.id, status.raft_index);
                view.applied.extend(Some((member.id, status.raft_applied_index)).filter(|(_, index)| *index > 0));
                view.corrupt.extend(corrupt_in(&status.errors));
                Health::Healthy
            }
            Ok(Err(fault)) => Health::Unknown(in_words(&fault)),
            Err(_) => Health::Unknown("it did not answer in time".to_owned()),
        };
    }
    let cluster = list.header.map_or(ClusterId(0), |header| ClusterId(header.cluster_id));
    view.cluster = ClusterSeen::Confirmed { cluster, members };
    Ok(())
}

fn settings(spec: &Spec, files_of: &str, url: &str) -> Result<Settings, Fault> {
    let mut settings = client_of(spec, files_of, vec![url.to_owned()])?;
    settings.timeout = settings.timeout.min(LIMIT);
    Ok(settings)
}
