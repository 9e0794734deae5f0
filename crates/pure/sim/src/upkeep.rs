//! Upkeep: now and then a member is defragmented. It is up, and serves nobody meanwhile, which others know by its agent's word alone.
//!
//! **Rule:** an agent begins it as real ones do: while every member is up and nobody says that it pauses.

use quorate_plan::change::is_up;

use crate::world::World;

impl World {
    /// Whether a member is out for upkeep.
    pub(crate) fn is_kept_up(&self, node: usize) -> bool {
        self.nodes[node].runs && self.nodes[node].upkeep_until > self.now
    }

    /// Perhaps it is due now. Returns whether the agent is busy with it.
    pub(crate) fn tend_upkeep(&mut self, node: usize) -> bool {
        if self.is_kept_up(node) {
            return true;
        }
        if self.is_quiet() || self.nodes[node].pausing || !self.chance.permille(30) {
            return false;
        }
        let Some(view) = self.view(node) else { return false };
        let whole = view.members().is_some_and(|(_, members)| members.iter().all(is_up));
        if !whole || view.answers().any(|(_, now)| now.pausing) {
            return false;
        }
        self.nodes[node].upkeep_until = self.now + 2 + self.chance.below(10) as u64;
        self.tell(Some(node), "is defragmented for a while".to_owned());
        true
    }
}
