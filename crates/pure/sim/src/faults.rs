//! What goes wrong, and what two operators do at once. All of it by chance, and none of it beyond what a majority survives, unless
//! the life is a harsh one.

use quorate_plan::ledger::{Ledger, State};
use quorate_plan::start::Held;

use crate::etcd::Op;
use crate::files;
use crate::world::World;

impl World {
    /// Perhaps something goes wrong now.
    pub(crate) fn fault(&mut self) {
        if self.is_quiet() || !self.random.permille(140) {
            return;
        }
        let node = self.random.below(self.nodes.len());
        if self.living {
            return self.fault_of_living(node);
        }
        match self.random.below(34) {
            0..4 => self.kill_by_fault(node),
            4..7 => self.power_cut(node),
            7..9 => self.kill_etcd(node),
            9..12 => self.cut_or_mend(node),
            12 => self.lose_data(node),
            13 => self.lose_machine(node),
            14 => self.lose_ledger(node),
            15 => self.damage_data(node),
            16..18 => self.take_snapshot(node),
            18 => self.roll_back(node),
            19 => self.hide_data(node),
            20 => self.hide_ledger(node),
            21 => self.swap_disks(node),
            22..27 => self.edit_file(node),
            27 => self.reset_by_operator(node),
            28 => self.detach(node),
            29 => self.recover(node),
            30 => self.store.away = !self.store.away,
            31 | 32 => self.back_up(),
            _ => self.lose_everything(),
        }
    }

    /// What does not take away the file, or the place, that operators are changing.
    fn fault_of_living(&mut self, node: usize) {
        match self.random.below(24) {
            0..5 => self.kill_by_fault(node),
            5..8 => self.power_cut(node),
            8..10 => self.kill_etcd(node),
            10..14 => self.cut_or_mend(node),
            14 => self.lose_data(node),
            15 => self.lose_machine(node),
            16 => self.lose_ledger(node),
            17 => self.damage_data(node),
            18..20 => self.take_snapshot(node),
            20 => self.roll_back(node),
            21 => self.hide_data(node),
            22 => self.hide_ledger(node),
            _ => self.reset_by_operator(node),
        }
    }

    /// A disk may be lost where all the others are whole: then a majority survives whatever is being changed.
    fn may_damage_living(&self, node: usize) -> bool {
        let Some((leader, config)) = self.present() else { return false };
        let Some(data) = &self.nodes[leader].data else { return false };
        let whole = |voter: &crate::etcd::Member| {
            let it = &self.nodes[voter.node];
            let mine = it.data.as_ref().filter(|mine| mine.member == voter.id && mine.cluster == data.cluster);
            // All know of the same voters: one that has not heard of the last change yet counts on those before it.
            let knows = |mine: &&crate::etcd::Data| mine.config().voters().eq(config.voters());
            let mine = mine.filter(knows);
            it.runs && !it.damaged && !it.ledger_unreadable && mine.is_some_and(|mine| mine.synced >= data.commit)
        };
        let voters = config.voters().count();
        let member = config.voters().any(|voter| voter.node == node);
        let quiet = !self.torn_down && self.recovered.is_none() && self.swapped.is_none();
        quiet
            && member
            && voters >= 3
            && voters == config.members.len()
            && config.voters().all(whole)
            && self.nodes.iter().all(|node| !node.damaged)
            && self.others_meet(node, &config)
    }

    /// Whether all voters but `node` find and trust each other, now and after a restart. Two of them may be connected through it alone:
    /// each trusts or reaches it and not the other, since one was moved, or joined with an earlier certificate. Then the cluster
    /// survives the loss of any other member and not of this one.
    fn others_meet(&self, node: usize, config: &crate::etcd::Config) -> bool {
        let others: Vec<&crate::etcd::Member> = config.voters().filter(|voter| voter.node != node).collect();
        let settled =
            |one: &crate::etcd::Member| self.nodes[one.node].listens == one.at && self.address_of(one.node) == one.at;
        others.iter().all(|one| {
            others.iter().filter(|other| other.node > one.node).all(|other| {
                let trusts = self.are_peers(one.node, other.node) && self.are_agents(one.node, other.node);
                trusts && (settled(one) || settled(other))
            })
        })
    }

    /// Nothing goes wrong for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        self.calm || self.now < self.quiet_until
    }

    /// Whether this node may be damaged too.
    fn may_damage(&self, node: usize) -> bool {
        if self.living {
            return self.may_damage_living(node);
        }
        let minority = self.unwhole() < (self.nodes.len() - 1) / 2;
        self.swapped.is_none() && self.recovered.is_none() && !self.nodes[node].damaged && (minority || self.harsh)
    }

    /// How many disks are lost, or never held what the cluster holds.
    fn unwhole(&self) -> usize {
        let there = !self.is_blank();
        self.nodes.iter().filter(|node| node.damaged || (there && node.data.is_none())).count()
    }

    fn note_damage(&mut self, node: usize) {
        self.nodes[node].damaged = true;
        self.forgot_early |= self.is_blank();
        if !self.living && self.unwhole() > (self.nodes.len() - 1) / 2 && self.hopeless.is_none() {
            self.hopeless = Some("more disks are lost than a majority survives".to_owned());
        }
    }

    /// The one that was recovered never goes away altogether: someone who comes back can always learn of it.
    pub(crate) fn is_kept(&self, node: usize) -> bool {
        self.recovered == Some(node) || self.is_begun_on(node)
    }

    fn kill_by_fault(&mut self, node: usize) {
        if self.nodes[node].up && (!self.is_kept(node) || self.nodes[node].leads) {
            self.kill_agent(node, "by chance");
        }
    }

    pub(crate) fn power_cut(&mut self, node: usize) {
        if self.is_kept(node) {
            return;
        }
        let torn = self.random.permille(300);
        let it = &mut self.nodes[node];
        (it.runs, it.leads, it.checked, it.plan) = (false, false, None, None);
        if let Some(data) = &mut it.data {
            data.power_cut(torn);
        }
        it.up = false;
        (it.pausing, it.restarting) = (false, false);
        it.noted.clear();
        it.back_at = self.now + 2 + self.random.below(40) as u64;
        self.tell(Some(node), "the power is cut".to_owned());
    }

    fn kill_etcd(&mut self, node: usize) {
        if self.nodes[node].runs && (!self.is_kept(node) || self.nodes[node].up) {
            let it = &mut self.nodes[node];
            (it.runs, it.leads, it.checked) = (false, false, None);
            self.tell(Some(node), "etcd is killed".to_owned());
        }
    }

    fn cut_or_mend(&mut self, node: usize) {
        if !self.cut.is_empty() && self.random.permille(600) {
            if self.is_parted() {
                return;
            }
            self.cut.clear();
            return self.tell(None, "all links are mended".to_owned());
        }
        if self.is_kept(node) || self.recovered.is_some() {
            return;
        }
        let alone = self.random.permille(400);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if alone || self.random.permille(400) {
                self.cut.insert((node.min(other), node.max(other)));
            }
        }
        self.tell(Some(node), if alone { "is cut off" } else { "loses some of its links" }.to_owned());
    }

    fn lose_data(&mut self, node: usize) {
        if self.nodes[node].data.is_some() && self.may_damage(node) {
            self.power_cut(node);
            self.nodes[node].data = None;
            self.note_damage(node);
            self.tell(Some(node), "its data disk is lost".to_owned());
        }
    }

    /// Disk and ledger; the next machine knows nothing.
    fn lose_machine(&mut self, node: usize) {
        let minority = self.living || self.unwhole() < (self.nodes.len() - 1) / 2;
        if self.may_damage(node) && minority && !self.nodes[node].ledger_unreadable {
            self.power_cut(node);
            self.forget(node);
            self.note_damage(node);
            self.tell(Some(node), "the machine is lost, disk and ledger; a new one takes its name".to_owned());
        }
    }

    pub(crate) fn forget(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        (it.data, it.ledger, it.snapshot) = (None, None, None);
        it.nonce += 1000;
        it.noted.clear();
        self.equip_by_hand(node);
    }

    /// The ledger alone: the data is there, and nobody knows whose it is.
    fn lose_ledger(&mut self, node: usize) {
        let minority = self.living || self.unwhole() < (self.nodes.len() - 1) / 2;
        if self.may_damage(node) && minority && self.nodes[node].data.is_some() && !self.nodes[node].ledger_unreadable {
            self.power_cut(node);
            self.nodes[node].ledger = None;
            self.note_damage(node);
            self.tell(Some(node), "its ledger is lost, and its data is not".to_owned());
        }
    }

    fn damage_data(&mut self, node: usize) {
        if self.nodes[node].data.is_some() && self.may_damage(node) {
            self.power_cut(node);
            if let Some(data) = &mut self.nodes[node].data {
                data.corrupt = true;
            }
            self.note_damage(node);
            self.tell(Some(node), "its data is damaged".to_owned());
        }
    }

    fn take_snapshot(&mut self, node: usize) {
        // Also between the moment that its data was made and its first start.
        let inited = matches!(self.state(node), State::Inited(_)) && self.nodes[node].data.is_some();
        if (self.nodes[node].runs || inited) && self.swapped.is_none() {
            let mut copy = self.nodes[node].data.clone();
            if let Some(data) = &mut copy {
                data.power_cut(false);
            }
            self.nodes[node].snapshot = copy;
            self.nodes[node].snapshot_ledger = self.nodes[node].ledger.clone();
        }
    }

    /// The disk comes back from an old snapshot, alone or with the ledger, after every agent was restarted. What the ledger of this
    /// node, or those of the others, have recorded is all that tells it; if nobody could, nobody could tell.
    fn roll_back(&mut self, node: usize) {
        let Some(old) = self.nodes[node].snapshot.clone() else { return };
        let same = self.nodes[node].data.as_ref().is_some_and(|data| data.member == old.member && !data.corrupt);
        let recorded = |ledger: &Option<Ledger>| {
            let known = ledger.as_ref().and_then(|ledger| ledger.progress_of(old.member));
            known.is_some_and(|known| known.index > old.log.len() as u64)
        };
        let knows = |other: &usize| {
            let it = &self.nodes[*other];
            it.up && it.runs && self.linked(node, *other) && !it.ledger_unreadable && recorded(&it.ledger)
        };
        let it = &self.nodes[node];
        // A ledger that says something else by now is not put back: what it forgets is another fault. But for one of the time before
        // the first start: its data is fresh, and the cluster lists the member as started.
        let same_state = |then: &Ledger, now: &Ledger| match (&then.state, &now.state) {
            (State::Inited(_), State::Started(_)) => then.ids() == now.ids(),
            (then, now) => then == now,
        };
        let comparable = |then: &Ledger, now: &Ledger| {
            same_state(then, now) && (then.generation, &then.intent) == (now.generation, &now.intent)
        };
        let ledger = it.snapshot_ledger.clone().zip(it.ledger.as_ref());
        let ledger = ledger.filter(|(then, now)| comparable(then, now) && !it.ledger_unreadable).map(|(then, _)| then);
        // Every other time, so that no chance is drawn for it.
        let ledger = ledger.filter(|_| self.now.is_multiple_of(2));
        let mut others = (0..self.nodes.len()).filter(|other| *other != node);
        let told = match ledger {
            None => recorded(&it.ledger) && !it.ledger_unreadable,
            Some(_) => self.nodes.len() > 1 && others.all(|other| knows(&other)),
        };
        if !same || !told || !self.may_damage(node) {
            return;
        }
        self.power_cut(node);
        let what = if ledger.is_some() { "its disk and its ledger come" } else { "its disk comes" };
        self.nodes[node].put_back = Some(old.member);
        self.nodes[node].data = Some(old);
        if let Some(ledger) = ledger {
            self.nodes[node].ledger = Some(ledger);
        }
        self.nodes.iter_mut().for_each(|it| it.noted.clear());
        self.nodes[node].back_at = self.now + 1;
        self.quiet_until = self.now + 60;
        self.note_damage(node);
        self.tell(Some(node), format!("{what} back from an old snapshot"));
    }

    fn hide_data(&mut self, node: usize) {
        if !self.nodes[node].runs {
            let hidden = !self.nodes[node].data_unreadable;
            // A place is recorded with the first data. Every other time, so that no chance is drawn for it.
            let recorded = self.nodes[node].data.is_some() && self.state(node) != State::Empty;
            let unmounted = hidden && recorded && self.now.is_multiple_of(2);
            self.nodes[node].data_unreadable = hidden;
            self.nodes[node].unmounted = unmounted;
            self.nodes[node].plan = None;
            let what = match (hidden, unmounted) {
                (true, true) => "the file system of its data is not mounted",
                (true, false) => "its data dir cannot be read",
                (false, _) => "its data dir can be read",
            };
            self.tell(Some(node), what.to_owned());
        }
    }

    fn hide_ledger(&mut self, node: usize) {
        if !self.is_kept(node) && self.nodes[node].ledger.is_some() {
            let hidden = !self.nodes[node].ledger_unreadable;
            self.nodes[node].ledger_unreadable = hidden;
            self.nodes[node].plan = None;
            self.tell(
                Some(node),
                if hidden { "its ledger cannot be read" } else { "its ledger can be read" }.to_owned(),
            );
        }
    }

    fn swap_disks(&mut self, node: usize) {
        if let Some((a, b)) = self.swapped {
            self.power_cut(a);
            self.power_cut(b);
            return self.swap_back();
        }
        let other = (node + 1) % self.nodes.len();
        let whole =
            |node: usize| self.nodes[node].data.is_some() && !self.nodes[node].damaged && !self.nodes[node].detached;
        let known = |node: usize| self.state(node) != State::Empty;
        if other == node || !whole(node) || !whole(other) || !known(node) || !known(other) || self.recovered.is_some() {
            return;
        }
        self.power_cut(node);
        self.power_cut(other);
        self.exchange(node, other);
        self.swapped = Some((node, other));
        self.tell(Some(node), format!("its disk is exchanged with that of {}", self.nodes[other].name));
    }

    fn exchange(&mut self, a: usize, b: usize) {
        let one = self.nodes[a].data.take();
        let other = std::mem::replace(&mut self.nodes[b].data, one);
        self.nodes[a].data = other;
        (self.nodes[a].checked, self.nodes[b].checked) = (None, None);
        (self.nodes[a].plan, self.nodes[b].plan) = (None, None);
    }

    pub(crate) fn swap_back(&mut self) {
        if let Some((a, b)) = self.swapped.take() {
            self.exchange(a, b);
            self.tell(Some(a), "the exchanged disks are where they belong".to_owned());
        }
    }

    /// Two operators, each with a file of their own.
    fn edit_file(&mut self, node: usize) {
        let choice = match self.random.below(10) {
            0..3 => files::FIRST,
            3..5 => files::UNRELATED,
            5..8 => files::SECOND,
            8 => files::OTHER,
            _ => files::UNDECLARED,
        };
        let operator = self.random.below(2) + 1;
        let all = self.random.permille(300);
        for node in (0..self.nodes.len()).filter(|one| all || *one == node).collect::<Vec<_>>() {
            self.give_file(node, choice, &format!("operator {operator}"));
        }
    }

    pub(crate) fn give_file(&mut self, node: usize, file: usize, who: &str) {
        if self.nodes[node].file == file || (self.is_kept(node) && !self.nodes[node].leads) {
            return;
        }
        self.nodes[node].file = file;
        let words = self.files[file].words.clone();
        self.tell(Some(node), format!("{who} gives it the file with {words}"));
        if self.nodes[node].up {
            self.kill_agent(node, "to be started with it");
        }
        self.nodes[node].back_at = self.now + 1;
    }

    fn reset_by_operator(&mut self, node: usize) {
        if self.may_damage(node) && !self.nodes[node].ledger_unreadable && !self.nodes[node].data_unreadable {
            self.note_damage(node);
            self.reset(node, "an operator");
        }
    }

    /// `quorate data reset --yes`.
    pub(crate) fn reset(&mut self, node: usize, who: &str) {
        self.power_cut(node);
        self.take_from_loser(node);
        let file = std::rc::Rc::clone(&self.files[self.nodes[node].file]);
        let it = &mut self.nodes[node];
        (it.data, it.snapshot, it.detached) = (None, None, false);
        it.back_at = self.now + 1;
        if let Some(ledger) = &it.ledger {
            let mut left = ledger.reset();
            if let (State::Started(_), Some(bootstrap)) = (&ledger.state, file.spec.bootstrap)
                && !left.consumed.contains(&bootstrap.id)
            {
                left.consumed.push(bootstrap.id);
            }
            it.ledger = Some(left);
        }
        self.tell(Some(node), format!("{who} resets it"));
    }

    /// An operator takes a member out for good.
    fn detach(&mut self, node: usize) {
        let Some(data) = self.nodes[node].data.clone() else { return };
        let whole = self.nodes.iter().all(|node| !node.damaged && !node.ledger_unreadable);
        let leader = (0..self.nodes.len()).find_map(|through| self.leader_for(through, through));
        let Some(leader) = leader.filter(|leader| *leader != node) else { return };
        if !whole || !self.may_damage(node) || self.nodes.len() < 3 || self.harsh {
            return;
        }
        if self.change_members(leader, Op::Remove(data.member)).is_ok() {
            self.note_damage(node);
            if self.random.permille(500) {
                return self.tell(Some(node), "an operator removes its member, and tells nobody".to_owned());
            }
            self.bury(node, data.cluster, data.member);
            self.power_cut(node);
            self.nodes[node].detached = true;
            self.tell(Some(node), "an operator takes it out for good".to_owned());
        }
    }

    /// An operator takes the others for lost, and makes a cluster of what one node has. They are not lost.
    fn recover(&mut self, node: usize) {
        let whole = self.nodes.iter().all(|node| node.data.is_some() && !node.damaged && !node.ledger_unreadable);
        let ours = matches!(self.state(node), State::Started(_));
        if !whole || !ours || self.nodes.len() != 3 || self.swapped.is_some() || self.recovered.is_some() {
            return;
        }
        for other in (0..self.nodes.len()).filter(|other| *other != node).collect::<Vec<_>>() {
            self.power_cut(other);
            self.nodes[other].back_at = self.now + 15 + self.random.below(30) as u64;
            self.nodes[other].damaged = true;
        }
        let generation = self.nodes[node].ledger.as_ref().map_or(0, |ledger| ledger.newest().number) + 1;
        self.make_generation(node, generation);
        self.tell(Some(node), format!("an operator recovers the cluster from it, as generation {generation}"));
    }

    fn back_up(&mut self) {
        let leader = self.nodes.iter().find(|node| node.runs && node.leads);
        if self.store.declared
            && !self.store.away
            && let Some((node, data)) = leader.and_then(|node| node.data.as_ref().map(|data| (node, data)))
        {
            self.store.chain = Some((data.cluster, data.commit as u64));
            let one = Held { cluster: Some(data.cluster), declared: Some(self.files[node.file].spec.declared()) };
            if !self.store.held.contains(&one) {
                self.store.held.push(one);
            }
            self.tell(None, "a backup is taken".to_owned());
        }
    }

    /// Every machine is lost at once, and there is a backup.
    fn lose_everything(&mut self) {
        let kept = self.store.chain.is_some_and(|(cluster, _)| {
            self.nodes.iter().any(|node| node.data.as_ref().is_some_and(|data| data.cluster == cluster))
        });
        if !self.harsh || !kept || self.swapped.is_some() || self.recovered.is_some() {
            return;
        }
        for node in 0..self.nodes.len() {
            self.power_cut(node);
            self.forget(node);
            self.note_damage(node);
        }
        self.hopeless = Some("every machine is lost, and there is a backup".to_owned());
        // Nobody is left who could know of an earlier founding under the same number, but the store.
        self.foundings.clear();
        let numbers = self.store.held.iter().filter_map(|held| held.declared.as_ref()?.bootstrap);
        self.store.left_of = numbers.max();
        self.store.away = self.random.permille(500);
        self.tell(None, "every machine is lost; new ones take their names".to_owned());
    }
}
