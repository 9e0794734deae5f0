//! Machines with the same name: the leases that agents hold, what is seen of another machine, and a second one that starts with the
//! identity of a node that runs.
//!
//! **Rule:** chance for second machines has a stream of its own. A second machine is stopped by its operator before it would act on
//! anything but its own disk; until then the rules look at every plan that it makes.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::membership::MemberId;
use quorate_plan::check::check;
use quorate_plan::ledger::Ledger;
use quorate_plan::start::{
    AgentSeen, Answering, ClusterSeen, Holder, LeasesSeen, Observed, Sightings, Step, Verdict, plan_start,
    plan_start_without,
};

use crate::etcd::Data;
use crate::execute::peer_url;
use crate::world::World;

/// How long a lease outlives its agent, in moments.
const LEASE: u64 = 6;
/// Between two times that it is kept.
const KEPT_EVERY: u64 = 3;

/// A machine with the name, the file and the certificates of a node.
#[derive(Debug)]
pub(crate) struct Second {
    /// Whose.
    of: usize,
    data: Option<Data>,
    ledger: Option<Ledger>,
    checked: Option<Verdict>,
    /// Whether it reaches the other one; all else it reaches as that one does.
    reaches: bool,
    until: u64,
}

/// A machine, as the planner on it sees itself.
pub(crate) struct Itself<'a> {
    pub(crate) data: Option<&'a Data>,
    pub(crate) ledger: Option<&'a Ledger>,
    pub(crate) checked: Option<&'a Verdict>,
    pub(crate) data_unreadable: bool,
    pub(crate) unmounted: bool,
    pub(crate) ledger_unreadable: bool,
}

impl World {
    /// Agents hold the names of their nodes; and perhaps a second machine starts.
    pub(crate) fn hold_names(&mut self) {
        let due = self.now.is_multiple_of(KEPT_EVERY);
        for node in (0..self.nodes.len()).filter(|_| due) {
            let it = &self.nodes[node];
            let through = |through: &usize| self.leader_for(node, *through).is_some();
            let held = self.leases.get(&it.name).is_some_and(|(nonce, until)| *nonce == it.nonce && *until >= self.now);
            let keeps =
                it.up && if it.runs { through(&node) } else { held && (0..self.nodes.len()).any(|one| through(&one)) };
            if keeps {
                self.leases.insert(it.name.clone(), (it.nonce, self.now + LEASE));
            }
        }
        match self.second.take() {
            Some(second) => self.second = self.act_second(second),
            None => self.start_second(),
        }
    }

    fn start_second(&mut self) {
        if self.is_quiet() || !self.twins.permille(6) {
            return;
        }
        let of = self.twins.below(self.nodes.len());
        let (kind, reaches, lasts) = (self.twins.below(3), self.twins.permille(500), self.twins.below(30) as u64);
        let it = &self.nodes[of];
        if !it.runs || it.detached || self.swapped.is_some() || self.is_forked() {
            return;
        }
        // A member that is alone is known to nobody else: its copy can tell only while it reaches it.
        let alone = it.data.as_ref().is_some_and(|data| data.config().voters().count() < 2);
        let reaches = reaches || alone;
        let ledger = it.ledger.clone().filter(|_| kind > 0 && !it.ledger_unreadable);
        let data = it.data.clone().filter(|_| kind > 1 && ledger.is_some()).map(|mut data| {
            data.power_cut(false);
            data
        });
        let with = match (&ledger, &data) {
            (_, Some(_)) => "its ledger and its data",
            (Some(_), None) => "its ledger and no data",
            (None, None) => "nothing",
        };
        self.tell(Some(of), format!("a second machine starts with its name and {with}"));
        self.second = Some(Second { of, data, ledger, checked: None, reaches, until: self.now + 3 + lasts });
    }

    /// What a second machine plans. None: it was stopped.
    fn act_second(&mut self, mut second: Second) -> Option<Second> {
        // A member that is alone by now is known to nobody else: its copy can tell only while it reaches it.
        let alone = self.nodes[second.of].data.as_ref().is_none_or(|data| data.config().voters().count() < 2);
        if self.calm || self.now > second.until || (alone && !second.reaches) {
            self.tell(Some(second.of), "the second machine is stopped".to_owned());
            return None;
        }
        let (of, seen) = (second.of, self.look_as_second(&second));
        let file = std::rc::Rc::clone(&self.files[self.nodes[of].file]);
        let name = self.nodes[of].name.clone();
        let plan = match self.settings.without {
            Some(guard) => plan_start_without(guard, &file.spec, &name, &seen),
            None => plan_start(&file.spec, &name, &seen),
        };
        self.plans += 1;
        if (self.settings.without.is_none() || self.settings.checked)
            && let Err(broken) = check(&file.spec, &name, &seen, &plan)
        {
            self.tell(Some(of), format!("the check objects to the second machine: {}", broken.join("; ")));
            if self.settings.without.is_none() {
                self.break_rule(format!("the check objects to a plan: {}\n{}", broken.join("; "), plan.render()));
            }
            return Some(second);
        }
        for step in &plan.steps {
            self.rule_of_second(of, step);
        }
        let rests = |step: &Step| matches!(step, Step::Wait(_) | Step::Refuse(_) | Step::Validate(_));
        if plan.steps.iter().any(|step| matches!(step, Step::Validate(_))) {
            second.checked = Some(Verdict::Valid);
        }
        if plan.steps.iter().all(rests) {
            return Some(second);
        }
        self.tell(Some(of), format!("the second machine would act, because {}, and is stopped", plan.row.text()));
        None
    }

    fn look_as_second(&self, second: &Second) -> Observed {
        let itself = Itself {
            data: second.data.as_ref(),
            ledger: second.ledger.as_ref(),
            checked: second.checked.as_ref(),
            data_unreadable: false,
            unmounted: false,
            ledger_unreadable: false,
        };
        let mut seen = self.look_as(second.of, &itself, None);
        let it = &self.nodes[second.of];
        if second.reaches && it.up {
            seen.sightings.agent = AgentSeen::Another("the first one".to_owned());
        }
        if let Some(data) = it.data.as_ref().filter(|_| second.reaches && it.runs) {
            let url = peer_url(second.of, it.listens);
            let (cluster, member) = (data.cluster, data.member);
            let name = it.name.clone();
            seen.sightings.answering.push(Answering { url: url.clone(), cluster, member, name, peer_urls: vec![url] });
        }
        seen
    }

    /// What a machine with the name of `node` sees of others with that name. `nonce`: its own.
    pub(crate) fn sightings(&self, node: usize, nonce: Option<u64>, cluster: &ClusterSeen) -> Sightings {
        let holder = |held: u64| {
            if Some(held) == nonce { Holder::ThisMachine } else { Holder::Another("another one".to_owned()) }
        };
        let leases = self.leases.iter().filter(|(_, (_, until))| *until >= self.now);
        let leases = match cluster {
            ClusterSeen::Confirmed { .. } => {
                LeasesSeen::Held(leases.map(|(name, (held, _))| (name.clone(), holder(*held))).collect())
            }
            ClusterSeen::Unreachable(why) => LeasesSeen::Unknown(why.clone()),
        };
        let mut views: BTreeMap<MemberId, BTreeSet<MemberId>> = BTreeMap::new();
        for other in (0..self.nodes.len()).filter(|other| *other != node && self.nodes[*other].runs) {
            let Some(data) = self.nodes[other].data.as_ref().filter(|_| self.reaches(node, other)) else { continue };
            let config = data.config();
            let connected = |member: &&crate::etcd::Member| {
                let there = &self.nodes[member.node];
                let same = there.data.as_ref().is_some_and(|theirs| theirs.member == member.id);
                member.node != other && there.runs && same && self.meets(other, member.node, &config)
            };
            views.insert(data.member, config.members.iter().filter(connected).map(|member| member.id).collect());
        }
        Sightings { leases, agent: AgentSeen::ThisMachine, answering: Vec::new(), views }
    }
}
