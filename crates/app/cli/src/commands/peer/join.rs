//! `quorate peer join`: joins a cluster with a code.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quorate_agent::cluster_file;
use quorate_agent::peering::{Awaited, JoinSettings, Joined, join, prove_code};
use quorate_agent::turn::{self, Finish, Node, RunSettings};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::peering::{ApprovalSecret, CodeError, JoinCode, TypedCode};
use serde::Serialize;
use zeroize::Zeroizing;

use super::{AGAIN, CODE_MAX, PlaceArgs, read_code};
use crate::args::duration;
use crate::commands::ca::passphrase::Terminal;
use crate::commands::run::{own_program, runtime};
use crate::logging::{self, LogArgs};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// How long another change may take to end: one that lasts longer waits for something itself.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// Between two looks whether a second server has approved. The inviter ends the wait.
const APPROVED_AGAIN: Duration = Duration::from_secs(1);

/// Flags of `peer join`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate peer join                        asks for code and second secret
  quorate peer join --inviter 10.0.0.1     asks for a short code
  quorate peer join --run --secret-file secret.txt < code.txt
  quorate peer join --code-file code.txt --name n2 --listen 10.0.0.2

A client joins with the code alone. A server needs the second secret of the code too, or waits
until `quorate peer approve` lets it in on the node that invited it; it prints a fingerprint
to compare there.

Both sides are checked first; all that speaks against it is listed, and nothing is changed.
Then this node makes its keys, has them signed, and gets the cluster file. Its agent
(`quorate run`, or --run here) does the rest: it joins as a learner, and votes once it has
caught up. A cluster of three or more servers takes another one in once it was approved on a
second one (`quorate peer countersign`): the join waits for that. Cut off and run again with the
same code, it goes on.")]
pub(crate) struct Args {
    #[command(flatten)]
    place: PlaceArgs,

    /// File that holds the code [default: asked for, or stdin]
    #[arg(long, value_name = "FILE")]
    code_file: Option<PathBuf>,

    /// File that holds the second secret of a server's code [default: asked for at a terminal, else none]
    #[arg(long, value_name = "FILE", env = "QUORATE_JOIN_SECRET_FILE")]
    secret_file: Option<PathBuf>,

    /// Where the node that invites is reached, as HOST or HOST:PORT; a short code needs it
    #[arg(long, value_name = "HOST")]
    inviter: Option<String>,

    /// How long to wait for an approval [default: as long as the code holds]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,

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
    let typed = TypedCode::read(&text).map_err(CodeError::fault)?;
    let client = matches!(&typed, TypedCode::Long(code) if !code.role.is_server());
    let asks = args.code_file.is_none() && !client;
    let secret = read_secret(args.secret_file.as_deref(), asks)?;
    let runtime = runtime()?;
    let settings = JoinSettings {
        code: runtime.block_on(whole(typed, args.inviter.as_deref()))?,
        secret,
        state_dir: args.place.state_dir()?,
        name: args.place.name.clone(),
        address: args.listen.clone(),
        data_dir: match &args.data_dir {
            Some(dir) => dir.clone(),
            None => cluster_file::place("/var/lib/etcd")?,
        },
        etcd_binary: args.etcd_binary.clone(),
    };
    let joined = runtime.block_on(join_after_others(&settings, args.wait, printer))?;
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

/// The code with all that the join needs; a short one is proven first.
async fn whole(typed: TypedCode, inviter: Option<&str>) -> Result<JoinCode, Fault> {
    match (typed, inviter) {
        (TypedCode::Long(code), None) => Ok(code),
        (TypedCode::Long(_), Some(_)) => Err(Fault::new(Code::Usage, "`--inviter` goes with a short code")
            .hint("this code holds the address of the node that invites: leave `--inviter` out")),
        (TypedCode::Short(code), Some(inviter)) => prove_code(&code, inviter).await,
        (TypedCode::Short(_), None) => Err(Fault::new(Code::Usage, "a short code does not say which node invites")
            .hint("name its address: `quorate peer join --inviter 10.0.0.1`")),
    }
}

/// The second secret, from the file, or from the terminal on which the code was typed.
fn read_secret(file: Option<&Path>, asks: bool) -> Result<Option<ApprovalSecret>, Fault> {
    let mut text = Zeroizing::new(String::new());
    match file {
        Some(file) => {
            let fail = |error| Fault::io(format!("cannot read `{}`", file.display()), error);
            let opened = std::fs::File::open(file).map_err(fail)?;
            opened.take(CODE_MAX).read_to_string(&mut text).map_err(fail)?;
        }
        None if asks && std::io::stdin().is_terminal() => {
            let Ok(terminal) = Terminal::open() else { return Ok(None) };
            text = terminal.ask("second secret, if the code is for a server (empty: wait for approval): ")?;
            if text.trim().is_empty() {
                return Ok(None);
            }
        }
        None => return Ok(None),
    }
    // As `quorate peer invite` prints it, or without that word.
    let trimmed = text.trim();
    let secret = ApprovalSecret::read(trimmed.strip_prefix("secret:").unwrap_or(trimmed));
    secret.map(Some).map_err(ApprovalSecret::fault)
}

/// What the operator has to do.
fn note_wait(awaited: &Awaited, printer: &mut Printer) {
    let Awaited { name, inviter, fingerprint } = awaited;
    printer.note(&format!(
        "this node waits for approval: on `{inviter}`, `quorate peer approve {name}` if that shows the fingerprint\n  {fingerprint}"
    ));
}

/// One node joins at a time: waits for a change that is about to end. And a server without its second secret waits for approval.
async fn join_after_others(
    settings: &JoinSettings,
    wait: Option<Duration>,
    printer: &mut Printer,
) -> Result<Joined, Fault> {
    let begun = Instant::now();
    let (mut began, mut told, mut noted) = (begun, false, false);
    loop {
        let joined = join(settings, |awaited| {
            if !std::mem::replace(&mut noted, true) {
                note_wait(awaited, printer);
            }
            // Whoever waits for another change after that waits as long as everyone.
            began = Instant::now();
            wait.is_none_or(|wait| begun.elapsed() < wait)
        });
        match joined.await {
            Err(fault) if fault.code() == Code::ApprovalAwaited => {
                if !std::mem::replace(&mut told, true) {
                    printer.note(&fault.to_string());
                }
                tokio::time::sleep(APPROVED_AGAIN).await;
            }
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
