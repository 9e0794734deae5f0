//! Two isolated recoveries: the quorum is lost, a partition leaves nodes on both sides of it, and an operator on each side recovers what is
//! there. Both make the same generation. Then the partition heals.
//!
//! **Rule:** which of the two loses is for the planner to say. It stops, starts no more, and keeps what it acknowledged until an operator
//! has taken that from it. Chance for it has a stream of its own.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::change::recover::ClaimSeen;
use quorate_plan::fork::{self, Recovered, Report, Sealed, Verdict, decide_late};
use quorate_plan::ledger::{Generation, Ledger};
use quorate_plan::peers::{self, Told};

use crate::etcd::{Config, Entry, Op};
use crate::random::Random;
use crate::recovery::{Claims, Order};
use crate::world::World;

/// How long agents may take to learn of each other once the partition has healed: longer than any of them is down.
const HEARD: u64 = 100;
/// The ids of generations that were claimed in a store are lower than all others.
const UNCLAIMED: u64 = 1 << 63;

/// Two recoveries of one cluster.
#[derive(Debug)]
pub(crate) struct Forks {
    chance: Random,
    fork: Option<Fork>,
    /// What a cluster recorded about itself when it met another one.
    sealed: BTreeMap<(ClusterId, ClusterId), Sealed>,
}

#[derive(Debug)]
struct Fork {
    sides: [Side; 2],
    heals_at: u64,
    /// Both sides can talk to each other.
    healed: bool,
    /// Which of them loses, and since when that is decided.
    lost: Option<(u64, usize)>,
    /// Since when both take writes although they can talk to each other.
    both: Option<u64>,
    /// What the operator took from the data of the loser.
    taken: BTreeSet<u32>,
}

/// What came of one recovery.
#[derive(Debug, Clone, Copy)]
struct Side {
    begins: usize,
    cluster: ClusterId,
    claimed: bool,
}

/// A partition: the nodes of both sides that answer their operator, and one that is down.
struct Partition {
    sides: [Vec<usize>; 2],
    down: Option<usize>,
}

impl Forks {
    pub(crate) fn new(chance: Random) -> Forks {
        Forks { chance, fork: None, sealed: BTreeMap::new() }
    }

    /// The one that loses, once that is decided.
    fn loser(&self) -> Option<(u64, Side)> {
        let fork = self.fork.as_ref()?;
        fork.lost.and_then(|(at, loser)| Some((at, *fork.sides.get(loser)?)))
    }
}

impl World {
    /// Perhaps a cluster is recovered twice now, or the partition heals, or the operator is through with what came of it.
    pub(crate) fn fork(&mut self) {
        match &self.forks.fork {
            None if !self.is_quiet() && self.forks.chance.permille(3) => self.recover_on_both_sides(),
            Some(fork) if !fork.healed && self.now >= fork.heals_at && self.both_have_begun() => {
                self.heal_partition();
            }
            Some(fork) if fork.healed && fork.lost.is_none() => self.decide_fork(),
            Some(_) => self.end_fork(),
            None => {}
        }
    }

    /// Whether nothing may mend the links: operators on both sides are at work.
    pub(crate) fn is_parted(&self) -> bool {
        self.forks.fork.as_ref().is_some_and(|fork| !fork.healed)
    }

    /// Whether two recoveries of one cluster have not been resolved yet.
    pub(crate) fn is_forked(&self) -> bool {
        self.forks.fork.is_some()
    }

    /// Whether it was recovered from this node, and that is not resolved yet.
    pub(crate) fn is_begun_on(&self, node: usize) -> bool {
        self.forks.fork.as_ref().is_some_and(|fork| fork.sides.iter().any(|side| side.begins == node))
    }

    fn recover_on_both_sides(&mut self) {
        let Some((_, config)) = self.present() else { return };
        let voters: Vec<usize> = config.voters().map(|voter| voter.node).collect();
        let alone = self.second.is_none() && self.nodes.iter().all(|it| it.order.is_none());
        if !alone || !self.is_recoverable(&config, &voters) {
            return;
        }
        let Some(partition) = self.partition(&voters) else { return };
        let Some(old) = self.nodes[voters[0]].data.as_ref().map(|data| data.cluster) else { return };
        // One of them may claim the generation in the store; the other one is refused, and goes on without the store.
        let claims = self.forks.chance.below(4);
        let claimed = [claims == 1, claims == 2];
        let Some(chosen) = self.choose_on_both_sides(&config, &voters, &partition, claimed) else { return };
        let lasts = self.now + 15 + self.forks.chance.below(60) as u64;
        self.part(&partition, lasts);
        let sides = chosen.map(|(begins, _)| begins);
        for other in voters.iter().filter(|other| !sides.contains(other)) {
            self.nodes[*other].damaged = true;
        }
        // The one that is down can learn of it when the partition heals.
        let since = |node: usize| if partition.down == Some(node) { u64::MAX } else { self.now };
        self.dead.extend(voters.iter().map(|other| ((old, *other), since(*other))));
        (self.restored, self.recovered) = (true, Some(sides[0]));
        let mut begun = Vec::new();
        for (at, (begins, generation)) in chosen.into_iter().enumerate() {
            begun.push(self.begin_side(at, (begins, generation), &partition.sides[at], claimed[at]));
        }
        if let [one, other] = begun.as_slice() {
            let (sides, taken) = ([*one, *other], BTreeSet::new());
            self.forks.fork = Some(Fork { sides, heals_at: lasts, healed: false, lost: None, both: None, taken });
        }
    }

    /// Neither side has a quorum: half of the voters each, and of an odd number one is down.
    fn partition(&mut self, voters: &[usize]) -> Option<Partition> {
        let mut left = voters.to_vec();
        let mut draw = |left: &mut Vec<usize>| left.remove(self.forks.chance.below(left.len()));
        let down = (left.len() % 2 == 1).then(|| draw(&mut left));
        let mut sides = [Vec::new(), Vec::new()];
        while left.len() >= 2 {
            sides.iter_mut().for_each(|side| side.push(draw(&mut left)));
        }
        let there = !sides[0].is_empty() && voters.iter().all(|voter| self.nodes[*voter].up);
        there.then_some(Partition { sides, down })
    }

    /// What the decision makes of the nodes of each side.
    fn choose_on_both_sides(
        &mut self,
        config: &Config,
        voters: &[usize],
        partition: &Partition,
        claimed: [bool; 2],
    ) -> Option<[(usize, u64); 2]> {
        let [one, other] = &partition.sides;
        let without = |claimed: bool| Claims { seen: &[], without_store: !claimed };
        let first = self.choose(config, voters, one, without(claimed[0]))?;
        let second = self.choose(config, voters, other, without(claimed[1]))?;
        for (at, (begins, generation)) in [first, second].into_iter().enumerate().filter(|(at, _)| claimed[*at]) {
            let node = self.nodes[begins].name.clone();
            let seen = [ClaimSeen { generation, node, at: "now".to_owned(), cluster: None }];
            let with_store = Claims { seen: &seen, without_store: false };
            if self.choose(config, voters, &partition.sides[1 - at], with_store).is_some() {
                self.break_rule("a cluster is recovered though another recovery claimed the generation".to_owned());
            }
        }
        (first.1 == second.1).then_some([first, second])
    }

    fn part(&mut self, partition: &Partition, lasts: u64) {
        let side = |node: usize| match partition.sides.iter().position(|side| side.contains(&node)) {
            Some(side) => side,
            None if partition.down == Some(node) => 2,
            // Those that are no voters are anywhere.
            None => node % 2,
        };
        self.cut.clear();
        for a in 0..self.nodes.len() {
            let others = (a + 1..self.nodes.len()).filter(|b| side(a) != side(*b));
            self.cut.extend(others.map(|b| (a, b)));
        }
        if let Some(down) = partition.down {
            self.power_cut(down);
            self.nodes[down].back_at = lasts + 5 + self.forks.chance.below(30) as u64;
        }
        let names = |side: &Vec<usize>| -> Vec<String> { side.iter().map(|it| self.nodes[*it].name.clone()).collect() };
        let [one, other] = partition.sides.each_ref().map(|side| names(side).join(" "));
        self.tell(None, format!("a partition leaves {one} on one side and {other} on the other"));
    }

    fn begin_side(&mut self, at: usize, (begins, generation): (usize, u64), side: &[usize], claimed: bool) -> Side {
        let how = if claimed { "claimed in the store" } else { "without the store" };
        let operator = at + 1;
        let what = format!("operator {operator} recovers the cluster from it, with generation {generation}, {how}");
        self.tell(Some(begins), what);
        let number = u64::from(self.number());
        let high = if claimed { 0 } else { UNCLAIMED | self.forks.chance.next() };
        let (cluster, member) = (ClusterId(high + 0xc000 + number), MemberId(0xa000 + number));
        self.order(begins, Order::begin(generation, cluster, member));
        for other in side.iter().filter(|other| **other != begins) {
            // The command may be cut off: then it finds out by itself that there is a newer generation.
            if self.forks.chance.permille(700) {
                self.order(*other, Order::join(generation));
            }
        }
        Side { begins, cluster, claimed }
    }

    fn both_have_begun(&self) -> bool {
        let begun = |side: &Side| {
            let it = &self.nodes[side.begins];
            it.order.is_none() && it.data.as_ref().is_some_and(|data| data.cluster == side.cluster)
        };
        self.forks.fork.as_ref().is_some_and(|fork| fork.sides.iter().all(begun))
    }

    /// Calm: both operators come to the end of what they began, and the partition heals.
    pub(crate) fn end_partition(&mut self) {
        let Some(fork) = self.forks.fork.as_ref().filter(|fork| !fork.healed) else { return };
        for node in fork.sides.map(|side| side.begins) {
            while self.carry(node) {}
        }
        self.heal_partition();
    }

    fn heal_partition(&mut self) {
        self.cut.clear();
        self.tell(None, "the partition heals: two recoveries made the same generation".to_owned());
        if let Some(fork) = &mut self.forks.fork {
            fork.healed = true;
        }
        self.decide_fork();
    }

    /// A cluster that has a quorum records about itself, once, whether clients wrote to it since its recovery, when one of its members learns
    /// of another one of its generation.
    pub(crate) fn record_forks(&mut self, node: usize) {
        let Some(mut ledger) = self.nodes[node].ledger.clone().filter(|_| !self.nodes[node].ledger_unreadable) else {
            return;
        };
        let Some(own) = ledger.cluster() else { return };
        let peers = (0..self.nodes.len()).filter(|peer| *peer != node);
        let reports: Vec<Report> = peers.filter_map(|peer| self.answer(peer, node)).map(|it| it.report()).collect();
        for rival in fork::Forks::of(&ledger, &reports).rivals.into_keys() {
            let log = self.committed.get(&own).map_or(&[][..], Vec::as_slice);
            let now = if writes(log).next().is_some() { Sealed::Written } else { Sealed::Unwritten };
            let sealed = *self.forks.sealed.entry((own, rival)).or_insert(now);
            ledger = ledger.with_fork(fork::Fork { rival, sealed });
        }
        self.nodes[node].ledger = Some(ledger);
    }

    /// Calm: a member without a leader, whose cluster can record nothing any more, has waited long enough for the facts about one that serves.
    pub(crate) fn late_verdict(&self, node: usize) -> Option<Told> {
        if !self.calm || self.knows_leader(node) {
            return None;
        }
        let ledger = self.nodes[node].ledger.as_ref()?;
        let own = ledger.cluster()?;
        let peers = self.declared(self.nodes[node].file).into_iter().filter(|peer| *peer != node);
        let reports: Vec<Report> = peers.filter_map(|peer| self.answer(peer, node)).map(|it| it.report()).collect();
        let of = |it: &crate::world::Node, rival| it.data.as_ref().is_some_and(|data| data.cluster == rival);
        let serves = |rival| self.nodes.iter().any(|it| it.runs && it.leads && of(it, rival));
        let mut rivals = fork::Forks::of(ledger, &reports).rivals.into_iter().filter(|(rival, _)| serves(*rival));
        let lost = rivals.find(|(rival, (known, theirs))| {
            let (own, rival) = (Recovered { cluster: own, fact: *known }, Recovered { cluster: *rival, fact: *theirs });
            decide_late(own, rival) == Verdict::Loses
        });
        lost.map(|(rival, _)| Told::Newer(Generation { number: ledger.generation, cluster: Some(rival) }))
    }

    /// Which of the two loses, as the planner says by what the nodes that began them tell each other.
    fn decide_fork(&mut self) {
        let Some(sides) = self.forks.fork.as_ref().map(|fork| fork.sides) else { return };
        let ledger = |side: Side| self.nodes[side.begins].ledger.clone().unwrap_or_default();
        let [one, other] = sides.map(ledger);
        // One that has stopped hears no more of it than it recorded.
        let lost = |own: &Ledger, other: &Ledger| own.is_outdated() || loses(own, other);
        let loser = match (lost(&one, &other), lost(&other, &one)) {
            (true, false) => 0,
            (false, true) => 1,
            (true, true) => return self.break_rule("both of two recoveries stop".to_owned()),
            (false, false) => return,
        };
        let (lost, won) = (sides[loser], sides[1 - loser]);
        if lost.claimed && !won.claimed {
            self.break_rule("a generation that was claimed in the store loses to one that was not".to_owned());
        }
        let recorded = |own: Side, rival: Side| self.forks.sealed.get(&(own.cluster, rival.cluster)).copied();
        let written = (recorded(lost, won), recorded(won, lost)) == (Some(Sealed::Written), Some(Sealed::Unwritten));
        if lost.claimed == won.claimed && written {
            self.break_rule("the only recovery that clients wrote to loses".to_owned());
        }
        self.recovered = Some(won.begins);
        self.dead.values_mut().filter(|since| **since == u64::MAX).for_each(|since| *since = self.now);
        for node in 0..self.nodes.len() {
            let it = &mut self.nodes[node];
            it.damaged |= it.data.as_ref().is_some_and(|data| data.cluster == lost.cluster);
            self.dead.insert((lost.cluster, node), self.now + HEARD);
        }
        if let Some(fork) = &mut self.forks.fork {
            fork.lost = Some((self.now, loser));
        }
    }

    /// Whether nothing that a node of the losing cluster is told decides against it: a rotation may have left it behind, or its cluster
    /// recorded nothing about itself. It has no quorum.
    pub(crate) fn cannot_hear_of_winner(&self, node: usize, cluster: ClusterId) -> bool {
        let Some(ledger) = &self.nodes[node].ledger else { return true };
        let peers = self.declared(self.nodes[node].file).into_iter().filter(|peer| *peer != node);
        let reports = peers.filter_map(|peer| self.answer(peer, node)).map(|it| it.report());
        let decided = matches!(peers::heed(ledger, reports), Some(Told::Newer(_)));
        self.forks.loser().is_some_and(|(_, side)| side.cluster == cluster) && !decided
    }

    /// Whether a node may run a cluster that was recovered twice and does not know yet that it lost.
    pub(crate) fn may_not_know(&self, ledger: &Ledger) -> bool {
        let Some(fork) = &self.forks.fork else { return false };
        let of_it = fork.sides.iter().any(|side| ledger.cluster() == Some(side.cluster));
        let lost = self.forks.loser().map(|(_, side)| side.cluster);
        of_it && !ledger.is_outdated() && (lost.is_none() || lost == ledger.cluster())
    }

    /// `quorate cluster resolve`: the operator takes what is needed from the data of the loser before the node joins the winner.
    pub(crate) fn take_from_loser(&mut self, node: usize) {
        let lost = self.forks.loser().map(|(_, side)| side.cluster);
        let data = self.nodes[node].data.as_ref().filter(|data| Some(data.cluster) == lost);
        let log = data.map(|data| data.log.clone()).unwrap_or_default();
        if let Some(fork) = &mut self.forks.fork {
            fork.taken.extend(writes(&log));
        }
    }

    /// Nobody belongs to the loser any more: what it acknowledged was there to be taken.
    pub(crate) fn end_fork(&mut self) {
        let Some((_, lost)) = self.forks.loser() else { return };
        let of_it = |it: &crate::world::Node| {
            let ledger = it.ledger.as_ref().and_then(Ledger::cluster);
            it.data.as_ref().map(|data| data.cluster) == Some(lost.cluster) || ledger == Some(lost.cluster)
        };
        if self.nodes.iter().any(of_it) {
            return;
        }
        let taken = self.forks.fork.take().map(|fork| fork.taken).unwrap_or_default();
        let acknowledged = self.committed.get(&lost.cluster).map_or(&[][..], Vec::as_slice);
        let missing = writes(acknowledged).find(|write| !taken.contains(write));
        self.tell(None, format!("what cluster {} acknowledged is taken from its data", lost.cluster));
        if let Some(write) = missing {
            self.break_rule(format!(
                "write {write}, which the losing cluster acknowledged, is in no data that it kept"
            ));
        }
    }

    /// After every moment: of two recoveries at most one takes writes, once they can talk to each other. Returns whether these clusters
    /// may lead at once.
    pub(crate) fn rule_of_fork(&mut self, leading: &[ClusterId]) -> bool {
        let now = self.now;
        let Some(fork) = &mut self.forks.fork else { return false };
        let clusters = fork.sides.map(|side| side.cluster);
        let both = fork.healed && clusters.iter().all(|cluster| leading.contains(cluster));
        fork.both = if both { fork.both.or(Some(now)) } else { None };
        let long = fork.both.is_some_and(|since| now > since + HEARD);
        let lost = self.forks.loser().filter(|(at, _)| now > at + HEARD).map(|(_, side)| side.cluster);
        if let Some(lost) = lost.filter(|lost| leading.contains(lost)) {
            self.break_rule(format!("cluster {lost}, which lost to another recovery, takes writes"));
        } else if long {
            self.break_rule("both of two recoveries take writes".to_owned());
        }
        leading.iter().all(|cluster| clusters.contains(cluster))
    }
}

/// Whether the cluster of a ledger stops when it learns of that of another one.
fn loses(ledger: &Ledger, other: &Ledger) -> bool {
    let report = Report { newest: other.newest(), cluster: other.cluster(), forks: Some(other.forks.clone()) };
    matches!(peers::heed(ledger, [report]), Some(Told::Newer(_)))
}

/// The writes of clients.
fn writes(log: &[Entry]) -> impl Iterator<Item = u32> {
    log.iter().filter_map(|entry| match entry.op {
        Op::Write(number) => Some(number),
        _ => None,
    })
}
