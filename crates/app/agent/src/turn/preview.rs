//! What can be told and done without an agent: what the next turn would do, what is known, and an end to what runs.
//!
//! **Invariant:** a look changes nothing, not even by making a directory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quorate_etcd::ledger::observe_ledger;
use quorate_faults::{Code, Fault};
use quorate_host::shim::{self, Adoption, Ended, StopOrder};
use quorate_host::state::StateDir;
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::start::{Step, plan_start};
use serde::Serialize;

use super::etcd::{self, Program};
use super::instance;
use super::node::Node;
use super::observe::{Memory, end_words, observe};
use super::postgres::here_of;
use super::status::{EtcdNow, Status};
use crate::peers::Peers;
use crate::{pg, processes};

/// What the next turn would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Preview {
    /// Why.
    pub because: String,
    /// The steps, in their order.
    pub steps: Vec<String>,
    /// Whether someone has to decide first.
    pub refused: bool,
    /// Whether something has to happen first.
    pub waiting: bool,
    /// The page that says more, where nothing would be done.
    pub code: Option<Code>,
}

/// Looks and decides, and does nothing.
pub async fn preview(node: Node) -> Result<Preview, Fault> {
    let plain =
        |because: String, steps: Vec<String>| Preview { because, steps, refused: false, waiting: false, code: None };
    if !node.keeps_etcd() {
        let step = "keep this host's node of PostgreSQL; `quorate pg status` says what it does".to_owned();
        return Ok(plain("this host is no member, and has no etcd".to_owned(), vec![step]));
    }
    match adoption(node.state_path())? {
        Adoption::Running(running) => {
            let pid = running.child().pid;
            let config = Program::find(&node, None).and_then(|program| etcd::config(&node, &program));
            let mut steps = vec!["keep it running, and watch whether reads through it succeed".to_owned()];
            if config.is_ok_and(|config| config.hash != running.config_hash()) {
                steps.push("start it again in its turn: it has earlier settings than the cluster file".to_owned());
            }
            return Ok(plain(format!("etcd runs as process {pid}"), steps));
        }
        Adoption::Stranger(why) => {
            return Ok(Preview {
                refused: true,
                code: Some(Code::StrangerRuns),
                ..plain(format!("something runs that this node did not start: {why}"), vec![])
            });
        }
        Adoption::Gone(_) | Adoption::Lost(_) | Adoption::None => {}
    }
    let node = Arc::new(node);
    let instance = instance::read(node.state_path());
    let peers = Arc::new(Peers::new(&node.spec, node.name(), node.name()).with_instance(instance));
    let seen = observe(&node, &peers, &Memory::default()).await;
    let plan = plan_start(&node.spec, node.name(), &seen);
    let halt = plan.waiting().or(plan.refused());
    Ok(Preview {
        because: plan.row.text().to_owned(),
        steps: plan
            .steps
            .iter()
            .flat_map(|step| {
                let more =
                    matches!(step, Step::Validate(_)).then(|| "look again, and go on by what was found".to_owned());
                std::iter::once(step.to_string()).chain(more)
            })
            .collect(),
        refused: plan.refused().is_some(),
        waiting: plan.waiting().is_some(),
        code: halt.map(|halt| halt.code),
    })
}

/// What is known without an agent: from the ledger, the shim and the exit record.
pub fn offline_status(name: &str, token: &str, state: &Path) -> Result<Status, Fault> {
    let (ledger, ids) = match observe_ledger(&state.join(quorate_etcd::ledger::FILE_NAME)) {
        LedgerSeen::Absent => ("empty".to_owned(), None),
        LedgerSeen::Unreadable(why) => (format!("cannot be read: {why}"), None),
        LedgerSeen::There(ledger) => (ledger.state.word().to_owned(), ledger.ids()),
    };
    let (cause, since_ms, etcd, last_end) = match adoption(state)? {
        Adoption::Running(running) => {
            let now = EtcdNow {
                pid: running.child().pid,
                started_ms: running.started_at_ms(),
                settings_current: true,
                level: Some(super::boxed::level_of(&running).name().to_owned()),
                ..EtcdNow::default()
            };
            let cause = if running.is_kept() { "etcd runs, kept by its shim" } else { "etcd runs, without its shim" };
            (cause.to_owned(), running.started_at_ms(), Some(now), None)
        }
        Adoption::Gone(record) => {
            let how = end_words(&record);
            (format!("etcd {how}"), record.ended_at_ms, None, Some(how))
        }
        Adoption::Lost(why) => ("etcd does not run".to_owned(), 0, None, Some(format!("not recorded: {why}"))),
        Adoption::Stranger(why) => (format!("something runs that this node did not start: {why}"), 0, None, None),
        Adoption::None => ("etcd does not run".to_owned(), 0, None, None),
    };
    Ok(Status {
        name: name.to_owned(),
        token: token.to_owned(),
        phase: if etcd.is_some() { "none" } else { "stopped" }.to_owned(),
        cause: format!("no agent runs; {cause}"),
        since_ms,
        code: None,
        way_out: None,
        lost: None,
        next_try_ms: None,
        read_age_ms: None,
        ledger,
        cluster_id: ids.map(|(cluster, _)| cluster.to_string()),
        member_id: ids.map(|(_, member)| member.to_string()),
        etcd,
        last_end,
        restarts: 0,
        checked: None,
        done: Vec::new(),
        backup: None,
        processes: Vec::new(),
        postgres: None,
        warnings: Vec::new(),
        cluster: None,
        certificates: Vec::new(),
        client: None,
        agent: None,
    })
}

/// The same for a declared node: an etcd that another program started on its data is reported, too.
pub fn offline_status_of(node: &Node) -> Result<Status, Fault> {
    let mut status = offline_status(node.name(), &node.spec.token, node.state_path())?;
    if status.etcd.is_none()
        && let Some(holder) = super::in_place::holder(node)
    {
        let process = holder.pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
        status.cause = format!("no agent runs; an etcd that this node did not start runs on its data{process}");
        "none".clone_into(&mut status.phase);
    }
    Ok(status)
}

/// Stops an etcd that no agent tends, and before it what runs beside it. `None`: no etcd runs. Says how it ended.
pub fn stop_alone(node: &Node, asked_by: &str) -> Result<Option<String>, Fault> {
    if !node.state_path().exists() {
        return Ok(None);
    }
    let state = node.state()?;
    let _lock = state.lock()?;
    processes::stop_alone(node, asked_by)?;
    if let Some(here) = here_of(node, Path::new("")) {
        pg::stop_all(&here, asked_by)?;
    }
    let mut running = match shim::adopt(&state)? {
        Adoption::Running(running) => running,
        Adoption::Gone(_) | Adoption::Lost(_) | Adoption::None => return Ok(None),
        Adoption::Stranger(why) => {
            let attempt = format!("cannot stop etcd: something runs that this node did not start: {why}");
            return Err(Fault::new(Code::StrangerRuns, attempt).hint("end it yourself if it should not be there"));
        }
    };
    let ladder = etcd::ladder(&node.spec.maintenance.stop);
    let limit = ladder.iter().map(|rung| rung.wait_ms).sum::<u64>() + 10_000;
    running.stop(&StopOrder { asked_by: asked_by.to_owned(), ladder, last_revision: None })?;
    match running.wait(Duration::from_millis(limit))? {
        Some(Ended::Record(record)) => Ok(Some(end_words(&record))),
        Some(Ended::NoRecord(why)) => Ok(Some(format!("ended, and it is not recorded how: {why}"))),
        None => Err(Fault::new(Code::NotEnding, format!("etcd (process {}) does not end", running.child().pid))
            .hint("see `quorate explain Q0906`")),
    }
}

fn adoption(state: &Path) -> Result<Adoption, Fault> {
    // Looking must not make the directory.
    if !state.exists() {
        return Ok(Adoption::None);
    }
    shim::adopt(&StateDir::open(state)?)
}
