//! What a node of a group shows of itself.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_plan::postgres::PgPlan;
use quorate_plan::spec::PgWriters;
use serde::{Deserialize, Serialize};

use super::fence::boot_now;

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
    /// What is not as it should be although the node goes on, a sentence each.
    #[serde(default)]
    pub troubles: Vec<String>,
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
    /// It lacks rows that nobody will send any more.
    behind: bool,
}

/// Where it stands.
#[derive(Debug)]
pub(crate) struct Board(Mutex<Inner>);

impl Board {
    pub(super) fn new(node: &str, group: &str, writers: PgWriters) -> Board {
        let status = PgStatus {
            node: node.to_owned(),
            group: group.to_owned(),
            door: "closed".to_owned(),
            ..PgStatus::default()
        };
        Board(Mutex::new(Inner { status, everywhere: writers == PgWriters::All, ..Inner::default() }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut PgStatus)) {
        change(&mut self.inner().status);
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
    }

    pub(super) fn renewed(&self, until: Duration) {
        self.inner().writer_until = Some(until);
    }

    pub(super) fn takes_writes(&self) -> bool {
        let inner = self.inner();
        let holds = inner.writer_until.is_some_and(|until| boot_now() < until);
        inner.open && (holds || (inner.everywhere && inner.status.door != "closed"))
    }

    pub(super) fn takes_reads(&self) -> bool {
        let inner = self.inner();
        inner.open && !inner.behind
    }

    pub(super) fn is_behind(&self) -> bool {
        self.inner().behind
    }

    /// Whether it lacks rows that nobody will send any more.
    pub(super) fn set_behind(&self, behind: bool) {
        self.inner().behind = behind;
    }

    pub(super) fn status(&self) -> PgStatus {
        self.inner().status.clone()
    }
}
