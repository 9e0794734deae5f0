//! The rules: what must hold whatever happens. They see everything, and what they know no planner is told.

use std::collections::BTreeSet;

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::change::Who;
use quorate_plan::ledger::{IntentKind, Origin, PeerMemory, State};
use quorate_plan::start::Step;

use crate::etcd::{Entry, Op};
use crate::world::{Executing, World};

/// The number of a client's write.
fn written(entry: &Entry) -> Option<u32> {
    match entry.op {
        Op::Write(number) => Some(number),
        _ => None,
    }
}

impl World {
    /// After every moment: one cluster at a time.
    pub(crate) fn rules(&mut self) {
        self.rule_of_links();
        let leading = self.nodes.iter().filter(|node| node.runs && node.leads).filter_map(|node| node.data.as_ref());
        let mut clusters: Vec<ClusterId> = leading.map(|data| data.cluster).collect();
        clusters.sort_unstable();
        clusters.dedup();
        if let Some(cluster) = clusters.iter().find(|cluster| self.wiped.contains(cluster)) {
            let cluster = *cluster;
            self.break_rule(format!("cluster {cluster}, which its operator wiped, serves again"));
        }
        let forked = self.rule_of_fork(&clusters);
        if let [one, other, ..] = clusters.as_slice()
            && !forked
        {
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

    /// When all serves: what any cluster acknowledged is there, unless its operator wiped it, more was lost than a majority survives, or a person chose
    /// what to go on with.
    pub(crate) fn rule_of_the_end(&mut self) {
        self.end_fork();
        if self.hopeless.is_some() || self.recovered.is_some() || self.restored {
            return;
        }
        let leader = self.nodes.iter().find(|node| node.runs && node.leads).and_then(|node| node.data.as_ref());
        let Some(data) = leader else { return };
        let serving = data.cluster;
        let held: BTreeSet<u32> = data.log.iter().take(data.commit).filter_map(written).collect();
        let lost = |log: &Vec<Entry>| log.iter().filter_map(written).find(|number| !held.contains(number));
        let kept = self.committed.iter().filter(|(cluster, _)| !self.wiped.contains(cluster));
        let lost = kept.filter_map(|(cluster, log)| Some((*cluster, lost(log)?))).next();
        if let Some((cluster, number)) = lost {
            let what =
                format!("write {number}, which cluster {cluster} acknowledged, is not in {serving}, which serves");
            self.break_rule(what);
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
    }

    /// Before etcd runs.
    pub(crate) fn rule_of_start(&mut self, node: usize, joining: Option<(ClusterId, MemberId)>) {
        let (it, state) = (&self.nodes[node], self.state(node));
        let mut wrong = Vec::new();
        let cluster = joining.map(|(cluster, _)| cluster).or_else(|| it.data.as_ref().map(|data| data.cluster));
        // Whoever asked the others before that starts, and is stopped when it asks again.
        let died = cluster.and_then(|cluster| self.dead.get(&(cluster, node)).copied());
        let unheard = it.heard_nothing || cluster.is_some_and(|cluster| self.cannot_hear_of_winner(node, cluster));
        if died.is_some_and(|died| it.looked_at > died) && !unheard {
            wrong.push("a node that was declared dead runs again, in its old generation");
        }
        let member = it.data.as_ref().map(|data| data.member);
        if joining.is_none() && member.is_some() && it.put_back == member {
            wrong.push("a disk that was rolled back is started");
        }
        let intent = it.ledger.as_ref().and_then(|ledger| ledger.intent.as_ref());
        if intent.is_some_and(|intent| intent.kind == IntentKind::Teardown) {
            wrong.push("a cluster that was torn down is started");
        }
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
        let file = self.origins.get(&cluster).map(|file| &self.files[*file]);
        let number = file.and_then(|file| file.spec.bootstrap).map(|bootstrap| bootstrap.id);
        let Some(number) = number else { return };
        // An old copy of a member may start where no quorum tells it that there is another cluster, and meets nobody.
        if self.wiped.contains(&cluster) {
            return;
        }
        if self.store.left_of.is_some_and(|left| number <= left) {
            return self.break_rule(format!("founding {number} begins with nothing beside its own backup"));
        }
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
        if let (State::Promised(old) | State::Inited(old), State::Promised(new)) = (&ledger.state, state)
            && old.is_sealed()
            && old.nonces != new.nonces
        {
            let runs = |other: &crate::world::Node| {
                let theirs = other.ledger.as_ref().map(|ledger| &ledger.state);
                matches!(theirs, Some(State::Started(identity)) if identity.cluster == old.cluster)
            };
            if self.nodes.iter().any(runs) {
                self.break_rule("a node unsealed what another one runs".to_owned());
            }
        }
        // That a promise is over is recorded as the same promise, also where its data dir was made already: that is no new one.
        let anew = |new: &quorate_plan::ledger::Promise| !matches!(&ledger.state, State::Promised(old) | State::Inited(old) if old.is_same_founding(new));
        if let State::Promised(new) = state
            && anew(new)
        {
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

    /// Before a member is removed by a step of a change.
    pub(crate) fn rule_of_remove(&mut self, node: usize, who: &Who) {
        let Some((leader, config)) = self.present_to(node) else { return };
        let Some(target) = config.voters().find(|voter| Some(voter.id) == who.id).copied() else { return };
        let file = self.nodes[node].file;
        let declared = self.files[file].spec.member(&self.nodes[target.node].name).is_some();
        let same = config.voters().filter(|voter| self.nodes[voter.node].file == file).count();
        let asked = self.was_asked(target.node);
        let broken = match () {
            () if config.voters().count() == 1 => "the last member is removed",
            () if leader == target.node => "a member is removed while it leads",
            () if declared && !asked => "a member is removed that is declared and was not asked to leave",
            () if !asked && same < config.quorum() => "a member is removed by a file that a quorum does not hold",
            () if self.is_one_down(node, &config, target.id) => "a member is removed while another voter is down",
            () => return,
        };
        self.break_rule(broken.to_owned());
    }

    /// Before a second machine with the name of a node takes a step.
    pub(crate) fn rule_of_second(&mut self, of: usize, step: &Step) {
        let Some(member) = self.nodes[of].data.as_ref().filter(|_| self.nodes[of].runs).map(|data| data.member) else {
            return;
        };
        let healthy = self.present().is_some_and(|(leader, config)| {
            config.get(member).is_some() && self.meets(leader, of, &config) && !self.was_asked(of)
        });
        match step {
            Step::RemoveMember(id) if *id == member && healthy => {
                self.break_rule("a member that is healthy is removed for a second machine".to_owned());
            }
            Step::Start { joining: false } if healthy => {
                self.break_rule("two machines run the same member".to_owned());
            }
            _ => {}
        }
    }

    /// Before the cluster is told of another address: etcd would make a voter of a learner.
    pub(crate) fn rule_of_move(&mut self, id: MemberId) {
        let config = self.present().map(|(_, config)| config).unwrap_or_default();
        if config.get(id).is_some_and(|member| member.learner) {
            self.break_rule("the address of a learner is changed".to_owned());
        }
    }

    /// Before a learner is taken out again. One that runs and does not find the cluster, nor is found by it, learns nothing.
    pub(crate) fn rule_of_undo(&mut self, node: usize, who: &Who) {
        let (Some(target), Some((leader, config))) = (self.index_of(&who.node), self.present_to(node)) else { return };
        let it = &self.nodes[target];
        let same = it.data.as_ref().map(|data| data.member) == who.id;
        let runs = it.runs && same && self.reaches(node, target) && self.meets(leader, target, &config);
        let declared = self.files[self.nodes[node].file].spec.member(&who.node).is_some();
        if runs && declared && !self.was_asked(target) {
            self.break_rule("a learner that runs is undone".to_owned());
        }
    }

    /// Before a member stops to start again.
    pub(crate) fn rule_of_restart(&mut self, node: usize, who: &Who, release: Option<&str>) {
        let Some((leader, config)) = self.present_to(node) else { return };
        let member = |one: &usize| config.members.iter().any(|member| member.node == *one);
        let other = |one: &usize| *one != node && member(one) && self.nodes[*one].restarting && !self.nodes[*one].runs;
        // Whose agent says nothing is not known to be out.
        let says = |one: usize| self.now_of(one, node).is_some();
        let kept = |one: &usize| *one != node && member(one) && self.is_kept_up(*one) && says(*one);
        let serving = self.nodes[leader].data.as_ref().map(|data| data.cluster);
        // What was there of this cluster after the last step of one that is still in it, and when the release was wished for.
        let stopped = self.to_be_stored.filter(|(by, ..)| config.get(*by).is_some());
        let it = &self.nodes[node];
        let wished = it.wished.get(&it.wants.1).copied();
        let there = [stopped.map(|(_, cluster, revision)| (cluster, revision)), wished];
        let there = there.into_iter().flatten();
        let there = there.filter(|(cluster, _)| Some(*cluster) == serving).map(|(_, revision)| revision).max();
        let held = self.stored.filter(|(cluster, _)| Some(*cluster) == serving).map(|(_, revision)| revision);
        let backed_up = held.is_some_and(|held| there.is_none_or(|there| held >= there));
        let broken = match () {
            () if (0..self.nodes.len()).any(|one| other(&one)) => "two members restart at once",
            () if (0..self.nodes.len()).any(|one| kept(&one)) => {
                "a member restarts while another one is out for upkeep"
            }
            () if leader == node && config.voters().count() > 1 => "a member restarts while it leads",
            () if who.id.is_some_and(|id| self.is_one_down(node, &config, id)) => {
                "a member restarts while another voter is down"
            }
            () if release.is_some() && !backed_up => "another release is started without a backup",
            () => return,
        };
        self.break_rule(broken.to_owned());
    }

    /// Whether a voter that stays, other than this one, does not run.
    fn is_one_down(&self, node: usize, config: &crate::etcd::Config, but: MemberId) -> bool {
        let spec = &self.files[self.nodes[node].file].spec;
        config.voters().any(|voter| {
            let it = &self.nodes[voter.node];
            let stays = spec.member(&it.name).is_some() && !self.was_asked(voter.node);
            voter.id != but && stays && !it.runs
        })
    }

    /// An operator's tombstone, at the node and at its peers.
    pub(crate) fn bury(&mut self, node: usize, cluster: ClusterId, member: MemberId) {
        let name = self.nodes[node].name.clone();
        for other in 0..self.nodes.len() {
            let mut ledger = self.nodes[other].ledger.clone().unwrap_or_default();
            if other == node {
                let why = "an operator said so".to_owned();
                let at_ms = self.clock_ms(node);
                let stone = quorate_plan::ledger::Tombstone { cluster, member, why, at_ms, undeclared: false };
                ledger = ledger.with(State::Tombstone(stone));
            } else {
                let memory: &mut PeerMemory = ledger.peers.entry(name.clone()).or_default();
                memory.tombstone = true;
            }
            self.nodes[other].ledger = Some(ledger);
        }
    }
}
