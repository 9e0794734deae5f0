//! `quorate self`: this installation and this machine.

pub(crate) mod check;

use quorate_faults::{Exit, Fault};

use crate::printer::Printer;

/// Verbs of `self`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate self check --config cluster.yaml --name n1")]
pub(crate) enum Verb {
    /// Check this machine before the first start: etcd, ports, disk, certificates, box, backups
    Check(check::Args),
}

/// Runs one.
pub(crate) fn run(verb: Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::Check(args) => check::run(&args, printer),
    }
}
