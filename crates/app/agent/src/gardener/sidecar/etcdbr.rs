//! What `etcdbrctl server` tells Prometheus, by its names and labels, beside our own numbers.
//!
//! **Rule:** every series with a label of a known set is there from the start, at 0. What the original labels with the text of
//! an error carries the code of our fault, of which there are few. Durations have buckets for minutes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use quorate_faults::Code;

use crate::backups::metrics::{Kind, Metrics, News, Position};

/// The original's end at 10 s, where restores begin.
const SECONDS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0];

const FULL: &str = "Full";
const DELTA: &str = "Incr";
const CHUNK: &str = "Chunk";

type Labels = Vec<(&'static str, String)>;
type Durations = Family<Labels, Histogram>;

/// What was done, and how long it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Validate,
    RestoreFromStore,
    ReplaceMember,
    AddLearner,
    RemoveMember,
    Promote,
}

/// All of them. Clones count together.
#[derive(Debug, Clone)]
pub(super) struct Etcdbr {
    removed: Family<Labels, Counter>,
    snapshots: Durations,
    validations: Durations,
    restorations: Durations,
    defragmentations: Durations,
    added: Durations,
    members_removed: Durations,
    promoted: Durations,
    learned: Family<Labels, Counter>,
    failures: Family<Labels, Gauge>,
    cluster_size: Gauge,
    is_learner: Gauge,
}

fn durations() -> Durations {
    Family::new_with_constructor(|| Histogram::new(SECONDS))
}

fn succeeded(yes: bool) -> (&'static str, String) {
    ("succeeded", yes.to_string())
}

impl Etcdbr {
    /// Joins our own numbers on their page.
    pub(super) fn new(metrics: &Metrics) -> Etcdbr {
        let all = Etcdbr {
            removed: Family::default(),
            snapshots: durations(),
            validations: durations(),
            restorations: durations(),
            defragmentations: durations(),
            added: durations(),
            members_removed: durations(),
            promoted: durations(),
            learned: Family::default(),
            failures: Family::default(),
            cluster_size: Gauge::default(),
            is_learner: Gauge::default(),
        };
        all.begin();
        let registry = metrics.registry();
        let mut registry = registry.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.enlist(registry.sub_registry_with_prefix("etcdbr"));
        registry.register_collector(Box::new(Moment(Arc::clone(&metrics.position))));
        drop(registry);
        let told = all.clone();
        metrics.listen(move |news| told.hear(news));
        all
    }

    /// Every known series, at 0.
    fn begin(&self) {
        for yes in [true, false] {
            for kind in [FULL, DELTA, CHUNK] {
                let _ = self.removed.get_or_create(&vec![("kind", kind.to_owned()), succeeded(yes)]);
            }
            for kind in [FULL, DELTA] {
                let _ = self.snapshots.get_or_create(&vec![("kind", kind.to_owned()), succeeded(yes)]);
            }
            for restore in ["single_node", "single_member"] {
                let _ = self.restorations.get_or_create(&vec![("restore", restore.to_owned()), succeeded(yes)]);
            }
            for family in [&self.validations, &self.added, &self.members_removed, &self.promoted] {
                let _ = family.get_or_create(&vec![succeeded(yes)]);
            }
            let _ = self.learned.get_or_create(&vec![succeeded(yes)]);
        }
    }

    fn enlist(&self, to: &mut Registry) {
        // Counters get `_total` behind their names.
        to.register("snapshot_gc", "Backups that were removed, or were to be", self.removed.clone());
        to.register("is_learner_count", "Times that this member was added as a learner", self.learned.clone());
        to.register("snapshotter_failure", "Failures of backups, by the code of the fault", self.failures.clone());
        to.register("cluster_size", "Members that the configuration declares", self.cluster_size.clone());
        to.register("is_learner", "Whether this member is a learner", self.is_learner.clone());
        let mut took = |name: &str, help: &str, family: &Durations| {
            to.register(format!("{name}_duration_seconds"), help.to_owned(), family.clone());
        };
        took("snapshot", "Time that a backup took", &self.snapshots);
        took("validation", "Time that the validation of the data took", &self.validations);
        took("restoration", "Time that a restore or the replacement of a member took", &self.restorations);
        took("defragmentation", "Time that a defragmentation took", &self.defragmentations);
        took("add_learner", "Time that adding this member took", &self.added);
        took("member_remove", "Time that removing this member took", &self.members_removed);
        took("member_promote", "Time that promoting this member took", &self.promoted);
    }

    /// Something was done or tried here.
    pub(super) fn did(&self, act: Act, took: Duration, yes: bool) {
        let (family, mut labels) = match act {
            Act::Validate => (&self.validations, vec![]),
            Act::RestoreFromStore => (&self.restorations, vec![("restore", "single_node".to_owned())]),
            Act::ReplaceMember => (&self.restorations, vec![("restore", "single_member".to_owned())]),
            Act::AddLearner => (&self.added, vec![]),
            Act::RemoveMember => (&self.members_removed, vec![]),
            Act::Promote => (&self.promoted, vec![]),
        };
        labels.push(succeeded(yes));
        family.get_or_create(&labels).observe(took.as_secs_f64());
        if act == Act::AddLearner {
            self.learned.get_or_create(&vec![succeeded(yes)]).inc();
        }
    }

    /// A member was defragmented, or not.
    pub(super) fn defragmented(&self, endpoint: &str, took: Duration, yes: bool) {
        let labels = vec![succeeded(yes), ("endpoint", endpoint.to_owned())];
        self.defragmentations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Backups ended with a fault.
    pub(super) fn failed(&self, code: Code) {
        self.failures.get_or_create(&vec![("error", code.to_string())]).inc();
    }

    /// So many members are declared.
    pub(super) fn set_cluster_size(&self, members: usize) {
        self.cluster_size.set(i64::try_from(members).unwrap_or(i64::MAX));
    }

    /// What this member is.
    pub(super) fn set_learner(&self, learner: bool) {
        self.is_learner.set(i64::from(learner));
    }

    fn hear(&self, news: &News) {
        match news {
            News::Tried { kind, took, succeeded: yes } => {
                let kind = match kind {
                    Kind::full | Kind::compaction => FULL,
                    Kind::delta => DELTA,
                    Kind::prune => return,
                };
                let labels = vec![("kind", kind.to_owned()), succeeded(*yes)];
                self.snapshots.get_or_create(&labels).observe(took.as_secs_f64());
            }
            News::Removed { fulls, deltas, kept } => {
                for (kind, yes, count) in [(FULL, true, fulls), (DELTA, true, deltas), (FULL, false, kept)] {
                    let labels = vec![("kind", kind.to_owned()), succeeded(yes)];
                    self.removed.get_or_create(&labels).inc_by(u64::try_from(*count).unwrap_or(u64::MAX));
                }
            }
        }
    }
}

/// What is computed when it is asked for.
#[derive(Debug)]
struct Moment(Arc<Position>);

impl Collector for Moment {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let here = &self.0;
        let (full, full_ms) = (here.full_revision.load(Ordering::Relaxed), here.full_ms.load(Ordering::Relaxed));
        let (delta, delta_ms) = (here.delta_revision.load(Ordering::Relaxed), here.delta_ms.load(Ordering::Relaxed));
        let now = here.etcd.load(Ordering::Relaxed);
        let by_kind: [(&str, &str, [u64; 2]); 3] = [
            ("etcdbr_snapshot_latest_revision", "Revision of the newest backup", [full, delta]),
            ("etcdbr_snapshot_latest_timestamp", "When the newest backup was made", [full_ms, delta_ms].map(seconds)),
            (
                "etcdbr_snapshot_required",
                "Whether there are writes that the newest backup does not hold",
                [u64::from(now > full), u64::from(now > full.max(delta))],
            ),
        ];
        for (name, help, values) in by_kind {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (kind, value) in [FULL, DELTA].into_iter().zip(values) {
                ConstGauge::new(value as f64).encode(metric.encode_family(&[("kind", kind)])?)?;
            }
        }
        let (received, sent) = network().unwrap_or_default();
        let plain = [
            (
                "etcdbr_snapstore_latest_deltas_total",
                "Deltas behind the newest full",
                here.deltas.load(Ordering::Relaxed),
            ),
            ("etcdbr_snapstore_latest_deltas_revisions_total", "Revisions in them", delta.saturating_sub(full)),
            ("etcdbr_network_received_bytes", "Bytes that arrived in this network namespace", received),
            ("etcdbr_network_transmitted_bytes", "Bytes that left this network namespace", sent),
        ];
        for (name, help, value) in plain {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value as f64).encode(metric)?;
        }
        Ok(())
    }
}

fn seconds(ms: i64) -> u64 {
    u64::try_from(ms / 1000).unwrap_or(0)
}

/// Bytes that came and went over all interfaces but loopback.
fn network() -> Option<(u64, u64)> {
    std::fs::read_to_string("/proc/self/net/dev").ok().map(|text| sums(&text))
}

fn sums(table: &str) -> (u64, u64) {
    let (mut received, mut sent) = (0u64, 0u64);
    for (name, numbers) in table.lines().filter_map(|line| line.split_once(':')) {
        let numbers: Vec<u64> = numbers.split_whitespace().map(|number| number.parse().unwrap_or(0)).collect();
        if name.trim() != "lo" {
            received = received.saturating_add(numbers.first().copied().unwrap_or(0));
            sent = sent.saturating_add(numbers.get(8).copied().unwrap_or(0));
        }
    }
    (received, sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_original_is_there_from_the_start() {
        let metrics = Metrics::new();
        let etcdbr = Etcdbr::new(&metrics);
        etcdbr.set_cluster_size(3);
        let text = metrics.text();
        for line in [
            "etcdbr_snapshot_gc_total{kind=\"Chunk\",succeeded=\"false\"} 0",
            "etcdbr_snapshot_latest_revision{kind=\"Full\"} 0",
            "etcdbr_snapshot_latest_timestamp{kind=\"Incr\"} 0",
            "etcdbr_snapshot_required{kind=\"Full\"} 0",
            "etcdbr_snapshot_duration_seconds_count{kind=\"Incr\",succeeded=\"true\"} 0",
            "etcdbr_validation_duration_seconds_count{succeeded=\"true\"} 0",
            "etcdbr_restoration_duration_seconds_count{restore=\"single_member\",succeeded=\"false\"} 0",
            "etcdbr_snapstore_latest_deltas_total 0",
            "etcdbr_snapstore_latest_deltas_revisions_total 0",
            "etcdbr_cluster_size 3",
            "etcdbr_is_learner 0",
            "etcdbr_is_learner_count_total{succeeded=\"true\"} 0",
            "etcdbr_add_learner_duration_seconds_count{succeeded=\"true\"} 0",
            "etcdbr_member_remove_duration_seconds_count{succeeded=\"true\"} 0",
            "etcdbr_member_promote_duration_seconds_count{succeeded=\"false\"} 0",
        ] {
            let there = text.lines().any(|known| known == line || known == format!("{line}.0"));
            assert!(there, "no `{line}` in\n{text}");
        }
        assert!(text.contains("etcdbr_network_received_bytes ") && text.contains("etcdbr_network_transmitted_bytes "));
    }

    #[test]
    fn what_happens_to_backups_is_counted_under_both_names() {
        let metrics = Metrics::new();
        let etcdbr = Etcdbr::new(&metrics);
        metrics.uploaded(Kind::delta, 10, Duration::from_secs(45));
        metrics.failed(Kind::full, Duration::from_secs(1));
        metrics.removed(2, 5, 1);
        etcdbr.failed(Code::StoreDenied);
        etcdbr.defragmented("http://127.0.0.1:2379", Duration::from_secs(1), true);
        etcdbr.did(Act::AddLearner, Duration::from_secs(1), true);
        let text = metrics.text();
        for line in [
            "etcdbr_snapshot_duration_seconds_bucket{le=\"60.0\",kind=\"Incr\",succeeded=\"true\"} 1",
            "etcdbr_snapshot_duration_seconds_count{kind=\"Full\",succeeded=\"false\"} 1",
            "etcdbr_snapshot_gc_total{kind=\"Full\",succeeded=\"true\"} 2",
            "etcdbr_snapshot_gc_total{kind=\"Incr\",succeeded=\"true\"} 5",
            "etcdbr_snapshotter_failure{error=\"Q0820\"} 1",
            "etcdbr_is_learner_count_total{succeeded=\"true\"} 1",
            "quorate_backup_uploads_total{kind=\"delta\"} 1",
        ] {
            assert!(text.lines().any(|known| known == line), "no `{line}` in\n{text}");
        }
        assert!(text.contains("etcdbr_defragmentation_duration_seconds_count{succeeded=\"true\",endpoint="), "{text}");
    }

    #[test]
    fn interfaces_are_summed_without_loopback() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets\n    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n\
                     eth0: 100 1 0 0 0 0 0 0 50 1 0 0 0 0 0 0\neth1:1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\nbroken:\n";
        assert_eq!(sums(table), (101, 52));
    }
}
