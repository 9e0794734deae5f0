//! Reads a plan of changes before it runs: follows the members on paper, and asks of each step whether it may be taken then.
//!
//! **Rule:** only who is known to take part is counted, and nothing here asks which row a step came from.

use quorate_etcd_formats::membership::MemberId;

use crate::change::upgrade::Release;
use crate::change::{
    Act, ChangePlan, ChangeStep, ClusterView, LAG_FAR, LAG_MAX, NOBODY, NodeNow, OPERATOR, Stage, Who,
};
use crate::ledger::IntentKind;
use crate::spec::Spec;
use crate::start::{ClusterSeen, Health, ListedMember};

/// Says what a plan of changes would break. An executor must not take a step of a plan that was not found in order.
pub fn check_change(spec: &Spec, view: &ClusterView, plan: &ChangePlan) -> Result<(), Vec<String>> {
    let mut paper = Paper::new(spec, view, plan);
    for step in &plan.steps {
        paper.take(step);
    }
    if paper.broken.is_empty() { Ok(()) } else { Err(paper.broken) }
}

/// A member on paper.
#[derive(Clone)]
struct Member {
    id: Option<MemberId>,
    node: String,
    votes: bool,
    /// It answers, and is well.
    up: bool,
    /// It answers.
    runs: bool,
    /// A learner that has been waited for.
    has_data: bool,
}

struct Paper<'a> {
    spec: &'a Spec,
    view: &'a ClusterView,
    members: Vec<Member>,
    leader: Option<String>,
    /// A person gives the file to every node first.
    distributed: bool,
    /// Of the members that there were at first, the file declares one at least.
    keeps_one: bool,
    /// Who pauses, and has not been through with it on paper.
    pausing: Vec<String>,
    backed_up: bool,
    /// Logs hold nothing any more that the next release cannot read.
    logs_snapshotted: bool,
    broken: Vec<String>,
}

impl<'a> Paper<'a> {
    fn new(spec: &'a Spec, view: &'a ClusterView, plan: &ChangePlan) -> Paper<'a> {
        let listed: &[ListedMember] = match &view.cluster {
            ClusterSeen::Confirmed { members, .. } => members,
            ClusterSeen::Unreachable(_) => &[],
        };
        let index = |id: Option<MemberId>| id.and_then(|id| view.indexes.get(&id)).copied();
        let members: Vec<Member> = listed
            .iter()
            .map(|one| {
                let at = |urls: &[String]| one.peer_urls.iter().any(|url| urls.contains(url));
                let declared = spec.members.iter().find(|declared| {
                    if one.name.is_empty() { at(&declared.peer_urls) } else { declared.name == one.name }
                });
                let told = view.answers().find(|(_, now)| now.member == Some(one.id)).map(|(name, _)| name.to_owned());
                let own = if one.name.is_empty() { one.id.to_string() } else { one.name.clone() };
                let node = declared.map(|declared| declared.name.clone()).or(told).unwrap_or(own);
                let runs = one.health == Health::Healthy;
                let behind = index(view.leader).zip(index(Some(one.id)));
                let near = behind.is_some_and(|(leads, its)| its.saturating_add(LAG_MAX) >= leads);
                let damaged = [one.id, NOBODY].iter().any(|id| view.corrupt.contains(id));
                let whole = !damaged && !view.differing.contains(&one.id);
                let applied = view.applied.get(&one.id).copied();
                let far =
                    index(view.leader).zip(applied).is_some_and(|(leads, its)| its.saturating_add(LAG_FAR) < leads);
                // A learner may be behind, and is undone only when it does not answer.
                let up = runs && (one.learner || whole && !far);
                Member { id: Some(one.id), node, votes: !one.learner, up, runs, has_data: runs && near && whole }
            })
            .collect();
        let leader = members.iter().find(|member| member.id == view.leader && view.leader.is_some());
        let leader = leader.map(|member| member.node.clone());
        let distributed = plan.steps.iter().any(|step| matches!(step.act, Act::Distribute { .. }));
        let backed_up = members.iter().filter(|member| member.votes).all(|voter| {
            let told = view.answers().find(|(_, now)| now.member == voter.id).and_then(|(_, now)| now.since);
            told.zip(view.stored).is_some_and(|(since, stored)| stored >= since)
        });
        let keeps_one = members.iter().any(|member| spec.member(&member.node).is_some());
        let pausing = view.answers().filter(|(_, now)| now.pausing).map(|(name, _)| name.to_owned()).collect();
        Paper {
            spec,
            view,
            members,
            leader,
            distributed,
            keeps_one,
            pausing,
            backed_up,
            logs_snapshotted: false,
            broken: Vec::new(),
        }
    }

    fn rule(&mut self, holds: bool, rule: &str) {
        if !holds && !self.broken.iter().any(|broken| broken == rule) {
            self.broken.push(rule.to_owned());
        }
    }

    fn take(&mut self, step: &ChangeStep) {
        let doer = step.doer.as_str();
        if step.act.changes_members() {
            self.rule(!self.members.is_empty(), "members are changed only with a quorum");
            let torn = self.view.answers().any(|(_, now)| now.intent == Some(IntentKind::Teardown));
            self.rule(!torn, "nothing is changed while the cluster is torn down");
            self.rule(self.keeps_one, "a file keeps one of the members that there are");
        }
        match &step.act {
            Act::Distribute { .. } => self.rule(doer == OPERATOR, "a person gives the file out"),
            Act::AddLearner(who) => self.add(who, doer),
            Act::WaitCaughtUp(who) => self.waited(who),
            Act::Promote(who) => self.promote(who, doer),
            Act::UndoLearner(who) => self.undo(who, doer),
            Act::MoveLeader { from, to } => self.move_leader(from, to, doer),
            Act::Remove(who) => self.remove(who, doer),
            Act::WaitExit(who) | Act::Bury(who) => {
                let listed = self.members.iter().any(|member| member.id == who.id);
                self.rule(!listed && doer == who.node, "a node is buried by itself, once it is out of the list");
            }
            Act::Restart { who, release } => self.restart(who, release.as_deref(), doer),
            Act::Backup => self.backed_up = true,
            Act::SnapshotLog => self.snapshot_log(doer),
            Act::EnableDowngrade(_) => self.rule(self.is_voter(doer), "only a voter's agent changes the cluster"),
            Act::ChangeUrls { who, .. } => {
                let learner = self.find(who).is_some_and(|member| !member.votes);
                self.rule(!learner, "the address of a learner is not changed: etcd would make it a voter");
                let down = self.find(who).is_some_and(|member| !member.up);
                let held = self.distributed || self.now(&who.node).is_some_and(|now| now.file == self.spec.hash());
                let for_it = down && held && self.is_voter(doer);
                let may = self.is_declared(&who.node) && (doer == who.node || for_it);
                self.rule(may, "a node tells its own address, or a voter does for one that cannot");
                let settled = self.distributed || down || !self.is_one_arriving(who);
                self.rule(settled, "who has moved is there before the next one moves");
            }
            Act::Stop(who) => {
                let asked = self.now(&who.node).is_some_and(|now| now.intent == Some(IntentKind::Teardown));
                let newer = |mine: &NodeNow| self.view.answers().any(|(_, now)| now.generation > mine.generation);
                let outdated = self.now(&who.node).is_some_and(newer);
                self.rule(doer == who.node && (asked || outdated), "only who was asked to stop is stopped");
            }
        }
    }

    fn add(&mut self, who: &Who, doer: &str) {
        self.rule(doer == who.node, "a node has itself added");
        self.rule(self.is_declared(&who.node), "only a declared node joins");
        self.rule(self.members.iter().all(|member| member.votes), "one change of members at a time");
        self.rule(self.members.iter().all(|member| member.node != who.node), "who is a member is not added again");
        self.nobody_down(None);
        self.members.push(Member {
            id: None,
            node: who.node.clone(),
            votes: false,
            up: false,
            runs: false,
            has_data: false,
        });
    }

    fn waited(&mut self, who: &Who) {
        for member in self.members.iter_mut().filter(|member| member.node == who.node && !member.votes) {
            (member.up, member.runs, member.has_data) = (true, true, true);
        }
    }

    fn promote(&mut self, who: &Who, doer: &str) {
        self.rule(self.is_voter(doer), "only a voter's agent changes the cluster");
        let ready = self.find(who).is_some_and(|member| !member.votes && member.has_data);
        self.rule(ready, "only a learner that has caught up is promoted");
        self.rule(self.is_declared(&who.node), "only a declared node gets a vote");
        for member in self.members.iter_mut().filter(|member| member.node == who.node) {
            member.votes = true;
        }
    }

    fn undo(&mut self, who: &Who, doer: &str) {
        self.rule(self.is_voter(doer), "only a voter's agent changes the cluster");
        let learner = self.find(who).filter(|member| !member.votes).cloned();
        self.rule(learner.is_some(), "only a learner is undone");
        let up = learner.is_some_and(|learner| learner.up);
        let leaves = self.leaves(&who.node);
        self.rule(!up || leaves, "a learner that is up is not undone");
        let since = self.view.learner.filter(|known| Some(known.member) == who.id).map(|known| known.since_ms);
        let late = since.is_some_and(|since| self.view.now_ms.saturating_sub(since) >= self.view.learner_up_ms);
        self.rule(late || leaves, "a learner is given its time");
        self.by_file(&who.node);
        self.members.retain(|member| member.id != who.id);
    }

    fn move_leader(&mut self, from: &Who, to: &Who, doer: &str) {
        self.rule(doer == from.node && self.leader.as_ref() == Some(&from.node), "who leads hands over");
        let heir = self.find(to).is_some_and(|member| member.votes && member.up);
        self.rule(heir && to.node != from.node, "leadership goes to a voter that takes part");
        self.leader = Some(to.node.clone());
    }

    fn remove(&mut self, who: &Who, doer: &str) {
        let Some(member) = self.find(who).cloned() else {
            return self.rule(false, "only a listed member is removed");
        };
        self.rule(member.votes, "a learner is undone, and not removed");
        self.rule(self.leaves(&who.node), "a declared member that was not asked to leave stays");
        self.by_file(&who.node);
        let asked = self.asked(&who.node);
        let own = doer == who.node && asked && member.up;
        self.rule(own || (doer != who.node && self.is_voter(doer)), "a member is removed through another one");
        self.rule(self.leader.as_ref() != Some(&who.node), "who leads hands over before it leaves");
        self.nobody_down(Some(&who.node));
        let voters = self.members.iter().filter(|one| one.votes);
        // Whoever leaves is asked for its vote, however it is.
        let votes = |one: &&Member| if one.id == who.id { one.runs } else { one.up };
        let (all, up) = (voters.clone().count(), voters.clone().filter(votes).count());
        let rest = voters.filter(|one| one.up && one.id != who.id).count();
        self.rule(all > 1, "the last member never leaves");
        self.rule(up * 2 > all && rest * 2 > all - 1, "a change of members keeps the quorum");
        self.members.retain(|one| one.id != who.id);
    }

    fn restart(&mut self, who: &Who, release: Option<&str>, doer: &str) {
        self.rule(doer == who.node, "a node restarts its own etcd");
        let sick = self.find(who).is_some_and(|member| member.runs && !member.up);
        self.nobody_down(sick.then_some(who.node.as_str()));
        let voters = self.members.iter().filter(|one| one.votes).count();
        let leads = self.leader.as_ref() == Some(&who.node);
        self.rule(!leads || voters <= 1, "who leads hands over before it restarts");
        self.pausing.retain(|name| *name != who.node);
        self.rule(self.pausing.is_empty(), "members restart one at a time");
        let Some(release) = release else { return };
        self.rule(self.backed_up || self.spec.backup.is_none(), "a backup is taken before another release");
        let told = self.view.answers().filter_map(|(_, now)| now.etcd.as_deref().and_then(Release::parse));
        let lowest = told.map(|release| release.minor).min();
        let near = Release::parse(release).zip(lowest).is_some_and(|(to, low)| to.minor.abs_diff(low) <= 1);
        self.rule(near, "etcd goes one minor version at a time");
        if let Some(to) = Release::parse(release) {
            let mut now = self.view.answers().filter(|(_, now)| now.member == who.id && now.member.is_some());
            let reads = now.all(|(_, now)| {
                let from = now.etcd.as_deref().and_then(Release::parse);
                from.is_none_or(|from| !from.drops_v2(to))
                    || now.v2_entries.is_some_and(|count| count == 0 || self.logs_snapshotted)
            });
            self.rule(reads, "a release is started only on a log that it can read");
        }
        // Each release change has its own.
        self.backed_up = false;
    }

    fn snapshot_log(&mut self, doer: &str) {
        self.rule(self.is_voter(doer), "only a voter's agent changes the cluster");
        let holds = self.view.answers().any(|(_, now)| now.v2_entries.is_some_and(|count| count > 0));
        self.rule(holds, "entries are added to the log only for the sake of some that the next release cannot read");
        self.nobody_down(None);
        self.logs_snapshotted = true;
    }

    /// No voter that stays is down, other than the one that the change is about.
    fn nobody_down(&mut self, but: Option<&str>) {
        let down = self.members.iter().any(|member| {
            member.votes && !member.up && Some(member.node.as_str()) != but && !self.leaves(&member.node)
        });
        self.rule(!down, "nothing is changed while a voter is down, unless that heals");
    }

    /// Who leaves by the file leaves by one that a quorum of the voters hold, and nobody who answers holds another.
    fn by_file(&mut self, node: &str) {
        if self.distributed || self.asked(node) || self.is_declared(node) {
            return;
        }
        let file = self.spec.hash();
        let holds = |member: &&Member| self.now(&member.node).is_some_and(|now| now.file == file);
        let voters = self.members.iter().filter(|member| member.votes);
        let enough = voters.clone().filter(holds).count() * 2 > voters.count();
        // Who holds nothing any more has no say.
        let differs = |now: &NodeNow| now.file != file && now.stage != Stage::Blank;
        let other = self.members.iter().any(|member| self.now(&member.node).is_some_and(differs));
        self.rule(enough && !other, "nobody leaves by a file that a quorum does not hold");
    }

    /// Whether another one is known at its new address, and has not been started there yet, or does not say.
    fn is_one_arriving(&self, but: &Who) -> bool {
        let ClusterSeen::Confirmed { members, .. } = &self.view.cluster else { return false };
        members.iter().filter(|listed| Some(listed.id) != but.id && listed.health == Health::Healthy).any(|listed| {
            let declared = self.spec.member(&listed.name);
            let at_home = declared.is_some_and(|declared| listed.peer_urls == declared.peer_urls);
            at_home && !listed.learner && self.now(&listed.name).is_none_or(NodeNow::is_to_move)
        })
    }

    fn now(&self, node: &str) -> Option<&NodeNow> {
        self.view.answer(node)
    }

    fn asked(&self, node: &str) -> bool {
        self.now(node).is_some_and(|now| now.intent == Some(IntentKind::Leave))
    }

    fn is_declared(&self, node: &str) -> bool {
        self.spec.member(node).is_some()
    }

    fn leaves(&self, node: &str) -> bool {
        !self.is_declared(node) || self.asked(node)
    }

    fn is_voter(&self, node: &str) -> bool {
        self.members.iter().any(|member| member.node == node && member.votes)
    }

    fn find(&self, who: &Who) -> Option<&Member> {
        self.members.iter().find(|member| member.node == who.node && (who.id.is_none() || member.id == who.id))
    }
}
