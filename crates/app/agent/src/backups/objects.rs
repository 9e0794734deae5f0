//! What a follower does with a store, each as one blocking step.

use std::time::Duration;

use jiff::Timestamp;
use quorate_backup::catalog::Catalog;
use quorate_backup::spool::Segment;
use quorate_backup::store::Store;
use quorate_backup::write::{self, About};
use quorate_backup::{clock, prune as removing};
use quorate_etcd_formats::delta::quorate::{Name, Origin, ROOT};
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::{Kind, Layout};
use quorate_plan::retention::{ClockDoubt, OtherClock, Policy, PruneSeen, plan_prune};

use super::peer_clocks::{PeersTime, millis};

/// Puts a segment into the store; says how many bytes it has there.
pub(super) fn put_segment(store: &Store, origin: &Origin, segment: &Segment, layout: Layout) -> Result<u64> {
    let origin = Origin { cluster_id: segment.cluster_id, ..origin.clone() };
    let about = About { origin, epoch: segment.epoch, created_ms: segment.created_ms, ..About::default() };
    Ok(write::segment(store, &about, segment, layout)?.stored.bytes)
}

/// The newest full of an epoch, by its name: a revision that it holds, and when it was made.
pub(super) fn newest_full(store: &Store, epoch: u64) -> Result<Option<(u64, i64)>> {
    let listed = store.list_under(&format!("{ROOT}/full"))?;
    let names = listed.iter().filter_map(|listed| Name::parse(&listed.name));
    Ok(names.filter(|name| name.epoch == epoch).map(|name| (name.last, name.created_ms)).max())
}

/// How the store's own time is observed.
#[derive(Debug, Clone, Copy)]
pub(super) enum StoreTime {
    /// By writing an object for it.
    Probe,
    /// By when the store recorded the full that was just uploaded. Other programs read the store, and must find no names in it that they
    /// do not know.
    OfFull {
        /// Since its upload began, by a clock that nobody sets. A store may record the begin of an upload as its time.
        since: Duration,
    },
}

/// What is known of other clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// How the store's own time is observed.
    pub(super) store: StoreTime,
    /// What the other agents' clocks show; `None`: there are no other agents.
    pub(super) peers: Option<PeersTime>,
}

/// Nothing goes by this clock.
pub fn clock_doubted(doubt: ClockDoubt) -> Fault {
    match doubt {
        ClockDoubt::Ahead(ms) => {
            let what = format!("nothing was removed: the clock of this machine is {} s ahead of others", ms / 1000);
            Fault::new(Code::ClockAhead, what).hint("set the clock right; what is due is removed after that")
        }
        ClockDoubt::Unknown => {
            let what = "nothing was removed: the clock of this machine cannot be compared with others";
            Fault::new(Code::ClockUnknown, what).hint("see which agents answer: `quorate cluster status`")
        }
    }
}

/// What was removed.
pub(super) struct Pruned {
    pub(super) removed: usize,
    /// Of these, the fulls.
    pub(super) fulls: usize,
    pub(super) bytes: u64,
    pub(super) locked: Vec<String>,
}

/// When the store recorded an object, by its own clock.
fn recorded_ms(store: &Store, catalog: &Catalog, name: &str) -> Result<Option<i64>> {
    let index = catalog.objects.iter().position(|object| object.name == name);
    let parts = index.map(|index| catalog.handles[index].parts.as_slice()).unwrap_or_default();
    let mut newest = None;
    for part in parts {
        newest = newest.max(store.head(part)?.map(|seen| seen.modified_ms));
    }
    Ok(newest)
}

/// Removes what the policy gives up. `proven` is the full that was just read back: the newest chain must begin with it.
/// What is of another lineage than these clusters is not even looked at.
pub(super) fn prune(store: &Store, policy: &Policy, proven: &str, clusters: &[u64], times: Times) -> Result<Pruned> {
    let mut catalog = Catalog::read(store)?;
    if let Some(mine) = catalog.lineages(clusters).into_iter().find(|lineage| lineage.has_any(clusters)) {
        catalog.narrow(&mine);
    }
    let finals: Vec<usize> = (0..catalog.handles.len()).filter(|index| catalog.handles[*index].is_final).collect();
    let store_clock = match times.store {
        StoreTime::Probe => OtherClock::At(clock::observe_time(store)?),
        StoreTime::OfFull { since } => recorded_ms(store, &catalog, proven)?
            .map_or(OtherClock::Unknown, |recorded| OtherClock::At(recorded.saturating_add(millis(since)))),
    };
    // What passed since the clocks were read is measured by one that nobody sets: this one may have been set meanwhile.
    let others: Vec<OtherClock> = [store_clock].into_iter().chain(times.peers.map(|peers| peers.now())).collect();
    let now_ms = Timestamp::now().as_millisecond();
    let seen =
        PruneSeen { objects: &catalog.objects, finals: &finals, epochs: &catalog.epochs, now_ms, others: &others };
    let plan = plan_prune(&seen, policy);
    if let Some(doubt) = plan.clock_doubt {
        return Err(clock_doubted(doubt));
    }
    let base = plan.newest.as_ref().map(|chain| catalog.objects[chain.base].name.as_str());
    if base != Some(proven) {
        let what = "nothing was removed: the newest chain does not begin with the full that was just taken";
        return Err(Fault::new(Code::PruneUnproven, what).hint("see `quorate backup list` for what is newer"));
    }
    let done = removing::remove(store, &catalog, &plan.removals, |_| {})?;
    // Nobody misses left-overs; the next run sees them again.
    let _ = removing::remove_staged(store);
    let full = |name: &String| catalog.objects.iter().any(|object| object.name == *name && object.kind == Kind::Full);
    let fulls = done.objects.iter().filter(|name| full(name)).count();
    let locked = done.locked.into_iter().map(|(name, why)| format!("`{name}` stays: {why}")).collect();
    Ok(Pruned { removed: done.objects.len(), fulls, bytes: done.bytes, locked })
}
