//! `quorate peer countersign`: approves, as a second server, that a node becomes a server.

use jiff::Timestamp;
use quorate_agent::peering::{ApprovalShown, COUNTERSIGN, CountersignRequest};
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use super::{Agent, PlaceArgs};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `peer countersign`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate peer status                      shows who waits for this server
  quorate peer countersign n4

A cluster of three or more servers takes another one in by the word of two of them: of the
server that invited it, and of one on which an operator approves it. The approval is for
this node with this address, and for this one join. Compare both before you approve. One
or two servers take others in without it, and clients need none.

Exit code 0: approved. 5: no such node waits for this server.")]
pub(crate) struct Args {
    /// The node that waits
    node: String,

    #[command(flatten)]
    place: PlaceArgs,
}

/// Has the agent of this node sign.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let agent = Agent::of(&args.place, printer)?;
    let approved: ApprovalShown = agent.order(COUNTERSIGN, &CountersignRequest { name: args.node.clone() })?;
    printer.report(&Approved(approved));
    Ok(Exit::Done)
}

#[derive(Serialize)]
#[serde(transparent)]
struct Approved(ApprovalShown);

impl Report for Approved {
    fn render(&self, page: &mut Page) {
        let ApprovalShown { name, address, role, by, deadline_ms } = &self.0;
        page.line(format!("approved: `{name}` at `{address}` becomes a {role}, taken in by `{by}`"));
        let ends = i64::try_from(*deadline_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        if let Some(ends) = ends {
            page.line(format!("it has to vote until {}", ends.strftime("%Y-%m-%d %H:%M:%SZ")));
        }
    }
}
