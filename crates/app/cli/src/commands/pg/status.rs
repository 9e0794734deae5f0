//! `quorate pg status`: every node of a group, who writes, the links, and what is waited for.

use std::collections::BTreeMap;

use quorate_agent::pg::{self, Here, PgStatus};
use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;

use super::GroupArgs;
use crate::commands::run::runtime;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `pg status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg status --config cluster.yaml
  quorate pg status --config cluster.yaml --output json

Exit code 0: every node has its part, and there is a write master. 3: somebody waits, or
something is not as it should be.")]
pub(crate) struct Args {
    #[command(flatten)]
    group: GroupArgs,
}

/// Asks and shows.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let here = args.group.anyone()?;
    let shown = runtime()?.block_on(look(&here))?;
    let well = shown.writer.is_some() && shown.nodes.iter().all(NodeShown::is_well);
    printer.report(&shown);
    Ok(if well { Exit::Done } else { Code::PgWaiting.exit() })
}

async fn look(here: &Here) -> Result<Shown, Fault> {
    let store = here.store().await?;
    let records = pg::records(&store).await?;
    let registered = pg::registered(&store).await?;
    let ids: BTreeMap<String, u16> = records.group.as_ref().map(|(group, _)| group.nodes.clone()).unwrap_or_default();
    let mut nodes = Vec::new();
    for node in &here.group().nodes {
        let (status, silent) = match here.ask(&node.name).await {
            Ok(status) => (Some(status), None),
            Err(fault) => (None, Some(fault.to_string())),
        };
        let id = ids.get(&node.name).copied();
        nodes.push(NodeShown {
            name: node.name.clone(),
            id,
            registered: registered.contains_key(&node.name),
            status,
            silent,
        });
    }
    Ok(Shown {
        group: here.group().group.clone(),
        id: records.group.map(|(group, _)| group.id),
        leader: records.leader.as_ref().map(|(leader, _)| leader.node.clone()),
        epoch: records.leader.map(|(leader, _)| leader.epoch),
        writer: records.writer.map(|(writer, _)| writer.node),
        writer_epoch: records.last_writer.map(|(last, _)| last.epoch),
        nodes,
    })
}

#[derive(Serialize)]
struct Shown {
    group: String,
    id: Option<String>,
    leader: Option<String>,
    epoch: Option<u64>,
    writer: Option<String>,
    writer_epoch: Option<u64>,
    nodes: Vec<NodeShown>,
}

#[derive(Serialize)]
struct NodeShown {
    name: String,
    id: Option<u16>,
    registered: bool,
    status: Option<PgStatus>,
    silent: Option<String>,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        let id = self.id.as_deref().unwrap_or("not made yet");
        page.line(format!("group {} ({id})", self.group));
        match (&self.writer, self.writer_epoch) {
            (Some(writer), Some(epoch)) => page.line(format!("write master {writer}, epoch {epoch}")),
            _ => page.line("no write master"),
        }
        page.gap();
        let header = ["NODE", "ID", "DOOR", "SCHEMA", "SERVER", "LINKS", "CONFLICTS", "WAITING FOR"];
        page.table(header, self.nodes.iter().map(NodeShown::row));
    }
}

impl NodeShown {
    fn is_well(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready && status.troubles.is_empty())
    }

    fn row(&self) -> [String; 8] {
        let id = self.id.map(|id| id.to_string()).unwrap_or_default();
        let Some(status) = &self.status else {
            let why = self.silent.clone().unwrap_or_default();
            return [&self.name, &id, "unknown", "", "", "", "", &why].map(str::to_owned);
        };
        let running = status.links.iter().filter(|link| link.state == "running").count();
        let conflicts: u64 = status.links.iter().map(|link| link.conflicts).sum();
        let waiting = [&status.fault, &status.waiting, &status.doing].into_iter().flatten();
        let waiting = waiting.chain(&status.troubles).next();
        [
            self.name.clone(),
            id,
            status.door.clone(),
            status.schema.to_string(),
            status.server.clone(),
            format!("{running} of {}", status.links.len()),
            conflicts.to_string(),
            waiting.cloned().unwrap_or_default(),
        ]
    }
}
