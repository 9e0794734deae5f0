//! Entries of 3.5 that etcd 3.7 cannot read are found before an upgrade, and a raft snapshot behind them is the way out.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::Path;
use std::process::Command;

use quorate_testkit::{Launch, Seat, etcd, quorate};
use serde_json::Value;

/// The exit code and the findings of `data verify --for RELEASE`.
fn verify_for(release: &str, dir: &Path) -> (Option<i32>, Vec<Value>) {
    let args = ["data", "verify", "--output", "json", "--mode", "sanity", "--for", release];
    let output = Command::new(quorate()).args(args).arg(dir).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code(), found["findings"].as_array().cloned().unwrap_or_default())
}

#[test]
fn a_raft_snapshot_behind_the_entries_of_3_5_lets_3_7_start() {
    let root = tempfile::tempdir().unwrap();
    let (dir, seat, tools) = (root.path().join("data"), Seat::new("n1"), etcd("sid"));
    let run = |more: &[&str], writes: usize| {
        let new = ["--initial-cluster".to_owned(), format!("n1={}", seat.peer_url())];
        let launch = Launch::new(&tools, &seat, &dir).arg(&new[0]).arg(&new[1]);
        let launch = launch.arg("--initial-advertise-peer-urls").arg(seat.peer_url());
        let server = more.iter().fold(launch, |launch, arg| launch.arg(*arg)).start();
        for number in 0..writes {
            server.ctl(&["put", "k", &number.to_string()]);
        }
        server.stop();
    };
    run(&[], 3);
    let (code, findings) = verify_for("3.7.1", &dir);
    assert_eq!(code, Some(1), "{findings:?}");
    let found = findings.iter().find(|finding| finding["code"] == "Q1436").unwrap_or_else(|| panic!("{findings:?}"));
    assert!(found["what"].as_str().unwrap().contains("that etcd 3.7 cannot read"), "{found}");
    assert!(found["remedy"].as_str().unwrap().contains("snapshot-count"), "{found}");
    assert_eq!(verify_for("3.6.14", &dir), (Some(0), Vec::new()));

    run(&["--snapshot-count", "10"], 25);
    assert_eq!(verify_for("3.7.1", &dir), (Some(0), Vec::new()));
}
