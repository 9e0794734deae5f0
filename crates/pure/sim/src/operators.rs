//! Two operators who change a cluster that lives: each with files of their own, and none of them waits for the other.

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::change::moved_at_once_max;
use quorate_plan::ledger::{
    Confirmed, ConfirmedMember, Identity, Intent, IntentKind, Ledger, Origin, PeerMemory, State,
};

use crate::Settings;
use crate::etcd::Data;
use crate::execute::peer_url;
use crate::files;
use crate::random::Random;
use crate::world::{Node, World};

/// A member that a quorum confirmed long ago.
fn long_confirmed((id, node): &(MemberId, usize)) -> ConfirmedMember {
    ConfirmedMember { id: *id, name: format!("n{}", node + 1), peer_urls: vec![peer_url(*node, 0)], learner: false }
}

impl World {
    /// A cluster that was founded long ago, and machines that are not in it yet.
    pub(crate) fn living(seed: u64, settings: Settings) -> World {
        let mut random = Random::new(seed ^ 0x006c_6976_696e_0067);
        let size = [1, 2, 3, 3, 3, 4, 5][random.below(7)];
        let total = (size + 1 + random.below(2)).min(6);
        let all: Vec<usize> = (0..size).collect();
        let first = files::declaring(&all, &vec![0; total], true, 1);
        let mut nodes: Vec<Node> = (1..=total).map(|number| Node::new(number, 0, 0)).collect();
        if let Some(ids) = first.spec.founding_ids() {
            let members: Vec<(MemberId, usize)> =
                all.iter().filter_map(|node| Some((*ids.members.get(&nodes[*node].name)?, *node))).collect();
            for (member, node) in &members {
                let identity = Identity { cluster: ids.cluster, member: *member, origin: Origin::Founded };
                let mut ledger = Ledger { consumed: vec![1], ..Ledger::default() }.with(State::Started(identity));
                for (other, at) in members.iter().filter(|(_, at)| at != node) {
                    let memory = PeerMemory {
                        started: true,
                        member: Some(*other),
                        cluster: Some(ids.cluster),
                        tombstone: false,
                    };
                    ledger.peers.insert(format!("n{}", at + 1), memory);
                }
                ledger.confirmed = Some(Confirmed { at_ms: 0, members: members.iter().map(long_confirmed).collect() });
                let data = Data::founded(ids.cluster, &members, *member, *node);
                (nodes[*node].ledger, nodes[*node].data) = (Some(ledger), Some(data));
            }
        }
        let mut world = World::with(random, settings, nodes, vec![first]);
        world.living = true;
        world.store.declared = false;
        world.old_etcd = world.random.permille(500);
        if !world.old_etcd {
            for node in &mut world.nodes {
                (node.wants, node.runs_as) = ((1, 30), (1, 30));
            }
        }
        world
    }

    /// Perhaps someone changes something now.
    pub(crate) fn operate(&mut self) {
        if self.calm || !self.random.permille(60) {
            return;
        }
        let operator = self.random.below(2) + 1;
        // What is torn down is soon brought back: there is nothing else to be done with it.
        if self.torn_down && self.random.permille(500) {
            return self.mark_teardown(operator);
        }
        match self.random.below(20) {
            0..8 => self.apply(operator),
            8..11 => self.drain(operator),
            11..15 => self.want_restart(operator, false),
            15..17 => self.want_restart(operator, true),
            17 => self.recover_by_plan(operator),
            18 => self.mark_teardown(operator),
            _ => self.hand_out_again(operator),
        }
    }

    pub(crate) fn declared(&self, file: usize) -> Vec<usize> {
        let spec = &self.files[file].spec;
        (0..self.nodes.len()).filter(|node| spec.member(&self.nodes[*node].name).is_some()).collect()
    }

    /// A new file, handed out node by node; the operator may be cut off in the midst of it.
    fn apply(&mut self, operator: usize) {
        let Some((_, config)) = self.present() else { return };
        if self.recovered.is_some() {
            return;
        }
        let mut wanted = self.declared(self.intended);
        let outside: Vec<usize> = (0..self.nodes.len()).filter(|node| !wanted.contains(node)).collect();
        let kind = self.random.below(6);
        if kind < 4 && !outside.is_empty() {
            wanted.push(outside[self.random.below(outside.len())]);
        }
        if kind >= 2 && wanted.len() > 1 {
            wanted.remove(self.random.below(wanted.len()));
        }
        wanted.sort_unstable();
        let voters: Vec<usize> = config.voters().map(|voter| voter.node).collect();
        let stay = voters.iter().filter(|voter| wanted.contains(voter)).count();
        // What `cluster apply` refuses, nobody hands out.
        if stay == 0 {
            return;
        }
        if !self.move_one(&wanted, &config) {
            return;
        }
        let founding = stay > voters.len() / 2 && self.random.permille(500);
        let number = self.number();
        self.files.push(files::declaring(&wanted, &self.addresses, founding, number));
        let file = self.files.len() - 1;
        let words = self.files[file].words.clone();
        self.tell(None, format!("operator {operator} applies {words}"));
        self.intended = file;
        self.prepare_newcomers(file, &config);
        self.hand_out(file, operator);
    }

    /// Perhaps a machine gets another address with it. `cluster apply` refuses to move so many at once that those who stay could
    /// not find each other; then nobody hands anything out.
    fn move_one(&mut self, wanted: &[usize], config: &crate::etcd::Config) -> bool {
        let before = self.addresses.clone();
        if self.random.permille(250) {
            let node = wanted[self.random.below(wanted.len())];
            self.addresses[node] = self.addresses[node] % 3 + 1;
        }
        if self.may_move(wanted, config) {
            return true;
        }
        self.addresses = before;
        false
    }

    /// Whether `cluster apply` hands out the addresses that operators want.
    fn may_move(&self, wanted: &[usize], config: &crate::etcd::Config) -> bool {
        let moved =
            |voter: &&crate::etcd::Member| wanted.contains(&voter.node) && self.addresses[voter.node] != voter.at;
        // Those that are down, or not started yet where the cluster looks for them, count as well.
        let arriving = |voter: &&crate::etcd::Member| {
            let it = &self.nodes[voter.node];
            let settled = it.runs && it.listens == voter.at && self.address_of(voter.node) == it.listens;
            !moved(voter) && !settled
        };
        // In the plan of `cluster apply` a learner has its vote by then.
        let (now, most) = (config.members.iter().filter(moved).count(), moved_at_once_max(config.members.len()));
        now == 0 || now + config.voters().filter(arriving).count() <= most
    }

    /// Where moving them might keep voters from finding each other, those stay where the cluster looks for them that are there still.
    fn keep_found(&mut self, wanted: &[usize], config: &crate::etcd::Config) {
        if self.may_move(wanted, config) {
            return;
        }
        for voter in config.voters().filter(|voter| self.nodes[voter.node].listens == voter.at) {
            self.addresses[voter.node] = voter.at;
        }
    }

    fn hand_out(&mut self, file: usize, operator: usize) {
        let mut to = self.declared(file);
        let present = self.present().map(|(_, config)| config).unwrap_or_default();
        to.extend(present.members.iter().map(|member| member.node));
        to.sort_unstable();
        to.dedup();
        for node in to {
            if self.random.permille(60) {
                return self.tell(None, format!("operator {operator} is cut off"));
            }
            if self.nodes[node].up && self.nodes[node].file != file {
                self.nodes[node].file = file;
                self.nodes[node].plan = None;
                self.tell(Some(node), format!("operator {operator} gives it the file"));
            }
        }
    }

    /// The operator comes back, and finishes what was cut off.
    fn hand_out_again(&mut self, operator: usize) {
        if self.recovered.is_none() && self.present().is_some() {
            self.hand_out(self.intended, operator);
        }
    }

    /// `quorate cluster drain NODE --leave`.
    fn drain(&mut self, operator: usize) {
        let node = self.random.below(self.nodes.len());
        let it = &self.nodes[node];
        // While it runs, and in the midst of a start; never one that has not been a member.
        let member = matches!(self.state(node), State::Started(_) | State::PendingAdd(_));
        let asked = it.up && !it.ledger_unreadable && member;
        let Some(ledger) = it.ledger.clone().filter(|_| asked && self.recovered.is_none()) else { return };
        let at_ms = self.clock_ms(node);
        let intent = Some(Intent { kind: IntentKind::Leave, why: "drained".to_owned(), at_ms });
        self.nodes[node].ledger = Some(Ledger { intent, ..ledger });
        self.tell(Some(node), format!("operator {operator} asks it to leave"));
    }

    /// Flags, or the release, change on every node.
    fn want_restart(&mut self, operator: usize, release: bool) {
        let what = if release { "another release" } else { "other flags" };
        self.tell(None, format!("operator {operator} wants {what} everywhere"));
        let patch = if self.old_etcd { 16 } else { 30 } + self.random.below(4) as u32;
        let now = self.committed_now();
        for node in &mut self.nodes {
            if release {
                // What its agent has noted for this very release goes on to count: of a wish that was taken back and made again
                // between two reconcile passes it knows nothing.
                if node.wants.1 != patch && node.since.is_none_or(|(wanted, _)| wanted != patch) {
                    node.wished.extend(now.map(|now| (patch, now)));
                }
                node.wants.1 = patch;
            } else {
                node.wants.0 += 1;
            }
        }
    }

    /// `quorate cluster teardown`, and a little later its `--cancel`.
    fn mark_teardown(&mut self, operator: usize) {
        if self.recovered.is_some() {
            return;
        }
        let cancel = self.torn_down;
        let mut reached = Vec::new();
        for node in 0..self.nodes.len() {
            let at_ms = self.clock_ms(node);
            let it = &mut self.nodes[node];
            let reached_it = it.up && !it.ledger_unreadable;
            let Some(ledger) = it.ledger.as_mut().filter(|_| reached_it) else { continue };
            let torn = |intent: &Intent| intent.kind == IntentKind::Teardown;
            if cancel {
                ledger.intent = ledger.intent.take().filter(|intent| !torn(intent));
            } else if ledger.intent.is_none() {
                let why = "the operator said so".to_owned();
                ledger.intent = Some(Intent { kind: IntentKind::Teardown, why, at_ms });
            }
            reached.push(it.name.clone());
        }
        self.torn_down = !cancel;
        let what = if cancel { "brings the cluster back" } else { "tears the cluster down" };
        self.tell(None, format!("operator {operator} {what}: {}", reached.join(" ")));
    }

    /// A new cluster of what one node has.
    pub(crate) fn make_generation(&mut self, node: usize, generation: u64) {
        let number = u64::from(self.number());
        let (cluster, member) = (ClusterId(0xc000 + number), MemberId(0xa000 + number));
        let ledger = self.nodes[node].ledger.clone().unwrap_or_default();
        let mut ledger = ledger.with(State::Started(Identity { cluster, member, origin: Origin::Restored }));
        (ledger.generation, ledger.confirmed, ledger.learner) = (generation, None, None);
        ledger.peers.clear();
        let at = self.address_of(node);
        let it = &mut self.nodes[node];
        it.ledger = Some(ledger);
        it.data = Some(Data::alone(cluster, member, node, at));
        it.listens = at;
        (it.up, it.runs, it.leads, it.plan, it.checked, it.snapshot) = (true, true, true, None, None, None);
        it.since = None;
        self.cut.clear();
        self.restored = true;
        self.recovered = Some(node);
    }

    /// Calm: one file for all, of whom is there and was not asked to leave; and what was torn down is brought back.
    pub(crate) fn settle_changes(&mut self) {
        for node in &mut self.nodes {
            if let Some(ledger) = &mut node.ledger {
                let torn = |intent: &Intent| intent.kind == IntentKind::Teardown;
                ledger.intent = ledger.intent.take().filter(|intent| !torn(intent));
            }
        }
        self.torn_down = false;
        let gone = |node: &usize| self.was_asked(*node) || matches!(self.state(*node), State::Tombstone(_));
        let mut wanted: Vec<usize> = self.declared(self.intended).into_iter().filter(|node| !gone(node)).collect();
        wanted.extend(self.recovered);
        // Of those who are in, one at least stays: one that was asked to leave is asked no longer.
        let newest = self.committed.iter().filter(|(cluster, _)| !self.dead.keys().any(|(dead, _)| dead == *cluster));
        let newest = newest.max_by_key(|(_, log)| log.len()).map(|(_, log)| crate::etcd::Config::of(log));
        let newest = newest.unwrap_or_default();
        let holds = |node: &usize| self.nodes[*node].data.is_some() && !self.nodes[*node].damaged;
        let member = |node: &usize| newest.voters().any(|voter| voter.node == *node);
        let begins = |node: &usize| self.recovered == Some(*node);
        if !wanted.iter().any(|node| begins(node) || holds(node) && member(node)) {
            let mut inside: Vec<usize> = (0..self.nodes.len()).filter(|node| holds(node) && member(node)).collect();
            inside.sort_by_key(|node| std::cmp::Reverse(self.nodes[*node].data.as_ref().map_or(0, |data| data.commit)));
            // Without any, nothing can be settled, and the life shows it.
            wanted.push(inside.first().copied().unwrap_or(0));
        }
        wanted.sort_unstable();
        wanted.dedup();
        for node in &wanted {
            if let Some(ledger) = &mut self.nodes[*node].ledger {
                ledger.intent = None;
            }
        }
        self.keep_found(&wanted, &newest);
        let number = self.number();
        self.files.push(files::declaring(&wanted, &self.addresses, false, number));
        self.intended = self.files.len() - 1;
        for node in 0..self.nodes.len() {
            self.nodes[node].file = self.intended;
            self.nodes[node].plan = None;
        }
        let words = self.files[self.intended].words.clone();
        self.tell(None, format!("a person gives everyone {words}"));
        self.stop_rotating();
    }

    /// Whether the cluster is what the file declares, and whoever is out of it is still.
    pub(crate) fn has_settled(&self) -> bool {
        let Some((leader, config)) = self.present() else { return false };
        let Some(data) = &self.nodes[leader].data else { return false };
        let declared = self.declared(self.intended);
        let serves = |node: &usize| {
            let it = &self.nodes[*node];
            it.up
                && it.runs
                && it.wants == it.runs_as
                && self.is_rotated(*node)
                && it.listens == self.addresses[*node]
                && it.data.as_ref().is_some_and(|mine| {
                    mine.cluster == data.cluster
                        && mine.commit + 3 >= data.commit
                        && config
                            .get(mine.member)
                            .is_some_and(|me| !me.learner && me.started && me.at == self.addresses[*node])
                })
        };
        let outside = (0..self.nodes.len()).filter(|node| !declared.contains(node));
        declared.iter().all(serves)
            && config.members.len() == declared.len()
            && outside.into_iter().all(|node| !self.nodes[node].runs)
    }
}
