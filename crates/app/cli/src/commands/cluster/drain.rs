//! `quorate cluster drain`: takes a member out of service, or out of the cluster for good.
//!
//! **Rule:** a second run finds the work done and says so; the last member is refused.

use std::time::{Duration, Instant};

use quorate_agent::peers::IntentRequest;
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::change::Stage;
use quorate_plan::ledger::IntentKind;
use quorate_plan::quorum::{Change, Standing};
use serde::Serialize;

use super::ask::ClusterArgs;
use super::operate::{Living, Look};
use crate::args::duration;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Between two looks.
pub(crate) const AGAIN: Duration = Duration::from_millis(300);

/// Flags of `cluster drain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster drain n3 --config cluster.yaml          it leads no more
  quorate cluster drain n3 --leave --config cluster.yaml  it leaves for good
  quorate cluster drain n3 --stay --config cluster.yaml   it stays after all

Without --leave leadership is handed over, so that stopping the member stalls nobody; what a
stop would do to the quorum is shown. With --leave its agent has it removed through another
member, waits for the end of its etcd and renames its data. Both may be repeated. A machine that
is gone is taken out of the file instead: `quorate cluster apply`.

Exit code 0: done, or already so. 3: not yet. 5: refused, such as the last member.")]
pub(crate) struct Args {
    /// The member's name
    node: String,

    #[command(flatten)]
    cluster: ClusterArgs,

    /// Remove it from the cluster for good
    #[arg(long, conflicts_with = "stay")]
    leave: bool,

    /// Take a wish to leave back
    #[arg(long)]
    stay: bool,

    /// How long to wait until it has left
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    wait: Duration,
}

/// Drains.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let living = Living::open(&args.cluster.file()?, args.cluster.name.as_deref(), printer)?;
    let drained = match (args.leave, args.stay) {
        (true, _) => leave(&living, &args.node, "`quorate cluster drain --leave`", args.wait)?,
        (false, true) => stay(&living, &args.node)?,
        (false, false) => hand_over(&living, &args.node, printer)?,
    };
    printer.report(&drained);
    Ok(if drained.done { Exit::Done } else { Code::ChangeUnfinished.exit() })
}

/// What came of it.
#[derive(Debug, Serialize)]
pub(crate) struct Drained {
    pub(crate) name: String,
    pub(crate) done: bool,
    pub(crate) what: String,
}

impl Drained {
    fn done(name: &str, what: impl Into<String>) -> Drained {
        Drained { name: name.to_owned(), done: true, what: what.into() }
    }
}

impl Report for Drained {
    fn render(&self, page: &mut Page) {
        page.line(format!("{}: {}", self.name, self.what));
    }
}

/// Hands leadership over, if the node leads, and says what its stop would do.
pub(crate) fn hand_over(living: &Living, node: &str, printer: &mut Printer) -> Result<Drained, Fault> {
    let seen = living.look();
    if is_gone(&seen, node)? {
        return Ok(Drained::done(node, "is no member, so it leads nobody"));
    }
    let answer = living.block_on(living.peers().hand_over(node)).map_err(|error| error.fault(node))?;
    let what = match answer.to {
        Some(to) => format!("handed leadership to member {to}"),
        None => "does not lead".to_owned(),
    };
    if let Some((_, members)) = seen.view.members()
        && let Some(member) = members.iter().find(|member| member.name == node)
    {
        let proof = Standing::confirmed(members).prove(Change::Pause(member.id), node);
        if members.len() > 1
            && let Some(objection) = &proof.objection
        {
            printer.warning(Code::UnsafeChange, &format!("stopping `{node}` now is not safe: {objection}"));
        }
    }
    Ok(Drained::done(node, what))
}

/// Has the node leave for good, and waits until it has.
pub(crate) fn leave(living: &Living, node: &str, why: &str, wait: Duration) -> Result<Drained, Fault> {
    let begun = Instant::now();
    let seen = living.look();
    if is_gone(&seen, node)? {
        return Ok(Drained::done(node, "has left"));
    }
    if let Some((_, members)) = seen.view.members() {
        let voters: Vec<&str> =
            members.iter().filter(|member| !member.learner).map(|member| member.name.as_str()).collect();
        if voters == [node] {
            return Err(Fault::new(Code::LastMember, format!("`{node}` is the last member, and does not leave"))
                .hint("declare another one, which joins first; or end the cluster: `quorate cluster teardown`"));
        }
    }
    let request = IntentRequest { intent: Some(IntentKind::Leave), why: why.to_owned() };
    living.block_on(living.peers().tell_intent(node, &request)).map_err(|error| error.fault(node))?;
    loop {
        let seen = living.look();
        if is_gone(&seen, node).unwrap_or(false) {
            return Ok(Drained::done(node, "has left; its data is renamed. Take it out of the cluster file"));
        }
        if let Some(halt) = seen.plan.halt.as_ref().filter(|halt| halt.refused) {
            return Err(Fault::new(halt.halt.code, halt.halt.why.clone()).hint(halt.halt.way_out.clone()));
        }
        if begun.elapsed() >= wait {
            let halt = seen.plan.halt.as_ref().map(|halt| halt.halt.why.clone());
            let step = seen.plan.steps.first().map(ToString::to_string);
            let waits = halt.or(step).unwrap_or_else(|| "its agent".to_owned());
            let what = format!("leaves, and has not left yet: {waits}");
            return Ok(Drained { name: node.to_owned(), done: false, what });
        }
        std::thread::sleep(AGAIN);
    }
}

fn stay(living: &Living, node: &str) -> Result<Drained, Fault> {
    let request = IntentRequest { intent: None, why: String::new() };
    living.block_on(living.peers().tell_intent(node, &request)).map_err(|error| error.fault(node))?;
    Ok(Drained::done(node, "stays"))
}

/// Whether the node has left, by its own word. Who does not answer is not gone.
fn is_gone(seen: &Look, node: &str) -> Result<bool, Fault> {
    match seen.answers.get(node) {
        Some(Ok(answer)) => Ok(answer.now().stage == Stage::Removed),
        Some(Err(fault)) => Err(Fault::new(fault.code(), format!("cannot drain `{node}`: {fault}"))
            .hint("start its agent; if the machine is gone, apply a file without it: `quorate cluster apply`")),
        None => Err(Fault::new(Code::RosterSelfMissing, format!("the cluster file does not declare `{node}`"))
            .hint("see `quorate cluster status` for the names")),
    }
}
