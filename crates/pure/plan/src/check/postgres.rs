//! Reads what a node of a PostgreSQL group is about to do, and reports which rule about changes of the writer it would break.

use crate::postgres::{
    Floor, PgPlan, PgStep, Records, Seen, StoreNow, Unconfirmed, UnsentNow, WriterPlan, WriterSeen, is_lagging,
    must_hold,
};
use crate::spec::{PgSpec, PgWriters};

fn broken(rules: impl IntoIterator<Item = (bool, &'static str)>) -> Result<(), Vec<String>> {
    let broken: Vec<String> = rules.into_iter().filter(|(holds, _)| !holds).map(|(_, rule)| rule.to_owned()).collect();
    if broken.is_empty() { Ok(()) } else { Err(broken) }
}

/// Whether a node may do what was decided about the writer lease.
pub fn check_claim(spec: &PgSpec, me: &str, seen: &WriterSeen, plan: &WriterPlan) -> Result<(), Vec<String>> {
    let WriterPlan::Claim(cutoffs) = plan else { return Ok(()) };
    let records = &seen.records;
    let last = records.last_writer.as_ref().map(|(last, _)| last);
    let epoch = last.map_or(0, |last| last.epoch) + 1;
    let confirmed = records.handover.as_ref().is_some_and(|(handover, _)| handover.to == me && handover.epoch == epoch);
    let from = last.filter(|last| last.node != me && records.number(&last.node).is_some());
    let took_over = from.filter(|_| spec.writers == PgWriters::One && !confirmed);
    let is_mine = |(node, cutoff): (&String, &crate::postgres::Cutoff)| {
        let applied = seen.positions.get(node).copied().unwrap_or_default();
        cutoff.writer == me && cutoff.epoch == epoch && cutoff.applied == applied && node != me
    };
    let on_record = |node: &String| records.cutoff(node).is_none() || node == me || cutoffs.contains_key(node);
    broken([
        (!records.is_out(me), "a node that may hold changes which the writer does not have takes no writer lease"),
        (
            !records.lacks(me, &seen.positions),
            "a node that lacks changes which the last writer has takes no writer lease",
        ),
        (
            took_over.is_none_or(|last| seen.link_held && cutoffs.contains_key(&last.node)),
            "a node that takes over has stopped applying the old writer, and records how far it was applied",
        ),
        (records.cutoffs.keys().all(on_record), "a new writer records anew how far each old writer was applied here"),
        (cutoffs.iter().all(is_mine), "a cutoff is what the new writer has applied, under its own epoch"),
    ])
}

/// Whether a writer may hand over to a node with this floor on record.
pub fn check_handover(
    records: &Records,
    to: &str,
    unconfirmed: &Unconfirmed,
    floor: Option<&Floor>,
) -> Result<(), Vec<String>> {
    let Some((writer, _)) = &records.writer else { return Err(vec!["only a writer hands over".to_owned()]) };
    let members = records.group.iter().flat_map(|(group, _)| &group.nodes);
    let others = members.filter(|(node, _)| **node != writer.node && *node != to);
    let mut lacking =
        others.filter(|(node, id)| unconfirmed.members.contains(*id) || records.is_awaited(&writer.node, node));
    let is_awaited = |id: &u16| floor.is_some_and(|floor| floor.waiting.contains(id));
    let takes = records.number(to);
    broken([
        (
            takes.is_some() && *to != writer.node && !records.is_out(to),
            "the writer lease is handed to another member that is not out",
        ),
        (
            takes.is_some_and(|id| !unconfirmed.members.contains(&id) && !is_awaited(&id)),
            "the writer lease is handed to a member that has applied everything",
        ),
        (
            lacking.all(|(_, id)| is_awaited(id)),
            "a member that has not applied everything when the writer hands over is awaited by a floor",
        ),
        (
            floor.is_none_or(|floor| {
                records.number(&writer.node) == Some(floor.id)
                    && floor.epoch == writer.epoch + 1
                    && floor.applied >= unconfirmed.applied
                    && records.floor(&writer.node).is_none_or(|(earlier, _)| floor.applied >= earlier.applied)
            }),
            "a floor is what the next writer has applied, under its epoch",
        ),
    ])
}

/// Whether a node may take the steps of its plan.
pub fn check_pg(me: &str, seen: &Seen, plan: &PgPlan) -> Result<(), Vec<String>> {
    let nothing = Records::default();
    let (known, records) = match &seen.store {
        StoreNow::Unknown(_) => (false, &nothing),
        StoreNow::Known(store) => (true, &store.records),
    };
    let fresh = plan.steps.contains(&PgStep::InitData);
    let link = |from: &String| seen.mine.links.get(from);
    let is_current = |from: &String| link(from).is_some_and(|link| !is_lagging(records, me, from, link));
    let is_writer = |node: &str| records.writer.as_ref().is_some_and(|(writer, _)| writer.node == node);
    // What comes late from the writer itself is found by the comparison that follows.
    let is_marked = |from: &String| is_writer(from) && link(from).is_some_and(|link| link.unordered);
    // Seen from outside of the planner: which member is out, and whether its changes are applied here.
    let group = records.group.iter().flat_map(|(group, _)| group.nodes.keys());
    let stopped = |from: &String| link(from).is_some_and(|link| link.held);
    let wrote = records.last_writer.as_ref().is_some_and(|(last, _)| last.node == me);
    let mut open = group.filter(|from| *from != me && must_hold(records, from, me) && !stopped(from));
    let would_apply = records.joined.contains_key(me) && !wrote && open.next().is_some();
    let rules = |step: &PgStep| match step {
        PgStep::StartServer | PgStep::EndIsolation => (
            fresh || (known && !records.is_out(me) && !would_apply),
            "a server connects to other nodes only if its node is not out and applies nothing of a node that is",
        ),
        PgStep::ReleaseLink { from } => (
            known && !records.is_out(from) && (is_writer(me) || is_current(from) || is_marked(from)),
            "changes of a node that is out are not applied, and older ones of a former writer not after newer ones",
        ),
        PgStep::ConfirmFloor { from } => (
            known && !records.is_out(from) && is_current(from) && link(from).is_some_and(|link| link.held),
            "a node confirms a floor when it holds all changes below it, and has applied none late",
        ),
        PgStep::TakeRows { writer, skip } => (
            known
                && *writer != me
                && is_writer(writer)
                && !records.is_out(me)
                && !records.is_out(writer)
                && skip.keys().all(|from| is_writer(from) || link(from).is_some_and(|link| link.held))
                && skip.iter().all(|(from, to)| *to == 0 || (!is_writer(from) && records.reached(from) == Some(*to))),
            "rows are taken from the writer, and only that is skipped which it has, with these subscriptions stopped",
        ),
        PgStep::ClearCutoff { epoch } => (
            records.cutoff(me).is_some_and(|(cutoff, _)| cutoff.epoch == *epoch)
                && records.divergence(me).is_none()
                && matches!(&seen.mine.unsent, UnsentNow::Known(unsent) if unsent.transactions == 0),
            "a cutoff is removed by its own node, after it has read that its log holds nothing beyond",
        ),
        PgStep::ReplaceData => (
            known && records.discards.contains_key(me) && records.number(me).is_none(),
            "the data of a member is not replaced, and none without an order",
        ),
        PgStep::Configure | PgStep::Offer | PgStep::ClaimWriter => {
            (!records.is_out(me), "a node that is out takes no part")
        }
        PgStep::InitData
        | PgStep::Prepare
        | PgStep::Register
        | PgStep::TakeLock
        | PgStep::Lead { .. }
        | PgStep::CreateGroup { .. }
        | PgStep::ReleaseLock
        | PgStep::Bind { .. }
        | PgStep::Link { .. }
        | PgStep::NoteLinked { .. }
        | PgStep::LaySchema { .. }
        | PgStep::StartIsolated
        | PgStep::HoldLink { .. }
        | PgStep::NoteDiverged(_)
        | PgStep::CompareRows => (true, ""),
    };
    broken(plan.steps.iter().map(rules))
}
