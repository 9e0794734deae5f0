//! Leases that live keys refer to: each must exist afterwards, or its keys would live for ever.
//!
//! Writes come in order, so whether a key still refers to an unknown lease is known as soon as its newest write has
//! passed: only keys that do so at the moment are remembered.
//!
//! **Invariant:** at most [`LEASES_MAX`] ids of each kind and [`SUSPECTS_MAX`] keys are remembered.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::AtomicU64;

use prost::Message;

use super::copy::{Hashed, each_item};
use super::{Base, RebuildError, Rebuilt};
use crate::ReadAt;
use crate::bolt::build::{Item, Sink};
use crate::database::lease_id;
use crate::delta::LeaseGrant;
use crate::messages::Lease;
use crate::mvcc::{KeyValue, fingerprint};

/// Lease ids that are remembered: 16 MiB.
pub const LEASES_MAX: usize = 2 << 20;
/// Keys with an unknown lease that are remembered one by one: about 16 MiB. Beyond that it is no longer looked at whether
/// they are written over, and a lease too many may be made, which does no harm.
pub const SUSPECTS_MAX: usize = 1 << 19;
/// Created leases that are named in the report.
const NAMED: usize = 20;

#[derive(Default)]
pub(super) struct Leases {
    /// Ids in the base, ascending. Incomplete if there are too many: more leases are then looked for than needed.
    known: Vec<i64>,
    /// By fingerprint, the keys that refer to an unknown lease as of now.
    suspects: HashMap<u64, i64, BuildHasherDefault<DefaultHasher>>,
    /// Once there were too many suspects: every unknown lease that any key refers to, sorted now and then.
    ids: Option<Vec<i64>>,
}

impl Leases {
    /// Takes a record of the base.
    pub(super) fn known(&mut self, key: &[u8], value: &[u8]) {
        if self.known.len() < LEASES_MAX {
            self.known.extend(lease_id(key, value));
        }
    }

    /// All of the base's records have been taken.
    pub(super) fn ready(&mut self) {
        // Buckets are ordered by unsigned bytes, ids are signed.
        self.known.sort_unstable();
    }

    /// Takes a write, in order.
    pub(super) fn note<E>(&mut self, tombstone: bool, kv: &KeyValue<'_>) -> Result<(), RebuildError<E>> {
        let unknown = !tombstone && kv.lease != 0 && self.known.binary_search(&kv.lease).is_err();
        if let Some(ids) = &mut self.ids {
            if unknown && ids.last() != Some(&kv.lease) {
                ids.push(kv.lease);
                return self.shrink_ids();
            }
            return Ok(());
        }
        if !unknown {
            if !self.suspects.is_empty() {
                self.suspects.remove(&fingerprint(kv.key));
            }
            return Ok(());
        }
        self.suspects.insert(fingerprint(kv.key), kv.lease);
        if self.suspects.len() > SUSPECTS_MAX {
            let suspects = std::mem::take(&mut self.suspects);
            self.ids = Some(suspects.into_values().collect());
            return self.shrink_ids();
        }
        Ok(())
    }

    fn shrink_ids<E>(&mut self) -> Result<(), RebuildError<E>> {
        let Some(ids) = self.ids.as_mut().filter(|ids| ids.len() >= LEASES_MAX) else { return Ok(()) };
        ids.sort_unstable();
        ids.dedup();
        if ids.len() > LEASES_MAX / 2 {
            return Err(RebuildError::TooManyLeases { limit: LEASES_MAX / 2 });
        }
        Ok(())
    }

    /// The leases that must be written besides the base's, in the order of the bucket.
    pub(super) fn missing(self, grants: &[LeaseGrant], ttl_default: i64, rebuilt: &mut Rebuilt) -> Vec<LeaseGrant> {
        let mut ids: Vec<i64> = self.ids.unwrap_or_default();
        ids.extend(self.suspects.into_values());
        ids.sort_unstable_by_key(|id| *id as u64);
        ids.dedup();
        let mut granted: Vec<LeaseGrant> = grants.to_vec();
        granted.sort_unstable();
        let ttl_of = |id: i64| {
            let at = granted.partition_point(|grant| grant.id <= id);
            let grant = at.checked_sub(1).and_then(|at| granted.get(at));
            grant.filter(|grant| grant.id == id && grant.ttl > 0).map(|grant| grant.ttl)
        };
        let mut missing = Vec::with_capacity(ids.len());
        for id in ids {
            match ttl_of(id) {
                Some(ttl) => {
                    rebuilt.leases_granted += 1;
                    missing.push(LeaseGrant { id, ttl });
                }
                None => {
                    rebuilt.leases_created += 1;
                    if rebuilt.leases_created_ids.len() < NAMED {
                        rebuilt.leases_created_ids.push(id);
                    }
                    missing.push(LeaseGrant { id, ttl: ttl_default });
                }
            }
        }
        missing
    }
}

/// The `lease` bucket: the base's, and those that were missing in it.
pub(super) fn write<R: ReadAt + ?Sized, S: Sink>(
    base: Option<&Base<'_, '_, R>>,
    missing: &[LeaseGrant],
    progress: &AtomicU64,
    out: &mut Hashed<'_, '_, S>,
) -> Result<(), RebuildError<S::Error>> {
    let mut missing = missing.iter().map(record).peekable();
    if let Some(base) = base
        && let Some(bucket) = base.bucket("lease")
    {
        each_item(base.db, bucket, None, progress, |item| {
            while let Some((key, value)) = missing.next_if(|(key, _)| key.as_slice() < item.key) {
                out.put(&key, &value)?;
            }
            // The base's own record stands.
            missing.next_if(|(key, _)| key == item.key);
            out.put(item.key, item.value)
        })?;
    }
    missing.try_for_each(|(key, value)| out.put(&key, &value))
}

fn record(lease: &LeaseGrant) -> Item {
    let message = Lease { id: lease.id, ttl: lease.ttl, ..Lease::default() };
    (lease.id.to_be_bytes().to_vec(), message.encode_to_vec())
}
