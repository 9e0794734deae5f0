//! The rules: what must hold whatever happens. They see everything, and what they know no planner is told.

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::ledger::{Origin, PeerMemory, State};
use quorate_plan::start::Step;

use crate::etcd::Entry;
use crate::world::{Executing, World};

impl World {
    /// After every moment: one cluster at a time.
    pub(crate) fn rules(&mut self) {
        let leading = self.nodes.iter().filter(|node| node.runs && node.leads).filter_map(|node| node.data.as_ref());
        let mut clusters: Vec<ClusterId> = leading.map(|data| data.cluster).collect();
        clusters.sort_unstable();
        clusters.dedup();
        if let [one, other, ..] = clusters.as_slice() {
            let (one, other) = (*one, *other);
            self.break_rule(format!("two clusters live at once: {one} and {other}"));
        }
    }

    /// A cluster has one history, for ever.
    pub(crate) fn note_committed(&mut self, leader: usize, cluster: ClusterId, log: &[Entry]) {
        let known = self.committed.entry(cluster).or_default();
        let differs = known.iter().zip(log).position(|(a, b)| a != b);
        if let Some(index) = differs {
            let (was, is) = (known.get(index).copied(), log.get(index).copied());
            let what = format!("cluster {cluster} has two histories: entry {} was {was:?} and is {is:?}", index + 1);
            self.tell(Some(leader), "commits another history".to_owned());
            return self.break_rule(what);
        }
        if log.len() > known.len() {
            log.clone_into(known);
        }
    }

    /// Before a step that touches the disk or the members.
    pub(crate) fn before(&mut self, node: usize, executing: &Executing, step: &Step) {
        let touches = !matches!(step, Step::Wait(_) | Step::Refuse(_));
        let it = &self.nodes[node];
        if touches && (it.data_unreadable || it.ledger_unreadable) && executing.at == 0 {
            self.break_rule(format!("something is done where data or ledger cannot be seen: {step}"));
        }
        if executing.saw_learner && matches!(step, Step::RemoveMember(_) | Step::AddLearner) {
            self.break_rule("two changes of members at once".to_owned());
        }
        if executing.saw_rolled_back && matches!(step, Step::Start { .. }) && self.nodes[node].data.is_some() {
            self.break_rule("a disk that was rolled back is started".to_owned());
        }
    }

    /// Before etcd runs.
    pub(crate) fn rule_of_start(&mut self, node: usize, joining: Option<(ClusterId, MemberId)>) {
        let (it, state) = (&self.nodes[node], self.state(node));
        let mut wrong = Vec::new();
        if it.detached {
            wrong.push("a node that was removed for good runs again");
        }
        match (joining, &it.data, &state) {
            (Some(_), None, State::PendingAdd(_)) => {}
            (Some(_), ..) => wrong.push("a server joins that has data, or that nobody added"),
            (None, Some(data), State::Started(identity)) => {
                if (data.cluster, data.member) != (identity.cluster, identity.member) {
                    wrong.push("etcd runs on data that the ledger does not know");
                }
            }
            (None, ..) => wrong.push("etcd runs before the ledger says that it started"),
        }
        if let (None, Some(data)) = (joining, &it.data) {
            if data.corrupt || data.torn {
                wrong.push("etcd runs on damaged data");
            }
            if data.made_for != node {
                wrong.push("etcd runs on another node's data");
            }
        }
        if let (Some((cluster, member)), _) = (joining, ()) {
            let ran = self
                .committed
                .get(&cluster)
                .is_some_and(|log| crate::etcd::Config::of(log).get(member).is_some_and(|member| member.started));
            if ran {
                wrong.push("an id that has run is started without its data");
            }
        }
        let broken = wrong.first().copied();
        if let State::Started(identity) = state
            && identity.origin == Origin::Founded
        {
            self.note_founding(identity.cluster);
        }
        if let Some(broken) = broken {
            self.break_rule(broken.to_owned());
        }
    }

    /// Of one declaration comes one cluster.
    fn note_founding(&mut self, cluster: ClusterId) {
        let number = self.files.iter().find_map(|file| {
            let ids = file.spec.founding_ids().filter(|ids| ids.cluster == cluster);
            ids.and(file.spec.bootstrap).map(|bootstrap| bootstrap.id)
        });
        let Some(number) = number else { return };
        let known = self.foundings.entry(number).or_default();
        known.insert(cluster);
        if known.len() > 1 {
            self.break_rule(format!("two clusters come of founding {number}"));
        }
    }

    /// Before the ledger changes.
    pub(crate) fn rule_of_write(&mut self, node: usize, state: &State) {
        let ledger = self.nodes[node].ledger.clone().unwrap_or_default();
        if let (State::Promised(old) | State::Inited(old), State::Empty) = (&ledger.state, state) {
            let runs = |other: &crate::world::Node| {
                other.ledger.as_ref().is_some_and(
                    |theirs| matches!(&theirs.state, State::Started(identity) if identity.cluster == old.cluster),
                )
            };
            if self.nodes.iter().any(runs) {
                self.break_rule("a node gave up a founding that another one runs".to_owned());
            }
        }
        if let State::Promised(new) = state {
            let holds = |other: &crate::world::Node| {
                let earlier = ledger.dropped.iter().filter(|earlier| earlier.bootstrap < new.bootstrap);
                other.ledger.as_ref().is_some_and(|theirs| match &theirs.state {
                    State::Promised(held) | State::Inited(held) => {
                        earlier.clone().any(|earlier| earlier.cluster == held.cluster)
                    }
                    State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => false,
                })
            };
            if self.nodes.iter().any(holds) {
                self.break_rule("a node promised anew while another one holds the earlier promise".to_owned());
            }
        }
    }

    /// A node joins only the cluster that it belongs to.
    pub(crate) fn rule_of_join(&mut self, node: usize, cluster: ClusterId) {
        let ours = match self.state(node) {
            State::Started(identity) => Some(identity.cluster),
            State::PendingAdd(add) => Some(add.cluster),
            State::Empty | State::Promised(_) | State::Inited(_) | State::Tombstone(_) => None,
        };
        if ours.is_some_and(|ours| ours != cluster) {
            self.break_rule(format!("a node joins cluster {cluster} and belongs to another one"));
        }
    }

    /// An operator's tombstone, at the node and at its peers.
    pub(crate) fn bury(&mut self, node: usize, cluster: ClusterId, member: MemberId) {
        let name = self.nodes[node].name.clone();
        for other in 0..self.nodes.len() {
            let mut ledger = self.nodes[other].ledger.clone().unwrap_or_default();
            if other == node {
                let why = "an operator said so".to_owned();
                let stone = quorate_plan::ledger::Tombstone { cluster, member, why, at_ms: self.now };
                ledger = ledger.with(State::Tombstone(stone));
            } else {
                let memory: &mut PeerMemory = ledger.peers.entry(name.clone()).or_default();
                memory.tombstone = true;
            }
            self.nodes[other].ledger = Some(ledger);
        }
    }
}
