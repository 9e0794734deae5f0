//! `quorate pg stop`: ends all of a group that runs on this node. Data stays.

use quorate_agent::pg;
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use super::GroupArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `pg stop`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg stop --config cluster.yaml --name n1

To stop the write master without a gap for its clients, switch over first.")]
pub(crate) struct Args {
    #[command(flatten)]
    group: GroupArgs,
}

/// Ends it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let ended = pg::stop_all(&args.group.here()?, "quorate pg stop")?;
    printer.report(&Shown { ended });
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Shown {
    ended: Vec<String>,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        match self.ended.as_slice() {
            [] => page.line("nothing runs here"),
            ended => page.line(format!("ended: {}", ended.join(", "))),
        }
    }
}
