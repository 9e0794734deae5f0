//! Proves that a new full holds what a chain leads to, before and after it goes into the store.
//!
//! It does not go by the engine that made the full: it walks the new database on one side, the old one and the writes
//! behind it on the other, and compares what each side says, write by write.

use std::path::Path;

use quorate_etcd_formats::bolt::{BoltError, Bucket, Db};
use quorate_etcd_formats::delta::quorate::Manifest;
use quorate_etcd_formats::delta::{Event, Events};
use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::mvcc::{KeyValue, RevisionKey};
use quorate_etcd_formats::snapshot_file;
use quorate_faults::{Code, Fault, Result};
use sha2::{Digest, Sha256};

use crate::base::{Base, PlainFile};
use crate::catalog::Handle;
use crate::decode::Failure;
use crate::events::ChainEvents;
use crate::store::Store;

/// Compares a snapshot file with `base` and all of `events`.
pub fn file_equals_chain(file: &Path, base: &Base, events: &mut ChainEvents) -> Result<()> {
    let new = walk(file, None).map_err(|error| differs(&error))?;
    let old = walk(base.path(), Some(events)).map_err(|error| differs(&error))?;
    if new.writes != old.writes {
        return Err(differs("their writes differ"));
    }
    if new.others != old.others {
        return Err(differs("their members, versions or permissions differ"));
    }
    match old.leases.iter().all(|lease| new.leases.contains(lease)) {
        true => Ok(()),
        false => Err(differs("a lease is missing")),
    }
}

/// Reads a full back from the store and compares it with what was written.
pub fn arrived(store: &Store, name: &str, written: &Manifest, scratch: &Path) -> Result<()> {
    let full = Base::fetch(store, name, &Handle::own(name), scratch).map_err(|failure| match failure {
        Failure::Damaged(why) => differs(&why),
        Failure::Store(fault) => fault,
    })?;
    let same = hex(&full.content_sha256) == written.content.sha256 && hex(&full.stored_sha256) == written.stored.sha256;
    if same { Ok(()) } else { Err(differs("the store gives back other bytes than it was given")) }
}

fn differs(why: &str) -> Fault {
    Fault::new(Code::CompactDiffers, format!("the new full does not equal the chain that it was made from: {why}"))
        .hint("it is not in the store; prune nothing, and run `quorate backup verify`")
}

/// What one side says.
struct Said {
    /// How many writes, and a hash over all of them in order.
    writes: (u64, [u8; 32]),
    /// A hash over all buckets but keys and leases.
    others: [u8; 32],
    /// The ids of the leases.
    leases: Vec<Vec<u8>>,
}

fn walk(path: &Path, events: Option<&mut ChainEvents>) -> std::result::Result<Said, String> {
    let file = PlainFile::open(path).map_err(|error| error.to_string())?;
    let body = snapshot_file::Body::new(&file);
    let text = |error: BoltError| error.to_string();
    let db = Db::open(&body).map_err(text)?;
    let (mut writes, mut others) = (Writes::default(), Sha256::new());
    let mut leases = Vec::new();
    for (name, bucket) in &db.buckets().map_err(text)? {
        match name.as_slice() {
            b"key" => key_bucket(&db, bucket, &mut writes)?,
            b"lease" => {
                db.for_each(bucket, |key, _| leases.push(key.to_vec())).map_err(text)?;
            }
            _ => {
                others.update(name);
                db.for_each(bucket, |key, value| sized(&mut others, &[key, value])).map_err(text)?;
            }
        }
    }
    if let Some(events) = events {
        while let Some(event) = events.next().map_err(|error| error.to_string())? {
            writes.add(&event);
        }
    }
    Ok(Said { writes: (writes.count, writes.hasher.finalize().into()), others: others.finalize().into(), leases })
}

fn key_bucket(
    db: &Db<'_, impl quorate_etcd_formats::ReadAt + ?Sized>,
    bucket: &Bucket,
    writes: &mut Writes,
) -> std::result::Result<(), String> {
    let mut odd = 0u64;
    let walked = db.for_each(bucket, |key, value| match RevisionKey::decode(key).zip(KeyValue::decode(value)) {
        Some((at, kv)) => writes.add(&Event { at: at.revision, tombstone: at.tombstone, kv, time_ms: None }),
        None => odd += 1,
    });
    walked.map_err(|error| error.to_string())?;
    if odd > 0 { Err(format!("{odd} records are no writes")) } else { Ok(()) }
}

#[derive(Default)]
struct Writes {
    count: u64,
    hasher: Sha256,
}

impl Writes {
    fn add(&mut self, event: &Event<'_>) {
        let kv = &event.kv;
        self.count += 1;
        for number in [event.at.main, event.at.sub, u64::from(event.tombstone)] {
            self.hasher.update(number.to_be_bytes());
        }
        if event.tombstone {
            return sized(&mut self.hasher, &[kv.key]);
        }
        for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease] {
            self.hasher.update(number.to_be_bytes());
        }
        sized(&mut self.hasher, &[kv.key, kv.value]);
    }
}

/// Hashes parts so that no two lists of parts look the same.
fn sized(hasher: &mut Sha256, parts: &[&[u8]]) {
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
}
