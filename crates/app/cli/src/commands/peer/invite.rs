//! `quorate peer invite`: prints a join code.

use std::time::Duration;

use jiff::Timestamp;
use quorate_agent::peering::{INVITE, InviteAnswer, InviteRequest};
use quorate_faults::{Exit, Fault};
use quorate_plan::peering::Role;
use serde::Serialize;

use super::{Agent, PlaceArgs};
use crate::args::duration;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `peer invite`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate peer invite
  quorate peer invite --role client
  quorate peer invite --ttl 10m --address 192.0.2.7

The code holds the address of this node, a one-time token and the hash of the cluster's
authority. Whoever has it may join, so hand it on as you would a password. While a code
holds, the agent listens on port 7700. A client runs no etcd: it listens where etcd would,
and carries connections to the servers.")]
pub(crate) struct Args {
    #[command(flatten)]
    place: PlaceArgs,

    /// As what the newcomer joins
    #[arg(long, default_value = "server", value_parser = ["server", "client"])]
    role: String,

    /// For how long the code holds, at most a day
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    ttl: Duration,

    /// Where the newcomer reaches this node [default: its own address]
    #[arg(long, value_name = "HOST")]
    address: Option<String>,
}

/// Has the agent make it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let agent = Agent::of(&args.place, printer)?;
    let ttl_ms = u64::try_from(args.ttl.as_millis()).unwrap_or(u64::MAX);
    let role = if args.role == "client" { Role::Client } else { Role::Server };
    let request = InviteRequest { role, ttl_ms, address: args.address.clone() };
    let InviteAnswer { code, expires_ms } = agent.order(INVITE, &request)?;
    printer.note("whoever has this code may join, once: on the new node, `quorate peer join`");
    printer.report(&Shown { code, expires_ms });
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Shown {
    code: String,
    expires_ms: u64,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        page.line(&self.code);
        let ends = i64::try_from(self.expires_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        if let Some(ends) = ends {
            page.line(format!("holds until {}", ends.strftime("%Y-%m-%d %H:%M:%SZ")));
        }
    }
}
