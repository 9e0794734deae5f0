//! Takes a node out: everything that speaks against it first, then one operation that the agents carry out.
//!
//! **Rule:** nothing is changed before nobody objects and a quorum is proven to stay; the last server stays.

use quorate_faults::{Code, Fault};
use quorate_plan::peering::{Kind, Operation, without_member, workload};
use tracing::{info, warn};

use super::keep::{busy, start, take_back, unknown};
use super::messages::{DetachRequest, OperationShown, VetoAnswer, VetoRequest};
use super::show::operation_shown;
use super::{DETACH, VETO, adopt, client, keys, veto};
use crate::cluster_file;
use crate::peers::{Api, PeerError};
use crate::turn::may_remove;

/// A detach that nobody follows any more is taken over after so long.
const DETACH_MS: u64 = 600_000;

/// Begins to take a node out, after every check.
pub(crate) async fn detach(api: &Api, request: &DetachRequest) -> Result<OperationShown, Fault> {
    api.peering.by_hand()?;
    let _one = api.peering.deciding.lock().await;
    let (name, spec) = (&request.name, &api.node.spec);
    let kept = api.peering.kept();
    if let Some(active) = kept.active() {
        if matches!(active.kind, Kind::Detach { .. } | Kind::Discharge { .. }) && active.kind.name() == name {
            return Ok(operation_shown(api, active));
        }
        return match active.kind {
            // Who has not come yet loses its place.
            Kind::Join(_) if active.kind.name() == name => take_back(api, active),
            _ if active.also.contains(name) => Ok(operation_shown(api, active)),
            Kind::Enrol(_) | Kind::Discharge { .. } => Err(busy(active)),
            // A member that is lost may be what the change waits for.
            _ if request.force && active.kind.name() != name && spec.member(name).is_some() => {
                with_the_change(api, request, active.clone()).await
            }
            _ => Err(busy(active)),
        };
    }
    if spec.member(name).is_none() {
        client::read_clients(api).await?;
        if !api.peering.clients().iter().any(|client| client.name == *name) {
            return Err(unknown(name));
        }
        ask_for_vetoes(api, request).await?;
        return start(api, Kind::Discharge { name: name.clone() }, api.node.text.to_string(), DETACH_MS).await;
    }
    if spec.members.len() == 1 {
        return Err(Fault::new(
            Code::LastMember,
            "the last server cannot be detached: nothing of the cluster would be left",
        )
        .hint("to end the cluster, `quorate cluster teardown`"));
    }
    if name == api.node.name() {
        return by_another(api, request).await;
    }
    ask_for_vetoes(api, request).await?;
    if request.force
        && let Some(active) = adopt::adopt_of(api, name).await?
    {
        return with_the_change(api, request, active).await;
    }
    if spec.external.is_none() {
        may_remove(&api.node, name).await?;
    }
    match keys::ensure_kept(api, name).await {
        Err(fault) if request.force => warn!(code = %fault.code(), "{fault}"),
        kept => kept?,
    }
    let text = without_member(&api.node.text, name).map_err(|error| error.fault())?;
    cluster_file::parse(text.as_bytes(), "the file without the node")?;
    start(api, Kind::Detach { name: name.clone() }, text, DETACH_MS).await
}

/// Takes a member that is lost out with the change that goes on.
async fn with_the_change(api: &Api, request: &DetachRequest, active: Operation) -> Result<OperationShown, Fault> {
    let name = &request.name;
    let clients_only = matches!(active.kind, Kind::Enrol(_) | Kind::Discharge { .. });
    if clients_only || name == api.node.name() || api.peers.node(name, None).await.is_ok() {
        return Err(busy(&active));
    }
    ask_for_vetoes(api, request).await?;
    if api.node.spec.external.is_none() {
        may_remove(&api.node, name).await?;
    }
    if let Err(fault) = keys::ensure_kept(api, name).await {
        warn!(code = %fault.code(), "{fault}");
    }
    let operation = adopt::take_along(api, name, active).await?;
    Ok(operation_shown(api, &operation))
}

/// Asks here and there; who does not answer is detached by force alone.
async fn ask_for_vetoes(api: &Api, request: &DetachRequest) -> Result<(), Fault> {
    let name = &request.name;
    let objects = |place: &str, why: &str| {
        Fault::new(Code::DetachVetoed, format!("something that runs on {place} objects: {why}"))
            .hint("nothing was changed; see to it there first")
    };
    if let Some(why) = workload(&api.node.spec, name).filter(|_| !request.force) {
        return Err(objects(&format!("`{name}`"), &why));
    }
    if let Some(why) = veto(api.peering.dir(), "detach", name).await {
        return Err(objects("this node", &why));
    }
    let asked = VetoRequest { what: "detach".to_owned(), name: name.clone() };
    let answer: Result<VetoAnswer, PeerError> = api.peers.order(name, VETO, &asked).await;
    match answer {
        Ok(VetoAnswer { objection: None, .. }) => Ok(()),
        Ok(VetoAnswer { objection: Some(why), .. }) => Err(objects(&format!("`{name}`"), &why)),
        Err(_) if request.force => {
            warn!(node = name, "does not answer, and is detached by force");
            Ok(())
        }
        Err(error) => Err(Fault::new(Code::DetachUnproven, format!("`{name}` does not say whether something objects"))
            .hint("bring it back; if it is gone for good, `--force`")
            .caused_by(error.fault(name))),
    }
}

/// Who leaves cannot see to the end what is done; another node does it.
async fn by_another(api: &Api, request: &DetachRequest) -> Result<OperationShown, Fault> {
    let mut last = None;
    for peer in api.peers.others() {
        let begun: Result<OperationShown, PeerError> = api.peers.order(&peer, DETACH, request).await;
        match begun {
            Ok(begun) => {
                info!("`{peer}` takes this node out, as it was asked to");
                return Ok(OperationShown { by: Some(peer), ..begun });
            }
            // It has decided, and so would the others.
            Err(PeerError::Refused(fault)) => return Err(fault),
            Err(error) => last = Some(error.fault(&peer)),
        }
    }
    let nobody = Fault::new(Code::DetachUnproven, "no other node answers that could take this one out");
    let nobody = nobody.hint("bring another one up; a node does not leave without a quorum of the others");
    Err(match last {
        Some(fault) => nobody.caused_by(fault),
        None => nobody,
    })
}
