//! `quorate box run`: a program in a box, in the foreground.
//!
//! **Rule:** the exit code is the program's (128 and the signal that it died from); ours only if it never ran.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::ExitStatus;

use quorate_faults::{Code, Exit, Fault};
use quorate_host::sandbox::{End, Launch, foreground};
use quorate_plan::boxes::{Level, List};

use super::flags::{Flags, find_program, plan, plan_at_once};
use crate::printer::Printer;

/// What of our environment the program gets without being asked: nothing that may hold a secret.
const ENVIRONMENT: [&str; 7] = ["PATH", "TERM", "TZ", "LANG", "LC_ALL", "GOMAXPROCS", "GODEBUG"];

/// Flags of `box run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate box run -- /bin/cat /etc/shadow
  quorate box run --write /srv/data --bind 8080 --memory 512MiB -- my-server
  quorate box run --seccomp audit --exec /usr/bin -- sh -c 'unshare -r true'
  quorate box run --level basic --connect 443 --read /etc/ssl -- curl https://…

Paths are the same inside. Whatever is not named is not there: no other file, no other
port, no other process. UDP is not limited. /tmp is private and gone afterwards.")]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// A variable for its environment; besides these it gets PATH, TERM, TZ and LANG
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "write it as NAME=VALUE".to_owned())
}

/// Runs it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let spec = args.flags.spec(List::Default)?;
    let program = args.command.first().map(PathBuf::from).unwrap_or_default();
    let program = find_program(&program)?;
    if spec.level == Level::Off {
        return run_bare(args, program, printer);
    }
    let boxed = plan_at_once(&spec)?;
    for warning in boxed.warnings() {
        printer.warning(Code::BoxWeaker, &warning);
    }
    let ours = ENVIRONMENT.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
    let given = args.env.iter().map(|(name, value)| (name.into(), value.into()));
    let launch = Launch {
        program,
        args: args.command.clone(),
        env: ours.chain(given).collect(),
        dir: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
        output: None,
        apart: false,
        with_keeper: true,
    };
    let ended = foreground(&boxed, launch).map_err(|fault| match fault.code() {
        // The part that is missing, where it is one.
        Code::BoxFailed => plan(&spec).err().unwrap_or(fault),
        _ => fault,
    });
    let ended = match ended? {
        End::Code(code) => ExitStatus::from_raw(code << 8),
        End::Signal(signal) => ExitStatus::from_raw(signal),
    };
    Ok(printer.pass_on(ended))
}

/// Without a box: what it would be, for comparison.
fn run_bare(args: &Args, program: PathBuf, printer: &mut Printer) -> Result<Exit, Fault> {
    let mut command = std::process::Command::new(&program);
    let name = args.command.first().cloned().unwrap_or_default();
    command.arg0(name).args(args.command.iter().skip(1)).envs(args.env.iter().map(|(name, value)| (name, value)));
    let status = command.status().map_err(|error| {
        Fault::new(Code::NotExecuted, format!("cannot execute `{}`", program.display())).caused_by(error)
    })?;
    Ok(printer.pass_on(status))
}
