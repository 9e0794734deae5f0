//! Pruning stores of both layouts: what stays can be restored, what is not proven stays, what is missing is seen.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod backup_support;

use std::fs;
use std::path::{Path, PathBuf};

use backup_support::{backup, backup_json, gardener, put, url};
use serde_json::Value;

/// Only the newest chain is to stay.
const NOTHING: [&str; 12] = [
    "--keep-last",
    "0",
    "--keep-hourly",
    "0",
    "--keep-daily",
    "0",
    "--keep-weekly",
    "0",
    "--keep-monthly",
    "0",
    "--keep-history",
    "0",
];

/// A scratch copy of the store that the real tool wrote.
fn foreign(root: &Path) -> PathBuf {
    let to = root.join("foreign");
    for file in files(&gardener().join("store")) {
        let name = file.strip_prefix(gardener().join("store")).unwrap().to_owned();
        put(&to.join(name), &fs::read(file).unwrap());
    }
    to
}

/// The same in our layout.
fn own(root: &Path) -> PathBuf {
    let to = root.join("own");
    backup_json(root, &["convert", "--store", &url(&foreign(root)), "--to", &url(&to)]);
    to
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Makes a second full of the newest state, so that there is something to remove.
fn compacted(root: &Path, store: PathBuf) -> PathBuf {
    backup_json(root, &["compact", "--store", &url(&store)]);
    store
}

/// Flips a bit in the middle of a file.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    put(path, &bytes);
}

/// The objects of one kind of our layout, in the order of their names.
fn objects(store: &Path, kind: &str) -> Vec<PathBuf> {
    let all = files(&store.join("quorate-v1").join(kind)).into_iter();
    all.filter(|path| path.extension().unwrap() == "zst").collect()
}

/// Somebody else removes a file.
fn take(path: &Path) {
    fs::remove_file(path).unwrap();
}

fn prune(root: &Path, store: &Path, more: &[&str]) -> Value {
    let store = url(store);
    backup_json(root, &[&["prune", "--store", &store], NOTHING.as_slice(), more].concat())
}

fn newest(root: &Path, store: &Path) -> Option<u64> {
    backup_json(root, &["list", "--store", &url(store)])["newest_revision"].as_u64()
}

fn whole(root: &Path, store: &Path) {
    let run = backup(root, &["verify", "--store", &url(store)]);
    assert_eq!(run.exit, 0, "{}{}", run.stdout, run.stderr);
}

#[test]
fn what_stays_is_whole_in_both_layouts_and_a_dry_run_removes_nothing() {
    let root = tempfile::tempdir().unwrap();
    for store in [own(root.path()), foreign(root.path())] {
        let store = compacted(root.path(), store);
        let (before, reach) = (files(&store), newest(root.path(), &store));
        let dry = prune(root.path(), &store, &["--dry-run"]);
        let to_remove = dry["to_remove"].as_u64().unwrap();
        assert!(to_remove > 0 && dry["bytes_freed"].as_u64().unwrap() > 0, "{dry}");
        assert_eq!(files(&store), before);
        let done = prune(root.path(), &store, &[]);
        assert_eq!(done["removed"].as_u64(), Some(to_remove), "{done}");
        assert!(files(&store).len() < before.len());
        assert_eq!(newest(root.path(), &store), reach);
        whole(root.path(), &store);
        let again = prune(root.path(), &store, &[]);
        assert_eq!(again["removed"].as_u64(), Some(0), "{again}");
    }
}

#[test]
fn the_table_says_what_stays_and_why() {
    let root = tempfile::tempdir().unwrap();
    let store = own(root.path());
    let run = backup(root.path(), &["prune", "--store", &url(&store), "--dry-run"]);
    assert_eq!(run.exit, 0, "{}", run.stderr);
    assert!(run.stdout.contains("newest chain"), "{}", run.stdout);
    assert!(run.stdout.contains("rules: last 3, hourly 24, daily 7, weekly 5, monthly 12, history"), "{}", run.stdout);
    assert!(run.stdout.contains("nothing was removed"), "{}", run.stdout);
}

#[test]
fn nothing_goes_when_the_newest_chain_does_not_hold() {
    let root = tempfile::tempdir().unwrap();
    let store = compacted(root.path(), own(root.path()));
    flip(objects(&store, "full").last().unwrap());
    flip(objects(&store, "delta").last().unwrap());
    let before = files(&store);
    let store_url = url(&store);
    let run = backup(root.path(), &[["prune", "--store", &store_url].as_slice(), &NOTHING].concat());
    assert_eq!(run.exit, 5, "{}{}", run.stdout, run.stderr);
    assert!(run.stderr.contains("Q0840"), "{}", run.stderr);
    assert_eq!(files(&store), before);
}

#[test]
fn a_damaged_newest_full_keeps_the_chain_that_replaces_it() {
    let root = tempfile::tempdir().unwrap();
    let store = compacted(root.path(), own(root.path()));
    flip(objects(&store, "full").last().unwrap());
    let before = files(&store);
    let done = prune(root.path(), &store, &[]);
    assert_eq!((done["removed"].as_u64(), done["newest_revision"].as_u64()), (Some(0), Some(120)), "{done}");
    assert_eq!(files(&store), before);
}

#[test]
fn a_run_that_was_cut_short_is_finished_by_the_next() {
    let root = tempfile::tempdir().unwrap();
    let store = compacted(root.path(), own(root.path()));
    // The object went, its manifest did not.
    take(&objects(&store, "delta")[1]);
    let done = prune(root.path(), &store, &[]);
    assert_eq!(done["newest_revision"].as_u64(), Some(120), "{done}");
    whole(root.path(), &store);
}

#[test]
fn an_object_that_is_cut_or_gone_is_seen_without_reading_it() {
    let root = tempfile::tempdir().unwrap();
    let store = own(root.path());
    let deltas = objects(&store, "delta");
    let [.., cut, gone] = deltas.as_slice() else { panic!("{deltas:?}") };
    let bytes = fs::read(cut).unwrap();
    put(cut, &bytes[..bytes.len() - 1]);
    take(gone);
    let run = backup(root.path(), &["list", "--store", &url(&store)]);
    assert_eq!(run.exit, 0, "{}", run.stderr);
    let told = |what: &str| run.stdout.lines().any(|line| line.contains("UNUSABLE") && line.contains(what));
    let sizes = format!("it has {} bytes, and its manifest says {}", bytes.len() - 1, bytes.len());
    assert!(told(&sizes), "{}", run.stdout);
    assert!(told("it is not there, only its manifest is"), "{}", run.stdout);
    let verified = backup(root.path(), &["verify", "--store", &url(&store)]);
    assert_eq!(verified.exit, 1, "{}", verified.stderr);
}

#[test]
fn list_says_what_is_at_risk_and_how_long_a_restore_takes() {
    let root = tempfile::tempdir().unwrap();
    let store = own(root.path());
    let listing = backup_json(root.path(), &["list", "--store", &url(&store)]);
    assert!(listing["at_risk"]["rpo_seconds"].as_f64().is_some(), "{listing}");
    assert!(listing["restore"]["estimated_seconds"].as_f64().unwrap() > 0.0, "{listing}");
    assert_eq!(listing["restore"]["cost"]["assumed_objects"].as_u64(), Some(0), "{listing}");
    assert_eq!(listing["epochs"][0]["epoch"].as_u64(), Some(1), "{listing}");
    let text = backup(root.path(), &["list", "--store", &url(&store)]).stdout;
    assert!(text.contains("if everything were lost now, writes since"), "{text}");
    // A full that is made of what is there brings nothing newer.
    let since = |listing: &Value| listing["at_risk"]["since"].as_str().unwrap().to_owned();
    let after = backup_json(root.path(), &["list", "--store", &url(&compacted(root.path(), store))]);
    assert_eq!(since(&after), since(&listing));
}

#[test]
fn a_length_of_time_that_is_none_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let store = url(&foreign(root.path()));
    let run = backup(root.path(), &["prune", "--store", &store, "--keep-history", "soon"]);
    assert_eq!(run.exit, 4, "{}", run.stderr);
    assert!(run.stderr.contains("Q0842"), "{}", run.stderr);
}

#[test]
fn what_killed_uploads_left_goes_after_a_day_and_not_before() {
    let root = tempfile::tempdir().unwrap();
    let store = own(root.path());
    let folder = objects(&store, "full")[0].parent().unwrap().to_owned();
    let (old, fresh) = (folder.join("upload.zst#1"), folder.join("upload.zst#2"));
    put(&old, b"half of something");
    put(&fresh, b"half of something");
    quorate_testkit::run(std::process::Command::new("touch").args(["-d", "-25 hours"]).arg(&old));
    let planned = prune(root.path(), &store, &["--dry-run"]);
    let left_overs = planned["left_overs"].as_array().unwrap();
    assert_eq!(left_overs.len(), 1, "{planned}");
    assert!(left_overs[0].as_str().unwrap().ends_with("upload.zst#1"), "{planned}");
    assert!(old.exists() && fresh.exists());
    prune(root.path(), &store, &[]);
    assert!(!old.exists() && fresh.exists());
    whole(root.path(), &store);
}

#[test]
fn what_a_store_protects_stays_and_is_said_and_goes_when_it_may() {
    use quorate_testkit::{FaultyS3, Weather, quorate, s3};
    let root = tempfile::tempdir().unwrap();
    let local = compacted(root.path(), own(root.path()));
    let (s3, store) = (s3(), "p");
    let proxy = FaultyS3::start(&s3, 1, Weather::Healthy);
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(quorate());
        command.envs(s3.env_at(&proxy.endpoint())).arg("backup").args(words).args(["--output", "json"]);
        let output = command.output().unwrap();
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), said, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let store = s3.url(store);
    let (code, _, told) = run(&["copy", "--store", &url(&local), "--to", &store]);
    assert_eq!(code, Some(0), "{told}");
    let names = || {
        let (_, listed, _) = run(&["list", "--store", &store]);
        listed["objects"].as_array().unwrap().iter().map(|object| object["name"].clone()).collect::<Vec<Value>>()
    };
    let before = names();
    let prune = [&["prune", "--store", &store], &NOTHING[..]].concat();
    proxy.protect(true);
    let (code, said, told) = run(&prune);
    assert_eq!(code, Some(1), "{said} {told}");
    let locked = said["locked"].as_array().unwrap();
    assert!(!locked.is_empty() && locked.len() as u64 == said["to_remove"].as_u64().unwrap(), "{said}");
    assert_eq!((&said["removed"], &said["bytes_freed"]), (&0.into(), &0.into()), "{said}");
    assert!(told.contains("Q0841") && told.contains("protected by object lock"), "{told}");
    assert_eq!(names(), before, "every object stays, its manifest too");
    let (code, ..) = run(&["verify", "--store", &store]);
    assert_eq!(code, Some(0));
    proxy.protect(false);
    let (code, said, told) = run(&prune);
    assert_eq!((code, said["locked"].as_array().map(Vec::len)), (Some(0), Some(0)), "{said} {told}");
    assert_eq!(names().len() + locked.len(), before.len());
}

#[test]
fn by_a_clock_that_is_ahead_nothing_is_removed_in_both_layouts() {
    let root = tempfile::tempdir().unwrap();
    let clock = quorate_testkit::FakeClock::new(root.path());
    for store in [own(root.path()), foreign(root.path())] {
        clock.set(0);
        let store = compacted(root.path(), store);
        let prune = |ahead: i64| {
            clock.set(ahead);
            let mut command = std::process::Command::new(quorate_testkit::quorate());
            command.args(["backup", "prune", "--store", &url(&store), "--output", "json"]).args(NOTHING);
            let output = command.envs(clock.env()).output().unwrap();
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let before = files(&store);
        let (code, said) = prune(3 * 86_400);
        assert!(code == Some(5) && said.contains("Q1429"), "{code:?} {said}");
        assert_eq!(files(&store), before);
        let (code, said) = prune(0);
        assert_eq!(code, Some(0), "{said}");
        assert!(files(&store).len() < before.len());
        assert!(
            files(&store).iter().all(|file| !file.display().to_string().contains("/clock/")),
            "what was written stays"
        );
    }
}
