//! What a long-running command says while it runs: one line per event, on stderr.
//!
//! **Rule:** this is the one other place that writes, and it never writes to stdout: results stay the printer's.

use std::io::IsTerminal;

use clap::ValueEnum;
use quorate_faults::{Code, Fault};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Flags about the log.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// text, or json: one object per line
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT", hide_possible_values = true)]
    log_format: Format,

    /// error, warn, info or debug
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    log_level: String,
}

impl LogArgs {
    /// Lines for machines, for commands whose flags are not ours.
    pub(crate) fn json() -> LogArgs {
        LogArgs { log_format: Format::Json, log_level: "info".to_owned() }
    }
}

/// The form of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// Begins to log. Call it once.
pub(crate) fn start(args: &LogArgs) -> Result<(), Fault> {
    let level = args.log_level.to_ascii_lowercase();
    if !["error", "warn", "info", "debug", "trace"].contains(&level.as_str()) {
        return Err(Fault::new(Code::Usage, format!("cannot use the log level `{level}`"))
            .hint("write `error`, `warn`, `info` or `debug`"));
    }
    // Libraries below us have more to say than anyone wants to read; their warnings are ours to give.
    let filter = EnvFilter::try_new(format!("error,quorate_agent={level},quorate_backup={level},quorate={level}"));
    let filter = filter.map_err(|error| Fault::new(Code::Internal, "cannot set up the log").caused_by(error))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_span_events(FmtSpan::NONE)
        .with_target(false);
    let started = match args.log_format {
        Format::Json => lines.json().flatten_event(true).finish().try_init(),
        Format::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(colour).finish().try_init()
        }
    };
    started.map_err(|error| Fault::new(Code::Internal, "cannot set up the log").caused_by(error.to_string()))
}
