//! `quorate pg switchover`: makes another node the write master, in order.
//!
//! **Rule:** this command asks; the write master itself hands over, when the other node has everything.

use std::time::{Duration, Instant};

use quorate_agent::pg::{self, Here};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::postgres::{Order, order};
use serde::Serialize;

use super::GroupArgs;
use crate::args::duration;
use crate::commands::fresh_nonce;
use crate::commands::run::runtime;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(50);

/// Flags of `pg switchover`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg switchover --to n2 --config cluster.yaml

The pooler lets transactions end and keeps new ones waiting, the other node catches up, takes
the place, and those who waited are led there. Nobody is disconnected.")]
pub(crate) struct Args {
    #[command(flatten)]
    group: GroupArgs,

    /// The node that is to be the write master
    #[arg(long, value_name = "NODE")]
    to: String,

    /// How long to wait for it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    wait: Duration,
}

/// Asks and waits.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let here = args.group.anyone()?;
    let moved = runtime()?.block_on(switch(&here, &args.to, args.wait))?;
    printer.report(&moved);
    Ok(Exit::Done)
}

async fn switch(here: &Here, to: &str, wait: Duration) -> Result<Moved, Fault> {
    if here.group().node(to).is_none() {
        return Err(
            Fault::new(Code::PgNotDeclared, format!("`{to}` is no node of the group")).hint("see `quorate pg status`")
        );
    }
    let store = here.store().await?;
    let records = pg::records(&store).await?;
    let from = records.writer.as_ref().map(|(writer, _)| writer.node.clone());
    if from.as_deref() == Some(to) {
        return Ok(Moved { from, to: to.to_owned(), moved: false });
    }
    let Some((group, _)) = &records.group else {
        return Err(
            Fault::new(Code::PgWaiting, "there is no group yet").hint("bring it up with `quorate pg bootstrap`")
        );
    };
    // Whoever cannot take the place is not waited for.
    if !group.nodes.contains_key(to) {
        return Err(Fault::new(Code::PgNotMember, format!("`{to}` is no member of the group"))
            .hint(format!("take it in first: `quorate pg join {to}`")));
    }
    if !pg::registered(&store).await?.contains_key(to) {
        return Err(Fault::new(
            Code::PgSwitchover,
            format!("the agent of `{to}` does not run, or does not reach the store"),
        )
        .hint("start it, or name another node; see `quorate pg status`"));
    }
    let id = fresh_nonce().to_string();
    store.txn(&order(&Order { writer: to.to_owned(), id: id.clone() })).await?;
    let begun = Instant::now();
    loop {
        let records = pg::records(&store).await?;
        if records.writer.as_ref().is_some_and(|(writer, _)| writer.node == to) {
            return Ok(Moved { from, to: to.to_owned(), moved: true });
        }
        let mine = records.order.as_ref().is_some_and(|(order, _)| order.id == id);
        let stays = !mine && records.handover.is_none() && records.writer.is_some();
        if stays || begun.elapsed() >= wait {
            if let Some((_, revision)) = records.order.filter(|_| mine) {
                store.delete_unchanged(quorate_plan::postgres::keys::ORDER, revision).await?;
            }
            let now = records.writer.map_or("nobody".to_owned(), |(writer, _)| writer.node);
            let attempt = format!("the write master was not moved to `{to}`: it is {now}");
            let fault = Fault::new(Code::PgSwitchover, attempt).hint("`quorate pg status` says how the nodes are");
            // Whoever had the place knows why it stayed.
            let why = match &from {
                Some(from) => here.ask(from).await.ok().and_then(|status| status.handover),
                None => None,
            };
            return Err(match why {
                Some(why) => fault.caused_by(why),
                None => fault,
            });
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[derive(Serialize)]
struct Moved {
    from: Option<String>,
    to: String,
    moved: bool,
}

impl Report for Moved {
    fn render(&self, page: &mut Page) {
        match (self.moved, &self.from) {
            (false, _) => page.line(format!("{} is the write master already", self.to)),
            (true, Some(from)) => page.line(format!("the write master moved from {from} to {}", self.to)),
            (true, None) => page.line(format!("{} is the write master", self.to)),
        }
    }
}
