//! Everyone who belongs to the cluster, as this node sees them, and the change that goes on.
//!
//! **Rule:** what cannot be asked is told as such; nobody waits for a quorum to be shown the rest.

use quorate_faults::Fault;
use quorate_plan::peering::{Kind, Operation, Role, Step};

use super::client::{agent_url, can_read, read_clients};
use super::keep::{Heard, hear};
use super::keys;
use super::messages::{NodeShown, OperationShown, PeersAnswer};
use super::record::NodeRecord;
use super::store::lock;
use crate::peers::Api;
use crate::turn::{in_words, now_ms};

/// Why the record is not read.
const NO_QUORUM: &str = "no quorum answers this node";

/// Everyone.
pub(crate) async fn shown(api: &Api) -> Result<PeersAnswer, Fault> {
    let local = api.peering.by_hand()?;
    // Without a quorum there is no record; the rest is told all the same, and that it is not all.
    let read = if can_read(api) {
        read_clients(api).await.map_err(|fault| in_words(&fault))
    } else {
        Err(NO_QUORUM.to_owned())
    };
    let (on_record, unread) = match read {
        Ok(nodes) => (nodes, None),
        Err(why) => {
            let last = api.peering.clients();
            (last.iter().map(|client| NodeRecord::new(client, Role::Client, 0)).collect(), Some(why))
        }
    };
    let heard = hear(api).await;
    let kept = api.peering.kept();
    let now = now_ms();
    let open = kept.invitations.all.iter().filter(|one| now < one.expires_ms && one.used_by.is_none()).count();
    let mut nodes = members(api, &on_record, &heard);
    nodes.extend(clients(api, &on_record, &heard));
    Ok(PeersAnswer {
        name: local.name,
        role: local.role,
        cluster: local.cluster,
        nodes,
        operation: kept.operation.as_ref().map(|operation| operation_shown(api, operation)),
        invitations: open,
        issuing: keys::issuing(api).await,
        approval: lock(&api.peering.awaiting).clone(),
        unread,
        waiting: lock(&api.peering.waiting).shown(now),
    })
}

fn members(api: &Api, on_record: &[NodeRecord], heard: &Heard) -> Vec<NodeShown> {
    let (status, used) = (api.shared.status(), api.peering.proxy.members());
    let external = api.node.spec.external.is_some();
    let nodes = api.node.spec.members.iter().map(|member| {
        let seen = status.cluster.as_ref().and_then(|seen| seen.members.iter().find(|one| one.name == member.name));
        // A client knows who votes, and not who leads.
        let listed = || match used.iter().any(|one| one.name == member.name) {
            true => "voter",
            false if external => "uses etcd",
            false => "not listed",
        };
        let mine = member.name == api.node.name();
        NodeShown {
            name: member.name.clone(),
            role: if external { Role::External } else { Role::Server }.word().to_owned(),
            agent: api.node.spec.agent_url_of(member),
            state: seen.map_or_else(listed, |seen| seen.role.as_str()).to_owned(),
            answers: mine || heard.get(&member.name).is_some_and(Result::is_ok),
            since_ms: on_record.iter().find(|one| one.name == member.name).map_or(0, |one| one.since_ms),
        }
    });
    nodes.collect()
}

fn clients(api: &Api, on_record: &[NodeRecord], heard: &Heard) -> Vec<NodeShown> {
    let declared = |name: &str| api.node.spec.member(name).is_some();
    let clients = on_record.iter().filter(|node| node.role == Role::Client && !declared(&node.name));
    let nodes = clients.map(|node| {
        let mine = node.name == api.node.name();
        let answer = heard.get(&node.name).and_then(|answer| answer.as_ref().ok());
        let phase = if mine { Some(api.shared.status().phase) } else { answer.map(|answer| answer.phase.clone()) };
        NodeShown {
            name: node.name.clone(),
            role: Role::Client.word().to_owned(),
            agent: agent_url(api, &node.newcomer()).unwrap_or_default(),
            state: match phase.as_deref() {
                Some("serving") => "carries",
                _ => "unknown",
            }
            .to_owned(),
            answers: mine || answer.is_some(),
            since_ms: node.since_ms,
        }
    });
    nodes.collect()
}

/// A change, for those who look.
pub(super) fn operation_shown(api: &Api, operation: &Operation) -> OperationShown {
    let over = matches!(operation.step, Step::Done(_));
    let role = match operation.kind {
        Kind::Enrol(_) | Kind::Discharge { .. } | Kind::ToClient(_) => Role::Client,
        Kind::Join(_) | Kind::Detach { .. } if api.node.spec.external.is_some() => Role::External,
        Kind::Join(_) | Kind::Detach { .. } | Kind::ToServer(_) => Role::Server,
    };
    OperationShown {
        id: operation.id.clone(),
        kind: operation.kind.word().to_owned(),
        name: operation.kind.name().to_owned(),
        role: role.word().to_owned(),
        step: operation.step.word().to_owned(),
        by: None,
        waits: lock(&api.peering.waits).clone().filter(|_| !over),
    }
}
