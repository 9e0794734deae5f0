//! `quorate peer list` and `quorate peer status`: who belongs to the cluster, and what is being changed.

use quorate_agent::peering::{ApprovalShown, PeersAnswer, WaitingShown};
use quorate_faults::{Exit, Fault};
use quorate_plan::peering::Role;
use serde::Serialize;

use super::followed::is_over;
use super::{Agent, PlaceArgs};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `peer list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate peer list
  quorate peer list --output json

Asked is the agent of this node, which asks the others.")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    place: PlaceArgs,
}

/// Flags of `peer status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate peer status
  quorate peer status --output json

Exit code 0: nothing is being changed. 3: a change goes on, and it says what it waits for.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    place: PlaceArgs,
}

/// Shows the nodes.
pub(crate) fn list(args: &ListArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let answer = Agent::of(&args.place, printer)?.look()?;
    printer.report(&Listed(answer));
    Ok(Exit::Done)
}

/// Shows the nodes and the change.
pub(crate) fn status(args: &StatusArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let answer = Agent::of(&args.place, printer)?.look()?;
    let busy = answer.operation.as_ref().is_some_and(|operation| !is_over(&operation.step));
    printer.report(&Whole(answer));
    Ok(if busy { Exit::Waiting } else { Exit::Done })
}

#[derive(Serialize)]
#[serde(transparent)]
struct Listed(PeersAnswer);

impl Report for Listed {
    fn render(&self, page: &mut Page) {
        page.table(
            ["node", "role", "state", "agent", ""],
            self.0.nodes.iter().map(|node| {
                let answers = if node.answers { "" } else { "does not answer" };
                [node.name.clone(), node.role.clone(), node.state.clone(), node.agent.clone(), answers.to_owned()]
            }),
        );
        if let Some(waits) = &self.0.approval {
            let ApprovalShown { name, address, role, by, .. } = waits;
            page.line(format!(
                "`{name}` at `{address}` waits to become a {role}, taken in by `{by}`: `quorate peer countersign {name}`"
            ));
        }
        if let Some(why) = &self.0.unread {
            page.line(format!("who the clients are cannot be read ({why}): there may be others than those above"));
        }
        for WaitingShown { name, address, role, fingerprint, from, .. } in &self.0.waiting {
            let from = if from == address { String::new() } else { format!(", from {from}") };
            page.gap();
            page.line(format!("`{name}` at {address}{from} waits to join as {role}, fingerprint {fingerprint}"));
            page.step("approve", format!("quorate peer approve {name}"));
        }
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Whole(PeersAnswer);

impl Report for Whole {
    fn render(&self, page: &mut Page) {
        let PeersAnswer { name, role, cluster, operation, invitations, .. } = &self.0;
        page.line(format!("`{name}` is {role} of cluster `{cluster}`"));
        page.gap();
        Listed(self.0.clone()).render(page);
        page.gap();
        match operation {
            None => page.line("nothing was changed by hand yet"),
            Some(operation) => {
                let waits = operation.waits.as_ref().map(|what| format!(", waiting for {what}")).unwrap_or_default();
                page.line(format!("{} of `{}`: {}{waits}", operation.kind, operation.name, operation.step));
            }
        }
        if self.0.nodes.iter().any(|node| node.role == Role::Client.word()) {
            page.line(
                "a client leads programs on its own machine to the servers: they connect to port 2379 of 127.0.0.1",
            );
        }
        if *invitations > 0 {
            page.line(format!("codes that still let someone in: {invitations}"));
        }
    }
}
