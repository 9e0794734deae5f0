//! `quorate pg run`: the agent of one node of a group.
//!
//! **Rule:** SIGTERM or SIGINT ends the agent; server, pooler and proxy run on, and the fence sees to the door. SIGHUP has it read
//! the cluster file anew.

use std::sync::Arc;

use quorate_agent::pg::{self, Ending, PgRun};
use quorate_faults::{Exit, Fault};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

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
the group, and keeps pooler and proxy. Killed anywhere, it goes on where it stands. SIGHUP has
it read the cluster file anew, as when a node was added to it; nothing that runs is stopped.")]
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
        // Heard from here on, also while nobody waits for them.
        let [term, int, hup] = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(listen);
        let signals = Arc::new(Mutex::new((term?, int?, hup?)));
        let stop = || {
            let signals = Arc::clone(&signals);
            async move {
                let mut signals = signals.lock().await;
                let (term, int, hup) = &mut *signals;
                tokio::select! {
                    _ = term.recv() => Ending::Leave,
                    _ = int.recv() => Ending::Leave,
                    _ = hup.recv() => Ending::Anew,
                }
            }
        };
        pg::run(here, settings, stop, || args.group.here()).await
    });
    runtime.shutdown_background();
    ended.map(|()| Exit::Done)
}
