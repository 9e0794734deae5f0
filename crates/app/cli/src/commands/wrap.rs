//! `quorate wrap`: stands in for etcd-wrapper.
//!
//! **Rule:** its flags and exit codes are etcd-wrapper's: 0 when it was asked to end or etcd ended, 1 for all that went wrong.

use quorate_agent::gardener::Signals;
use quorate_agent::gardener::wrap::{self, Ended, HELP, Settings};
use quorate_faults::{Exit, Fault};
use tracing::error;

use crate::logging::{self, LogArgs};
use crate::printer::Printer;

/// Words of `wrap`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate wrap start-etcd --backup-restore-host-port=etcd-main-local:8080 \\
      --etcd-server-name=etcd-main-local
  quorate wrap start-etcd --help     all flags, which are etcd-wrapper's

It asks a sidecar (etcd-backup-restore, or `quorate sidecar`) to see to the data, fetches etcd's
configuration from it, runs etcd, and answers /readyz and /stop on port 9095.")]
pub(crate) struct Args {
    /// start-etcd, and etcd-wrapper's flags
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Runs it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let flags = match args.words.split_first() {
        Some((command, flags)) if command == "start-etcd" => flags,
        first => {
            let what = first.map_or("no command was given".to_owned(), |(word, _)| format!("unknown command `{word}`"));
            printer.aside(&format!("{what}\n\n{HELP}"));
            return Ok(Exit::CannotMeet);
        }
    };
    if flags.iter().any(|word| matches!(word.as_str(), "-h" | "-help" | "--help")) {
        printer.text(HELP);
        return Ok(Exit::Done);
    }
    logging::start(&LogArgs::json())?;
    match work(flags) {
        Ok(Ended::Done) => Ok(Exit::Done),
        Ok(Ended::Forced) => Ok(Exit::CannotMeet),
        Err(fault) => {
            log_fault(&fault);
            Ok(Exit::CannotMeet)
        }
    }
}

fn work(flags: &[String]) -> Result<Ended, Fault> {
    // One thread: etcd lives as long as the thread that starts it, and there is little to do.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Fault::io("cannot start the runtime", error))?;
    let ended = runtime.block_on(async {
        let signals = Signals::listen()?;
        let settings = Settings::read(flags, |name| std::env::var(name).ok())?;
        settings.say();
        wrap::run(&settings, signals).await
    });
    runtime.shutdown_background();
    ended
}

/// The one line that says why a program of Gardener's ended.
pub(super) fn log_fault(fault: &Fault) {
    let code = fault.code();
    let mut causes = Vec::new();
    let mut next = std::error::Error::source(fault);
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    let (hint, cause) = (fault.hint_text().unwrap_or_default(), causes.join(": "));
    error!(%code, hint, cause, "{fault}");
}
