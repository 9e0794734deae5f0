//! Counts and hashes over everything a database holds, in etcd's own ways.
//!
//! etcd's hashes differ between versions, even between patch releases, and a file does not say which version wrote
//! it, so every variant is computed.
//!
//! Counting takes no memory: a generation of a key begins with version 1 and ends with a deletion, and a finished
//! compaction leaves one revision for each key that lived. Hashing takes some 20 to 40 bytes for each distinct user
//! key, because which revision of a key is the newest is only known at the end; so does counting where a compaction
//! was begun and not finished.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::ReadAt;
use crate::bolt::check::{self, ItemCheck, Run};
use crate::bolt::{BoltError, Bucket, Db};
use crate::mvcc::{KeyValue, RevisionKey, fingerprint};

/// What is to be found out beside the counts.
pub struct Want<'a> {
    /// Hashes too.
    pub hashes: bool,
    /// How to go about it.
    pub run: Run<'a>,
}

/// How far history is gone, as a server would take it to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compaction {
    /// The revision; `None` if nothing was compacted.
    pub revision: Option<u64>,
    /// Whether all that was to go has gone.
    pub finished: bool,
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

/// Walks every bucket.
pub fn examine<S: ReadAt + ?Sized>(
    db: &Db<'_, S>,
    buckets: &[(Vec<u8>, Bucket)],
    compaction: Compaction,
    want: &Want<'_>,
) -> Result<Contents, BoltError> {
    let mut contents = Contents::default();
    let newest = Newest::default();
    let by_key = want.hashes || !compaction.finished;
    let compacted = compaction.revision.unwrap_or(0);
    let mut hash = BackendHash::default();
    let mut pages = db.overhead_pages()?;
    for (name, bucket) in buckets {
        let is_key = name == b"key";
        let begin = || Pass {
            newest: (is_key && by_key).then_some(&newest),
            lives: (is_key && !by_key).then_some(Lives { compacted, ..Lives::default() }),
            hashes: want.hashes,
            ..Pass::default()
        };
        let (pass, bucket_pages) = check::scan_bucket(db, &want.run, bucket, begin)?;
        pages += bucket_pages;
        contents.items += pass.items;
        if is_key {
            contents.revisions = pass.items;
            contents.live_keys = pass.lives.map_or(0, |lives| lives.begun.saturating_sub(lives.ended));
        }
        if want.hashes {
            hash.bucket(name, pass.crc);
            if name == b"meta" {
                db.for_each(bucket, |key, value| hash.meta_item(key, value))?;
            }
        }
    }
    let newest = newest.finish();
    if by_key {
        contents.live_keys = newest.live();
    }
    contents.free_pages = db.meta().hwm.saturating_sub(pages);
    if want.hashes {
        let (snapshot_status, hash_rpc) = hash.finish();
        let hashkv = hashkv(db, buckets, compaction.revision, &newest, want)?;
        contents.hashes = Some(Hashes { snapshot_status, hash_rpc, hashkv });
    }
    Ok(contents)
}

/// A running CRC-32C that can be continued by one computed elsewhere.
#[derive(Debug, Clone, Copy, Default)]
struct Crc {
    crc: u32,
    bytes: usize,
}

impl Crc {
    fn write(&mut self, bytes: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.bytes += bytes.len();
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) {
        self.write(key);
        self.write(value);
    }

    fn join(&mut self, later: Crc) {
        self.crc = crc32c::crc32c_combine(self.crc, later.crc, later.bytes);
        self.bytes += later.bytes;
    }
}

/// The first pass over a bucket: counts, the newest revision of each key, the hash of all items.
#[derive(Default)]
struct Pass<'n> {
    newest: Option<&'n Newest>,
    lives: Option<Lives>,
    hashes: bool,
    items: u64,
    crc: Crc,
}

impl ItemCheck for Pass<'_> {
    fn item(&mut self, _page: u64, key: &[u8], value: &[u8]) {
        self.items += 1;
        if let Some(newest) = self.newest {
            newest.note(key, value);
        }
        if let Some(lives) = &mut self.lives {
            lives.note(key, value);
        }
        if self.hashes {
            self.crc.pair(key, value);
        }
    }

    fn absorb(&mut self, later: Self) {
        self.items += later.items;
        self.crc.join(later.crc);
        if let (Some(lives), Some(later)) = (&mut self.lives, later.lives) {
            lives.begun += later.begun;
            lives.ended += later.ended;
        }
    }
}

/// Generations of keys that began and ended in what is kept.
#[derive(Debug, Clone, Copy, Default)]
struct Lives {
    compacted: u64,
    begun: u64,
    ended: u64,
}

impl Lives {
    fn note(&mut self, key: &[u8], value: &[u8]) {
        let Some(at) = RevisionKey::decode(key) else { return };
        let kept_by_compaction = at.revision.main <= self.compacted;
        if at.tombstone {
            self.ended += u64::from(!kept_by_compaction);
        } else if let Some(kv) = KeyValue::decode(value)
            && !kv.key.is_empty()
        {
            self.begun += u64::from(kept_by_compaction || kv.version == 1);
        }
    }
}

/// The hashes over all buckets. They are one and the same up to the `meta` bucket, where the RPC's leave items out.
#[derive(Default)]
struct BackendHash {
    status: Crc,
    /// 3.6, 3.5, 3.4: each leaves out one item fewer than the one before.
    rpc: Option<[Crc; 3]>,
}

impl BackendHash {
    fn bucket(&mut self, name: &[u8], items: Crc) {
        if name == b"meta" {
            // Its items follow one by one.
            self.rpc = Some([self.status; 3]);
        }
        for rpc in self.rpc.iter_mut().flatten() {
            rpc.write(name);
            if name != b"meta" {
                rpc.join(items);
            }
        }
        self.status.write(name);
        self.status.join(items);
    }

    fn meta_item(&mut self, key: &[u8], value: &[u8]) {
        let left_out = match key {
            b"storageVersion" => 1,
            b"term" => 2,
            b"consistent_index" => 3,
            _ => 0,
        };
        for rpc in self.rpc.iter_mut().flatten().skip(left_out) {
            rpc.pair(key, value);
        }
    }

    fn finish(self) -> (u32, Vec<Variant>) {
        let [v3_6, v3_5, v3_4] = self.rpc.unwrap_or([self.status; 3]).map(|crc| crc.crc);
        let variants = [("3.4", v3_4), ("3.5", v3_5), ("from 3.6 on", v3_6)];
        (self.status.crc, variants.into_iter().map(|(etcd, hash)| Variant { etcd, hash }).collect())
    }
}

type Shard = HashMap<u64, u64, std::hash::BuildHasherDefault<AsIs>>;

/// Enough that two threads rarely meet.
const SHARDS: usize = 64;

/// For each user key, by its fingerprint, its newest revision and whether that is a deletion.
struct Newest {
    shards: [Mutex<Shard>; SHARDS],
}

impl Default for Newest {
    fn default() -> Newest {
        Newest { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Newest {
    fn note(&self, key: &[u8], value: &[u8]) {
        let Some((at, kv)) = RevisionKey::decode(key).zip(KeyValue::decode(value)) else { return };
        // A restore may leave a placeholder without a user key, so that revisions go on from there.
        if kv.key.is_empty() {
            return;
        }
        let fingerprint = fingerprint(kv.key);
        let state = at.revision.main << 1 | u64::from(at.tombstone);
        let mut shard = self.shards[shard_of(fingerprint)].lock().unwrap_or_else(PoisonError::into_inner);
        // Parts of the bucket come in any order.
        shard.entry(fingerprint).and_modify(|known| *known = state.max(*known)).or_insert(state);
    }

    fn finish(self) -> NewestFound {
        NewestFound { shards: self.shards.map(|shard| shard.into_inner().unwrap_or_else(PoisonError::into_inner)) }
    }
}

fn shard_of(fingerprint: u64) -> usize {
    // The map itself goes by the lowest and the highest bits.
    (fingerprint >> 32) as usize % SHARDS
}

/// The same, once it is complete.
struct NewestFound {
    shards: [Shard; SHARDS],
}

impl NewestFound {
    fn live(&self) -> u64 {
        self.shards.iter().flat_map(|shard| shard.values()).filter(|newest| **newest & 1 == 0).count() as u64
    }

    /// Whether this put is the newest thing that happened to its key.
    fn is_newest_put(&self, kv: &KeyValue<'_>, main: u64) -> bool {
        let fingerprint = fingerprint(kv.key);
        self.shards[shard_of(fingerprint)].get(&fingerprint) == Some(&(main << 1))
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

/// The second pass over the `key` bucket.
struct KvPass<'n> {
    newest: &'n NewestFound,
    /// With nothing to keep, etcd skips nothing.
    keeps_any: bool,
    compact_revision: Option<u64>,
    with: Crc,
    without: Crc,
}

impl ItemCheck for KvPass<'_> {
    fn item(&mut self, _page: u64, key: &[u8], value: &[u8]) {
        let Some((at, kv)) = RevisionKey::decode(key).zip(KeyValue::decode(value)) else { return };
        let main = at.revision.main;
        let compacted = self.compact_revision.is_some_and(|compacted| main <= compacted);
        if compacted && self.keeps_any && (at.tombstone || !self.newest.is_newest_put(&kv, main)) {
            return;
        }
        self.with.pair(key, value);
        if !(at.tombstone && self.compact_revision == Some(main)) {
            self.without.pair(key, value);
        }
    }

    fn absorb(&mut self, later: Self) {
        self.with.join(later.with);
        self.without.join(later.without);
    }
}

fn hashkv<S: ReadAt + ?Sized>(
    db: &Db<'_, S>,
    buckets: &[(Vec<u8>, Bucket)],
    compact_revision: Option<u64>,
    newest: &NewestFound,
    want: &Want<'_>,
) -> Result<Vec<Variant>, BoltError> {
    let Some((name, bucket)) = buckets.iter().find(|(name, _)| name == b"key") else { return Ok(Vec::new()) };
    let keeps_any = newest.live() > 0;
    let begin = || KvPass { newest, keeps_any, compact_revision, with: Crc::default(), without: Crc::default() };
    let (pass, _) = check::scan_bucket(db, &want.run, bucket, begin)?;
    let hash = |items| {
        let mut crc = Crc::default();
        crc.write(name);
        crc.join(items);
        crc.crc
    };
    let variants = HASHKV_VARIANTS.into_iter().zip([hash(pass.with), hash(pass.without)]);
    Ok(variants.map(|(etcd, hash)| Variant { etcd, hash }).collect())
}
