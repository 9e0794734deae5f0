//! What Prometheus is told about the member: phases, starts, checks, restores, sizes.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use quorate_plan::phase::Phase;

use super::status::{DEGRADED, Notice};

/// Buckets of durations: a quick look takes milliseconds, a restore minutes.
const SECONDS: [f64; 14] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPhase {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfResult {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCheck {
    mode: &'static str,
    verdict: &'static str,
}

/// All of them. Clones count together.
#[derive(Debug, Clone)]
pub(super) struct Measures {
    phases: Family<OfPhase, Gauge>,
    degraded: Family<OfReason, Gauge>,
    entered: Family<OfPhase, Counter>,
    starts: Counter,
    ends: Family<OfResult, Counter>,
    ready_seconds: Histogram,
    checks: Family<OfCheck, Counter>,
    check_seconds: Histogram,
    restores: Family<OfResult, Counter>,
    restore_seconds: Histogram,
    defrags: Family<OfResult, Counter>,
    db: Gauge,
    db_used: Gauge,
    quota: Gauge,
}

impl Measures {
    pub(super) fn new(registry: &Arc<RwLock<Registry>>) -> Measures {
        let measures = Measures {
            phases: Family::default(),
            degraded: Family::default(),
            entered: Family::default(),
            starts: Counter::default(),
            ends: Family::default(),
            ready_seconds: Histogram::new(SECONDS),
            checks: Family::default(),
            check_seconds: Histogram::new(SECONDS),
            restores: Family::default(),
            restore_seconds: Histogram::new(SECONDS),
            defrags: Family::default(),
            db: Gauge::default(),
            db_used: Gauge::default(),
            quota: Gauge::default(),
        };
        let mut registry = registry.write().unwrap_or_else(PoisonError::into_inner);
        registry.register("quorate_phase", "1 for what the agent is doing, 0 for the rest", measures.phases.clone());
        registry.register(
            "quorate_degraded",
            "1 where the cluster is degraded for this reason, as this node sees it, else 0",
            measures.degraded.clone(),
        );
        registry.register("quorate_phase_entered", "Times that a phase began", measures.entered.clone());
        registry.register("quorate_etcd_starts", "Times that etcd was started", measures.starts.clone());
        registry.register("quorate_etcd_ends", "Times that etcd ended, and how", measures.ends.clone());
        registry.register("quorate_validations", "Checks of the data before a start", measures.checks.clone());
        registry.register("quorate_restores", "Restores from the store", measures.restores.clone());
        registry.register("quorate_defragmentations", "Defragmentations", measures.defrags.clone());
        let mut with_unit = |name, help, unit, metric: Histogram| registry.register_with_unit(name, help, unit, metric);
        with_unit(
            "quorate_ready",
            "Time from the start of etcd to its first read",
            Unit::Seconds,
            measures.ready_seconds.clone(),
        );
        with_unit("quorate_validation", "Time that a check took", Unit::Seconds, measures.check_seconds.clone());
        with_unit("quorate_restore", "Time that a restore took", Unit::Seconds, measures.restore_seconds.clone());
        registry.register_with_unit("quorate_db", "Size of the database", Unit::Bytes, measures.db.clone());
        registry.register_with_unit(
            "quorate_db_used",
            "Size of its pages in use",
            Unit::Bytes,
            measures.db_used.clone(),
        );
        registry.register_with_unit("quorate_db_quota", "Size that it may have", Unit::Bytes, measures.quota.clone());
        drop(registry);
        for phase in Phase::ALL {
            let _ = (
                measures.phases.get_or_create(&OfPhase { phase: phase.word() }),
                measures.entered.get_or_create(&OfPhase { phase: phase.word() }),
            );
        }
        measures.degraded(&[]);
        measures
    }

    /// Every reason has a number, so that an alert can tell 0 from silence.
    pub(super) fn degraded(&self, warnings: &[Notice]) {
        for (code, reason) in DEGRADED {
            let there = warnings.iter().any(|notice| notice.code == code.as_str());
            self.degraded.get_or_create(&OfReason { reason }).set(i64::from(there));
        }
    }

    pub(super) fn phase(&self, now: Phase) {
        for phase in Phase::ALL {
            self.phases.get_or_create(&OfPhase { phase: phase.word() }).set(i64::from(phase == now));
        }
        self.entered.get_or_create(&OfPhase { phase: now.word() }).inc();
    }

    pub(super) fn started(&self) {
        self.starts.inc();
    }

    pub(super) fn ended(&self, result: &'static str) {
        self.ends.get_or_create(&OfResult { result }).inc();
    }

    pub(super) fn ready(&self, after: Duration) {
        self.ready_seconds.observe(after.as_secs_f64());
    }

    pub(super) fn checked(&self, mode: &'static str, verdict: &'static str, took: Duration) {
        self.checks.get_or_create(&OfCheck { mode, verdict }).inc();
        self.check_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn restored(&self, result: &'static str, took: Duration) {
        self.restores.get_or_create(&OfResult { result }).inc();
        self.restore_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn defragmented(&self, result: &'static str) {
        self.defrags.get_or_create(&OfResult { result }).inc();
    }

    pub(super) fn sizes(&self, db: u64, used: u64, quota: u64) {
        let set = |gauge: &Gauge, bytes: u64| gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        set(&self.db, db);
        set(&self.db_used, used);
        set(&self.quota, quota);
    }
}
