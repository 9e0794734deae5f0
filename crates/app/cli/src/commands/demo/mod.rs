//! `quorate demo`: three etcd members on this machine, founded offline, to try things on.

use std::path::PathBuf;
use std::time::Duration;

use quorate_faults::{Code, Exit, Fault};

use crate::args;
use crate::printer::Printer;

/// Flags of `demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate demo                    found and start three members in ./.demo
  quorate demo status             the member table
  quorate demo stop               stop them, keep their data
  quorate demo stop --forget      stop them and set their data aside")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,

    /// Where the demo keeps its members
    #[arg(long, global = true, value_name = "DIR", default_value = ".demo")]
    dir: PathBuf,

    /// First of the six ports on 127.0.0.1 (three for clients, three for peers)
    #[arg(long, value_name = "PORT", default_value_t = 23790)]
    base_port: u16,

    /// How long to wait for the members to become healthy
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = args::duration)]
    wait: Duration,
}

/// The verbs of `demo`; without one it starts.
#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Stop all members; their data is kept and the next start resumes
    #[command(after_help = "Examples:\n  quorate demo stop\n  quorate demo stop --forget")]
    Stop {
        /// Also set the data aside, so that the next start founds a new cluster
        #[arg(long)]
        forget: bool,
    },
    /// Show the members
    #[command(after_help = "Examples:\n  quorate demo status\n  quorate demo status --output json")]
    Status,
}

/// Runs one verb.
pub(crate) fn run(args: Args, _printer: &mut Printer) -> Result<Exit, Fault> {
    Err(Fault::new(Code::DemoAbsent, format!("there is no demo in `{}`", args.dir.display())))
}
