//! `quorate pg`: groups of PostgreSQL servers that replicate to each other.

pub(crate) mod bootstrap;
pub(crate) mod conflicts;
pub(crate) mod ddl;
pub(crate) mod members;
pub(crate) mod rejoin;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod switchover;

use std::path::PathBuf;

use quorate_agent::pg::Here;
use quorate_faults::{Exit, Fault};

use crate::commands::run::own_program;
use crate::printer::Printer;

/// The verbs of `pg`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate pg bootstrap --config cluster.yaml --name n1   on each node
  quorate pg status --config cluster.yaml
  quorate pg switchover --to n2 --config cluster.yaml
  quorate pg stop --config cluster.yaml --name n1")]
pub(crate) enum Verb {
    /// Bring this node's part of a group up, and keep it in the background
    Bootstrap(bootstrap::Args),
    /// The agent of one node of a group, in the foreground
    Run(run::Args),
    /// Show every node, who writes, the links and what is waited for
    Status(status::Args),
    /// Make another node the write master; no transaction fails
    Switchover(switchover::Args),
    /// Take a node into the group while it is written to
    Join(members::JoinArgs),
    /// Let a node go, alive or dead
    Detach(members::DetachArgs),
    /// Replace the data of a node that stays out by the rows of the writer
    Rejoin(rejoin::Args),
    /// Change the schema of the group
    #[command(subcommand)]
    Ddl(ddl::Verb),
    /// Rows that lost to newer ones, and nodes made the same again
    #[command(subcommand)]
    Conflicts(conflicts::Verb),
    /// End all of a group that runs on this node
    Stop(stop::Args),
}

/// Which group, and which node of it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GroupArgs {
    /// The cluster file
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: PathBuf,

    /// This node's name in it [default: the only one]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,
}

impl GroupArgs {
    /// This node.
    fn here(&self) -> Result<Here, Fault> {
        Here::read(&self.config, self.name.as_deref(), own_program())
    }

    /// Any node whose certificates are here: for questions about the whole group.
    fn anyone(&self) -> Result<Here, Fault> {
        match &self.name {
            Some(_) => self.here(),
            None => Here::anyone(&self.config, own_program()),
        }
    }
}

/// Runs one verb.
pub(crate) fn run(verb: Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::Bootstrap(args) => bootstrap::run(&args, printer),
        Verb::Run(args) => run::run(&args),
        Verb::Status(args) => status::run(&args, printer),
        Verb::Switchover(args) => switchover::run(&args, printer),
        Verb::Join(args) => members::join(&args, printer),
        Verb::Detach(args) => members::detach(&args, printer),
        Verb::Rejoin(args) => rejoin::run(&args, printer),
        Verb::Ddl(verb) => ddl::run(&verb, printer),
        Verb::Conflicts(verb) => conflicts::run(&verb, printer),
        Verb::Stop(args) => stop::run(&args, printer),
    }
}
