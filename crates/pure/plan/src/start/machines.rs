//! The row of a second machine: another one runs as this node, so nothing is removed and nothing is started.
//!
//! **Invariant:** a member is removed for a machine in its place only after its lease, its URLs, its agent and a quorum of the voters
//! were asked and none of them has it; what could not be asked is not taken for gone.

use quorate_etcd_formats::membership::MemberId;
use quorate_faults::Code;

use super::guards::{Every, Guard, Guards};
use super::halts::wait;
use super::rows::Case;
use super::sightings::{AgentSeen, Answering, Holder, LeasesSeen, Sightings};
use super::{ClusterSeen, Halt, Health, ListedMember, Observed, Row, StartPlan};
use crate::change::is_same;
use crate::ledger::{Ledger, LedgerSeen, State};
use crate::roster::names;
use crate::spec::Spec;

/// The way out of all of it.
const WAY_OUT: &str =
    "stop one of the two machines; nothing was removed or started. One that is gone for good is replaced by itself";

/// Why the member of this node must not be removed now, by what was just seen. For a last look before it is removed.
pub fn objection_to_removal(spec: &Spec, name: &str, seen: &Observed, old: MemberId) -> Option<Halt> {
    let ledger = match &seen.ledger {
        LedgerSeen::There(ledger) => ledger.as_ref(),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => &Ledger::default(),
    };
    let case = Case { spec, name, seen, ledger, guards: &Every };
    let plan = case.another_machine().or_else(|| case.may_run_elsewhere(old));
    plan.and_then(|plan| plan.waiting().cloned())
}

impl<G: Guards> Case<'_, G> {
    /// Another machine runs as this node, or at its address.
    pub(super) fn another_machine(&self) -> Option<StartPlan> {
        let seen = &self.seen.sightings;
        let ids = self.own_ids();
        let by_view = if self.holds_lease() { None } else { self.seen_by_voter(&ids) };
        let leased = || self.leased_elsewhere().map(|machine| format!("it holds the lease of this node: {machine}"));
        let agent = || match &seen.agent {
            AgentSeen::Another(machine) => Some(format!("its agent answers at this node's address: {machine}")),
            AgentSeen::Silent(_) | AgentSeen::ThisMachine => None,
        };
        let answers = || {
            let one = seen.answering.iter().find(|one| self.is_own(one, &ids))?;
            Some(format!("member `{}` answers at `{}`", one.member, one.url))
        };
        let what = leased().or_else(agent).or_else(answers).or(by_view)?;
        if !self.guards.hold(Guard::AnotherMachine) {
            return None;
        }
        let why = format!("another machine runs as this node: {what}");
        Some(StartPlan::new(Row::AnotherMachine, wait(Code::AnotherMachine, why, WAY_OUT)))
    }

    /// Whether all who would know that a member runs elsewhere were heard, and none of them has it.
    pub(super) fn may_run_elsewhere(&self, old: MemberId) -> Option<StartPlan> {
        if !self.guards.hold(Guard::AnotherMachine) {
            return None;
        }
        if let Some(what) = self.seen_by_voter(&[old]) {
            let why = format!("another machine runs as this node: {what}");
            return Some(StartPlan::new(Row::AnotherMachine, wait(Code::AnotherMachine, why, WAY_OUT)));
        }
        let seen = &self.seen.sightings;
        let unknown = match &seen.leases {
            LeasesSeen::Unknown(why) => Some(format!("the leases of the nodes could not be read: {why}")),
            LeasesSeen::Held(_) => self.unheard(old),
        }?;
        let why = format!("it is not known whether member `{old}` runs on another machine: {unknown}");
        let way_out = "it is asked again; what could not be asked is not taken for gone";
        Some(StartPlan::new(Row::AnotherMachine, wait(Code::MachineUnknown, why, way_out)))
    }

    /// Whether good data must not be started yet: there is a quorum without it, and nobody can tell whether its member runs elsewhere.
    pub(super) fn unproven_start(&self, own: MemberId) -> Option<StartPlan> {
        let listed = self.confirmed()?.iter().any(|member| member.id == own);
        let LeasesSeen::Unknown(why) = &self.seen.sightings.leases else { return None };
        let silent = self.unheard(own).filter(|_| listed && self.guards.hold(Guard::AnotherMachine))?;
        let why = format!(
            "it is not known whether member `{own}` runs on another machine: the leases of the nodes could not be read ({why}), \
             and {silent}"
        );
        let way_out = "it is asked again; what could not be asked is not taken for gone";
        Some(StartPlan::new(Row::AnotherMachine, wait(Code::MachineUnknown, why, way_out)))
    }

    /// The voters that answer, or are needed for a quorum, and did not say whom they are connected with.
    fn unheard(&self, old: MemberId) -> Option<String> {
        let members = self.confirmed().unwrap_or_default();
        let voters = || members.iter().filter(|member| !member.learner);
        let told = |member: &&ListedMember| self.seen.sightings.views.contains_key(&member.id);
        let silent: Vec<&str> = voters()
            // Who leaves by the file is not asked.
            .filter(|voter| self.spec.members.iter().any(|declared| is_same(declared, voter)))
            .filter(|voter| voter.id != old && voter.health == Health::Healthy && !told(voter))
            .map(|voter| voter.name.as_str())
            .collect();
        let enough = voters().filter(|voter| voter.id != old).filter(told).count() * 2 > voters().count();
        match (silent.is_empty(), enough) {
            (true, true) => None,
            (true, false) => Some("too few of the other members told".to_owned()),
            (false, _) => Some(format!("{} did not tell", names(silent))),
        }
    }

    /// The members that this node is, was, would become by its file, or stands in the place of.
    fn own_ids(&self) -> Vec<MemberId> {
        let replaced = match &self.ledger.state {
            State::PendingAdd(add) => add.replaces,
            State::Empty | State::Promised(_) | State::Inited(_) | State::Started(_) | State::Tombstone(_) => None,
        };
        let listed = self.confirmed().unwrap_or_default().iter().filter(|member| self.is_mine(member));
        let own = self.ledger.ids().map(|(_, member)| member);
        let declared = self.spec.founding_ids().and_then(|ids| ids.members.get(self.name).copied());
        own.into_iter().chain(replaced).chain(declared).chain(listed.map(|member| member.id)).collect()
    }

    /// Whether a server that answers is this node's own member, or one at its address.
    fn is_own(&self, one: &Answering, ids: &[MemberId]) -> bool {
        let at = one.peer_urls.iter().any(|url| self.peer_urls().contains(url));
        ids.contains(&one.member) || one.name == self.name || at
    }

    /// Whether an agent on this very machine held this node's lease a moment ago.
    fn holds_lease(&self) -> bool {
        let LeasesSeen::Held(held) = &self.seen.sightings.leases else { return false };
        held.get(self.name) == Some(&Holder::ThisMachine)
    }

    /// The machine that holds the lease of this node, or of a member in its place.
    fn leased_elsewhere(&self) -> Option<&str> {
        let LeasesSeen::Held(held) = &self.seen.sightings.leases else { return None };
        let mine = self.confirmed().unwrap_or_default().iter().filter(|member| self.is_mine(member));
        let mut asked = mine.map(|member| member.name.as_str()).chain([self.name]);
        asked.find_map(|name| match held.get(name) {
            Some(Holder::Another(machine)) => Some(machine.as_str()),
            Some(Holder::ThisMachine) | None => None,
        })
    }

    /// A voter that is connected with one of these members.
    fn seen_by_voter(&self, ids: &[MemberId]) -> Option<String> {
        let ClusterSeen::Confirmed { members, .. } = &self.seen.cluster else { return None };
        let Sightings { views, .. } = &self.seen.sightings;
        members.iter().filter(|voter| !voter.learner && !ids.contains(&voter.id)).find_map(|voter| {
            // Of members that were removed a voter may tell anything.
            let view = views.get(&voter.id)?;
            let seen = |member: &&ListedMember| ids.contains(&member.id) && view.contains(&member.id);
            let ListedMember { id, peer_urls, .. } = members.iter().find(seen)?;
            Some(format!("`{}` sees it take part as member `{id}` at `{}`", voter.name, peer_urls.join(",")))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use quorate_etcd_formats::membership::ClusterId;

    use super::super::DataSeen;
    use super::super::tests::{FOUND, ids, listed, seen, spec, started};
    use super::*;

    /// The last query before a member is removed, each time with one thing that was not there when the removal was planned.
    #[test]
    fn a_member_is_not_removed_when_it_is_seen_right_before_that() {
        let three = spec(3, FOUND);
        let (cluster, old) = ids(&three);
        let mut gone = seen(DataSeen::Absent, started(&three));
        gone.cluster = listed(&three, Some((old, true)));
        let asked = |change: &dyn Fn(&mut Sightings)| {
            let mut now = gone.clone();
            change(&mut now.sightings);
            objection_to_removal(&three, "n1", &now, old)
        };
        assert_eq!(asked(&|_| {}), None, "every source was queried, and none has it");
        let machine = || "host-b at 10.0.0.9".to_owned();
        let answers = |cluster: ClusterId| Answering {
            url: "http://10.0.0.1:2379".to_owned(),
            cluster,
            member: old,
            name: "n1".to_owned(),
            peer_urls: Vec::new(),
        };
        let lease = |seen: &mut Sightings| {
            seen.leases = LeasesSeen::Held([("n1".to_owned(), Holder::Another(machine()))].into());
        };
        let connected = |seen: &mut Sightings| {
            seen.views.insert(MemberId(0xb2), BTreeSet::from([old]));
        };
        type Change<'a> = &'a dyn Fn(&mut Sightings);
        let elsewhere: [(Change<'_>, &str); 4] = [
            (&lease, "it holds the lease of this node: host-b at 10.0.0.9"),
            (&|seen| seen.agent = AgentSeen::Another(machine()), "its agent answers at this node's address: host-b"),
            (&|seen| seen.answering.push(answers(cluster)), "answers at `http://10.0.0.1:2379`"),
            (&connected, "`n2` sees it take part"),
        ];
        for (change, why) in elsewhere {
            let halt = asked(change).unwrap();
            assert_eq!(halt.code, Code::AnotherMachine, "{}", halt.why);
            assert!(halt.why.contains(why), "{}", halt.why);
        }
        // This machine took the lease a moment ago: that hides no member that runs elsewhere.
        let halt = asked(&|seen| {
            seen.leases = LeasesSeen::Held([("n1".to_owned(), Holder::ThisMachine)].into());
            connected(seen);
        });
        assert_eq!(halt.map(|halt| halt.code), Some(Code::AnotherMachine));
        let unknown: [Change<'_>; 3] = [
            &|seen| seen.leases = LeasesSeen::Unknown("no quorum".to_owned()),
            &|seen| drop(seen.views.remove(&MemberId(0xb2))),
            &|seen| seen.views.clear(),
        ];
        for change in unknown {
            assert_eq!(asked(change).map(|halt| halt.code), Some(Code::MachineUnknown), "silence is not absence");
        }
    }
}
