//! `quorate demo`: a declared cluster of three on this machine, with mutual TLS and backups, to try things on.
//!
//! The demo makes certificates and a cluster file, and starts three agents; the rest is theirs. Nothing is written down
//! about what runs: each agent is asked through its state dir. So the command can be killed at any point and run again.
//!
//! **Rule:** what the demo does is what an operator would do by hand; it knows no way of its own.

mod health;
mod log;
mod members;
mod report;
mod start;
mod state;
mod stop;

use std::path::PathBuf;
use std::time::Duration;

use quorate_faults::{Code, Exit, Fault};

use crate::args;
use crate::printer::Printer;
use health::Health;
use members::Member;
use report::DemoReport;
use state::Demo;

/// Flags of `demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate demo                     found and start three members in ./.demo
  quorate demo status              who is up, who leads
  quorate demo stop                stop them and keep their data
  quorate demo stop --forget       stop them and set their data aside
  quorate demo --dir /tmp/other --base-port 24790      a second one beside it")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,

    /// Where the demo keeps its members
    #[arg(long, global = true, value_name = "DIR", default_value = ".demo")]
    dir: PathBuf,

    #[command(flatten)]
    start: StartArgs,
}

/// The verbs of `demo`; without one it starts.
#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Found the members if need be, start those that do not run, and show them
    #[command(after_help = "Examples:\n  quorate demo start\n  quorate demo start --base-port 24790")]
    Start(StartArgs),
    /// Stop all members; their data is kept and the next start resumes
    #[command(after_help = "Examples:\n  quorate demo stop\n  quorate demo stop --forget")]
    Stop(StopArgs),
    /// Show the members
    #[command(after_help = "Examples:\n  quorate demo status\n  quorate demo status --output json")]
    Status,
}

/// Flags of `demo start`.
#[derive(Debug, Clone, Default, clap::Args)]
struct StartArgs {
    /// First of twelve ports on 127.0.0.1, four for each member [default: 23790]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65524))]
    base_port: Option<u16>,

    /// The etcd program to run [default: the one on the PATH, or in .tools]
    #[arg(long, value_name = "PROGRAM")]
    etcd: Option<PathBuf>,

    /// How long to wait for the members to become healthy [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = args::duration)]
    wait: Option<Duration>,
}

/// Flags of `demo stop`.
#[derive(Debug, clap::Args)]
struct StopArgs {
    /// Also set the data aside, so that the next start founds a new cluster
    #[arg(long)]
    forget: bool,
}

/// Runs one verb.
pub(crate) fn run(args: Args, printer: &mut Printer) -> Result<Exit, Fault> {
    match args.verb {
        None => start::run(&args.dir, &args.start, printer),
        Some(Verb::Start(flags)) => {
            let flags = StartArgs {
                base_port: flags.base_port.or(args.start.base_port),
                etcd: flags.etcd.or(args.start.etcd),
                wait: flags.wait.or(args.start.wait),
            };
            start::run(&args.dir, &flags, printer)
        }
        Some(Verb::Stop(flags)) => stop::run(&args.dir, flags.forget, printer),
        Some(Verb::Status) => status(&args.dir, printer),
    }
}

/// Shows the members as they are. Ends with 0 only when all are healthy.
fn status(dir: &std::path::Path, printer: &mut Printer) -> Result<Exit, Fault> {
    let demo = Demo::open(dir)?.ok_or_else(|| absent(dir))?;
    let members = Member::observe_all(&demo)?;
    let health = on_runtime(async { Ok(Health::ask_all(&demo).await) })?;
    let report = DemoReport::new(&demo, &members, &health);
    let exit = if report.all_healthy() { Exit::Done } else { Exit::CannotMeet };
    printer.report(&report);
    Ok(exit)
}

fn absent(dir: &std::path::Path) -> Fault {
    Fault::new(Code::DemoAbsent, format!("there is no demo cluster in `{}`", dir.display()))
        .hint("`quorate demo` makes one; `--dir` says where")
}

/// Runs what talks to the members.
fn on_runtime<T>(work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Fault::io("cannot set up the network", error))?.block_on(work)
}
