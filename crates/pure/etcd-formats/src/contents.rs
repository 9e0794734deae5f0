//! Counts and hashes over everything a database holds, in etcd's own ways.
//!
//! etcd's hashes differ between versions, even between patch releases, and a file does not say which version wrote
//! it, so every variant is computed.
//!
//! Memory is some 20 to 40 bytes for each distinct user key, because which revision of a key is the newest is only
//! known at the end. Nothing else grows with the database.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::ReadAt;
use crate::bolt::{BoltError, Bucket, Db};
use crate::mvcc::{KeyValue, RevisionKey, fingerprint};

/// What is to be found out beside the counts.
#[derive(Debug, Clone, Copy)]
pub struct Want<'a> {
    /// Hashes too.
    pub hashes: bool,
    /// Counts bytes examined, for whoever shows progress.
    pub progress: &'a AtomicU64,
}

/// What a database holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// Items of all buckets: what `etcdutl snapshot status` up to 3.5 calls total keys.
    pub items: u64,
    /// Items of the `key` bucket: every revision still kept.
    pub revisions: u64,
    /// User keys that exist now: what `etcdutl snapshot status` from 3.6 on calls total keys.
    pub live_keys: u64,
    /// Pages that may be used again.
    pub free_pages: u64,
    /// The hashes, if wanted.
    pub hashes: Option<Hashes>,
}

/// etcd's hashes of one database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hashes {
    /// What `etcdutl snapshot status` prints, in every version.
    pub snapshot_status: u32,
    /// What the Hash RPC answers. It leaves out what differs between healthy members, and each version has more of that.
    pub hash_rpc: Vec<Variant>,
    /// What the HashKV RPC and `etcdctl endpoint hashkv` answer at the current revision.
    pub hashkv: Vec<Variant>,
}

/// A hash as some versions of etcd compute it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Variant {
    /// Which versions.
    pub etcd: &'static str,
    /// The hash.
    pub hash: u32,
}

/// The versions that each HashKV variant belongs to: later ones leave out a deletion at the compacted revision itself.
pub const HASHKV_VARIANTS: [&str; 2] = ["up to 3.4.33 and 3.5.15", "from 3.4.34, 3.5.16 and 3.6.0 on"];

/// Walks every bucket. `compact_revision` is what the server would take it to be; `None` if nothing was compacted.
pub fn examine<S: ReadAt + ?Sized>(
    db: &Db<'_, S>,
    buckets: &[(Vec<u8>, Bucket)],
    compact_revision: Option<u64>,
    want: Want<'_>,
) -> Result<Contents, BoltError> {
    let mut contents = Contents::default();
    let mut newest = Newest::default();
    let mut hash = BackendHash::default();
    let mut pages = db.overhead_pages()?;
    for (name, bucket) in buckets {
        if want.hashes {
            hash.bucket(name);
        }
        let is_key = name == b"key";
        pages += db.for_each(bucket, |key, value| {
            contents.items += 1;
            want.progress.fetch_add((key.len() + value.len()) as u64, Ordering::Relaxed);
            if is_key {
                contents.revisions += 1;
                newest.note(key, value);
            }
            if want.hashes {
                hash.pair(key, value);
            }
        })?;
    }
    contents.live_keys = newest.live();
    contents.free_pages = db.meta().hwm.saturating_sub(pages);
    if want.hashes {
        let (snapshot_status, hash_rpc) = hash.finish();
        let hashkv = hashkv(db, buckets, compact_revision, &newest)?;
        contents.hashes = Some(Hashes { snapshot_status, hash_rpc, hashkv });
    }
    Ok(contents)
}

/// A running CRC-32C.
#[derive(Debug, Clone, Copy, Default)]
struct Crc(u32);

impl Crc {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) {
        self.write(key);
        self.write(value);
    }
}

/// The hashes over all buckets. They are one and the same up to the `meta` bucket, where the RPC's leave items out.
#[derive(Default)]
struct BackendHash {
    status: Crc,
    /// 3.6, 3.5, 3.4: each leaves out one item fewer than the one before.
    rpc: Option<[Crc; 3]>,
    in_meta: bool,
}

impl BackendHash {
    fn bucket(&mut self, name: &[u8]) {
        self.in_meta = name == b"meta";
        if self.in_meta && self.rpc.is_none() {
            self.rpc = Some([self.status; 3]);
        }
        self.status.write(name);
        for crc in self.rpc.iter_mut().flatten() {
            crc.write(name);
        }
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) {
        self.status.pair(key, value);
        let left_out = match key {
            b"storageVersion" if self.in_meta => 1,
            b"term" if self.in_meta => 2,
            b"consistent_index" if self.in_meta => 3,
            _ => 0,
        };
        for crc in self.rpc.iter_mut().flatten().skip(left_out) {
            crc.pair(key, value);
        }
    }

    fn finish(self) -> (u32, Vec<Variant>) {
        let [v3_6, v3_5, v3_4] = self.rpc.unwrap_or([self.status; 3]).map(|crc| crc.0);
        let variants = [("3.4", v3_4), ("3.5", v3_5), ("from 3.6 on", v3_6)];
        (self.status.0, variants.into_iter().map(|(etcd, hash)| Variant { etcd, hash }).collect())
    }
}

/// For each user key, its newest revision and whether that is a deletion.
#[derive(Default)]
struct Newest {
    /// Keyed by a 64-bit fingerprint: two of ten million keys share one with a probability of three in a million.
    by_key: HashMap<u64, u64, std::hash::BuildHasherDefault<AsIs>>,
}

impl Newest {
    fn note(&mut self, key: &[u8], value: &[u8]) {
        let Some((at, kv)) = RevisionKey::decode(key).zip(KeyValue::decode(value)) else { return };
        // A restore may leave a placeholder without a user key, so that revisions go on from there.
        if !kv.key.is_empty() {
            self.by_key.insert(fingerprint(kv.key), at.revision.main << 1 | u64::from(at.tombstone));
        }
    }

    fn live(&self) -> u64 {
        self.by_key.values().filter(|newest| **newest & 1 == 0).count() as u64
    }

    /// Whether this put is the newest thing that happened to its key.
    fn is_newest_put(&self, kv: &KeyValue<'_>, main: u64) -> bool {
        self.by_key.get(&fingerprint(kv.key)) == Some(&(main << 1))
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

fn hashkv<S: ReadAt + ?Sized>(
    db: &Db<'_, S>,
    buckets: &[(Vec<u8>, Bucket)],
    compact_revision: Option<u64>,
    newest: &Newest,
) -> Result<Vec<Variant>, BoltError> {
    let mut with = Crc::default();
    with.write(b"key");
    let mut without = with;
    // With nothing to keep, etcd skips nothing.
    let keeps_any = newest.live() > 0;
    let Some((_, bucket)) = buckets.iter().find(|(name, _)| name == b"key") else { return Ok(Vec::new()) };
    db.for_each(bucket, |key, value| {
        let Some((at, kv)) = RevisionKey::decode(key).zip(KeyValue::decode(value)) else { return };
        let compacted = compact_revision.is_some_and(|compacted| at.revision.main <= compacted);
        if compacted && keeps_any && (at.tombstone || !newest.is_newest_put(&kv, at.revision.main)) {
            return;
        }
        with.pair(key, value);
        if !(at.tombstone && compact_revision == Some(at.revision.main)) {
            without.pair(key, value);
        }
    })?;
    let variants = HASHKV_VARIANTS.into_iter().zip([with.0, without.0]);
    Ok(variants.map(|(etcd, hash)| Variant { etcd, hash }).collect())
}
