//! Runs `quorate backup`, and makes stores from what a live etcd did.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::io::Write;
use std::path::Path;
use std::process::Command;

use quorate_testkit::{fixtures_root, quorate};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// How a run ended and what it said.
pub(crate) struct Run {
    pub(crate) exit: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// `quorate backup` in `dir`.
pub(crate) fn backup(dir: &Path, args: &[&str]) -> Run {
    let output = Command::new(quorate()).current_dir(dir).arg("backup").args(args).output().unwrap();
    Run {
        exit: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The same as machines see it; panics when it fails.
pub(crate) fn backup_json(dir: &Path, args: &[&str]) -> Value {
    let run = backup(dir, &[args, &["--output", "json"]].concat());
    assert_eq!(run.exit, 0, "{args:?}: {}{}", run.stdout, run.stderr);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {}", run.stdout))
}

pub(crate) fn url(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// The store that the real tool wrote, and what its etcd said.
pub(crate) fn gardener() -> std::path::PathBuf {
    fixtures_root().join("gardener-store-small")
}

pub(crate) fn expected(what: &str) -> Value {
    serde_json::from_slice(&std::fs::read(gardener().join(what)).unwrap()).unwrap()
}

pub(crate) fn put(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::File::create(path).unwrap().write_all(bytes).unwrap();
}

/// Events of `etcdctl watch -w json`, in order.
pub(crate) fn watched(log: &str) -> Vec<Value> {
    let lines = log.lines().filter(|line| line.starts_with('{'));
    lines
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .flat_map(|answer| answer["Events"].as_array().cloned().unwrap_or_default())
        .collect()
}

pub(crate) fn revision(event: &Value) -> u64 {
    event["kv"]["mod_revision"].as_u64().unwrap()
}

/// Writes a delta as etcd-backup-restore does; each write is stamped with a second of its own revision.
pub(crate) fn gardener_delta(store: &Path, events: &[Value]) {
    let (first, last) = (revision(&events[0]), revision(&events[events.len() - 1]));
    let array: Vec<Value> = events
        .iter()
        .map(|event| {
            let time = jiff::Timestamp::from_second(time_of(revision(event))).unwrap().to_string();
            serde_json::json!({"etcdEvent": event, "time": time})
        })
        .collect();
    let text = serde_json::to_vec(&array).unwrap();
    let body = [text.as_slice(), Sha256::digest(&text).as_slice()].concat();
    put(&store.join(format!("v2/Incr-{first:08}-{last:08}-{}", time_of(last))), &body);
}

/// When a write of the test's history happened.
pub(crate) fn time_of(revision: u64) -> i64 {
    1_700_000_000 + revision as i64
}

/// What restoring the newest state of a store gives: its revision and etcd's hash of it. `None`: nothing can be restored.
pub(crate) fn newest(store: &Path, scratch: &Path) -> Option<(u64, u32)> {
    use quorate_backup::session::{Session, Wanted};
    use quorate_etcd::datadir::FileSource;
    use quorate_etcd::engine::{BaseFile, Ingredients, write_database};
    use quorate_etcd_formats::rebuild::Options;
    use quorate_faults::Fault;
    use quorate_host::durable::{Access, Disk, RealDisk};
    use quorate_plan::chain::Target;

    let mut session = Session::open(&url(store), scratch).ok()?;
    let mut round = 0;
    let proven = session.run(&Wanted::Target(Target::Newest), |base, events, _| {
        round += 1;
        let dir = tempfile::tempdir_in(scratch).unwrap();
        let source = FileSource::open(base.path()).map_err(|error| Fault::io("cannot read", error))?;
        let base = Some(BaseFile { source: &source, name: &base.name, check_hash: false });
        let mut file = RealDisk.create_file(&dir.path().join("db.partial-1"), Access::mode(0o600))?;
        let progress = std::sync::atomic::AtomicU64::new(0);
        write_database(
            &mut file,
            Ingredients { base, events: Some(events), options: Options::copy(), progress: &progress },
        )
    });
    assert!(round < 20, "{} rounds for {}", round, store.display());
    proven.ok().map(|proven| (proven.revision, proven.result.hash))
}

/// One write as a database holds it. A tombstone has a key and a place, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OneWrite {
    pub(crate) at: (u64, u64),
    pub(crate) tombstone: bool,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) create_revision: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
}

/// Every write in the `key` bucket of a database, tombstones too.
pub(crate) fn writes_of(database: &[u8]) -> Vec<OneWrite> {
    use quorate_etcd_formats::bolt::Db;
    use quorate_etcd_formats::mvcc::{KeyValue, RevisionKey};

    let db = Db::open(database).unwrap();
    let mut writes = Vec::new();
    for (_, bucket) in db.buckets().unwrap().iter().filter(|(name, _)| name == b"key") {
        let add = |key: &[u8], value: &[u8]| {
            let (at, kv) = (RevisionKey::decode(key).unwrap(), KeyValue::decode(value).unwrap());
            assert!(at.tombstone || kv.mod_revision as u64 == at.revision.main);
            writes.push(OneWrite {
                at: (at.revision.main, at.revision.sub),
                tombstone: at.tombstone,
                key: kv.key.to_vec(),
                value: kv.value.to_vec(),
                create_revision: kv.create_revision,
                version: kv.version,
                lease: kv.lease,
            });
        };
        db.for_each(bucket, add).unwrap();
    }
    writes
}

/// The live keys after some writes, as `etcdctl get -w json` prints them.
pub(crate) fn live_keys(writes: &[OneWrite]) -> Value {
    let mut live = std::collections::BTreeMap::new();
    for write in writes {
        match write.tombstone {
            true => live.remove(&write.key),
            false => live.insert(write.key.clone(), write),
        };
    }
    let shown = |write: &&OneWrite| {
        let mut kv = serde_json::json!({
            "key": base64(&write.key),
            "create_revision": write.create_revision,
            "mod_revision": write.at.0,
            "version": write.version,
        });
        if !write.value.is_empty() {
            kv["value"] = base64(&write.value).into();
        }
        if write.lease != 0 {
            kv["lease"] = write.lease.into();
        }
        kv
    };
    if live.is_empty() { Value::Null } else { live.values().map(shown).collect() }
}

/// What a watched event is to be in a database; `sub` is its place in its transaction.
pub(crate) fn write_of(event: &Value, sub: u64) -> OneWrite {
    let kv = &event["kv"];
    let bytes = |field: &str| unbase64(kv[field].as_str().unwrap_or_default());
    let number = |field: &str| kv[field].as_i64().unwrap_or(0);
    let tombstone = event["type"].as_i64() == Some(1);
    let kept = |number: i64| if tombstone { 0 } else { number };
    OneWrite {
        at: (revision(event), sub),
        tombstone,
        key: bytes("key"),
        value: bytes("value"),
        create_revision: kept(number("create_revision")),
        version: kept(number("version")),
        lease: kept(number("lease")),
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = (0..3).fold(0, |number, at| number << 8 | u32::from(three.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

fn unbase64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for four in text.as_bytes().chunks(4) {
        let digit = |byte: &u8| DIGITS.iter().position(|digit| digit == byte).unwrap_or(0) as u32;
        let number = four.iter().fold(0, |number, byte| number << 6 | digit(byte));
        let length = 3 - four.iter().filter(|byte| **byte == b'=').count();
        bytes.extend_from_slice(&number.to_be_bytes()[1..=length]);
    }
    bytes
}
