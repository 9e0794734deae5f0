//! `quorate peer join`: joins a cluster with a code.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate_agent::cluster_file;
use quorate_agent::peering::{JoinSettings, Joined, join};
use quorate_agent::turn::{self, Finish, Node, RunSettings};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::peering::{CodeError, JoinCode};
use serde::Serialize;

use super::{AGAIN, PlaceArgs, read_code};
use crate::commands::run::{own_program, runtime};
use crate::logging::{self, LogArgs};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// How long another change may take to end: one that lasts longer waits for something itself.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// Flags of `peer join`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate peer join                        asks for the code
  quorate peer join --run < code.txt       from a pipe; then be the agent
  quorate peer join --code-file code.txt --name n2 --listen 10.0.0.2

Both sides are checked first; all that speaks against it is listed, and nothing is changed.
Then this node makes its keys, has them signed, and gets the cluster file. Its agent
(`quorate run`, or --run here) does the rest: it joins as a learner, and votes once it has
caught up. Cut off and run again with the same code, it goes on.")]
pub(crate) struct Args {
    #[command(flatten)]
    place: PlaceArgs,

    /// File that holds the code [default: asked for, or stdin]
    #[arg(long, value_name = "FILE")]
    code_file: Option<PathBuf>,

    /// Where others reach this node [default: as the inviter is reached]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// Where the data lies [default: /var/lib/etcd]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// The etcd program [default: the one on the PATH]
    #[arg(long, value_name = "FILE")]
    etcd_binary: Option<PathBuf>,

    /// Go on as the agent of the node
    #[arg(long)]
    run: bool,

    #[command(flatten)]
    log: LogArgs,
}

/// Joins.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let text = read_code(args.code_file.as_deref(), "join code: ")?;
    let settings = JoinSettings {
        code: JoinCode::decode(&text).map_err(CodeError::fault)?,
        state_dir: args.place.state_dir()?,
        name: args.place.name.clone(),
        address: args.listen.clone(),
        data_dir: match &args.data_dir {
            Some(dir) => dir.clone(),
            None => cluster_file::place("/var/lib/etcd")?,
        },
        etcd_binary: args.etcd_binary.clone(),
    };
    let runtime = runtime()?;
    let joined = runtime.block_on(join_after_others(&settings, printer))?;
    for note in &joined.notes {
        printer.note(note);
    }
    if !args.run {
        printer.report(&Shown::of(&joined));
        return Ok(Exit::Done);
    }
    let (node, warnings) = Node::read(&joined.place.file(), Some(&joined.place.name))?;
    for warning in warnings {
        printer.warning(warning.code, &warning.text);
    }
    logging::start(&args.log)?;
    let settings = RunSettings { node, once: false, keep_running: false, shim: own_program() };
    let finish = runtime.block_on(turn::run(settings));
    runtime.shutdown_background();
    match finish? {
        Finish::Stopped | Finish::Left => Ok(Exit::Done),
        Finish::Halted(code) => Ok(code.exit()),
    }
}

/// One node joins at a time: waits for a change that is about to end.
async fn join_after_others(settings: &JoinSettings, printer: &mut Printer) -> Result<Joined, Fault> {
    let began = Instant::now();
    let mut told = false;
    loop {
        match join(settings).await {
            Err(fault) if fault.code() == Code::PeersBusy && began.elapsed() < BUSY_LIMIT => {
                if !std::mem::replace(&mut told, true) {
                    printer.note(&format!("waiting for up to {} s: {fault}", BUSY_LIMIT.as_secs()));
                }
                tokio::time::sleep(AGAIN).await;
            }
            joined => return joined,
        }
    }
}

#[derive(Serialize)]
struct Shown {
    name: String,
    role: String,
    cluster: String,
    file: String,
    already: bool,
}

impl Shown {
    fn of(joined: &Joined) -> Shown {
        Shown {
            name: joined.place.name.clone(),
            role: joined.local.role.to_string(),
            cluster: joined.local.cluster.clone(),
            file: joined.place.file().display().to_string(),
            already: joined.already,
        }
    }
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        let Shown { name, role, cluster, file, already } = self;
        match already {
            true => page.line(format!("`{name}` belongs to cluster `{cluster}` already")),
            false => page.line(format!("`{name}` has a place in cluster `{cluster}`, by `{file}`")),
        }
        match role.as_str() {
            "client" => page.line("it is a client: its agent listens where etcd would, and leads to the servers"),
            _ => {
                page.line("it becomes a member as soon as its agent runs; if it does not, its place is given up again")
            }
        }
        page.gap();
        page.step("next", "quorate run");
        page.step("then", "quorate peer list");
    }
}
