//! `quorate drain`: what a machine does before its agent is stopped, for BOSH and Kubernetes.
//!
//! **Rule:** stdout is one integer and nothing else, as BOSH wants it; everything else goes to stderr. A second run succeeds.

use std::time::{Duration, Instant};

use quorate_agent::turn::{self, Node};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::phase::Phase;
use serde_json::Value;

use super::cluster::drain::{AGAIN, hand_over, leave};
use super::cluster::operate::Living;
use super::run::NodeArgs;
use crate::args::duration;
use crate::printer::Printer;

/// Flags of `drain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate drain --config cluster.yaml --name n1            hand leadership over
  quorate drain --config cluster.yaml --name n1 --leave    leave for good

Prints `0` when the agent may be stopped, and `-10` when it should be asked again in ten seconds,
as BOSH's drain scripts do; a failure prints nothing and has another exit code. A node that stays
is `0` also while its etcd serves nobody: there is nothing to hand over. Under BOSH the node
leaves when its persistent disk goes (`BOSH_JOB_NEXT_STATE`) or its instance is deleted
(`BOSH_INSTANCE_NEXT_STATE`), and stays when the whole deployment is deleted
(`BOSH_DEPLOYMENT_NEXT_STATE`).")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,

    /// Leave the cluster for good
    #[arg(long)]
    leave: bool,

    /// How long to wait before it says that it is to be asked again
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    wait: Duration,
}

/// What is to become of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intent {
    /// It comes back.
    Keep,
    /// It leaves for good.
    Leave,
    /// All of it ends: nothing is removed.
    Teardown,
}

/// Drains, and prints the integer.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let (file, name) = args.node.parts()?;
    let (node, _) = Node::read(&file, name)?;
    let intent = intent(args.leave, |name| std::env::var(name).ok());
    let answer = match intent {
        Intent::Teardown => 0,
        Intent::Keep | Intent::Leave => drain(&node, intent, args.wait, printer)?,
    };
    printer.text(&format!("{answer}\n"));
    Ok(Exit::Done)
}

fn drain(node: &Node, intent: Intent, wait: Duration, printer: &mut Printer) -> Result<i32, Fault> {
    let status = match turn::ask_status(node.state_path())? {
        Some(status) => status,
        None => turn::offline_status(node.name(), &node.spec.token, node.state_path())?,
    };
    let is_member = matches!(status.ledger.as_str(), "started" | "pending add");
    if !is_member {
        printer.aside(&format!("{}: its ledger says `{}`; nothing is to be done\n", node.name(), status.ledger));
        return Ok(0);
    }
    if intent == Intent::Keep && status.agent.is_none() {
        printer.aside(&format!("{}: no agent runs; nothing is to be done\n", node.name()));
        return Ok(0);
    }
    if status.agent.is_none() {
        return Err(Fault::new(Code::NoAgent, format!("`{}` cannot leave: its agent does not run", node.name()))
            .hint("start it; it has the member removed, and ends etcd in order"));
    }
    if intent == Intent::Keep {
        return keep(node, wait, printer).map(|()| 0);
    }
    let living = Living::open(&node.file, Some(node.name()), printer)?;
    let drained = leave(&living, node.name(), "`quorate drain`", wait)?;
    printer.aside(&format!("{}: {}\n", drained.name, drained.what));
    Ok(if drained.done { 0 } else { -10 })
}

/// Hands leadership over, unless etcd serves nobody: then there is nothing to hand over, and the agent may be stopped as it is.
fn keep(node: &Node, wait: Duration, printer: &mut Printer) -> Result<(), Fault> {
    let begun = Instant::now();
    loop {
        let living = Living::open(&node.file, Some(node.name()), printer);
        let fault = match living.and_then(|living| hand_over(&living, node.name(), printer)) {
            Ok(drained) => {
                printer.aside(&format!("{}: {}\n", drained.name, drained.what));
                return Ok(());
            }
            Err(fault) => fault,
        };
        let Some(status) = turn::ask_status(node.state_path())? else {
            printer.aside(&format!("{}: its agent has ended; nothing is to be done\n", node.name()));
            return Ok(());
        };
        // By the word of its own agent, which reads through it all the time.
        if status.phase != Phase::Serving.word() {
            let why = format!("{}: {fault}\n{0}: its etcd serves nobody ({})", node.name(), status.cause);
            printer.aside(&format!("{why}; nothing is to be handed over\n"));
            return Ok(());
        }
        if begun.elapsed() >= wait {
            return Err(fault);
        }
        std::thread::sleep(AGAIN);
    }
}

fn intent(leave: bool, variable: impl Fn(&str) -> Option<String>) -> Intent {
    let deleted = |name: &str| variable(name).as_deref() == Some("delete");
    if deleted("BOSH_DEPLOYMENT_NEXT_STATE") {
        return Intent::Teardown;
    }
    // `{"persistent_disk":0}`: the disk goes, and the instance with it.
    let state = variable("BOSH_JOB_NEXT_STATE").and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let no_disk = state.is_some_and(|state| state.get("persistent_disk").and_then(Value::as_u64) == Some(0));
    if leave || no_disk || deleted("BOSH_INSTANCE_NEXT_STATE") { Intent::Leave } else { Intent::Keep }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bosh_says_what_is_meant() {
        let meant = |set: &[(&str, &str)]| {
            intent(false, |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(meant(&[]), Intent::Keep);
        assert_eq!(meant(&[("BOSH_JOB_NEXT_STATE", r#"{"persistent_disk":1024}"#)]), Intent::Keep);
        assert_eq!(meant(&[("BOSH_JOB_NEXT_STATE", r#"{"persistent_disk": 0}"#)]), Intent::Leave);
        assert_eq!(meant(&[("BOSH_JOB_NEXT_STATE", "nonsense")]), Intent::Keep);
        assert_eq!(meant(&[("BOSH_INSTANCE_NEXT_STATE", "delete")]), Intent::Leave);
        let all = [("BOSH_DEPLOYMENT_NEXT_STATE", "delete"), ("BOSH_JOB_NEXT_STATE", r#"{"persistent_disk":0}"#)];
        assert_eq!(meant(&all), Intent::Teardown);
        assert_eq!(intent(true, |_| None), Intent::Leave);
    }
}
