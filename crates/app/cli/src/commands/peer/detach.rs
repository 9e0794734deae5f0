//! `quorate peer detach`: takes a node out of the cluster.

use std::time::{Duration, Instant};

use quorate_agent::peering::{DETACH, DetachRequest, OperationShown};
use quorate_faults::{Exit, Fault};

use super::followed::{Followed, follow, taken_back};
use super::{Agent, PlaceArgs};
use crate::args::duration;
use crate::printer::Printer;

/// Flags of `peer detach`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate peer detach n3
  quorate peer detach n3 --force           it is gone for good

What runs on the node is asked whether it objects (its `hooks/veto`), and that a quorum stays
is proven, before anything is changed. Then it hands leadership over, leaves the list of
members, sets its data aside and runs no etcd. The last server stays. A node can be asked
to take itself out: another one carries it out. One that was let in and does not come
loses its place; one that has joined meanwhile is detached.

Exit code 0: it is out. 1: a file that declares it was applied meanwhile. 3: not yet, and what is waited for.")]
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
    let began = Instant::now();
    let mut begun: OperationShown = agent.order(DETACH, &request)?;
    // It was about to join, and its place is taken back. Where it has joined first, it is detached after that.
    while begun.kind == "join" {
        let wait = args.wait.saturating_sub(began.elapsed());
        let joined = follow(&agent, &begun, wait, printer)?;
        if joined.as_ref().is_none_or(|it| it.step != "joined") {
            return Ok(taken_back(Followed::show(joined.unwrap_or(begun), printer)));
        }
        begun = agent.order(DETACH, &request)?;
    }
    let wait = args.wait.saturating_sub(began.elapsed());
    let now = follow(&agent, &begun, wait, printer)?.unwrap_or(begun);
    Ok(Followed::show(now, printer))
}
