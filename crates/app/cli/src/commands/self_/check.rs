//! `quorate self check`: what would stop this node, found before its first start.

use quorate_agent::turn::{CheckState, SelfCheck, self_check};
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use crate::commands::run::NodeArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `self check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate self check --config cluster.yaml --name n1
  quorate self check --output json

Checks the etcd program, the state dir, the disk, every port, the certificates and whether they
can be renewed, the box of etcd and the store of backups. Changes nothing. Exit code 0: the node
can start; warnings are printed. 1: it would not start or not serve.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,
}

/// Checks, and prints every result.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = args.node.node(printer)?;
    let checks = self_check(&node);
    let failed = checks.iter().any(|check| check.state == CheckState::Failed);
    printer.report(&Checks { name: node.name().to_owned(), checks });
    Ok(if failed { Exit::CannotMeet } else { Exit::Done })
}

/// What is printed.
#[derive(Serialize)]
struct Checks {
    name: String,
    checks: Vec<SelfCheck>,
}

impl Report for Checks {
    fn render(&self, page: &mut Page) {
        let word = |state: CheckState| match state {
            CheckState::Good => "ok",
            CheckState::Warning => "warning",
            CheckState::Failed => "failed",
        };
        page.table(
            ["check", "state", "found"],
            self.checks.iter().map(|check| {
                let code = check.code.map(|code| format!(" [{code}]")).unwrap_or_default();
                [check.what.to_owned(), word(check.state).to_owned(), format!("{}{code}", check.found)]
            }),
        );
        let open = self.checks.iter().filter(|check| check.state != CheckState::Good);
        for check in open {
            if let Some(way_out) = &check.way_out {
                page.line(format!("{}: {way_out}", check.what));
            }
        }
        let failed = self.checks.iter().filter(|check| check.state == CheckState::Failed).count();
        page.gap();
        page.line(match failed {
            0 => format!("`{}` can start", self.name),
            1 => format!("`{}` cannot start: 1 check failed", self.name),
            several => format!("`{}` cannot start: {several} checks failed", self.name),
        });
    }
}
