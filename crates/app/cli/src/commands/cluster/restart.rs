//! `quorate cluster restart`: has members restarted that wait for an operator to say so, one at a time.
//!
//! **Rule:** the agents restart, in the turns of the plan; this command asks, and waits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_agent::peers::RestartAnswer;
use quorate_agent::turn::Status;
use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;

use super::ask::{Cluster, ClusterArgs};
use crate::args::duration;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Between two polls.
const AGAIN: Duration = Duration::from_millis(500);

/// Flags of `cluster restart`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster restart --pending --config cluster.yaml

An etcd that was taken over while it ran keeps the settings that it was started with. This has such
members restarted with the settings of the cluster file: one at a time, the leader last, and only
while the others have a quorum without it. Members that run with the settings of the file are left alone.

Exit code 0: no member waits for a restart any more. 3: some still do.")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Restart the members whose settings wait for it
    #[arg(long, required = true)]
    pending: bool,

    /// How long to wait for the restarts
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    wait: Duration,
}

/// Asks every agent, and waits.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let cluster = Cluster::open(&args.cluster.file()?, args.cluster.name.as_deref(), printer)?;
    let mut asked = Vec::new();
    for member in &cluster.spec.members {
        let answer: RestartAnswer = cluster.order(&member.name, "/v1/restart", &serde_json::json!({}))?;
        if answer.waits {
            printer.note(&format!("{}: restarts in its turn", member.name));
            asked.push(member.name.clone());
        }
    }
    let begun = Instant::now();
    loop {
        let statuses: BTreeMap<String, Result<Status, Fault>> = cluster.ask("/v1/status");
        let pending: Vec<String> = asked.iter().filter(|name| !is_restarted(statuses.get(*name))).cloned().collect();
        if pending.is_empty() || begun.elapsed() > args.wait {
            let exit = if pending.is_empty() { Exit::Done } else { Code::ChangeUnfinished.exit() };
            printer.report(&Restarted { restarted: asked, pending });
            return Ok(exit);
        }
        std::thread::sleep(AGAIN);
    }
}

fn is_restarted(status: Option<&Result<Status, Fault>>) -> bool {
    let Some(Ok(status)) = status else { return false };
    status.phase == "serving" && status.etcd.as_ref().is_some_and(|etcd| etcd.settings_current)
}

#[derive(Serialize)]
struct Restarted {
    /// The members that waited for a restart.
    restarted: Vec<String>,
    /// Those of them that still do.
    pending: Vec<String>,
}

impl Report for Restarted {
    fn render(&self, page: &mut Page) {
        match (self.restarted.is_empty(), self.pending.is_empty()) {
            (true, _) => page.line("no member waits for a restart"),
            (false, true) => page.line(format!("restarted: {}", self.restarted.join(", "))),
            (false, false) => page.line(format!("still waiting for a restart: {}", self.pending.join(", "))),
        }
    }
}
