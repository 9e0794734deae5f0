//! What Prometheus is told about backups: ages, lags, sizes, failures.
//!
//! **Rule:** ages and lags are computed when they are asked for, so that a program that hangs shows a growing age and not
//! the last one it thought of.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use quorate_faults::{Code, Fault};

use super::clock_steps::ClockSteps;

/// Buckets of durations: a delta takes milliseconds, a large full minutes.
const SECONDS: [f64; 14] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0];

/// What was put into the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "labels are lower case, and are written as they stand here")]
pub enum Kind {
    /// A full backup.
    full,
    /// A delta.
    delta,
    /// A full made of a chain.
    compaction,
    /// Removal of what need not be kept.
    prune,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: Kind,
}

/// What happened to backups, for those who count it under other names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Something was done, or failed and is repeated.
    Tried {
        /// What it was.
        kind: Kind,
        /// How long it took.
        took: Duration,
        /// Whether it went well.
        succeeded: bool,
    },
    /// Objects were removed, and some were kept by the store.
    Removed {
        /// Fulls that are gone.
        fulls: usize,
        /// Deltas that are gone.
        deltas: usize,
        /// What the store protects.
        kept: usize,
    },
}

/// Whoever wants the news.
#[derive(Clone, Default)]
struct Listener(Arc<OnceLock<Box<Hears>>>);

type Hears = dyn Fn(&News) + Send + Sync;

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listener")
    }
}

/// Nothing was removed because the clock is ahead of others.
pub const CLOCK_AHEAD: u64 = 1;
/// Nothing was removed because no other clock could be read.
pub const CLOCK_UNKNOWN: u64 = 2;

/// Where a follower stands; each number is set by whoever knows it. 0 stands for "not yet".
#[derive(Debug, Default)]
pub struct Position {
    /// The cluster's revision, as it was last heard.
    pub etcd: AtomicU64,
    /// When that was heard, in milliseconds since 1970.
    pub heard_ms: AtomicI64,
    /// Everything up to here is in the spool or in the store.
    pub recorded: AtomicU64,
    /// Everything up to here can be restored from the store.
    pub stored: AtomicU64,
    /// Since when no full leads to what is recorded, so that its deltas cannot be restored yet; 0: one does.
    pub full_missing_since_ms: AtomicI64,
    /// When the oldest write that is not in the store was recorded.
    pub waiting_since_ms: AtomicI64,
    /// The newest full.
    pub full_revision: AtomicU64,
    /// When it was made.
    pub full_ms: AtomicI64,
    /// The newest delta.
    pub delta_revision: AtomicU64,
    /// When it was made.
    pub delta_ms: AtomicI64,
    /// Deltas behind the newest full.
    pub deltas: AtomicU64,
    /// Bytes in the spool.
    pub spool_bytes: AtomicU64,
    /// Bytes that it may have.
    pub spool_max_bytes: AtomicU64,
    /// When a restore of the store was last tried.
    pub drill_ms: AtomicI64,
    /// The revision that it restored.
    pub drill_revision: AtomicU64,
    /// Whether that went well.
    pub drill_good: AtomicU64,
    /// Why nothing was removed the last time: [`CLOCK_AHEAD`], [`CLOCK_UNKNOWN`], or 0: for no reason of the clock.
    pub clock_doubt: AtomicU64,
    /// 1: the take-over that the cluster file orders was carried out before.
    pub take_over_done: AtomicU64,
    /// Steps of this machine's clock.
    clock: Mutex<ClockSteps>,
}

impl Position {
    /// Writes that the cluster has and the store does not.
    pub fn lag_revisions(&self) -> u64 {
        get(&self.etcd).saturating_sub(get(&self.stored))
    }

    /// How much history would be lost if this machine and the cluster were gone now, as far as can be known: since the
    /// oldest write that is not in the store, or since the last answer of the cluster.
    pub fn lag(&self) -> Duration {
        self.lag_at(Timestamp::now().as_millisecond(), Instant::now())
    }

    fn lag_at(&self, now_ms: i64, now: Instant) -> Duration {
        // A cluster is polled every few seconds; what is older than this is silence.
        const SILENCE: Duration = Duration::from_secs(15);
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.observe(now_ms, now);
        let age = |ms: &AtomicI64| (at(ms) > 0).then(|| clock.age(at(ms), now_ms));
        let silent = age(&self.heard_ms).filter(|age| *age > SILENCE);
        let waiting = [&self.waiting_since_ms, &self.full_missing_since_ms].into_iter().filter_map(age);
        waiting.chain(silent).max().unwrap_or_default()
    }
}

fn get(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn at(moment: &AtomicI64) -> i64 {
    moment.load(Ordering::Relaxed)
}

/// All metrics of backups. Cheap to clone; clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<RwLock<Registry>>,
    /// Where the follower stands.
    pub position: Arc<Position>,
    uploads: Family<OfKind, Counter>,
    failures: Family<OfKind, Counter>,
    bytes: Family<OfKind, Counter>,
    seconds: Family<OfKind, Histogram>,
    events: Counter,
    reconnects: Counter,
    leases_gone: Counter,
    connected: Gauge,
    paused: Gauge,
    listener: Listener,
    trouble: Arc<Mutex<Option<Trouble>>>,
}

/// Why nothing reaches the store.
#[derive(Debug, Clone)]
pub struct Trouble {
    /// Since when.
    pub since: Instant,
    /// Its page.
    pub code: Code,
    /// In a line.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// With everything at zero.
    pub fn new() -> Metrics {
        let mut registry = Registry::default();
        let position = Arc::new(Position::default());
        registry.register_collector(Box::new(Ages(Arc::clone(&position))));
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("quorate_build", "The program", build);
        let registry_of = Arc::new(RwLock::new(registry));
        let metrics = Metrics {
            registry: registry_of,
            position,
            uploads: Family::default(),
            failures: Family::default(),
            bytes: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            events: Counter::default(),
            reconnects: Counter::default(),
            leases_gone: Counter::default(),
            connected: Gauge::default(),
            paused: Gauge::default(),
            listener: Listener::default(),
            trouble: Arc::default(),
        };
        metrics.enlist();
        for kind in [Kind::full, Kind::delta] {
            // A rate over a counter that is not there yet misses its first step.
            let _ = (metrics.uploads.get_or_create(&OfKind { kind }), metrics.failures.get_or_create(&OfKind { kind }));
        }
        metrics
    }

    fn enlist(&self) {
        let mut registry = self.registry.write().unwrap_or_else(PoisonError::into_inner);
        registry.register("quorate_backup_uploads", "Objects put into the store", self.uploads.clone());
        registry.register("quorate_backup_failures", "Attempts that failed, and are repeated", self.failures.clone());
        registry.register_with_unit(
            "quorate_backup_uploaded",
            "Size of objects as stored",
            Unit::Bytes,
            self.bytes.clone(),
        );
        registry.register_with_unit(
            "quorate_backup_duration",
            "Time from the start of an upload to its end",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register("quorate_backup_events", "Writes recorded in the spool", self.events.clone());
        registry.register("quorate_backup_reconnects", "Watches opened again", self.reconnects.clone());
        registry.register(
            "quorate_backup_leases_gone",
            "Leases that ended before their time to live could be asked",
            self.leases_gone.clone(),
        );
        registry.register("quorate_backup_connected", "Whether a watch on etcd is open", self.connected.clone());
        registry.register(
            "quorate_backup_paused",
            "Whether recording waits for room in the spool",
            self.paused.clone(),
        );
    }

    /// The registry, for those who have more to tell.
    pub fn registry(&self) -> Arc<RwLock<Registry>> {
        Arc::clone(&self.registry)
    }

    /// The text that Prometheus reads.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let registry = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &registry);
        out
    }

    /// The page `/metrics`.
    pub fn router(&self) -> axum::Router {
        const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let metrics = self.clone();
        let page = move || async move { ([(axum::http::header::CONTENT_TYPE, OPEN_METRICS)], metrics.text()) };
        axum::Router::new().route("/metrics", axum::routing::get(page))
    }

    /// Something arrived in the store.
    pub fn uploaded(&self, kind: Kind, bytes: u64, took: Duration) {
        if matches!(kind, Kind::full | Kind::delta) {
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let label = OfKind { kind };
        self.uploads.get_or_create(&label).inc();
        self.bytes.get_or_create(&label).inc_by(bytes);
        self.seconds.get_or_create(&label).observe(took.as_secs_f64());
        self.tell(News::Tried { kind, took, succeeded: true });
    }

    /// Something failed after this long, and will be tried again.
    pub fn failed(&self, kind: Kind, took: Duration) {
        self.failures.get_or_create(&OfKind { kind }).inc();
        self.tell(News::Tried { kind, took, succeeded: false });
    }

    /// A full or a delta does not reach the store for this reason.
    pub fn hindered(&self, fault: &Fault) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let since = trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
        let (text, hint) = (crate::turn::in_words(fault), fault.hint_text().map(str::to_owned));
        *trouble = Some(Trouble { since, code: fault.code(), text, hint });
    }

    /// Why nothing reaches the store at the moment.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Objects left the store; so many were to, and are kept by it.
    pub fn removed(&self, fulls: usize, deltas: usize, kept: usize) {
        self.tell(News::Removed { fulls, deltas, kept });
    }

    /// Lets somebody hear all news from now on. There is one listener.
    pub fn listen(&self, listener: impl Fn(&News) + Send + Sync + 'static) {
        let _ = self.listener.0.set(Box::new(listener));
    }

    fn tell(&self, news: News) {
        if let Some(listener) = self.listener.0.get() {
            listener(&news);
        }
    }

    /// Writes went into the spool.
    pub fn recorded(&self, events: u64) {
        self.events.inc_by(events);
    }

    /// A watch is open, or no longer.
    pub fn connected(&self, open: bool) {
        self.connected.set(i64::from(open));
    }

    /// A watch was opened after another one ended.
    pub fn reconnected(&self) {
        self.reconnects.inc();
    }

    /// Recording waits for room, or no longer.
    pub fn paused(&self, paused: bool) {
        self.paused.set(i64::from(paused));
    }

    /// A lease was gone before it could be asked about.
    pub fn lease_gone(&self) {
        self.leases_gone.inc();
    }
}

/// The numbers that depend on the moment they are asked for.
#[derive(Debug)]
struct Ages(Arc<Position>);

impl Collector for Ages {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let here = &self.0;
        let now_ms = Timestamp::now().as_millisecond();
        let mut gauge = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge_type())?)
        };
        let plain = [
            ("etcd_revision", "Revision of the cluster, as last heard", get(&here.etcd)),
            ("recorded_revision", "Newest revision in the spool or the store", get(&here.recorded)),
            ("stored_revision", "Newest revision that can be restored from the store", get(&here.stored)),
            (
                "lag_revisions",
                "Revisions that the cluster has and that cannot be restored from the store",
                here.lag_revisions(),
            ),
            ("spool_bytes", "Size of the spool", get(&here.spool_bytes)),
            ("spool_max_bytes", "Size that the spool may have", get(&here.spool_max_bytes)),
        ];
        for (name, help, value) in plain {
            gauge(&format!("quorate_backup_{name}"), help, value as f64)?;
        }
        let lag = here.lag().as_secs_f64();
        gauge("quorate_backup_lag_seconds", "History that would be lost if all but the store were lost now", lag)?;
        let moments = [
            ("full", "full backup", at(&here.full_ms), get(&here.full_revision)),
            ("delta", "delta", at(&here.delta_ms), get(&here.delta_revision)),
            ("drill", "trial of a restore", at(&here.drill_ms), get(&here.drill_revision)),
        ];
        // Absent until there is one: an age of the whole epoch, or of nothing, would be a lie.
        for (kind, what, ms, revision) in moments.into_iter().filter(|(_, _, ms, _)| *ms > 0) {
            let name = |what: &str| format!("quorate_backup_last_{kind}_{what}");
            gauge(&name("timestamp_seconds"), &format!("When the last {what} was made"), ms as f64 / 1000.0)?;
            gauge(&name("age_seconds"), &format!("Age of the last {what}"), (now_ms - ms).max(0) as f64 / 1000.0)?;
            gauge(&name("revision"), &format!("Revision of the last {what}"), revision as f64)?;
        }
        if at(&here.drill_ms) > 0 {
            gauge(
                "quorate_backup_last_drill_good",
                "Whether the last trial of a restore went well",
                get(&here.drill_good) as f64,
            )?;
        }
        Ok(())
    }
}

fn gauge_type() -> prometheus_client::metrics::MetricType {
    prometheus_client::metrics::MetricType::Gauge
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_the_older_of_waiting_and_silence() {
        let (here, now) = (Position::default(), Instant::now());
        let lag = |here: &Position| here.lag_at(100_000, now);
        assert_eq!(lag(&here), Duration::ZERO);
        here.heard_ms.store(99_000, Ordering::Relaxed);
        assert_eq!(lag(&here), Duration::ZERO, "heard a second ago, nothing waits");
        here.waiting_since_ms.store(98_000, Ordering::Relaxed);
        assert_eq!(lag(&here), Duration::from_secs(2));
        here.heard_ms.store(70_000, Ordering::Relaxed);
        assert_eq!(lag(&here), Duration::from_secs(30), "silence counts from when it began");
    }

    #[test]
    fn metrics_are_text_with_units_and_without_ages_of_nothing() {
        let metrics = Metrics::new();
        metrics.uploaded(Kind::delta, 4711, Duration::from_millis(20));
        let text = metrics.text();
        assert!(text.contains("quorate_backup_uploads_total{kind=\"delta\"} 1"), "{text}");
        assert!(text.contains("quorate_backup_uploaded_bytes_total{kind=\"delta\"} 4711"), "{text}");
        assert!(text.contains("quorate_backup_failures_total{kind=\"full\"} 0"), "{text}");
        assert!(!text.contains("last_full"), "{text}");
        metrics.position.full_ms.store(1_794_785_870_743, Ordering::Relaxed);
        assert!(metrics.text().contains("quorate_backup_last_full_age_seconds"), "{}", metrics.text());
        assert!(text.ends_with("# EOF\n"));
    }
}
