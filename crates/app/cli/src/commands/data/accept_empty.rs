//! `quorate data accept-empty`: records that an operator knows the data of a member to be lost.

use quorate_agent::turn::{EmptyAccepted, accept_empty_member};
use quorate_faults::{Code, Exit, Fault};

use crate::commands::run::NodeArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `data accept-empty`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate data accept-empty --config cluster.yaml --name n1 --yes

The only member of a cluster restores nothing by itself while its data dir is in another, empty
file system than its data was (Q1402): the right disk may come back. This command states that it
does not. At its next start the agent restores the newest backup; what was written after that is
lost. The agent must be stopped. Nothing else is changed, and the statement holds for one start.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,

    /// Confirm that the earlier data is lost
    #[arg(long)]
    yes: bool,
}

/// Records it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = args.node.node(printer)?;
    if !args.yes {
        let attempt = format!("cannot accept `{}` as empty without `--yes`", node.target.data_dir().display());
        return Err(Fault::new(Code::ResetNotAsked, attempt)
            .hint("be sure that the earlier disk is lost: what was written since the newest backup is lost with it"));
    }
    printer.report(&Done(accept_empty_member(&node)?));
    Ok(Exit::Done)
}

/// What is printed.
#[derive(serde::Serialize)]
#[serde(transparent)]
struct Done(EmptyAccepted);

impl Report for Done {
    fn render(&self, page: &mut Page) {
        let EmptyAccepted { data_dir, mount_point } = &self.0;
        page.line(format!("accepted `{data_dir}` as empty, on the file system at `{mount_point}`"));
        page.line("the next start of the agent restores the newest backup");
    }
}
