//! Takes the steps of a plan, one at a time: each may be cut off before it, in its midst, or after it and before anyone knows.

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::ledger::{Identity, Origin, PendingAdd, State};
use quorate_plan::peers;
use quorate_plan::start::{Step, Verdict};

use crate::etcd::{Data, Op};
use crate::world::{Executing, World};

/// What came of a step.
enum Did {
    /// The next one.
    On,
    /// Look again.
    Again(String),
}

impl World {
    pub(crate) fn execute(&mut self, node: usize, mut executing: Executing) {
        let Some(step) = executing.plan.steps.get(executing.at).cloned() else {
            return;
        };
        let asked = self.nodes[node].ledger.as_ref().and_then(|ledger| ledger.intent.as_ref());
        if asked != executing.intent.as_ref() {
            return self.tell(Some(node), "looks again: it was asked for something else".to_owned());
        }
        if !self.is_quiet() && self.random.permille(15) {
            return self.kill_agent(node, &format!("before this: {step}"));
        }
        self.before(node, &executing, &step);
        let did = self.step(node, &step);
        if !self.is_quiet() && self.random.permille(15) {
            return self.kill_agent(node, &format!("after this: {step}"));
        }
        match did {
            Did::On => {
                executing.at += 1;
                if executing.at < executing.plan.steps.len() {
                    self.nodes[node].plan = Some(executing);
                }
            }
            Did::Again(why) => self.tell(Some(node), format!("cannot go on: {why}")),
        }
    }

    pub(crate) fn kill_agent(&mut self, node: usize, when: &str) {
        // Whoever has not heard of the recovery must be able to learn of it.
        if self.living && self.is_kept(node) && !self.all_have_heard_of(node) {
            return;
        }
        self.nodes[node].up = false;
        self.nodes[node].plan = None;
        self.nodes[node].checked = None;
        self.nodes[node].noted.clear();
        self.nodes[node].since = None;
        (self.nodes[node].pausing, self.nodes[node].upkeep_until) = (false, 0);
        self.nodes[node].back_at = self.now + 1 + self.random.below(30) as u64;
        let when = when.lines().next().unwrap_or_default().to_owned();
        self.tell(Some(node), format!("the agent is killed {when}"));
    }

    /// Whether everybody who could run an older generation than this node knows that there is a newer one.
    fn all_have_heard_of(&self, node: usize) -> bool {
        let newest = |it: &crate::world::Node| it.ledger.as_ref().map_or(0, |ledger| ledger.newest().number);
        let generation = newest(&self.nodes[node]);
        let heard = |it: &crate::world::Node| {
            let unsure = it.ledger.as_ref().is_some_and(|ledger| self.may_not_know(ledger));
            !it.runs && newest(it) >= generation && !unsure
        };
        self.nodes.iter().all(|it| it.data.is_none() || heard(it) || it.name == self.nodes[node].name)
    }

    fn step(&mut self, node: usize, step: &Step) -> Did {
        match step {
            Step::Wait(halt) => self.halt(node, Some((halt.clone(), false))),
            Step::Refuse(halt) => self.halt(node, Some((halt.clone(), true))),
            Step::Validate(_) => {
                let verdict = self.nodes[node].data.as_ref().map(|data| match data {
                    Data { corrupt: true, .. } => Verdict::Corrupt("a page that cannot be read".to_owned()),
                    Data { torn: true, .. } => Verdict::RepairableTail("a torn record".to_owned()),
                    _ => Verdict::Valid,
                });
                self.nodes[node].checked = verdict;
                Did::On
            }
            Step::RepairTail => {
                if let Some(data) = &mut self.nodes[node].data {
                    data.torn = false;
                }
                self.nodes[node].checked = Some(Verdict::Valid);
                Did::On
            }
            Step::Archive => {
                self.nodes[node].data = None;
                self.nodes[node].checked = None;
                Did::On
            }
            Step::Restore { revision, .. } => self.restore(node, *revision),
            Step::Init { cluster, member } => self.init(node, *cluster, *member),
            Step::Write(state) => self.write(node, state.clone()),
            Step::WriteGeneration(number) => self.note(node, |ledger| *ledger = ledger.of_generation(*number)),
            Step::WriteRolledBack(it, _) => self.note(node, |ledger| ledger.rolled_back = Some(*it)),
            Step::WriteOutdated(newer) => self.note(node, |ledger| *ledger = ledger.outdated_by(*newer)),
            Step::TellPeers => self.tell_peers(node),
            Step::RemoveMember(id) => self.change(node, Op::Remove(*id)).map_or_else(Did::Again, |_| Did::On),
            Step::AddLearner => self.add_learner(node),
            Step::Start { joining } => self.start(node, *joining),
            // Asked for beside a running etcd.
            Step::Promote => Did::On,
        }
    }

    fn halt(&mut self, node: usize, halt: Option<(quorate_plan::start::Halt, bool)>) -> Did {
        self.nodes[node].halt = halt;
        Did::On
    }

    /// Durable when it returns; cut off before that, nothing of it is there.
    fn write(&mut self, node: usize, state: State) -> Did {
        if self.nodes[node].ledger_unreadable {
            return Did::Again("the ledger cannot be read".to_owned());
        }
        let ledger = self.nodes[node].ledger.clone().unwrap_or_default();
        let next = ledger.with(state);
        self.rule_of_write(node, &next.state);
        self.nodes[node].ledger = Some(next);
        Did::On
    }

    fn note(&mut self, node: usize, with: impl FnOnce(&mut quorate_plan::ledger::Ledger)) -> Did {
        if self.nodes[node].ledger_unreadable {
            return Did::Again("the ledger cannot be read".to_owned());
        }
        with(self.nodes[node].ledger.get_or_insert_default());
        Did::On
    }

    fn init(&mut self, node: usize, cluster: ClusterId, member: MemberId) -> Did {
        let file = std::rc::Rc::clone(&self.files[self.nodes[node].file]);
        let nonces = match self.state(node) {
            State::Promised(promise) | State::Inited(promise) => promise.nonces,
            State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => Default::default(),
        };
        let Some(ids) = file.spec.founding_ids_of(&nonces).filter(|ids| ids.cluster == cluster) else {
            return Did::Again("the file declares another founding".to_owned());
        };
        if self.nodes[node].data.is_some() || self.nodes[node].data_unreadable {
            return Did::Again("there is data already".to_owned());
        }
        let members: Vec<(MemberId, usize)> =
            ids.members.iter().filter_map(|(name, id)| self.index_of(name).map(|node| (*id, node))).collect();
        self.nodes[node].data = Some(Data::founded(cluster, &members, member, node));
        self.origins.insert(cluster, self.nodes[node].file);
        self.nodes[node].checked = Some(Verdict::Valid);
        Did::On
    }

    /// A member of its own, with all that the backup holds, in a new cluster.
    fn restore(&mut self, node: usize, revision: u64) -> Did {
        let number = self.number();
        let (cluster, member) = (ClusterId(0xc000 + u64::from(number)), MemberId(0xa000 + u64::from(number)));
        let identity = Identity { cluster, member, origin: Origin::Restored };
        let Did::On = self.write(node, State::Started(identity)) else { return Did::Again("no ledger".to_owned()) };
        self.nodes[node].data = Some(Data::alone(cluster, member, node, self.address_of(node)));
        self.nodes[node].checked = None;
        self.restored = true;
        self.tell(Some(node), format!("is restored to revision {revision}, as cluster {cluster}"));
        Did::On
    }

    /// Each peer writes it down, or says no, or is not there; an answer may get lost.
    fn tell_peers(&mut self, node: usize) -> Did {
        let Some((ledger, (cluster, member))) =
            self.nodes[node].ledger.clone().and_then(|ledger| ledger.ids().map(|ids| (ledger, ids)))
        else {
            return Did::Again("the ledger names no member".to_owned());
        };
        let (declared, declaration) = match &ledger.state {
            State::Promised(promise) | State::Inited(promise) => {
                (promise.members.clone(), Some(promise.declaration.clone()))
            }
            State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => (Vec::new(), None),
        };
        let name = self.nodes[node].name.clone();
        let others = declared.iter().filter(|peer| **peer != name);
        let others: Vec<usize> = others.filter_map(|peer| self.index_of(peer)).collect();
        for peer in others {
            let who = self.nodes[peer].name.clone();
            if !self.nodes[peer].up || !self.linked(node, peer) || self.nodes[peer].ledger_unreadable {
                return Did::Again(format!("{who} does not answer"));
            }
            let theirs = self.nodes[peer].ledger.clone().unwrap_or_default();
            match peers::record_started(&theirs, &name, cluster, member, declaration.as_deref()) {
                Err(why) => return Did::Again(format!("{who} says no: {why}")),
                Ok(next) => self.nodes[peer].ledger = Some(next),
            }
            if !self.is_quiet() && self.random.permille(30) {
                return Did::Again(format!("the answer of {who} gets lost"));
            }
        }
        Did::On
    }

    /// A change of members, through any server that can be reached.
    fn change(&mut self, node: usize, op: Op) -> Result<usize, String> {
        let through = (0..self.nodes.len()).filter(|through| *through != node);
        let leader = through.filter_map(|through| self.leader_for(node, through)).next();
        let Some(leader) = leader else { return Err("no quorum answers".to_owned()) };
        self.change_members(leader, op)?;
        self.tell(Some(node), format!("the cluster agrees to {op:?}"));
        if let Op::Remove(id) = op {
            self.nodes[node].removed_self = Some(id);
        }
        if !self.is_quiet() && self.random.permille(60) {
            return Err("the answer gets lost".to_owned());
        }
        Ok(leader)
    }

    fn add_learner(&mut self, node: usize) -> Did {
        let id = MemberId(0x1000 + u64::from(self.number()));
        // The answer names the cluster: another one than was wished for is not asked.
        let wished = match self.state(node) {
            State::PendingAdd(add) => Some(add.cluster),
            State::Empty | State::Promised(_) | State::Inited(_) | State::Started(_) | State::Tombstone(_) => None,
        };
        let there = (0..self.nodes.len()).find_map(|through| self.leader_for(node, through));
        let there = there.and_then(|leader| self.nodes[leader].data.as_ref()).map(|data| data.cluster);
        if self.living && wished.is_some() && there.is_some() && wished != there {
            return Did::Again("another cluster answers than the one that was wished for".to_owned());
        }
        let leader = match self.change(node, Op::Add { id, node, learner: true, at: self.address_of(node) }) {
            Ok(leader) => leader,
            Err(why) => return Did::Again(why),
        };
        let Some(cluster) = self.nodes[leader].data.as_ref().map(|data| data.cluster) else {
            return Did::Again("the cluster is gone".to_owned());
        };
        self.rule_of_join(node, cluster);
        if !self.is_quiet() && self.random.permille(40) {
            self.kill_agent(node, "before it wrote its id down");
            return Did::Again("killed".to_owned());
        }
        let peer_urls = vec![peer_url(node, self.address_of(node))];
        let add = PendingAdd { cluster, member: Some(id), peer_urls, replaces: None, generation: 0 };
        self.write(node, State::PendingAdd(add))
    }

    /// Where a node's file says that it is. Only operators of living clusters move machines.
    pub(crate) fn address_of(&self, node: usize) -> u8 {
        let it = &self.nodes[node];
        let url = self.files[it.file].spec.member(&it.name).and_then(|member| member.peer_urls.first());
        // One that is not declared any more goes on with what the last file said.
        url.filter(|_| self.living).map_or(it.place, |url| address_in(url))
    }

    fn start(&mut self, node: usize, joining: bool) -> Did {
        if joining {
            let State::PendingAdd(PendingAdd { cluster, member: Some(member), .. }) = self.state(node) else {
                return Did::Again("no id was given".to_owned());
            };
            self.rule_of_start(node, Some((cluster, member)));
            self.nodes[node].data = Some(Data::joining(cluster, member, node));
        } else {
            self.rule_of_start(node, None);
        }
        if self.nodes[node].data.is_none() {
            return Did::Again("there is no data".to_owned());
        }
        let at = self.address_of(node);
        let nonce = self.now.wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(self.nodes[node].starts));
        let it = &mut self.nodes[node];
        it.starts = it.starts.wrapping_add(1);
        let from = it.data.as_ref().map(|data| data.log.len() as u64);
        if let Some(ledger) = it.ledger.as_mut().filter(|_| !it.ledger_unreadable) {
            ledger.last_start = Some(ledger.next_start(nonce, from));
        }
        (it.runs, it.leads, it.checked, it.halt, it.plan) = (true, false, None, None, None);
        (it.pausing, it.restarting, it.runs_as, it.listens, it.since) = (false, false, it.wants, at, None);
        it.upkeep_until = 0;
        it.started_with.clone_from(&it.certificates.trusts);
        let member = it.data.as_ref().map(|data| data.member.to_string()).unwrap_or_default();
        self.tell(Some(node), format!("etcd starts as member {member}{}", if joining { ", without data" } else { "" }));
        Did::On
    }
}

/// Where peers find a node that is at its address number `at`.
pub(crate) fn peer_url(node: usize, at: u8) -> String {
    format!("http://10.0.{at}.{}:2380", node + 1)
}

/// The number of that address.
pub(crate) fn address_in(url: &str) -> u8 {
    url.trim_start_matches("http://10.0.").split('.').next().and_then(|at| at.parse().ok()).unwrap_or(0)
}
