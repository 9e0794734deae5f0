//! `quorate pg bootstrap`: brings this node's part of a group up in the background, and waits until it is done.
//!
//! **Rule:** the second time it changes nothing.

use std::time::{Duration, Instant};

use quorate_agent::pg::{self, PgStatus};
use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;

use super::GroupArgs;
use crate::args::duration;
use crate::commands::run::runtime;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(100);

/// Flags of `pg bootstrap`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg bootstrap --config cluster.yaml --name n1
  quorate pg bootstrap --config cluster.yaml --name n1 --wait 0s    do not wait

Run it on each node, in any order, at any time. Exit code 0: this node has done its part and
the group stands. 3: it waits, and it says for whom; the agent goes on in the background.")]
pub(crate) struct Args {
    #[command(flatten)]
    group: GroupArgs,

    /// How long to wait until this node has done its part
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    wait: Duration,
}

/// Starts, shows and waits.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let here = args.group.here()?;
    let runtime = runtime()?;
    let answers = |within: &str| runtime.block_on(here.ask(within));
    let started = match answers(here.name()) {
        Ok(_) => false,
        Err(_) => {
            here.preflight()?;
            pg::ensure_agent(&here, &args.group.config)?
        }
    };
    let begun = Instant::now();
    let progress = printer.progress("bringing the node up", None);
    loop {
        let status = answers(here.name());
        let ready = status.as_ref().is_ok_and(|status| status.ready);
        if ready || begun.elapsed() >= args.wait {
            drop(progress);
            let status = match status {
                Ok(status) => status,
                Err(fault) if args.wait.is_zero() => {
                    PgStatus { node: here.name().to_owned(), waiting: Some(fault.to_string()), ..PgStatus::default() }
                }
                Err(fault) => return Err(fault),
            };
            printer.report(&Shown { started, status });
            return Ok(if ready { Exit::Done } else { Code::PgWaiting.exit() });
        }
        // Looked at after it was silent: it may have answered and ended in between.
        if status.is_err()
            && let Err(fault) = pg::check_agent(&here)
            && fault.code() == Code::PgAgentEnded
            && answers(here.name()).is_err()
        {
            return Err(fault);
        }
        std::thread::sleep(AGAIN);
    }
}

#[derive(Serialize)]
struct Shown {
    started: bool,
    #[serde(flatten)]
    status: PgStatus,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        let PgStatus { node, group, door, ready, doing, waiting, fault, .. } = &self.status;
        match (ready, self.started) {
            (true, true) => page.line(format!("{node} has its part of group {group}: {door}")),
            (true, false) => page.line(format!("{node} had its part of group {group} already: {door}")),
            (false, _) => page.line(format!("{node} goes on in the background")),
        }
        for (what, text) in [("doing", doing), ("waiting for", waiting), ("fault", fault)] {
            if let Some(text) = text.as_ref().filter(|_| !ready) {
                page.line(format!("  {what}: {text}"));
            }
        }
    }
}
