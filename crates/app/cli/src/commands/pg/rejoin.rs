//! `quorate pg rejoin`: a node that stays out gets the rows of the writer from scratch.

use std::time::Duration;

use quorate_agent::pg;
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use super::GroupArgs;
use super::members::{Compared, exit_of};
use crate::args::duration;
use crate::commands::run::runtime;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `pg rejoin`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg rejoin n1 --discard --config cluster.yaml

For a node that holds changes which the writer does not have (Q1445). Its agent has to run. The
node is detached, its data dir is renamed to `….replaced-<time>` (nothing is deleted), and it
joins again with all rows of the writer, while the others go on writing. Interrupted, it is run
again and goes on where it stood. Exit code 1: rows differ. 3: its agent does not run, or rows
could not be compared. 5: it is the writer.")]
pub(crate) struct Args {
    /// The node whose data is replaced
    node: String,

    /// Confirm that changes which only this node holds leave the group; they stay in its old data dir
    #[arg(long, required = true)]
    discard: bool,

    /// How long the copy of all rows may take
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    wait: Duration,

    #[command(flatten)]
    group: GroupArgs,
}

/// Replaces the data of a node.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let here = args.group.anyone()?;
    let mut progress = printer.progress("looking at the group", None);
    let rejoined = runtime()?.block_on(pg::rejoin_node(&here, &args.node, args.wait, |what| progress.say(what)))?;
    drop(progress);
    let exit = exit_of(rejoined.taken.rows.as_ref());
    printer.report(&Shown {
        node: args.node.clone(),
        id: rejoined.taken.id,
        done: rejoined.done,
        rows: rejoined.taken.rows.map(Compared::of),
    });
    Ok(exit)
}

#[derive(Serialize)]
struct Shown {
    node: String,
    id: u16,
    done: Vec<String>,
    rows: Option<Compared>,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        for line in &self.done {
            page.line(line);
        }
        page.line(format!("{} is node {} of the group; its old data dir was renamed", self.node, self.id));
        if let Some(rows) = &self.rows {
            page.line(rows.said());
        }
    }
}
