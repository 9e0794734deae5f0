//! `quorate pg conflicts`: rows that lost to newer ones, links that rows have stopped, and nodes made the same again.

use std::time::Duration;

use quorate_agent::pg::{self, Source, StoppedLinks};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::schedule::parse_duration_ms;
use serde::Serialize;

use super::GroupArgs;
use crate::commands::run::runtime;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// The verbs of `pg conflicts`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate pg conflicts list --config cluster.yaml
  quorate pg conflicts repair --skip --config cluster.yaml
  quorate pg conflicts purge --older-than 90d --config cluster.yaml")]
pub(crate) enum Verb {
    /// Show the rows that lost to newer ones, and links that are stopped
    List(ListArgs),
    /// Make all nodes the same; nothing of it is sent on
    Repair(RepairArgs),
    /// Remove old lines of the log of rows that lost
    Purge(PurgeArgs),
}

/// Flags of `pg conflicts list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg conflicts list --config cluster.yaml
  quorate pg conflicts list --limit 10 --output json --config c.yaml

A link that a row stops which is there already is shown with both rows; `repair --skip` has it go on.
Exit code 3: a node did not answer, and what lost there is not shown, or a link is stopped.")]
pub(crate) struct ListArgs {
    /// How many of each node, the newest first
    #[arg(long, default_value_t = 50)]
    limit: u32,

    #[command(flatten)]
    group: GroupArgs,
}

/// Flags of `pg conflicts repair`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg conflicts repair --config cluster.yaml
  quorate pg conflicts repair --from n1 --config cluster.yaml
  quorate pg conflicts repair --skip --config cluster.yaml

Of each row the newest version is kept, or, with --from, that of one node; then nobody should
write meanwhile. Of two rows that cannot both be there, the newer one is. What is taken away is in
the log of conflicts.

With --skip, a link that a row has stopped which is there already leaves out the transaction that
brings it, on that node alone; its rows are put into the log of conflicts first. Then the nodes are
made the same, so that only the row that had to give way is missing. An error of another kind is
never left out.")]
pub(crate) struct RepairArgs {
    /// The node whose rows are right [default: of each row the newest]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    /// Have links go on that are stopped by a row that is there already
    #[arg(long)]
    skip: bool,

    #[command(flatten)]
    group: GroupArgs,
}

/// Flags of `pg conflicts purge`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg conflicts purge --older-than 90d --config cluster.yaml

Every node has a log of its own. Exit code 3: a node did not answer, and its log is as it was.")]
pub(crate) struct PurgeArgs {
    /// How old a line has to be, such as 90d; 1h at least
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Duration,

    #[command(flatten)]
    group: GroupArgs,
}

/// Younger ones may not have been looked at by anybody.
const AGE_MIN: Duration = Duration::from_secs(3600);
/// What a server can count back by.
const AGE_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

fn age(text: &str) -> Result<Duration, String> {
    let age = parse_duration_ms(text).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
    age.filter(|age| (AGE_MIN..=AGE_MAX).contains(age))
        .ok_or_else(|| "an age is written like `90d`, 1h at least".to_owned())
}

/// Runs one verb.
pub(crate) fn run(verb: &Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::List(args) => list(args, printer),
        Verb::Repair(args) => repair(args, printer),
        Verb::Purge(args) => purge(args, printer),
    }
}

fn list(args: &ListArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let found = runtime()?.block_on(pg::list_conflicts(&args.group.anyone()?, args.limit))?;
    let mut shown = Rows { stopped: Vec::new(), conflicts: Vec::new(), silent: Vec::new() };
    for (node, rows) in found.rows {
        match rows {
            Ok(rows) => shown.conflicts.extend(rows.into_iter().map(|row| Row {
                node: node.clone(),
                at: row.at,
                table: row.relation,
                kind: row.kind,
                kept: row.kept,
                lost: row.lost,
            })),
            Err(fault) => shown.silent.push(Silent { node, why: fault.to_string() }),
        }
    }
    shown.stopped = found.stopped?.into_iter().map(Link::from).collect();
    printer.report(&shown);
    Ok(if shown.silent.is_empty() && shown.stopped.is_empty() { Exit::Done } else { Code::PgWaiting.exit() })
}

/// A link that is stopped.
#[derive(Serialize)]
struct Link {
    node: String,
    from: String,
    lsn: Option<String>,
    table: Option<String>,
    key: Option<String>,
    error: String,
    comes: Option<String>,
    there: Option<String>,
}

impl From<pg::Stopped> for Link {
    fn from(found: pg::Stopped) -> Link {
        let error = match (&found.conflict, &found.finish) {
            (Some(conflict), _) => conflict.error(),
            (None, Some(_)) => {
                format!("no row that is there already; the log of PostgreSQL on `{}` says which error", found.node)
            }
            (None, None) => "nothing waits that it could not apply; it is tried again".to_owned(),
        };
        let of = |part: fn(&pg::Conflict) -> &String| found.conflict.as_ref().map(part).cloned();
        Link {
            table: of(|conflict| &conflict.table),
            key: of(|conflict| &conflict.key),
            comes: of(|conflict| &conflict.comes),
            there: of(|conflict| &conflict.there),
            node: found.node,
            from: found.from,
            lsn: found.finish,
            error,
        }
    }
}

#[derive(Serialize)]
struct Row {
    node: String,
    at: String,
    table: String,
    kind: String,
    kept: String,
    lost: String,
}

#[derive(Serialize)]
struct Silent {
    node: String,
    why: String,
}

#[derive(Serialize)]
struct Rows {
    stopped: Vec<Link>,
    conflicts: Vec<Row>,
    silent: Vec<Silent>,
}

impl Report for Rows {
    fn render(&self, page: &mut Page) {
        for Silent { node, why } in &self.silent {
            page.line(format!("what lost on `{node}` is not known: {why}"));
        }
        for Link { node, from, lsn, table, error, comes, there, .. } in &self.stopped {
            let at = lsn.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
            let table = table.as_ref().map(|table| format!("{table}: ")).unwrap_or_default();
            page.line(format!("the link from `{from}` to `{node}` is stopped{at}: {table}{error}"));
            if let (Some(comes), Some(there)) = (comes, there) {
                page.line(format!("  comes: {comes}"));
                page.line(format!("  there: {there}"));
                page.line("  `quorate pg conflicts repair --skip` has it go on");
            }
        }
        if self.conflicts.is_empty() {
            if self.silent.is_empty() {
                page.line("no row was ever lost to another");
            }
            return;
        }
        let row = |row: &Row| [&row.node, &row.at, &row.table, &row.kind, &row.kept, &row.lost].map(ToOwned::to_owned);
        page.table(["NODE", "AT", "TABLE", "KIND", "KEPT", "LOST"], self.conflicts.iter().map(row));
    }
}

fn repair(args: &RepairArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let source = args.from.clone().map_or(Source::Newest, Source::Node);
    let links = if args.skip { StoppedLinks::Skip } else { StoppedLinks::Leave };
    let done = runtime()?.block_on(pg::repair_conflicts(&args.group.anyone()?, &source, links))?;
    let changes = done.repaired.into_iter().map(|change| Change {
        node: change.node,
        table: change.table,
        put: change.put,
        removed: change.removed,
    });
    let links = done.ways.into_iter().map(|way| Gone {
        node: way.node,
        from: way.from,
        skipped: way.skipped,
        rows_in_log: way.rows,
    });
    printer.report(&Changes { links: links.collect(), repaired: changes.collect() });
    Ok(Exit::Done)
}

/// A link that goes on.
#[derive(Serialize)]
struct Gone {
    node: String,
    from: String,
    skipped: Vec<String>,
    rows_in_log: u64,
}

#[derive(Serialize)]
struct Change {
    node: String,
    table: String,
    put: u64,
    removed: u64,
}

#[derive(Serialize)]
struct Changes {
    links: Vec<Gone>,
    repaired: Vec<Change>,
}

impl Report for Changes {
    fn render(&self, page: &mut Page) {
        for Gone { node, from, skipped, rows_in_log } in &self.links {
            let what = match skipped.as_slice() {
                [] => "nothing stops it any more".to_owned(),
                all => {
                    format!("left out {}; {rows_in_log} rows of it are in the log of conflicts there", all.join(", "))
                }
            };
            page.line(format!("the link from `{from}` to `{node}` goes on: {what}"));
        }
        if self.repaired.is_empty() {
            page.line("all nodes have the same rows");
        }
        for change in &self.repaired {
            let Change { node, table, put, removed } = change;
            page.line(format!("{table} on {node}: {put} rows put, {removed} removed"));
        }
    }
}

fn purge(args: &PurgeArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let found = runtime()?.block_on(pg::purge_conflicts(&args.group.anyone()?, args.older_than))?;
    let mut shown = Purged { removed: Vec::new(), silent: Vec::new() };
    for (node, removed) in found {
        match removed {
            Ok(lines) => shown.removed.push(Removed { node, lines }),
            Err(fault) => shown.silent.push(Silent { node, why: fault.to_string() }),
        }
    }
    printer.report(&shown);
    Ok(if shown.silent.is_empty() { Exit::Done } else { Code::PgWaiting.exit() })
}

#[derive(Serialize)]
struct Removed {
    node: String,
    lines: u64,
}

#[derive(Serialize)]
struct Purged {
    removed: Vec<Removed>,
    silent: Vec<Silent>,
}

impl Report for Purged {
    fn render(&self, page: &mut Page) {
        for Silent { node, why } in &self.silent {
            page.line(format!("the log of `{node}` is as it was: {why}"));
        }
        for Removed { node, lines } in &self.removed {
            page.line(format!("{node}: {lines} lines removed"));
        }
    }
}
