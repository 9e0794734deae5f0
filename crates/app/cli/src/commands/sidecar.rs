//! `quorate sidecar`: stands in for `etcdbrctl server`.
//!
//! **Rule:** its flags and exit codes are the original's: 0 when it was asked to end, 1 for all that went wrong.

use std::os::unix::process::CommandExt;
use std::process::Command;

use quorate_agent::gardener::Signals;
use quorate_agent::gardener::sidecar::{self, Ended, HELP, Settings};
use quorate_faults::{Exit, Fault};

use super::wrap::log_fault;
use crate::logging::{self, LogArgs};
use crate::printer::Printer;

/// Says that the environment holds the store's credentials already.
const PREPARED: &str = "QUORATE_SIDECAR_PREPARED";

/// Words of `sidecar`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate sidecar server --data-dir=/var/etcd/data/new.etcd \\
      --storage-provider=S3 --store-container=backups --store-prefix=etcd-main
  quorate sidecar server --help     all flags, which are etcdbrctl's

It validates and restores etcd's data when a wrapper asks (etcd-wrapper, or `quorate wrap`), hands out
etcd's configuration, and backs etcd up in Gardener's layout.")]
pub(crate) struct Args {
    /// server, and the flags of `etcdbrctl server`
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Runs it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    if args.words.iter().any(|word| matches!(word.as_str(), "-h" | "-help" | "--help")) {
        printer.text(HELP);
        return Ok(Exit::Done);
    }
    logging::start(&LogArgs::json())?;
    match work(&args.words) {
        Ok(Ended::Done) => Ok(Exit::Done),
        Ok(Ended::Forced) => Ok(Exit::CannotMeet),
        Err(fault) => {
            log_fault(&fault);
            Ok(Exit::CannotMeet)
        }
    }
}

fn work(words: &[String]) -> Result<Ended, Fault> {
    // Whoever is asked for the modes of new files says: for the owner alone.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let settings = Settings::read(words, |name| std::env::var(name).ok())?;
    let needed = settings.store.as_ref().map(|store| store.environment.clone()).unwrap_or_default();
    if !needed.is_empty() && std::env::var_os(PREPARED).is_none() {
        // Stores read their credentials from the environment, which is fixed once a program has threads.
        let program = std::env::current_exe().map_err(|error| Fault::io("cannot find our own program", error))?;
        let error = Command::new(program).arg("sidecar").args(words).envs(needed).env(PREPARED, "1").exec();
        return Err(Fault::io("cannot start again with the store's credentials", error));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Fault::io("cannot start the runtime", error))?;
    let ended = runtime.block_on(async { sidecar::run(settings, Signals::listen()?).await });
    // What hangs in a system call does not keep us: all that must last is on disk.
    runtime.shutdown_background();
    ended
}
