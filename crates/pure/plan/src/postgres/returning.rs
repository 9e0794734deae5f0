//! Decides what a node does about changes of an old writer that the writer does not have.
//!
//! **Invariant:** no node applies changes of an old writer while its cutoff is on record, and only the old writer removes it, after
//! it has read its own log. A node that holds changes which the writer does not have takes no part until its data is replaced.

use quorate_faults::{Code, Fault};

use super::decide::{Case, PgPlan};
use super::lagging::would_apply;
use super::records::{Cutoff, Diverged};
use super::seen::{Seen, StoreNow, UnsentNow};
use super::step::PgStep;
use super::unsent::counted;

/// Whether the server of a node may not connect to other nodes, nor they to it. Without the store it is not known whether another
/// node has taken over; one that is isolated stays so until it belongs to the group, and until it applies nothing of a node that is
/// out.
pub(super) fn must_be_isolated(me: &str, seen: &Seen) -> bool {
    match &seen.store {
        StoreNow::Unknown(_) => true,
        StoreNow::Known(store) => {
            let records = &store.records;
            let stranger = records.group.is_some() && records.number(me).is_none();
            records.is_out(me) || (seen.mine.isolated && stranger) || would_apply(records, me, seen)
        }
    }
}

impl Case<'_> {
    /// What comes before all else where the writer has changed. `None`: nothing does.
    pub(super) fn returning(&self) -> Option<PgPlan> {
        let records = &self.store.records;
        if !records.is_out(self.me) {
            return self.follow_cutoffs();
        }
        // Newer changes do not go on top of rows that are not the writer's. A server that is isolated applies none.
        let applies = self.mine.links.iter().find(|(_, link)| !link.held && !self.mine.isolated);
        if let Some((from, _)) = applies {
            return Some(PgPlan::do_(vec![PgStep::HoldLink { from: from.clone(), unordered: false }]));
        }
        Some(match (records.divergence(self.me), records.cutoff(self.me)) {
            (Some((diverged, _)), _) => self.stay_out(diverged),
            (None, Some((cutoff, _))) => self.prove(cutoff),
            (None, None) => PgPlan::default(),
        })
    }

    /// This node was the writer, and another one took over.
    fn prove(&self, cutoff: &Cutoff) -> PgPlan {
        match &self.mine.unsent {
            UnsentNow::Known(unsent) if unsent.transactions == 0 => {
                PgPlan::do_(vec![PgStep::ClearCutoff { epoch: cutoff.epoch }])
            }
            UnsentNow::Known(unsent) => PgPlan::do_(vec![PgStep::NoteDiverged(Diverged {
                id: cutoff.id,
                epoch: cutoff.epoch,
                origin: self.me.to_owned(),
                first: unsent.first,
                transactions: unsent.transactions,
                changes: unsent.bounded(),
                rows: None,
            })]),
            UnsentNow::NotRead => PgPlan::wait("the log of this node to be read".to_owned()),
            UnsentNow::Unknown(why) => {
                let attempt =
                    format!("cannot read whether this node holds changes that `{}` does not have", cutoff.writer);
                PgPlan::refuse(Fault::new(Code::PgUnproven, format!("{attempt}: {why}")).hint(way_out(self.me)))
            }
        }
    }

    fn stay_out(&self, diverged: &Diverged) -> PgPlan {
        let by = if diverged.origin == self.me { String::new() } else { format!(" of `{}`", diverged.origin) };
        let tables = listed(&diverged.changes);
        let mut attempt = format!(
            "this node stays out: it holds {}{by} that the writer of epoch {} does not have{}",
            counted(diverged.transactions, "transaction"),
            diverged.epoch,
            if tables.is_empty() { String::new() } else { format!(" (changes: {tables})") }
        );
        match &diverged.rows {
            Some(rows) if rows.is_empty() => attempt.push_str("; its rows are those of the writer"),
            Some(rows) => attempt.push_str(&format!("; rows that differ: {}", listed(rows))),
            None => {}
        }
        let writer = self.store.records.writer.as_ref();
        let compares = diverged.rows.is_none() && writer.is_some_and(|(writer, _)| writer.node != self.me);
        let fault = Fault::new(Code::PgDivergedWriter, attempt).hint(way_out(self.me));
        PgPlan { steps: compares.then_some(PgStep::CompareRows).into_iter().collect(), ..PgPlan::refuse(fault) }
    }

    /// Other nodes were the writer.
    fn follow_cutoffs(&self) -> Option<PgPlan> {
        let records = &self.store.records;
        let writes = records.writer.as_ref().is_some_and(|(writer, _)| writer.node == self.me);
        for (from, link) in &self.mine.links {
            let step = match records.is_out(from) {
                true => (!link.held).then(|| PgStep::HoldLink { from: from.clone(), unordered: true }),
                false => self.follow_former(from, link),
            };
            if let Some(step) = step {
                return Some(PgPlan::do_(vec![step]));
            }
        }
        // It had applied more of an old writer than the writer has, and that is known not to come from there any more.
        let ahead = records.diverged.keys().filter_map(|from| {
            let ((diverged, _), link) = (records.divergence(from)?, self.mine.links.get(from)?);
            (diverged.origin == *from && link.applied > diverged.first && !writes).then_some((from, diverged))
        });
        let (from, diverged) = ahead.into_iter().next()?;
        let id = records.number(self.me)?;
        let diverged = Diverged { id, origin: from.clone(), rows: None, ..diverged.clone() };
        Some(PgPlan::do_(vec![PgStep::NoteDiverged(diverged)]))
    }
}

fn listed(tables: &std::collections::BTreeMap<String, u64>) -> String {
    tables.iter().map(|(table, rows)| format!("{table} {rows}")).collect::<Vec<_>>().join(", ")
}

fn way_out(me: &str) -> String {
    format!(
        "look at its rows while its old data dir is there, then replace its data: `quorate pg rejoin {me} --discard`"
    )
}
