//! `quorate exec`: a command where a process is, with its rights.
//!
//! **Invariant:** it is in the audit log before it runs, and its exit code is ours.

use quorate_faults::{Exit, Fault};
use quorate_host::enter::{Arrived, Errand, Tools, Way};
use quorate_host::process::Identity;

use super::audit;
use super::ps::scan::{Place, Process};
use super::run::own_program;
use crate::printer::Printer;

/// Flags of `exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate exec etcd -- /usr/bin/etcd --version
  quorate exec etcd --tools -- ls -l /var/lib/etcd
  quorate exec n1/etcd --tools -- /bin/sh -c 'ulimit -n'

The command has the namespaces, root, user, groups, capabilities, limits, cgroup and
environment of the process, and its rules about files, ports and system calls. What
cannot be made the same is said on stderr. Its exit code is passed on; 128 and the
signal's number if a signal ended it.")]
pub(crate) struct Args {
    /// The process: `etcd`, or `n1/etcd` where several members are here
    #[arg(value_name = "PROCESS")]
    process: String,

    #[command(flatten)]
    place: Place,

    /// Lend it this machine's programs, read-only, and the system calls that they need
    #[arg(long)]
    tools: bool,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let (process, identity) = args.place.running(&args.process)?;
    let lent = args.tools.then(|| "--tools".to_owned());
    let words: Vec<String> = lent.into_iter().chain(args.command.iter().cloned()).collect();
    audit::note("exec", &process, identity.pid, &words)?;
    let tools = if args.tools { Tools::Always } else { Tools::Never };
    let errand = Errand { tools, ..errand(identity, &process, vec![args.command.clone()]) };
    go(&errand, printer)
}

/// What is sent. Of our environment only what a terminal is known by goes along.
pub(super) fn errand(identity: Identity, process: &Process, commands: Vec<Vec<String>>) -> Errand {
    let env = std::env::var("TERM").map(|term| ("TERM".to_owned(), term)).into_iter().collect();
    Errand { identity, commands, env, terminal: false, held: process.held().cloned(), tools: Tools::Never }
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
    if arrived.has_tools {
        let what = "the command has the programs of this machine and their system calls, which the process has not";
        printer.warning(quorate_faults::Code::NotTheSame, what);
    }
    if !arrived.missing.is_empty() {
        let what = format!("the command does not have {}", arrived.missing.join(", "));
        printer.warning(quorate_faults::Code::NotTheSame, &what);
    }
    arrived.execute()
}
