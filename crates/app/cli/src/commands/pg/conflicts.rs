//! `quorate pg conflicts`: rows that lost to newer ones, and nodes made the same again.

use quorate_agent::pg::{self, Source};
use quorate_faults::{Code, Exit, Fault};
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
  quorate pg conflicts repair --config cluster.yaml")]
pub(crate) enum Verb {
    /// Show the rows that lost to newer ones
    List(ListArgs),
    /// Make all nodes the same; nothing of it is sent on
    Repair(RepairArgs),
}

/// Flags of `pg conflicts list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg conflicts list --config cluster.yaml
  quorate pg conflicts list --limit 10 --output json --config c.yaml

Exit code 3: a node did not answer, and what lost there is not shown.")]
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

Of each row the newest version is kept, or, with --from, that of one node; then nobody should
write meanwhile.")]
pub(crate) struct RepairArgs {
    /// The node whose rows are right [default: of each row the newest]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    #[command(flatten)]
    group: GroupArgs,
}

/// Runs one verb.
pub(crate) fn run(verb: &Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::List(args) => list(args, printer),
        Verb::Repair(args) => repair(args, printer),
    }
}

fn list(args: &ListArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let found = runtime()?.block_on(pg::list_conflicts(&args.group.anyone()?, args.limit))?;
    let mut shown = Rows { conflicts: Vec::new(), silent: Vec::new() };
    for (node, rows) in found {
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
    printer.report(&shown);
    Ok(if shown.silent.is_empty() { Exit::Done } else { Code::PgWaiting.exit() })
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
    conflicts: Vec<Row>,
    silent: Vec<Silent>,
}

impl Report for Rows {
    fn render(&self, page: &mut Page) {
        for Silent { node, why } in &self.silent {
            page.line(format!("what lost on `{node}` is not known: {why}"));
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
    let repaired = runtime()?.block_on(pg::repair_conflicts(&args.group.anyone()?, &source))?;
    let changes = repaired.into_iter().map(|change| Change {
        node: change.node,
        table: change.table,
        put: change.put,
        removed: change.removed,
    });
    printer.report(&Changes { repaired: changes.collect() });
    Ok(Exit::Done)
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
    repaired: Vec<Change>,
}

impl Report for Changes {
    fn render(&self, page: &mut Page) {
        if self.repaired.is_empty() {
            page.line("all nodes have the same rows");
        }
        for change in &self.repaired {
            let Change { node, table, put, removed } = change;
            page.line(format!("{table} on {node}: {put} rows put, {removed} removed"));
        }
    }
}
