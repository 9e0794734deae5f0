//! `quorate __fence`: the process that closes the pooler when the write master's time is over; nobody starts it by hand.
//!
//! **Rule:** everything it does lives in `quorate_agent::pg::fence`.

use std::path::PathBuf;

use quorate_faults::{Exit, Fault};

use crate::printer::Printer;

/// What `__fence` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate __fence /var/lib/quorate/n1/pg/pooler/fence.json     as the agent does")]
pub(crate) struct Args {
    /// What to start and how long, as the agent wrote it
    #[arg(value_name = "SPECFILE")]
    spec: PathBuf,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let said = quorate_agent::pg::fence::keep(&args.spec)?;
    printer.text(&format!("{said}\n"));
    Ok(Exit::Done)
}
