//! The world: who is there, who reaches whom, what time it is, and what has happened.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::ledger::{Intent, Ledger};
use quorate_plan::start::{Halt, Held, StartPlan, Verdict};

use crate::clocks::Clock;
use crate::copies::Copies;
use crate::etcd::{Data, Entry};
use crate::files::{self, File};
use crate::fork::Forks;
use crate::machines::Second;
use crate::random::Random;
use crate::recovery::Order;
use crate::rotation::{Authorities, Certificates, Generation};
use crate::{End, Settings};

/// How long faults go on.
const TROUBLE: u64 = 360;
/// How long after that everything must have come to an end.
const CALM: u64 = 1500;
/// Who still waits then waits for a person.
pub(crate) const PATIENCE: u64 = TROUBLE + 500;

/// A machine.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) file: usize,
    /// The agent runs.
    pub(crate) up: bool,
    /// It comes back by itself then.
    pub(crate) back_at: u64,
    pub(crate) plan: Option<Executing>,
    /// When its agent last looked at everything before it planned.
    pub(crate) looked_at: u64,
    /// Nothing that it could receive then decided that its cluster lost against another recovery.
    pub(crate) heard_nothing: bool,
    /// What checking the data gave, since etcd last ran.
    pub(crate) checked: Option<Verdict>,
    pub(crate) halt: Option<(Halt, bool)>,
    /// What it last told that it waits for.
    pub(crate) said: Option<String>,
    /// etcd runs on the data.
    pub(crate) runs: bool,
    pub(crate) leads: bool,
    pub(crate) ledger: Option<Ledger>,
    pub(crate) ledger_unreadable: bool,
    pub(crate) data: Option<Data>,
    pub(crate) data_unreadable: bool,
    /// It cannot be read because its file system is not mounted: its directory looks empty.
    pub(crate) unmounted: bool,
    /// The highest index that its agent saw of each member.
    pub(crate) noted: BTreeMap<MemberId, u64>,
    /// How often etcd was started here, as nobody but the simulator knows.
    pub(crate) starts: u32,
    /// An old snapshot of its disk.
    pub(crate) snapshot: Option<Data>,
    /// The ledger at that time.
    pub(crate) snapshot_ledger: Option<Ledger>,
    /// The member whose data was put back to that snapshot.
    pub(crate) put_back: Option<MemberId>,
    /// Its disk has been lost, damaged or exchanged, and it does not vote again yet.
    pub(crate) damaged: bool,
    /// An operator took it out for good.
    pub(crate) detached: bool,
    /// How often etcd ended because its member was removed.
    pub(crate) ended_removed: u32,
    /// The member that it removed itself, to take its place anew.
    pub(crate) removed_self: Option<MemberId>,
    /// It has said that it pauses its etcd.
    pub(crate) pausing: bool,
    /// Until when its etcd is out for upkeep.
    pub(crate) upkeep_until: u64,
    /// It stopped its etcd to start it again.
    pub(crate) restarting: bool,
    /// Flags and patch release that are wanted, and those that etcd runs with.
    pub(crate) wants: (u32, u32),
    /// How far the cluster was when its agent first looked since etcd runs, and the release that was wanted then.
    pub(crate) since: Option<(u32, u64)>,
    /// What it was ordered to do, to recover a cluster, and has not done.
    pub(crate) order: Option<Order>,
    /// How much there was when each release was last wished for, as far as its agent could tell that from an earlier wish.
    pub(crate) wished: BTreeMap<u32, (ClusterId, u64)>,
    pub(crate) runs_as: (u32, u32),
    /// The address at which etcd was last started.
    pub(crate) listens: u8,
    /// The address that the last file gave it which declared it.
    pub(crate) place: u8,
    /// Which machine it is: another one where all was lost.
    pub(crate) nonce: u64,
    /// Whom it trusts and what it shows, by its files; and whom its etcd trusts, by when that was started.
    pub(crate) certificates: Certificates,
    pub(crate) started_with: BTreeSet<Generation>,
}

/// A plan that is being carried out.
#[derive(Debug)]
pub(crate) struct Executing {
    pub(crate) plan: StartPlan,
    pub(crate) at: usize,
    /// Another learner was listed when it was made.
    pub(crate) saw_learner: bool,
    /// What the node was asked for when it was made.
    pub(crate) intent: Option<Intent>,
}

/// The store of backups.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) declared: bool,
    pub(crate) away: bool,
    pub(crate) chain: Option<(ClusterId, u64)>,
    /// Everyone who ever wrote there.
    pub(crate) held: Vec<Held>,
    /// The newest founding whose backup is all that is left.
    pub(crate) left_of: Option<u64>,
}

pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) random: Random,
    /// How many moments have passed. No agent is told.
    pub(crate) now: u64,
    /// The clock of each machine, and what sets them.
    pub(crate) clocks: Vec<Clock>,
    pub(crate) chance: Random,
    pub(crate) calm: bool,
    pub(crate) nodes: Vec<Node>,
    pub(crate) files: Vec<Rc<File>>,
    pub(crate) cut: BTreeSet<(usize, usize)>,
    pub(crate) store: Store,
    /// Disks that were exchanged with each other.
    pub(crate) swapped: Option<(usize, usize)>,
    /// The node that an operator recovered the cluster from.
    pub(crate) recovered: Option<usize>,
    pub(crate) quiet_until: u64,
    /// More may be lost than a majority survives.
    pub(crate) harsh: bool,
    /// A cluster was made anew, from a backup or from what was left: it has a history of its own.
    pub(crate) restored: bool,
    /// More was lost than a majority survives.
    pub(crate) hopeless: Option<String>,
    /// A node lost what it knew before there was a cluster.
    pub(crate) forgot_early: bool,
    pub(crate) next: u32,
    pub(crate) plans: u64,
    /// What was ever committed, by cluster.
    pub(crate) committed: BTreeMap<ClusterId, Vec<Entry>>,
    /// The clusters that were ever run of each founding.
    pub(crate) foundings: BTreeMap<u64, BTreeSet<ClusterId>>,
    pub(crate) story: Vec<String>,
    pub(crate) broken: Option<String>,
    /// The cluster was founded long ago, and operators change it.
    pub(crate) living: bool,
    /// The file that was applied last.
    pub(crate) intended: usize,
    /// Where operators want each machine to be.
    pub(crate) addresses: Vec<u8>,
    /// Its etcd adds nobody while a voter is down.
    pub(crate) old_etcd: bool,
    /// How much of which cluster is in the store.
    pub(crate) stored: Option<(ClusterId, u64)>,
    /// The member that last stopped for another release, and how much there was then.
    pub(crate) to_be_stored: Option<(MemberId, ClusterId, u64)>,
    pub(crate) torn_down: bool,
    /// Nodes that were declared dead, with the cluster of which a newer generation was made.
    pub(crate) dead: BTreeMap<(ClusterId, usize), u64>,
    /// The folder of authorities, and who rotates them.
    pub(crate) authorities: Authorities,
    /// Which machine holds the name of a node, and until when.
    pub(crate) leases: BTreeMap<String, (u64, u64)>,
    /// A machine with the identity of a node that runs, and the chance that there is one.
    pub(crate) second: Option<Second>,
    pub(crate) twins: Random,
    /// The file that each cluster was bootstrapped from.
    pub(crate) origins: BTreeMap<ClusterId, usize>,
    /// Clusters whose operator wiped every node.
    pub(crate) wiped: BTreeSet<ClusterId>,
    /// Old copies of nodes, and the chance of them.
    pub(crate) copies: Copies,
    /// The nonces of promises.
    pub(crate) nonces: Random,
    /// Two recoveries of one cluster, and the chance of them.
    pub(crate) forks: Forks,
}

impl World {
    pub(crate) fn new(seed: u64, settings: Settings) -> World {
        let mut random = Random::new(seed);
        let members = [1, 3, 3, 3, 3, 5][random.below(6)];
        let harsh = random.permille(150);
        let declared = random.permille(400);
        let mixed = random.permille(250);
        let mut nodes = Vec::new();
        for number in 1..=members {
            let file = match random.below(4) {
                0 if mixed => files::OTHER,
                1 if mixed => files::SECOND,
                _ => files::FIRST,
            };
            nodes.push(Node::new(number, file, random.below(40) as u64));
        }
        let mut world = World::with(random, settings, nodes, files::all(members));
        (world.harsh, world.store.declared) = (harsh, declared);
        world
    }

    pub(crate) fn with(random: Random, settings: Settings, nodes: Vec<Node>, files: Vec<Rc<File>>) -> World {
        let addresses = vec![0; nodes.len()];
        let mut chance = Random::new(random.clone().next() ^ 0x0063_6c6f_636b_7300);
        let rotating = Random::new(random.clone().next() ^ 0x0072_6f74_6174_6500);
        let twins = Random::new(random.clone().next() ^ 0x0073_6563_6f6e_6400);
        let copies = Random::new(random.clone().next() ^ 0x0063_6f70_6965_7300);
        let nonces = Random::new(random.clone().next() ^ 0x006e_6f6e_6365_7300);
        let forks = Random::new(random.clone().next() ^ 0x0066_6f72_6b73_0000);
        let clocks = nodes.iter().map(|_| Clock::of_chance(&mut chance)).collect();
        World {
            settings,
            addresses,
            random,
            now: 0,
            clocks,
            chance,
            calm: false,
            nodes,
            files,
            cut: BTreeSet::new(),
            store: Store::default(),
            swapped: None,
            recovered: None,
            quiet_until: 0,
            harsh: false,
            restored: false,
            hopeless: None,
            forgot_early: false,
            next: 1,
            plans: 0,
            committed: BTreeMap::new(),
            foundings: BTreeMap::new(),
            story: Vec::new(),
            broken: None,
            living: false,
            intended: 0,
            old_etcd: false,
            stored: None,
            to_be_stored: None,
            torn_down: false,
            dead: BTreeMap::new(),
            authorities: Authorities::new(rotating),
            leases: BTreeMap::new(),
            second: None,
            twins,
            origins: BTreeMap::new(),
            wiped: BTreeSet::new(),
            copies: Copies::new(copies),
            nonces,
            forks: Forks::new(forks),
        }
    }

    /// Lives: trouble, then calm, until everything serves or waits for a person.
    pub(crate) fn live(&mut self) -> End {
        let words: Vec<String> = self.nodes.iter().map(|node| self.files[node.file].words.clone()).collect();
        self.tell(None, format!("{} nodes begin with: {}", words.len(), words.join("; ")));
        while self.now < TROUBLE && self.broken.is_none() {
            self.moment();
            self.fault();
            if self.living {
                self.operate();
            }
        }
        self.make_calm();
        while self.now < TROUBLE + CALM && self.broken.is_none() {
            for _ in 0..5 {
                self.moment();
            }
            self.help();
            if let Some(end) = self.settled() {
                if end == End::Serves {
                    self.rule_of_the_end();
                }
                return if self.broken.is_some() { End::Broken } else { end };
            }
        }
        if self.broken.is_none() {
            let states: Vec<String> = (0..self.nodes.len()).map(|node| self.describe(node)).collect();
            let rotation = self.describe_rotation();
            self.break_rule(format!("it never came to an end{rotation}: {}", states.join("; ")));
        }
        End::Broken
    }

    /// Everyone does something.
    fn moment(&mut self) {
        self.now += 1;
        self.set_clocks();
        for _ in 0..self.nodes.len() {
            let node = self.random.below(self.nodes.len());
            if self.broken.is_none() && self.nodes[node].up {
                self.act(node);
            }
        }
        for node in 0..self.nodes.len() {
            if !self.nodes[node].up && self.nodes[node].back_at <= self.now {
                self.nodes[node].up = true;
                let words = self.files[self.nodes[node].file].words.clone();
                self.tell(Some(node), format!("the agent starts, with {words}"));
            }
        }
        self.raft();
        self.hold_names();
        self.old_copies();
        if self.living {
            self.rotate();
            self.fork();
        }
        self.rules();
    }

    pub(crate) fn linked(&self, a: usize, b: usize) -> bool {
        a == b || !self.cut.contains(&(a.min(b), a.max(b)))
    }

    pub(crate) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(crate) fn tell(&mut self, node: Option<usize>, what: String) {
        let who = node.map_or("-", |node| self.nodes[node].name.as_str());
        self.story.push(format!("{:>5} {who:<3} {what}", self.now));
    }

    pub(crate) fn break_rule(&mut self, what: String) {
        if self.broken.is_none() {
            self.tell(None, format!("RULE BROKEN: {what}"));
            self.broken = Some(what);
        }
    }

    /// Where a node stands, in a few words.
    pub(crate) fn describe(&self, node: usize) -> String {
        let it = &self.nodes[node];
        let ledger = it.ledger.as_ref().map_or("no ledger", |ledger| ledger.state.word());
        let data = it.data.as_ref().map_or("no data".to_owned(), |data| format!("data of `{}`", data.member));
        let halt = it.halt.as_ref().map_or(String::new(), |(halt, _)| format!(", {}", halt.why));
        let runs = if it.runs { "runs" } else { "does not run" };
        let (place, trust) = (self.describe_place(node), self.describe_trust(node));
        format!("{} {runs} ({ledger}, {data}{halt}{place}{trust})", it.name)
    }

    /// Where an etcd that runs is, whether it leads, and where it looks for whom.
    fn describe_place(&self, node: usize) -> String {
        let it = &self.nodes[node];
        let Some(data) = it.data.as_ref().filter(|_| it.runs) else { return String::new() };
        let one = |member: &crate::etcd::Member| {
            let learns = if member.learner { " (learner)" } else { "" };
            format!("{}@{}{learns}", self.nodes[member.node].name, member.at)
        };
        let members: Vec<String> = data.config().members.iter().map(one).collect();
        let leads = if it.leads { "leads " } else { "" };
        format!(", {leads}at @{} in term {} with {}", it.listens, data.term, members.join(" "))
    }
}

impl Node {
    pub(crate) fn new(number: usize, file: usize, back_at: u64) -> Node {
        Node {
            name: format!("n{number}"),
            file,
            up: false,
            back_at,
            plan: None,
            looked_at: 0,
            heard_nothing: false,
            checked: None,
            halt: None,
            said: None,
            runs: false,
            leads: false,
            ledger: None,
            ledger_unreadable: false,
            data: None,
            data_unreadable: false,
            unmounted: false,
            noted: BTreeMap::new(),
            starts: 0,
            snapshot: None,
            snapshot_ledger: None,
            put_back: None,
            damaged: false,
            detached: false,
            ended_removed: 0,
            removed_self: None,
            pausing: false,
            upkeep_until: 0,
            restarting: false,
            wants: (1, 16),
            runs_as: (1, 16),
            listens: 0,
            place: 0,
            nonce: number as u64,
            certificates: Certificates::made_by(0, [0]),
            started_with: [0].into(),
            since: None,
            wished: BTreeMap::new(),
            order: None,
        }
    }
}
