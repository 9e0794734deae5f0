//! Decides what a node does that lacks changes of a former writer, or may have applied them after newer ones of the writer.
//!
//! **Invariant:** what a node had not applied of a former writer when the writer changed is never applied late: its rows are made
//! those of the writer, which has these changes, and the log of the former writer is skipped up to there. Until then it takes no
//! reads and does not become the writer.

use std::collections::BTreeMap;

use quorate_faults::Code;

use super::decide::{Case, PgPlan};
use super::records::Records;
use super::seen::{LinkNow, Seen, StoreNow};
use super::step::PgStep;
use crate::roster::names;

/// Whether the changes of a node are not applied by another one until the records allow it.
pub fn must_hold(records: &Records, from: &str, me: &str) -> bool {
    records.is_out(from) || records.is_awaited(from, me)
}

/// Whether this node lacks changes of another one that the writer has, or may have applied them after newer ones.
pub fn is_lagging(records: &Records, me: &str, from: &str, link: &LinkNow) -> bool {
    // A node that joins is given its rows and positions by the join, and is compared once that has ended.
    if !records.joined.contains_key(me) {
        return false;
    }
    let lacks = records.reached(from).is_some_and(|reached| link.applied < reached);
    // What it has more than the writer is looked at once the old writer has read its log.
    let ahead = records.divergence(from).is_none()
        && records.cutoff(from).is_some_and(|(cutoff, _)| link.applied > cutoff.applied);
    lacks || (link.unordered && !ahead)
}

/// Whether a node lacks rows of the writer, or may: it takes no reads. One that had stopped a subscription in time and only has to
/// confirm that does not.
pub fn lacks_rows(me: &str, seen: &Seen) -> bool {
    let StoreNow::Known(store) = &seen.store else { return false };
    let awaited = |from: &String, link: &LinkNow| !link.held && store.records.is_awaited(from, me);
    seen.mine.links.iter().any(|(from, link)| is_lagging(&store.records, me, from, link) || awaited(from, link))
}

/// Whether the server of a node would apply changes of a former writer before its agent could stop that. One that took the writer
/// lease had stopped them before.
pub(super) fn would_apply(records: &Records, me: &str, seen: &Seen) -> bool {
    let wrote = records.last_writer.as_ref().is_some_and(|(last, _)| last.node == me);
    let members = records.group.iter().flat_map(|(group, _)| group.nodes.keys());
    let held = |from: &String| seen.mine.links.get(from).is_some_and(|link| link.held);
    let mut open = members.filter(|from| *from != me && must_hold(records, from, me) && !held(from));
    records.joined.contains_key(me) && !wrote && open.next().is_some()
}

impl Case<'_> {
    fn writer(&self) -> Option<&str> {
        self.store.records.writer.as_ref().map(|(writer, _)| writer.node.as_str())
    }

    /// What is due for the subscription to a node that is not out; `None`: nothing.
    pub(super) fn follow_former(&self, from: &str, link: &LinkNow) -> Option<PgStep> {
        let records = &self.store.records;
        let awaited = records.is_awaited(from, self.me);
        let lagging = is_lagging(records, self.me, from, link);
        // Until there is a writer it is open which changes of the last one are taken; the election holds the subscription.
        let open = records.writer.is_none() && records.last_writer.as_ref().is_some_and(|(last, _)| last.node == from);
        let release = || PgStep::ReleaseLink { from: from.to_owned() };
        let hold = || PgStep::HoldLink { from: from.to_owned(), unordered: true };
        if self.writer() == Some(self.me) || !(awaited || lagging) {
            return (link.held && !open).then(release);
        }
        match (link.held, lagging) {
            (true, false) => Some(PgStep::ConfirmFloor { from: from.to_owned() }),
            // The writer is followed, whatever comes late from it: rows are compared afterwards.
            (true, true) if self.writer() == Some(from) && link.unordered => Some(release()),
            (false, _) if self.writer() == Some(from) && link.unordered => None,
            (true, true) if self.writer() == Some(from) => Some(hold()),
            (true, true) => None,
            (false, _) => Some(hold()),
        }
    }

    /// The rows of this node become those of the writer.
    pub(super) fn take_rows(&self) -> Option<PgPlan> {
        let records = &self.store.records;
        let lagging = self.mine.links.iter().filter(|(from, link)| is_lagging(records, self.me, from, link));
        let position = |from: &String| match self.writer() == Some(from) {
            true => 0,
            false => records.reached(from).unwrap_or_default(),
        };
        let skip: BTreeMap<String, u64> = lagging.map(|(from, _)| (from.clone(), position(from))).collect();
        if skip.is_empty() || self.writer() == Some(self.me) {
            return None;
        }
        let why = format!(
            "this node lacks changes of {}, or has applied them after newer ones [{}]",
            names(skip.keys().map(String::as_str)),
            Code::PgLacksRows
        );
        Some(match self.writer().filter(|writer| !records.is_out(writer)) {
            Some(writer) => PgPlan {
                steps: vec![PgStep::TakeRows { writer: writer.to_owned(), skip }],
                ..PgPlan::wait(format!("the rows of {writer}: {why}"))
            },
            None => PgPlan::wait(format!("a writer whose rows it can take: {why}")),
        })
    }
}
