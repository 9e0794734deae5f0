//! `quorate data reset`: lets a member go. Its data dir and ledger are renamed, and nothing is deleted.

use quorate_agent::turn::{Reset, reset_member};
use quorate_faults::{Code, Exit, Fault};

use crate::commands::run::NodeArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `data reset`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate data reset --config cluster.yaml --name n1 --yes

etcd and its agent must be stopped. The node then knows nothing of the cluster that it was
in, except which `bootstrap` ids have been used: those found nothing a second time.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,

    /// Really
    #[arg(long)]
    yes: bool,
}

/// Lets it go.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = args.node.node(printer)?;
    if !args.yes {
        let attempt = format!("cannot reset `{}` without `--yes`", node.target.data_dir().display());
        return Err(Fault::new(Code::ResetNotAsked, attempt)
            .hint("be sure that it is not the last copy; it would be renamed, not deleted"));
    }
    printer.report(&Done(reset_member(&node)?));
    Ok(Exit::Done)
}

/// What is printed.
#[derive(serde::Serialize)]
#[serde(transparent)]
struct Done(Reset);

impl Report for Done {
    fn render(&self, page: &mut Page) {
        if self.0.renamed.is_empty() {
            page.line("there was nothing to rename");
        }
        for (from, to) in &self.0.renamed {
            page.line(format!("renamed `{}` to `{}`", from.display(), to.display()));
        }
    }
}
