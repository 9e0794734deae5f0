//! `quorate cluster`: a whole cluster, as one file declares it.

pub(crate) mod adopt;
pub(crate) mod apply;
pub(crate) mod ask;
pub(crate) mod bootstrap;
pub(crate) mod check;
pub(crate) mod drain;
pub(crate) mod links;
pub(crate) mod operate;
pub(crate) mod page;
pub(crate) mod plan;
pub(crate) mod recover;
pub(crate) mod resolve;
pub(crate) mod restart;
pub(crate) mod schema;
pub(crate) mod status;
pub(crate) mod teardown;
pub(crate) mod upgrade;
mod upgrade_offline;

use quorate_faults::{Exit, Fault};

use crate::printer::Printer;

/// The verbs of `cluster`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate cluster check cluster.yaml     whether the file can be used, by line
  quorate cluster bootstrap cluster.yaml whether all is ready, and wait for it
  quorate cluster status --config cluster.yaml
  quorate cluster plan new.yaml          what would change, step by step
  quorate cluster apply new.yaml         and doing it
  quorate cluster drain n3 --leave --config cluster.yaml
  quorate cluster links client --config cluster.yaml > etcd.env
  quorate cluster adopt --config cluster.yaml --name n1")]
pub(crate) enum Verb {
    /// Check a cluster file: every mistake with its line and column
    Check(check::Args),
    /// See whether every node is ready to found a cluster, and wait until it is founded
    Bootstrap(bootstrap::Args),
    /// Show every member, what the cluster waits for, and whose turn it is
    Status(status::Args),
    /// Show the same as a page for a browser, on this machine alone
    Page(page::Args),
    /// Show what would be done next on each node, and why
    Plan(plan::Args),
    /// Bring a living cluster to what a file declares
    Apply(apply::Args),
    /// Take a member out of service, or out of the cluster
    Drain(drain::Args),
    /// Bring every member to another release of etcd, one at a time
    Upgrade(upgrade::Args),
    /// Restart members whose settings wait for it, one at a time
    Restart(restart::Args),
    /// End a whole cluster; every byte is kept
    Teardown(teardown::Args),
    /// What clients and joining members need: endpoints, CA, certificate
    Links(links::Args),
    /// The JSON Schema of the cluster file
    Schema(schema::Args),
    /// Take over a member that others made, stopped or running
    Adopt(adopt::Args),
    /// Quorum is lost for good: survey what is left, and begin the cluster anew from it
    Recover(recover::Args),
    /// Two recoveries made the same generation: let the nodes that lost join the other one
    Resolve(resolve::Args),
}

/// Runs one verb.
pub(crate) fn run(verb: Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::Check(args) => check::run(&args, printer),
        Verb::Bootstrap(args) => bootstrap::run(&args, printer),
        Verb::Status(args) => status::run(&args, printer),
        Verb::Page(args) => page::run(&args, printer),
        Verb::Plan(args) => plan::run(&args, printer),
        Verb::Apply(args) => apply::run(&args, printer),
        Verb::Drain(args) => drain::run(&args, printer),
        Verb::Upgrade(args) => upgrade::run(&args, printer),
        Verb::Restart(args) => restart::run(&args, printer),
        Verb::Teardown(args) => teardown::run(&args, printer),
        Verb::Links(args) => links::run(&args, printer),
        Verb::Schema(args) => schema::run(&args, printer),
        Verb::Adopt(args) => adopt::run(&args, printer),
        Verb::Recover(args) => recover::run(&args, printer),
        Verb::Resolve(args) => resolve::run(&args, printer),
    }
}
