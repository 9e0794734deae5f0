//! `quorate stop`: ends the agent of this machine, and etcd with it.

use std::time::{Duration, Instant};

use quorate_agent::turn::{self, Wish};
use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;

use super::audit;
use super::run::NodeArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `stop`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate stop --config cluster.yaml --name n1
  quorate stop --config cluster.yaml --name n1 --keep-running

etcd is asked first, then made to: SIGTERM, a dump of what it was doing, SIGKILL. How long
each may take stands under `maintenance: {stop: …}`. Also works when no agent runs.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,

    /// End the agent and leave etcd running
    #[arg(long)]
    keep_running: bool,
}

/// Ends it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = args.node.node(printer)?;
    if node.state_path().is_dir() {
        let words: Vec<String> = args.keep_running.then(|| "--keep-running".to_owned()).into_iter().collect();
        // Nobody is kept from stopping by a full disk.
        if let Err(fault) = audit::note_in(node.state_path(), "stop", node.name(), None, &words) {
            printer.warning(Code::NotAudited, &format!("this stop is not in the audit log: {fault}"));
        }
    }
    let asked_by = format!("`quorate stop` (process {})", std::process::id());
    let wish = Wish { asked_by: asked_by.clone(), keep_running: args.keep_running, reload: false };
    let Some(status) = turn::ask_stop(node.state_path(), &wish)? else {
        let how = if args.keep_running { None } else { turn::stop_alone(&node, &asked_by)? };
        let what = how.map_or_else(|| "no agent runs".to_owned(), |how| format!("no agent runs; etcd {how}"));
        printer.report(&Stopped { name: node.name().to_owned(), what });
        return Ok(Exit::Done);
    };
    let stop = &node.spec.maintenance.stop;
    let mut limit = stop.move_leader_timeout + stop.term_timeout + stop.dump_timeout + Duration::from_secs(40);
    for process in &node.spec.processes {
        limit +=
            process.hooks.timeout + process.stop.term_timeout + process.stop.dump_timeout + Duration::from_secs(20);
    }
    if node.spec.postgres.is_some() {
        // A handover, and a checkpoint of all that is in memory.
        limit += Duration::from_secs(120);
    }
    let begun = Instant::now();
    // It holds the lock until its last moment.
    while node.state()?.lock().is_err() {
        if begun.elapsed() > limit {
            return Err(Fault::new(Code::NotEnding, "the agent was asked to end and has not")
                .hint("see `quorate status`, and the agent's log"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = turn::offline_status(node.name(), &status.token, node.state_path())?;
    printer.report(&Stopped { name: node.name().to_owned(), what: left.cause });
    Ok(Exit::Done)
}

/// What is printed.
#[derive(Serialize)]
struct Stopped {
    name: String,
    what: String,
}

impl Report for Stopped {
    fn render(&self, page: &mut Page) {
        page.line(format!("{}: {}", self.name, self.what));
    }
}
