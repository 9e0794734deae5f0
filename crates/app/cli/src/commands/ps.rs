//! `quorate ps`: every process that agents of this machine keep, and what it uses.

pub(crate) mod scan;

use std::time::Duration;

use jiff::Timestamp;
use quorate_agent::turn::ProcessNow;
use quorate_faults::{Exit, Fault};
use quorate_host::facts::{Facts, observe_facts};
use quorate_host::sandbox::Held;
use quorate_plan::boxes::{Level, Part};
use quorate_plan::spec::duration_text;
use serde::Serialize;

use crate::printer::Printer;
use crate::render::{Page, Report, bytes};
use scan::{Now, Place, Process};

/// Flags of `ps`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate ps
  quorate ps --config cluster.yaml --name n1
  quorate ps --output json | jq -r '.processes[] | select(.running) | .pid'

Memory is the process's share (PSS) where that may be seen, else what it has in RAM (RSS).
BOX is the box that it was started in, with its holes; where the kernel shows less of it now,
that is said below. Also works when no agent runs.

Exit code 0: all of them run. 3: at least one does not.")]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
}

/// Shows them.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let processes = args.place.processes()?;
    let now_ms = Timestamp::now().as_millisecond().unsigned_abs();
    let rows: Vec<Row> = processes.iter().map(|process| Row::of(process, now_ms)).collect();
    if rows.is_empty() {
        printer.note("no process is kept here; give --config or --state-dir if the agent's state is elsewhere");
    }
    let exit = if rows.iter().all(|row| row.running) { Exit::Done } else { Exit::Waiting };
    printer.report(&List { processes: rows });
    Ok(exit)
}

#[derive(Serialize)]
struct List {
    processes: Vec<Row>,
}

/// One process. What is not known is left out.
#[derive(Serialize)]
struct Row {
    member: String,
    process: String,
    /// The agent's word for what it does, or `running`, `stopped`, `unknown` where no agent answers.
    state: String,
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uptime_seconds: Option<u64>,
    /// Since when it is in this state, in ms since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    since_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restarts: Option<u64>,
    /// The share of a processor since its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_percent: Option<f64>,
    /// The box that it was started in; `off`: none.
    #[serde(rename = "box", skip_serializing_if = "Option::is_none")]
    level: Option<&'static str>,
    /// The holes of its box.
    #[serde(rename = "box_unsafe", skip_serializing_if = "Vec::is_empty")]
    holes: Vec<&'static str>,
    /// Parts of its box that the kernel does not show of it now.
    #[serde(rename = "box_lacks", skip_serializing_if = "Vec::is_empty")]
    lacks: Vec<&'static str>,
    #[serde(flatten)]
    facts: Option<Facts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_pid: Option<u32>,
    /// Why, where it does not run, and where no agent tends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_end: Option<String>,
    state_dir: String,
}

impl Row {
    fn of(process: &Process, now_ms: u64) -> Row {
        let agent = process.agent.as_ref();
        let mut row = Row {
            member: process.member.clone(),
            process: process.name.clone(),
            state: agent.map_or("stopped", |agent| agent.phase.as_str()).to_owned(),
            running: false,
            pid: None,
            uptime_seconds: None,
            since_ms: agent.map(|agent| agent.since_ms),
            restarts: agent.map(|agent| agent.restarts),
            cpu_percent: None,
            level: None,
            holes: Vec::new(),
            lacks: Vec::new(),
            facts: None,
            agent_pid: agent.and_then(|agent| agent.agent.as_ref()).map(|agent| agent.pid),
            cause: agent.map(|agent| agent.cause.clone()),
            last_end: agent.and_then(|agent| agent.last_end.clone()),
            state_dir: process.dir.display().to_string(),
        };
        match &process.now {
            Now::Running { identity, started_ms, .. } => {
                let facts = observe_facts(identity).ok().flatten();
                let age_ms = now_ms.saturating_sub(*started_ms);
                row.running = true;
                row.pid = Some(identity.pid);
                row.uptime_seconds = Some(age_ms / 1000);
                row.cpu_percent =
                    facts.as_ref().map(|facts| (facts.cpu_ms as f64 * 1000.0 / age_ms.max(1) as f64).round() / 10.0);
                let plan = process.held().map(Held::plan);
                row.level = Some(plan.map_or(Level::Off, |plan| plan.spec.level).name());
                if let (Some(plan), Some(facts)) = (plan, &facts) {
                    row.holes = plan.spec.escapes.iter().map(|escape| escape.name()).collect();
                    row.lacks = facts.confinement.lacks(plan).into_iter().map(Part::name).collect();
                }
                row.facts = facts;
                match agent {
                    Some(_) => row.cause = None,
                    None => {
                        row.state = "running".to_owned();
                        row.since_ms = Some(*started_ms);
                        let why = if process.silent { "its agent does not answer" } else { "no agent tends it" };
                        row.cause = Some(why.to_owned());
                    }
                }
            }
            Now::Ended { why, since_ms, last_end } => {
                if agent.is_none() || (process.dir != process.member_dir && process.declared().is_none()) {
                    row.state = "stopped".to_owned();
                    row.since_ms = Some(*since_ms).filter(|ms| *ms > 0);
                    row.cause = Some(why.clone());
                    row.last_end.clone_from(last_end);
                }
            }
            Now::Unknown(fault) => {
                row.state = "unknown".to_owned();
                row.cause = Some(format!("{fault} [{}]", fault.code()));
            }
        }
        if let Some(declared) = process.declared() {
            row.tell(declared);
        }
        row
    }

    /// What the agent says of a process beside etcd.
    fn tell(&mut self, declared: &ProcessNow) {
        self.state.clone_from(&declared.state);
        self.since_ms = Some(declared.since_ms);
        self.restarts = Some(declared.restarts);
        self.last_end.clone_from(&declared.last_end);
        let code = declared.code.as_ref().map(|code| format!(" [{code}]")).unwrap_or_default();
        self.cause = declared.cause.as_ref().map(|cause| format!("{cause}{code}"));
    }

    fn cells(&self) -> [String; 10] {
        let dash = || "-".to_owned();
        let memory = self.facts.as_ref().and_then(|facts| facts.pss_bytes.or(facts.rss_bytes));
        let since = self.since_ms.and_then(|ms| Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok());
        [
            self.member.clone(),
            self.process.clone(),
            self.state.clone(),
            self.pid.map_or_else(dash, |pid| pid.to_string()),
            self.uptime_seconds.map_or_else(dash, |seconds| duration_text(Duration::from_secs(seconds))),
            self.restarts.map_or_else(dash, |restarts| restarts.to_string()),
            memory.map_or_else(dash, bytes),
            self.cpu_percent.map_or_else(dash, |percent| format!("{percent}%")),
            self.level.map_or_else(dash, |level| [&[level], self.holes.as_slice()].concat().join(",")),
            since.map_or_else(dash, |since| format!("{since:.0}")),
        ]
    }
}

impl Report for List {
    fn render(&self, page: &mut Page) {
        if self.processes.is_empty() {
            return;
        }
        let headers = ["MEMBER", "PROCESS", "STATE", "PID", "UPTIME", "RESTARTS", "MEMORY", "CPU", "BOX", "SINCE"];
        page.table(headers, self.processes.iter().map(Row::cells));
        for row in &self.processes {
            if let Some(cause) = &row.cause {
                page.line(format!("{}/{}: {cause}", row.member, row.process));
            }
            if !row.lacks.is_empty() {
                let lacks = row.lacks.join(", ");
                page.line(format!(
                    "warning: {}/{}: of its box the kernel does not show: {lacks}",
                    row.member, row.process
                ));
            }
        }
    }
}
