//! The rows that change who is a member: joining, resuming, and taking one's own lost place anew.
//!
//! **Invariant:** one change at a time, each with a proof that the quorum survives it; and the ledger says what is wished before
//! the cluster is asked, so that an answer that is lost is found again.

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::Code;

use super::guards::{Guard, Guards};
use super::halts::{refuse, wait};
use super::rows::Case;
use super::{ClusterSeen, ListedMember, PeerFounding, Row, StartPlan, Step};
use crate::change::{is_same, is_up};
use crate::ledger::{PendingAdd, State};
use crate::quorum;
use crate::roster::names;

impl<G: Guards> Case<'_, G> {
    /// An add that may or may not have been heard.
    pub(super) fn resume_add(&self, add: &PendingAdd) -> StartPlan {
        let Some(members) = self.confirmed() else { return self.wait_for_cluster("the cluster that this node joins") };
        let given = members.iter().find(|member| Some(member.id) == add.member);
        let mine = given.or_else(|| members.iter().find(|member| self.is_mine(member)));
        match mine {
            // Without data, an id that ran is not run again: it has forgotten what it voted for and acknowledged.
            Some(member)
                if (member.started || Some(member.id) == add.replaces) && self.guards.hold(Guard::ResumeUnstarted) =>
            {
                self.replace(Row::DiskLost, members, Some(member.id))
            }
            Some(member) => self.resume(member),
            None => self.join(members),
        }
    }

    /// Takes this node's own place anew: the old member out, a learner in.
    pub(super) fn replace(&self, row: Row, members: &[ListedMember], old: Option<MemberId>) -> StartPlan {
        if let Some(plan) = self.undeclared_now() {
            return plan;
        }
        if old.is_none()
            && let Some(plan) = self.unhealthy(members).or_else(|| self.unaccepted(members))
        {
            return plan;
        }
        let listed = old.filter(|old| members.iter().any(|member| member.id == *old));
        let mut steps = self.archive();
        steps.extend(self.wish(None, old));
        steps.extend(listed.map(Step::RemoveMember));
        steps.extend([Step::AddLearner, Step::Start { joining: true }, Step::Promote]);
        let plan = self.proven(StartPlan::new(row, steps), members, old);
        let removes = listed.filter(|_| plan.waiting().is_none());
        removes.and_then(|old| self.may_run_elsewhere(old)).unwrap_or(plan)
    }

    /// Becomes a member of a cluster that does not know this node.
    pub(super) fn join(&self, members: &[ListedMember]) -> StartPlan {
        let held = self.undeclared_now().or_else(|| self.unhealthy(members)).or_else(|| self.unaccepted(members));
        if let Some(plan) = held {
            return plan;
        }
        let mut steps = self.wish(None, None);
        steps.extend([Step::AddLearner, Step::Start { joining: true }, Step::Promote]);
        self.proven(StartPlan::new(Row::Join, steps), members, None)
    }

    /// Joins the cluster that this node was removed from, as a new member.
    pub(super) fn come_back(&self, members: &[ListedMember]) -> StartPlan {
        match members.iter().find(|member| self.is_mine(member)) {
            Some(member) if member.started => self.replace(Row::DiskLost, members, Some(member.id)),
            Some(member) => self.resume(member),
            None => self.join(members),
        }
    }

    /// Nobody new comes in while a voter that stays is down.
    fn unhealthy(&self, members: &[ListedMember]) -> Option<StartPlan> {
        let stays = |member: &ListedMember| self.spec.members.iter().any(|declared| is_same(declared, member));
        let down: Vec<&str> = members
            .iter()
            .filter(|member| !member.learner && !is_up(member) && stays(member) && !self.is_mine(member))
            .map(|member| member.name.as_str())
            .collect();
        if down.is_empty() || !self.guards.hold(Guard::HealthyFirst) {
            return None;
        }
        let why = format!("not taking part: {}; nobody joins meanwhile", names(down));
        let way_out = "bring it back; who is gone for good is taken out of the file";
        Some(StartPlan::new(Row::Unproven, wait(Code::ChangeUnhealthy, why, way_out)))
    }

    /// While authorities are rotated, a voter may trust the new one alone as soon as its etcd restarts, and then rejects a member that
    /// joined with an earlier certificate: the two would have no quorum. Its agent rejects such a node at once.
    fn unaccepted(&self, members: &[ListedMember]) -> Option<StartPlan> {
        let stays = |member: &ListedMember| self.spec.members.iter().any(|declared| is_same(declared, member));
        let silent = |member: &ListedMember| !self.answers().any(|(peer, _)| peer == member.name);
        let voters = members.iter().filter(|member| !member.learner && stays(member) && !self.is_mine(member));
        let silent: Vec<&str> = voters.filter(|member| silent(member)).map(|member| member.name.as_str()).collect();
        if !self.seen.rotates || silent.is_empty() || !self.guards.hold(Guard::HealthyFirst) {
            return None;
        }
        let why = format!("authorities are being rotated, and these agents may reject this node: {}", names(silent));
        let way_out = "go on with `quorate ca rotate`, or give this node new certificates (`quorate ca issue`)";
        Some(StartPlan::new(Row::Unproven, wait(Code::ChangeUnhealthy, why, way_out)))
    }

    /// Starts as the member that the cluster has added and never seen.
    pub(super) fn resume(&self, member: &ListedMember) -> StartPlan {
        let mut steps = self.wish(Some(member.id), None);
        steps.push(Step::Start { joining: true });
        steps.extend(member.learner.then_some(Step::Promote));
        StartPlan::new(Row::ResumeAdd, steps)
    }

    /// A peer that belongs to another cluster than the one that answers: which of them is ours is for a person to say.
    pub(super) fn elsewhere(&self) -> Option<StartPlan> {
        let ours = self.confirmed_id()?;
        let other = self.answers().find_map(|(peer, answer)| match &answer.founding {
            PeerFounding::Founded(cluster) if *cluster != ours => Some((peer, *cluster)),
            PeerFounding::Founded(_) | PeerFounding::Nothing | PeerFounding::Promised(_) | PeerFounding::Removed => {
                None
            }
        });
        let (peer, other) = other.filter(|_| self.guards.hold(Guard::OtherCluster))?;
        let why = format!("`{peer}` belongs to cluster `{other}`, and the members that answer are `{ours}`");
        let way_out = "find out which one is meant, and reset the nodes of the other: `quorate data reset --yes`";
        Some(StartPlan::new(Row::OtherCluster, refuse(Code::StartDisagree, why, way_out)))
    }

    pub(super) fn confirmed_id(&self) -> Option<ClusterId> {
        match &self.seen.cluster {
            ClusterSeen::Confirmed { cluster, .. } => Some(*cluster),
            ClusterSeen::Unreachable(_) => None,
        }
    }

    /// The ledger's words for it. The generation is that of the cluster, so that the newcomer is not behind.
    fn wish(&self, member: Option<MemberId>, replaces: Option<MemberId>) -> Vec<Step> {
        let Some(cluster) = self.confirmed_id() else { return Vec::new() };
        if member.is_none() && !self.guards.hold(Guard::LedgerFirst) {
            return Vec::new();
        }
        let generation = self.answers().map(|(_, answer)| answer.generation).max().unwrap_or(0);
        let generation = generation.max(self.ledger.generation);
        let add = PendingAdd { cluster, member, peer_urls: self.peer_urls().to_vec(), replaces, generation };
        vec![Step::Write(State::PendingAdd(add))]
    }

    /// The plan, if it may be carried out now.
    fn proven(&self, plan: StartPlan, members: &[ListedMember], old: Option<MemberId>) -> StartPlan {
        let other = members.iter().find(|member| member.learner && Some(member.id) != old && !self.is_mine(member));
        if let Some(other) = other
            && self.guards.hold(Guard::OneChange)
        {
            let who = if other.name.is_empty() { other.peer_urls.join(",") } else { other.name.clone() };
            let why = format!("waiting for `{who}` to become a voter: one change of members at a time");
            let way_out = "if it does not come up, the agent of the leader takes it out again";
            return StartPlan::new(Row::AnotherChange, wait(Code::StartAnotherChange, why, way_out));
        }
        let proofs = quorum::proofs(self.name, self.seen, &plan);
        match proofs.iter().find_map(|(_, proof)| proof.objection.as_ref().map(|why| (proof, why))) {
            Some((proof, why)) if self.guards.hold(Guard::OneChange) => {
                let why = format!("a change of members cannot be proven safe: {why} ({})", proof.before);
                let way_out = "bring the members back that do not answer";
                StartPlan::new(Row::Unproven, wait(Code::StartUnproven, why, way_out))
            }
            Some(_) | None => plan,
        }
    }
}
