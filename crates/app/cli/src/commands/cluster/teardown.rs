//! `quorate cluster teardown`: ends a whole cluster on purpose. Every member stops, nothing is removed and nothing is deleted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_agent::peers::{IntentRequest, NodeAnswer};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::ledger::IntentKind;
use serde::Serialize;

use super::ask::ClusterArgs;
use super::operate::Living;
use crate::args::duration;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(300);

/// Flags of `cluster teardown`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster teardown --config cluster.yaml --yes
  quorate cluster teardown --config cluster.yaml --cancel   it comes back

Each node writes the intent down, stops its etcd, and does not start it again until the intent
is taken back. Data, ledgers and backups stay as they are. Every agent has to answer.

Exit code 0: no etcd runs any more (with --cancel: all were told). 3: some still do.")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Yes, end all of it
    #[arg(long, required_unless_present = "cancel")]
    yes: bool,

    /// Take the intent back: the members start again
    #[arg(long, conflicts_with = "yes")]
    cancel: bool,

    /// How long to wait for every etcd to end
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    wait: Duration,
}

/// Tears it down.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let living = Living::open(&args.cluster.file()?, args.cluster.name.as_deref(), printer)?;
    let seen = living.look();
    if let Some((node, Err(fault))) = seen.answers.iter().find(|(_, answer)| answer.is_err()) {
        return Err(Fault::new(fault.code(), format!("cannot tell `{node}`: {fault}"))
            .hint("nothing was changed; start every agent first"));
    }
    let intent = (!args.cancel).then_some(IntentKind::Teardown);
    let request = IntentRequest { intent, why: "`quorate cluster teardown`".to_owned() };
    for node in living.nodes() {
        living.block_on(living.peers().tell_intent(&node, &request)).map_err(|error| error.fault(&node))?;
    }
    let begun = Instant::now();
    loop {
        let answers: BTreeMap<String, Result<NodeAnswer, Fault>> =
            living.block_on(living.peers().ask_all("/v1/node", None));
        let runs = |answer: &Result<NodeAnswer, Fault>| answer.as_ref().map_or(true, |answer| answer.etcd.is_some());
        let running: Vec<String> =
            answers.iter().filter(|(_, answer)| runs(answer)).map(|(name, _)| name.clone()).collect();
        if args.cancel || running.is_empty() || begun.elapsed() >= args.wait {
            let done = args.cancel || running.is_empty();
            printer.report(&TornDown { done, cancelled: args.cancel, running });
            return Ok(if done { Exit::Done } else { Code::ChangeUnfinished.exit() });
        }
        std::thread::sleep(AGAIN);
    }
}

/// What is printed.
#[derive(Serialize)]
struct TornDown {
    done: bool,
    cancelled: bool,
    /// Whose etcd still runs.
    running: Vec<String>,
}

impl Report for TornDown {
    fn render(&self, page: &mut Page) {
        match (self.cancelled, self.done) {
            (true, _) => page.line("every node was told; the members start again by themselves"),
            (false, true) => page.line("no etcd runs any more; every byte is kept, and `--cancel` brings it back"),
            (false, false) => page.line(format!("still running: {}", self.running.join(", "))),
        }
    }
}
