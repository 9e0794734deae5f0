//! `quorate peer approve`: lets a node that was invited here and waits become a server.

use std::io::IsTerminal;

use quorate_agent::peering::{APPROVE, ApproveRequest, WaitingShown};
use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;

use super::{Agent, PlaceArgs};
use crate::commands::ca::passphrase::Terminal;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `peer approve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate peer approve n4             shows name, address, fingerprint; asks
  quorate peer approve n4 --fingerprint 7XKD-29QM-A1BC-55TZ

A node that joins as server without the second secret of its code waits, and prints a
fingerprint. Approve it on the server whose code it has, if that shows the same fingerprint:
another one is another node that has the code. `quorate peer status` shows who waits.")]
pub(crate) struct Args {
    /// The node that waits
    node: String,

    #[command(flatten)]
    place: PlaceArgs,

    /// The fingerprint that the node prints [default: shown here and asked for]
    #[arg(long, value_name = "TEXT")]
    fingerprint: Option<String>,
}

/// Approves it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let agent = Agent::of(&args.place, printer)?;
    let fingerprint = match &args.fingerprint {
        Some(fingerprint) => fingerprint.clone(),
        None => compared(&agent, &args.node)?,
    };
    let request = ApproveRequest { name: args.node.clone(), fingerprint };
    let approved: WaitingShown = agent.order(APPROVE, &request)?;
    printer.report(&Approved(approved));
    Ok(Exit::Done)
}

fn nothing(node: &str, why: &str, hint: String) -> Fault {
    Fault::new(Code::NothingToApprove, format!("cannot approve `{}`: {why}", node.escape_debug())).hint(hint)
}

/// Has the operator compare the fingerprint.
fn compared(agent: &Agent, node: &str) -> Result<String, Fault> {
    let waiting: Vec<WaitingShown> = agent.look()?.waiting.into_iter().filter(|one| one.name == node).collect();
    let one = match waiting.as_slice() {
        [one] => one,
        [] => {
            let hint = "see who waits on this server: `quorate peer status`".to_owned();
            return Err(nothing(node, "no node of this name waits here", hint));
        }
        several => {
            let hint = format!("name the one that your node prints: `quorate peer approve {node} --fingerprint TEXT`");
            return Err(nothing(
                node,
                &format!("{} nodes of this name wait, so one code is in two hands", several.len()),
                hint,
            ));
        }
    };
    let by_flag = || format!("compare it with the new node, and `quorate peer approve {node} --fingerprint TEXT`");
    if !std::io::stdin().is_terminal() {
        return Err(nothing(node, "stdin is not a terminal, so its fingerprint cannot be compared", by_flag()));
    }
    let terminal = Terminal::open().map_err(|error| {
        nothing(node, "there is no terminal to compare its fingerprint on", by_flag()).caused_by(error)
    })?;
    let WaitingShown { name, address, role, fingerprint, .. } = one;
    let question = format!(
        "`{name}` at `{address}` wants to join as {role}, fingerprint {fingerprint}\nDoes the new node show the same? [y/N] "
    );
    match terminal.ask_yes(&question)? {
        true => Ok(fingerprint.clone()),
        false => Err(nothing(
            node,
            "the fingerprint was not confirmed",
            "make another code if this is not your node".to_owned(),
        )),
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Approved(WaitingShown);

impl Report for Approved {
    fn render(&self, page: &mut Page) {
        let WaitingShown { name, address, role, .. } = &self.0;
        page.line(format!("`{name}` at `{address}` may join as {role}"));
        page.gap();
        page.step("then", "quorate peer list");
    }
}
