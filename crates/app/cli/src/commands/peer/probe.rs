//! `quorate peer probe`: takes a node in that waits for it, with the code that it shows.

use std::path::PathBuf;
use std::time::Duration;

use quorate_agent::peering::{INVITE, InviteAnswer, InviteRequest, Probed, probe};
use quorate_faults::{Exit, Fault};
use quorate_plan::peering::{CodeError, JoinCode, Role};

use super::followed::Followed;
use super::{Agent, PlaceArgs, read_code};
use crate::args::duration;
use crate::printer::Printer;

/// Flags of `peer probe`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate run --accept-probe               on the new node: shows a code
  quorate peer probe n2:7700               on a server: asks for that code
  quorate peer probe n6:7700 --role client

The same as an invitation and a join, begun from the other side.

Exit code 0: the node votes, or is on record as a client. 3: not yet, and it says what is waited for.")]
pub(crate) struct Args {
    /// Where the node waits, as HOST:PORT
    address: String,

    #[command(flatten)]
    place: PlaceArgs,

    /// As what the node joins
    #[arg(long, default_value = "server", value_parser = ["server", "client"])]
    role: String,

    /// File that holds the code which the node shows [default: asked for, or stdin]
    #[arg(long, value_name = "FILE")]
    code_file: Option<PathBuf>,

    /// How long to follow what the agents do
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    wait: Duration,
}

/// Invites, hands the invitation over, and follows.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let agent = Agent::of(&args.place, printer)?;
    let text = read_code(args.code_file.as_deref(), "the code that the node shows: ")?;
    let shown = JoinCode::decode(&text).map_err(CodeError::fault)?;
    let role = if args.role == "client" { Role::Client } else { Role::Server };
    let request = InviteRequest {
        role,
        ttl_ms: 10 * 60 * 1000,
        address: None,
        for_name: None,
        for_address: None,
        short: false,
        secret: true,
    };
    let InviteAnswer { code, secret, .. } = agent.order(INVITE, &request)?;
    let probed = agent.runtime.block_on(probe(shown, &args.address, (&code, secret.as_deref())));
    let Probed { name, cluster } = probed?;
    printer.note(&format!("`{name}` has a place in cluster `{cluster}`, and joins"));
    let operation = agent.look()?.operation.filter(|operation| operation.name == name);
    let Some(operation) = operation else { return Ok(Exit::Done) };
    Followed::follow(&agent, operation, args.wait, printer)
}
