//! The one engine: a base and the writes after it, merged by revision, filtered, and written once as a new database.
//!
//! Founding has no base, a restore has one and perhaps a history, compaction of backups leaves the members out, and
//! defragmentation changes nothing but the pages. The `key` bucket is ordered by revision and a history only has higher
//! ones, so all of them are one pass over sorted input.
//!
//! **Invariant:** memory does not grow with the database: a window of the base (or its largest leaf), a few pages per
//! level of the tree, one buffer of output, and [`LEASES_MAX`] lease ids at most.

mod copy;
mod error;
mod keys;
mod leases;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

pub use error::RebuildError;
pub use leases::{LEASES_MAX, SUSPECTS_MAX};

use crate::ReadAt;
use crate::bolt::build::{BoltWriter, Item, Sink};
use crate::bolt::{Bucket, Buckets, Db};
use crate::database::{BUCKETS, Facts};
use crate::delta::Events;
use crate::founding::{Form, Founding};
use crate::mvcc::{Revision, RevisionKey};

use copy::{Hash, Hashed, each_item};
use leases::Leases;

/// By how much a restore raises the revision unless told otherwise: more writes than a cluster makes between a snapshot
/// and its loss.
pub const BUMP_DEFAULT: u64 = 1_000_000_000;

/// The page size where no base says another.
const PAGE_BYTES: u32 = 4096;

/// What is to become of the base and the history.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Writes above this revision are left out.
    pub up_to: Option<u64>,
    /// Raise the revision by this much, so that no client sees it go back.
    pub bump: Option<u64>,
    /// Call all history compacted, so that watchers notice and begin anew.
    pub mark_compacted: bool,
    /// The cluster that the database is for; `None` keeps members, indexes and versions as the base has them.
    pub membership: Option<(&'a Founding, Form)>,
    /// Seconds for a lease that a live key refers to and nobody knows.
    pub lease_ttl_default: i64,
}

impl Options<'_> {
    /// Everything as it is.
    pub fn copy() -> Options<'static> {
        Options { up_to: None, bump: None, mark_compacted: false, membership: None, lease_ttl_default: 3600 }
    }
}

/// What was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// The revision that a server on it reports.
    pub revision: u64,
    /// The newest revision of a write in it; what clients saw before any bump.
    pub last_write: u64,
    /// The revision up to which a server on it calls history compacted.
    pub compact_revision: Option<u64>,
    /// Revisions in the `key` bucket, deletions and a placeholder included.
    pub revisions: u64,
    /// Writes of the base that were met and left out, because they are above the wanted revision.
    pub dropped: u64,
    /// Writes of the history that were taken.
    pub events_applied: u64,
    /// Writes of the history that the base already had.
    pub events_skipped: u64,
    /// Leases that were written because a grant in the history says so.
    pub leases_granted: u64,
    /// Leases that live keys refer to and that nothing else is known of. They got the default time to live.
    pub leases_created: u64,
    /// The first of them.
    pub leases_created_ids: Vec<i64>,
    /// etcd's hash over all buckets, as `etcdutl snapshot status` computes it, of what was written.
    pub hash: u32,
}

/// A base with what its small buckets say.
struct Base<'b, 's, R: ReadAt + ?Sized> {
    db: &'b Db<'s, R>,
    buckets: Buckets,
    facts: Facts,
}

impl<R: ReadAt + ?Sized> Base<'_, '_, R> {
    fn bucket(&self, name: &str) -> Option<&Bucket> {
        self.buckets.iter().find(|(found, _)| found == name.as_bytes()).map(|(_, bucket)| bucket)
    }
}

/// Merges `base` and `events` into `sink`, and gives the sink back. `progress` counts bytes of the base that are done.
pub fn rebuild<R: ReadAt + ?Sized, S: Sink>(
    base: Option<&Db<'_, R>>,
    events: Option<&mut dyn Events>,
    options: &Options<'_>,
    sink: S,
    progress: &AtomicU64,
) -> Result<(S, Rebuilt), RebuildError<S::Error>> {
    let base = match base {
        Some(db) => {
            let buckets = db.buckets()?;
            let facts = Facts::read(db, &buckets)?;
            Some(Base { db, buckets, facts })
        }
        None => None,
    };
    let page_bytes = base.as_ref().map_or(PAGE_BYTES, |base| base.db.meta().page_size);
    let writer = BoltWriter::new(sink, page_bytes).map_err(RebuildError::Sink)?;
    let run = Run { base, options, progress, rebuilt: Rebuilt::default() };
    run.all(writer, events)
}

/// One run of the engine.
struct Run<'r, 'b, 's, R: ReadAt + ?Sized> {
    base: Option<Base<'b, 's, R>>,
    options: &'r Options<'r>,
    progress: &'r AtomicU64,
    rebuilt: Rebuilt,
}

impl<R: ReadAt + ?Sized> Run<'_, '_, '_, R> {
    fn all<S: Sink>(
        mut self,
        mut writer: BoltWriter<S>,
        mut events: Option<&mut dyn Events>,
    ) -> Result<(S, Rebuilt), RebuildError<S::Error>> {
        self.refuse_what_cannot_be()?;
        // A mere copy leaves leases alone.
        let mut leases = match (&events, self.options.membership) {
            (None, None) => None,
            _ => Some(self.known_leases()?),
        };
        let mut hash = Hash::default();
        for name in self.bucket_names(events.is_some()) {
            hash.bucket(&name);
            let replaced = self.replaced(&name)?;
            let mut bucket = writer.bucket(&name);
            let mut out = Hashed { bucket: &mut bucket, hash: &mut hash };
            let base = self.base.as_ref();
            match (name.as_slice(), replaced) {
                (b"key", _) => {
                    let history: Option<&mut dyn Events> = match &mut events {
                        Some(events) => Some(&mut **events),
                        None => None,
                    };
                    keys::write(base, history, self.options, self.progress, &mut leases, &mut self.rebuilt, &mut out)?;
                }
                (b"lease", _) => {
                    let grants = events.as_deref().map(|events| events.leases()).unwrap_or_default();
                    let ttl = self.options.lease_ttl_default;
                    let missing = leases.take().map(|leases| leases.missing(grants, ttl, &mut self.rebuilt));
                    leases::write(base, &missing.unwrap_or_default(), self.progress, &mut out)?;
                }
                (_, Some(items)) => items.iter().try_for_each(|(key, value)| out.put(key, value))?,
                (_, None) => {
                    if let Some(base) = base
                        && let Some((_, bucket)) = base.buckets.iter().find(|(found, _)| *found == name)
                    {
                        each_item(base.db, bucket, None, self.progress, |item| out.put(item.key, item.value))?;
                    }
                }
            }
            bucket.finish().map_err(RebuildError::Sink)?;
        }
        self.rebuilt.hash = hash.value();
        Ok((writer.finish().map_err(RebuildError::Sink)?, self.rebuilt))
    }

    fn refuse_what_cannot_be<E>(&self) -> Result<(), RebuildError<E>> {
        let Some(base) = &self.base else { return Ok(()) };
        // A copy moves it on as it is; whoever goes by it must be able to read it.
        let mut malformed = base.facts.malformed.iter().filter(|wrong| wrong.bucket == "meta");
        let goes_by_it =
            self.options.membership.is_some() || self.options.mark_compacted || self.options.up_to.is_some();
        if let Some(wrong) = malformed.find(|wrong| wrong.key.ends_with("CompactRev")).filter(|_| goes_by_it) {
            let (bucket, key, wanted) = (wrong.bucket, wrong.key.clone(), wrong.wanted);
            return Err(RebuildError::Malformed { bucket, key, wanted });
        }
        match (self.options.up_to, base.facts.compact_revision()) {
            (Some(up_to), Some(compacted)) if up_to < compacted => Err(RebuildError::Compacted { up_to, compacted }),
            _ => Ok(()),
        }
    }

    fn known_leases<E>(&self) -> Result<Leases, RebuildError<E>> {
        let mut leases = Leases::default();
        if let Some(base) = &self.base
            && let Some(bucket) = base.bucket("lease")
        {
            base.db.for_each(bucket, |key, value| leases.known(key, value))?;
        }
        leases.ready();
        Ok(leases)
    }

    /// What a small bucket holds instead of the base's items; `None` where those stay.
    fn replaced<E>(&mut self, name: &[u8]) -> Result<Option<Vec<Item>>, RebuildError<E>> {
        let founded = self.options.membership.and_then(|(founding, form)| {
            let buckets = founding.buckets(form);
            buckets.into_iter().find(|(found, _)| *found == name).map(|(_, items)| items)
        });
        match name {
            b"meta" if founded.is_some() || self.options.mark_compacted => {
                self.meta(founded.unwrap_or_default()).map(Some)
            }
            b"members" | b"members_removed" | b"cluster" => Ok(founded),
            _ => Ok(None),
        }
    }

    /// Those of the base, and all that a server would make; a copy has the base's alone.
    fn bucket_names(&self, has_history: bool) -> BTreeSet<Vec<u8>> {
        let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
        if let Some(base) = &self.base {
            names.extend(base.buckets.iter().map(|(name, _)| name.clone()));
        }
        if self.base.is_none() || self.options.membership.is_some() || has_history {
            names.extend(BUCKETS.iter().map(|name| name.as_bytes().to_vec()));
        }
        names
    }

    /// The `meta` bucket: what the new cluster begins with, or all that the base has, with the compacted revisions.
    fn meta<E>(&mut self, mut items: Vec<Item>) -> Result<Vec<Item>, RebuildError<E>> {
        const COMPACTED: [&[u8]; 2] = [b"finishedCompactRev", b"scheduledCompactRev"];
        if let Some(base) = &self.base
            && let Some(bucket) = base.bucket("meta")
        {
            base.db.for_each(bucket, |key, value| {
                let kept = self.options.membership.is_none() || COMPACTED.contains(&key);
                // A few short values; anything else has been refused as malformed, or is not copied into memory.
                if kept && items.len() < 1000 && value.len() < 1 << 20 {
                    items.push((key.to_vec(), value.to_vec()));
                }
            })?;
        }
        if self.options.mark_compacted {
            let at = RevisionKey { revision: Revision { main: self.rebuilt.revision, sub: 0 }, tombstone: false };
            items.retain(|(key, _)| key != b"scheduledCompactRev");
            items.push((b"scheduledCompactRev".to_vec(), at.encode()));
            self.rebuilt.compact_revision = Some(self.rebuilt.revision);
        }
        items.sort();
        Ok(items)
    }
}
