//! `quorate box explain`: what a box lets a program do, and which of it this machine enforces.
//!
//! **Rule:** of a process that runs, its own box is explained, as it was made; flags describe one that could be made.

use std::path::PathBuf;

use quorate_agent::cluster_file::{self, DEFAULT_FILE};
use quorate_agent::turn::describe_box;
use quorate_faults::{Code, Exit, Fault};
use quorate_host::facts::observe_facts;
use quorate_host::process::Identity;
use quorate_plan::boxes::{BoxPlan, BoxSpec, Explained, Level, List, Part, explain};
use serde::Serialize;

use super::flags::{Flags, plan};
use crate::commands::ps::scan::{Place, Process};
use crate::commands::run::NodeArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `box explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate box explain etcd
  quorate box explain etcd --write /var/lib/etcd --bind 2379 --bind 2380
  quorate box explain --level strict --memory 1GiB --output json

With the name of a process that runs here and no flag about a box: the box that it was
started in; for an etcd that does not run, the box of its next start by the cluster file
(--config, or /etc/quorate/cluster.yaml). Else the box that these flags describe; `etcd`
then stands for etcd's list of system calls alone.")]
pub(crate) struct Args {
    /// A process that is kept here, or `etcd` for its list of system calls
    #[arg(value_name = "PROCESS")]
    process: Option<String>,

    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    flags: Flags,
}

/// Explains it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    if let (Some(name), true) = (&args.process, args.flags.is_empty()?) {
        match args.place.running(name) {
            Ok((process, identity)) => return explain_running(&process, &identity, printer),
            Err(fault) => {
                if let Some((file, spec)) = by_the_file(name, args, &fault, printer)? {
                    printer.note(&format!("{fault}; this is the box of its next start by `{}`", file.display()));
                    return explain_spec(&spec, printer);
                }
                if !is_only_a_list(name, args) {
                    return Err(fault);
                }
                let nor = if is_away(&fault) { ", nor is there a cluster file" } else { "" };
                printer.note(&format!("{fault}{nor}: this is etcd's list of system calls alone"));
            }
        }
    }
    let list = match args.process.as_deref() {
        None => List::Default,
        Some("etcd") => List::Etcd,
        Some(name) => return Err(no_list(name)),
    };
    explain_spec(&args.flags.spec(list)?, printer)
}

fn explain_spec(spec: &BoxSpec, printer: &mut Printer) -> Result<Exit, Fault> {
    let (plan, machine) = plan(spec)?;
    printer.report(&Said { kernel: machine.kernel, process: None, explained: explain(&plan) });
    Ok(Exit::Done)
}

/// The box that an etcd which does not run would have, if a cluster file declares it.
fn by_the_file(
    name: &str,
    args: &Args,
    why: &Fault,
    printer: &mut Printer,
) -> Result<Option<(PathBuf, BoxSpec)>, Fault> {
    let (member, program) = name.split_once('/').map_or((None, name), |(member, program)| (Some(member), program));
    if !is_away(why) || program != "etcd" || args.place.state_dir.is_some() {
        return Ok(None);
    }
    let file = match &args.place.config {
        Some(file) => file.clone(),
        None => cluster_file::place(DEFAULT_FILE)?,
    };
    if args.place.config.is_none() && !file.exists() {
        return Ok(None);
    }
    let member = member.map(str::to_owned).or_else(|| args.place.name.clone());
    let node = NodeArgs::new(file.clone(), member).node(printer)?;
    Ok(Some((file, describe_box(&node)?)))
}

/// Whether it is known that no such process runs here.
fn is_away(why: &Fault) -> bool {
    matches!(why.code(), Code::ProcessUnknown | Code::ProcessNotRunning)
}

/// Whether the name may stand for a list of system calls: nothing says where a process would be.
fn is_only_a_list(name: &str, args: &Args) -> bool {
    name == "etcd" && args.place.config.is_none() && args.place.name.is_none() && args.place.state_dir.is_none()
}

fn no_list(name: &str) -> Fault {
    Fault::new(Code::Usage, format!("there is no list of system calls for `{name}`"))
        .hint("without flags about a box the one of a running process is explained; with them only `etcd` has a list")
}

fn explain_running(process: &Process, identity: &Identity, printer: &mut Printer) -> Result<Exit, Fault> {
    let off = || super::flags::plan(&BoxSpec::new(Level::Off)).map(|(plan, _)| plan);
    let plan: BoxPlan = process.held().map_or_else(off, |held| Ok(held.plan().clone()))?;
    let facts = observe_facts(identity).ok().flatten();
    let about = About {
        member: process.member.clone(),
        process: process.name.clone(),
        pid: identity.pid,
        lacks: facts.map(|facts| facts.confinement.lacks(&plan).into_iter().map(Part::name).collect()),
    };
    let kernel = quorate_host::sandbox::kernel_release();
    printer.report(&Said { kernel, process: Some(about), explained: explain(&plan) });
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Said {
    kernel: String,
    /// The process whose box this is; left out where it is a box that could be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<About>,
    #[serde(flatten)]
    explained: Explained,
}

#[derive(Serialize)]
struct About {
    member: String,
    process: String,
    pid: u32,
    /// Parts of it that the kernel does not show now; left out where it could not be looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    lacks: Option<Vec<&'static str>>,
}

impl Report for Said {
    fn render(&self, page: &mut Page) {
        let level = self.explained.level;
        match &self.process {
            None => page.heading(format!("A box of level {level}, on kernel {}", self.kernel)),
            Some(About { member, process, pid, .. }) => {
                page.heading(format!("The box of {member}/{process} (process {pid}): level {level}"));
            }
        }
        let rows = self.explained.rows.iter();
        let row = |row: &quorate_plan::boxes::Row| [row.part.to_owned(), row.may.clone(), row.enforced.to_owned()];
        page.table(["PART", "THE PROGRAM", "ENFORCED"], rows.map(row));
        let lacks = self.process.as_ref().and_then(|process| process.lacks.as_deref()).unwrap_or_default();
        if !lacks.is_empty() {
            page.line(format!("warning: the kernel does not show: {}", lacks.join(", ")));
        }
        for warning in &self.explained.warnings {
            page.line(format!("warning: {warning}"));
        }
    }
}
