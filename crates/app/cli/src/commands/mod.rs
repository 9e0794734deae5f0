//! One file per command: its flags, its work, its report.
//!
//! **Rule:** a command returns how it ended; it never prints past the printer and never exits.

pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod box_;
pub(crate) mod ca;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod ctl;
pub(crate) mod data;
pub(crate) mod demo;
pub(crate) mod drain;
pub(crate) mod enter;
pub(crate) mod etcd_args;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod fence;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod peer;
pub(crate) mod pg;
pub(crate) mod pid;
pub(crate) mod plan;
pub(crate) mod ps;
pub(crate) mod run;
pub(crate) mod self_;
pub(crate) mod shell;
pub(crate) mod shim;
pub(crate) mod sidecar;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod trace;
pub(crate) mod wrap;

use std::hash::BuildHasher;

use quorate_faults::{Exit, Fault};

use crate::args::Command;
use crate::printer::Printer;

/// Runs what the command line asks for.
pub(crate) fn run(command: Command, printer: &mut Printer) -> Result<Exit, Fault> {
    match command {
        Command::Data(verb) => data::run(verb, printer),
        Command::Backup(verb) => backup::run(verb, printer),
        Command::Box(verb) => box_::run(verb, printer),
        Command::Cluster(verb) => cluster::run(verb, printer),
        Command::Ca(verb) => ca::run(verb, printer),
        Command::Peer(verb) => peer::run(verb, printer),
        Command::Pg(verb) => pg::run(verb, printer),
        Command::Run(args) => run::run(&args, printer),
        Command::Plan(args) => plan::run(&args, printer),
        Command::Status(args) => status::run(&args, printer),
        Command::Stop(args) => stop::run(&args, printer),
        Command::Drain(args) => drain::run(&args, printer),
        Command::Ps(args) => ps::run(&args, printer),
        Command::Pid(args) => pid::run(&args, printer),
        Command::Logs(args) => logs::run(&args, printer),
        Command::Trace(args) => trace::run(&args, printer),
        Command::Exec(args) => exec::run(&args, printer),
        Command::Shell(args) => shell::run(&args, printer),
        Command::Ctl(args) => ctl::run(&args, printer),
        Command::Audit(args) => audit::run(&args, printer),
        Command::Demo(args) => demo::run(args, printer),
        Command::SelfCheck(verb) => self_::run(verb, printer),
        Command::Explain(args) => explain::run(&args, printer),
        Command::Completions(args) => completions::run(&args, printer),
        Command::Man(args) => man::run(&args, printer),
        Command::Shim(args) => shim::run(&args),
        Command::Fence(args) => fence::run(&args, printer),
        Command::Enter(args) => enter::run(&args, printer),
        Command::Wrap(args) => wrap::run(&args, printer),
        Command::Sidecar(args) => sidecar::run(&args, printer),
    }
}

/// A number that no other run has.
pub(crate) fn fresh_nonce() -> u64 {
    // Seeded by the system for each process.
    std::hash::RandomState::new().hash_one(std::process::id())
}
