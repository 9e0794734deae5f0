//! `quorate status`: what the agent of this machine does, and what is known without one.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use owo_colors::OwoColorize;
use quorate_agent::pg::PgStatus;
use quorate_agent::turn::{self, Notice, ProcessNow, Status};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::spec::{duration_text, size_text};

use super::run::NodeArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate status
  quorate status --config cluster.yaml --name n1
  quorate status --state-dir /var/lib/quorate/n1 --output json

Exit code 0: it serves. 1: it serves, and something is degraded. 3: it does not serve now.
5: it refuses to start. 6: the quorum is lost.")]
pub(crate) struct Args {
    /// The cluster file [default: /etc/quorate/cluster.yaml]
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,

    /// This member's name in it [default: the only one]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,

    /// The agent's state dir, instead of a file
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Shows it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let status = match (&args.state_dir, &args.config) {
        (Some(dir), _) => {
            let name = dir.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            ask(dir, || turn::offline_status(&name, "", dir))?
        }
        (None, Some(config)) => of_node(&NodeArgs::new(config.clone(), args.name.clone()).node(printer)?)?,
        (None, None) => of_node(&super::ctl::node(None, args.name.as_deref(), printer)?)?,
    };
    let lost = status.warnings.iter().any(|notice| notice.code == Code::QuorumLost.as_str());
    let exit = match status.phase.as_str() {
        "serving" if status.warnings.iter().any(|notice| notice.degrades().is_some()) => Exit::CannotMeet,
        "serving" => Exit::Done,
        "refused" => Exit::Refused,
        _ if lost => Exit::Unreachable,
        _ => Exit::Waiting,
    };
    printer.report(&Shown(status));
    Ok(exit)
}

fn of_node(node: &turn::Node) -> Result<Status, Fault> {
    ask(node.state_path(), || turn::offline_status_of(node))
}

fn ask(state: &Path, offline: impl FnOnce() -> Result<Status, Fault>) -> Result<Status, Fault> {
    turn::ask_status(state)?.map_or_else(offline, Ok)
}

/// The document, as text.
#[derive(serde::Serialize)]
#[serde(transparent)]
pub(crate) struct Shown(pub(crate) Status);

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        let status = &self.0;
        let now = Timestamp::now().as_millisecond().unsigned_abs();
        let age = |ms: u64| duration_text(std::time::Duration::from_secs(now.saturating_sub(ms) / 1000));
        let since = if status.since_ms > 0 { format!(" ({})", age(status.since_ms)) } else { String::new() };
        let phase = if status.phase == "none" { "" } else { status.phase.as_str() };
        let gap = if phase.is_empty() { "" } else { ": " };
        page.line(format!("{} {phase}{gap}{}{since}", status.name, status.cause));
        if let (Some(code), Some(way_out)) = (&status.code, &status.way_out) {
            page.line(format!("  {way_out} [{code}]"));
        }
        if let Some(lost) = &status.lost {
            page.line(format!("  going on would lose: {lost}"));
        }
        if let Some(next) = status.next_try_ms {
            let left = duration_text(std::time::Duration::from_secs(next.saturating_sub(now).div_ceil(1000)));
            page.line(format!("  etcd is started again in {left}"));
        }
        page.gap();
        let mut pairs: Vec<(&str, String)> = Vec::new();
        if let (Some(cluster), Some(member)) = (&status.cluster_id, &status.member_id) {
            pairs.push(("member", format!("{member} of cluster {cluster}, ledger: {}", status.ledger)));
        } else if status.postgres.is_none() || status.ledger != "unknown" {
            pairs.push(("ledger", status.ledger.clone()));
        }
        if let Some(etcd) = &status.etcd {
            let version = etcd.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
            let taken = if etcd.adopted { ", taken over by this agent" } else { "" };
            let earlier = if etcd.settings_current { "" } else { ", with earlier settings" };
            let held = etcd.level.as_ref().map(|level| format!(", box: {level}")).unwrap_or_default();
            let up = age(etcd.started_ms);
            pairs.push(("etcd", format!("process {}{version}, up {up}{taken}{earlier}{held}", etcd.pid)));
            if let (Some(db), Some(used), Some(quota)) = (etcd.db_bytes, etcd.db_used_bytes, etcd.quota_bytes) {
                pairs.push(("database", format!("{} ({} in use) of {}", size(db), size(used), size(quota))));
            }
        }
        if let Some(client) = &status.client {
            let listens = client.listens.join(", ");
            pairs.push(("client", format!("listens at {listens}, for programs on this machine")));
            for member in &client.members {
                let rtt =
                    member.rtt_us.map(|us| format!(", {:.1} ms away", f64::from(us) / 1000.0)).unwrap_or_default();
                let used = if member.healthy { "used" } else { "not used" };
                let line =
                    format!("{} at {}, {used}{rtt}, {} connections", member.name, member.address, member.connections);
                pairs.push(("member", line));
            }
        }
        if let Some(end) = &status.last_end {
            let restarts =
                if status.restarts > 0 { format!("; started again {} times", status.restarts) } else { String::new() };
            pairs.push(("last end", format!("{end}{restarts}")));
        }
        if let Some(checked) = &status.checked {
            pairs.push((
                "checked",
                format!("{} ({}, {} ms): {}", checked.verdict, checked.mode, checked.took_ms, checked.why),
            ));
        }
        if let Some(backup) = &status.backup {
            let lag = duration_text(std::time::Duration::from_secs(backup.lag_seconds as u64));
            let far = match backup.knows_how_far() {
                true => format!(", stored up to revision {}, {lag} behind", backup.stored_revision),
                false => String::new(),
            };
            pairs.push(("backups", format!("{}{far}, in {}", backup.state, backup.store)));
        }
        if let Some(postgres) = &status.postgres {
            pairs.push(("postgres", group_in_a_line(postgres)));
        }
        if let Some(agent) = &status.agent {
            pairs.push(("agent", format!("process {}, up {}", agent.pid, age(agent.started_ms))));
        }
        let processes: Vec<String> = status.processes.iter().map(|process| in_a_line(process, &age)).collect();
        pairs.extend(processes.into_iter().map(|line| ("process", line)));
        for done in &status.done {
            pairs.push(("done", done.clone()));
        }
        page.pairs(pairs);
        for warning in &status.warnings {
            page.line(format!("{}: {} [{}]", kind(warning), warning.text, warning.code));
            if let Some(way_out) = &warning.way_out {
                page.line(format!("  do: {way_out}"));
            }
        }
    }
}

/// What a warning is, in its colour.
fn kind(warning: &Notice) -> String {
    let what = if warning.degrades().is_some() { "degraded" } else { "warning" };
    match warning.code == Code::QuorumLost.as_str() {
        true => what.red().bold().to_string(),
        false => what.yellow().bold().to_string(),
    }
}

/// The node of PostgreSQL.
fn group_in_a_line(now: &PgStatus) -> String {
    let running = now.links.iter().filter(|link| link.state == "running").count();
    let mut line = format!("{} of group {}", now.door, now.group);
    if !now.server.is_empty() {
        line += &format!(", server {}, schema {}, links {running} of {}", now.server, now.schema, now.links.len());
    }
    match [&now.fault, &now.waiting, &now.doing].into_iter().flatten().next() {
        Some(what) => format!("{line}; {what}"),
        None => line,
    }
}

/// A process beside etcd.
fn in_a_line(process: &ProcessNow, age: &impl Fn(u64) -> String) -> String {
    let mut line = format!("{} {}", process.name, process.state);
    if let (Some(pid), Some(started)) = (process.pid, process.started_ms) {
        let held = process.level.as_ref().map(|level| format!(", box: {level}")).unwrap_or_default();
        line += &format!(": process {pid}, up {}{held}", age(started));
    }
    if process.restarts > 0 {
        line += &format!(", ended {} times", process.restarts);
    }
    if let Some(cause) = &process.cause {
        line += &format!("; {cause}");
    }
    let code = process.code.as_ref().map(|code| format!(" [{code}]")).unwrap_or_default();
    line + &code
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{}MiB", bytes >> 20) } else { size_text(bytes) }
}
