//! The agent of a node: looks, plans, has the plan checked, carries it out; and tends an etcd that runs.

use std::collections::BTreeMap;

use quorate_etcd_formats::membership::MemberId;
use quorate_plan::change::{Listing, Restart, heals_alone, note_learner};
use quorate_plan::check::check;
use quorate_plan::ledger::{Confirmed, ConfirmedMember, LedgerSeen, Progress, State};
use quorate_plan::peers::{self, Told};
use quorate_plan::start::{
    ClusterSeen, DataFacts, DataSeen, EndSeen, Health, ListedMember, Observed, PeerAnswer, PeerSeen, PlaceState,
    StoreSeen, Verdict, plan_start, plan_start_without,
};

use crate::etcd::{Config, Data};
use crate::execute::peer_url;
use crate::machines::Itself;
use crate::world::{Executing, World};

impl World {
    /// The agent does one thing.
    pub(crate) fn act(&mut self, node: usize) {
        self.nodes[node].place = self.address_of(node);
        self.fetch_order(node);
        if self.nodes[node].runs {
            self.nodes[node].plan = None;
            if self.random.permille(300) {
                self.tend(node);
            }
            return;
        }
        if self.carry(node) {
            return;
        }
        match self.nodes[node].plan.take() {
            Some(executing) => self.execute(node, executing),
            None if self.random.permille(500) => self.decide(node),
            None => {}
        }
    }

    fn decide(&mut self, node: usize) {
        let nonce = format!("{:016x}", self.nonces.next());
        let seen = Observed { nonce, ..self.look(node) };
        self.nodes[node].looked_at = self.now;
        let cluster = self.nodes[node].data.as_ref().map(|data| data.cluster);
        self.nodes[node].heard_nothing = cluster.is_some_and(|cluster| self.cannot_hear_of_winner(node, cluster));
        let file = std::rc::Rc::clone(&self.files[self.nodes[node].file]);
        let name = self.nodes[node].name.clone();
        let plan = match self.settings.without {
            Some(guard) => plan_start_without(guard, &file.spec, &name, &seen),
            None => plan_start(&file.spec, &name, &seen),
        };
        self.plans += 1;
        if (self.settings.without.is_none() || self.settings.checked)
            && let Err(broken) = check(&file.spec, &name, &seen, &plan)
        {
            self.tell(Some(node), format!("the check objects: {}", broken.join("; ")));
            if self.settings.without.is_none() {
                self.break_rule(format!("the check objects to a plan: {}\n{}", broken.join("; "), plan.render()));
            }
            return;
        }
        let halted = plan.waiting().or(plan.refused()).map(|halt| halt.why.clone());
        if halted.is_none() || halted != self.nodes[node].said {
            let steps: Vec<String> = plan.steps.iter().map(|step| step.to_string()).collect();
            let first = |step: &String| step.lines().next().unwrap_or_default().to_owned();
            let steps: Vec<String> = steps.iter().map(first).collect();
            self.tell(Some(node), format!("plans, because {}: {}", plan.row.text(), steps.join(" · ")));
        }
        self.nodes[node].said = halted;
        let saw_learner = match &seen.cluster {
            ClusterSeen::Confirmed { members, .. } => {
                members.iter().any(|member| member.learner && self.node_of(member) != Some(node))
            }
            ClusterSeen::Unreachable(_) => false,
        };
        let intent = self.nodes[node].ledger.as_ref().and_then(|ledger| ledger.intent.clone());
        self.nodes[node].plan = Some(Executing { plan, at: 0, saw_learner, intent });
    }

    fn node_of(&self, member: &ListedMember) -> Option<usize> {
        let url = member.peer_urls.first()?;
        url.trim_end_matches(":2380").rsplit('.').next()?.parse::<usize>().ok()?.checked_sub(1)
    }

    /// Looks at everything, as an agent does.
    fn look(&self, node: usize) -> Observed {
        let it = &self.nodes[node];
        let itself = Itself {
            data: it.data.as_ref(),
            ledger: it.ledger.as_ref(),
            checked: it.checked.as_ref(),
            data_unreadable: it.data_unreadable,
            unmounted: it.unmounted,
            ledger_unreadable: it.ledger_unreadable,
        };
        self.look_as(node, &itself, Some(it.nonce))
    }

    /// The same on a machine that has the name of a node, and a disk of its own.
    pub(crate) fn look_as(&self, node: usize, itself: &Itself<'_>, nonce: Option<u64>) -> Observed {
        let it = &self.nodes[node];
        // A second machine has a disk of its own, which is mounted.
        let unmounted = itself.data_unreadable && itself.unmounted;
        let data = match itself.data {
            _ if unmounted => DataSeen::Absent,
            _ if itself.data_unreadable => DataSeen::Unknown("input/output error".to_owned()),
            None => DataSeen::Absent,
            Some(data) => DataSeen::There(DataFacts {
                ids: Some((data.cluster, data.member)),
                last_index: Some(data.log.len() as u64),
                last_term: data.log.last().map(|entry| u64::from(entry.term)),
                verdict: itself.checked.cloned().unwrap_or(Verdict::Unchecked),
                readable: None,
                reach: None,
            }),
        };
        let ledger = match itself.ledger {
            _ if itself.ledger_unreadable => LedgerSeen::Unreadable("input/output error".to_owned()),
            None => LedgerSeen::Absent,
            Some(ledger) => LedgerSeen::There(Box::new(ledger.clone())),
        };
        let mut peers = BTreeMap::new();
        for member in self.files[it.file].spec.members.iter().filter(|member| member.name != it.name) {
            let answer = self.index_of(&member.name).and_then(|peer| self.answer(peer, node));
            let silent = || PeerSeen::Unknown("no answer".to_owned());
            peers.insert(member.name.clone(), answer.map_or_else(silent, PeerSeen::Answered));
        }
        let store = match &self.store {
            store if !store.declared => StoreSeen::NotDeclared,
            store if store.away => StoreSeen::Unknown("no answer".to_owned()),
            store => store.chain.map_or(StoreSeen::Empty, |(cluster, revision)| StoreSeen::Chain {
                cluster: Some(cluster),
                revision: Some(revision),
                held: store.held.clone(),
            }),
        };
        let cluster = self.observe_cluster(node);
        let (dir, mount_point, fs_type) = ("/data".to_owned(), "/data".to_owned(), "ext4".to_owned());
        let place = match () {
            () if unmounted && !itself.ledger_unreadable => PlaceState::NotMounted { dir, mount_point, fs_type },
            () => PlaceState::NotCompared,
        };
        let sightings = self.sightings(node, nonce, &cluster);
        let (end, nonce, rotates) = (EndSeen::Absent, String::new(), it.certificates.trusts.len() > 1);
        Observed { data, place, ledger, end, cluster, peers, store, sightings, nonce, rotates }
    }

    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// What the agent of `peer` answers `asker`.
    pub(crate) fn answer(&self, peer: usize, asker: usize) -> Option<PeerAnswer> {
        let (it, who) = (&self.nodes[peer], &self.nodes[asker]);
        if !it.up || !self.linked(peer, asker) || !self.are_agents(peer, asker) || it.ledger_unreadable {
            return None;
        }
        let member = who.ledger.as_ref().and_then(|ledger| ledger.ids()).map(|(_, member)| member);
        let noted = member.and_then(|member| it.noted.get(&member)).copied();
        let mut answer = peers::answer(&it.ledger.clone().unwrap_or_default(), &who.name, member, noted);
        if it.order.is_some() {
            // The generation that is being made here has no id yet.
            answer.generation_of = None;
        }
        Some(answer)
    }

    /// The list that a quorum of the others confirms.
    fn observe_cluster(&self, node: usize) -> ClusterSeen {
        let mut found: Option<(usize, &Data)> = None;
        for through in (0..self.nodes.len()).filter(|through| *through != node) {
            let Some(leader) = self.leader_for(node, through) else { continue };
            let Some(data) = &self.nodes[leader].data else { continue };
            match found {
                Some((_, other)) if other.cluster != data.cluster => {
                    return ClusterSeen::Unreachable("two clusters answer".to_owned());
                }
                _ => found = Some((leader, data)),
            }
        }
        let Some((leader, data)) = found else { return ClusterSeen::Unreachable("no quorum answers".to_owned()) };
        ClusterSeen::Confirmed { cluster: data.cluster, members: self.listed(node, leader, &data.config()) }
    }

    pub(crate) fn listed(&self, asker: usize, leader: usize, config: &Config) -> Vec<ListedMember> {
        let cluster = self.nodes[leader].data.as_ref().map(|data| data.cluster);
        let one = |member: &crate::etcd::Member| {
            let it = &self.nodes[member.node];
            let runs = it.data.as_ref().is_some_and(|data| it.runs && data.member == member.id);
            let same = it.data.as_ref().map(|data| data.cluster) == cluster;
            let health = match self.reaches(asker, member.node) || !it.runs && self.linked(asker, member.node) {
                false => Health::Unknown("no answer".to_owned()),
                true if runs && same && !self.meets(leader, member.node, config) => {
                    Health::Unhealthy("it knows no leader".to_owned())
                }
                true if runs && same => Health::Healthy,
                true => Health::Unhealthy("connection refused".to_owned()),
            };
            ListedMember {
                id: member.id,
                // Founding members have theirs from the beginning.
                name: if member.started || !member.learner { it.name.clone() } else { String::new() },
                peer_urls: vec![peer_url(member.node, member.at)],
                started: member.started,
                learner: member.learner,
                health,
            }
        };
        config.members.iter().map(one).collect()
    }

    /// Beside a running etcd: notes how far others are, keeps the memory of who started, and asks for its vote.
    fn tend(&mut self, node: usize) {
        let Some(mine) = self.nodes[node].data.clone() else { return };
        if let Some(told) = self.told_of_generation(node) {
            let it = &mut self.nodes[node];
            if let Some(ledger) = it.ledger.as_mut().filter(|_| !it.ledger_unreadable) {
                match told {
                    Told::Own(number) => *ledger = ledger.of_generation(number),
                    Told::Newer(newer) => *ledger = ledger.outdated_by(newer),
                }
            }
            if let Told::Own(number) = told {
                return self.tell(Some(node), format!("hears that its cluster is generation {number}"));
            }
            (it.runs, it.leads, it.checked, it.pausing) = (false, false, None, false);
            return self.tell(Some(node), "stops its etcd: a peer has a newer generation".to_owned());
        }
        let Some(leader) = self.leader_for(node, node) else { return self.heal_alone(node) };
        self.record_forks(node);
        let config = self.nodes[leader].data.as_ref().map(Data::config).unwrap_or_default();
        for member in &config.members {
            let it = &self.nodes[member.node];
            let seen = it.data.as_ref().filter(|data| it.runs && data.member == member.id);
            if let Some(index) = seen.filter(|_| self.reaches(node, member.node)).map(|data| data.commit as u64) {
                let known = self.nodes[node].noted.entry(member.id).or_default();
                *known = index.max(*known);
            }
        }
        if self.nodes[node].ledger_unreadable {
            return;
        }
        let answers: Vec<PeerAnswer> = (0..self.nodes.len())
            .filter(|peer| *peer != node)
            .filter_map(|peer| self.answer(peer, node))
            .filter(|answer| answer.founding == quorate_plan::start::PeerFounding::Founded(mine.cluster))
            .collect();
        if self.stops_rolled_back(node, leader, &config) {
            return;
        }
        let seen = self.progress(node, &config);
        let list = self.listed(node, leader, &config);
        let now_ms = self.clock_ms(node);
        let it = &mut self.nodes[node];
        let Some(ledger) = &it.ledger else { return };
        let mut next = note_learner(&peers::remember(ledger, &it.name, &list, &answers), &list, now_ms);
        if self.living {
            next = peers::bury(&next, &self.files[it.file].spec, &list);
        }
        let ids: Vec<MemberId> = config.members.iter().map(|member| member.id).collect();
        next = next.with_progress(&ids, &seen);
        if config.get(mine.member).is_some_and(|me| !me.learner) {
            next.confirmed = Some(confirmed(&list, now_ms));
        }
        it.ledger = Some(next);
        // By what it has applied itself: a leader that is lost takes with it what it alone knew to be committed.
        let votes = |config: &Config| config.get(mine.member).is_some_and(|me| !me.learner);
        let heals = votes(&config) && votes(&mine.config());
        let whole = self.nodes[leader].data.as_ref().is_some_and(|data| data.commit <= mine.synced);
        if heals && whole && self.nodes[node].damaged {
            self.nodes[node].damaged = false;
            self.tell(Some(node), "is whole again".to_owned());
            if self.living && !self.is_forked() && self.nodes.iter().all(|node| !node.damaged) {
                self.recovered = None;
            }
        }
        if !self.living || !self.tend_upkeep(node) {
            self.take_turn(node);
        }
    }

    /// How far members are that can be looked at, and which start that is.
    fn progress(&self, node: usize, config: &Config) -> Vec<Progress> {
        let one = |member: &crate::etcd::Member| {
            let it = &self.nodes[member.node];
            let heard = member.node == node || (it.up && self.linked(node, member.node) && !it.ledger_unreadable);
            let data = it.data.as_ref().filter(|data| it.runs && data.member == member.id)?;
            let start = it.ledger.as_ref().filter(|_| heard)?.last_start;
            let (index, revision) = (data.commit as u64, data.commit as u64);
            let term =
                data.commit.checked_sub(1).and_then(|at| data.log.get(at)).map_or(0, |entry| u64::from(entry.term));
            let seen = Progress { member: member.id, index, term, revision, start, rolled_back: None };
            self.reaches(node, member.node).then_some(seen)
        };
        // Not at every look, as agents do.
        config.members.iter().filter(|_| self.now.is_multiple_of(3)).filter_map(one).collect()
    }

    /// A peer knows that this member was started on an older copy of its data: it stops where the others have a quorum without it.
    fn stops_rolled_back(&mut self, node: usize, leader: usize, config: &Config) -> bool {
        let ledger = self.nodes[node].ledger.clone().unwrap_or_default();
        let mut answers: Vec<(String, PeerAnswer)> = Vec::new();
        for peer in (0..self.nodes.len()).filter(|peer| *peer != node) {
            answers.extend(self.answer(peer, node).map(|answer| (self.nodes[peer].name.clone(), answer)));
        }
        let told = peers::told_of_rollback(&ledger, answers.iter().map(|(peer, answer)| (peer.as_str(), answer)));
        if let Some((_, found)) = told
            && let Some(ledger) = &mut self.nodes[node].ledger
        {
            ledger.rolled_back = Some(found);
        }
        let known = told_or(&self.nodes[node].ledger);
        let list = self.listed(node, leader, config);
        let voters = list.iter().filter(|member| !member.learner);
        let others = voters.clone().filter(|member| self.node_of(member) != Some(node));
        let healthy = others.filter(|member| member.health == Health::Healthy).count();
        if !known || healthy <= voters.count() / 2 {
            return false;
        }
        let it = &mut self.nodes[node];
        (it.runs, it.leads, it.checked, it.pausing) = (false, false, None, false);
        self.tell(Some(node), "stops its etcd: it was started on an older copy of its data".to_owned());
        true
    }

    /// Its etcd knows no leader, and a restart may be what brings it back.
    fn heal_alone(&mut self, node: usize) {
        let due = self.now_of(node, node).and_then(|now| now.restart);
        // Calm: where it gets another release by that, a person does it.
        let by_hand = |restart: Restart| if self.calm { Restart { release: None, ..restart } } else { restart };
        let heals = heals_alone(due.map(by_hand).as_ref(), self.listing(node));
        if self.living && !self.knows_leader(node) && heals {
            let it = &mut self.nodes[node];
            (it.runs, it.leads, it.checked, it.plan, it.restarting) = (false, false, None, None, true);
            self.tell(Some(node), "restarts its etcd, which knows no leader".to_owned());
        }
    }

    /// Where the others look for a member, as a quorum of them reports, or as its own etcd has it.
    fn listing(&self, node: usize) -> Listing {
        let mine = self.nodes[node].data.as_ref();
        let others = (0..self.nodes.len()).find_map(|through| self.leader_for(node, through));
        let others = others.and_then(|leader| self.nodes[leader].data.as_ref());
        let told = others.filter(|data| Some(data.cluster) == mine.map(|mine| mine.cluster));
        let config = told.or(mine).map(Data::config).unwrap_or_default();
        match mine.and_then(|mine| config.get(mine.member)) {
            Some(listed) if listed.at == self.address_of(node) => Listing::AsDeclared,
            None if told.is_some() => Listing::Removed,
            Some(_) | None => Listing::Elsewhere,
        }
    }

    /// What declared peers who can be asked tell of a newer generation of the cluster.
    fn told_of_generation(&self, node: usize) -> Option<Told> {
        let ledger = self.nodes[node].ledger.clone().unwrap_or_default();
        let declared = self.files[self.nodes[node].file].spec.members.iter();
        let peers = declared.filter_map(|member| self.index_of(&member.name)).filter(|peer| *peer != node);
        let told = peers.filter_map(|peer| self.answer(peer, node));
        peers::heed(&ledger, told.map(|it| it.report())).or_else(|| self.late_verdict(node))
    }

    /// The state of a node's ledger.
    pub(crate) fn state(&self, node: usize) -> State {
        self.nodes[node].ledger.as_ref().map(|ledger| ledger.state.clone()).unwrap_or_default()
    }
}

fn confirmed(list: &[ListedMember], at_ms: u64) -> Confirmed {
    let one = |member: &ListedMember| ConfirmedMember {
        id: member.id,
        name: member.name.clone(),
        peer_urls: member.peer_urls.clone(),
        learner: member.learner,
    };
    Confirmed { at_ms, members: list.iter().map(one).collect() }
}

fn told_or(ledger: &Option<quorate_plan::ledger::Ledger>) -> bool {
    ledger.as_ref().is_some_and(|ledger| ledger.own_rollback().is_some())
}
