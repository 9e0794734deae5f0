//! The agent beside a running etcd: what it sees of the whole cluster, which step of a change is its own, and the taking of it.
//!
//! **Rule:** a step is cut off before it, in its midst, or after it and before anyone knows; the next look finds what came of it.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::membership::ClusterId;
use quorate_plan::change::{
    Act, ChangePlan, ChangeStep, ClusterView, LogRead, NodeNow, NodeSeen, Restart, Stage, Who, first, outdated,
    plan_for_agents, plan_for_agents_without,
};
use quorate_plan::check::check_change;
use quorate_plan::ledger::IntentKind;
use quorate_plan::start::ClusterSeen;

use crate::etcd::{Data, Op};
use crate::execute::address_in;
use crate::world::World;

/// How long a learner may take to come up, in moments.
const LEARNER_UP: u64 = 60;

impl World {
    /// Looks at the cluster and takes the step that is this node's, if there is one.
    pub(crate) fn take_turn(&mut self, node: usize) {
        self.note_revision(node);
        let Some(view) = self.view(node) else { return };
        let file = std::rc::Rc::clone(&self.files[self.nodes[node].file]);
        let name = self.nodes[node].name.clone();
        let plan = match self.settings.without {
            Some(guard) => plan_for_agents_without(guard, &view, &file.spec),
            None => plan_for_agents(&view, &file.spec),
        };
        self.plans += 1;
        if (self.settings.without.is_none() || self.settings.checked)
            && let Err(broken) = check_change(&file.spec, &view, &plan)
        {
            self.tell(Some(node), format!("the check objects: {}", broken.join("; ")));
            if self.settings.without.is_none() {
                self.break_rule(format!("the check objects to a plan: {}\n{}", broken.join("; "), plan.render()));
            }
            return;
        }
        self.note_turn(node, &plan);
        let Some(step) = outdated(&view, &name).or_else(|| first(plan, &name)) else {
            self.nodes[node].pausing = false;
            return;
        };
        if step.act.is_wait() {
            return;
        }
        if !self.is_quiet() && self.random.permille(20) {
            return self.kill_agent(node, &format!("before this: {step}"));
        }
        self.perform(node, &step);
        if !self.is_quiet() && self.nodes[node].up && self.random.permille(20) {
            self.kill_agent(node, &format!("after this: {step}"));
        }
    }

    /// Notes how far the cluster is, at the first look since etcd runs and since this release is wanted.
    fn note_revision(&mut self, node: usize) {
        let leader = self.leader_for(node, node).and_then(|leader| self.nodes[leader].data.as_ref());
        let Some(revision) = leader.map(|data| data.commit as u64) else { return };
        let it = &mut self.nodes[node];
        if it.since.is_none_or(|(wanted, _)| wanted != it.wants.1) {
            it.since = Some((it.wants.1, revision));
        }
    }

    fn note_turn(&mut self, node: usize, plan: &ChangePlan) {
        let halted = plan.halt.as_ref().map(|halt| halt.halt.why.clone());
        if halted.is_some() && halted != self.nodes[node].said {
            self.tell(Some(node), format!("changes nothing more: {}", halted.clone().unwrap_or_default()));
        }
        self.nodes[node].said = halted;
    }

    fn perform(&mut self, node: usize, step: &ChangeStep) {
        let did = match &step.act {
            Act::Promote(Who { id: Some(id), .. }) => self.ask_members(node, Op::Promote(*id), None),
            Act::UndoLearner(who @ Who { id: Some(id), .. }) => {
                self.rule_of_undo(node, who);
                self.ask_members(node, Op::Remove(*id), None)
            }
            Act::Remove(who @ Who { id: Some(id), .. }) => {
                self.rule_of_remove(node, who);
                self.ask_members(node, Op::Remove(*id), Some(&who.node))
            }
            Act::MoveLeader { to, .. } => self.move_leader(node, &to.node),
            Act::Restart { who, release } => self.restart(node, who, release.as_deref()),
            Act::Stop(_) => {
                let it = &mut self.nodes[node];
                (it.runs, it.leads, it.checked, it.pausing) = (false, false, None, false);
                Ok(())
            }
            Act::Backup => {
                self.stored = self.nodes[node].data.as_ref().map(|data| (data.cluster, data.commit as u64));
                Ok(())
            }
            Act::ChangeUrls { who: Who { id: Some(id), .. }, urls } if self.living => {
                let at = urls.first().map_or(0, |url| address_in(url));
                self.rule_of_move(*id);
                self.ask_members(node, Op::Move { id: *id, at }, None)
            }
            // Its own start decision does it, or nothing of it is simulated.
            Act::Promote(_)
            | Act::UndoLearner(_)
            | Act::Remove(_)
            | Act::AddLearner(_)
            | Act::Bury(_)
            | Act::ChangeUrls { .. }
            | Act::EnableDowngrade(_)
            | Act::SnapshotLog
            | Act::Distribute { .. }
            | Act::WaitCaughtUp(_)
            | Act::WaitExit(_) => return,
        };
        self.tell(
            Some(node),
            match did {
                Ok(()) => format!("does this: {} ({})", step.act, step.why),
                Err(why) => format!("cannot yet: {} ({why})", step.act),
            },
        );
    }

    /// A change of members through any server but the one that is to leave.
    fn ask_members(&mut self, node: usize, op: Op, but: Option<&str>) -> Result<(), String> {
        let through = (0..self.nodes.len()).filter(|through| Some(self.nodes[*through].name.as_str()) != but);
        let leader = through.filter_map(|through| self.leader_for(node, through)).next();
        let Some(leader) = leader else { return Err("no quorum answers".to_owned()) };
        self.change_members(leader, op)?;
        if !self.is_quiet() && self.random.permille(60) {
            return Err("the answer gets lost".to_owned());
        }
        Ok(())
    }

    fn move_leader(&mut self, node: usize, to: &str) -> Result<(), String> {
        let Some(to) = self.index_of(to) else { return Err("nobody of that name".to_owned()) };
        if !self.nodes[node].leads || !self.nodes[to].runs || !self.linked(node, to) {
            return Err("it cannot be handed over".to_owned());
        }
        self.replicate(node, true);
        self.campaign(to);
        if self.nodes[node].leads { Err("the other one could not take it".to_owned()) } else { Ok(()) }
    }

    /// Says first that it pauses, looks again, and stops only then.
    fn restart(&mut self, node: usize, who: &Who, release: Option<&str>) -> Result<(), String> {
        if !self.nodes[node].pausing {
            self.nodes[node].pausing = true;
            return Err("it says first that it pauses".to_owned());
        }
        self.rule_of_restart(node, who, release);
        let now = self.committed_now();
        if release.is_some() {
            self.to_be_stored = who.id.zip(now).map(|(id, (cluster, revision))| (id, cluster, revision));
        }
        let it = &mut self.nodes[node];
        (it.runs, it.leads, it.checked, it.plan, it.restarting) = (false, false, None, None, true);
        it.runs_as = it.wants;
        Ok(())
    }

    /// What the agent of a node sees of the whole cluster.
    pub(crate) fn view(&self, node: usize) -> Option<ClusterView> {
        let leader = self.leader_for(node, node)?;
        let data = self.nodes[leader].data.as_ref()?;
        let config = data.config();
        let members = self.listed(node, leader, &config);
        let spec = &self.files[self.nodes[node].file].spec;
        let mut nodes = BTreeMap::new();
        for other in 0..self.nodes.len() {
            let name = &self.nodes[other].name;
            let known = spec.member(name).is_some() || config.members.iter().any(|member| member.node == other);
            if known || other == node {
                let seen = self
                    .now_of(other, node)
                    .map_or_else(|| NodeSeen::Unknown("no answer".to_owned()), |now| NodeSeen::Answered(Box::new(now)));
                nodes.insert(name.clone(), seen);
            }
        }
        let index = |member: &crate::etcd::Member| {
            let it = &self.nodes[member.node];
            let there = it.data.as_ref().filter(|data| it.runs && data.member == member.id);
            there.filter(|_| self.reaches(node, member.node)).map(|there| (member.id, there.log.len() as u64))
        };
        Some(ClusterView {
            leader: Some(data.member),
            indexes: config.members.iter().filter_map(index).collect(),
            applied: BTreeMap::new(),
            corrupt: BTreeSet::new(),
            differing: BTreeSet::new(),
            nodes,
            learner: self.nodes[node].ledger.as_ref().and_then(|ledger| ledger.learner),
            stored: self.stored.filter(|(cluster, _)| *cluster == data.cluster).map(|(_, revision)| revision),
            now_ms: self.clock_ms(node),
            learner_up_ms: LEARNER_UP * 1000,
            cluster: ClusterSeen::Confirmed { cluster: data.cluster, members },
        })
    }

    pub(crate) fn now_of(&self, node: usize, asker: usize) -> Option<NodeNow> {
        let it = &self.nodes[node];
        if !it.up || it.ledger_unreadable || !self.linked(node, asker) || !self.are_agents(node, asker) {
            return None;
        }
        let ledger = it.ledger.clone().unwrap_or_default();
        let differs = it.runs && (it.wants != it.runs_as || self.address_of(node) != it.listens || self.is_stale(node));
        let release = (it.wants.1 != it.runs_as.1).then(|| release_text(it.wants.1));
        Some(NodeNow {
            generation: if node == asker { ledger.generation } else { ledger.newest().number },
            file: self.files[it.file].hash.clone(),
            stage: Stage::of(&ledger),
            member: it.data.as_ref().map(|data| data.member).or_else(|| ledger.ids().map(|(_, member)| member)),
            etcd: it.runs.then(|| release_text(it.runs_as.1)),
            storage: None,
            v2_entries: Some(0),
            log: Some(LogRead { snapshot: 0, last: 0 }),
            restart: differs.then(|| {
                let why = "its flags, its release or whom it trusts have changed".to_owned();
                let moves = self.address_of(node) != it.listens;
                Restart { why, release, trust: self.is_stale(node), moves }
            }),
            intent: ledger.intent.map(|intent| intent.kind),
            pausing: it.pausing || (it.restarting && !it.runs) || self.is_kept_up(node),
            since: it.since.filter(|(wanted, _)| it.runs && *wanted == it.wants.1).map(|(_, revision)| revision),
        })
    }

    /// How much the cluster that serves has acknowledged.
    pub(crate) fn committed_now(&self) -> Option<(ClusterId, u64)> {
        let (leader, _) = self.present()?;
        self.nodes[leader].data.as_ref().map(|data| (data.cluster, data.commit as u64))
    }

    /// Whether a node was asked to leave.
    pub(crate) fn was_asked(&self, node: usize) -> bool {
        let intent = self.nodes[node].ledger.as_ref().and_then(|ledger| ledger.intent.as_ref());
        intent.is_some_and(|intent| intent.kind == IntentKind::Leave)
    }

    /// The same for the cluster that a node is in, or reaches: there are two while it is recovered twice.
    pub(crate) fn present_to(&self, node: usize) -> Option<(usize, crate::etcd::Config)> {
        let through = std::iter::once(node).chain(0..self.nodes.len());
        let leader = through.filter_map(|through| self.leader_for(node, through)).next()?;
        self.nodes[leader].data.as_ref().map(Data::config).map(|config| (leader, config))
    }

    /// The members that the cluster has, as its leader knows.
    pub(crate) fn present(&self) -> Option<(usize, crate::etcd::Config)> {
        let leader = (0..self.nodes.len()).find_map(|through| self.leader_for(through, through))?;
        self.nodes[leader].data.as_ref().map(Data::config).map(|config| (leader, config))
    }
}

fn release_text(patch: u32) -> String {
    format!("3.5.{patch}")
}
