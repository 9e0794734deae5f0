//! Calm: what was cut is mended, and a person reads what nodes refuse and follows the way out that they name.

use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::Code;
use quorate_plan::ledger::{Identity, Ledger, Origin, State};

use crate::End;
use crate::etcd::Data;
use crate::files;
use crate::world::World;

impl World {
    /// Faults stop.
    pub(crate) fn make_calm(&mut self) {
        self.calm = true;
        self.tell(None, "from here on nothing goes wrong any more".to_owned());
        self.end_partition();
        self.cut.clear();
        self.store.away = false;
        self.remove_old_copy();
        if let Some((a, b)) = self.swapped {
            for node in [a, b] {
                (self.nodes[node].runs, self.nodes[node].leads) = (false, false);
            }
            self.swap_back();
        }
        for node in &mut self.nodes {
            (node.ledger_unreadable, node.data_unreadable) = (false, false);
            node.back_at = self.now;
        }
        if self.living {
            return self.settle_changes();
        }
        if self.settings.starts_over {
            return self.start_over();
        }
        self.declare_again();
        self.agree();
    }

    fn start_over(&mut self) {
        for node in 0..self.nodes.len() {
            self.power_cut(node);
            self.forget(node);
            self.give_file(node, files::SECOND, "a person who starts over");
        }
    }

    /// Who was taken out for good is declared again: its peers forget the tombstone, and it is reset.
    fn declare_again(&mut self) {
        for node in 0..self.nodes.len() {
            if !self.nodes[node].detached {
                continue;
            }
            let name = self.nodes[node].name.clone();
            for ledger in self.nodes.iter_mut().filter_map(|node| node.ledger.as_mut()) {
                ledger.peers.entry(name.clone()).or_default().tombstone = false;
            }
            self.reset(node, "a person who declares it again");
        }
    }

    /// Everyone gets the same file: that of the cluster that there is, or of a founding that all can promise.
    fn agree(&mut self) {
        if self.living {
            return;
        }
        let file = self.file_for_all();
        for node in 0..self.nodes.len() {
            self.give_file(node, file, "a person");
        }
    }

    fn file_for_all(&mut self) -> usize {
        let declaring = |world: &World, declaration: &str| {
            let is = |file: &usize| world.files[*file].spec.declaration_hash() == declaration;
            (0..world.files.len()).find(is).unwrap_or(files::UNDECLARED)
        };
        let of = |world: &World, cluster| {
            let origin = world.origins.get(&cluster).map(|file| world.files[*file].spec.declaration_hash());
            origin.map_or(files::UNDECLARED, |declaration| declaring(world, &declaration))
        };
        let (mut least, mut promised) = (1, Vec::new());
        let there = self.nodes.iter().filter_map(|node| node.ledger.as_ref()).find_map(|ledger| match &ledger.state {
            State::Started(identity) => Some(identity.cluster),
            State::PendingAdd(add) => Some(add.cluster),
            State::Empty | State::Promised(_) | State::Inited(_) | State::Tombstone(_) => None,
        });
        if let Some(cluster) = there {
            return of(self, cluster);
        }
        for node in &self.nodes {
            let Some(ledger) = &node.ledger else { continue };
            match &ledger.state {
                State::Started(_) | State::PendingAdd(_) => {}
                State::Promised(promise) | State::Inited(promise) => {
                    // Someone has begun: that one is finished.
                    let over = |node: &crate::world::Node| {
                        let dropped = node.ledger.iter().flat_map(|ledger| &ledger.dropped);
                        dropped.map(|dropped| dropped.cluster).any(|cluster| cluster == promise.cluster)
                    };
                    if ledger.began(promise).next().is_some() && !self.nodes.iter().any(over) {
                        return declaring(self, &promise.declaration);
                    }
                    promised.push((promise.bootstrap, promise.declaration.clone()));
                }
                State::Empty | State::Tombstone(_) => {}
            }
            least = ledger.consumed.iter().map(|used| used + 1).fold(least, u64::max);
        }
        promised.sort();
        promised.dedup();
        match promised.as_slice() {
            [] => {}
            [(number, declaration)] if *number >= least => return declaring(self, declaration),
            [.., (number, _)] => least = least.max(number + 1),
        }
        match least {
            0 | 1 => files::FIRST,
            2 => files::SECOND,
            3 => files::THIRD,
            _ => {
                self.hopeless.get_or_insert_with(|| "every founding that was declared has been used".to_owned());
                files::THIRD
            }
        }
    }

    /// A person looks at what nodes say.
    pub(crate) fn help(&mut self) {
        let node = self.random.below(self.nodes.len());
        let Some((halt, _)) = self.nodes[node].halt.clone().filter(|_| !self.nodes[node].runs) else { return };
        let file = &self.files[self.nodes[node].file].spec;
        if file.member(&self.nodes[node].name).is_none() {
            return;
        }
        let other = self.lives_elsewhere(node);
        if other && halt.code == Code::StartDisagree {
            return self.reset(node, "a person");
        }
        if matches!(halt.code, Code::StartRemoved | Code::StartOutdated | Code::GenerationsFork) {
            let ours = self.nodes[node].ledger.as_ref().and_then(|ledger| ledger.ids()).map(|(_, member)| member);
            if ours.is_some() && ours == self.nodes[node].removed_self && halt.code == Code::StartRemoved {
                return self.break_rule("a node that took its own place anew waits for a person".to_owned());
            }
            self.nodes[node].ended_removed = 0;
            return self.reset(node, "a person");
        }
        if halt.code == Code::StartNotOurs {
            return self.adopt(node);
        }
        if halt.code == Code::StartDisagree || halt.why.contains("has been used") || halt.why.contains("declared again")
        {
            self.agree();
        }
    }

    /// Whether another cluster serves than the one that this node knows.
    fn lives_elsewhere(&self, node: usize) -> bool {
        let ours = self.nodes[node].ledger.as_ref().and_then(|ledger| match &ledger.state {
            State::Promised(promise) | State::Inited(promise) => Some(promise.cluster),
            State::Started(identity) => Some(identity.cluster),
            State::PendingAdd(add) => Some(add.cluster),
            State::Empty | State::Tombstone(_) => None,
        });
        let serves = |other: &crate::world::Node| other.runs && other.leads;
        let there = self.nodes.iter().filter(|other| serves(other)).filter_map(|other| other.data.as_ref());
        ours.is_some_and(|ours| there.map(|data| data.cluster).any(|cluster| cluster != ours))
    }

    /// `quorate cluster adopt`, of a dir that is beyond doubt this node's. One that was made for a founding which nobody began is moved away:
    /// the others may found again without it.
    fn adopt(&mut self, node: usize) {
        let Some(Data { cluster, member, made_for, .. }) = self.nodes[node].data else { return };
        if made_for != node {
            return;
        }
        if !self.was_begun(node, cluster) {
            return self.reset(node, "a person");
        }
        let mut ledger = self.nodes[node].ledger.clone().unwrap_or_default();
        ledger = ledger.with(State::Started(Identity { cluster, member, origin: Origin::Adopted }));
        if let Some(bootstrap) = self.files[self.nodes[node].file].spec.bootstrap
            && !ledger.consumed.contains(&bootstrap.id)
        {
            ledger.consumed.push(bootstrap.id);
        }
        self.nodes[node].ledger = Some(ledger);
        self.tell(Some(node), "a person adopts its data".to_owned());
        self.agree();
    }

    /// Whether etcd ran on a cluster, or somebody wrote down that this node starts on it.
    fn was_begun(&self, node: usize, cluster: ClusterId) -> bool {
        let name = &self.nodes[node].name;
        let told = |ledger: &Ledger| ledger.peers.get(name).is_some_and(|it| it.started && it.is_of(cluster));
        let runs = |ledger: &Ledger| matches!(&ledger.state, State::Started(it) if it.cluster == cluster);
        let ledgers = self.nodes.iter().filter_map(|it| it.ledger.as_ref());
        self.committed.contains_key(&cluster) || ledgers.into_iter().any(|ledger| told(ledger) || runs(ledger))
    }

    /// Whether all is as it should be, or waits for a decision that only a person can take.
    pub(crate) fn settled(&self) -> Option<End> {
        if self.living {
            return self.has_settled().then_some(End::Serves);
        }
        let leader = (0..self.nodes.len()).find_map(|node| self.leader_for(node, node));
        if let Some(data) = leader.and_then(|leader| self.nodes[leader].data.as_ref()) {
            let config = data.config();
            let serves = |node: &crate::world::Node| {
                node.up
                    && node.runs
                    && node.data.as_ref().is_some_and(|mine| {
                        mine.cluster == data.cluster
                            && mine.commit + 3 >= data.commit
                            && config.get(mine.member).is_some_and(|me| !me.learner && me.started)
                    })
            };
            if self.nodes.iter().all(serves) && config.members.len() == self.nodes.len() {
                return Some(End::Serves);
            }
        }
        let idle = |node: &crate::world::Node| node.runs || node.halt.is_some();
        let begun = "a founding was begun, some of those who began it lost their memory, and nothing was ever written";
        if self.now > crate::world::PATIENCE && self.forgot_early && self.is_blank() {
            return Some(End::NeedsPerson(begun.to_owned()));
        }
        let patience = self.now > crate::world::PATIENCE;
        match &self.hopeless {
            Some(why) if patience && self.nodes.iter().all(idle) => Some(End::NeedsPerson(why.clone())),
            Some(_) | None => None,
        }
    }
}
