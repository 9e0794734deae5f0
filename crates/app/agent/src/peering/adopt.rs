//! Goes on with a change of peers whose node is lost: the claim in the store holds all of it.
//!
//! **Invariant:** who adopts a change replaces the claim first, by compare-and-swap, and then writes it down; whoever had it
//! before finds that out before its next act. The node that a change is about does not carry it out.

use std::time::Instant;

use quorate_coordination::Revision;
use quorate_faults::Fault;
use quorate_plan::peering::{Claimed, Operation, Role, Step, judge_operation, without_member};
use tracing::{debug, info, warn};

use super::client::records;
use super::keep::{LOST, write};
use super::listing::Look;
use super::points::point;
use super::record::Records;
use crate::cluster_file;
use crate::peers::Api;

/// Who does not answer, and since when.
pub(super) type Silent = Option<(String, Instant)>;

/// Looks who changes peers: takes over what nobody carries out any more, and drops what a lost answer has left.
pub(super) async fn mind_claim(api: &Api, silent: &mut Silent) -> Result<(), Fault> {
    let server = matches!(api.peering.role(), Some(Role::Standalone | Role::Server | Role::External));
    // Whoever decides just now is asked later.
    let (true, true, Ok(_one)) = (server, api.shared.readiness().1, api.peering.deciding.try_lock()) else {
        return Ok(());
    };
    let records = records(api).await?;
    let look = records.look().await?;
    let Some((claimed, revision)) = usable(api, &look) else {
        *silent = None;
        return Ok(());
    };
    let here = api.peering.kept().active().cloned();
    let same = here.as_ref().is_some_and(|known| known.id == claimed.operation.id);
    if claimed.by == api.node.name() {
        return match () {
            () if same => Ok(()),
            () if records.is_forgotten(&claimed) => records.forget(revision).await,
            () if over(api, &claimed) => Ok(()),
            () => keep(api, claimed.operation),
        };
    }
    // What was begun here and never claimed gives way.
    let free = here.is_none_or(|known| same || known.step == Step::Reserved);
    if !free || api.peers.node(&claimed.by, None).await.is_ok() {
        *silent = None;
        return Ok(());
    }
    let before = silent.take().filter(|(by, _)| *by == claimed.by);
    let since = before.map_or_else(Instant::now, |(_, since)| since);
    *silent = Some((claimed.by.clone(), since));
    if since.elapsed() < LOST || claimed.operation.kind.name() == api.node.name() {
        return Ok(());
    }
    *silent = None;
    adopt(api, &records, &claimed, revision).await
}

/// Goes on with whatever a node carries out that is to be detached by force, and does not answer. Returns what that is.
pub(super) async fn adopt_of(api: &Api, name: &str) -> Result<Option<Operation>, Fault> {
    let records = records(api).await?;
    let look = records.look().await?;
    let Some((claimed, revision)) = usable(api, &look).filter(|(claimed, _)| claimed.by == name) else {
        return Ok(None);
    };
    if api.peers.node(name, None).await.is_ok() {
        return Err(records.at_work(&claimed));
    }
    adopt(api, &records, &claimed, revision).await?;
    Ok(api.peering.kept().active().cloned())
}

/// Takes a lost member out with the change that goes on here, which waits for it. All checks were made.
pub(super) async fn take_along(api: &Api, name: &str, active: Operation) -> Result<Operation, Fault> {
    let text = without_member(&active.text, name).map_err(|error| error.fault())?;
    cluster_file::parse(text.as_bytes(), "the file without the node")?;
    let (before, _) = cluster_file::parse(active.text.as_bytes(), "the file of a change of peers")?;
    let operation = active.and_without(name, text, before.hash());
    records(api).await?.advance(&operation).await?;
    write(api, &operation)?;
    info!(node = name, "is taken out with the change of `{}`", operation.kind.name());
    Ok(operation)
}

/// The claim that counts, if what it leads to differs from this node's file by the nodes that it is about, and by nothing else.
fn usable(api: &Api, look: &Look) -> Option<(Claimed, Revision)> {
    let found = look.claim.as_ref()?;
    let claimed = found.valid()?;
    let parsed = cluster_file::parse(claimed.operation.text.as_bytes(), "the file of a change of peers");
    let judged = parsed.map(|(spec, _)| judge_operation(&claimed.operation, &spec, &api.node.spec));
    match judged {
        Ok(Ok(())) => Some((claimed.clone(), found.revision)),
        Ok(Err(why)) if claimed.by != api.node.name() => {
            debug!("does not go on with the change of `{}`: {why}", claimed.by);
            None
        }
        // It was begun here, and somebody else applied another file since.
        Ok(Err(_)) => Some((claimed.clone(), found.revision)),
        Err(fault) => {
            debug!(code = %fault.code(), "does not go on with the change of `{}`: {fault}", claimed.by);
            None
        }
    }
}

/// Whether this node has seen the end of a change.
fn over(api: &Api, claimed: &Claimed) -> bool {
    let known = api.peering.kept().operation;
    known.is_some_and(|known| known.id == claimed.operation.id && matches!(known.step, Step::Done(_)))
}

async fn adopt(api: &Api, records: &Records, claimed: &Claimed, revision: Revision) -> Result<(), Fault> {
    let Some(operation) = records.adopt(claimed, revision).await? else { return Ok(()) };
    warn!(
        node = operation.kind.name(),
        "`{}` does not answer: this node goes on with its change ({})",
        claimed.by,
        operation.kind.word()
    );
    point("adopted");
    keep(api, operation)
}

fn keep(api: &Api, operation: Operation) -> Result<(), Fault> {
    info!(node = operation.kind.name(), "carries out: {}", operation.kind.word());
    api.peering.change(|kept| kept.operation = Some(operation))
}
