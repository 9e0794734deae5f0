//! `quorate run`: the agent. Keeps one member alive on this machine.
//!
//! **Rule:** the first signal ends it in order, the second one at once; etcd's end is recorded either way.

use std::path::PathBuf;

use quorate_agent::turn::{self, Finish, Node, RunSettings};
use quorate_faults::{Exit, Fault};

use crate::logging::{self, LogArgs};
use crate::printer::Printer;

/// Which member.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NodeArgs {
    /// The cluster file
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: PathBuf,

    /// This member's name in it [default: the only one]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,
}

impl NodeArgs {
    /// These.
    pub(crate) fn new(config: PathBuf, name: Option<String>) -> NodeArgs {
        NodeArgs { config, name }
    }

    /// The file, and the name.
    pub(crate) fn parts(&self) -> (&std::path::Path, Option<&str>) {
        (&self.config, self.name.as_deref())
    }

    /// Reads the file and finds the member.
    pub(crate) fn node(&self, printer: &mut Printer) -> Result<Node, Fault> {
        let (node, warnings) = Node::read(&self.config, self.name.as_deref())?;
        for warning in warnings {
            printer.warning(warning.code, &warning.text);
        }
        Ok(node)
    }
}

/// Flags of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate run --config cluster.yaml --name n1
  quorate run --config cluster.yaml --name n1 --once
  systemctl start quorate                  the same as a service

It checks the data, restores or founds it where that is safe, starts etcd and keeps it
running. SIGTERM stops etcd too, unless --keep-running; an agent that is killed leaves
etcd running, and the next one takes it over. Health is at /readyz, status at `quorate
status`.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,

    /// One turn: look, decide, act; etcd is left running
    #[arg(long)]
    once: bool,

    /// Signals end the agent and leave etcd running
    #[arg(long)]
    keep_running: bool,

    #[command(flatten)]
    log: LogArgs,
}

/// Runs the agent.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = args.node.node(printer)?;
    logging::start(&args.log)?;
    let settings = RunSettings { node, once: args.once, keep_running: args.keep_running, shim: own_program() };
    let runtime = runtime()?;
    let finish = runtime.block_on(turn::run(settings));
    // What still works in the background can be cut off at any point, and is by now.
    runtime.shutdown_background();
    match finish? {
        Finish::Stopped | Finish::Left => Ok(Exit::Done),
        Finish::Halted(code) => Ok(code.exit()),
    }
}

/// One thread: an agent mostly waits.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Fault::io("cannot start the runtime", error))
}

/// Our own program, also where its file was replaced by a newer one meanwhile.
pub(crate) fn own_program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        Ok(_) | Err(_) => PathBuf::from("/proc/self/exe"),
    }
}
