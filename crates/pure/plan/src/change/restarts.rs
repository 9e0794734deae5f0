//! Who restarts, one at a time: because its flags, its binary or whom it trusts have changed.
//!
//! **Rule:** every voter takes part before each restart, the leader comes last and hands over first, and another release is not
//! started before the store holds what the cluster held after the last step.

use quorate_etcd_formats::membership::MemberId;
use quorate_faults::Code;

use super::For;
use super::decide::{Case, refused, waiting};
use super::step::{Act, ChangeStep, OPERATOR, Who};
use super::upgrade::{self, Kind, OldEntries, Release};
use super::view::{Restart, is_up};
use crate::quorum::Change;
use crate::roster::names;
use crate::start::ListedMember;
use crate::start::guards::{Guard, Guards};

impl<G: Guards> Case<'_, G> {
    /// A member that does not trust yet what its files say restarts before any node joins or leaves: it may reject a new member, and it
    /// rejects the agent of a leaving one that already shows a certificate of the new authority, which then takes it for down and
    /// waits. One that has another address first has the cluster told where it will be. Where that cannot be done now, nothing is
    /// held up by it.
    pub(super) fn trust_first(&mut self) {
        let may = (self.joins_somebody() || self.any_leaves()) && self.down().next().is_none();
        if may && self.moves_before_it_trusts() {
            self.unless_it_halts(Case::urls);
        }
        let turns: Vec<_> = self.turns().into_iter().filter(|(_, restart)| may && restart.trust).collect();
        self.unless_it_halts(|case| case.take_turns(&turns));
    }

    /// Whether a voter is to leave.
    fn any_leaves(&self) -> bool {
        self.paper.members().iter().any(|member| !member.learner && !self.stays(member))
    }

    /// Takes these steps on paper, or none of them where they halt.
    fn unless_it_halts(&mut self, steps: impl FnOnce(&mut Self)) {
        let before = (self.plan.clone(), self.paper.clone(), self.leader.clone());
        steps(self);
        if self.plan.halt.is_some() {
            (self.plan, self.paper, self.leader) = before;
        }
    }

    /// Whether a member that might reject a new one waits for the cluster to be told of its other address.
    fn moves_before_it_trusts(&self) -> bool {
        let stale = |id: MemberId| {
            let now = self.view.answers().find(|(_, now)| now.member == Some(id));
            now.is_some_and(|(_, now)| now.restart.as_ref().is_some_and(|restart| restart.trust))
        };
        self.whose == For::Agent && self.moved().any(|(_, listed)| stale(listed.id))
    }

    /// Whether somebody runs who might not let a newcomer in.
    pub(super) fn trusts_too_few(&self) -> bool {
        self.turns().iter().any(|(_, restart)| restart.trust)
    }

    pub(super) fn restarts(&mut self) {
        let turns = self.turns();
        self.take_turns(&turns);
    }

    /// Who has to be restarted and is not on the plan yet, in the order of their turns.
    fn turns(&self) -> Vec<(ListedMember, Restart)> {
        // The cluster is told first where to find them.
        let moved: Vec<MemberId> = self.moved().map(|(_, listed)| listed.id).collect();
        let waits = |id: MemberId| self.whose == For::Agent && moved.contains(&id);
        let planned = |id: MemberId| self.plan.steps.iter().any(|step| is_restart_of(step, id));
        let due = |member: &ListedMember| {
            // One that joins starts as it is wanted.
            let now = self.view.answer(&member.name).filter(|now| now.member == Some(member.id))?;
            let restart = now.restart.clone()?;
            let runs = is_up(member) || self.sick.contains_key(&member.id);
            (runs && !waits(member.id) && !planned(member.id)).then(|| (member.clone(), restart))
        };
        let mut turns: Vec<_> = self.paper.members().iter().filter_map(due).collect();
        // Whoever is not well may be healed by it, and comes first; then who trusts too few, since another one may take it for down.
        let leads = |member: &ListedMember| self.leader.as_ref() == Some(&member.name);
        turns.sort_by_key(|(member, restart)| (is_up(member), !restart.trust, leads(member), member.name.clone()));
        turns
    }

    fn take_turns(&mut self, turns: &[(ListedMember, Restart)]) {
        let Some((first, _)) = turns.first() else { return };
        // One that pauses and does not come back is down, which is said below.
        let down: Vec<&str> = self.down().map(|member| member.name.as_str()).collect();
        let pauses = self.view.answers().find(|(name, now)| now.pausing && *name != first.name && !down.contains(name));
        if let Some((other, _)) = pauses
            && self.guards.hold(Guard::OnePause)
        {
            let why = format!("`{other}` pauses its etcd, and members do that one at a time");
            self.plan.halt = Some(waiting(Code::ChangeUnhealthy, why, "it goes on when that one serves again"));
            return;
        }
        for (member, restart) in turns {
            let steps = self.plan.steps.len();
            self.restart(member, restart);
            if self.plan.halt.is_some() || self.plan.steps.get(steps..).is_none_or(|new| !new.iter().any(is_restart)) {
                return;
            }
        }
    }

    fn restart(&mut self, member: &ListedMember, restart: &Restart) {
        let sick = self.sick.contains_key(&member.id).then_some(member.id);
        if !self.healthy(sick) {
            if restart.release.is_some() {
                self.plan.halt = self.plan.halt.take().map(|halt| upgrade::stopped(self.view, halt.halt));
            }
            return;
        }
        if let Some(release) = &restart.release {
            if !self.release_fits(&member.name, release) {
                return;
            }
            if !self.back_up() {
                return;
            }
        }
        if !self.hand_over(member) {
            return;
        }
        let (node, who) = (member.name.clone(), Who::new(member.name.clone(), Some(member.id)));
        let mut paper = self.paper.clone();
        paper.takes_part(member.id);
        let proof = paper.prove(Change::Pause(member.id), &node);
        if let Some(objection) = proof.objection.clone()
            && self.guards.hold(Guard::HealthyFirst)
        {
            return self.unproven(&objection, &proof);
        }
        let act = Act::Restart { who, release: restart.release.clone() };
        self.push(node, act, restart.why.clone(), Some(proof));
    }

    /// Whether etcd of this release can take over what is there.
    fn release_fits(&mut self, node: &str, release: &str) -> bool {
        let Some(to) = Release::parse(release) else {
            let why = format!("`{release}` is no release of etcd");
            self.plan.halt = Some(refused(Code::UpgradeRefused, why, "write it like `3.5.16`"));
            return false;
        };
        let step = upgrade::allowed(&upgrade::releases(self.view), to);
        let kind = match step {
            Ok(kind) => kind,
            Err(no) => {
                self.plan.halt = Some(refused(Code::UpgradeRefused, no.why, &no.way_out));
                return false;
            }
        };
        match upgrade::old_entries(self.view, to) {
            Err(halt) => {
                self.plan.halt = Some(*halt);
                return false;
            }
            Ok(None) => {}
            Ok(Some(found)) if !self.snapshot_logs(&found) => return false,
            Ok(Some(_)) => {}
        }
        let storage = self.view.answer(node).and_then(|now| now.storage.as_deref());
        if !upgrade::is_stored_later(storage, to) {
            return true;
        }
        match (kind, to.table(), self.leader.clone()) {
            (Kind::Down, Some(minor), Some(leader)) => {
                let told = |step: &ChangeStep| matches!(step.act, Act::EnableDowngrade(_));
                if !self.plan.steps.iter().any(told) {
                    self.push(leader, Act::EnableDowngrade(minor), format!("`{node}` stores its data later"), None);
                }
                // Agents look again until the data is stored that way; for a person the whole way is shown.
                self.whose == For::Operator
            }
            _ => {
                let why = format!("`{node}` stores its data in a form that etcd {to} does not read");
                self.plan.halt = Some(refused(Code::UpgradeRefused, why, "stay with the release that wrote it"));
                false
            }
        }
    }

    /// A raft snapshot behind what the next release cannot read, on every member and with the release that runs. Whether to go on
    /// with the plan: agents observe their logs again first, for an operator the whole way is shown.
    fn snapshot_logs(&mut self, found: &OldEntries) -> bool {
        if self.plan.steps.iter().any(|step| step.act == Act::SnapshotLog) {
            return true;
        }
        if self.whose == For::Agent && found.is_read_late {
            let why = format!("the logs are read again for entries of earlier releases ({})", found.holds);
            self.plan.halt = Some(waiting(Code::StartWaiting, why, "it continues when the agents have read them"));
            return false;
        }
        // One that is not well is not given more to apply, even where its restart would heal it.
        if !self.healthy(None) {
            self.plan.halt = self.plan.halt.take().map(|halt| upgrade::stopped(self.view, halt.halt));
            return false;
        }
        let Some(leader) = self.leader() else { return false };
        self.push(leader, Act::SnapshotLog, found.holds.clone(), None);
        self.whose == For::Operator
    }

    /// Before another release touches the data, and after each step anew: judged by revisions, so that no clock has a say.
    fn back_up(&mut self) -> bool {
        if self.spec.backup.is_none() {
            let remark = "no store of backups is declared: nothing is backed up before the release changes";
            if !self.plan.remarks.iter().any(|said| said == remark) {
                self.plan.remarks.push(remark.to_owned());
            }
            return true;
        }
        if self.whose == For::Agent && !self.plan.steps.iter().any(is_restart) {
            match self.view.to_be_stored() {
                Ok(revision) if self.view.stored.is_some_and(|stored| stored >= revision) => return true,
                Ok(_) => {}
                Err(silent) => {
                    let named = self.paper.members().iter().filter(|member| silent.contains(&member.id));
                    let nodes = names(named.map(|member| member.name.as_str()));
                    let why =
                        format!("not told yet at which revision its etcd came up: {nodes}; no backup counts before");
                    let halt = waiting(Code::StartWaiting, why, "it goes on when that agent has looked at its etcd");
                    self.plan.halt = Some(halt);
                    return false;
                }
            }
        }
        let doer = self.leader.clone().unwrap_or_else(|| OPERATOR.to_owned());
        self.push(doer, Act::Backup, "the release changes next".to_owned(), None);
        true
    }
}

fn is_restart(step: &ChangeStep) -> bool {
    matches!(step.act, Act::Restart { .. })
}

fn is_restart_of(step: &ChangeStep, id: MemberId) -> bool {
    matches!(&step.act, Act::Restart { who, .. } if who.id == Some(id))
}
