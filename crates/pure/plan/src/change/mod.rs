//! Changes of a cluster that lives: who joins, who leaves, who restarts, in which order and by whose hand.
//!
//! **Invariants:** one change of members at a time, each with its proof; whoever comes in listens first; nothing while a voter is
//! down, unless that heals; nobody leaves by a file that others do not hold; and the last member never leaves.

mod approval;
mod decide;
mod leaving;
pub mod recover;
mod restarts;
mod step;
#[cfg(test)]
mod tests;
pub mod upgrade;
mod view;
mod well;

use std::fmt::Write as _;

use quorate_etcd_formats::hex::hex;
use sha2::{Digest, Sha256};

use crate::spec::Spec;
use crate::start::guards::{Every, Guard, Without};
use crate::start::{ClusterSeen, Halt};

pub use step::{Act, ChangeStep, OPERATOR, Who};
pub use view::{
    ClusterView, LAG_MAX, LEARNER_UP_MS, Listing, LogRead, NodeNow, NodeSeen, Restart, Stage, has_caught_up,
    heals_alone, is_same, is_up, moved_at_once_max, node_of, note_learner,
};
pub use well::{LAG_FAR, NOBODY, corrupt_in, differing, doubt_corrupt};

/// What would be done to the cluster, step by step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePlan {
    /// The steps, in their order.
    pub steps: Vec<ChangeStep>,
    /// Why nothing more is done.
    pub halt: Option<ChangeHalt>,
    /// What an operator should know, and changes nothing.
    pub remarks: Vec<String>,
    /// What was seen, for the hash: the cluster, its members and the file.
    seen: String,
}

/// Why nothing more is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeHalt {
    /// Until a person has decided; otherwise it is waited for.
    pub refused: bool,
    /// Why.
    pub halt: Halt,
}

/// For whom a plan is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    /// A person: the file is to be given to every node first.
    Operator,
    /// An agent: the file is the one that it holds.
    Agent,
}

/// What would be done to bring the cluster to what the file declares, once every node holds the file.
pub fn plan_change(view: &ClusterView, spec: &Spec) -> ChangePlan {
    decide::decide(view, spec, For::Operator, &Every)
}

/// The step that the agent of the node `me` takes now, with the file that it holds. Agents act by themselves, each by its own
/// look at the cluster; the agent of the leader does what nobody else does. Killed anywhere, it looks again.
pub fn next_for(view: &ClusterView, spec: &Spec, me: &str) -> Option<ChangeStep> {
    outdated(view, me).or_else(|| first(plan_for_agents(view, spec), me))
}

/// The same plan as agents see it: by the file that they hold, and with whose turn it is first.
pub fn plan_for_agents(view: &ClusterView, spec: &Spec) -> ChangePlan {
    decide::decide(view, spec, For::Agent, &Every)
}

/// Without one of its guards: for tests that show what each is for.
#[doc(hidden)]
pub fn plan_for_agents_without(guard: Guard, view: &ClusterView, spec: &Spec) -> ChangePlan {
    decide::decide(view, spec, For::Agent, &Without(guard))
}

/// The first step of a plan, if it is this node's.
#[doc(hidden)]
pub fn first(plan: ChangePlan, me: &str) -> Option<ChangeStep> {
    plan.steps.into_iter().next().filter(|step| step.doer == me)
}

/// A node that runs an older generation of the cluster than another one knows of stops.
#[doc(hidden)]
pub fn outdated(view: &ClusterView, me: &str) -> Option<ChangeStep> {
    let mine = view.answer(me)?;
    let (other, now) = view.answers().find(|(_, now)| now.generation > mine.generation)?;
    mine.etcd.as_ref()?;
    let why =
        format!("`{other}` knows generation {} of this cluster, and this node has {}", now.generation, mine.generation);
    Some(ChangeStep { doer: me.to_owned(), act: Act::Stop(Who::new(me, mine.member)), why, proof: None })
}

impl ChangePlan {
    fn new(view: &ClusterView, spec: &Spec) -> ChangePlan {
        let mut seen = format!("file {}\n", spec.hash());
        match &view.cluster {
            ClusterSeen::Unreachable(_) => seen.push_str("no quorum\n"),
            ClusterSeen::Confirmed { cluster, members } => {
                let mut lines: Vec<String> = members
                    .iter()
                    .map(|member| {
                        let mut urls = member.peer_urls.clone();
                        urls.sort();
                        let role = if member.learner { "learner" } else { "voter" };
                        format!("member {} {} {role} {}\n", member.id, member.name, urls.join(","))
                    })
                    .collect();
                lines.sort();
                // Writing to a String cannot fail.
                let _ = write!(seen, "cluster {cluster}\n{}", lines.concat());
            }
        }
        ChangePlan { steps: Vec::new(), halt: None, remarks: Vec::new(), seen }
    }

    /// Whether nothing is to be done, and nothing is waited for.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty() && self.halt.is_none()
    }

    /// The hash that an operator approves: of what would be done, and of the cluster that it was seen for. Neither times nor
    /// who leads are part of it, so the same change has the same hash for everyone who looks at the same cluster.
    pub fn hash(&self) -> String {
        let is_restart = |act: &Act| matches!(act, Act::Restart { .. });
        let (restarts, others): (Vec<_>, Vec<_>) = self.steps.iter().partition(|step| is_restart(&step.act));
        let mut lines: Vec<String> = others.iter().filter_map(|step| step.act.approved()).collect();
        // Who leads decides on the order of restarts.
        let mut turns: Vec<String> = restarts.iter().filter_map(|step| step.act.approved()).collect();
        turns.sort();
        lines.extend(turns);
        lines.extend(self.halt.as_ref().map(|halt| format!("then halt {}", halt.halt.code)));
        let text = format!("quorate change plan 1\n{}{}\n", self.seen, lines.join("\n"));
        hex(&Sha256::digest(text.as_bytes()))
    }

    /// What an operator reads.
    pub fn render(&self) -> String {
        let mut text = String::new();
        if self.is_done() {
            text.push_str("nothing is to be done\n");
        }
        for (at, step) in self.steps.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {}. {step}", at + 1);
            if let Some(proof) = &step.proof {
                let _ = writeln!(text, "     {proof}");
            }
        }
        if let Some(ChangeHalt { refused, halt }) = &self.halt {
            let _ = writeln!(text, "  {}: {halt}", if *refused { "refuse" } else { "wait" });
        }
        for remark in &self.remarks {
            let _ = writeln!(text, "  note: {remark}");
        }
        let _ = writeln!(text, "plan {}", self.hash());
        text
    }
}
