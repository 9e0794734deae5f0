//! `quorate box`: a program in a box, and what a box is.
//!
//! **Rule:** both commands make their plan from the same flags in the same way, so what is explained is what is run.

mod explain;
mod flags;
mod run;

use quorate_faults::{Exit, Fault};

use crate::printer::Printer;

/// What can be done with boxes.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate box run --write /srv/data -- /usr/bin/my-server
  quorate box explain etcd")]
pub(crate) enum Verb {
    /// Run a program in a box; its exit code is ours
    Run(run::Args),
    /// What a box lets a program do, and which of it this machine enforces
    Explain(explain::Args),
}

/// Does it.
pub(crate) fn run(verb: Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::Run(args) => run::run(&args, printer),
        Verb::Explain(args) => explain::run(&args, printer),
    }
}
