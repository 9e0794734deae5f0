//! Entries of 3.5 that etcd 3.7 cannot read are found before an upgrade, and the members take a raft snapshot behind them first.
//!
//! Where no etcd 3.6 and 3.7 were given (`ETCD_DIR`), etcd 3.5 runs instead, whose programs call themselves 3.6 and 3.7. They write
//! such entries at each start.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use change_support::{LIMIT, Net, said};
use quorate_testkit::{Launch, Seat, Tools, etcd, given_releases, quorate, wait_until};
use serde_json::Value;

/// The release of this minor version that was given.
fn given(minor: &str) -> Option<Tools> {
    given_releases().into_iter().find(|tools| tools.version.starts_with(&format!("{minor}.")))
}

/// A given release, in `dir/VERSION/etcd` like the others. Returns the version.
fn linked(dir: &Path, tools: &Tools) -> String {
    let path = dir.join(&tools.version).join("etcd");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&tools.etcd, path).unwrap();
    tools.version.clone()
}

/// etcd 3.5 as a release of another minor version, in `dir/VERSION/etcd`. Returns the version.
fn stand_in(dir: &Path, minor: &str) -> String {
    let tools = etcd("sid");
    assert!(tools.version.starts_with("3.5."), "{}: another release has to stand in", tools.version);
    let version = tools.version.replacen("3.5", minor, 1);
    // The release, and the cluster versions that its API knows: its own, and the one before.
    let before = if minor == "3.7" { "3.6" } else { "3.5" };
    let words = [
        (tools.version.as_str(), version.as_str()),
        ("3.5.0", &format!("{minor}.0")),
        ("3.4.0", &format!("{before}.0")),
    ];
    let path = dir.join(&version).join("etcd");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut sed = Command::new("sed");
    for (old, new) in words {
        sed.args(["-e", &format!("s/{}/{new}/g", old.replace('.', "[.]"))]);
    }
    let program = sed.env("LC_ALL", "C").arg(&tools.etcd).output().unwrap().stdout;
    std::fs::File::create(&path).unwrap().write_all(&program).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = Command::new(&path).arg("--version").output().unwrap().stdout;
    assert!(String::from_utf8_lossy(&said).contains(&version), "{}", String::from_utf8_lossy(&said));
    version
}

/// The exit code and the findings of `data verify --for RELEASE`.
fn verify_for(release: &str, dir: &Path) -> (Option<i32>, Vec<Value>) {
    let args = ["data", "verify", "--output", "json", "--mode", "sanity", "--for", release];
    let output = Command::new(quorate()).args(args).arg(dir).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code(), found["findings"].as_array().cloned().unwrap_or_default())
}

/// `cluster upgrade --check` of a stopped data dir.
fn check(release: &str, dir: &Path) -> Output {
    let args = ["cluster", "upgrade", "--check", "--to", release, "--data-dir"];
    Command::new(quorate()).args(args).arg(dir).output().unwrap()
}

fn run(tools: &Tools, dir: &Path, more: &[&str], calls: &[&str], times: usize) {
    let seat = Seat::new("n1");
    let new = ["--initial-cluster".to_owned(), format!("n1={}", seat.peer_url())];
    let launch = Launch::new(tools, &seat, dir).arg(&new[0]).arg(&new[1]);
    let launch = launch.arg("--initial-advertise-peer-urls").arg(seat.peer_url());
    let server = more.iter().fold(launch, |launch, arg| launch.arg(*arg)).start();
    for _ in 0..times {
        server.ctl(calls);
    }
    server.stop();
}

#[test]
fn a_raft_snapshot_behind_the_entries_of_3_5_lets_3_7_start() {
    let root = tempfile::tempdir().unwrap();
    let (dir, tools) = (root.path().join("data"), etcd("sid"));
    run(&tools, &dir, &[], &["put", "k", "v"], 3);
    let (code, findings) = verify_for("3.7.1", &dir);
    assert_eq!(code, Some(1), "{findings:?}");
    let found = findings.iter().find(|finding| finding["code"] == "Q1436").unwrap_or_else(|| panic!("{findings:?}"));
    assert!(found["what"].as_str().unwrap().contains("that etcd 3.7 cannot read"), "{found}");
    assert!(found["remedy"].as_str().unwrap().contains("cluster upgrade"), "{found}");
    assert_eq!(verify_for("3.6.14", &dir), (Some(0), Vec::new()));
    let far = check("3.7.1", &dir);
    assert_eq!(far.status.code(), Some(5), "{}", said(&far));
    assert!(said(&far).contains("more than one minor version"), "{}", said(&far));

    // The same cluster on 3.6, where every list of alarms is an entry of the log.
    let later = given("3.6").unwrap_or_else(|| {
        let version = stand_in(root.path(), "3.6");
        Tools { etcd: root.path().join(&version).join("etcd"), version, ..etcd("sid") }
    });
    run(&later, &dir, &[], &["put", "k", "v"], 1);
    let refused = check("3.7.1", &dir);
    assert_eq!(refused.status.code(), Some(5), "{}", said(&refused));
    for word in ["Q1436", "entries of 3.5 or earlier", "quorate cluster upgrade --to 3.7.1"] {
        assert!(said(&refused).contains(word), "{word}: {}", said(&refused));
    }
    run(&later, &dir, &["--snapshot-count", "30"], &["alarm", "list"], 40);
    assert_eq!(verify_for("3.7.1", &dir), (Some(0), Vec::new()));
    let fits = check("3.7.1", &dir);
    assert!(fits.status.success() && said(&fits).contains("can start on"), "{}", said(&fits));
    let none = check("3.7.1", &root.path().join("none"));
    assert!(!none.status.success(), "{}", said(&none));
}

#[test]
fn an_upgrade_to_3_7_takes_a_raft_snapshot_behind_the_entries_of_3_5() {
    let mut net = Net::new("sid", 1);
    let releases: PathBuf = net.path("releases");
    // One of them alone would not do: a stand-in does not write the data of the release that it calls itself.
    let (from, to) = match (given("3.6"), given("3.7")) {
        (Some(from), Some(to)) => (linked(&releases, &from), linked(&releases, &to)),
        _ => (stand_in(&releases, "3.6"), stand_in(&releases, "3.7")),
    };
    net.binary = Some(format!("{}/{{version}}/etcd\"\n  etcd-version: \"{from}", releases.display()));
    // More than are added before the log is observed again.
    net.more += "etcd: {snapshot-count: 5000}\n";
    net.found(&[0]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let file = net.shown("n1.yaml");
    let upgrade = |more: &[&str]| {
        let words = ["cluster", "upgrade", "--to", &to, "--config", &file, "--name", "n1", "--without-backup"];
        net.quorate(0, &[&words[..], more].concat())
    };
    wait_until("the check shows the raft snapshot before the restart", LIMIT, || {
        let checked = upgrade(&["--check"]);
        let text = said(&checked);
        let first = text.find("take a raft snapshot behind the entries of earlier releases");
        checked.status.success()
            && first.zip(text.find("restart the etcd")).is_some_and(|(snap, restart)| snap < restart)
    });
    assert_eq!(net.status(0)["etcd"]["version"], from.as_str(), "a check changes nothing");
    // A stopped data dir is meant, and this one is not.
    let in_use = check(&to, &net.data(0));
    assert!(!in_use.status.success() && said(&in_use).contains("etcd runs on it"), "{}", said(&in_use));

    let done = upgrade(&["--yes", "--wait", "120s"]);
    assert!(done.status.success(), "{}\n{}", said(&done), net.logs());
    net.wait(0, "3.7", |status| status["etcd"]["version"] == to.as_str() && status["phase"] == "serving");
    assert!(net.try_ctl(0, &["get", "k"]).unwrap().contains('v'));
}
