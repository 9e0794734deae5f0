//! `quorate backup verify`: reads every object of a store, and with `--drill` brings a cluster back from it.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use owo_colors::OwoColorize;
use quorate_backup::check;
use quorate_backup::session::Session;
use quorate_faults::{Code, Exit, Fault, Finding, Place, Severity};
use quorate_plan::chain::{EpochStart, Object, Span, State, Target, decide};
use serde::Serialize;

use super::drill::{self, Drilled};
use super::{ClusterArg, StoreArgs, spans};
use crate::commands::data::watched;
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `backup verify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup verify --store file:///backups
  quorate backup verify --store file:///backups --drill

Exit code 0: the newest state that the store mentions can be restored. 1: something
matters. With --drill the newest state is restored into a scratch dir, verified,
started with etcd on this machine, compared, and cleaned up.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    cluster: ClusterArg,

    /// Restore the newest state for a try, and start etcd on it
    #[arg(long)]
    drill: bool,

    /// The etcd program for the drill [default: on the PATH]
    #[arg(long, value_name = "FILE", requires = "drill")]
    etcd: Option<PathBuf>,
}

/// Checks it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let scratch = std::env::temp_dir();
    let mut session = Session::open(&args.store.store, &scratch)?;
    let total = session.catalog.objects.iter().map(|object| object.bytes).sum();
    let done = AtomicU64::new(0);
    let checked = watched(printer, "verifying", total, &done, || {
        check::all(&session.store, &session.catalog, &scratch, session.threads, &done)
    })??;
    let mut findings = Vec::new();
    let mut content_bytes = 0;
    for (index, result) in checked.into_iter().enumerate() {
        let expected = result.as_ref().is_ok_and(|proved| session.catalog.may_lead_to(index, proved.last));
        let object = &mut session.catalog.objects[index];
        match result {
            Ok(proved) => {
                content_bytes += proved.content_bytes;
                if !expected && (proved.first, proved.last) != (object.first, object.last) {
                    findings.push(misnamed(&object.name, (object.first, object.last), (proved.first, proved.last)));
                }
                // A part that is missing was known before reading.
                if !matches!(object.state, State::Bad(_)) {
                    (object.first, object.last, object.state) = (proved.first, proved.last, State::Proven);
                }
            }
            Err(why) => {
                findings.push(damaged(&object.name, &why));
                object.state = State::Bad(why);
            }
        }
    }
    for (name, why) in &session.catalog.notes {
        findings.push(odd(name, why));
    }
    for name in &session.catalog.unknown {
        findings.push(odd(name, "no layout has such a name"));
    }
    // Every object was read. What can be restored is said of one lineage, and of each where there are several.
    let mut all = session.catalog.lineages(&[]);
    all.retain(|lineage| !lineage.objects.is_empty());
    let objects = session.catalog.objects.len();
    if args.cluster.cluster.is_some() || all.len() <= 1 || args.drill {
        session.narrow(&args.cluster.whose())?;
        all.clear();
    }
    for lineage in &all {
        let part = |index: &usize| session.catalog.objects[*index].clone();
        let part: Vec<Object> = lineage.objects.iter().map(part).collect();
        let own = |start: &&EpochStart| lineage.epochs.contains(&start.epoch);
        let starts: Vec<EpochStart> = session.catalog.epochs.iter().filter(own).copied().collect();
        let decision = decide(&part, &starts, Target::Newest);
        if let Some(why) = &decision.short {
            let why = format!("{why} ({})", lineage.title());
            findings.push(short(&args.store.store, &why, decision.newest_provable()));
        }
    }
    let decision = session.catalog.decide(Target::Newest);
    if let Some(why) = decision.short.as_ref().filter(|_| all.is_empty()) {
        findings.push(short(&args.store.store, why, decision.newest_provable()));
    }
    let drilled = match args.drill && decision.chain.is_some() {
        true => Some(drill::run(&mut session, args.etcd.as_deref(), printer)?),
        false => None,
    };
    if let Some(drilled) = &drilled {
        drill::remember(&session, drilled, printer);
    }
    if let Some(failed) = drilled.as_ref().and_then(|drilled| drilled.failed.clone()) {
        findings.push(Finding {
            code: Code::DrillFailed,
            severity: Severity::Error,
            place: Place::file("the drill"),
            what: failed,
            remedy: "make a new full backup, and keep the old objects until a drill succeeds".to_owned(),
        });
    }
    let valid = !findings.iter().any(|finding| finding.severity == Severity::Error);
    printer.report(&Outcome {
        store: args.store.store.clone(),
        valid,
        objects,
        bytes: total,
        content_bytes,
        recoverable: decision.recoverable,
        findings,
        drill: drilled,
    });
    Ok(if valid { Exit::Done } else { Exit::CannotMeet })
}

fn misnamed(name: &str, said: (u64, u64), holds: (u64, u64)) -> Finding {
    Finding {
        code: Code::ObjectMisnamed,
        severity: Severity::Warning,
        place: Place::file(name),
        what: format!("it says revisions {} to {} and holds {} to {}", said.0, said.1, holds.0, holds.1),
        remedy: "nothing: chains are made with what it really holds".to_owned(),
    }
}

fn damaged(name: &str, why: &str) -> Finding {
    Finding {
        code: Code::ObjectDamaged,
        severity: Severity::Error,
        place: Place::file(name),
        what: why.to_owned(),
        remedy: "replace it from another copy of the store, or make a new full backup".to_owned(),
    }
}

fn odd(name: &str, why: &str) -> Finding {
    Finding {
        code: Code::ObjectUnknown,
        severity: Severity::Warning,
        place: Place::file(name),
        what: why.to_owned(),
        remedy: "give it its old name back if it is a backup; otherwise it may stay or go".to_owned(),
    }
}

fn short(store: &str, why: &str, newest: Option<u64>) -> Finding {
    let what = match newest {
        Some(newest) => format!("revision {newest} is the newest that can be proven: {why}"),
        None => format!("nothing can be restored: {why}"),
    };
    Finding {
        code: if newest.is_some() { Code::ChainShort } else { Code::ChainNone },
        severity: Severity::Error,
        place: Place::file(store),
        what,
        remedy: "bring back what is missing, or make a new full backup".to_owned(),
    }
}

/// What is printed.
#[derive(Serialize)]
struct Outcome {
    store: String,
    valid: bool,
    objects: usize,
    bytes: u64,
    content_bytes: u64,
    recoverable: Vec<Span>,
    findings: Vec<Finding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drill: Option<Drilled>,
}

impl Report for Outcome {
    fn render(&self, page: &mut Page) {
        for finding in &self.findings {
            page.finding(finding);
        }
        let (mark, verdict) = match self.valid {
            true => ("✓".green().to_string(), "is whole"),
            false => ("✗".red().to_string(), "is not whole"),
        };
        page.line(format!("{mark} `{}` {verdict}", self.store));
        let (objects, stored, content) = (self.objects, bytes(self.bytes), bytes(self.content_bytes));
        page.line(format!("  {objects} objects, {stored} stored, {content} of content read and checked"));
        page.line(format!("  revisions {} can be restored", spans(&self.recoverable)));
        if let Some(drill) = self.drill.as_ref().filter(|drill| drill.failed.is_none()) {
            let Drilled { etcd, revision, keys, .. } = drill;
            page.line(format!("  drill: etcd {etcd} runs on it with revision {revision} and {keys} keys"));
        }
    }
}
