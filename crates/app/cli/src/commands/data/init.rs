//! `quorate data init`: founds a member offline.
//!
//! **Rule:** with `--member` alone nothing is asked over the network, and no runtime is started.

pub(crate) mod report;
mod start_line;

use quorate_etcd::init::{self, Outcome, Request, Target};
use quorate_faults::{Exit, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::init::InitDecision;

use super::members::{Members, Place, Site, SourceAccess};
use crate::printer::Printer;
use report::Ending;

/// Flags of `data init`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate data init --data-dir ./n1
  quorate data init --name n1 --data-dir /var/lib/etcd --token prod-1 \\
      --member n1=https://10.0.0.1:2380 --member n2=https://10.0.0.2:2380 \\
      --member n3=https://10.0.0.3:2380
  quorate data init --name n1 --data-dir /var/lib/etcd --token prod-1 \\
      --source 'dns-srv:example.com?ssl=true' --expect 3 --wait 2m
  quorate data init --data-dir ./n1 --dry-run

Every machine runs it by itself, with its own --name and the same list and
token, and all agree. Run again, it says that the member is there already.
Then start etcd on the directory, without any --initial-* flag.")]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,

    /// The cluster's token, as etcd's --initial-cluster-token
    #[arg(long, default_value = "etcd-cluster")]
    token: String,

    #[command(flatten)]
    members: Members,

    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    access: SourceAccess,
}

/// Founds the member.
pub(crate) fn run(args: Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let site = Site::settle(&args.place, &args.members, &args.access, printer)?;
    let founding = site.founding(&args.token)?;
    let request = site.request(&founding)?;
    let make_or_plan = if args.dry_run { plan } else { make };
    let ending = make_or_plan(&site.target, request, printer)?;
    printer.report(&site.report(ending, &founding, &args.token)?);
    Ok(Exit::Done)
}

/// What would be done.
pub(crate) fn plan(target: &Target, request: Request<'_>, printer: &mut Printer) -> Result<Ending, Fault> {
    let planned = init::plan(target, request)?.into_refusal()?;
    for warning in planned.warnings() {
        printer.warning(warning.code, &warning.text);
    }
    Ok(match planned.decision() {
        InitDecision::AlreadyThisMember { other_name, running } => {
            Ending::Already { other_name: other_name.clone(), running: *running }
        }
        InitDecision::Build { .. } | InitDecision::FinishAfterWal { .. } | InitDecision::Refuse(_) => {
            Ending::WouldMake(planned.new_paths())
        }
    })
}

fn make(target: &Target, request: Request<'_>, printer: &mut Printer) -> Result<Ending, Fault> {
    let done = init::ensure_member(&RealDisk, target, request)?;
    Ok(ending(done, printer))
}

/// Says what was odd, and how it ended.
pub(crate) fn ending(done: init::Done, printer: &mut Printer) -> Ending {
    for warning in &done.warnings {
        printer.warning(warning.code, &warning.text);
    }
    match done.outcome {
        Outcome::Made => Ending::Made,
        Outcome::Finished => Ending::Finished,
        Outcome::Already { other_name, running } => Ending::Already { other_name, running },
    }
}
