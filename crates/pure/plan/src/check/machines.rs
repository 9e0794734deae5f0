//! Whether a member may run on another machine, read from what was seen and from nothing that the planner made of it.

use quorate_etcd_formats::membership::MemberId;

use super::Audit;
use crate::start::{AgentSeen, Holder, LeasesSeen, ListedMember};

impl Audit<'_> {
    /// Somebody has this member, or this node's name, elsewhere. `removes`: connections count though this machine held the lease.
    pub(super) fn runs_elsewhere(&self, id: MemberId, removes: bool) -> bool {
        let seen = &self.seen.sightings;
        let (own, others) = match &seen.leases {
            LeasesSeen::Unknown(_) => (false, false),
            LeasesSeen::Held(held) => match held.get(self.name) {
                Some(Holder::ThisMachine) => (true, false),
                Some(Holder::Another(_)) => (false, true),
                None => (false, false),
            },
        };
        let agent = matches!(seen.agent, AgentSeen::Another(_));
        let answers = seen.answering.iter().any(|one| one.member == id || one.name == self.name);
        let voter =
            |voter: &MemberId| self.members().iter().any(|one| one.id == *voter && !one.learner && one.id != id);
        let listed = self.members().iter().any(|member| member.id == id);
        let connected = seen.views.iter().any(|(by, with)| voter(by) && with.contains(&id));
        others || agent || answers || (listed && connected && (removes || !own))
    }

    /// Another machine holds the name of this node, or a server answers under it.
    pub(super) fn name_is_taken(&self) -> bool {
        let seen = &self.seen.sightings;
        let leased = match &seen.leases {
            LeasesSeen::Unknown(_) => false,
            LeasesSeen::Held(held) => matches!(held.get(self.name), Some(Holder::Another(_))),
        };
        let agent = matches!(seen.agent, AgentSeen::Another(_));
        leased || agent || seen.answering.iter().any(|one| one.name == self.name)
    }

    /// The leases were read, and more than half of the voters said that they are not connected with this member.
    pub(super) fn heard_gone(&self, id: MemberId, members: &[ListedMember]) -> bool {
        let voters = || members.iter().filter(|member| !member.learner);
        let views = &self.seen.sightings.views;
        let without = |voter: &&ListedMember| views.get(&voter.id).is_some_and(|with| !with.contains(&id));
        let told = voters().filter(|voter| voter.id != id).filter(without).count();
        matches!(self.seen.sightings.leases, LeasesSeen::Held(_)) && told * 2 > voters().count()
    }
}
