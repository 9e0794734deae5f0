//! What all keepers know of each other, and what is shown of it: one row for each process.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use quorate_plan::processes::ETCD;
use quorate_plan::spec::ProcessSpec;
use tokio::sync::watch;

use crate::turn::{ProcessNow, Shared, now_ms};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    process: String,
}

/// The rows.
#[derive(Debug)]
pub(super) struct Board {
    rows: watch::Sender<BTreeMap<String, ProcessNow>>,
    shared: Arc<Shared>,
    running: Family<Of, Gauge>,
    ready: Family<Of, Gauge>,
    starts: Family<Of, Counter>,
    ends: Family<Of, Counter>,
}

impl Board {
    pub(super) fn new(declared: &[ProcessSpec], shared: &Arc<Shared>) -> Board {
        let row = |spec: &ProcessSpec| {
            let now = ProcessNow {
                name: spec.name.clone(),
                state: "starting".to_owned(),
                since_ms: now_ms(),
                ..ProcessNow::default()
            };
            (spec.name.clone(), now)
        };
        let board = Board {
            rows: watch::Sender::new(declared.iter().map(row).collect()),
            shared: Arc::clone(shared),
            running: Family::default(),
            ready: Family::default(),
            starts: Family::default(),
            ends: Family::default(),
        };
        let registry = shared.registry();
        let mut registry = registry.write().unwrap_or_else(PoisonError::into_inner);
        registry.register("quorate_process_running", "1 for a process that runs", board.running.clone());
        registry.register("quorate_process_ready", "1 for a process that is ready", board.ready.clone());
        registry.register("quorate_process_starts", "Times that a process was started", board.starts.clone());
        registry.register("quorate_process_ends", "Times that a process ended unasked", board.ends.clone());
        drop(registry);
        for spec in declared {
            board.change(&spec.name, |_| {});
        }
        board
    }

    /// Changes a row, and shows it.
    pub(super) fn change(&self, name: &str, with: impl FnOnce(&mut ProcessNow)) {
        self.rows.send_modify(|rows| {
            if let Some(row) = rows.get_mut(name) {
                let before = row.state.clone();
                with(row);
                row.ready = row.state == "ready";
                if row.state != before {
                    row.since_ms = now_ms();
                }
                let of = Of { process: name.to_owned() };
                self.running.get_or_create(&of).set(i64::from(row.pid.is_some()));
                self.ready.get_or_create(&of).set(i64::from(row.ready));
            }
        });
        self.shared.set_processes(self.rows.borrow().values().cloned().collect());
    }

    pub(super) fn started(&self, name: &str) {
        self.starts.get_or_create(&Of { process: name.to_owned() }).inc();
    }

    pub(super) fn ended(&self, name: &str) {
        self.ends.get_or_create(&Of { process: name.to_owned() }).inc();
    }

    /// What is ready, by name.
    pub(super) fn ready(&self) -> BTreeMap<String, bool> {
        let rows = self.rows.borrow();
        let all = rows.iter().map(|(name, row)| (name.clone(), row.ready));
        all.chain([(ETCD.to_owned(), self.shared.readiness().1)]).collect()
    }

    /// Becomes changed when a row does.
    pub(super) fn subscribe(&self) -> watch::Receiver<BTreeMap<String, ProcessNow>> {
        self.rows.subscribe()
    }
}
