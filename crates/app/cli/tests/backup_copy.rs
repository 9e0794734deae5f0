//! `backup copy`, and every other verb on a bucket: the real binary, a folder and a real server of the S3 protocol.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod backup_support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use backup_support::{Run, backup, gardener, put, url};
use quorate_backup::store::{Patience, Store};
use quorate_backup::write::{About, Delta};
use quorate_etcd_formats::delta::OwnedEvent;
use quorate_etcd_formats::delta::quorate::Origin;
use quorate_etcd_formats::mvcc::Revision;
use quorate_testkit::{FaultyS3, S3, S3_SECRET, Weather, kill_hard, quorate, s3, wait_until};
use serde_json::Value;

/// `quorate backup` with the environment of a client of the S3 server.
fn with(env: &[(String, String)], dir: &Path, args: &[&str]) -> Run {
    let mut command = Command::new(quorate());
    command.current_dir(dir).arg("backup").args(args).envs(env.iter().map(|(key, value)| (key, value)));
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(!stdout.contains(S3_SECRET) && !stderr.contains(S3_SECRET), "no secret is shown");
    Run { exit: output.status.code().unwrap_or(-1), stdout, stderr }
}

fn json(s3: &S3, dir: &Path, args: &[&str]) -> Value {
    let run = with(&s3.env(), dir, &[args, &["--output", "json"]].concat());
    assert_eq!(run.exit, 0, "{args:?}: {}{}", run.stdout, run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// Names and bytes of all objects.
fn content(store: &Store) -> BTreeMap<String, Vec<u8>> {
    let read = |name: &str| {
        let mut bytes = Vec::new();
        std::io::copy(&mut store.reader(name).unwrap(), &mut bytes).unwrap();
        bytes
    };
    store.list().unwrap().into_iter().map(|listed| (listed.name.clone(), read(&listed.name))).collect()
}

fn open(s3: &S3, store: &str) -> Store {
    Store::open_in(store, true, Patience::default(), &s3.env()).unwrap()
}

/// A delta of a cluster.
fn delta(store: &Store, cluster_id: u64, revision: u64) {
    let mut delta = Delta::begin().unwrap();
    let event = OwnedEvent {
        at: Revision { main: revision, sub: 0 },
        key: b"key".to_vec(),
        value: b"value".to_vec(),
        create_revision: revision as i64,
        version: 1,
        ..OwnedEvent::default()
    };
    delta.push(&event.lend()).unwrap();
    let origin = Origin { cluster_id, ..Origin::default() };
    delta
        .finish(store, &About { origin, epoch: 1, created_ms: 1_794_773_700_000, ..About::default() })
        .unwrap()
        .unwrap();
}

#[test]
fn a_bucket_serves_for_every_verb() {
    let (root, s3) = (tempfile::tempdir().unwrap(), s3());
    let store = s3.url("prod");
    json(&s3, root.path(), &["convert", "--store", &url(&gardener().join("store")), "--to", &store]);
    let listed = json(&s3, root.path(), &["list", "--store", &store]);
    assert_eq!(listed["newest_revision"], 120, "{listed}");
    let args =
        ["restore", "--store", &store, "--name", "n1", "--data-dir", "n1", "--member", "n1=http://127.0.0.1:2380"];
    let restored = json(&s3, root.path(), &args);
    assert_eq!(restored["last_write_revision"], 120, "{restored}");
    let data = Command::new(quorate()).current_dir(root.path()).args(["data", "verify", "n1"]).output().unwrap();
    assert!(data.status.success(), "{}", String::from_utf8_lossy(&data.stdout));
    json(&s3, root.path(), &["compact", "--store", &store]);
    let verified = json(&s3, root.path(), &["verify", "--store", &store]);
    assert_eq!(verified["valid"], true, "{verified}");
    let none = with(&s3.env(), root.path(), &["list", "--store", "s3://no-such-bucket/x"]);
    assert_eq!(none.exit, 1, "{}", none.stderr);
    assert!(none.stderr.contains("Q0821"), "{}", none.stderr);
}

#[test]
fn both_layouts_come_through_a_bucket_and_back_unchanged() {
    let (root, s3) = (tempfile::tempdir().unwrap(), s3());
    let own = url(&root.path().join("own"));
    json(&s3, root.path(), &["convert", "--store", &url(&gardener().join("store")), "--to", &own]);
    for (number, from) in [url(&gardener().join("store")), own].into_iter().enumerate() {
        let (there, back) = (s3.url(&format!("copy-{number}")), url(&root.path().join(format!("back-{number}"))));
        let first = json(&s3, root.path(), &["copy", "--store", &from, "--to", &there]);
        assert_eq!(first["already"], 0, "{first}");
        let again = json(&s3, root.path(), &["copy", "--store", &from, "--to", &there]);
        assert_eq!((&again["copied"], &again["bytes"], &again["already"]), (&0.into(), &0.into(), &first["copied"]));
        json(&s3, root.path(), &["copy", "--store", &there, "--to", &back]);
        let (before, after) = (content(&open(&s3, &from)), content(&open(&s3, &back)));
        assert!(before.len() > 3);
        assert!(before == after, "{:?} {:?}", before.keys(), after.keys());
    }
}

#[test]
fn a_copy_that_was_killed_goes_on_where_it_stopped() {
    let (root, s3) = (tempfile::tempdir().unwrap(), s3());
    let from = url(&root.path().join("own"));
    json(&s3, root.path(), &["convert", "--store", &url(&gardener().join("store")), "--to", &from]);
    let whole = content(&open(&s3, &from));
    for after in [4, 12, 25] {
        let to = s3.url(&format!("killed-{after}"));
        let proxy = FaultyS3::start(&s3, 1, Weather::Healthy);
        let mut command = Command::new(quorate());
        command.args(["backup", "copy", "--store", &from, "--to", &to]).envs(s3.env_at(&proxy.endpoint()));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("some requests", Duration::from_secs(30), || proxy.counts().0 >= after);
        kill_hard(child.id());
        assert!(!child.wait().unwrap().success(), "it was killed before it had ended");
        let half = content(&open(&s3, &to));
        assert!(half.len() < whole.len(), "{after} requests were all of it");
        assert!(half.iter().all(|(name, bytes)| whole.get(name) == Some(bytes)), "what is there is whole");
        for manifest in half.keys().filter(|name| name.ends_with(".json") && !name.contains("/epoch/")) {
            assert!(half.contains_key(&manifest.replace(".json", ".zst")), "no manifest without its object");
        }
        json(&s3, root.path(), &["copy", "--store", &from, "--to", &to]);
        assert!(content(&open(&s3, &to)) == whole);
    }
}

#[test]
fn damage_is_not_spread_and_nothing_is_overwritten() {
    let (root, s3) = (tempfile::tempdir().unwrap(), s3());
    let (folder, to) = (root.path().join("own"), s3.url("target"));
    let from = url(&folder);
    json(&s3, root.path(), &["convert", "--store", &url(&gardener().join("store")), "--to", &from]);
    let whole = content(&open(&s3, &from));
    let victim = whole.keys().rfind(|name| name.ends_with(".zst")).unwrap().clone();
    let mut bytes = whole[&victim].clone();
    *bytes.last_mut().unwrap() ^= 1;
    put(&folder.join(&victim), &bytes);
    let run = with(&s3.env(), root.path(), &["copy", "--store", &from, "--to", &to]);
    assert_eq!(run.exit, 1, "{}", run.stderr);
    assert!(run.stderr.contains("Q0826") && run.stderr.contains(&victim), "{}", run.stderr);
    let there = content(&open(&s3, &to));
    assert!(!there.contains_key(&victim) && !there.contains_key(&victim.replace(".zst", ".json")));
    assert_eq!(there.len(), whole.len() - 2);
    // The object is mended, and meanwhile someone put other bytes under its name into the target.
    put(&folder.join(&victim), &whole[&victim]);
    assert!(open(&s3, &to).create(&victim, bytes.clone()).unwrap());
    let run = with(&s3.env(), root.path(), &["copy", "--store", &from, "--to", &to]);
    assert_eq!(run.exit, 5, "{}", run.stderr);
    assert!(run.stderr.contains("Q0825"), "{}", run.stderr);
    assert_eq!(content(&open(&s3, &to))[&victim], bytes, "it was not touched");
    open(&s3, &to).delete(&victim).unwrap();
    json(&s3, root.path(), &["copy", "--store", &from, "--to", &to]);
    assert!(content(&open(&s3, &to)) == whole);
}

#[test]
fn a_target_of_another_cluster_is_refused() {
    let (root, s3) = (tempfile::tempdir().unwrap(), s3());
    let (from, to) = (url(&root.path().join("from")), s3.url("to"));
    delta(&open(&s3, &from), 0xa, 5);
    delta(&open(&s3, &to), 0xb, 6);
    let before = content(&open(&s3, &to));
    let run = with(&s3.env(), root.path(), &["copy", "--store", &from, "--to", &to]);
    assert_eq!(run.exit, 5, "{}", run.stderr);
    assert!(run.stderr.contains("Q0824"), "{}", run.stderr);
    assert!(content(&open(&s3, &to)) == before, "nothing was copied");
    let same = url(&root.path().join("same"));
    delta(&open(&s3, &same), 0xa, 6);
    assert_eq!(backup(root.path(), &["copy", "--store", &from, "--to", &same]).exit, 0, "the same cluster is welcome");
}
