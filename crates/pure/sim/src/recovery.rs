//! `quorate cluster recover`, step by step: a survey, orders, and what each node does about its own, cut off anywhere.
//!
//! **Rule:** an order is carried out before anything else is looked at; whatever was done is found again by the next attempt.

use std::rc::Rc;

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::change::recover::{
    ClaimSeen, Evidence, Probe, Reply, RowSeen, Said, Source, StoreNewest, SurveyRow, Survivor, plan_recovery,
};
use quorate_plan::ledger::{Identity, Origin, State};
use quorate_plan::start::Verdict;

use crate::etcd::{Config, Data};
use crate::world::World;

/// What a node was ordered to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    generation: u64,
    role: Role,
}

impl Order {
    /// To begin a new cluster.
    pub(crate) fn begin(generation: u64, cluster: ClusterId, member: MemberId) -> Order {
        Order { generation, role: Role::Begin { cluster, member, made: false } }
    }

    /// To join the one that another node begins.
    pub(crate) fn join(generation: u64) -> Order {
        Order { generation, role: Role::Join }
    }
}

/// What the store holds of other recoveries, and whether it is asked.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Claims<'a> {
    pub(crate) seen: &'a [ClaimSeen],
    pub(crate) without_store: bool,
}

#[derive(Debug, Clone, Copy)]
enum Role {
    /// It begins the new cluster, of what it has.
    Begin {
        cluster: ClusterId,
        member: MemberId,
        /// The new data lies beside the old one, whole.
        made: bool,
    },
    /// It sets aside what it has, and joins.
    Join,
}

impl World {
    /// Most members do not answer, and are called dead. They are not. Those who answer get their orders, as far as nobody is cut off.
    pub(crate) fn recover_by_plan(&mut self, operator: usize) {
        let Some((_, config)) = self.present() else { return };
        let node = self.random.below(self.nodes.len());
        let voters: Vec<usize> = config.voters().map(|voter| voter.node).collect();
        if !voters.contains(&node) || !self.is_recoverable(&config, &voters) {
            return;
        }
        let up: Vec<usize> = voters.iter().copied().filter(|voter| *voter == node || self.nodes[*voter].up).collect();
        let answers: Vec<usize> = up.into_iter().filter(|voter| *voter == node || self.random.permille(350)).collect();
        let Some((source, generation)) = self.choose(&config, &voters, &answers, Claims::default()) else { return };
        let Some(old) = self.nodes[source].data.as_ref().map(|data| data.cluster) else { return };
        for other in voters.iter().filter(|other| !answers.contains(other)) {
            self.power_cut(*other);
            self.nodes[*other].back_at = self.now + 15 + self.random.below(30) as u64;
        }
        for other in voters.iter().filter(|other| **other != source) {
            self.nodes[*other].damaged = true;
        }
        self.dead.extend(voters.iter().map(|other| ((old, *other), self.now)));
        self.cut.clear();
        (self.restored, self.recovered) = (true, Some(source));
        self.tell(
            Some(source),
            format!("operator {operator} recovers the cluster from it, with generation {generation}"),
        );
        let number = u64::from(self.number());
        let (cluster, member) = (ClusterId(0xc000 + number), MemberId(0xa000 + number));
        self.order(source, Order::begin(generation, cluster, member));
        for other in answers.into_iter().filter(|other| *other != source) {
            // The command may be cut off: then it finds out by itself that there is a newer generation.
            if self.random.permille(700) {
                self.order(other, Order::join(generation));
            }
        }
    }

    pub(crate) fn is_recoverable(&self, config: &Config, voters: &[usize]) -> bool {
        let whole = |node: &usize| {
            let it = &self.nodes[*node];
            let known = it.file == self.intended && self.declared(self.intended).contains(node);
            it.data.is_some() && !it.damaged && !it.ledger_unreadable && !self.was_asked(*node) && known
        };
        let quiet = config.members.len() == voters.len() && self.swapped.is_none() && !self.torn_down;
        quiet && voters.len() >= 2 && voters.iter().all(whole) && self.recovered.is_none()
    }

    /// What the decision makes of those who answer: the node to begin with, and the generation. It must hold all that any of them
    /// knows to be committed.
    pub(crate) fn choose(
        &mut self,
        config: &Config,
        voters: &[usize],
        answers: &[usize],
        claims: Claims<'_>,
    ) -> Option<(usize, u64)> {
        let file = Rc::clone(&self.files[self.intended]);
        let seen = |other: &usize| match answers.contains(other) {
            true => self.survivor(*other, config),
            false => silent(),
        };
        let row = |other: &usize| SurveyRow { node: self.nodes[*other].name.clone(), seen: seen(other), serves: false };
        let rows: Vec<SurveyRow> = voters.iter().map(row).collect();
        let declared = self.declared(self.intended);
        let silent = voters.iter().chain(&declared).filter(|other| !answers.contains(other));
        let dead: Vec<String> = silent.map(|other| self.nodes[*other].name.clone()).collect();
        let plan = |evidence: Evidence<'_>, said: Said<'_>| {
            plan_recovery(&file.spec, &rows, &StoreNewest::NotDeclared, evidence, said)
        };
        let fenced = Said { fenced: &dead, without_store: claims.without_store, ..Said::default() };
        let probes: Vec<Probe> = self.probes(voters, answers);
        let unfenced = plan(Evidence::default(), Said { dead: &dead, ..Said::default() });
        let answered = plan(Evidence { probes: &probes, ..Evidence::default() }, fenced);
        // The machines are powered off before the operator states it.
        let recovery = plan(Evidence { claims: claims.seen, ..Evidence::default() }, fenced);
        if unfenced.halt.is_none() && !dead.is_empty() {
            self.break_rule("a cluster is recovered though silent members are not fenced".to_owned());
        }
        if answered.halt.is_none() && !probes.is_empty() {
            self.break_rule("a cluster is recovered though the etcd of an absent member answers".to_owned());
        }
        let Some(Source::Survivor { node, .. }) = recovery.source.filter(|_| recovery.halt.is_none()) else {
            return None;
        };
        let source = self.index_of(&node)?;
        let begun = self.nodes[source].data.as_ref()?;
        let less = |other: &&usize| {
            let known = self.nodes[**other].data.as_ref().map(|data| data.log.iter().take(data.commit));
            known.is_some_and(|known| !known.clone().eq(begun.log.iter().take(known.len())))
        };
        if let Some(other) = answers.iter().find(less).map(|other| self.nodes[*other].name.clone()) {
            self.break_rule(format!("a cluster is recovered from `{node}`, and `{other}` holds more"));
        }
        Some((source, recovery.generation))
    }

    /// The members whose agents are silent, and whose etcd answers.
    fn probes(&self, voters: &[usize], answers: &[usize]) -> Vec<Probe> {
        let silent = voters.iter().filter(|voter| !answers.contains(voter) && self.nodes[**voter].runs);
        let reply = |at: &usize| Reply::Answered { url: format!("http://{}:2379", self.nodes[*at].name) };
        silent
            .map(|at| Probe { from: "operator".to_owned(), member: self.nodes[*at].name.clone(), reply: reply(at) })
            .collect()
    }

    fn survivor(&self, node: usize, config: &Config) -> RowSeen {
        let (it, Some(data)) = (&self.nodes[node], &self.nodes[node].data) else { return silent() };
        RowSeen::Holds(Box::new(Survivor {
            generation: it.ledger.as_ref().map_or(0, |ledger| ledger.generation),
            newest: it.ledger.as_ref().map_or(0, |ledger| ledger.newest().number),
            cluster: data.cluster,
            member: data.member,
            verdict: Verdict::Valid,
            serves: false,
            term: u64::from(data.log.last().map_or(0, |entry| entry.term)),
            index: data.log.len() as u64,
            revision: Some(data.commit as u64),
            hash: None,
            voters: config.voters().map(|voter| (voter.id, self.nodes[voter.node].name.clone())).collect(),
            saw: it.noted.clone(),
        }))
    }

    /// The node writes it down, with the generation, and stops its etcd.
    pub(crate) fn order(&mut self, node: usize, order: Order) {
        let it = &mut self.nodes[node];
        it.order = Some(order);
        (it.up, it.runs, it.leads, it.plan, it.checked, it.snapshot) = (true, false, false, None, None, None);
        (it.halt, it.pausing, it.restarting, it.since) = (None, false, false, None);
        if let (Some(ledger), Role::Begin { .. }) = (&mut it.ledger, order.role) {
            ledger.generation = order.generation;
        }
    }

    /// Goes on with what was ordered. Says whether there was something.
    pub(crate) fn carry(&mut self, node: usize) -> bool {
        let Some(order) = self.nodes[node].order else { return false };
        if self.is_cut_off(node) {
            return true;
        }
        match order.role {
            Role::Join => self.set_aside(node),
            Role::Begin { cluster, member, made: false } => {
                let role = Role::Begin { cluster, member, made: true };
                self.nodes[node].order = Some(Order { role, ..order });
                self.tell(Some(node), "made the data of a new cluster beside the old".to_owned());
            }
            Role::Begin { cluster, member, made: true } => self.begin(node, order.generation, cluster, member),
        }
        true
    }

    fn set_aside(&mut self, node: usize) {
        (self.nodes[node].data, self.nodes[node].snapshot) = (None, None);
        if self.is_cut_off(node) {
            return;
        }
        let it = &mut self.nodes[node];
        if let Some(ledger) = it.ledger.as_ref().filter(|ledger| ledger.state != State::Empty) {
            let mut left = ledger.reset();
            left.generation = 0;
            it.ledger = Some(left);
        }
        if !self.is_cut_off(node) {
            self.nodes[node].order = None;
            self.tell(Some(node), "set aside what it had, to join anew".to_owned());
        }
    }

    /// The ledger names the new cluster before its data is in place.
    fn begin(&mut self, node: usize, generation: u64, cluster: ClusterId, member: MemberId) {
        let ledger = self.nodes[node].ledger.clone().unwrap_or_default();
        let mut ledger = ledger.with(State::Started(Identity { cluster, member, origin: Origin::Restored }));
        (ledger.generation, ledger.confirmed, ledger.learner) = (generation, None, None);
        ledger.peers.clear();
        self.nodes[node].ledger = Some(ledger);
        if self.is_cut_off(node) {
            return;
        }
        let at = self.address_of(node);
        self.nodes[node].data = Some(Data::alone(cluster, member, node, at));
        if !self.is_cut_off(node) {
            self.nodes[node].order = None;
            self.tell(Some(node), format!("holds the data of the new cluster {cluster}"));
        }
    }

    /// A crash: what was written is there, what was in memory is not. It is back at once, since somebody who comes back has to be able
    /// to learn of the recovery.
    fn is_cut_off(&mut self, node: usize) -> bool {
        let cut = !self.is_quiet() && self.random.permille(150);
        if cut {
            let it = &mut self.nodes[node];
            (it.plan, it.checked) = (None, None);
            it.noted.clear();
            self.tell(Some(node), "crashes in the midst of a recovery, and begins anew".to_owned());
        }
        cut
    }
}

fn silent() -> RowSeen {
    RowSeen::Silent("no answer".to_owned())
}
