//! `quorate cluster`: a whole cluster, as one file declares it.

pub(crate) mod check;

use quorate_faults::{Exit, Fault};

use crate::printer::Printer;

/// The verbs of `cluster`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate cluster check cluster.yaml     whether the file can be used, line by line")]
pub(crate) enum Verb {
    /// Check a cluster file: every mistake with its line and column
    Check(check::Args),
}

/// Runs one verb.
pub(crate) fn run(verb: Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::Check(args) => check::run(&args, printer),
    }
}
