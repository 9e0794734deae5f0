//! `quorate backup`: stores of full backups and deltas.

pub(crate) mod compact;
pub(crate) mod convert;
pub(crate) mod copy;
mod drill;
pub(crate) mod follow;
pub(crate) mod list;
pub(crate) mod now;
pub(crate) mod prune;
pub(crate) mod restore;
pub(crate) mod verify;

use std::path::Path;

use jiff::Timestamp;
use quorate_backup::session::{Session, Whose};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::chain::{Decision, Kind, Object, Span, Use};
use quorate_plan::lineage::Lineage;
use serde::Serialize;

use crate::printer::Printer;

/// The verbs of `backup`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate backup now --store file:///backups --endpoints http://127.0.0.1:2379
  quorate backup follow --store s3://bucket --endpoints http://127.0.0.1:2379
  quorate backup list --store file:///backups         what can be restored
  quorate backup verify --store file:///backups --drill
  quorate backup restore --store file:///backups --data-dir ./n1")]
pub(crate) enum Verb {
    /// Take one full backup of a running cluster, now
    Now(now::Args),
    /// Record a running cluster without end: fulls on a schedule, every write in between
    Follow(Box<follow::Args>),
    /// Show what a store holds, and what can be restored from it
    List(list::Args),
    /// Read every object of a store and check it
    Verify(verify::Args),
    /// Make a member's data dir from a store, at any revision or time
    Restore(Box<restore::Args>),
    /// Make one new full backup of a full and the deltas behind it
    Compact(compact::Args),
    /// Copy a store of another layout into one of ours
    Convert(convert::Args),
    /// Remove what no rule keeps, after the newest chain was read
    Prune(prune::Args),
    /// Copy a store to another place as it is
    Copy(copy::Args),
}

/// Runs one verb.
pub(crate) fn run(verb: Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::Now(args) => now::run(&args, printer),
        Verb::Follow(args) => follow::run(&args, printer),
        Verb::List(args) => list::run(&args, printer),
        Verb::Verify(args) => verify::run(&args, printer),
        Verb::Restore(args) => restore::run(*args, printer),
        Verb::Compact(args) => compact::run(&args, printer),
        Verb::Convert(args) => convert::run(&args, printer),
        Verb::Prune(args) => prune::run(&args, printer),
        Verb::Copy(args) => copy::run(&args, printer),
    }
}

/// Where the store is.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// The store: file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, value_name = "URL")]
    store: String,
}

/// Whose backups of the store are meant.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArg {
    /// The cluster that is meant, by its id in hex, where the store holds backups of several
    #[arg(long, value_name = "ID", value_parser = parse_cluster)]
    cluster: Option<u64>,
}

impl ClusterArg {
    fn whose(&self) -> Whose {
        self.cluster.map_or(Whose::TheOnly, |id| Whose::Of(vec![id]))
    }
}

fn parse_cluster(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| "not a cluster id; write it as `backup list` prints it".to_owned())
}

/// Opens a store for one lineage of it.
fn open_one(store: &StoreArgs, scratch: &Path, cluster: &ClusterArg) -> Result<(Session, Option<Lineage>), Fault> {
    let mut session = Session::open(&store.store, scratch)?;
    let lineage = session.narrow(&cluster.whose())?;
    Ok((session, lineage))
}

/// One object, as it is shown.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    object: Object,
    created: String,
    /// What the chain to the newest state makes of it.
    usage: Use,
}

impl Row {
    fn all(objects: &[Object], decision: &Decision) -> Vec<Row> {
        let row = |(object, usage): (&Object, &Use)| Row {
            object: object.clone(),
            created: time(object.created_ms),
            usage: usage.clone(),
        };
        objects.iter().zip(&decision.uses).map(row).collect()
    }

    fn revisions(&self) -> String {
        match self.object.kind {
            Kind::Full => self.object.last.to_string(),
            Kind::Delta => format!("{}-{}", self.object.first, self.object.last),
        }
    }

    fn usage(&self) -> String {
        match &self.usage {
            Use::Base => "the chain begins here".to_owned(),
            Use::Replayed { from, to } if from == to => format!("adds {to}"),
            Use::Replayed { from, to } => format!("adds {from}-{to}"),
            Use::NotNeeded(why) => format!("not needed: {why}"),
            Use::Unusable(why) => format!("UNUSABLE: {why}"),
        }
    }
}

/// Milliseconds since 1970 as RFC 3339.
fn time(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| "unknown".to_owned(), |time| time.to_string())
}

fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// `33-120`, and what is beside it.
fn spans(spans: &[Span]) -> String {
    let texts: Vec<String> = spans
        .iter()
        .map(|span| if span.from == span.to { span.to.to_string() } else { format!("{}-{}", span.from, span.to) })
        .collect();
    if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
}

/// Says what reading proved to be other than claimed.
fn tell(session: &mut Session, printer: &mut Printer) {
    for (code, what) in session.learned.drain(..) {
        printer.warning(code, &what);
    }
}

/// Says why the newest provable state is not the newest that is mentioned.
fn warn_short(short: Option<&String>, reached: u64, printer: &mut Printer) {
    if let Some(why) = short {
        let what = format!("revision {reached} is the newest that can be proven: {why}");
        printer.warning(Code::ChainShort, &what);
    }
}
