//! `quorate exec`: a command where a process is, with its rights.
//!
//! **Invariant:** it is in the audit log before it runs, and its exit code is ours.

use quorate_faults::{Exit, Fault};
use quorate_host::enter::{Arrived, Errand, Way};
use quorate_host::process::Identity;

use super::audit;
use super::ps::scan::{Place, Process};
use super::run::own_program;
use crate::printer::Printer;

/// Flags of `exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate exec etcd -- id
  quorate exec etcd -- ls -l /
  quorate exec n1/etcd -- /bin/sh -c 'ulimit -n'

The command has the namespaces, root, user, groups, capabilities, limits, cgroup and
environment of the process. What cannot be made the same is said on stderr. Its exit code is
passed on; 128 and the signal's number if a signal ended it.")]
pub(crate) struct Args {
    /// The process: `etcd`, or `n1/etcd` where several members are here
    #[arg(value_name = "PROCESS")]
    process: String,

    #[command(flatten)]
    place: Place,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let (process, identity) = args.place.running(&args.process)?;
    audit::note("exec", &process, identity.pid, &args.command)?;
    let errand = errand(identity, &process, vec![args.command.clone()], false);
    go(&errand, printer)
}

/// What is sent, with what a terminal needs to be known by.
pub(super) fn errand(identity: Identity, process: &Process, commands: Vec<Vec<String>>, terminal: bool) -> Errand {
    let mut env: Vec<(String, String)> =
        std::env::var("TERM").map(|term| ("TERM".to_owned(), term)).into_iter().collect();
    if terminal {
        env.push(("PS1".to_owned(), format!("{}/{}:\\w\\$ ", process.member, process.name)));
    }
    Errand { identity, commands, env, terminal }
}

/// Goes there, in our own place or through a child.
pub(super) fn go(errand: &Errand, printer: &mut Printer) -> Result<Exit, Fault> {
    match errand.go(&own_program())? {
        Way::Here(arrived) => Err(finish(*arrived, printer)),
        Way::Child(sent) => Ok(printer.pass_on(sent.wait()?)),
    }
}

/// The last step, after which the command stands in our place.
pub(super) fn finish(arrived: Arrived, printer: &mut Printer) -> Fault {
    if !arrived.missing.is_empty() {
        let what = format!("the command does not have {}", arrived.missing.join(", "));
        printer.warning(quorate_faults::Code::NotTheSame, &what);
    }
    arrived.execute()
}
