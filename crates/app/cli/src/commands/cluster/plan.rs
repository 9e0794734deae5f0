//! `quorate cluster plan`: what would be done next on each node and why, and what another file would change.
//!
//! **Rule:** nothing is done. What a node would do is what its own agent decided; what a file would change is compared here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use quorate_agent::cluster_file;
use quorate_agent::peers::PlanAnswer;
use quorate_agent::turn::Status;
use quorate_faults::{Exit, Fault};
use quorate_plan::spec::Spec;
use serde::Serialize;

use super::ask::{Cluster, ClusterArgs};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `cluster plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster plan --config cluster.yaml
  quorate cluster plan new.yaml --config cluster.yaml  what a new file changes

Every step that changes members is shown with the proof that a quorum holds before and after
it. Exit code 0: nothing is waited for. 3: a node waits. 5: a node refuses to go on.")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// A file that is to replace the one of `--config`
    file: Option<PathBuf>,
}

/// Shows it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let cluster = Cluster::open(&args.cluster.config, args.cluster.name.as_deref(), printer)?;
    let wanted = match &args.file {
        Some(file) => cluster_file::read(file)?.0,
        None => cluster.spec.clone(),
    };
    let plans: BTreeMap<String, Result<PlanAnswer, Fault>> = cluster.ask("/v1/plan");
    let statuses: BTreeMap<String, Result<Status, Fault>> = cluster.ask("/v1/status");
    let hash = wanted.hash();
    let mut nodes = Vec::new();
    for member in &wanted.members {
        let (plan, status) = (plans.get(&member.name), statuses.get(&member.name));
        nodes.push(node(&member.name, &hash, plan, status));
    }
    let shown = Shown { changes: changes(&cluster.spec, &wanted), nodes };
    let any = |phase: fn(&Node) -> bool| shown.nodes.iter().any(phase);
    let exit = match () {
        () if any(|node| node.refused) => Exit::Refused,
        () if any(|node| node.waiting) => Exit::Waiting,
        () => Exit::Done,
    };
    printer.report(&shown);
    Ok(exit)
}

type Answer<T> = Result<T, Fault>;

fn node(name: &str, hash: &str, plan: Option<&Answer<PlanAnswer>>, status: Option<&Answer<Status>>) -> Node {
    let name = name.to_owned();
    let (plan, status) = match (plan, status) {
        (Some(Ok(plan)), Some(Ok(status))) => (plan, status),
        (Some(Err(fault)), _) | (_, Some(Err(fault))) => {
            let steps = vec!["start its agent; what it then does depends on what it finds".to_owned()];
            return Node { name, because: fault.to_string(), steps, waiting: true, refused: false };
        }
        (_, _) => {
            let because = "it is new in the file".to_owned();
            let steps =
                vec!["start its agent: it joins as a learner, and is promoted when it has caught up".to_owned()];
            return Node { name, because, steps, waiting: true, refused: false };
        }
    };
    if status.phase == "serving" {
        let mut steps = vec!["keep it running, and watch whether reads through it succeed".to_owned()];
        if plan.file != hash {
            steps.push("restart its agent to apply the file: it hands leadership over first".to_owned());
        }
        return Node { name, because: "it serves".to_owned(), steps, waiting: false, refused: false };
    }
    let (waiting, refused) = (plan.waiting, plan.refused);
    let because = if plan.because.is_empty() { status.cause.clone() } else { plan.because.clone() };
    Node { name, because, steps: plan.steps.clone(), waiting, refused }
}

/// What differs between two files, as far as the cluster notices.
fn changes(now: &Spec, wanted: &Spec) -> Vec<String> {
    let mut changes = Vec::new();
    if now.token != wanted.token {
        changes
            .push(format!("`token` becomes `{}`: that is another cluster, and every agent refuses it", wanted.token));
    }
    for member in &wanted.members {
        match now.member(&member.name) {
            None => changes.push(format!("`{}` is new: it joins when its agent runs with this file", member.name)),
            Some(known) if known.peer_urls != member.peer_urls => changes.push(format!(
                "`{}` moves from `{}` to `{}`: its agent tells the cluster once it runs with this file",
                member.name,
                known.peer_urls.join(","),
                member.peer_urls.join(",")
            )),
            Some(_) => {}
        }
    }
    for member in now.members.iter().filter(|member| wanted.member(&member.name).is_none()) {
        changes.push(format!("`{}` is not declared any more: nothing removes it by a file alone", member.name));
    }
    if now.etcd != wanted.etcd {
        changes.push("settings of etcd change: each member takes them over at its next start".to_owned());
    }
    if now.bootstrap != wanted.bootstrap && wanted.bootstrap.is_some() {
        changes.push("`bootstrap` changes: inert for every node that has founded or joined".to_owned());
    }
    if changes.is_empty() && now.hash() != wanted.hash() {
        changes.push("what changes concerns the agents alone".to_owned());
    }
    changes
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
    /// What another file changes.
    changes: Vec<String>,
    nodes: Vec<Node>,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        for change in &self.changes {
            page.line(format!("change: {change}"));
        }
        if !self.changes.is_empty() {
            page.gap();
        }
        for node in &self.nodes {
            page.line(format!("{}, because {}:", node.name, node.because));
            for (at, step) in node.steps.iter().enumerate() {
                page.line(format!("  {}. {step}", at + 1));
            }
        }
    }
}
