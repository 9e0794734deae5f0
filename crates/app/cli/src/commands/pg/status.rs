//! `quorate pg status`: every node of a group, who writes, the links, and what is waited for.

use std::collections::BTreeMap;

use quorate_agent::pg::{self, Here, PgStatus};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::postgres::{Cutoff, Diverged, Records, position_text};
use quorate_plan::spec::{PgNode, PgRole};
use serde::Serialize;

use super::GroupArgs;
use crate::commands::run::runtime;
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `pg status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate pg status --config cluster.yaml
  quorate pg status --config cluster.yaml --output json

ROLE is what a node's door is for (writer, reader, forward, closed), LAG what another node has
not confirmed yet, CONFLICTS how many rows lost to newer ones there.

Exit code 0: every node has its part, and there is a write master. 3: somebody waits, or
something is not as it should be.")]
pub(crate) struct Args {
    #[command(flatten)]
    group: GroupArgs,
}

/// Asks and shows.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let here = args.group.anyone()?;
    let shown = runtime()?.block_on(look(&here));
    let well = shown.store.is_none()
        && shown.unfinished.is_none()
        && shown.writer.is_some()
        && shown.nodes.iter().all(NodeShown::is_well);
    printer.report(&shown);
    Ok(if well { Exit::Done } else { Code::PgWaiting.exit() })
}

/// Everybody is asked at once, and whoever does not answer takes nothing from the others, the store neither.
async fn look(here: &Here) -> Shown {
    let asked = async {
        let store = here.store().await?;
        Ok::<_, Fault>((pg::records(&store).await?, pg::registered(&store).await?, pg::unfinished(&store).await?))
    };
    let declared = &here.group().nodes;
    let (asked, statuses) = tokio::join!(asked, here.ask_all());
    let (store, records, registered, unfinished) = match asked {
        Ok((records, registered, unfinished)) => (None, records, registered, unfinished),
        Err(fault) => (Some(fault.to_string()), Records::default(), BTreeMap::new(), None),
    };
    let ids: BTreeMap<String, u16> = records.group.as_ref().map(|(group, _)| group.nodes.clone()).unwrap_or_default();
    let shown = |(node, status): (&PgNode, Result<PgStatus, Fault>)| NodeShown {
        name: node.name.clone(),
        id: ids.get(&node.name).copied(),
        registered: registered.contains_key(&node.name),
        silent: status.as_ref().err().map(ToString::to_string),
        out: records.divergence(&node.name).map(|(diverged, _)| diverged.clone()),
        cutoff: records.cutoff(&node.name).map(|(cutoff, _)| cutoff.clone()),
        status: status.ok(),
    };
    // Members that are in no file any more still have links and slots.
    let undeclared = |name: &&String| !declared.iter().any(|node| node.name == **name);
    let undeclared = ids.iter().filter(|(name, _)| undeclared(name)).map(|(name, id)| NodeShown {
        name: name.clone(),
        id: Some(*id),
        registered: registered.contains_key(name),
        out: records.divergence(name).map(|(diverged, _)| diverged.clone()),
        cutoff: records.cutoff(name).map(|(cutoff, _)| cutoff.clone()),
        status: None,
        silent: Some("it is in the group, and not in the cluster file".to_owned()),
    });
    Shown {
        group: here.group().group.clone(),
        role: here.group().role,
        manager: here.group().manager.clone(),
        store,
        unfinished,
        nodes: declared.iter().zip(statuses).map(shown).chain(undeclared).collect(),
        id: records.group.as_ref().map(|(group, _)| group.id.clone()),
        leader: records.leader.as_ref().map(|(leader, _)| leader.node.clone()),
        epoch: records.leader.map(|(leader, _)| leader.epoch),
        writer: records.writer.map(|(writer, _)| writer.node),
        writer_epoch: records.last_writer.map(|(last, _)| last.epoch),
    }
}

#[derive(Serialize)]
struct Shown {
    group: String,
    role: PgRole,
    #[serde(skip_serializing_if = "Option::is_none")]
    manager: Option<String>,
    /// Why the store does not say anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    /// A change of members that was begun, and what can be done about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    unfinished: Option<String>,
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
    /// What it holds that the writer does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    out: Option<Diverged>,
    /// How far the writer has applied it, until it has proven that it holds no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    cutoff: Option<Cutoff>,
    status: Option<PgStatus>,
    silent: Option<String>,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        let id = match (&self.store, &self.id) {
            (Some(_), _) => "unknown",
            (None, Some(id)) => id,
            (None, None) => "not made yet",
        };
        let role = match (self.role, &self.manager) {
            (PgRole::Service, Some(manager)) => format!("service, managed by {manager}"),
            (PgRole::Service, None) => "service".to_owned(),
            (PgRole::Manager, _) => "manager".to_owned(),
        };
        page.line(format!("group {} ({id}), {role}", self.group));
        match (&self.store, &self.writer, self.writer_epoch) {
            (Some(why), ..) => page.line(format!("the store does not say who writes: {why}")),
            (None, Some(writer), Some(epoch)) => page.line(format!("write master {writer}, epoch {epoch}")),
            (None, ..) => page.line("no write master"),
        }
        if let Some(unfinished) = &self.unfinished {
            page.line(unfinished);
        }
        for line in self.nodes.iter().filter_map(NodeShown::out_line) {
            page.line(line);
        }
        page.gap();
        let header = ["NODE", "ID", "ROLE", "SCHEMA", "SERVER", "LINKS", "LAG", "CONFLICTS", "PROXIES", "WAITING FOR"];
        page.table(header, self.nodes.iter().map(NodeShown::row));
    }
}

impl NodeShown {
    /// Why it takes no part, whether it answers or not.
    fn out_line(&self) -> Option<String> {
        let listed = |tables: &BTreeMap<String, u64>| {
            tables.iter().map(|(table, rows)| format!("{table} {rows}")).collect::<Vec<_>>().join(", ")
        };
        let name = &self.name;
        if let Some(out) = &self.out {
            let mut line =
                format!("{name} stays out: it holds changes that the writer does not have ({})", listed(&out.changes));
            if let Some(rows) = out.rows.as_ref().filter(|rows| !rows.is_empty()) {
                line.push_str(&format!("; rows that differ: {}", listed(rows)));
            }
            return Some(format!("{line} [{}]: quorate pg rejoin {name} --discard", Code::PgDivergedWriter));
        }
        let cutoff = self.cutoff.as_ref()?;
        let (writer, at) = (&cutoff.writer, position_text(cutoff.applied));
        Some(format!(
            "{name} was the writer until {writer} took over at {at} of its log; it stays out until its log is read"
        ))
    }

    fn is_well(&self) -> bool {
        self.out.is_none()
            && self.cutoff.is_none()
            && self.status.as_ref().is_some_and(|status| status.ready && status.troubles.is_empty())
    }

    fn row(&self) -> [String; 10] {
        let id = self.id.map(|id| id.to_string()).unwrap_or_default();
        let Some(status) = &self.status else {
            let why = self.silent.clone().unwrap_or_default();
            return [&self.name, &id, "unknown", "", "", "", "", "", "", &why].map(str::to_owned);
        };
        let running = status.links.iter().filter(|link| link.state == "running").count();
        let lag = status.links.iter().filter_map(|link| link.lag_bytes).max().map(bytes);
        let waiting = [&status.fault, &status.waiting, &status.doing].into_iter().flatten();
        let waiting = waiting.chain(&status.troubles).next();
        [
            self.name.clone(),
            id,
            status.door.clone(),
            status.schema.to_string(),
            status.server.clone(),
            format!("{running} of {}", status.links.len()),
            lag.unwrap_or_default(),
            (status.lost + status.overtaken).to_string(),
            proxies(status),
            waiting.cloned().unwrap_or_default(),
        ]
    }
}

/// `up`, or who of pooler and proxy is not.
fn proxies(status: &PgStatus) -> String {
    let mut parts = status.parts.iter().filter(|part| part.name != "postgres").peekable();
    if parts.peek().is_none() {
        return String::new();
    }
    let down: Vec<&str> = parts.filter(|part| !part.ready).map(|part| part.name.as_str()).collect();
    if down.is_empty() { "up".to_owned() } else { format!("{} down", down.join(", ")) }
}
