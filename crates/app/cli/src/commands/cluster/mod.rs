//! `quorate cluster`: a whole cluster, as one file declares it.

pub(crate) mod adopt;
pub(crate) mod check;

use quorate_faults::{Exit, Fault};

use crate::printer::Printer;

/// The verbs of `cluster`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate cluster check cluster.yaml     whether the file can be used, by line
  quorate cluster adopt --config cluster.yaml --name n1")]
pub(crate) enum Verb {
    /// Check a cluster file: every mistake with its line and column
    Check(check::Args),
    /// Take over a member that others made, stopped or running
    Adopt(adopt::Args),
}

/// Runs one verb.
pub(crate) fn run(verb: Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::Check(args) => check::run(&args, printer),
        Verb::Adopt(args) => adopt::run(&args, printer),
    }
}
