//! Approvals: from three servers on, another one is taken in once an operator has approved it on a second server.
//!
//! **Invariant:** an approval is for one operation and one node with its name and address, and counts only with the signature of a declared
//! server that does not carry the operation out. It is given on the approving server itself.

use quorate_faults::{Code, Fault};
use quorate_plan::peering::{Approval, Kind, Newcomer, Operation, Role, Step, judge_approval, needs_approval};
use serde_json::Value;
use tracing::{info, warn};

use super::client::records;
use super::listing::Look;
use super::messages::{ApprovalShown, CountersignRequest};
use super::record::APPROVAL;
use super::signing::Signing;
use crate::peers::Api;

/// What a join waits for.
pub(super) fn wanted(name: &str) -> String {
    format!("`quorate peer countersign {name}` on another server")
}

/// Whether an operation that goes on here still waits for an approval.
pub(super) fn is_wanted(api: &Api, operation: &Operation) -> bool {
    operation.step == Step::Reserved && needs_approval(&api.node.spec, &operation.kind)
}

/// Whether an operation that this node carries out lacks an approval. `there`: the record of one.
pub(super) async fn is_missing(api: &Api, operation: &Operation, there: Option<&Value>) -> Result<bool, Fault> {
    let (true, Some(node)) = (is_wanted(api, operation), newcomer(&operation.kind)) else { return Ok(false) };
    let (Some(raw), Some(signing)) = (there, Signing::of(&api.node.spec, api.node.name())) else { return Ok(true) };
    let Ok(approval) = serde_json::from_value::<Approval>(raw.clone()) else { return Ok(true) };
    if approval.operation != operation.id || approval.node != *node {
        return Ok(true);
    }
    let signers = signing.signers(APPROVAL, raw).await?;
    let held = api.peering.held(&api.node.spec.token).serial;
    match judge_approval(&approval, &signers, &api.node.spec, api.node.name(), held) {
        Ok(by) => {
            info!(node = node.name, "`{by}` has approved the node");
            Ok(false)
        }
        Err(why) => {
            warn!(node = node.name, code = %Code::RecordRefused, "an approval of the node does not count: {why}");
            Ok(true)
        }
    }
}

/// The node that waits for the word of this server.
pub(super) fn awaiting(api: &Api, look: &Look) -> Option<ApprovalShown> {
    let server = matches!(api.peering.role(), Some(Role::Standalone | Role::Server | Role::External));
    let claimed = look.claim.as_ref()?.valid().filter(|claimed| server && claimed.by != api.node.name())?;
    let operation = &claimed.operation;
    let node = newcomer(&operation.kind).filter(|_| is_wanted(api, operation))?;
    let approved = look.approval.as_ref().is_some_and(|(approval, _)| approval.operation == operation.id);
    (!approved).then(|| ApprovalShown {
        name: node.name.clone(),
        address: node.address.clone(),
        role: Role::Server.word().to_owned(),
        by: claimed.by.clone(),
        deadline_ms: operation.deadline_ms,
    })
}

/// Approves the node that waits. All checks come first.
pub(crate) async fn countersign(api: &Api, request: &CountersignRequest) -> Result<ApprovalShown, Fault> {
    api.peering.by_hand()?;
    let refused = |what: String, hint: &str| Fault::new(Code::ApprovalRefused, what).hint(hint.to_owned());
    let name = &request.name;
    let records = records(api).await?;
    let look = records.look().await?;
    let here = api.peering.kept().active().is_some_and(|active| active.kind.name() == name);
    if here {
        let what = format!("this server takes `{}` in itself, and cannot be the second one", name.escape_debug());
        return Err(refused(what, "approve it on another server"));
    }
    let waits = awaiting(api, &look).filter(|waits| waits.name == *name);
    let claimed = look.claim.as_ref().and_then(|claim| claim.valid());
    let (Some(waits), Some(claimed)) = (waits, claimed) else {
        let what = format!("no node `{}` waits for the word of this server", name.escape_debug());
        return Err(refused(what, "see what goes on with `quorate peer status`"));
    };
    let Some(node) = newcomer(&claimed.operation.kind) else { return Ok(waits) };
    records.approve(&look, claimed, node).await?;
    info!(
        node = node.name,
        address = node.address,
        "approved that the node becomes a server, as `{}` wants",
        claimed.by
    );
    Ok(waits)
}

fn newcomer(kind: &Kind) -> Option<&Newcomer> {
    match kind {
        Kind::Join(node) | Kind::ToServer(node) => Some(node),
        Kind::Detach { .. } | Kind::Enrol(_) | Kind::Discharge { .. } | Kind::ToClient(_) => None,
    }
}
