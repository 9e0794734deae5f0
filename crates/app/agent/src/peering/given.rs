//! Judges a cluster file that another agent gives to this node during a change of peers.
//!
//! **Invariant:** an agent changes the list of members and nothing else, and adds a server to three or more only with the word of a second
//! one.

use quorate_faults::{Code, Fault};
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::peering::{Approval, Role, Signers, Unfit, approves, judge_approval, judge_change};
use quorate_plan::spec::Spec;

use super::record::APPROVAL;
use super::signing::Signing;
use crate::cluster_file;
use crate::peers::{Api, FileRequest};
use crate::serve::Peer;

/// More approvals than one file needs.
const APPROVALS_MAX: usize = 32;

/// Refuses what the agent of `peer` may not change.
pub(crate) async fn check_given(api: &Api, peer: &Peer, request: &FileRequest) -> Result<(), Fault> {
    let own = &api.node.spec;
    let Some(signing) = Signing::of(own, api.node.name()).filter(|_| api.peering.role().is_some()) else {
        return Ok(());
    };
    if is_newcomer(api) {
        return Ok(());
    }
    let (new, _) = cluster_file::parse(request.text.as_bytes(), "the file that was sent")?;
    let sender = peer.node(&own.token).unwrap_or_default();
    let mut approvals = Vec::new();
    for raw in request.approvals.iter().take(APPROVALS_MAX) {
        if let Ok(approval) = serde_json::from_value::<Approval>(raw.clone()) {
            let signers = signing.signers(APPROVAL, raw).await?;
            approvals.push((approval, signers));
        }
    }
    let held = api.peering.held(&own.token).serial;
    judge_given(own, &new, &sender, &approvals, held).map_err(refusal)
}

/// A node that has never been a member, and has not held any file of the cluster's record, trusts the cluster that takes it in.
fn is_newcomer(api: &Api) -> bool {
    let started = match api.book.read() {
        LedgerSeen::Absent => false,
        LedgerSeen::There(ledger) => ledger.ids().is_some(),
        LedgerSeen::Unreadable(_) => true,
    };
    !started && api.peering.role() == Some(Role::Server) && api.peering.held(&api.node.spec.token).serial == 0
}

fn judge_given(
    own: &Spec,
    new: &Spec,
    sender: &str,
    approvals: &[(Approval, Signers)],
    held: u64,
) -> Result<(), Unfit> {
    let declared = usize::from(own.member(sender).is_some());
    judge_change(own, new, |member| {
        let second = approvals.iter().any(|(approval, signers)| {
            approves(approval, member) && judge_approval(approval, signers, own, sender, held).is_ok()
        });
        declared + usize::from(second)
    })
}

fn refusal(why: Unfit) -> Fault {
    let code = match why {
        Unfit::Uncountersigned(_) => Code::Uncountersigned,
        _ => Code::FileOtherChange,
    };
    let hint = match code {
        Code::Uncountersigned => "approve the node on a second server: `quorate peer countersign NAME`",
        _ => "other changes of the file are an operator's: `quorate cluster apply FILE`",
    };
    Fault::new(code, "an agent may not change the cluster file of this node like this").hint(hint).caused_by(why)
}
