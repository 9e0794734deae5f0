//! What an operator does by hand about certificates: new machines, nodes that a rotation left behind, and members that reject a node which
//! cannot be replaced meanwhile.

use quorate_faults::Code;

use super::Certificates;
use crate::world::World;

impl World {
    /// A machine that has never run gets its certificates by hand: `ca csr`, `ca issue`, `ca install`.
    pub(crate) fn equip_by_hand(&mut self, node: usize) {
        let issuing = self.authorities.issuing();
        self.nodes[node].certificates = Certificates::made_by(issuing, self.authorities.brought_along());
        if self.authorities.number > 0 {
            self.tell(Some(node), format!("gets certificates of authority {issuing} by hand"));
        }
    }

    /// Calm: whoever was left out of a rotation because nobody declared it reaches nobody. A person moves its folder aside and makes
    /// certificates anew where it is declared, and switches it off where it is not.
    pub(super) fn equip_left_behind(&mut self) {
        let Some((_, config)) = self.present() else { return };
        let (issuing, trusted) = (self.authorities.issuing(), self.authorities.trusted());
        for node in 0..self.nodes.len() {
            let it = &self.nodes[node];
            let mine = it.data.as_ref().map(|data| data.member);
            let member = config.members.iter().any(|member| Some(member.id) == mine);
            let accepted = it.certificates.trusts.contains(&issuing) && trusted.contains(&it.certificates.leaf);
            // The last member has no other one that could bring it the newest order, or a certificate that others accept; and the others
            // may have been made by hand after the rotation, and have recorded none.
            let last = member && config.members.len() == 1;
            let behind = !self.authorities.is_open() && !it.certificates.trusts.iter().eq(&trusted);
            let untold = member && behind && !self.is_told_by_others(node);
            if untold || last && (behind || !trusted.contains(&it.certificates.leaf)) {
                self.equip_by_hand(node);
                continue;
            }
            if member || accepted {
                continue;
            }
            if self.nodes[node].runs {
                let it = &mut self.nodes[node];
                (it.runs, it.leads, it.checked) = (false, false, None);
                self.tell(Some(node), "a person stops its etcd, which nobody trusts".to_owned());
            }
            self.equip_by_hand(node);
        }
    }

    /// Whether another node that it asks has recorded the newest order.
    fn is_told_by_others(&self, node: usize) -> bool {
        let others = self.declared(self.nodes[node].file).into_iter().filter(|other| *other != node);
        let newest = |other: usize| self.nodes[other].certificates.order.as_ref().map(|order| order.number);
        others.into_iter().any(|other| newest(other) == Some(self.authorities.number))
    }

    /// Calm: the machine of a voter was lost, and the new one has certificates of the new authority. A member whose etcd runs with
    /// earlier trust rejects it and is not restarted while a voter is down, and the new machine takes no place before that member has
    /// reported whom it sees: the operator restarts it.
    pub(super) fn restart_rejecting(&mut self) {
        let waits =
            |it: &crate::world::Node| it.halt.as_ref().is_some_and(|(halt, _)| halt.code == Code::MachineUnknown);
        let Some(waiting) = self.nodes.iter().position(|it| !it.runs && waits(it)) else { return };
        let rejects = |node: &usize| self.nodes[*node].runs && self.is_stale(*node) && !self.reaches(waiting, *node);
        let Some(node) = (0..self.nodes.len()).find(rejects) else { return };
        let it = &mut self.nodes[node];
        (it.runs, it.leads, it.checked, it.plan, it.restarting) = (false, false, None, None, true);
        self.tell(Some(node), "a person restarts its etcd, which rejects a new machine".to_owned());
    }
}
