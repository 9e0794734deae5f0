//! `inspect` and `verify` on data dirs and snapshots that real etcd left behind, against what etcd said of them.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use quorate_etcd::datadir::{self, Found};
use quorate_etcd_formats::inspect::{self, Inspection};
use quorate_etcd_formats::verify::{self, Mode, Report};
use quorate_testkit::{FIXTURE_VERSIONS, expected, fixture_dir, golden_dir, snapshot};
use serde_json::Value;

fn verify_path(path: &Path, mode: Mode) -> Report {
    let settings = verify::Settings { mode, workers: 2, progress: &AtomicU64::new(0) };
    match datadir::open(path, None).expect("opens") {
        Found::DataDir(dir) => verify::data_dir(&dir.view(), &settings),
        Found::File(file) => verify::snapshot("snapshot.db", &file, &settings),
    }
}

fn inspect_path(path: &Path) -> Inspection {
    let progress = AtomicU64::new(0);
    let settings = inspect::Settings { hash: None, count: true, workers: 2, progress: &progress };
    match datadir::open(path, None).expect("opens") {
        Found::DataDir(dir) => inspect::data_dir(&dir.view(), settings),
        Found::File(file) => inspect::file(&file, settings).expect("a snapshot"),
    }
}

fn as_json(inspection: &Inspection) -> Value {
    serde_json::to_value(inspection).expect("serialises")
}

#[test]
fn every_real_data_dir_is_valid_in_both_modes() {
    for version in FIXTURE_VERSIONS {
        let dir = fixture_dir(version);
        for mode in [Mode::Sanity, Mode::Full] {
            let report = verify_path(dir.path(), mode);
            assert!(report.findings.is_empty(), "{version} {mode:?}: {:#?}", report.findings);
        }
    }
}

#[test]
fn a_crashed_member_with_many_segments_is_valid() {
    let dir = golden_dir("crash-multiseg-3.5.30");
    let report = verify_path(dir.path(), Mode::Full);
    assert!(!report.has_errors(), "{:#?}", report.findings);
    assert!(report.wal_entries.unwrap_or(0) > 0);
}

#[test]
fn every_real_snapshot_is_valid_and_hashes_as_etcd_says() {
    for version in FIXTURE_VERSIONS {
        let path = snapshot(version);
        let report = verify_path(&path, Mode::Full);
        assert!(report.findings.is_empty(), "{version}: {:#?}", report.findings);
        let status = expected(version, "snapshot-status");
        assert_eq!(report.hash.map(u64::from), status["hash"].as_u64(), "{version}");
        let found = as_json(&inspect_path(&path));
        assert_eq!(found["hash"], status["hash"], "{version}");
        assert_eq!(found["revision"], status["revision"], "{version}");
        assert_eq!(found["used_bytes"], status["totalSize"], "{version}");
        let total = if version.starts_with("3.6") { &found["live_keys"] } else { &found["items"] };
        assert_eq!(*total, status["totalKey"], "{version}");
    }
}

#[test]
fn a_data_dir_tells_what_its_server_told() {
    for version in FIXTURE_VERSIONS {
        let dir = fixture_dir(version);
        let found = as_json(&inspect_path(dir.path()));
        assert_eq!(found["unread"], Value::Array(vec![]), "{version}");
        let status = &expected(version, "status")[0]["Status"];
        let hex = |value: &Value| format!("{:x}", value.as_u64().expect("a number"));
        assert_eq!(found["cluster_id"], hex(&status["header"]["cluster_id"]), "{version}");
        assert_eq!(found["member_id"], hex(&status["header"]["member_id"]), "{version}");
        assert_eq!(found["revision"], status["header"]["revision"], "{version}");
        assert_eq!(found["name"], "m1", "{version}");
        let member = &expected(version, "members")["members"][0];
        assert_eq!(found["members"][0]["peer_urls"], member["peerURLs"], "{version}");
        assert_eq!(found["members"][0]["client_urls"], member["clientURLs"], "{version}");
        let hashkv = &expected(version, "hashkv")[0]["HashKV"];
        assert_eq!(found["compact_revision"], hashkv["compact_revision"], "{version}");
        let variant = if version == "3.4.23" { 0 } else { 1 };
        assert_eq!(found["hashkv"][variant]["hash"], hashkv["hash"], "{version}");
        assert_eq!(found["running"], false, "{version}");
    }
}
