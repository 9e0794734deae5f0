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
