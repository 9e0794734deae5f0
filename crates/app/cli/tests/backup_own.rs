//! Our own layout: recorded lease grants come back, a kill leaves a store that works, epochs fence a writer off.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod backup_support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use backup_support::{backup, backup_json, gardener, url};
use quorate_backup::store::Store;
use quorate_backup::write::{self, About, Delta};
use quorate_etcd_formats::delta::{LeaseGrant, OwnedEvent};
use quorate_etcd_formats::mvcc::Revision;
use quorate_testkit::{Launch, Seat, etcd, quorate};
use serde_json::Value;

/// The real tool's store in our layout.
fn converted(root: &Path) -> String {
    let to = url(&root.join("store"));
    backup_json(root, &["convert", "--store", &url(&gardener().join("store")), "--to", &to]);
    to
}

fn put(revision: u64, key: &str, lease: i64) -> OwnedEvent {
    OwnedEvent {
        at: Revision { main: revision, sub: 0 },
        key: key.as_bytes().to_vec(),
        value: b"value".to_vec(),
        create_revision: revision as i64,
        version: 1,
        lease,
        time_ms: Some(1_794_773_700_000),
        ..OwnedEvent::default()
    }
}

/// Adds a delta as a writer of `epoch` would.
fn add_delta(store: &str, epoch: u64, grants: &[LeaseGrant], events: &[OwnedEvent]) {
    let store = Store::open(store, false).unwrap();
    let mut delta = Delta::begin().unwrap();
    grants.iter().for_each(|grant| delta.grant(*grant));
    for event in events {
        delta.push(&event.lend()).unwrap();
    }
    let created_ms = 1_794_773_700_000 + epoch as i64;
    delta.finish(&store, &About { epoch, created_ms, ..About::default() }).unwrap().unwrap();
}

#[test]
fn a_lease_whose_grant_was_recorded_comes_back_with_its_time() {
    let root = tempfile::tempdir().unwrap();
    let store = converted(root.path());
    let grant = LeaseGrant { id: 0x1234, ttl: 7200 };
    add_delta(&store, 1, &[grant], &[put(121, "granted", 0x1234), put(122, "forgotten", 0x5678)]);
    let seat = Seat::new("n1");
    let member = format!("n1={}", seat.peer_url());
    let args = ["restore", "--store", &store, "--name", "n1", "--data-dir", "n1", "--member", &member];
    let said = backup_json(root.path(), &args);
    assert_eq!(
        (said["written"]["leases_granted"].as_u64(), said["written"]["leases_created"].as_u64()),
        (Some(1), Some(1))
    );
    let server = Launch::new(&etcd("sid"), &seat, &root.path().join("n1")).start();
    let granted = |id: &str| server.ctl_json(&["lease", "timetolive", id])["granted-ttl"].as_i64();
    assert_eq!((granted("1234"), granted("5678")), (Some(7200), Some(3600)));
}

#[test]
fn what_a_fenced_writer_adds_is_not_restored() {
    let root = tempfile::tempdir().unwrap();
    let store = converted(root.path());
    let newer = About { epoch: 2, created_ms: 1, ..About::default() };
    assert!(write::epoch(&Store::open(&store, false).unwrap(), &newer, 121).unwrap());
    assert!(!write::epoch(&Store::open(&store, false).unwrap(), &newer, 5).unwrap(), "an epoch is opened once");
    add_delta(&store, 1, &[], &[put(121, "from the old writer", 0), put(122, "and more", 0)]);
    let listing = backup_json(root.path(), &["list", "--store", &store]);
    assert_eq!(listing["recoverable"][0]["to"].as_u64(), Some(120));
    assert!(listing["short"].as_str().unwrap().contains("epoch 2 began at revision 121"), "{listing}");
    add_delta(&store, 2, &[], &[put(121, "from the new writer", 0)]);
    let said = backup_json(root.path(), &["restore", "--store", &store, "--data-dir", "n1", "--exact"]);
    assert_eq!(said["last_write_revision"].as_u64(), Some(121));
    let used = said["deltas"].as_array().unwrap().last().unwrap().as_str().unwrap();
    assert!(used.contains("-e00000002-"), "{used}");
}

/// The hash of what is restored.
fn restored(root: &Path, store: &str, dir: &str) -> Value {
    let args = ["restore", "--store", store, "--data-dir", dir, "--exact", "--token", "t"];
    backup_json(root, &args)["written"]["hash"].clone()
}

#[test]
fn a_compaction_killed_at_any_time_leaves_a_store_that_gives_the_same() {
    let root = tempfile::tempdir().unwrap();
    let store = converted(root.path());
    let before = restored(root.path(), &store, "before");
    let mut finished = 0;
    for round in 0u64..12 {
        let mut child = Command::new(quorate())
            .args(["backup", "compact", "--store", &store])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(2 + 5 * round));
        let _ = child.kill();
        finished += u32::from(child.wait().unwrap().success());
        assert_eq!(restored(root.path(), &store, &format!("after-{round}")), before, "round {round}");
        let verify = backup(root.path(), &["verify", "--store", &store]);
        assert_eq!(verify.exit, 0, "round {round}: {}", verify.stdout);
    }
    let said = backup_json(root.path(), &["compact", "--store", &store]);
    assert!(finished > 0 || said["proven_equal"].as_bool() == Some(true) || said["full"].is_null(), "{said}");
}

#[test]
fn a_restore_killed_at_any_time_is_finished_by_the_next_run_and_leaves_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    let store = converted(root.path());
    let point = backup_json(root.path(), &["list", "--store", &store])["restore_point"].as_str().unwrap().to_owned();
    for round in 0u64..16 {
        let place = tempfile::tempdir_in(root.path()).unwrap();
        let args = ["restore", "--store", &store, "--data-dir", "n1", "--restore-point", &point];
        let mut child = Command::new(quorate())
            .current_dir(place.path())
            .arg("backup")
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(1 + 2 * round));
        let _ = child.kill();
        let _ = child.wait();
        backup_json(place.path(), &args);
        let names: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["n1"], "round {round}");
        let mut verify = Command::new(quorate());
        let verify = verify.current_dir(place.path()).args(["data", "verify", "n1"]).output().unwrap();
        assert!(verify.status.success(), "round {round}: {}", String::from_utf8_lossy(&verify.stdout));
    }
}
