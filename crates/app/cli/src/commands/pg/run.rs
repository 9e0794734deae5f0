//! `quorate pg run`: the agent of one node of a group.
//!
//! **Rule:** a signal ends the agent; server, pooler and proxy run on, and the fence sees to the door.

use quorate_agent::pg::{self, Ending, PgRun};
use quorate_faults::{Exit, Fault};
use tokio::signal::unix::{SignalKind, signal};

use super::GroupArgs;
use crate::commands::run::runtime;
use crate::logging::{self, LogArgs};

/// Flags of `pg run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg run --config cluster.yaml --name n1
  quorate pg run --config cluster.yaml --name n1 --once    end when all is done

It makes the data dir, starts PostgreSQL, finds the others through the store, makes or joins
the group, and keeps pooler and proxy. Killed anywhere, it goes on where it stands.")]
pub(crate) struct Args {
    #[command(flatten)]
    group: GroupArgs,

    /// End once this node has done its part; all is left running
    #[arg(long)]
    once: bool,

    /// Stand still before this step, for rehearsals
    #[arg(long, value_name = "STEP", hide = true)]
    halt_before: Option<String>,

    #[command(flatten)]
    log: LogArgs,
}

/// Runs the agent.
pub(crate) fn run(args: &Args) -> Result<Exit, Fault> {
    let here = args.group.here()?;
    logging::start(&args.log)?;
    let runtime = runtime()?;
    let settings = PgRun { once: args.once, halt_before: args.halt_before.clone() };
    let ended = runtime.block_on(async {
        let listen = |kind| signal(kind).map_err(|error| Fault::io("cannot listen for signals", error));
        let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let stop = async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            Ending::Leave
        };
        pg::run(here, settings, stop).await
    });
    runtime.shutdown_background();
    ended.map(|()| Exit::Done)
}
