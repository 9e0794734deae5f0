//! Brings what waits in a spool into the store, so that a restore from there has it.
//!
//! **Rule:** a segment leaves the spool after the store has its object; none goes into a store that has a later writer; and
//! one that is whole is never called damaged.

use std::path::Path;

use quorate_backup::epochs;
use quorate_backup::spool::{Segment, Spool, SpoolSettings};
use quorate_backup::store::Store;
use quorate_etcd_formats::delta::quorate::Origin;
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::{Layout, Span};
use quorate_plan::lineage::overruled_by;
use tracing::{info, warn};

use super::objects;

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Flushed {
    /// What is in the store now and was not before.
    pub(crate) stored: Option<Span>,
    /// The store did not take what is left, and why. It stays in the spool.
    pub(crate) refused: Option<Fault>,
}

/// Uploads all that waits, oldest first. Nobody else may be at work on the spool.
pub(crate) fn flush(dir: &Path, max_bytes: u64, store: &str) -> Result<Flushed> {
    let mut flushed = Flushed::default();
    if !dir.is_dir() {
        return Ok(flushed);
    }
    let (mut spool, recovered) = Spool::open(dir, SpoolSettings { max_bytes })?;
    for what in &recovered.damaged {
        warn!(code = %Code::SpoolBroken, "in the spool: {what}");
    }
    let pending = spool.pending();
    let Some(layout) = spool.state().map(|state| state.layout).filter(|_| !pending.is_empty()) else {
        return Ok(flushed);
    };
    let store = Store::open(store, false)?;
    let newest = match layout {
        Layout::Quorate => Some(epochs::newest(&store)?.map_or(0, |epoch| epoch.epoch)),
        Layout::Gardener => None,
    };
    for segment in pending {
        let Segment { first, last, epoch, .. } = segment;
        let overruled = match newest {
            // An epoch of another lineage in a shared store overrules nothing of this one.
            Some(newest) if epoch < newest => {
                let newer = epochs::newer(&store, epoch)?;
                overruled_by(&newer, epoch, &[segment.cluster_id]).map(|later| later.epoch)
            }
            Some(_) | None => None,
        };
        match overruled.or(newest) {
            Some(newest) if epoch < newest && overruled.is_some() => {
                let kept = spool.set_aside(&segment)?;
                let kept = kept.display();
                warn!(code = %Code::SpoolSetAside, first, last, "epoch {newest} took over from epoch {epoch}: kept as `{kept}`");
                continue;
            }
            Some(newest) if epoch > newest => {
                let what =
                    format!("cannot store revisions {first} to {last}: the store does not know their epoch {epoch}");
                let hint = format!(
                    "see where `backup.store` leads: this was recorded for another store, or for one with more in it; to go \
                     on without it, move `{}` away",
                    dir.display()
                );
                flushed.refused = Some(Fault::new(Code::StoreNotSeen, what).hint(hint));
                return Ok(flushed);
            }
            Some(_) | None => {}
        }
        // Who recorded it is not known any more, apart from its cluster.
        let origin = Origin { cluster_id: segment.cluster_id, member_id: 0, etcd_version: String::new() };
        if let Err(fault) = objects::put_segment(&store, &origin, &segment, layout) {
            flushed.refused = Some(fault);
            return Ok(flushed);
        }
        spool.stored(&segment)?;
        info!(first, last, "stored what waited in the spool");
        flushed.stored = Some(Span { from: flushed.stored.map_or(first, |span| span.from), to: last });
    }
    Ok(flushed)
}

#[cfg(test)]
mod tests {
    use quorate_backup::spool::SpoolState;
    use quorate_backup::write::About;
    use quorate_etcd_formats::delta::Event;
    use quorate_etcd_formats::mvcc::{KeyValue, Revision};

    use super::*;

    const ROOM: SpoolSettings = SpoolSettings { max_bytes: 1 << 20 };

    /// A spool of this epoch with one segment for each revision.
    fn record(dir: &Path, epoch: u64, layout: Layout, revisions: std::ops::RangeInclusive<i64>) {
        let (mut spool, _) = Spool::open(dir, ROOM).unwrap();
        let stored = u64::try_from(*revisions.start()).unwrap() - 1;
        spool.reset(SpoolState { cluster_id: 7, epoch, layout, stored }).unwrap();
        for revision in revisions {
            let kv = KeyValue {
                key: b"k",
                value: b"v",
                create_revision: 2,
                mod_revision: revision,
                version: revision - 1,
                lease: 0,
            };
            let at = Revision { main: u64::try_from(revision).unwrap(), sub: 0 };
            spool.append(&[Event { at, tombstone: false, kv, time_ms: None }], true).unwrap();
            spool.cut().unwrap().unwrap();
        }
    }

    fn names(dir: &Path, part: &str) -> usize {
        let entries = std::fs::read_dir(dir).map(|entries| entries.flatten().collect()).unwrap_or_else(|_| Vec::new());
        entries.iter().filter(|entry| entry.file_name().to_string_lossy().contains(part)).count()
    }

    #[test]
    fn what_waits_is_stored_and_what_a_later_writer_disowned_is_kept_beside() {
        let (store_dir, spool) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let url = format!("file://{}", store_dir.path().display());
        let store = Store::open(&url, true).unwrap();
        let origin = Origin { cluster_id: 7, member_id: 0, etcd_version: String::new() };
        let about = About { origin, ..About::default() };
        assert_eq!(epochs::take(&store, &about, 1).unwrap(), 1);
        record(spool.path(), 1, Layout::Quorate, 5..=7);
        let flushed = flush(spool.path(), ROOM.max_bytes, &url).unwrap();
        assert_eq!(flushed.stored, Some(Span { from: 5, to: 7 }));
        assert!(flushed.refused.is_none() && names(spool.path(), ".delta") == 0);
        assert!(flush(spool.path(), ROOM.max_bytes, &url).unwrap().stored.is_none(), "a second time finds nothing");
        // Another writer has taken over meanwhile: nothing of ours is believed any more, and nothing is lost either.
        record(spool.path(), 1, Layout::Quorate, 8..=8);
        assert_eq!(epochs::take(&store, &about, 8).unwrap(), 2);
        let flushed = flush(spool.path(), ROOM.max_bytes, &url).unwrap();
        assert!(flushed.stored.is_none() && flushed.refused.is_none());
        assert_eq!((names(spool.path(), ".set-aside-"), names(spool.path(), ".damaged-")), (1, 0));
        // A store that never saw the epoch is not the one that this was recorded for.
        record(spool.path(), 3, Layout::Quorate, 9..=9);
        let refused = flush(spool.path(), ROOM.max_bytes, &url).unwrap().refused.unwrap();
        assert_eq!(refused.code(), Code::StoreNotSeen);
        assert_eq!(names(spool.path(), ".delta"), 2, "the one that waits, and the one beside");
    }
}
