//! A whole fake world that runs the planner under faults, from a seed: nodes, disks, links, clocks, etcd, operators.
//!
//! ```text
//!   seed ──► faults and operators ──► nodes: look, plan_start, check, one step after the other ──► etcd's members and logs
//!                                        │                                                          │
//!                                        └──────────────► rules, after every event ◄────────────────┘
//! ```
//!
//! **Invariant:** the same seed and settings give the same life, line by line. The world decides nothing that the planner decides.

mod agent;
mod clocks;
mod copies;
mod etcd;
mod execute;
mod faults;
mod files;
mod fork;
mod machines;
mod operators;
mod person;
mod raft;
mod random;
mod recovery;
mod rotation;
mod rules;
mod turn;
mod upkeep;
mod world;

use quorate_plan::start::Guard;

/// What is simulated.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// The planner works without this guard, and nobody checks its plans.
    pub without: Option<Guard>,
    /// Without a guard, but with the check of each plan.
    pub checked: bool,
    /// The cluster was founded long ago, and two operators grow, shrink, drain, restart, tear down and recover it.
    pub living: bool,
    /// A person who does not know better forgets every node when all is calm, and declares the next founding: to show that the rules
    /// notice what is lost.
    pub starts_over: bool,
    /// Authorities are rotated without this rule.
    pub without_in_rotation: Option<RotationRule>,
}

/// What `quorate ca rotate` keeps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationRule {
    /// A phase ends only when every node has finished it, also those that do not answer.
    EveryNode,
    /// No phase ends while somebody belongs to the cluster whom the file does not declare.
    Strangers,
}

impl RotationRule {
    /// All of them.
    pub const ALL: [RotationRule; 2] = [RotationRule::EveryNode, RotationRule::Strangers];
}

/// How a life went.
#[derive(Debug, Clone)]
pub struct Life {
    /// The seed that it came from.
    pub seed: u64,
    /// The first rule that was broken, and how.
    pub broken: Option<String>,
    /// What happened, line by line.
    pub story: Vec<String>,
    /// How many plans were made.
    pub plans: u64,
    /// How it ended.
    pub end: End,
}

/// How a life ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// One cluster serves, with every declared node.
    Serves,
    /// A person has to decide, for this reason.
    NeedsPerson(String),
    /// A rule was broken, or it never came to an end.
    Broken,
}

/// Lives through a seed.
pub fn live(seed: u64, settings: Settings) -> Life {
    let mut world =
        if settings.living { world::World::living(seed, settings) } else { world::World::new(seed, settings) };
    let end = world.live();
    Life { seed, broken: world.broken, story: world.story, plans: world.plans, end }
}

impl Life {
    /// The story, to be read from top to bottom.
    pub fn tell(&self) -> String {
        let mut text = format!("seed {}\n", self.seed);
        for line in &self.story {
            text.push_str(line);
            text.push('\n');
        }
        match (&self.broken, &self.end) {
            (Some(broken), _) => text + "BROKEN: " + broken + "\n",
            (None, End::NeedsPerson(why)) => text + "end: a person has to decide: " + why + "\n",
            (None, End::Serves | End::Broken) => text + "end: one cluster serves, with every declared node\n",
        }
    }
}
