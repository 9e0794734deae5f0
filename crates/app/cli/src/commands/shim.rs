//! `quorate __shim`: the process between the agent and etcd, which nobody starts by hand.
//!
//! **Rule:** everything it does lives in `quorate_host::shim`; nothing heavy is loaded on the way there.

use std::path::PathBuf;
use std::process::ExitCode;

use quorate_faults::{Exit, Fault};

use crate::args::Global;
use crate::panics;
use crate::printer::Printer;

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

/// Is the shim, if that is what was asked for. It lives as long as its program, and what it takes to read a command line
/// with all its commands would stay in memory as long; so it is begun before that.
pub(crate) fn begin() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let (name, spec) = (words.next()?, words.next()?);
    if name != "__shim" || spec.as_encoded_bytes().starts_with(b"-") || words.next().is_some() {
        return None;
    }
    let exit = match panics::guard(|| run(&Args { spec: spec.into() })) {
        Ok(exit) => exit,
        Err(fault) => Printer::new(&Global::default()).fault(&fault),
    };
    Some(ExitCode::from(exit as u8))
}

pub(crate) fn run(args: &Args) -> Result<Exit, Fault> {
    quorate_host::shim::keep(&args.spec)?;
    Ok(Exit::Done)
}
