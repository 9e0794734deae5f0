//! The rows of a change, from the first to the last: what is under way, what heals, who trusts too few, who joins, who moved, who
//! leaves, who restarts.
//!
//! **Rule:** the rows follow the members on paper, so that a whole plan can be shown; an agent takes its first step alone and
//! looks again.

use std::collections::BTreeMap;

use quorate_etcd_formats::membership::MemberId;
use quorate_faults::Code;

use super::step::{Act, ChangeStep, OPERATOR, Who};
use super::upgrade::Release;
use super::view::{ClusterView, Stage, has_caught_up, is_same, is_up, moved_at_once_max, node_of};
use super::well::unwell;
use super::{ChangeHalt, ChangePlan, For};
use crate::ledger::IntentKind;
use crate::quorum::{Change, Proof, Standing};
use crate::roster::names;
use crate::spec::{Member, Spec, duration_text};
use crate::start::guards::{Guard, Guards};
use crate::start::{ClusterSeen, Halt, Health, ListedMember};

pub(super) fn decide<G: Guards>(view: &ClusterView, spec: &Spec, whose: For, guards: &G) -> ChangePlan {
    let mut plan = ChangePlan::new(view, spec);
    let members = match &view.cluster {
        ClusterSeen::Confirmed { members, .. } => members,
        ClusterSeen::Unreachable(why) => {
            let why = format!("no quorum confirms who the members are: {why}");
            let way_out = "bring members back; if most of them are lost for good, `quorate cluster recover`";
            let file = spec.hash();
            let other = view.answers().filter(|(_, now)| whose == For::Operator && now.file != file);
            let to: Vec<String> = other.map(|(name, _)| name.to_owned()).collect();
            if !to.is_empty() {
                let (act, why) = (Act::Distribute { to, file }, "they hold another file".to_owned());
                plan.steps.push(ChangeStep { doer: OPERATOR.to_owned(), act, why, proof: None });
            }
            plan.halt = Some(waiting(Code::StartWaiting, why, way_out));
            return plan;
        }
    };
    let sick = unwell(view);
    let named = |member: &ListedMember| {
        // Who answers and is not well is not counted on.
        let doubted = sick.get(&member.id).filter(|_| !member.learner && guards.hold(Guard::HealthyFirst));
        let health = doubted.map_or_else(|| member.health.clone(), |why| Health::Unhealthy(why.clone()));
        ListedMember { name: node_of(spec, view, member), health, ..member.clone() }
    };
    let named: Vec<ListedMember> = members.iter().map(named).collect();
    let leader = named.iter().find(|member| Some(member.id) == view.leader).map(|member| member.name.clone());
    let mut case = Case { view, spec, whose, guards, plan, paper: Standing::unconfirmed(&named), leader, sick };
    let rows = [
        Case::torn_down,
        Case::founding,
        Case::distribute,
        Case::departing,
        Case::learner,
        Case::found,
        Case::heal,
        Case::trust_first,
        Case::grow,
        Case::urls,
        Case::shrink,
        Case::restarts,
    ];
    for row in rows {
        row(&mut case);
        if case.plan.halt.is_some() {
            break;
        }
    }
    case.plan
}

pub(super) struct Case<'a, G> {
    pub(super) view: &'a ClusterView,
    pub(super) spec: &'a Spec,
    pub(super) whose: For,
    pub(super) guards: &'a G,
    pub(super) plan: ChangePlan,
    pub(super) paper: Standing,
    /// The node that leads, on paper.
    pub(super) leader: Option<String>,
    /// Who answers and is not well, and why.
    pub(super) sick: BTreeMap<MemberId, String>,
}

impl<G: Guards> Case<'_, G> {
    fn torn_down(&mut self) {
        let asked = |node: &str| self.intent(node) == Some(IntentKind::Teardown);
        let mut nodes: Vec<&str> = self.view.answers().map(|(name, _)| name).filter(|name| asked(name)).collect();
        if nodes.is_empty() {
            return;
        }
        nodes.sort_by_key(|node| Some(*node) == self.leader.as_deref());
        let runs = |node: &&str| self.view.answer(node).is_some_and(|now| now.etcd.is_some());
        let stops: Vec<Who> = nodes
            .iter()
            .filter(|node| runs(node))
            .map(|node| Who::new(*node, self.view.answer(node).and_then(|now| now.member)))
            .collect();
        let why = format!("asked to stop for good: {}", names(nodes));
        for who in stops {
            self.push(who.node.clone(), Act::Stop(who), "the cluster is being torn down".to_owned(), None);
        }
        let way_out = "`quorate cluster teardown --cancel` brings it back; nothing was removed or deleted";
        self.plan.halt = Some(refused(Code::TornDown, why, way_out));
    }

    /// A file that replaces most of the members and still declares a founding could found a second cluster, if the few that stay
    /// lost what they know. And one that keeps none has nobody who could take the others in.
    fn founding(&mut self) {
        let voters = self.paper.members().iter().filter(|member| !member.learner);
        let (all, stay) = (voters.clone().count(), voters.filter(|member| self.declared(member).is_some()).count());
        // A learner that is declared becomes the one that stays.
        if !self.paper.members().iter().any(|member| self.declared(member).is_some()) {
            let why = "the file declares none of the members that there are".to_owned();
            let way_out = "keep one of them in the file until the others have joined";
            self.plan.halt = Some(refused(Code::LastMember, why, way_out));
        } else if let Some(bootstrap) = self.spec.bootstrap.filter(|_| stay <= all / 2) {
            let why = format!("{stay} of {all} members stay, and the file still declares founding {}", bootstrap.id);
            let way_out = "take `bootstrap` out of the file: the cluster is there; or change fewer members at once";
            self.plan.halt = Some(refused(Code::FilesDiffer, why, way_out));
        }
    }

    fn distribute(&mut self) {
        if self.whose == For::Agent {
            return;
        }
        let file = self.spec.hash();
        let mut nodes: Vec<String> = self.spec.members.iter().map(|member| member.name.clone()).collect();
        let listed = self.paper.members().iter().map(|member| member.name.clone());
        nodes.extend(listed.filter(|name| self.view.nodes.contains_key(name)));
        let mut seen = Vec::new();
        nodes.retain(|name| {
            !seen.contains(name) && {
                seen.push(name.clone());
                self.view.answer(name).is_none_or(|now| now.file != file)
            }
        });
        if !nodes.is_empty() {
            let why = "who holds another file, or has not said which, gets it".to_owned();
            self.push(OPERATOR.to_owned(), Act::Distribute { to: nodes, file }, why, None);
        }
    }

    /// Whoever was removed has to end before anything else is done, as far as its agent says how it is.
    fn departing(&mut self) {
        let listed: Vec<MemberId> = self.paper.members().iter().map(|member| member.id).collect();
        let gone = self.view.answers().filter(|(name, now)| {
            let leaves = self.spec.member(name).is_none() || now.intent == Some(IntentKind::Leave);
            now.stage == Stage::Member && leaves && now.member.is_some_and(|id| !listed.contains(&id))
        });
        let gone: Vec<(Who, bool)> = gone.map(|(name, now)| (Who::new(name, now.member), now.etcd.is_some())).collect();
        for (who, runs) in gone {
            self.bury(&who, runs);
        }
    }

    /// The one that is neither in nor out.
    fn learner(&mut self) {
        let Some(learner) = self.paper.members().iter().find(|member| member.learner).cloned() else { return };
        let (node, who) = (learner.name.clone(), Who::new(learner.name.clone(), Some(learner.id)));
        if self.declared(&learner).is_none() {
            if self.agreed() {
                self.undo(who, "the file does not declare it".to_owned());
            }
            return;
        }
        if self.intent(&node) == Some(IntentKind::Leave) {
            return self.undo(who, "it was asked to leave".to_owned());
        }
        let since = self.view.learner.filter(|known| known.member == learner.id).map(|known| known.since_ms);
        let late = since.is_some_and(|since| self.view.now_ms.saturating_sub(since) >= self.view.learner_up_ms);
        if late && (!is_up(&learner) || !self.guards.hold(Guard::UndoOnlyDown)) {
            let limit = duration_text(std::time::Duration::from_millis(self.view.learner_up_ms));
            return self.undo(who, format!("it has not come up within {limit}"));
        }
        if !self.caught_up(&learner) {
            let why = match (self.sick.get(&learner.id), is_up(&learner)) {
                (Some(why), _) => why.clone(),
                (None, true) => "it copies the data".to_owned(),
                (None, false) => "it has not come up yet".to_owned(),
            };
            self.push(node.clone(), Act::WaitCaughtUp(who.clone()), why, None);
        }
        self.promote(who, node);
    }

    /// Voters that do not take part and are to leave anyway go first, where etcd takes nobody in beside them.
    fn heal(&mut self) {
        let down: Vec<ListedMember> = self.down().filter(|member| !self.stays(member)).cloned().collect();
        let beside = self.joins_somebody() && self.takes_in_beside_a_dead_one() && !self.trusts_too_few();
        for member in &down {
            if beside && self.by_absence(member) {
                continue;
            }
            self.remove(member);
            if self.plan.halt.is_some() {
                return;
            }
        }
    }

    /// Whether the file declares somebody who is not a member yet.
    pub(super) fn joins_somebody(&self) -> bool {
        self.spec.members.iter().any(|declared| self.listed(declared).is_none())
    }

    fn grow(&mut self) {
        let wanted: Vec<Member> =
            self.spec.members.iter().filter(|declared| self.listed(declared).is_none()).cloned().collect();
        for declared in wanted {
            if self.plan.halt.is_some() {
                return;
            }
            // Who has not come up yet holds nobody else up.
            if self.whose == For::Agent && self.view.answer(&declared.name).is_none() {
                self.plan.remarks.push(format!("`{}` joins when its agent runs", declared.name));
                continue;
            }
            self.join(&declared);
        }
    }

    fn join(&mut self, declared: &Member) {
        let node = declared.name.clone();
        let answer = self.view.answer(&node);
        let left = answer.is_some_and(|now| now.stage == Stage::Removed || now.intent == Some(IntentKind::Leave));
        if left {
            let remark = format!("`{node}` left as asked, and the file still declares it");
            self.plan.remarks.push(remark + ": take it out of the file, or `quorate data reset --yes` there");
            return;
        }
        // The same address under another name: the old one makes room first.
        let taken = |member: &&ListedMember| member.peer_urls.iter().any(|url| declared.peer_urls.contains(url));
        if let Some(old) = self.paper.members().iter().find(taken).cloned() {
            self.remove(&old);
        }
        if !self.healthy(None) {
            return;
        }
        let why = match answer {
            Some(_) => "the file declares it".to_owned(),
            None => "the file declares it; its agent has not answered yet".to_owned(),
        };
        let proof = self.paper.prove(Change::AddLearner, &node);
        if let Some(objection) = proof.objection.clone() {
            return self.unproven(&objection, &proof);
        }
        let who = Who::new(node.clone(), None);
        self.push(node.clone(), Act::AddLearner(who.clone()), why, Some(proof));
        self.push(node.clone(), Act::WaitCaughtUp(who.clone()), "it copies the data".to_owned(), None);
        self.promote(who, node);
    }

    /// One more who takes part never makes the cluster weaker, so this goes on while another voter is down: that one may wait
    /// for the learner to be through before it takes its own place anew.
    fn promote(&mut self, who: Who, node: String) {
        let Some(leader) = self.leader() else { return };
        let proof = self.paper.prove(Change::Promote, &node);
        if let Some(objection) = proof.objection.clone() {
            return self.unproven(&objection, &proof);
        }
        self.push(leader, Act::Promote(who), "it has the data then".to_owned(), Some(proof));
    }

    fn undo(&mut self, who: Who, why: String) {
        let Some(leader) = self.leader() else { return };
        let Some(id) = who.id else { return };
        let proof = self.paper.prove(Change::Remove(id), &who.node);
        self.push(leader, Act::UndoLearner(who), why, Some(proof));
    }

    /// Agents tell first where those are that run where the file says and are not found there: until then they count as down, and
    /// nobody leaves meanwhile.
    fn found(&mut self) {
        if self.whose == For::Operator {
            return;
        }
        let lost = |(declared, listed): &(&Member, &ListedMember)| !is_up(listed) && self.is_there(declared);
        let same = |(declared, listed): &(&Member, &ListedMember)| {
            self.view.answer(&declared.name).is_some_and(|now| now.member == Some(listed.id))
        };
        let lost = self.moved().filter(lost).filter(same);
        let lost: Vec<(Member, MemberId)> = lost.map(|(declared, listed)| (declared.clone(), listed.id)).collect();
        for (declared, id) in lost {
            let Some(leader) = self.leader() else { return };
            let act = Act::ChangeUrls { who: Who::new(declared.name, Some(id)), urls: declared.peer_urls };
            self.push(leader, act, "the file gives it another address".to_owned(), None);
        }
    }

    /// Members that the cluster finds under another address than the file says. Never a learner: etcd would make it a voter.
    pub(super) fn urls(&mut self) {
        let told =
            |step: &ChangeStep, id: MemberId| matches!(&step.act, Act::ChangeUrls { who, .. } if who.id == Some(id));
        let told = |id: MemberId| self.plan.steps.iter().any(|step| told(step, id));
        let moved = self.moved().filter(|(_, listed)| !told(listed.id));
        let mut moved: Vec<(Member, ListedMember)> =
            moved.map(|(declared, listed)| (declared.clone(), listed.clone())).collect();
        if self.whose == For::Agent {
            // Who cannot be found comes first, then who is there already: both heal. Whoever leads comes last: two who are not where
            // the cluster looks for them do not find each other, and if one of them leads, the other one is lost.
            let leads = |declared: &Member| self.leader.as_ref() == Some(&declared.name);
            moved.sort_by_key(|(declared, listed)| (is_up(listed), !self.is_there(declared), leads(declared)));
        }
        // Whoever is to be found elsewhere from now on has to be there before the next one moves; a person is told so of those
        // that are down as well.
        let stays = |member: &&ListedMember| !moved.iter().any(|(_, listed)| listed.id == member.id);
        let is_arriving = |member: &&ListedMember| {
            let answer = self.view.answer(&member.name);
            // One that does not say may have to be restarted where it is looked for.
            let unsaid = self.whose == For::Agent && answer.is_none() && self.declared(member).is_some();
            let restarts = stays(member) && answer.is_some_and(|now| now.is_to_move());
            let down = self.whose == For::Operator && stays(member) && !member.learner && !is_up(member);
            down || (restarts || unsaid) && is_up(member)
        };
        let members = self.paper.members().iter().filter(is_arriving);
        let arriving: Vec<String> = members.map(|member| member.name.clone()).collect();
        let most = moved_at_once_max(self.paper.members().iter().filter(|member| !member.learner).count());
        if self.whose == For::Operator && !moved.is_empty() && moved.len() + arriving.len() > most {
            let nodes: Vec<String> = moved.iter().map(|(declared, _)| declared.name.clone()).collect();
            let after = match arriving.is_empty() {
                true => String::new(),
                false => format!(", while not settled: {}", quoted(&arriving)),
            };
            let nodes = quoted(&nodes);
            let why = format!("another address at once for {nodes}{after}: those that stay might not find them");
            let way_out = format!("move {most} at a time, and wait until it is done");
            self.plan.halt = Some(refused(Code::ChangeRefused, why, &way_out));
            return;
        }
        let arriving = self.whose == For::Agent && !arriving.is_empty();
        for (declared, listed) in moved {
            if arriving && is_up(&listed) {
                continue;
            }
            // Who cannot be found where the cluster looks for it is healed by this.
            let now = self.view.answer(&declared.name).filter(|now| now.member == Some(listed.id));
            let held = now.is_some_and(|now| now.file == self.spec.hash());
            let (up, told) = (is_up(&listed), now.is_some());
            if !told || (!up && !held && self.whose == For::Agent) {
                continue;
            }
            let there = self.whose == For::Agent && self.is_there(&declared);
            if !there && !self.healthy(Some(listed.id)) {
                return;
            }
            let doer = if up { Some(declared.name.clone()) } else { self.leader() };
            let Some(doer) = doer else { return };
            let who = Who::new(declared.name.clone(), Some(listed.id));
            let act = Act::ChangeUrls { who, urls: declared.peer_urls.clone() };
            self.push(doer, act, "the file gives it another address".to_owned(), None);
        }
    }

    /// Whether its etcd runs where the file says, as far as its agent tells: then to tell the cluster so heals.
    fn is_there(&self, declared: &Member) -> bool {
        let answer = self.view.answer(&declared.name);
        answer.is_some_and(|now| now.etcd.is_some() && !now.is_to_move() && now.file == self.spec.hash())
    }

    /// Voters whose address in the file is another one than the cluster knows.
    pub(super) fn moved(&self) -> impl Iterator<Item = (&Member, &ListedMember)> {
        self.spec.members.iter().filter_map(|declared| {
            // One that has only been added on paper is at its address.
            let listed = self.listed(declared).filter(|listed| !listed.learner && listed.id != MemberId(0))?;
            let same = listed.peer_urls.len() == declared.peer_urls.len()
                && listed.peer_urls.iter().all(|url| declared.peer_urls.contains(url));
            (!same).then_some((declared, listed))
        })
    }

    pub(super) fn push(&mut self, doer: String, act: Act, why: String, proof: Option<Proof>) {
        self.plan.steps.push(ChangeStep { doer, act, why, proof });
    }

    pub(super) fn leader(&mut self) -> Option<String> {
        if self.leader.is_none() {
            let way_out = "it is asked again in a moment";
            self.plan.halt = Some(waiting(Code::ChangeUnhealthy, "it is not known who leads".to_owned(), way_out));
        }
        self.leader.clone()
    }

    pub(super) fn intent(&self, node: &str) -> Option<IntentKind> {
        self.view.answer(node).and_then(|now| now.intent)
    }

    pub(super) fn declared(&self, listed: &ListedMember) -> Option<&Member> {
        self.spec.members.iter().find(|declared| declared.name == listed.name || is_same(declared, listed))
    }

    pub(super) fn listed(&self, declared: &Member) -> Option<&ListedMember> {
        self.paper.members().iter().find(|listed| listed.name == declared.name)
    }

    /// Neither asked to leave nor left out of the file.
    pub(super) fn stays(&self, member: &ListedMember) -> bool {
        self.declared(member).is_some() && self.intent(&member.name) != Some(IntentKind::Leave)
    }

    pub(super) fn by_absence(&self, member: &ListedMember) -> bool {
        self.declared(member).is_none() && self.intent(&member.name) != Some(IntentKind::Leave)
    }

    /// Voters that are not known to take part.
    pub(super) fn down(&self) -> impl Iterator<Item = &ListedMember> {
        self.paper.members().iter().filter(|member| !member.learner && !is_up(member))
    }

    /// Whether every voter that stays takes part, other than the one that the change is about.
    pub(super) fn healthy(&mut self, but: Option<MemberId>) -> bool {
        if !self.guards.hold(Guard::HealthyFirst) {
            return true;
        }
        let missing = self.down().filter(|member| Some(member.id) != but && self.stays(member));
        let (sick, down): (Vec<_>, Vec<_>) = missing.partition(|member| self.sick.contains_key(&member.id));
        let down: Vec<String> = down.into_iter().map(|member| member.name.clone()).collect();
        if down.is_empty() {
            let Some(one) = sick.first() else { return true };
            let why = self.sick.get(&one.id).map_or("", String::as_str);
            let why = format!("`{}` is not well: {why}; nothing else is changed meanwhile", one.name);
            let way_out = "let it join anew: `quorate data reset --yes` there; or take it out of the file";
            self.plan.halt = Some(waiting(Code::ChangeUnhealthy, why, way_out));
            return false;
        }
        let joins = |node: &&String| self.view.answer(node).is_some_and(|now| now.stage == Stage::Joining);
        let way_out = match down.iter().find(joins) {
            Some(node) => format!("`{node}` takes its own place anew; the change goes on after that"),
            None => "bring it back; who is gone for good is taken out of the file".to_owned(),
        };
        let why = format!("not taking part: {}; nothing is changed meanwhile", quoted(&down));
        self.plan.halt = Some(waiting(Code::ChangeUnhealthy, why, &way_out));
        false
    }

    fn caught_up(&self, learner: &ListedMember) -> bool {
        let index = |id: &MemberId| self.view.indexes.get(id).copied();
        let leads = self.view.leader.as_ref().and_then(index);
        match (leads, index(&learner.id)) {
            (Some(leads), Some(its)) => {
                let well = is_up(learner) && !self.sick.contains_key(&learner.id);
                well && has_caught_up(its, leads)
            }
            (None, _) | (_, None) => false,
        }
    }

    /// Whether etcd adds a learner while a voter is down: earlier releases say "unhealthy cluster", and later ones as well where
    /// those that are up would be no quorum with one voter more. With one of three down they are not.
    fn takes_in_beside_a_dead_one(&self) -> bool {
        let voters = self.paper.members().iter().filter(|member| !member.learner);
        let up = voters.clone().filter(|member| is_up(member));
        // One that answers and is not well is there for etcd.
        let runs = voters.clone().filter(|member| is_up(member) || self.sick.contains_key(&member.id));
        if runs.count() < voters.count().div_ceil(2) + 1 {
            return false;
        }
        let mut releases = up.map(|member| {
            let told = self.view.answer(&member.name).and_then(|now| now.etcd.as_deref());
            told.and_then(Release::parse)
        });
        releases.all(|release| release.is_some_and(|release| release.adds_beside_a_dead_one()))
    }

    pub(super) fn unproven(&mut self, objection: &str, proof: &Proof) {
        let why = format!("a change of members cannot be proven safe: {objection} ({})", proof.before);
        let way_out = "bring the members back that do not answer";
        self.plan.halt = Some(waiting(Code::StartUnproven, why, way_out));
    }
}

pub(super) fn quoted(list: &[String]) -> String {
    names(list.iter().map(String::as_str))
}

fn halt(code: Code, why: String, way_out: &str) -> Halt {
    Halt { code, why, way_out: way_out.to_owned(), lost: None }
}

pub(super) fn waiting(code: Code, why: String, way_out: &str) -> ChangeHalt {
    ChangeHalt { refused: false, halt: halt(code, why, way_out) }
}

pub(super) fn refused(code: Code, why: String, way_out: &str) -> ChangeHalt {
    ChangeHalt { refused: true, halt: halt(code, why, way_out) }
}
