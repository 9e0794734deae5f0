//! `quorate peer invite`: prints a join code, and for a server the second secret that goes with it.

use std::time::Duration;

use jiff::Timestamp;
use quorate_agent::peering::{INVITE, InviteAnswer, InviteRequest};
use quorate_faults::{Code, Exit, Fault};
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
  quorate peer invite --for-name n4 --for-address 10.0.0.4
  quorate peer invite --short              a code that can be read aloud
  quorate peer invite --role client
  quorate peer invite --ttl 10m --address 192.0.2.7

The code holds the address of this node, a one-time token and the hash of the cluster's
authority. A short code is a secret alone: the newcomer is told this node's address with it
(`quorate peer join --inviter HOST`), and both sides prove the code to each other.

A client joins with the code alone. A server needs the second secret too: send it by another
channel than the code. Without it the newcomer waits for `quorate peer approve` on this node.

While a code holds, the agent listens on port 7700. A client runs no etcd: it listens where
etcd would, and carries connections to the servers.")]
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

    /// Let only a node of this name use the code
    #[arg(long, value_name = "NAME")]
    for_name: Option<String>,

    /// Let only a node that has this IP address use the code, in its settings and on the wire
    #[arg(long, value_name = "IP")]
    for_address: Option<String>,

    /// Print a code that can be read aloud
    #[arg(long)]
    short: bool,

    /// Print no second secret: a server waits until it is approved here
    #[arg(long)]
    no_secret: bool,
}

/// Has the agent make it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let agent = Agent::of(&args.place, printer)?;
    let ttl_ms = u64::try_from(args.ttl.as_millis()).unwrap_or(u64::MAX);
    let role = if args.role == "client" { Role::Client } else { Role::Server };
    let request = InviteRequest {
        role,
        ttl_ms,
        address: args.address.clone(),
        for_name: args.for_name.clone(),
        for_address: args.for_address.clone(),
        short: args.short,
        secret: !args.no_secret,
    };
    let answer: InviteAnswer = agent.order(INVITE, &request)?;
    // An agent of an earlier release makes a code, and binds it to nothing.
    let bound = answer.for_name.is_some() == request.for_name.is_some()
        && answer.for_address.is_some() == request.for_address.is_some();
    if !bound || answer.short != request.short {
        return Err(Fault::new(Code::PeersRefused, "the agent made an ordinary code: it runs an earlier release")
            .hint("restart the agent with this release, and invite again; the code that it made was not printed"));
    }
    note(&answer, role, printer);
    printer.report(&Shown::of(answer));
    Ok(Exit::Done)
}

/// What is to be done with it.
fn note(answer: &InviteAnswer, role: Role, printer: &mut Printer) {
    let inviter = answer.address.as_ref().filter(|_| answer.short);
    let inviter = inviter.map(|address| format!(" --inviter {address}")).unwrap_or_default();
    match (&answer.secret, role) {
        (_, Role::Client) => {
            printer.note(&format!("whoever has this code may join, once: on the new node, `quorate peer join{inviter}`"));
        }
        (Some(_), _) => {
            printer.note(&format!(
                "whoever has the code and the secret may join, once: send them by different channels, and on the new node \
                 `quorate peer join{inviter}`"
            ));
            printer.note("without the secret the node waits: `quorate peer status` shows it, `quorate peer approve NAME` lets it in");
        }
        (None, _) => printer.note(&format!(
            "a node with this code waits: on the new node `quorate peer join{inviter}`, then here `quorate peer approve NAME`"
        )),
    }
}

#[derive(Serialize)]
struct Shown {
    code: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    expires_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    for_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    for_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inviter: Option<String>,
}

impl Shown {
    fn of(answer: InviteAnswer) -> Shown {
        let InviteAnswer { code, secret, expires_ms, for_name, for_address, address, .. } = answer;
        Shown { code, secret, expires_ms, for_name, for_address, inviter: address }
    }
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        page.line(&self.code);
        if let Some(secret) = &self.secret {
            page.line(format!("secret: {secret}"));
        }
        let bound = self.for_name.iter().map(|name| format!("for node `{name}`"));
        for text in bound.chain(self.for_address.iter().map(|address| format!("for address {address}"))) {
            page.line(text);
        }
        let ends = i64::try_from(self.expires_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        if let Some(ends) = ends {
            page.line(format!("holds until {}", ends.strftime("%Y-%m-%d %H:%M:%SZ")));
        }
    }
}
