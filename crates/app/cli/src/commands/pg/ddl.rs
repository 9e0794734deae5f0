//! `quorate pg ddl`: the one way to change the schema of a group.

use std::path::PathBuf;

use quorate_agent::pg::{self, SchemaOrder};
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use super::GroupArgs;
use crate::commands::run::runtime;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// The verbs of `pg ddl`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate pg ddl apply orders.sql --config cluster.yaml")]
pub(crate) enum Verb {
    /// Bring a file of statements to every node as the next version of the schema
    Apply(Args),
}

/// Flags of `pg ddl apply`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg ddl apply orders.sql --config cluster.yaml
  quorate pg ddl apply drop-orders.sql --removes --config cluster.yaml

Every node has to answer. The same file again is the same version, and changes nothing.")]
pub(crate) struct Args {
    /// The file with the statements
    file: PathBuf,

    /// It takes something away: nodes that write come first
    #[arg(long)]
    removes: bool,

    #[command(flatten)]
    group: GroupArgs,
}

/// Applies it.
pub(crate) fn run(verb: &Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    let Verb::Apply(args) = verb;
    let here = args.group.anyone()?;
    let read = std::fs::read_to_string(&args.file);
    let sql = read.map_err(|error| Fault::io(format!("cannot read `{}`", args.file.display()), error))?;
    let name = args.file.file_name().unwrap_or(args.file.as_os_str()).to_string_lossy();
    let order = if args.removes { SchemaOrder::Removes } else { SchemaOrder::Adds };
    let pg::Changed { version, applied, warnings } =
        runtime()?.block_on(pg::apply_schema(&here, &name, &sql, order))?;
    printer.report(&Shown { version, done: applied.done, already: applied.already, warnings });
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Shown {
    version: u32,
    done: Vec<String>,
    already: Vec<String>,
    warnings: Vec<String>,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        page.line(format!("version {} is on every node", self.version));
        for (what, names) in [("taken now by", &self.done), ("there already on", &self.already)] {
            if !names.is_empty() {
                page.line(format!("  {what} {}", names.join(", ")));
            }
        }
        for warning in &self.warnings {
            page.line(format!("  note: {warning}"));
        }
    }
}
