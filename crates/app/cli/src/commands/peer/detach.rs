//! `quorate peer detach`: takes a node out of the cluster.

use std::time::Duration;

use quorate_agent::peering::{DETACH, DetachRequest, OperationShown};
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use super::{Agent, PlaceArgs};
use crate::args::duration;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `peer detach`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate peer detach n3
  quorate peer detach n3 --force           it is gone for good

What runs on the node is asked whether it objects (its `hooks/veto`), and that a quorum stays
is proven, before anything is changed. Then it hands leadership over, leaves the list of
members, sets its data aside and runs no etcd. The last server stays.

Exit code 0: it is out. 3: not yet, and it says what is waited for.")]
pub(crate) struct Args {
    /// The node
    node: String,

    #[command(flatten)]
    place: PlaceArgs,

    /// Also if it does not answer
    #[arg(long)]
    force: bool,

    /// How long to follow what the agents do
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    wait: Duration,
}

/// Asks for it, and follows.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let agent = Agent::of(&args.place, printer)?;
    let request = DetachRequest { name: args.node.clone(), force: args.force };
    let begun: OperationShown = agent.order(DETACH, &request)?;
    let now = agent.follow(&begun.id, args.wait, printer)?.unwrap_or(begun);
    let done = now.step == "detached";
    printer.report(&Shown(now));
    Ok(if done { Exit::Done } else { Exit::Waiting })
}

#[derive(Serialize)]
#[serde(transparent)]
struct Shown(OperationShown);

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        let OperationShown { name, step, waits, .. } = &self.0;
        match (step.as_str(), waits) {
            ("detached", _) => page.line(format!("`{name}` is no member any more")),
            (_, Some(what)) => page.line(format!("`{name}` is being detached; waiting for {what}")),
            (step, None) => page.line(format!("`{name}` is being detached: {step}")),
        }
    }
}
