//! What a compaction of the chain says of its newest write.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod follow_support;

use std::path::Path;

use follow_support::{Place, revision, wait_log, write_some};
use serde_json::Value;

/// The newest manifest of a kind.
fn manifest(place: &Place, kind: &str) -> Value {
    let dir = place.path("store").join("quorate-v1").join(kind);
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_manifest = |path: &std::path::PathBuf| path.extension() == Some("json".as_ref());
    let newest: std::path::PathBuf = entries.filter(is_manifest).max().unwrap();
    read(&newest)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_compacted_chain_says_when_its_newest_write_was_recorded() {
    let place = Place::new();
    let server = place.etcd("sid");
    let mut follower = place.follow(&server.seat.client_url(), "spool", &["--full-schedule", "every 1h"]);
    wait_log(&follower, "stored a full backup and read it back");
    write_some(&server, "some");
    place.wait_stored(revision(&server));
    assert!(follower.stop().success(), "{}", follower.log());
    let recorded = manifest(&place, "delta")["last_write_ms"].as_i64().unwrap();
    place.backup(&["compact", "--store", &place.store]).unwrap();
    let full = manifest(&place, "full");
    assert_eq!((full["last"].as_u64(), full["last_write_ms"].as_i64()), (Some(revision(&server)), Some(recorded)));
    assert!(full["created_ms"].as_i64().unwrap() >= recorded);
}
