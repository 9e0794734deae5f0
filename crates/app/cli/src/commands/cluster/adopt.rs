//! `quorate cluster adopt`: takes over a member that others made, stopped or running.

use quorate_agent::turn::{Adopted, adopt_member};
use quorate_faults::{Exit, Fault};

use crate::commands::run::{NodeArgs, runtime};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `cluster adopt`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster adopt --config cluster.yaml --name n1

The data must be the declared member: its name, its peer URLs and its cluster's members
are compared with the file. Only the ledger is written; neither data nor etcd is touched.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,
}

/// Adopts it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = args.node.node(printer)?;
    let adopted = runtime()?.block_on(adopt_member(&node))?;
    printer.report(&adopted);
    Ok(Exit::Done)
}

impl Report for Adopted {
    fn render(&self, page: &mut Page) {
        let what = if self.already { "was this node's already" } else { "is this node's now" };
        page.line(format!("member {} of cluster {} {what}", self.member_id, self.cluster_id));
        match self.running {
            true => page.line("its etcd goes on as it is; stop it, and `quorate run` starts it under the agent"),
            false => page.line("`quorate run` starts it"),
        }
    }
}
