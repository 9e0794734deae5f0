//! Whether a change of members keeps the quorum: shown as a proof that an operator can read.
//!
//! **Rule:** who is not known to take part is counted as gone. Only this much is taken on trust: a list that a quorum just
//! confirmed was confirmed by that many voters, whoever they are.

use std::fmt;

use quorate_etcd_formats::membership::MemberId;

use crate::start::{ClusterSeen, Health, ListedMember, Observed, StartPlan, Step};

/// How many learners etcd takes at once.
pub const LEARNERS_MAX: usize = 1;

/// A change of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// One member leaves.
    Remove(MemberId),
    /// One more listens.
    AddLearner,
    /// A learner gets a vote. It is only asked for once it has caught up, so it takes part.
    Promote,
    /// One member does not take part for a while, and is a member all the same.
    Pause(MemberId),
}

/// What a change does to the quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The change.
    pub change: Change,
    /// Before it, which is also while it is agreed on.
    pub before: Count,
    /// After it.
    pub after: Count,
    /// Why it must not be done now.
    pub objection: Option<String>,
}

/// Voters, and how many of them are known to take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// All.
    pub voters: usize,
    /// Those who are known to take part, at least.
    pub alive: usize,
}

impl Count {
    /// How many are needed.
    pub fn needed(self) -> usize {
        self.voters / 2 + 1
    }

    /// Whether enough are known to take part.
    pub fn has_quorum(self) -> bool {
        self.voters > 0 && self.alive >= self.needed()
    }
}

/// A list of members while changes are made to it, on paper.
#[derive(Debug, Clone)]
pub struct Standing {
    members: Vec<ListedMember>,
    /// How many voters confirmed the list, at least, beyond those who are known to take part.
    alive_at_least: usize,
}

impl Standing {
    /// From a list that a quorum confirmed just now.
    pub fn confirmed(members: &[ListedMember]) -> Standing {
        let voters = members.iter().filter(|member| !member.learner).count();
        Standing { members: members.to_vec(), alive_at_least: voters / 2 + 1 }
    }

    /// From a list that nobody confirmed.
    pub fn unconfirmed(members: &[ListedMember]) -> Standing {
        Standing { members: members.to_vec(), alive_at_least: 0 }
    }

    /// The members, as they stand on paper.
    pub fn members(&self) -> &[ListedMember] {
        &self.members
    }

    /// A member takes part, whatever else is said of it.
    pub fn takes_part(&mut self, id: MemberId) {
        for member in self.members.iter_mut().filter(|member| member.id == id) {
            member.health = Health::Healthy;
        }
    }

    fn count(&self) -> Count {
        let voters = self.members.iter().filter(|member| !member.learner);
        let healthy = voters.clone().filter(|member| member.health == Health::Healthy).count();
        let gone = voters.clone().filter(|member| matches!(member.health, Health::Unhealthy(_))).count();
        let voters = voters.count();
        Count { voters, alive: healthy.max(self.alive_at_least.min(voters - gone)) }
    }

    /// Makes the change on paper, and says what it does.
    pub fn prove(&mut self, change: Change, me: &str) -> Proof {
        let before = self.count();
        if let Change::Pause(id) = change {
            return self.prove_pause(id, before);
        }
        let learners = self.members.iter().filter(|member| member.learner);
        let other = learners.clone().find(|member| member.name != me || me.is_empty()).map(shown);
        let mut objection = None;
        match change {
            Change::Remove(id) => {
                let known_gone = self.members.iter().find(|member| member.id == id);
                // Whoever leaves may be one of those who confirmed the list.
                if known_gone.is_some_and(|member| !member.learner && !matches!(member.health, Health::Unhealthy(_))) {
                    self.alive_at_least = self.alive_at_least.saturating_sub(1);
                }
                self.members.retain(|member| member.id != id);
            }
            Change::AddLearner => {
                if learners.count() >= LEARNERS_MAX {
                    objection = Some(format!("{} is a learner already", other.unwrap_or_default()));
                }
                let health = Health::Unknown("it is being added".to_owned());
                let (id, name, peer_urls) = (MemberId(0), me.to_owned(), Vec::new());
                self.members.push(ListedMember { id, name, peer_urls, started: false, learner: true, health });
            }
            Change::Promote => {
                if let Some(member) = self.members.iter_mut().find(|member| member.learner && member.name == me) {
                    (member.learner, member.health) = (false, Health::Healthy);
                    self.alive_at_least += 1;
                }
            }
            // Met above.
            Change::Pause(_) => {}
        }
        let after = self.count();
        if !before.has_quorum() {
            objection = Some("there is no quorum that could agree to it".to_owned());
        } else if !after.has_quorum() {
            objection = Some("it would take the quorum away".to_owned());
        }
        Proof { change, before, after, objection }
    }
}

impl Standing {
    /// It takes part again afterwards. One or two voters cannot spare one: then writes pause with it, and nothing is lost.
    fn prove_pause(&self, id: MemberId, before: Count) -> Proof {
        let mut without = self.clone();
        let voter = self.members.iter().find(|member| member.id == id && !member.learner);
        if voter.is_some_and(|member| !matches!(member.health, Health::Unhealthy(_))) {
            without.alive_at_least = without.alive_at_least.saturating_sub(1);
        }
        for member in without.members.iter_mut().filter(|member| member.id == id) {
            member.health = Health::Unhealthy("it pauses".to_owned());
        }
        let after = without.count();
        let spare = before.voters <= 2 || after.has_quorum();
        let objection = match () {
            () if !before.has_quorum() => Some("there is no quorum that it could come back to".to_owned()),
            () if !spare => Some("it would take the quorum away meanwhile".to_owned()),
            () => None,
        };
        Proof { change: Change::Pause(id), before, after, objection }
    }
}

/// The proof of each step that changes members, by the number of the step (from 0).
pub fn proofs(name: &str, seen: &Observed, plan: &StartPlan) -> Vec<(usize, Proof)> {
    let mut standing = match &seen.cluster {
        ClusterSeen::Confirmed { members, .. } => Standing::confirmed(members),
        ClusterSeen::Unreachable(_) => Standing::unconfirmed(&[]),
    };
    // A learner that has not started has no name in the list: it is known by its place in the plan.
    if !plan.steps.contains(&Step::AddLearner)
        && let Some(member) = standing.members.iter_mut().find(|member| member.learner && member.name.is_empty())
    {
        name.clone_into(&mut member.name);
    }
    // A node that decides on its start does not run: it is none of those who confirmed the list.
    let removed: Vec<MemberId> = plan.steps.iter().filter_map(removed).collect();
    for member in standing.members.iter_mut().filter(|member| removed.contains(&member.id)) {
        member.health = Health::Unhealthy("its node has no data".to_owned());
    }
    let change = |step: &Step| match step {
        Step::RemoveMember(id) => Some(Change::Remove(*id)),
        Step::AddLearner => Some(Change::AddLearner),
        Step::Promote => Some(Change::Promote),
        Step::Validate(_)
        | Step::RepairTail
        | Step::Archive
        | Step::Restore { .. }
        | Step::Init { .. }
        | Step::Write(_)
        | Step::WriteGeneration(_)
        | Step::WriteOutdated(_)
        | Step::WriteRolledBack(..)
        | Step::TellPeers
        | Step::Start { .. }
        | Step::Wait(_)
        | Step::Refuse(_) => None,
    };
    let steps = plan.steps.iter().enumerate();
    steps.filter_map(|(at, step)| change(step).map(|change| (at, standing.prove(change, name)))).collect()
}

fn removed(step: &Step) -> Option<MemberId> {
    if let Step::RemoveMember(id) = step { Some(*id) } else { None }
}

fn shown(member: &ListedMember) -> String {
    if member.name.is_empty() { format!("member `{}`", member.id) } else { format!("`{}`", member.name) }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (voters, alive, needed) = (self.voters, self.alive, self.needed());
        write!(f, "{alive} of {voters} voters are known to take part, {needed} are needed")
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = if matches!(self.change, Change::Pause(_)) { "meanwhile" } else { "after" };
        write!(f, "before: {}; {after}: {}", self.before, self.after)?;
        match &self.objection {
            None if !self.after.has_quorum() => f.write_str("; writes pause until it is back"),
            None => f.write_str("; the quorum holds"),
            Some(why) => write!(f, "; {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(healths: &[(Health, bool)]) -> Vec<ListedMember> {
        let one = |(at, (health, learner)): (usize, &(Health, bool))| ListedMember {
            id: MemberId(at as u64 + 1),
            name: format!("n{}", at + 1),
            peer_urls: Vec::new(),
            started: true,
            learner: *learner,
            health: health.clone(),
        };
        healths.iter().enumerate().map(one).collect()
    }

    fn unknown() -> Health {
        Health::Unknown("not asked".into())
    }

    fn gone() -> Health {
        Health::Unhealthy("down".into())
    }

    #[test]
    fn a_lost_member_is_replaced_while_the_others_keep_the_quorum() {
        let mut standing = Standing::confirmed(&list(&[(gone(), false), (Health::Healthy, false), (unknown(), false)]));
        let changes = [Change::Remove(MemberId(1)), Change::AddLearner, Change::Promote];
        let proofs = changes.map(|change| standing.prove(change, "n1").to_string());
        assert_eq!(
            proofs,
            [
                "before: 2 of 3 voters are known to take part, 2 are needed; after: 2 of 2 voters are known to take part, 2 are needed; the quorum holds",
                "before: 2 of 2 voters are known to take part, 2 are needed; after: 2 of 2 voters are known to take part, 2 are needed; the quorum holds",
                "before: 2 of 2 voters are known to take part, 2 are needed; after: 3 of 3 voters are known to take part, 2 are needed; the quorum holds",
            ]
        );
    }

    #[test]
    fn who_may_be_one_of_the_quorum_is_not_removed_on_trust() {
        let three = list(&[(unknown(), false), (unknown(), false), (unknown(), false)]);
        let proof = Standing::confirmed(&three).prove(Change::Remove(MemberId(3)), "n1");
        assert_eq!(proof.objection.as_deref(), Some("it would take the quorum away"));
        let proof = Standing::unconfirmed(&three).prove(Change::Remove(MemberId(3)), "n1");
        assert_eq!(proof.objection.as_deref(), Some("there is no quorum that could agree to it"));
        let known = list(&[(Health::Healthy, false), (Health::Healthy, false), (unknown(), false)]);
        assert_eq!(Standing::confirmed(&known).prove(Change::Remove(MemberId(3)), "n1").objection, None);
    }

    #[test]
    fn the_second_voter_of_two_cannot_be_taken_away() {
        let two = list(&[(Health::Healthy, false), (gone(), false)]);
        let proof = Standing::confirmed(&two).prove(Change::Remove(MemberId(2)), "n1");
        assert!(!proof.before.has_quorum() && proof.objection.is_some(), "{proof}");
    }

    #[test]
    fn a_pause_is_taken_only_where_the_others_are_enough_or_never_can_be() {
        let up = || (Health::Healthy, false);
        let pause = |list: &[(Health, bool)]| {
            Standing::confirmed(&self::list(list)).prove(Change::Pause(MemberId(1)), "n1").to_string()
        };
        assert!(
            pause(&[up(), up(), up()])
                .ends_with("meanwhile: 2 of 3 voters are known to take part, 2 are needed; the quorum holds")
        );
        assert!(pause(&[up(), up(), (gone(), false)]).ends_with("it would take the quorum away meanwhile"));
        assert!(pause(&[up(), up()]).ends_with("writes pause until it is back"));
        assert!(pause(&[up()]).ends_with("writes pause until it is back"));
    }

    #[test]
    fn one_learner_at_a_time() {
        let busy = list(&[(Health::Healthy, false), (Health::Healthy, true)]);
        let proof = Standing::confirmed(&busy).prove(Change::AddLearner, "n1");
        assert_eq!(proof.objection.as_deref(), Some("`n2` is a learner already"));
    }
}
