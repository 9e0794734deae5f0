//! `quorate cluster plan`: what would be done next on each node and why, and step by step what a file would change.
//!
//! **Rule:** nothing is done. What a node would do is what its own agent decided; what a file changes is planned as `cluster apply`
//! plans it, with the same hash.

use std::collections::BTreeMap;
use std::path::PathBuf;

use quorate_agent::peers::PlanAnswer;
use quorate_agent::turn::Status;
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use super::ask::file_or_default;
use super::operate::{Living, PlanShown};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `cluster plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster plan new.yaml              what would be done, and its hash
  quorate cluster plan --config cluster.yaml the same for the present file

Every step that changes or restarts members is shown with the proof that a quorum holds before
and after it; nodes are shown the file, and say what it would mean for them. `cluster apply --plan HASH` does what was shown, or nothing. Exit code 0: nothing is waited
for. 3: a node waits. 5: a node refuses to go on.")]
pub(crate) struct Args {
    /// The file that the cluster is to be like [default: that of --config]
    file: Option<PathBuf>,

    /// The present cluster file, where no other one is given [default: /etc/quorate/cluster.yaml]
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,

    /// Ask with this member's certificate [default: the first that can be read here]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,
}

/// Shows it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let file = file_or_default(args.file.as_deref().or(args.config.as_deref()), args.name.as_deref())?;
    let living = Living::open(&file, args.name.as_deref(), printer)?;
    let mut seen = living.look_ahead(false)?;
    // What the plan itself refuses comes first: it says more.
    if !seen.plan.halt.as_ref().is_some_and(|halt| halt.refused) {
        seen = seen.if_taken()?;
    }
    let plans: BTreeMap<String, Result<PlanAnswer, Fault>> = living.block_on(living.peers().ask_all("/v1/plan", None));
    let statuses: BTreeMap<String, Result<Status, Fault>> = living.block_on(living.peers().ask_all("/v1/status", None));
    let nodes: Vec<Node> = living.nodes().iter().map(|name| node(name, plans.get(name), statuses.get(name))).collect();
    // Without a cluster there is nothing to change yet, unless someone has a file to apply: that has a hash in any case.
    let there = args.file.is_some() || seen.view.members().is_some();
    let change = there.then(|| PlanShown::of(&seen.plan));
    let refused = seen.plan.halt.as_ref().is_some_and(|halt| halt.refused) && change.is_some();
    let shown = Shown { nodes, change };
    let any = |phase: fn(&Node) -> bool| shown.nodes.iter().any(phase);
    let exit = match () {
        () if refused || any(|node| node.refused) => Exit::Refused,
        () if any(|node| node.waiting) => Exit::Waiting,
        () => Exit::Done,
    };
    printer.report(&shown);
    Ok(exit)
}

type Answer<T> = Result<T, Fault>;

fn node(name: &str, plan: Option<&Answer<PlanAnswer>>, status: Option<&Answer<Status>>) -> Node {
    let name = name.to_owned();
    let (plan, status) = match (plan, status) {
        (Some(Ok(plan)), Some(Ok(status))) => (plan, status),
        (Some(Err(fault)), _) | (_, Some(Err(fault))) => {
            let steps = vec!["start its agent; what it then does depends on what it finds".to_owned()];
            return Node { name, because: fault.to_string(), steps, waiting: true, refused: false };
        }
        (_, _) => {
            let steps = vec!["start its agent".to_owned()];
            return Node { name, because: "it was not asked".to_owned(), steps, waiting: true, refused: false };
        }
    };
    if status.phase == "serving" {
        let steps = vec!["keep it running, and watch whether reads through it succeed".to_owned()];
        return Node { name, because: "it serves".to_owned(), steps, waiting: false, refused: false };
    }
    let (waiting, refused) = (plan.waiting, plan.refused);
    let because = if plan.because.is_empty() { status.cause.clone() } else { plan.because.clone() };
    Node { name, because, steps: plan.steps.clone(), waiting, refused }
}

#[derive(Serialize)]
struct Node {
    name: String,
    because: String,
    steps: Vec<String>,
    waiting: bool,
    refused: bool,
}

/// What is printed.
#[derive(Serialize)]
struct Shown {
    nodes: Vec<Node>,
    /// What is done to the cluster, where there is one.
    change: Option<PlanShown>,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        for node in &self.nodes {
            page.line(format!("{}, because {}:", node.name, node.because));
            for (at, step) in node.steps.iter().enumerate() {
                page.line(format!("  {}. {step}", at + 1));
            }
        }
        if let Some(change) = &self.change {
            page.gap();
            page.line("the whole cluster:");
            change.render(page);
        }
    }
}
