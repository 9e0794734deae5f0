//! `quorate peer`: clusters by hand. Invite a node, join, look who is there, change a role, take one out.
//!
//! **Rule:** a command asks the agent of this node, which decides; join codes come from a person, a pipe or a file, never from
//! the command line, where others could read them.

mod approve;
mod countersign;
mod detach;
mod followed;
mod invite;
mod join;
mod list;
mod probe;
mod set_role;

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_agent::cluster_file::{self, DEFAULT_STATE};
use quorate_agent::peering::{self, PEERS, PeersAnswer, Place};
use quorate_agent::peers::{OperatorFiles, PeerError, Peers};
use quorate_agent::turn::Node;
use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::commands::ca::passphrase::Terminal;
use crate::commands::run::runtime;
use crate::printer::Printer;

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(300);

/// How long the agent may be silent while it begins anew.
const SILENT_LIMIT: Duration = Duration::from_secs(8);
/// And before it is asked to do something: whoever waits has done nothing yet.
const ORDER_LIMIT: Duration = Duration::from_secs(4);
/// Codes are a line.
const CODE_MAX: u64 = 8192;

/// What can be done.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate peer invite --ttl 1h        on a server: code and secret for one node
  quorate peer join                   on the new node: asks for both
  quorate peer list")]
pub(crate) enum Verb {
    /// Make a join code for one node, and the second secret that a server needs
    Invite(invite::Args),
    /// Join a cluster with a code
    Join(join::Args),
    /// Let a node that waits with a join code become a server
    Approve(approve::Args),
    /// Take a node in that waits for it: `quorate run --accept-probe`
    Probe(probe::Args),
    /// Who belongs to the cluster
    List(list::ListArgs),
    /// The same, and what is being changed
    Status(list::StatusArgs),
    /// Approve, as a second server, that a node becomes a server
    Countersign(countersign::Args),
    /// Make a client of a server, or a server of a client
    SetRole(set_role::Args),
    /// Take a node out
    Detach(detach::Args),
}

/// Runs one of them.
pub(crate) fn run(verb: Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::Invite(args) => invite::run(&args, printer),
        Verb::Join(args) => join::run(&args, printer),
        Verb::Approve(args) => approve::run(&args, printer),
        Verb::Probe(args) => probe::run(&args, printer),
        Verb::List(args) => list::list(&args, printer),
        Verb::Status(args) => list::status(&args, printer),
        Verb::Countersign(args) => countersign::run(&args, printer),
        Verb::SetRole(args) => set_role::run(&args, printer),
        Verb::Detach(args) => detach::run(&args, printer),
    }
}

/// A code from the file, the terminal, or a pipe.
fn read_code(file: Option<&Path>, question: &str) -> Result<Zeroizing<String>, Fault> {
    let mut text = Zeroizing::new(String::new());
    if let Some(file) = file {
        let fail = |error| Fault::io(format!("cannot read `{}`", file.display()), error);
        let opened = std::fs::File::open(file).map_err(fail)?;
        opened.take(CODE_MAX).read_to_string(&mut text).map_err(fail)?;
        return Ok(text);
    }
    if std::io::stdin().is_terminal() {
        let terminal = Terminal::open().map_err(|error| {
            Fault::new(Code::JoinCodeInvalid, "there is no terminal to ask for the code on")
                .hint("give it with `--code-file`, or on stdin")
                .caused_by(error)
        })?;
        return terminal.ask(question);
    }
    let read = std::io::stdin().take(CODE_MAX).read_to_string(&mut text);
    read.map_err(|error| Fault::io("cannot read the code from stdin", error))?;
    Ok(text)
}

/// Which node of this machine.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PlaceArgs {
    /// Where nodes keep their state [default: /var/lib/quorate]
    #[arg(long, value_name = "DIR", env = "QUORATE_STATE_DIR")]
    state_dir: Option<PathBuf>,

    /// The node's name [default: the only one here, else the machine's]
    #[arg(long, env = "QUORATE_NAME")]
    pub(crate) name: Option<String>,
}

impl PlaceArgs {
    /// Where nodes keep their state.
    pub(crate) fn state_dir(&self) -> Result<PathBuf, Fault> {
        match &self.state_dir {
            Some(dir) => Ok(dir.clone()),
            None => cluster_file::place(DEFAULT_STATE),
        }
    }

    /// The node of this machine.
    pub(crate) fn find(&self) -> Result<Place, Fault> {
        let dir = self.state_dir()?;
        peering::find(&dir, self.name.as_deref())?.map(|(place, _)| place).ok_or_else(|| {
            Fault::new(Code::NodeBlank, format!("no node of `{}` belongs to a cluster by hand", dir.display()))
                .hint("`quorate run --standalone` begins one, `quorate peer join` joins one")
        })
    }
}

/// The agent of this node, and how it is asked.
struct Agent {
    name: String,
    peers: Arc<Peers>,
    runtime: tokio::runtime::Runtime,
}

impl Agent {
    fn of(args: &PlaceArgs, printer: &mut Printer) -> Result<Agent, Fault> {
        let place = args.find()?;
        let (node, warnings) = Node::read(&place.file(), Some(&place.name))?;
        for warning in warnings {
            printer.warning(warning.code, &warning.text);
        }
        let peers =
            Peers::for_operator(&node.spec, Some(&place.name)).with_operator(OperatorFiles::find(&node.spec.token)?);
        // Who was detached is declared no more, and its agent still answers.
        let gone: Vec<_> = (!node.is_declared()).then(|| node.member.clone()).into_iter().collect();
        let peers = Arc::new(peers.and_leaving(&node.spec, &gone).and_here(&node.spec, &node.member));
        Ok(Agent { name: place.name, peers, runtime: runtime()? })
    }

    /// Has the agent do something. One that begins anew is silent for a moment; what it had begun before it is asked again, it says.
    fn order<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, Fault> {
        let begun = Instant::now();
        loop {
            match self.runtime.block_on(self.peers.order(&self.name, path, body)) {
                Err(PeerError::Silent(_)) if begun.elapsed() < ORDER_LIMIT => std::thread::sleep(AGAIN),
                answer => return answer.map_err(|error| error.fault(&self.name)),
            }
        }
    }

    /// What the agent says.
    fn look(&self) -> Result<PeersAnswer, Fault> {
        self.look_at(&self.name)
    }

    /// What the agent of a node says. One that takes another file over begins anew, and is silent for a moment.
    fn look_at(&self, name: &str) -> Result<PeersAnswer, Fault> {
        let begun = Instant::now();
        loop {
            match self.runtime.block_on(self.peers.ask(name, PEERS, None)) {
                Err(PeerError::Silent(_)) if begun.elapsed() < SILENT_LIMIT => std::thread::sleep(AGAIN),
                answer => return answer.map_err(|error| error.fault(name)),
            }
        }
    }
}
