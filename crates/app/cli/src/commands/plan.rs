//! `quorate plan`: what the agent's next turn would do, and why. Nothing is done.

use quorate_agent::turn::{self, Preview};
use quorate_faults::{Exit, Fault};

use super::run::{NodeArgs, runtime};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate plan --config cluster.yaml --name n1
  quorate plan --config cluster.yaml --output json

Exit code 0: it would act, or has nothing to do. 3: it would wait. 5: it would refuse.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,
}

/// Shows the plan.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = args.node.node(printer)?;
    let preview = runtime()?.block_on(turn::preview(node))?;
    printer.report(&preview);
    Ok(match (preview.refused, preview.waiting) {
        (true, _) => Exit::Refused,
        (false, true) => Exit::Waiting,
        (false, false) => Exit::Done,
    })
}

impl Report for Preview {
    fn render(&self, page: &mut Page) {
        page.line(format!("because {}:", self.because));
        for (at, step) in self.steps.iter().enumerate() {
            page.line(format!("  {}. {step}", at + 1));
        }
        if self.steps.is_empty() {
            page.line("  nothing is done");
        }
    }
}
