//! `quorate pid`: the number of one process, for scripts.

use quorate_faults::{Exit, Fault};
use serde::Serialize;

use super::ps::scan::Place;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `pid`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pid etcd
  quorate pid n1/etcd
  kill -QUIT $(quorate pid etcd)

Prints one number. Exit code 1: it does not run, or is not kept here.")]
pub(crate) struct Args {
    /// The process: `etcd`, or `n1/etcd` where several members are here
    #[arg(value_name = "PROCESS")]
    process: String,

    #[command(flatten)]
    place: Place,
}

/// Prints it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let (process, identity) = args.place.running(&args.process)?;
    printer.report(&Number { member: process.member, process: process.name, pid: identity.pid });
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Number {
    member: String,
    process: String,
    pid: u32,
}

impl Report for Number {
    fn render(&self, page: &mut Page) {
        page.line(self.pid);
    }
}
