//! `quorate peer set-role`: makes a client of a server, or a server of a client.

use std::time::Duration;

use quorate_agent::peering::{OperationShown, ROLE, RoleRequest};
use quorate_faults::{Exit, Fault};
use quorate_plan::peering::Role;

use super::followed::{Followed, taken_back};
use super::{Agent, PlaceArgs};
use crate::args::duration;
use crate::printer::Printer;

/// Flags of `peer set-role`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate peer set-role n3 client     it votes no more, and leads to voters
  quorate peer set-role n3 server     it learns, votes, and serves by itself

Asked on another server. To a client: that a quorum stays is proven, what was written is
backed up where a store is declared, leadership is handed over, the member is removed, and
the proxy takes the port as soon as etcd lets go of it; the data is set aside. To a server:
it joins as any other does, and takes its port over when it votes. What cannot be finished
is undone. The last server stays one. To take back what was begun, ask for the role that
the node still has.

Exit code 0: it has the role, and its port answers. 1: it keeps its role. 3: not yet, and
what is waited for.")]
pub(crate) struct Args {
    /// The node
    node: String,

    /// What it is to be
    #[arg(value_parser = ["client", "server"])]
    role: String,

    #[command(flatten)]
    place: PlaceArgs,

    /// How long to follow what the agents do
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    wait: Duration,
}

/// Asks for it, and follows.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let agent = Agent::of(&args.place, printer)?;
    let role = if args.role == "client" { Role::Client } else { Role::Server };
    let request = RoleRequest { name: args.node.clone(), role };
    let begun: OperationShown = agent.order(ROLE, &request)?;
    // The other change was under way, and is taken back.
    let back = begun.kind != format!("to-{}", args.role);
    let exit = Followed::follow(&agent, begun, args.wait, printer)?;
    Ok(if back { taken_back(exit) } else { exit })
}
