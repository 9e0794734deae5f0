//! Whether what is to be done now is still what somebody approved.
//!
//! **Rule:** the members and their addresses are what is approved step by step; restarts follow from the file, which is approved
//! as a whole.

use super::{Act, ChangePlan, ChangeStep};

impl ChangePlan {
    /// The steps of this plan that `approved` did not have. Of a plan that is half done there are none; one that is taken out
    /// again because it did not come up was part of adding it.
    pub fn unapproved(&self, approved: &ChangePlan) -> Vec<&ChangeStep> {
        let known: Vec<String> = approved.steps.iter().filter_map(|step| step.act.approved()).collect();
        let adds = |node: &str| {
            approved.steps.iter().any(|step| matches!(&step.act, Act::AddLearner(who) if who.node == node))
        };
        let is_new = |act: &Act| match act {
            Act::UndoLearner(who) if adds(&who.node) => false,
            Act::AddLearner(_) | Act::Promote(_) | Act::UndoLearner(_) | Act::Remove(_) | Act::ChangeUrls { .. } => {
                act.approved().is_none_or(|line| !known.contains(&line))
            }
            Act::Distribute { .. }
            | Act::WaitCaughtUp(_)
            | Act::MoveLeader { .. }
            | Act::WaitExit(_)
            | Act::Bury(_)
            | Act::Restart { .. }
            | Act::Backup
            | Act::EnableDowngrade(_)
            | Act::SnapshotLog
            | Act::Stop(_) => false,
        };
        self.steps.iter().filter(|step| is_new(&step.act)).collect()
    }
}
