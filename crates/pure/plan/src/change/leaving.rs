//! Who leaves: by request or because the file does not declare it, in which order, and by whose hand.
//!
//! **Rule:** whoever is down leaves first and the leader last, after it has handed over; by a file only when a quorum holds it.

use quorate_etcd_formats::membership::MemberId;
use quorate_faults::Code;

use super::For;
use super::decide::{Case, quoted, refused, waiting};
use super::step::{Act, Who};
use super::view::{Stage, is_up};
use crate::ledger::IntentKind;
use crate::quorum::Change;
use crate::start::ListedMember;
use crate::start::guards::{Guard, Guards};

impl<G: Guards> Case<'_, G> {
    pub(super) fn shrink(&mut self) {
        let leader = self.leader.clone();
        let leaves = |member: &&ListedMember| !self.stays(member) || !self.guards.hold(Guard::DeclaredStays);
        let mut leaving: Vec<ListedMember> =
            self.paper.members().iter().filter(|member| !member.learner).filter(leaves).cloned().collect();
        leaving.sort_by_key(|member| {
            (Some(&member.name) == leader.as_ref(), is_up(member), std::cmp::Reverse(member.name.clone()))
        });
        for member in &leaving {
            self.remove(member);
            if self.plan.halt.is_some() {
                return;
            }
        }
    }

    /// Removes a member, through another one.
    pub(super) fn remove(&mut self, member: &ListedMember) {
        let (node, who) = (member.name.clone(), Who::new(member.name.clone(), Some(member.id)));
        let voters = self.paper.members().iter().filter(|one| !one.learner);
        let last = !member.learner && voters.clone().count() == 1;
        if last {
            let why = format!("`{node}` is the last member");
            let way_out = "declare another one, which joins first; or end the cluster: `quorate cluster teardown`";
            self.plan.halt = Some(refused(Code::LastMember, why, way_out));
            return;
        }
        let asked = self.intent(&node) == Some(IntentKind::Leave);
        if !asked && !self.has_made_room(member) {
            return;
        }
        if !asked && !self.agreed() || !self.healthy(Some(member.id)) || !self.hand_over(member) {
            return;
        }
        let Some(leader) = self.leader() else { return };
        // One that is not well has its vote in this all the same.
        let runs = is_up(member) || self.sick.contains_key(&member.id);
        if runs {
            self.paper.takes_part(member.id);
        }
        let proof = self.paper.prove(Change::Remove(member.id), &node);
        if let Some(objection) = proof.objection.clone() {
            return self.unproven(&objection, &proof);
        }
        let why = if asked { "it was asked to leave" } else { "the file does not declare it" };
        let doer = if asked && is_up(member) { node } else { leader };
        self.push(doer, Act::Remove(who.clone()), why.to_owned(), Some(proof));
        self.bury(&who, runs);
    }

    /// Whether nobody has to come in first: a member that runs is replaced before it leaves.
    fn has_made_room(&mut self, member: &ListedMember) -> bool {
        let missing = self.spec.members.iter().find(|declared| self.listed(declared).is_none());
        let missing = missing.map(|declared| declared.name.clone());
        let voters = self.paper.members().iter().filter(|one| !one.learner).count();
        let Some(missing) = missing.filter(|_| is_up(member) && voters <= self.spec.members.len()) else { return true };
        if self.whose == For::Operator {
            return true;
        }
        let why = format!("`{}` leaves when `{missing}` has joined", member.name);
        self.plan.halt = Some(waiting(Code::StartWaiting, why, "start the agent of the one that is to join"));
        false
    }

    pub(super) fn bury(&mut self, who: &Who, runs: bool) {
        if runs {
            let why = "etcd ends when it hears of it".to_owned();
            self.push(who.node.clone(), Act::WaitExit(who.clone()), why, None);
        }
        self.push(who.node.clone(), Act::Bury(who.clone()), "it does not come back by itself".to_owned(), None);
    }

    /// Whoever leads hands over before it goes: to a voter that stays, the furthest of them.
    pub(super) fn hand_over(&mut self, member: &ListedMember) -> bool {
        let leads = self.leader.as_ref() == Some(&member.name);
        let others = self.paper.members().iter().filter(|other| !other.learner && other.id != member.id);
        if !leads || others.clone().count() == 0 || !self.guards.hold(Guard::LeaderMoves) {
            return true;
        }
        let restarts = |node: &str| self.view.answer(node).is_some_and(|now| now.restart.is_some());
        let heir = others.filter(|other| is_up(other)).max_by_key(|other| {
            let index = self.view.indexes.get(&other.id).copied().unwrap_or(0);
            (self.stays(other), !restarts(&other.name), index, std::cmp::Reverse(other.name.clone()))
        });
        let Some(heir) = heir.cloned() else {
            let why = format!("nobody takes part whom `{}` could hand leadership to", member.name);
            self.plan.halt = Some(waiting(Code::ChangeUnhealthy, why, "bring the other voters back"));
            return false;
        };
        let from = Who::new(member.name.clone(), Some(member.id));
        // One that has only been added on paper has no id yet.
        let id = Some(heir.id).filter(|id| *id != MemberId(0));
        let act = Act::MoveLeader { from, to: Who::new(heir.name.clone(), id) };
        self.push(member.name.clone(), act, "it leads".to_owned(), None);
        self.leader = Some(heir.name);
        true
    }

    /// Whether a quorum of the voters' agents hold this very file, and nobody who answers holds another.
    pub(super) fn agreed(&mut self) -> bool {
        if self.whose == For::Operator || !self.guards.hold(Guard::FileAgreed) {
            return true;
        }
        let file = self.spec.hash();
        let part = |stage: Stage| matches!(stage, Stage::Member | Stage::Joining);
        let others: Vec<String> = self
            .view
            .answers()
            .filter(|(name, now)| (part(now.stage) || self.spec.member(name).is_some()) && now.file != file)
            .map(|(name, _)| name.to_owned())
            .collect();
        let voters = self.paper.members().iter().filter(|member| !member.learner);
        let same = voters.clone().filter(|member| self.view.answer(&member.name).is_some_and(|now| now.file == file));
        let (same, needed) = (same.count(), voters.count() / 2 + 1);
        if others.is_empty() && same >= needed {
            return true;
        }
        let why = match others.is_empty() {
            false => format!("another cluster file is held by {}", quoted(&others)),
            true => format!("{same} voters are known to hold this cluster file, and {needed} are needed"),
        };
        let way_out = "give every node the same file: `quorate cluster apply FILE`";
        self.plan.halt = Some(waiting(Code::FilesDiffer, why, way_out));
        false
    }
}
