//! `quorate box explain`: a box in words, and which of it this machine enforces.

use quorate_faults::{Exit, Fault};
use quorate_plan::boxes::{Explained, List, explain};
use serde::Serialize;

use super::flags::{Flags, plan};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `box explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate box explain
  quorate box explain etcd --write /var/lib/etcd --bind 2379 --bind 2380
  quorate box explain --level strict --memory 1GiB --output json")]
pub(crate) struct Args {
    /// A program whose list of system calls is known: etcd
    #[arg(value_name = "PROGRAM", value_parser = ["etcd"])]
    program: Option<String>,

    #[command(flatten)]
    flags: Flags,
}

/// Explains it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let list = if args.program.is_some() { List::Etcd } else { List::Default };
    let (plan, machine) = plan(&args.flags.spec(list)?)?;
    printer.report(&Said { kernel: machine.kernel, explained: explain(&plan) });
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Said {
    kernel: String,
    #[serde(flatten)]
    explained: Explained,
}

impl Report for Said {
    fn render(&self, page: &mut Page) {
        page.heading(format!("A box of level {}, on kernel {}", self.explained.level, self.kernel));
        let rows = self.explained.rows.iter();
        let row = |row: &quorate_plan::boxes::Row| [row.part.to_owned(), row.may.clone(), row.enforced.to_owned()];
        page.table(["PART", "THE PROGRAM", "ENFORCED"], rows.map(row));
        for warning in &self.explained.warnings {
            page.line(format!("warning: {warning}"));
        }
    }
}
