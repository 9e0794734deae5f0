//! Says what goes on: in the status document, the log, the metrics and to systemd, all in the same words.
//!
//! **Invariant:** a phase is told everywhere or nowhere, and only when it changed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use prometheus_client::registry::Registry;
use quorate_faults::Code;
use quorate_plan::phase::{Phase, PhaseNow};
use quorate_plan::start::Halt;
use tracing::{debug, info, warn};

use super::measure::Measures;
use super::node::Node;
use super::poll::Polls;
use super::repeats::Repeats;
use super::second_machine::Machines;
use super::status::{AgentNow, BackupNow, Notice, ProcessNow, Status};
use super::systemd;
use super::talk::Talk;
use crate::backups;
use crate::pg::{Board, PgStatus};

/// What all parts of the agent share.
#[derive(Debug)]
pub(crate) struct Shared {
    status: Mutex<Status>,
    phase: Mutex<PhaseNow>,
    /// When the phase and the agent began, by a clock that nobody sets.
    began: (Mutex<Instant>, Instant),
    /// When a read through this member last succeeded.
    read: Mutex<Option<Instant>>,
    ready_limit: Duration,
    pub(super) talk: Talk,
    pub(super) machines: Machines,
    pub(super) measures: Measures,
    pub(super) backups: backups::metrics::Metrics,
    pub(super) polls: Polls,
    repeats: Repeats,
    postgres: OnceLock<Arc<Board>>,
}

impl Shared {
    pub(super) fn new(node: &Node) -> Arc<Shared> {
        let backups = backups::metrics::Metrics::new();
        let measures = Measures::new(&backups.registry());
        let now = PhaseNow { phase: Phase::Observing, cause: "starting".to_owned(), since_ms: now_ms() };
        measures.phase(now.phase);
        let status = Status {
            name: node.name().to_owned(),
            token: node.spec.token.clone(),
            phase: now.phase.word().to_owned(),
            cause: now.cause.clone(),
            since_ms: now.since_ms,
            code: None,
            way_out: None,
            lost: None,
            next_try_ms: None,
            read_age_ms: None,
            ledger: "unknown".to_owned(),
            cluster_id: None,
            member_id: None,
            etcd: None,
            last_end: None,
            restarts: 0,
            checked: None,
            done: Vec::new(),
            backup: node.spec.backup.as_ref().map(|backup| BackupNow {
                store: backup.store.clone(),
                state: "waiting for etcd to serve".to_owned(),
                stored_revision: 0,
                lag_seconds: 0.0,
            }),
            processes: Vec::new(),
            postgres: None,
            warnings: Vec::new(),
            cluster: None,
            certificates: Vec::new(),
            client: None,
            agent: Some(AgentNow {
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                started_ms: now.since_ms,
            }),
        };
        Arc::new(Shared {
            status: Mutex::new(status),
            phase: Mutex::new(now),
            began: (Mutex::new(Instant::now()), Instant::now()),
            read: Mutex::new(None),
            ready_limit: node.spec.agent.ready_timeout,
            talk: Talk::new(!node.has_peers()),
            machines: Machines::default(),
            measures,
            backups,
            polls: Polls::default(),
            repeats: Repeats::default(),
            postgres: OnceLock::new(),
        })
    }

    /// The document as it is now.
    pub(crate) fn status(&self) -> Status {
        let mut status = lock(&self.status).clone();
        let now = now_ms();
        status.since_ms = moment(status.since_ms, now, lock(&self.began.0).elapsed());
        if let Some(agent) = &mut status.agent {
            agent.started_ms = moment(agent.started_ms, now, self.began.1.elapsed());
        }
        if let Some(backup) = &mut status.backup {
            let position = &self.backups.position;
            backup.stored_revision = position.stored.load(Ordering::Relaxed);
            backup.lag_seconds = position.lag().as_secs_f64();
        }
        self.polls.date(&mut status);
        status.read_age_ms = self.read_age().map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        status.postgres = self.postgres();
        let parts = status.postgres.iter().flat_map(|now| &now.parts);
        let rows: Vec<ProcessNow> = parts.map(ProcessNow::of_part).collect();
        status.processes.extend(rows);
        status
    }

    /// Changes the document.
    pub(super) fn change(&self, with: impl FnOnce(&mut Status)) {
        with(&mut lock(&self.status));
    }

    /// The word of the moment, and whether reads through this member succeed.
    pub(crate) fn readiness(&self) -> (Phase, bool) {
        let phase = lock(&self.phase).phase;
        let fresh = lock(&self.read).is_some_and(|read| read.elapsed() <= self.ready_limit);
        (phase, phase == Phase::Serving && fresh)
    }

    /// Tells when etcd is started again.
    pub(super) fn next_try(&self, wait: Option<Duration>) {
        let at = wait.map(|wait| now_ms().saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)));
        self.change(|status| status.next_try_ms = at);
    }

    /// The newest revision of etcd that was heard of.
    pub(super) fn revision(&self) -> Option<u64> {
        lock(&self.status).etcd.as_ref().and_then(|etcd| etcd.revision)
    }

    /// Whether this node is a client at the moment.
    pub(crate) fn is_client(&self) -> bool {
        lock(&self.status).client.is_some()
    }

    /// Shows what runs beside etcd.
    pub(crate) fn set_processes(&self, now: Vec<ProcessNow>) {
        self.change(|status| status.processes = now);
    }

    /// Shows the node of PostgreSQL.
    pub(super) fn set_postgres(&self, board: &Arc<Board>) {
        let _ = self.postgres.set(Arc::clone(board));
    }

    /// How the node of PostgreSQL is, where one is kept.
    pub(super) fn postgres(&self) -> Option<PgStatus> {
        self.postgres.get().map(|board| board.status())
    }

    /// Where measures are registered.
    pub(crate) fn registry(&self) -> Arc<RwLock<Registry>> {
        self.backups.registry()
    }

    /// How long ago a read through this member last succeeded.
    pub(super) fn read_age(&self) -> Option<Duration> {
        lock(&self.read).map(|read| read.elapsed())
    }

    /// A read succeeded, or did not.
    pub(super) fn read(&self, succeeded: bool) {
        *lock(&self.read) = succeeded.then(Instant::now);
    }

    /// Moves on to a phase.
    pub(super) fn phase(&self, phase: Phase, cause: impl Into<String>) {
        self.tell(phase, cause.into(), None);
    }

    /// Moves on to a phase in which nothing is done, and says why.
    pub(super) fn halt(&self, phase: Phase, halt: &Halt) {
        self.tell(phase, halt.why.clone(), Some(halt));
    }

    fn tell(&self, phase: Phase, cause: String, halt: Option<&Halt>) {
        let next = {
            let mut now = lock(&self.phase);
            let next = now.to(phase, cause, now_ms());
            if *now == next {
                return;
            }
            if now.since_ms != next.since_ms {
                *lock(&self.began.0) = Instant::now();
            }
            *now = next.clone();
            next
        };
        self.measures.phase(phase);
        if phase == Phase::Serving {
            self.repeats.works();
        }
        self.change(|status| {
            status.phase = phase.word().to_owned();
            status.cause = next.cause.clone();
            status.since_ms = next.since_ms;
            status.code = halt.map(|halt| halt.code.as_str().to_owned());
            status.way_out = halt.map(|halt| halt.way_out.clone());
            status.lost = halt.and_then(|halt| halt.lost.clone());
        });
        match halt {
            // Between two lines about the same failure, the steps that lead to it again are no news.
            None if self.repeats.is_holding()
                && !matches!(phase, Phase::Serving | Phase::Stopped | Phase::Draining) =>
            {
                debug!(%phase, "{}", next.cause);
            }
            None => info!(%phase, "{}", next.cause),
            Some(halt) => {
                let lost = halt.lost.as_ref().map(|lost| format!("; going on would lose: {lost}")).unwrap_or_default();
                if let Some(more) = self.repeats.halt(halt.code.as_str(), &next.cause) {
                    warn!(%phase, code = %halt.code, "{}{more}{lost}; {}", next.cause, halt.way_out);
                }
            }
        }
        systemd::tell(phase, &next.cause);
    }

    /// The warning with this code, where there is one.
    pub(super) fn warning(&self, code: Code) -> Option<Notice> {
        lock(&self.status).warnings.iter().find(|notice| notice.code == code.as_str()).cloned()
    }

    /// Logs what is new, with its way out; the same cause once a minute.
    pub(super) fn log(&self, notice: &Notice) {
        let Some(more) = self.repeats.pass(&notice.code, &notice.text) else { return };
        match &notice.way_out {
            Some(way_out) => warn!(code = %notice.code, "{}{more}; {way_out}", notice.text),
            None => warn!(code = %notice.code, "{}{more}", notice.text),
        }
    }

    /// Something was done to the data that an operator should know of.
    pub(super) fn done(&self, what: String) {
        warn!("{what}");
        self.change(|status| status.done.push(what));
    }

    /// Sets or clears the warnings with these codes; what is new is logged.
    pub(crate) fn warnings(&self, about: &[Code], now: Vec<Notice>) {
        let is_about = |notice: &Notice| about.iter().any(|code| code.as_str() == notice.code);
        let mut fresh = Vec::new();
        self.change(|status| {
            fresh.extend(now.iter().filter(|notice| !status.warnings.contains(notice)).cloned());
            status.warnings.retain(|notice| !is_about(notice));
            status.warnings.extend(now);
            self.measures.degraded(&status.warnings);
        });
        for notice in fresh {
            self.log(&notice);
        }
    }
}

/// When something began that has lasted for so long: as it was written down, unless the clock was set since.
fn moment(noted_ms: u64, now_ms: u64, lasted: Duration) -> u64 {
    const SET: u64 = 2000;
    let began_ms = now_ms.saturating_sub(u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX));
    if began_ms.abs_diff(noted_ms) > SET { began_ms } else { noted_ms }
}

/// Now, in ms since 1970.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// What is behind a lock is replaced as a whole, so what a panicking thread left is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_does_not_change_how_long_something_lasts() {
        let lasted = Duration::from_secs(60);
        assert_eq!(moment(1_000_000, 1_060_001, lasted), 1_000_000, "as it was noted");
        let (ahead, behind) = (1_060_000 + 3_600_000, 1_060_000 - 600_000);
        assert_eq!(moment(1_000_000, ahead, lasted), ahead - 60_000);
        assert_eq!(moment(1_000_000, behind, lasted), behind - 60_000);
        assert_eq!(moment(1_000_000, 5, lasted), 0);
    }
}
