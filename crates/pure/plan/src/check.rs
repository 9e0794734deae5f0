//! Reads a plan before it runs, and says which rule it would break. Written from the rules, not from the rows that made it.
//!
//! **Rule:** nothing here asks how a plan came to be: it follows the steps on paper, with what was seen, and asks of each one
//! whether it may be taken then.

mod change;
mod follow;
mod fork;
mod machines;
mod nonces;
mod postgres;
mod recover;
#[cfg(test)]
mod tests;

pub use change::check_change;
pub use fork::check_fork;
pub use postgres::{check_claim, check_handover, check_pg};
pub use recover::{RecoveryParts, check_recovery};

use quorate_etcd_formats::membership::ClusterId;

use crate::ledger::{Generation, IntentKind, Ledger, LedgerSeen, State};
use crate::spec::Spec;
use crate::start::{
    ClusterSeen, DataSeen, ListedMember, Observed, PeerAnswer, PeerFounding, PeerSeen, PlaceState, StartPlan, Step,
};

/// Says what the plan of the node `name` would break. An executor must not run a plan that was not found in order.
pub fn check(spec: &Spec, name: &str, seen: &Observed, plan: &StartPlan) -> Result<(), Vec<String>> {
    let seen = &*seen.without_rival();
    let ledger = match &seen.ledger {
        LedgerSeen::There(ledger) => ledger.as_ref().clone(),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => Ledger::default(),
    };
    let mut audit = Audit { spec, name, seen, ledger, broken: Vec::new() };
    audit.shape(plan);
    audit.sight(plan);
    let mut paper = follow::Paper::new(&audit);
    for step in &plan.steps {
        paper.take(&mut audit, step);
    }
    if audit.broken.is_empty() { Ok(()) } else { Err(audit.broken) }
}

struct Audit<'a> {
    spec: &'a Spec,
    name: &'a str,
    seen: &'a Observed,
    /// Before the plan.
    ledger: Ledger,
    broken: Vec<String>,
}

impl Audit<'_> {
    fn rule(&mut self, holds: bool, rule: &str) {
        if !holds && !self.broken.iter().any(|broken| broken == rule) {
            self.broken.push(rule.to_owned());
        }
    }

    /// What every plan looks like.
    fn shape(&mut self, plan: &StartPlan) {
        let count = |wanted: fn(&Step) -> bool| plan.steps.iter().filter(|step| wanted(step)).count();
        let made = count(|step| matches!(step, Step::Init { .. } | Step::Restore { .. }));
        let starts = count(|step| matches!(step, Step::Start { .. }));
        let changes = count(|step| matches!(step, Step::RemoveMember(_) | Step::AddLearner));
        let halts = count(|step| matches!(step, Step::Wait(_) | Step::Refuse(_)));
        let removals = count(|step| matches!(step, Step::RemoveMember(_)));
        self.rule(!plan.steps.is_empty(), "a plan says what is done, or why nothing is");
        self.rule(made <= 1 && starts <= 1, "a plan makes data at most once and starts etcd at most once");
        self.rule(removals <= 1 && changes - removals <= 1, "a plan removes and adds at most one member");
        self.rule(
            halts == 0 || (halts == 1 && matches!(plan.steps.last(), Some(Step::Wait(_) | Step::Refuse(_)))),
            "a plan that halts does so at its end",
        );
        self.rule(halts == 0 || made + starts + changes == 0, "a plan that halts makes, starts and changes nothing");
        let after = plan.steps.iter().skip_while(|step| !matches!(step, Step::Start { .. })).skip(1);
        self.rule(
            after.clone().all(|step| *step == Step::Promote),
            "once etcd is started, nothing follows but its promotion",
        );
    }

    /// What cannot be seen, and what others know of this node.
    fn sight(&mut self, plan: &StartPlan) {
        let blind =
            matches!(self.seen.data, DataSeen::Unknown(_)) || matches!(self.seen.ledger, LedgerSeen::Unreadable(_));
        let idle = plan.steps.iter().all(|step| matches!(step, Step::Wait(_) | Step::Refuse(_)));
        self.rule(!blind || idle, "where data or ledger cannot be seen, nothing is done");
        self.mounted(plan);
        let told = |number: u64, of: Option<ClusterId>| {
            self.answers().any(|(_, peer)| (peer.generation, peer.generation_of) == (number, of))
        };
        let ours = self.ledger.cluster();
        // To write down what was told is no more than to remember it.
        let another = |of: Option<ClusterId>| of.is_none() || of != ours;
        let newer = |it: &Generation| told(it.number, it.cluster) && another(it.cluster);
        let remembers = |step: &Step| {
            matches!(step, Step::WriteOutdated(it) if newer(it))
                || matches!(step, Step::WriteGeneration(number) if ours.is_some() && told(*number, ours))
        };
        let rests = |step: &Step| matches!(step, Step::Wait(_) | Step::Refuse(_) | Step::Archive) || remembers(step);
        let acts = !plan.steps.iter().all(rests);
        let again = self.spec.member(self.name).is_some();
        let own = matches!(&self.ledger.state, State::Tombstone(stone) if !(stone.undeclared && again));
        let ours = self.ledger.ids().map(|(_, member)| member);
        let urls = self.spec.member(self.name).map_or(&[][..], |member| &member.peer_urls);
        let named =
            |member: &ListedMember| member.name == self.name || member.peer_urls.iter().any(|url| urls.contains(url));
        let listed = match (&self.seen.cluster, ours) {
            (ClusterSeen::Confirmed { members, .. }, Some(ours)) => members.iter().any(|member| member.id == ours),
            (ClusterSeen::Confirmed { members, .. }, None) => members.iter().any(named),
            (ClusterSeen::Unreachable(_), _) => false,
        };
        let buries = |peer: &PeerAnswer| peer.my_tombstone && peer.founding != PeerFounding::Removed;
        let stone = own || (!listed && self.answers().any(|(_, peer)| buries(peer)));
        let buries = plan.steps.iter().all(|step| matches!(step, Step::Write(State::Tombstone(_))));
        self.rule(!stone || !acts || buries, "a node that was removed for good does nothing");
        let torn_down = self.ledger.intent.as_ref().is_some_and(|intent| intent.kind == IntentKind::Teardown);
        self.rule(!torn_down || !acts, "a cluster that was torn down is not started");
        let holds_something = self.ledger.state != State::Empty || matches!(self.seen.data, DataSeen::There(_));
        let known = self.answers().map(|(_, peer)| peer.generation).max().unwrap_or(0).max(self.ledger.newest().number);
        let lost = self.forks(plan);
        let behind = known > self.ledger.generation || lost;
        self.rule(
            !(holds_something && behind && acts),
            "a node of an older generation, or of one that lost, does nothing",
        );
        let unknown = self.ledger.state == State::Empty && matches!(self.seen.data, DataSeen::There(_));
        self.rule(!unknown || !acts, "data that the ledger does not know is not run");
    }

    /// A directory in a file system that is not mounted says nothing about the data.
    fn mounted(&mut self, plan: &StartPlan) {
        let hidden = matches!(self.seen.place, PlaceState::NotMounted { .. } | PlaceState::Unknown(_));
        let again = self.spec.member(self.name).is_some();
        let gone = matches!(&self.ledger.state, State::Tombstone(stone) if !(stone.undeclared && again));
        let acts = plan.steps.iter().any(|step| match step {
            Step::Restore { .. } | Step::Init { .. } | Step::RemoveMember(_) | Step::AddLearner => true,
            Step::Start { .. } | Step::RepairTail | Step::TellPeers | Step::Promote => true,
            Step::Archive => !gone,
            Step::Validate(_) | Step::Write(_) | Step::WriteGeneration(_) | Step::WriteOutdated(_) => false,
            Step::WriteRolledBack(..) | Step::Wait(_) | Step::Refuse(_) => false,
        });
        self.rule(
            !hidden || !acts,
            "while the file system of the data is not mounted, nothing is made, removed or added",
        );
    }

    fn members(&self) -> &[ListedMember] {
        match &self.seen.cluster {
            ClusterSeen::Confirmed { members, .. } => members,
            ClusterSeen::Unreachable(_) => &[],
        }
    }

    fn answers(&self) -> impl Iterator<Item = (&str, &PeerAnswer)> {
        self.seen.peers.iter().filter_map(|(name, peer)| match peer {
            PeerSeen::Answered(answer) => Some((name.as_str(), answer)),
            PeerSeen::Unknown(_) => None,
        })
    }
}
