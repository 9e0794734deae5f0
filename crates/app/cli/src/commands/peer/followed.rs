//! Follows a change of peers to its end, and says in one line how far it is.

use std::time::{Duration, Instant};

use quorate_agent::peering::{OperationShown, PeersAnswer};
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use super::{AGAIN, Agent};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// A change, as far as it was followed.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Followed(OperationShown);

impl Followed {
    /// Follows it at the agent that carries it out, and shows what came of it.
    pub(super) fn follow(
        agent: &Agent,
        begun: OperationShown,
        wait: Duration,
        printer: &mut Printer,
    ) -> Result<Exit, Fault> {
        let now = follow(agent, &begun, wait, printer)?.unwrap_or(begun);
        Ok(Followed::show(now, printer))
    }

    /// Shows how far it came.
    pub(super) fn show(now: OperationShown, printer: &mut Printer) -> Exit {
        let exit = match now.step.as_str() {
            "joined" | "detached" | "changed" => Exit::Done,
            "undone" => Exit::CannotMeet,
            _ => Exit::Waiting,
        };
        printer.report(&Followed(now));
        exit
    }
}

/// How it ended for who wanted it taken back.
pub(super) fn taken_back(exit: Exit) -> Exit {
    match exit {
        Exit::CannotMeet => Exit::Done,
        Exit::Done => Exit::CannotMeet,
        exit => exit,
    }
}

impl Report for Followed {
    fn render(&self, page: &mut Page) {
        let OperationShown { kind, name, role, step, waits, .. } = &self.0;
        let (doing, changes) = match kind.as_str() {
            "detach" => ("is being detached", false),
            "to-client" => ("becomes a client", true),
            "to-server" => ("becomes a server", true),
            _ => ("joins", false),
        };
        match (step.as_str(), waits) {
            ("changed", _) => page.line(format!("`{name}` is a {role}")),
            ("undone", _) if changes => page.line(format!("`{name}` did not become a {role}, and is what it was")),
            ("joined", _) if role == "server" => page.line(format!("`{name}` is a member, and votes")),
            ("joined", _) if role == "client" => page.line(format!("`{name}` is on record as a client")),
            ("joined", _) => page.line(format!("`{name}` belongs to the cluster")),
            ("undone", _) if kind == "detach" => {
                page.line(format!("`{name}` stays: a file that declares it was applied meanwhile"))
            }
            ("undone", _) => page.line(format!("`{name}` did not come, and has no place any more")),
            ("detached", _) if role == "client" => page.line(format!("`{name}` is no client any more")),
            ("detached", _) => page.line(format!("`{name}` is no member any more")),
            (_, Some(what)) => page.line(format!("`{name}` {doing}; waiting for {what}")),
            (step, None) => page.line(format!("`{name}` {doing}: {step}")),
        }
    }
}

/// Whether nothing more is done.
pub(super) fn is_over(step: &str) -> bool {
    matches!(step, "joined" | "undone" | "detached" | "changed")
}

/// Waits until it is over; `None`: another one took its place. The agent may begin anew meanwhile.
pub(super) fn follow(
    agent: &Agent,
    begun: &OperationShown,
    wait: Duration,
    printer: &Printer,
) -> Result<Option<OperationShown>, Fault> {
    let (since, progress) = (Instant::now(), printer.progress("following the agents", None));
    let at = begun.by.as_deref().unwrap_or(&agent.name);
    let mut last = None;
    loop {
        if let Ok(PeersAnswer { operation: Some(operation), .. }) = agent.look_at(at) {
            if operation.id != begun.id {
                return Ok(None);
            }
            if is_over(&operation.step) {
                drop(progress);
                return Ok(Some(operation));
            }
            last = Some(operation);
        }
        if since.elapsed() >= wait {
            drop(progress);
            return Ok(last);
        }
        std::thread::sleep(AGAIN.min(wait.saturating_sub(since.elapsed())));
    }
}
