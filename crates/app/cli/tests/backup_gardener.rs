//! The store that etcd-backup-restore wrote is brought back to the last field of the last key.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod backup_support;

use backup_support::{backup, backup_json, expected, gardener, url};
use quorate_testkit::{Seat, Server, etcd};
use serde_json::Value;

/// A restored member, running.
fn boot(version: &str, more: &[&str]) -> (Server, Value, tempfile::TempDir) {
    let root = tempfile::tempdir().unwrap();
    let seat = Seat::new("n1");
    let (store, member) = (url(&gardener().join("store")), format!("n1={}", seat.peer_url()));
    let args = ["restore", "--store", &store, "--name", "n1", "--data-dir", "n1", "--member", &member];
    let said = backup_json(root.path(), &[&args, more].concat());
    (Server::start(&etcd(version), &seat, &root.path().join("n1")), said, root)
}

#[test]
fn every_key_comes_back_with_every_field_and_its_lease() {
    let (server, said, _root) = boot("sid", &["--exact"]);
    assert_eq!((said["last_write_revision"].as_u64(), said["events"].as_u64()), (Some(120), Some(128)));
    let keys = server.ctl_json(&["get", "", "--prefix"]);
    let wanted = expected("keys.json");
    assert_eq!(keys["kvs"], wanted["kvs"]);
    assert_eq!(keys["header"]["revision"], wanted["header"]["revision"]);
    let hash = server.ctl_json(&["endpoint", "hashkv"]);
    let (there, wanted) = (&hash[0]["HashKV"], &expected("hashkv.json")[0]["HashKV"]);
    assert_eq!((&there["hash"], &there["compact_revision"]), (&wanted["hash"], &wanted["compact_revision"]));
    // The lease that ran while the backup was made is there; the one that had ended meanwhile took its key with it.
    let lease = expected("keys.json")["kvs"].as_array().unwrap().iter().find_map(|kv| kv["lease"].as_i64()).unwrap();
    let left = server.ctl_json(&["lease", "timetolive", &format!("{lease:x}"), "--keys"]);
    assert!(left["granted-ttl"].as_i64().unwrap() > 0, "{left}");
    assert_eq!(left["keys"].as_array().map(Vec::len), Some(2));
    assert_eq!(server.get("lease-short"), None);
}

#[test]
fn three_releases_boot_on_it_with_revisions_that_never_go_back() {
    for version in ["3.4.23", "3.5.16", "sid"] {
        let (server, said, _root) = boot(version, &[]);
        let keys = server.ctl_json(&["get", "", "--prefix"]);
        assert_eq!(keys["kvs"], expected("keys.json")["kvs"], "{version}");
        let revision = keys["header"]["revision"].as_u64().unwrap();
        assert!(revision >= 1_000_000_120, "{version}: {revision}");
        assert_eq!(said["written"]["revision"].as_u64(), Some(revision), "{version}");
    }
}

#[test]
fn members_with_one_restore_point_form_one_cluster() {
    let root = tempfile::tempdir().unwrap();
    let seats = Seat::many(3);
    let store = url(&gardener().join("store"));
    let list: Vec<String> =
        seats.iter().flat_map(|seat| ["--member".to_owned(), format!("{}={}", seat.name, seat.peer_url())]).collect();
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    let restore = |name: &str, more: &[&str]| {
        let args = ["restore", "--store", &store, "--name", name, "--data-dir", name, "--output", "json"];
        backup(root.path(), &[&args, &list[..], more].concat())
    };
    let refused = restore("n1", &[]);
    assert_eq!(refused.exit, 5, "{}", refused.stderr);
    assert!(!root.path().join("n1").exists());
    let fault: Value = serde_json::from_str(&refused.stdout).unwrap();
    let message = fault["error"]["message"].as_str().unwrap_or_else(|| panic!("{fault}"));
    let point = message.split('`').nth(1).unwrap();
    for seat in &seats {
        let run = restore(&seat.name, &["--restore-point", point]);
        assert_eq!(run.exit, 0, "{}", run.stderr);
    }
    // Again is no harm.
    let again: Value = serde_json::from_str(&restore("n1", &["--restore-point", point]).stdout).unwrap();
    assert_eq!(again["outcome"], "already");
    let members: Vec<_> = seats.iter().map(|seat| (seat.clone(), root.path().join(&seat.name))).collect();
    let cluster = quorate_testkit::Cluster::start(&etcd("sid"), &members);
    for seat in &seats {
        let keys = etcd("sid").ctl_json(&seat.client_url(), &["get", "", "--prefix"]);
        assert_eq!(keys["kvs"], expected("keys.json")["kvs"]);
    }
    cluster.stop();
    // Another digest is another state.
    let other = point.replacen(point.split(':').nth(1).unwrap(), &"0".repeat(32), 1);
    let run = restore("n1", &["--restore-point", &other]);
    assert!(run.exit == 5 && run.stdout.contains("Q0809"), "{}", run.stdout);
}

#[test]
fn a_damaged_delta_is_left_out_with_a_warning_or_refused_when_strict() {
    let root = tempfile::tempdir().unwrap();
    let store = root.path().join("store");
    for name in std::fs::read_dir(gardener().join("store/v2")).unwrap() {
        let name = name.unwrap();
        backup_support::put(&store.join("v2").join(name.file_name()), &std::fs::read(name.path()).unwrap());
    }
    let path = store.join("v2/Incr-00000068-00000108-1794773658.gz");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    backup_support::put(&path, &bytes);
    let store = url(&store);
    let args = ["restore", "--store", &store, "--data-dir", "n1"];
    let strict = backup(root.path(), &[&args[..], &["--strict"]].concat());
    assert_eq!(strict.exit, 1, "{}", strict.stderr);
    assert!(strict.stderr.contains("Q0805") && !root.path().join("n1").exists(), "{}", strict.stderr);
    let beyond = backup(root.path(), &[&args[..], &["--to-revision", "100"]].concat());
    assert!(beyond.exit == 1 && beyond.stderr.contains("Q0804"), "{}", beyond.stderr);
    let run = backup(root.path(), &args);
    assert_eq!(run.exit, 0, "{}", run.stderr);
    assert!(run.stderr.contains("Q0806") && run.stderr.contains("Q0805"), "{}", run.stderr);
    assert!(run.stdout.contains("newest write   revision 67"), "{}", run.stdout);
    let names: Vec<_> = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing partial is left: {names:?}");
    let verify = backup(root.path(), &["verify", "--store", &store]);
    assert!(
        verify.exit == 1 && verify.stdout.contains("Q0806") && verify.stdout.contains("Q0805"),
        "{}",
        verify.stdout
    );
}

#[test]
fn a_drill_boots_etcd_and_cleans_up() {
    let root = tempfile::tempdir().unwrap();
    let store = url(&gardener().join("store"));
    let program = etcd("sid").etcd.display().to_string();
    let said = backup_json(root.path(), &["verify", "--store", &store, "--drill", "--etcd", &program]);
    assert_eq!((said["valid"].as_bool(), said["drill"]["keys"].as_u64()), (Some(true), Some(28)));
    assert_eq!(said["drill"]["revision"].as_u64(), Some(120));
}

#[test]
fn converting_and_compacting_change_nothing_that_can_be_restored() {
    let root = tempfile::tempdir().unwrap();
    let (from, to) = (url(&gardener().join("store")), url(&root.path().join("own")));
    let said = backup_json(root.path(), &["convert", "--store", &from, "--to", &to]);
    assert_eq!((said["converted"].as_u64(), said["left_out"].as_array().map(Vec::len)), (Some(5), Some(0)));
    // A conversion that was interrupted is simply run again.
    assert_eq!(backup_json(root.path(), &["convert", "--store", &from, "--to", &to])["converted"].as_u64(), Some(5));
    let hash = |name: &str, more: &[&str]| {
        let args = ["restore", "--store", &to, "--data-dir", name, "--exact", "--token", "t"];
        backup_json(root.path(), &[&args, more].concat())["written"]["hash"].clone()
    };
    let before = [hash("a", &[]), hash("b", &["--to-revision", "66"])];
    let compacted = backup_json(root.path(), &["compact", "--store", &to]);
    assert_eq!((compacted["proven_equal"].as_bool(), compacted["revision"].as_u64()), (Some(true), Some(120)));
    let listing = backup_json(root.path(), &["list", "--store", &to]);
    assert_eq!(listing["objects"].as_array().map(Vec::len), Some(6));
    assert_eq!(listing["recoverable"][0], serde_json::json!({"from": 33, "to": 120}));
    // Once from the new full alone, once from the old objects, which stayed.
    assert_eq!([hash("c", &[]), hash("d", &["--to-revision", "66"])], before);
    let again = backup_json(root.path(), &["compact", "--store", &to]);
    assert_eq!(again["full"], Value::Null, "there is nothing left to do");
    let verify = backup_json(root.path(), &["verify", "--store", &to]);
    assert_eq!(verify["valid"].as_bool(), Some(true));
}
