//! `quorate peer detach`: takes a node out of the cluster.

use std::time::Duration;

use quorate_agent::peering::{DETACH, DetachRequest, OperationShown};
use quorate_faults::{Exit, Fault};

use super::followed::{Followed, taken_back};
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
loses its place.

Exit code 0: it is out. 1: it came after all. 3: not yet, and what is waited for.")]
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
    // It was about to join, and its place is taken back.
    let back = begun.kind == "join";
    let exit = Followed::follow(&agent, begun, args.wait, printer)?;
    Ok(if back { taken_back(exit) } else { exit })
}
