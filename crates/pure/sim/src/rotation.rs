//! `quorate ca rotate` in a cluster that lives: a folder of authorities with its journal, the command that goes from node to node and is
//! cut off anywhere, and what each node trusts and shows.
//!
//! **Rule:** the command knows what nodes answered and what the journal says, no more; what is lacking and whose turn it is comes
//! from `plan`. Chance for it has a stream of its own.

mod by_hand;

use std::collections::{BTreeMap, BTreeSet};

use quorate_plan::certificates::{
    Authority, Goal, LastOrder, Need, NodeKnows, Others, Role, RotationPhase, Standing, TrustShown, may_follow,
    may_trust, parts_nobody, phase_of_all, strangers,
};

use crate::RotationRule;
use crate::random::Random;
use crate::world::World;

/// An authority, all three kinds of it: they are rotated together here.
pub(crate) type Generation = u32;

/// How long a command waits for nodes, in moments.
const WAIT: u64 = 80;

/// How often an agent asks the others for orders, in a thousand moments: about once a minute.
const FETCHES: usize = 16;

/// The files of a node.
#[derive(Debug, Clone)]
pub(crate) struct Certificates {
    pub(crate) trusts: BTreeSet<Generation>,
    /// Who signed what it shows.
    pub(crate) leaf: Generation,
    /// The last order that it wrote down.
    order: Option<Order>,
}

impl Certificates {
    /// As `ca install` makes them in an empty folder: of the issuing authority, with all that are trusted at the time.
    pub(crate) fn made_by(issuing: Generation, trusted: impl IntoIterator<Item = Generation>) -> Certificates {
        Certificates { trusts: trusted.into_iter().collect(), leaf: issuing, order: None }
    }

    /// Who signed its certificates, of those whom it trusts.
    fn signed_by(&self) -> BTreeMap<String, Option<String>> {
        let by = self.trusts.contains(&self.leaf).then(|| text(self.leaf));
        Role::ALL.map(|role| (role.word().to_owned(), by.clone())).into()
    }
}

/// The folder of authorities, with its journal.
#[derive(Debug)]
pub(crate) struct Authorities {
    phase: RotationPhase,
    number: u64,
    old: Generation,
    new: Generation,
    /// The command that runs.
    command: Option<Command>,
    /// Members that could talk to each other, by their certificates.
    talked: BTreeSet<(u64, u64)>,
    chance: Random,
}

/// A command, from its start until it ends or is killed.
#[derive(Debug)]
struct Command {
    operator: usize,
    /// The file that it was given, and the node whose certificate it asks with.
    file: usize,
    asks_as: usize,
    until: u64,
}

/// What is ordered, and who signs it.
#[derive(Debug, Clone)]
struct Order {
    number: u64,
    trusted: BTreeSet<Generation>,
    signer: Generation,
}

impl Authorities {
    pub(crate) fn new(chance: Random) -> Authorities {
        let (phase, talked) = (RotationPhase::Done, BTreeSet::new());
        Authorities { phase, number: 0, old: 0, new: 0, command: None, talked, chance }
    }

    /// Who signs what is asked for now.
    pub(crate) fn issuing(&self) -> Generation {
        if self.phase == RotationPhase::Trust { self.old } else { self.new }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.phase != RotationPhase::Done
    }

    /// Those that nodes are to trust, the issuing one first.
    fn trusted(&self) -> Vec<Generation> {
        match self.phase {
            RotationPhase::Trust => vec![self.old, self.new],
            RotationPhase::Issue => vec![self.new, self.old],
            RotationPhase::Drop | RotationPhase::Done => vec![self.new],
        }
    }

    /// Those that come with new certificates: both until it is over, since somebody may still show one of the old.
    fn brought_along(&self) -> Vec<Generation> {
        if self.is_open() { vec![self.new, self.old] } else { vec![self.new] }
    }

    /// That of the first phase, which the folder keeps: the key that signed it signs no more.
    fn first_order(&self) -> Order {
        let number = self.number - u64::from(self.phase == RotationPhase::Drop);
        Order { number, trusted: [self.old, self.new].into(), signer: self.old }
    }

    fn order(&self) -> Order {
        Order { number: self.number, trusted: self.trusted().into_iter().collect(), signer: self.issuing() }
    }
}

fn text(generation: Generation) -> String {
    format!("{generation:06}")
}

/// The same for all three kinds.
fn by_kind(trusted: &BTreeSet<Generation>) -> BTreeMap<String, Vec<String>> {
    let prints: Vec<String> = trusted.iter().copied().map(text).collect();
    Authority::ALL.map(|authority| (authority.word().to_owned(), prints.clone())).into()
}

impl World {
    /// Whether a client with the files of `from` and the etcd on `to` accept each other: it reads its own authorities when it starts.
    fn is_let_in(&self, from: usize, to: usize) -> bool {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        from.certificates.trusts.contains(&to.certificates.leaf) && to.started_with.contains(&from.certificates.leaf)
    }

    /// Whether a client on `from` reaches the etcd on `to`.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        self.linked(from, to) && self.is_let_in(from, to)
    }

    /// Whether two members accept each other.
    pub(crate) fn are_peers(&self, a: usize, b: usize) -> bool {
        let trusts = |a: usize, b: usize| self.nodes[a].started_with.contains(&self.nodes[b].certificates.leaf);
        trusts(a, b) && trusts(b, a)
    }

    /// Whether two agents accept each other: they read all of it at each handshake.
    pub(crate) fn are_agents(&self, a: usize, b: usize) -> bool {
        let trusts = |a: usize, b: usize| self.nodes[a].certificates.trusts.contains(&self.nodes[b].certificates.leaf);
        trusts(a, b) && trusts(b, a)
    }

    /// Whether the etcd of a node was started with other trust than its files say now.
    pub(crate) fn is_stale(&self, node: usize) -> bool {
        self.nodes[node].started_with != self.nodes[node].certificates.trusts
    }

    /// Whoever is new in a file has certificates from before, or gets some now.
    pub(crate) fn prepare_newcomers(&mut self, file: usize, members: &crate::etcd::Config) {
        let news = |node: &usize| {
            let member = members.members.iter().any(|member| member.node == *node);
            !member && !self.nodes[*node].runs
        };
        let news: Vec<usize> = self.declared(file).into_iter().filter(news).collect();
        for node in news {
            if self.authorities.number > 0 && self.authorities.chance.permille(500) {
                self.equip_by_hand(node);
            }
        }
    }

    /// Perhaps an operator rotates, or goes on with a rotation that was cut off. One command at a time: the folder is locked.
    pub(crate) fn rotate(&mut self) {
        match self.authorities.command.take() {
            None => self.begin_rotating(),
            Some(command) if !self.calm && self.authorities.chance.permille(15) => {
                self.tell(None, format!("the rotation of operator {} is cut off", command.operator));
            }
            Some(command) if self.now > command.until => {
                self.tell(None, format!("the rotation of operator {} waited for long enough", command.operator));
            }
            Some(command) => self.go_on_rotating(command),
        }
        if self.calm {
            self.equip_left_behind();
            self.restart_rejecting();
        }
    }

    /// Whoever goes on takes the file that there is now.
    pub(crate) fn stop_rotating(&mut self) {
        self.authorities.command = None;
    }

    fn begin_rotating(&mut self) {
        let (open, calm) = (self.authorities.is_open(), self.calm);
        let often = match (open, calm) {
            (true, true) => 500,
            (true, false) => 80,
            (false, true) => 0,
            (false, false) => 10,
        };
        if !self.authorities.chance.permille(often) {
            return;
        }
        let chance = &mut self.authorities.chance;
        let operator = chance.below(2) + 1;
        // One of them may not know of the last file.
        let file = if !calm && chance.permille(150) { chance.below(self.files.len()) } else { self.intended };
        let declared = self.declared(file);
        if declared.is_empty() {
            return;
        }
        let asks_as = declared[self.authorities.chance.below(declared.len())];
        let asks_as = self.asks_for_certificates_as(asks_as);
        let it = &mut self.authorities;
        if !open {
            (it.phase, it.number, it.old, it.new) = (RotationPhase::Trust, it.number + 1, it.new, it.new + 1);
        }
        let (phase, new, until) = (it.phase.word(), it.new, self.now + WAIT);
        it.command = Some(Command { operator, file, asks_as, until });
        let (who, words) = (self.nodes[asks_as].name.clone(), self.files[file].words.clone());
        let what = if open { "goes on rotating" } else { "rotates" };
        self.tell(
            None,
            format!("operator {operator} {what} to authority {new}: {phase}, asking as {who}, with {words}"),
        );
    }

    /// Calm: a person asks with the certificate of any member, and not always with one of those who stay.
    fn asks_for_certificates_as(&mut self, declared: usize) -> usize {
        let members = self.present().filter(|_| self.calm).map(|(_, config)| config.members).unwrap_or_default();
        let at = self.authorities.chance.below(members.len() + 1);
        members.get(at).map_or(declared, |member| member.node)
    }

    /// Looks at all of them, tells one, and looks again.
    fn go_on_rotating(&mut self, command: Command) {
        let trusted: Vec<String> = self.authorities.trusted().into_iter().map(text).collect();
        let (phase, number) = (self.authorities.phase, self.authorities.number);
        let goal = Goal::of(phase, number, Authority::ALL.map(|authority| (authority, trusted.clone())));
        let (mut seen, mut told) = (Vec::new(), Vec::new());
        let nodes = self.asked_by(&command);
        for node in nodes.iter().copied() {
            let standing = self.stands(command.asks_as, node, &goal);
            if !matches!(standing, Standing::Unknown(_)) {
                told.push(self.whom_it_knows(node));
            }
            seen.push((node, standing));
        }
        let declared = |name: &str| nodes.iter().any(|node| self.nodes[*node].name == name);
        let mut strange = strangers(&told, declared).is_none_or(|names| !names.is_empty());
        match self.settings.without_in_rotation {
            Some(RotationRule::EveryNode) => seen.retain(|(_, standing)| !matches!(standing, Standing::Unknown(_))),
            Some(RotationRule::Strangers) => strange = false,
            None => {}
        }
        let all = phase_of_all(seen.iter().map(|(_, standing)| standing), strange);
        if all == RotationPhase::Done {
            return self.advance(command);
        }
        let told = seen.iter().filter_map(|(node, standing)| Some((*node, standing.told_at(all)?)));
        let told: Vec<(usize, Need)> = told.collect();
        if !told.is_empty() {
            let (node, need) = told[self.authorities.chance.below(told.len())];
            self.tell_node(command.asks_as, node, need);
        }
        self.authorities.command = Some(command);
    }

    /// The nodes of the file that the command was given. Calm: where a change of members waits for the rotation, a person gives it a
    /// file that declares those as well who are on their way out.
    fn asked_by(&self, command: &Command) -> Vec<usize> {
        let mut nodes = self.declared(command.file);
        let members = self.present().filter(|_| self.calm).map(|(_, config)| config.members).unwrap_or_default();
        nodes.extend(members.iter().map(|member| member.node));
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The journal is written; what was cut off behind that begins with the next phase.
    fn advance(&mut self, command: Command) {
        let it = &mut self.authorities;
        (it.number, it.phase) = (it.phase.next_number(it.number), it.phase.next());
        let pauses = !self.calm && it.chance.permille(200);
        let phase = it.phase.word();
        if it.is_open() && !pauses {
            let until = self.now + WAIT;
            it.command = Some(Command { until, ..command });
        }
        self.tell(None, format!("every node has done its part: the rotation is in phase {phase}"));
    }

    /// Whether the agent of a node answers a command that shows the certificate of `asks_as`.
    fn answers(&mut self, asks_as: usize, node: usize) -> bool {
        let lost = !self.is_quiet() && self.authorities.chance.permille(30);
        self.nodes[node].up && self.linked(asks_as, node) && self.are_agents(asks_as, node) && !lost
    }

    fn stands(&mut self, asks_as: usize, node: usize, goal: &Goal) -> Standing {
        if !self.answers(asks_as, node) {
            return Standing::Unknown("no answer".to_owned());
        }
        let it = &self.nodes[node];
        let (trusts, signed_by) = (by_kind(&it.certificates.trusts), it.certificates.signed_by());
        let etcd_current = it.runs.then(|| !self.is_stale(node));
        let number = it.certificates.order.as_ref().map_or(0, |order| order.number);
        let shown = TrustShown { trusts: &trusts, signed_by: &signed_by, number, etcd_current };
        goal.lacks(&shown).map_or(Standing::Done, Standing::Lacks)
    }

    /// Whom its file declares, and the members that a quorum confirms to it, or those that it remembers.
    fn whom_it_knows(&self, node: usize) -> NodeKnows {
        let it = &self.nodes[node];
        let declares = self.files[it.file].spec.members.iter().map(|member| member.name.clone()).collect();
        let leader = self.leader_for(node, node).and_then(|leader| self.nodes[leader].data.as_ref());
        if let Some(config) = leader.map(crate::etcd::Data::config) {
            let started = config.members.iter().filter(|member| member.started || !member.learner);
            let names = started.map(|member| self.nodes[member.node].name.clone()).collect();
            return NodeKnows { declares, members: Some(names), confirmed: true };
        }
        let remembered = it.ledger.as_ref().and_then(|ledger| ledger.confirmed.as_ref());
        let members = remembered.map(|confirmed| &confirmed.members);
        let names = members.into_iter().flatten().map(|member| member.name.clone()).collect();
        NodeKnows { declares, members: Some(names), confirmed: false }
    }

    /// A node is told, and does it, unless it is away by now, refuses, or is killed in the midst of it.
    fn tell_node(&mut self, asks_as: usize, node: usize, need: Need) {
        if !self.answers(asks_as, node) {
            return;
        }
        let cut_off = !self.is_quiet() && self.authorities.chance.permille(30);
        match need {
            Need::Order => self.take_order(node, &self.authorities.order(), cut_off),
            Need::Certificates => {
                let issuing = self.authorities.issuing();
                let it = &mut self.nodes[node].certificates;
                // Certificates of an authority that is not trusted here are not installed.
                if it.trusts.contains(&issuing) && it.leaf != issuing {
                    it.leaf = issuing;
                    self.tell(Some(node), format!("shows certificates of authority {issuing}"));
                }
            }
            Need::Hear => self.take_order(node, &self.authorities.first_order(), cut_off),
            Need::Restart => {}
        }
        if cut_off && self.nodes[node].up {
            self.kill_agent(node, "while it is told whom to trust");
        }
    }

    /// Agents ask each other for later orders than their own last one, as for lists of revoked certificates: who was prepared before
    /// an order and joins after it hears of it. An order proves itself, whoever brings it.
    pub(crate) fn fetch_order(&mut self, node: usize) {
        if self.authorities.number == 0 || !self.authorities.chance.permille(FETCHES) {
            return;
        }
        let file = self.nodes[node].file;
        let others: Vec<usize> = self.declared(file).into_iter().filter(|peer| *peer != node).collect();
        let own = self.nodes[node].certificates.order.as_ref().map_or(0, |order| order.number);
        let (mut signed_by, mut told, mut orders) = (Vec::new(), Vec::new(), Vec::new());
        for peer in others {
            if !self.answers(node, peer) {
                signed_by.push(None);
                continue;
            }
            let certificates = &self.nodes[peer].certificates;
            signed_by.push(Some(certificates.signed_by()));
            // One that was cut off before it was written down is in force, and the one before it is not.
            let order = certificates.order.clone().filter(|order| order.trusted == certificates.trusts);
            orders.extend(order.filter(|order| order.number > own));
            told.push(self.whom_it_knows(peer));
        }
        orders.sort_by_key(|order| order.number);
        let spec = std::rc::Rc::clone(&self.files[file]);
        let declared = |name: &str| spec.spec.member(name).is_some();
        let strange = strangers(&told, declared).is_none_or(|names| !names.is_empty());
        let signed_by: Vec<_> = signed_by.iter().map(Option::as_ref).collect();
        for order in orders {
            let (before, after) = (by_kind(&self.nodes[node].certificates.trusts), by_kind(&order.trusted));
            if parts_nobody(&before, &after, Others { signed_by: &signed_by, strange }) {
                self.take_order(node, &order, false);
            }
        }
    }

    fn take_order(&mut self, node: usize, order: &Order, cut_off: bool) {
        let it = &mut self.nodes[node].certificates;
        let last = it.order.as_ref();
        let last = last.map(|last| LastOrder { number: last.number, same: last.trusted == order.trusted });
        let own = [(Role::Peer, order.trusted.contains(&it.leaf))];
        let taken = may_follow(order.number, last).and_then(|()| may_trust(it.trusts.contains(&order.signer), own));
        let words = match taken {
            Ok(()) => {
                it.trusts.clone_from(&order.trusted);
                // Written down last: the order is taken again, and leads to the same.
                if !cut_off {
                    it.order = Some(order.clone());
                }
                format!("trusts {:?} by order {}", order.trusted, order.number)
            }
            Err(why) => format!("refuses order {}: {why:?}", order.number),
        };
        self.tell(Some(node), words);
    }

    /// After every moment: a rotation parts no two voters that could talk to each other.
    pub(crate) fn rule_of_links(&mut self) {
        if self.authorities.number == 0 {
            return;
        }
        for a in 0..self.nodes.len() {
            for b in a + 1..self.nodes.len() {
                let runs = |node: usize| self.nodes[node].data.as_ref().filter(|_| self.nodes[node].runs);
                let (Some(one), Some(other)) = (runs(a), runs(b)) else { continue };
                if one.cluster != other.cluster {
                    continue;
                }
                let (cluster, pair) = (one.cluster, (one.member.0, other.member.0));
                if self.are_peers(a, b) && self.are_agents(a, b) {
                    self.authorities.talked.insert(pair);
                    continue;
                }
                let config = self.committed.get(&cluster).map(|log| crate::etcd::Config::of(log)).unwrap_or_default();
                let votes = |id| config.get(id).is_some_and(|member| !member.learner);
                if votes(one.member) && votes(other.member) && self.authorities.talked.contains(&pair) {
                    let (one, other) = (self.nodes[a].name.clone(), self.nodes[b].name.clone());
                    self.break_rule(format!(
                        "a rotation parts members that could talk to each other: {one} and {other}"
                    ));
                }
            }
        }
    }

    /// How far a rotation is, in a few words.
    pub(crate) fn describe_rotation(&self) -> String {
        let (new, phase) = (self.authorities.new, self.authorities.phase.word());
        if self.authorities.is_open() {
            format!(", rotating to authority {new} in phase {phase}")
        } else {
            String::new()
        }
    }

    /// What a node trusts and shows, where that has ever changed.
    pub(crate) fn describe_trust(&self, node: usize) -> String {
        let it = &self.nodes[node];
        let (trusts, leaf, with) = (&it.certificates.trusts, it.certificates.leaf, &it.started_with);
        let ever = self.authorities.number > 0;
        if ever { format!(", trusts {trusts:?}, shows {leaf}, etcd trusts {with:?}") } else { String::new() }
    }

    /// Whether a rotation is over, and a node has come to its end.
    pub(crate) fn is_rotated(&self, node: usize) -> bool {
        let it = &self.nodes[node];
        let newest: BTreeSet<Generation> = [self.authorities.new].into();
        let files = it.certificates.trusts == newest && it.certificates.leaf == self.authorities.new;
        !self.authorities.is_open() && files && !self.is_stale(node)
    }
}
