//! How long a restore would take, and which writes would be missing, from what is known without reading anything.
//!
//! **Rule:** an estimate comes with the numbers that it was made from. What is not known is assumed, and said.

use std::time::Duration;

use serde::Serialize;

use crate::chain::{Chain, Layout, Object};

/// How fast things go. The defaults are from `bench/results.md` on two cores, but for the network, which was not measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Bytes that come out of the store in a second.
    pub store_bytes_per_s: f64,
    /// Bytes of database that are merged, checked and written in a second.
    pub database_bytes_per_s: f64,
    /// Writes of our own deltas that are replayed in a second.
    pub events_per_s: f64,
    /// The same of Gardener's deltas.
    pub gardener_events_per_s: f64,
}

impl Rates {
    /// `data restore` of a 1 GiB snapshot took 0.91 s.
    const DATABASE: f64 = 1024.0 * 1024.0 * 1024.0 / 0.91;
    /// `backup restore` of 1,000,000 events in our layout.
    const EVENTS: f64 = 1_606_868.0;
    /// The same in Gardener's layout.
    const GARDENER_EVENTS: f64 = 733_171.0;

    /// A store on this machine: as fast as a file is copied (`cp` and fsync of 1 GiB took 1.02 s).
    pub fn local() -> Rates {
        Rates { store_bytes_per_s: 1024.0 * 1024.0 * 1024.0 / 1.02, ..Rates::remote() }
    }

    /// A store behind a network: 50 MiB/s, half of what a 1 Gbit/s line carries.
    pub fn remote() -> Rates {
        Rates {
            store_bytes_per_s: 50.0 * 1024.0 * 1024.0,
            database_bytes_per_s: Rates::DATABASE,
            events_per_s: Rates::EVENTS,
            gardener_events_per_s: Rates::GARDENER_EVENTS,
        }
    }
}

/// What a manifest says about the inside of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inside {
    /// Bytes after decompression.
    pub content_bytes: u64,
    /// Writes or records.
    pub events: u64,
}

/// What is to be read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Bytes of the chain's objects in the store.
    pub stored_bytes: u64,
    /// Bytes of the full's database.
    pub database_bytes: u64,
    /// Writes to replay from our own deltas.
    pub events: u64,
    /// Writes to replay from Gardener's deltas.
    pub gardener_events: u64,
    /// Objects without a manifest, whose inside is assumed.
    pub assumed_objects: u64,
}

/// Objects without a manifest: databases shrink to about a third when compressed.
const ASSUMED_GROWTH: u64 = 3;

/// Objects without a manifest: a small write takes about this much of a compressed delta.
const ASSUMED_EVENT_BYTES: u64 = 64;

impl Cost {
    /// What a chain costs. `inside` is what the manifest beside each object says, in the objects' order.
    pub fn of(objects: &[Object], inside: &[Option<Inside>], chain: &Chain) -> Cost {
        let mut cost = Cost { stored_bytes: 0, database_bytes: 0, events: 0, gardener_events: 0, assumed_objects: 0 };
        let known = |index: usize| inside.get(index).copied().flatten();
        if let Some(full) = objects.get(chain.base) {
            cost.stored_bytes = full.bytes;
            cost.assumed_objects += u64::from(known(chain.base).is_none());
            cost.database_bytes = known(chain.base)
                .map_or_else(|| full.bytes.saturating_mul(ASSUMED_GROWTH), |inside| inside.content_bytes);
        }
        for (index, _) in &chain.deltas {
            let Some(delta) = objects.get(*index) else { continue };
            cost.stored_bytes = cost.stored_bytes.saturating_add(delta.bytes);
            cost.assumed_objects += u64::from(known(*index).is_none());
            let events = known(*index).map_or_else(
                // At least one write for each revision.
                || (delta.bytes / ASSUMED_EVENT_BYTES).max(delta.last.saturating_sub(delta.first).saturating_add(1)),
                |inside| inside.events,
            );
            let sum = match delta.layout {
                Layout::Quorate => &mut cost.events,
                Layout::Gardener => &mut cost.gardener_events,
            };
            *sum = sum.saturating_add(events);
        }
        cost
    }
}

/// How long a restore of the chain takes until the data dir is there; starting etcd on it comes on top.
/// Reading the store, and everything else, are added up: on a slow machine they do not overlap much.
pub fn restore_time(cost: &Cost, rates: &Rates) -> Duration {
    let seconds = cost.stored_bytes as f64 / rates.store_bytes_per_s
        + cost.database_bytes as f64 / rates.database_bytes_per_s
        + cost.events as f64 / rates.events_per_s
        + cost.gardener_events as f64 / rates.gardener_events_per_s;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// How far back the loss would go if everything but the store were lost now. `newest_ms`: when the newest write of the
/// store was recorded, or its newest object was begun. A time in the future counts as now.
pub fn rpo(now_ms: i64, newest_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(now_ms.saturating_sub(newest_ms)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{Kind, State};

    fn object(kind: Kind, layout: Layout, first: u64, last: u64, bytes: u64) -> Object {
        Object {
            name: String::new(),
            kind,
            layout,
            first,
            last,
            created_ms: 0,
            bytes,
            epoch: 0,
            cluster_id: 0,
            state: State::Claimed,
        }
    }

    #[test]
    fn the_benchmarks_own_work_is_estimated_as_it_was_measured() {
        let cost = Cost {
            stored_bytes: 0,
            database_bytes: 1 << 30,
            events: 1_000_000,
            gardener_events: 1_000_000,
            assumed_objects: 0,
        };
        let time = restore_time(&cost, &Rates::local());
        assert!((time.as_secs_f64() - (0.91 + 0.62 + 1.36)).abs() < 0.02, "{time:?}");
    }

    #[test]
    fn manifests_are_believed_and_what_has_none_is_assumed_and_counted() {
        let objects = [
            object(Kind::Full, Layout::Quorate, 10, 10, 100),
            object(Kind::Delta, Layout::Quorate, 11, 20, 50),
            object(Kind::Delta, Layout::Gardener, 21, 30, 640),
        ];
        let inside =
            [Some(Inside { content_bytes: 5000, events: 7 }), Some(Inside { content_bytes: 200, events: 13 }), None];
        let chain = Chain { base: 0, deltas: vec![(1, 20), (2, 30)], reach: 30 };
        let cost = Cost::of(&objects, &inside, &chain);
        let expected =
            Cost { stored_bytes: 790, database_bytes: 5000, events: 13, gardener_events: 10, assumed_objects: 1 };
        assert_eq!(cost, expected);
        assert_eq!(Cost::of(&objects, &[], &chain).assumed_objects, 3);
    }

    #[test]
    fn a_clock_that_is_behind_does_not_make_a_loss_negative() {
        assert_eq!(rpo(5000, 2000), Duration::from_secs(3));
        assert_eq!(rpo(2000, 5000), Duration::ZERO);
        assert_eq!(rpo(i64::MAX, i64::MIN), Duration::from_millis(i64::MAX as u64));
    }
}
