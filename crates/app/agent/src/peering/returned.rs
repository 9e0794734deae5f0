//! A node that was taken out while it was away: it finds its tombstone in the cluster's store, and takes over the file of those
//! who stayed. What follows is what follows for every member that its file does not declare: its own tombstone, and its data
//! set aside.
//!
//! **Invariant:** nothing of the node is touched by the word of a client of etcd: the tombstone is read through a quorum, and the file that a
//! declared server signed pins it.

use std::time::Duration;

use quorate_faults::Fault;
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::peering::{Kind, Role, only_members_differ};
use tracing::{debug, warn};

use super::keep::take_here;
use super::listing::FoundClaim;
use super::record::Records;
use super::vouch;
use crate::peers::{Api, FileRequest};
use crate::turn::in_words;

/// How long a newcomer looks for its tombstone before it begins; without an answer it cannot join either.
const LIMIT: Duration = Duration::from_secs(5);

/// Looks for a tombstone before a node that was never a member begins: one that was given up does not add itself again.
pub(crate) async fn before_first_start(api: &Api) {
    let newcomer = match api.book.read() {
        LedgerSeen::Absent => true,
        LedgerSeen::There(ledger) => ledger.ids().is_none(),
        LedgerSeen::Unreadable(_) => false,
    };
    if !newcomer {
        return;
    }
    match tokio::time::timeout(LIMIT, mind_tombstone(api)).await {
        Ok(Ok(())) => {}
        Ok(Err(fault)) => debug!(code = %fault.code(), "no tombstone was looked for: {}", in_words(&fault)),
        Err(_) => debug!("no tombstone was looked for in time"),
    }
}

/// Looks for a tombstone, where no etcd runs and this node still takes itself for a member.
pub(super) async fn mind_tombstone(api: &Api) -> Result<(), Fault> {
    let role = api.peering.local().map(|local| local.role);
    let member = matches!(role, Some(Role::Standalone | Role::Server)) && api.node.spec.external.is_none();
    if !member || !api.node.is_declared() || !api.node.has_peers() || api.shared.status().etcd.is_some() {
        return Ok(());
    }
    let records = Records::of_others(&api.node).await?.holding(api.peering.held(&api.node.spec.token));
    let look = records.look().await?;
    vouch::note(api, &look)?;
    let joins = |claim: &FoundClaim| {
        let kind = claim.valid().map(|claimed| &claimed.operation.kind);
        kind.is_some_and(|kind| matches!(kind, Kind::Join(_) | Kind::ToServer(_)) && kind.name() == api.node.name())
    };
    // A node that is being taken in is none that was taken out, whatever is left of an earlier time.
    if look.claim.as_ref().is_some_and(joins) {
        return Ok(());
    }
    let Some(gone) = look.gone.iter().find(|gone| gone.name == api.node.name()) else { return Ok(()) };
    let Some((file, spec)) = look.valid_file().zip(look.file.as_ref().and_then(|found| found.text.as_ref())) else {
        return Ok(());
    };
    if spec.member(api.node.name()).is_some() || only_members_differ(&api.node.spec, spec).is_err() {
        return Ok(());
    }
    warn!("this node was taken out by `{}` while it was away: it takes over the file of the others", gone.by);
    take_here(api, FileRequest::new(file.text.clone(), api.node.spec.hash())).await
}
