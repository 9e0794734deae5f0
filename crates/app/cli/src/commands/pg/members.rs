//! `quorate pg join` and `quorate pg detach`: nodes come and go while the group is written to.

use std::time::Duration;

use quorate_agent::pg::{self, Rows};
use quorate_faults::{Code, Exit, Fault};
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

The node gets all rows from one that is there, while everybody goes on writing; then the rows
of all nodes are compared. Interrupted, it is run again and goes on where it stood. Exit code 1:
rows differ. 3: they could not be compared, or the agent of the node does not run.")]
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

It may be dead, and it may be out of the file. The rows of those who stay are compared. Its
number is not given again; to come back it joins with an empty data dir. Exit code 1: rows
differ. 3: they could not be compared. 5: it is the write master, or no member.")]
pub(crate) struct DetachArgs {
    /// The node that is to leave
    node: String,

    #[command(flatten)]
    group: GroupArgs,
}

/// Takes a node in.
pub(crate) fn join(args: &JoinArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let here = args.group.anyone()?;
    let mut progress = printer.progress("looking at the group", None);
    let taken = runtime()?.block_on(pg::join_node(&here, &args.node, args.from.as_deref(), args.wait, |what| {
        progress.say(what);
    }))?;
    drop(progress);
    let exit = exit_of(taken.rows.as_ref());
    printer.report(&Joined {
        node: args.node.clone(),
        id: taken.id,
        already: taken.rows.is_none(),
        rows: taken.rows.map(Compared::of),
    });
    Ok(exit)
}

/// Rows that differ although nobody writes them are a finding.
pub(super) fn exit_of(rows: Option<&Rows>) -> Exit {
    match rows {
        Some(Rows::Differ(_)) => Code::PgDiverged.exit(),
        Some(Rows::Unknown(_)) => Code::PgWaiting.exit(),
        Some(Rows::Same(_) | Rows::Moving(_)) | None => Exit::Done,
    }
}

/// How the rows of all nodes are.
#[derive(Serialize)]
pub(super) struct Compared {
    /// `true`: every row was seen to be the same everywhere.
    same: bool,
    said: String,
}

impl Compared {
    pub(super) fn said(&self) -> &str {
        &self.said
    }

    pub(super) fn of(rows: Rows) -> Compared {
        let same = matches!(rows, Rows::Same(_));
        let said = match rows {
            Rows::Same(_) => "all rows are the same on every node".to_owned(),
            Rows::Moving(tables) => {
                format!("all rows are the same, but those that are written all the time: {}", tables.join(", "))
            }
            Rows::Differ(tables) => {
                format!("rows differ in {}: see `quorate pg conflicts repair --help`", tables.join(", "))
            }
            Rows::Unknown(why) => format!("rows were not compared: {why}"),
        };
        Compared { same, said }
    }
}

#[derive(Serialize)]
struct Joined {
    node: String,
    id: u16,
    already: bool,
    rows: Option<Compared>,
}

impl Report for Joined {
    fn render(&self, page: &mut Page) {
        let Joined { node, id, already, rows } = self;
        match already {
            false => page.line(format!("{node} is node {id} of the group")),
            true => {
                page.line(format!("{node} is node {id} of the group already; nothing was done"));
                page.line(format!("to give it all rows anew, let it go first: `quorate pg detach {node}`"));
            }
        }
        if let Some(rows) = rows {
            page.line(&rows.said);
        }
    }
}

/// Lets a node go.
pub(crate) fn detach(args: &DetachArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let here = args.group.anyone()?;
    let (done, rows) = runtime()?.block_on(pg::detach_node(&here, &args.node))?;
    let exit = exit_of(Some(&rows));
    printer.report(&Detached { node: args.node.clone(), done, rows: Compared::of(rows) });
    Ok(exit)
}

#[derive(Serialize)]
struct Detached {
    node: String,
    done: Vec<String>,
    rows: Compared,
}

impl Report for Detached {
    fn render(&self, page: &mut Page) {
        for line in &self.done {
            page.line(line);
        }
        page.line(&self.rows.said);
        page.line(format!("{} is no longer in the group", self.node));
    }
}
