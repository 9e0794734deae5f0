//! `quorate data init`: founds a member offline.
//!
//! **Rule:** with `--member` alone nothing is asked over the network, and no runtime is started.

mod report;
mod start_line;

use std::path::PathBuf;
use std::time::Duration;

use quorate_agent::sources::{self, SourceOptions};
use quorate_etcd::init::{self, Outcome, Request, Target};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_faults::{Code, Exit, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::init::InitDecision;
use quorate_plan::roster::{Answer, Gathering, Next, Roster, parse_member_flags};

use crate::args;
use crate::printer::Printer;
use report::{Ending, InitReport};

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
    /// This member's name in the list
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// The data dir to make, as etcd's --data-dir
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,

    /// A separate dir for the WAL, as etcd's --wal-dir
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<PathBuf>,

    /// The cluster's token, as etcd's --initial-cluster-token
    #[arg(long, default_value = "etcd-cluster")]
    pub(crate) token: String,

    /// The etcd that will run on it: 3.4, 3.5, 3.6 or 3.7 [default: a form for all of them]
    #[arg(long, value_name = "VERSION", value_parser = form)]
    pub(crate) etcd_version: Option<Form>,

    /// A member of the cluster; repeat for each
    #[arg(long = "member", value_name = "NAME=URL[,URL]", conflicts_with = "source")]
    pub(crate) members: Vec<String>,

    /// Where to ask for the member list: static:, file:, dns-srv:, http(s)://, exec:, consul:, etcd:
    #[arg(long, value_name = "URI")]
    pub(crate) source: Option<String>,

    /// How many members the list must have
    #[arg(long, value_name = "N")]
    pub(crate) expect: Option<usize>,

    /// How long to wait for the list to reach --expect
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = args::duration, requires = "expect")]
    pub(crate) wait: Duration,

    /// Print what would be written, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) access: SourceAccess,
}

/// What a source may need besides its URI.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Access to the source")]
pub(crate) struct SourceAccess {
    /// Who signed the source's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "source")]
    source_cacert: Option<PathBuf>,

    /// Our certificate for the source (PEM)
    #[arg(long, value_name = "FILE", requires = "source", requires = "source_key")]
    source_cert: Option<PathBuf>,

    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "source", requires = "source_cert")]
    source_key: Option<PathBuf>,

    /// A file with a bearer token, or a Consul ACL token
    #[arg(long, value_name = "FILE", requires = "source")]
    source_token_file: Option<PathBuf>,

    /// A file with user:password
    #[arg(long, value_name = "FILE", requires = "source")]
    source_user_file: Option<PathBuf>,
}

/// Founds the member.
pub(crate) fn run(args: Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let target = Target::new(&args.data_dir, args.wal_dir.as_deref())?;
    let roster = roster(&args, printer)?;
    for warning in roster.check()? {
        printer.warning(warning.code, &warning.text);
    }
    let local = roster.local(args.name.as_deref())?;
    let members = roster.members.iter().map(|member| (member.name.clone(), member.peer_urls.clone())).collect();
    let founding = Founding::new(members, &args.token).map_err(|error| {
        Fault::new(Code::RosterBadId, error.to_string())
            .hint("give another `--token`, or change one of these peer URLs")
    })?;
    let Some(member) = founding.member(&local.name) else {
        return Err(Fault::new(Code::Internal, format!("`{}` got lost between list and cluster", local.name)));
    };
    let request = Request { founding: &founding, local: member, form: args.etcd_version.unwrap_or(Form::Any) };
    let ending = if args.dry_run { plan(&target, request, printer)? } else { make(&target, request, printer)? };
    printer.report(&InitReport::new(ending, &target, &roster, local, &founding, &args.token));
    Ok(Exit::Done)
}

fn plan(target: &Target, request: Request<'_>, printer: &mut Printer) -> Result<Ending, Fault> {
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
    for warning in &done.warnings {
        printer.warning(warning.code, &warning.text);
    }
    Ok(match done.outcome {
        Outcome::Made => Ending::Made,
        Outcome::Finished => Ending::Finished,
        Outcome::Already { other_name, running } => Ending::Already { other_name, running },
    })
}

fn roster(args: &Args, printer: &mut Printer) -> Result<Roster, Fault> {
    let Some(uri) = &args.source else {
        let roster = match args.members.as_slice() {
            [] => Roster::of_one(args.name.as_deref()),
            flags => parse_member_flags(flags)?,
        };
        // A list on the command line does not grow by waiting.
        let mut gathering = Gathering::new(roster.provenance.clone(), args.expect, true);
        return match gathering.take(Ok(Answer { roster, absent: vec![] })) {
            Next::Done(roster) => Ok(roster),
            Next::Refuse(fault) => Err(fault),
            Next::Wait(_) => Err(gathering.give_up(Duration::ZERO)),
        };
    };
    let options = SourceOptions {
        cacert: args.access.source_cacert.clone(),
        cert: args.access.source_cert.clone(),
        key: args.access.source_key.clone(),
        token_file: args.access.source_token_file.clone(),
        user_file: args.access.source_user_file.clone(),
        local_name: args.name.clone(),
        ..SourceOptions::default()
    };
    let source = sources::open(uri, &options)?;
    for warning in source.warnings() {
        printer.warning(warning.code, &warning.text);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::io("cannot prepare to ask the source", error))?;
    let mut say = |what: &str| printer.note(what);
    runtime.block_on(sources::gather(source.as_ref(), args.expect, args.wait, &mut say))
}

/// Reads `3.5`, `v3.5` or `3.5.16`.
fn form(text: &str) -> Result<Form, String> {
    let mut parts = text.trim_start_matches('v').split('.');
    let form = match (parts.next(), parts.next()) {
        (Some("3"), Some("4")) => Some(Form::V3_4),
        (Some("3"), Some("5")) => Some(Form::V3_5),
        (Some("3"), Some("6")) => Some(Form::V3_6),
        (Some("3"), Some("7")) => Some(Form::V3_7),
        _ => None,
    };
    let patch_is_number = parts.all(|part| part.parse::<u32>().is_ok());
    form.filter(|_| patch_is_number)
        .ok_or_else(|| "give 3.4, 3.5, 3.6 or 3.7, or leave it out for all of them".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_people_write_them() {
        for text in ["3.5", "v3.5", "3.5.16"] {
            assert!(matches!(form(text), Ok(Form::V3_5)), "{text}");
        }
        for text in ["", "3", "3.3", "4.0", "3.5.x", "latest"] {
            assert!(form(text).is_err(), "{text}");
        }
    }
}
