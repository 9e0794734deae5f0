//! `quorate cluster schema`: the JSON Schema of the cluster file.

use quorate_faults::{Exit, Fault};

use crate::printer::Printer;

/// Flags of `cluster schema`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster schema > cluster.schema.json
  # yaml-language-server: $schema=cluster.schema.json    first line of the file

For editors, and for programs that write the file. What only the whole file shows, such
as two members with one address, `quorate cluster check` finds.")]
pub(crate) struct Args {}

/// Prints it.
pub(crate) fn run(_: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    printer.text(&quorate_plan::spec::schema());
    Ok(Exit::Done)
}
