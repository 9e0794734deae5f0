//! `quorate pg join` and `quorate pg detach`: nodes come and go while the group is written to.

use std::time::Duration;

use quorate_agent::pg;
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use super::GroupArgs;
use crate::args::duration;
use crate::commands::run::runtime;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `pg join`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg bootstrap --name n4 --wait 0s --config cluster.yaml    on n4
  quorate pg join n4 --config cluster.yaml                          anywhere

The node gets all rows from one that is there, while everybody goes on writing. Interrupted,
it is run again and goes on where it stood.")]
pub(crate) struct JoinArgs {
    /// The node that is to belong to the group
    node: String,

    /// The node whose rows it gets [default: one that is not the write master]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    /// How long the copy of all rows may take
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    wait: Duration,

    #[command(flatten)]
    group: GroupArgs,
}

/// Flags of `pg detach`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg detach n3 --config cluster.yaml

It may be dead. Its number is not given again; to come back it joins with an empty data dir.")]
pub(crate) struct DetachArgs {
    /// The node that is to leave
    node: String,

    #[command(flatten)]
    group: GroupArgs,
}

/// Takes a node in.
pub(crate) fn join(args: &JoinArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let here = args.group.anyone()?;
    let taken = runtime()?
        .block_on(async { pg::join_node(&here, &args.node, args.from.as_deref(), args.wait, |_| {}).await })?;
    printer.report(&Joined { node: args.node.clone(), id: taken.id, tables: taken.tables, same: taken.same });
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Joined {
    node: String,
    id: u16,
    tables: u32,
    same: bool,
}

impl Report for Joined {
    fn render(&self, page: &mut Page) {
        page.line(format!("{} is node {} of the group", self.node, self.id));
        match self.same {
            true => page.line("all rows are the same on every node"),
            false => page.line("rows differ while they are written; compare them again when it is quiet"),
        }
    }
}

/// Lets a node go.
pub(crate) fn detach(args: &DetachArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let here = args.group.anyone()?;
    let done = runtime()?.block_on(pg::detach_node(&here, &args.node))?;
    printer.report(&Detached { node: args.node.clone(), done });
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Detached {
    node: String,
    done: Vec<String>,
}

impl Report for Detached {
    fn render(&self, page: &mut Page) {
        for line in &self.done {
            page.line(line);
        }
        page.line(format!("{} is no longer in the group", self.node));
    }
}
