//! `quorate __shim`: the process between the agent and etcd, which nobody starts by hand.
//!
//! **Rule:** everything it does lives in `quorate_host::shim`; nothing heavy is loaded on the way there.

use std::path::PathBuf;

use quorate_faults::{Exit, Fault};

/// What `__shim` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate __shim /var/lib/quorate/shim.json     as the agent does")]
pub(crate) struct Args {
    /// What to start and how, as the agent wrote it
    #[arg(value_name = "SPECFILE")]
    spec: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Fault> {
    quorate_host::shim::keep(&args.spec)?;
    Ok(Exit::Done)
}
