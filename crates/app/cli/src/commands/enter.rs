//! `quorate __enter`: the second half of `exec` and `shell`, within the pid namespace of the process.
//!
//! **Rule:** everything it does lives in `quorate_host::enter`.

use quorate_faults::{Exit, Fault};
use quorate_host::enter::Errand;

use super::exec;
use crate::printer::Printer;

/// What `__enter` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate __enter '{…}'     as `quorate exec` does")]
pub(crate) struct Args {
    /// Where to go and what to run
    #[arg(value_name = "ERRAND")]
    errand: String,

    /// Do the first half too
    #[arg(long)]
    whole: bool,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let errand = Errand::read(&args.errand)?;
    if args.whole { exec::go(&errand, printer) } else { Err(exec::finish(errand.arrive()?, printer)) }
}
