//! Reads the verdict between two recovered clusters of one generation. Written from the rules, not from what decided.
//!
//! **Rule:** a cluster stops for another one only where no order of the rules puts it first; and it stops wherever they all put it last.

use super::Audit;
use crate::fork::{Fact, Recovered, Report, Sealed, Verdict};
use crate::ledger::{Generation, Ledger};
use crate::start::{StartPlan, Step};

/// Returns the rule that a verdict would break. No cluster stops or stays by a verdict that was not found in order. `late`: a fact
/// stayed missing although both clusters serve.
pub fn check_fork(own: Recovered, rival: Recovered, verdict: Verdict, late: bool) -> Result<(), String> {
    if own.cluster == rival.cluster {
        return Err("a cluster is no other one than itself".to_owned());
    }
    // The lowest rank goes on: (not claimed, not written to, id), where each is known of both.
    let half = |it: Recovered| it.cluster.0 >> 63;
    let writes = |it: Recovered| match it.fact {
        Fact::Known(Sealed::Written) => Some(0_u8),
        Fact::Known(Sealed::Unwritten) => Some(1),
        Fact::Known(Sealed::ById) | Fact::EarlierRelease | Fact::Unknown => None,
    };
    let ids_alone = |it: Recovered| matches!(it.fact, Fact::Known(Sealed::ById) | Fact::EarlierRelease);
    let ranks = match (writes(own), writes(rival)) {
        (Some(mine), Some(theirs)) => Some(((half(own), mine), (half(rival), theirs))),
        _ if half(own) != half(rival) || ids_alone(own) || ids_alone(rival) => Some(((half(own), 0), (half(rival), 0))),
        (Some(_) | None, Some(_) | None) => None,
    };
    let lower = own.cluster < rival.cluster;
    let due = match ranks {
        Some((mine, theirs)) if mine < theirs || (mine == theirs && lower) => Verdict::Wins,
        Some(_) => Verdict::Loses,
        None if late && !lower => Verdict::Loses,
        None => Verdict::Undecided,
    };
    let who = format!("`{}` against `{}`", own.cluster, rival.cluster);
    match verdict == due {
        true => Ok(()),
        false => Err(format!(
            "of two recovered clusters of one generation the rules choose: {who}: {due:?}, and not {verdict:?}"
        )),
    }
}

impl Audit<'_> {
    /// A node of a recovered cluster that lost starts nothing, and stops for no cluster that it does not lose to.
    pub(super) fn forks(&mut self, plan: &StartPlan) -> bool {
        let reports: Vec<Report> = self.answers().map(|(_, answer)| answer.report()).collect();
        let same = |step: &Step| match step {
            Step::WriteOutdated(it) => Some(*it).filter(|it| it.number == self.ledger.generation),
            Step::Validate(_) | Step::RepairTail | Step::Archive | Step::Restore { .. } | Step::Init { .. } => None,
            Step::Write(_) | Step::WriteGeneration(_) | Step::WriteRolledBack(..) | Step::TellPeers => None,
            Step::RemoveMember(_) | Step::AddLearner | Step::Start { .. } | Step::Promote => None,
            Step::Wait(_) | Step::Refuse(_) => None,
        };
        let mut stops = plan.steps.iter().filter_map(same);
        let for_nothing = stops.any(|it| !loses_to(&self.ledger, &reports, it));
        self.rule(!for_nothing, "a recovered cluster stops for another one of its generation only where that one wins");
        let lost = reports.iter().any(|report| loses_to(&self.ledger, &reports, report.newest));
        lost || self.ledger.is_outdated()
    }
}

/// Whether the rules make the cluster of a ledger stop for another one.
fn loses_to(ledger: &Ledger, reports: &[Report], other: Generation) -> bool {
    let (Some(own), Some(rival)) = (ledger.cluster(), other.cluster) else { return false };
    if ledger.generation == 0 || other.number != ledger.generation || own == rival {
        return false;
    }
    // Only what the own cluster was restored from is its past. Being left by a reset excuses no cluster.
    if ledger.was.contains(&rival) {
        return false;
    }
    // One of the own members has stopped for it.
    if reports.iter().any(|it| it.cluster == Some(own) && it.forks.is_some() && it.newest == other) {
        return true;
    }
    let recorded = |of, against| {
        let of = reports.iter().filter(move |report| report.cluster == Some(of));
        of.flat_map(|report| report.forks.iter().flatten()).filter(move |fork| fork.rival == against)
    };
    let mine = ledger.forks.iter().find(|fork| fork.rival == rival).or_else(|| recorded(own, rival).next());
    let current = reports.iter().any(|report| report.cluster == Some(rival) && report.forks.is_some());
    let earlier = reports.iter().any(|report| report.cluster == Some(rival) && report.forks.is_none());
    let theirs = match recorded(rival, own).max() {
        Some(fork) => Fact::Known(fork.sealed),
        None if earlier && !current => Fact::EarlierRelease,
        None => Fact::Unknown,
    };
    let own = Recovered { cluster: own, fact: mine.map_or(Fact::Unknown, |fork| Fact::Known(fork.sealed)) };
    check_fork(own, Recovered { cluster: rival, fact: theirs }, Verdict::Loses, false).is_ok()
}
