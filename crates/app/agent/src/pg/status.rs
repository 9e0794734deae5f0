//! What a node of a group shows of itself.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use quorate_plan::postgres::PgPlan;
use quorate_plan::spec::PgWriters;
use serde::{Deserialize, Serialize};

use super::fence::boot_now;
use super::here::Here;

/// How a node is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgStatus {
    /// Its name.
    pub node: String,
    /// The group.
    pub group: String,
    /// What its door is: `writer`, `reader`, `forward`, `closed`.
    pub door: String,
    /// Whether it has done its part of the bootstrap.
    pub ready: bool,
    /// What it does now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doing: Option<String>,
    /// Whom or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// Why it does not go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The schema's version.
    pub schema: u32,
    /// The server's version.
    pub server: String,
    /// How the other nodes' links to here are.
    pub links: Vec<LinkStatus>,
    /// Rows that lost to newer ones here, and are in the log.
    #[serde(default)]
    pub lost: u64,
    /// Rows that came after newer ones that may have known them.
    #[serde(default)]
    pub overtaken: u64,
    /// Why the place of the write master could not be handed over from here, the last time that it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<String>,
    /// What is not as it should be although the node goes on, a sentence each.
    #[serde(default)]
    pub troubles: Vec<String>,
    /// What runs here.
    #[serde(default)]
    pub parts: Vec<PartStatus>,
}

/// A program of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartStatus {
    /// `postgres`, `pgbouncer` or `haproxy`.
    pub name: String,
    /// Whether it does its work.
    pub ready: bool,
    /// Its process, or that of the fence above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When it was started, in ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
}

/// One link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// From which node.
    pub from: String,
    /// In words: `running`, `stopped`, …
    pub state: String,
    /// Bytes of ours that the node at the other end has not confirmed yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_bytes: Option<u64>,
    /// Conflicts that were met.
    pub conflicts: u64,
    /// How often it was stopped by an error, lost connections among them.
    #[serde(default)]
    pub errors: u64,
}

#[derive(Debug, Default)]
struct Inner {
    status: PgStatus,
    /// Until when we are surely the write master, on the clock of [`boot_now`].
    writer_until: Option<Duration>,
    /// The door is open.
    open: bool,
    everywhere: bool,
    /// It lacks rows that nobody will send any more, or that it takes from the writer.
    behind: bool,
    /// It holds, or may hold, changes that the writer does not have.
    out: bool,
    /// It has its part of the group: all rows were copied, and every link brings changes.
    joined: bool,
    measures: Measures,
}

impl Inner {
    fn takes_writes(&self) -> bool {
        let holds = self.writer_until.is_some_and(|until| boot_now() < until);
        self.open && (holds || (self.everywhere && self.joined && self.status.door != "closed"))
    }
}

/// What Prometheus is told. Clones count together.
#[derive(Debug, Clone, Default)]
struct Measures {
    ready: Gauge,
    writer: Gauge,
    links: Gauge,
    lag: Gauge,
    conflicts: Gauge,
    lost: Gauge,
    out: Gauge,
    behind: Gauge,
    parts: Family<OfPart, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPart {
    part: String,
}

impl Measures {
    fn take(&self, inner: &Inner) {
        let status = &inner.status;
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.ready.set(i64::from(status.ready));
        self.writer.set(i64::from(inner.takes_writes()));
        self.links.set(status.links.iter().filter(|link| link.state == "running").map(|_| 1).sum());
        self.lag.set(number(status.links.iter().filter_map(|link| link.lag_bytes).max().unwrap_or_default()));
        self.conflicts.set(number(status.links.iter().map(|link| link.conflicts).sum()));
        self.lost.set(number(status.lost));
        self.out.set(i64::from(inner.out));
        self.behind.set(i64::from(inner.behind));
        for part in &status.parts {
            self.parts.get_or_create(&OfPart { part: part.name.clone() }).set(i64::from(part.ready));
        }
    }
}

/// Where it stands.
#[derive(Debug)]
pub(crate) struct Board(Mutex<Inner>);

impl Board {
    /// The board of a node.
    pub(crate) fn of(here: &Here) -> Board {
        let status = PgStatus {
            node: here.name().to_owned(),
            group: here.pg.group.clone(),
            door: "closed".to_owned(),
            ..PgStatus::default()
        };
        Board(Mutex::new(Inner { status, everywhere: here.pg.writers == PgWriters::All, ..Inner::default() }))
    }

    /// Has Prometheus told about it.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let Measures { ready, writer, links, lag, conflicts, lost, out, behind, parts } = self.inner().measures.clone();
        registry.register("quorate_pg_ready", "1 once this node has its part of the group", ready);
        registry.register("quorate_pg_writer", "1 while this node takes writes", writer);
        registry.register("quorate_pg_links_running", "Links that bring changes to this node", links);
        registry.register_with_unit("quorate_pg_lag", "Most that another node has not confirmed yet", Unit::Bytes, lag);
        registry.register("quorate_pg_conflicts", "Conflicts that the server has counted", conflicts);
        registry.register("quorate_pg_rows_lost", "Rows that lost to newer ones and are in the log", lost);
        registry.register(
            "quorate_pg_out",
            "1 while this node stays out: it may hold changes that the writer has not",
            out,
        );
        registry.register("quorate_pg_behind", "1 while this node lacks rows of the writer and takes no reads", behind);
        registry.register("quorate_pg_part_ready", "1 for a program of the node that does its work", parts);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is shown.
    pub(crate) fn change(&self, change: impl FnOnce(&mut PgStatus)) {
        let mut inner = self.inner();
        change(&mut inner.status);
        inner.measures.take(&inner);
    }

    /// Shows a plan before its first step is taken.
    pub(super) fn plan(&self, plan: &PgPlan) {
        self.change(|status| {
            status.doing = plan.steps.first().map(ToString::to_string);
            status.waiting = plan.waiting.clone();
            status.fault = plan.refused.as_ref().map(|fault| format!("{fault} [{}]", fault.code()));
            status.ready = plan.is_done();
        });
    }

    pub(super) fn door(&self, word: &str, open: bool, writer_until: Option<Duration>) {
        let mut inner = self.inner();
        inner.status.door = word.to_owned();
        (inner.open, inner.writer_until) = (open, writer_until);
        inner.measures.take(&inner);
    }

    pub(super) fn renewed(&self, until: Duration) {
        self.inner().writer_until = Some(until);
    }

    pub(super) fn takes_writes(&self) -> bool {
        self.inner().takes_writes()
    }

    /// Whether readers are led here: there is something to read.
    pub(super) fn takes_reads(&self) -> bool {
        let inner = self.inner();
        inner.open && !inner.behind && !inner.out && inner.joined && inner.status.schema > 0
    }

    /// Whether this node has its part of the group, as the store says.
    pub(super) fn set_joined(&self, joined: bool) {
        self.inner().joined = joined;
    }

    /// Whether this is what is shown of the door.
    pub(super) fn shows(&self, word: &str) -> bool {
        self.inner().status.door == word
    }

    /// Whether it lacks rows for ever, or holds, or may hold, changes that the writer does not have.
    pub(super) fn is_behind(&self) -> bool {
        let inner = self.inner();
        inner.behind || inner.out
    }

    /// Whether it holds, or may hold, changes that the writer does not have.
    pub(super) fn set_out(&self, out: bool) {
        let mut inner = self.inner();
        inner.out = out;
        inner.measures.take(&inner);
    }

    /// Whether it lacks rows that nobody will send any more, or that it takes from the writer.
    pub(super) fn set_behind(&self, behind: bool) {
        let mut inner = self.inner();
        inner.behind = behind;
        inner.measures.take(&inner);
    }

    /// Whether the door is open, for whom ever.
    pub(super) fn is_open(&self) -> bool {
        self.inner().open
    }

    /// All that is shown.
    pub(crate) fn status(&self) -> PgStatus {
        self.inner().status.clone()
    }
}
