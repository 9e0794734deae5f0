//! `quorate shell`: a shell where a process is, with its rights.

use quorate_faults::{Exit, Fault};
use quorate_host::enter::{Errand, Tools};

use super::ps::scan::Place;
use super::{audit, exec};
use crate::printer::Printer;

/// Tried in this order where none is named.
const SHELLS: [&str; 4] = ["/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/sh"];

/// Flags of `shell`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate shell etcd
  quorate shell etcd --shell /bin/sh
  echo 'cat /proc/self/status' | quorate shell etcd

The same place and rights as with `quorate exec`. Where the box around the process has
no shell, this machine's programs are lent to it, and that is said. Its exit code is
passed on. A shell that is left open ends when the box around the process does.")]
pub(crate) struct Args {
    /// The process: `etcd`, or `n1/etcd` where several members are here
    #[arg(value_name = "PROCESS")]
    process: String,

    #[command(flatten)]
    place: Place,

    /// The shell, as the process sees it [default: bash, else sh]
    #[arg(long, value_name = "FILE")]
    shell: Option<String>,

    /// Only what the process has, though there may be no shell in it
    #[arg(long)]
    no_tools: bool,
}

/// Opens it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let (process, identity) = args.place.running(&args.process)?;
    let shells: Vec<Vec<String>> = match &args.shell {
        Some(shell) => vec![vec![shell.clone()]],
        None => SHELLS.iter().map(|shell| vec![(*shell).to_owned()]).collect(),
    };
    audit::note("shell", &process, identity.pid, args.shell.as_slice())?;
    let tools = if args.no_tools { Tools::Never } else { Tools::IfMissing };
    let mut errand = Errand { terminal: true, tools, ..exec::errand(identity, &process, shells) };
    errand.env.push(("PS1".to_owned(), format!("{}/{}:\\w\\$ ", process.member, process.name)));
    exec::go(&errand, printer)
}
