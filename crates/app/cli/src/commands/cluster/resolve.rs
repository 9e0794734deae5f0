//! `quorate cluster resolve`: ends a fork, after two recoveries made the same generation.
//!
//! **Rule:** the nodes of the cluster that lost join the one that won only when the operator says so; their data is renamed, and
//! what was exported of it stays.

use std::collections::BTreeMap;

use quorate_agent::recover::{Order, RecoveryNow, Remains, Role};
use quorate_agent::turn::Status;
use quorate_faults::{Code, Exit, Fault};
use quorate_host::audit::Who;
use serde::Serialize;

use super::ask::{Cluster, ClusterArgs};
use crate::commands::fresh_nonce;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `cluster resolve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster resolve --config cluster.yaml
  quorate cluster resolve --config cluster.yaml --yes

Two recoveries made the same generation, for example on both sides of a partition. The
nodes of one of them stopped, keep their data and exported their writes since the
recovery. With --yes they rename their data and join the cluster that serves.")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Let the nodes that lost rename their data and join the cluster that serves
    #[arg(long)]
    yes: bool,
}

/// Shows the nodes that lost, and has them join.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let cluster = Cluster::open(&args.cluster.file()?, args.cluster.name.as_deref(), printer)?;
    let names: Vec<String> = cluster.spec.members.iter().map(|member| member.name.clone()).collect();
    let remains = cluster.order_all::<(), Remains>(&names, "/v1/remains", &());
    let statuses: BTreeMap<String, Result<Status, Fault>> = cluster.ask("/v1/status");
    let lost = |remains: &Remains| remains.generation.filter(|own| remains.outdated_by == Some(*own));
    let lost: Vec<(String, u64)> =
        remains.iter().filter_map(|(name, answer)| Some((name.clone(), lost(answer.as_ref().ok()?)?))).collect();
    let cause = |name: &String| match statuses.get(name) {
        Some(Ok(status)) => status.cause.clone(),
        Some(Err(_)) | None => String::new(),
    };
    let nodes = lost.iter().map(|(name, generation)| LostNode {
        name: name.clone(),
        generation: *generation,
        cause: cause(name),
    });
    let mut report = Resolved { nodes: nodes.collect(), joining: false };
    if lost.is_empty() || !args.yes {
        printer.report(&report);
        return match lost.is_empty() {
            true => Ok(Exit::Done),
            false => {
                Err(Fault::new(Code::GenerationsFork, "nothing was done: two recoveries made the same generation")
                    .hint("take what is needed from the exported writes, then add `--yes`"))
            }
        };
    }
    let mut refused: Option<Fault> = None;
    for (name, generation) in &lost {
        let order = Order {
            generation: *generation,
            nonce: fresh_nonce(),
            role: Role::Join,
            rejoin: Vec::new(),
            asked_by: "an operator".to_owned(),
            fenced: Vec::new(),
            passed_over: Vec::new(),
            probes: Vec::new(),
            watches: Vec::new(),
            uploaded: None,
            above: None,
            claimed: false,
            without_store: false,
            who: Some(Who::us(std::env::var("SUDO_USER").ok())),
        };
        // One that cannot join now keeps no other one from it.
        if let Err(fault) = cluster.order::<_, RecoveryNow>(name, "/v1/recover", &order) {
            report.nodes.retain(|node| node.name != *name);
            refused.get_or_insert(fault);
        }
    }
    report.joining = !report.nodes.is_empty();
    if report.joining || refused.is_none() {
        printer.report(&report);
    }
    if let Some(fault) = refused {
        return Err(fault);
    }
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Resolved {
    nodes: Vec<LostNode>,
    joining: bool,
}

#[derive(Serialize)]
struct LostNode {
    name: String,
    generation: u64,
    cause: String,
}

impl Report for Resolved {
    fn render(&self, page: &mut Page) {
        if self.nodes.is_empty() {
            page.line("no node that answers belongs to a recovery that lost");
        }
        for LostNode { name, generation, cause } in &self.nodes {
            page.line(format!("`{name}`, generation {generation}: {cause}"));
        }
        if self.joining {
            page.line("they rename their data and join the cluster that serves: see `quorate cluster status`");
        }
    }
}
