//! Releases that change: one member at a time and one minor version at a time, each with a backup before it, and back where one
//! does not start.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use change_support::{LIMIT, Net, said};
use quorate_testkit::{FakeClock, etcd, wait_until};
use serde_json::Value;

/// A file that names a release.
fn with_release(net: &Net, members: &[usize], version: &str) -> String {
    net.text(members).replace("  etcd-binary:", &format!("  etcd-version: {version}\n  etcd-binary:"))
}

/// Founds a cluster of three with this release.
fn found(net: &mut Net, version: &str) {
    for at in 0..3 {
        net.give_to(at, &with_release(net, &[0, 1, 2], version));
    }
    for at in 0..3 {
        net.start(at);
    }
    net.done(0, &["cluster", "bootstrap", &net.shown("n1.yaml"), "--wait", "120s"]);
}

#[test]
fn releases_change_one_member_at_a_time_and_one_minor_version_at_a_time() {
    let mut net = Net::new("3.5.16", 3);
    net.binary = Some(change_support::releases());
    found(&mut net, "3.4.23");
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let file = net.shown("n1.yaml");
    let refused = net.quorate(0, &["cluster", "upgrade", "--to", "3.6.1", "--config", &file, "--name", "n1", "--yes"]);
    assert_eq!(refused.status.code(), Some(5), "{}", said(&refused));
    for to in ["3.5.16", "3.5.30"] {
        let words = ["cluster", "upgrade", "--to", to, "--config", &file, "--name", "n1", "--yes", "--without-backup"];
        net.done(0, &[&words[..], &["--wait", "120s"]].concat());
        for at in 0..3 {
            net.wait(at, to, |status| status["etcd"]["version"] == to && status["phase"] == "serving");
        }
        assert!(net.try_ctl(0, &["get", "k"]).unwrap().contains('v'));
    }
    let words =
        ["cluster", "upgrade", "--to", "3.4.23", "--config", &file, "--name", "n1", "--yes", "--without-backup"];
    let back = net.quorate(0, &words);
    assert_eq!(back.status.code(), Some(5), "there is no way back over a minor version: {}", said(&back));
}

/// A program that knows its release and does not start.
fn broken(path: &Path, real: &Path) {
    let text = format!("#!/bin/sh\ncase \"$1\" in --version) exec {} --version;; esac\nexit 1\n", real.display());
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// What the store holds, as far as it can be restored.
fn stored(net: &Net) -> u64 {
    let store = format!("file://{}", net.path("store").display());
    let output = net.quorate(0, &["backup", "list", "--store", &store, "--output", "json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    shown["newest_revision"].as_u64().unwrap_or(0)
}

fn revision(net: &Net, at: usize) -> u64 {
    let text = net.try_ctl(at, &["get", "k", "--write-out=json"]).unwrap();
    let shown: Value = serde_json::from_str(&text).unwrap();
    shown["header"]["revision"].as_u64().unwrap()
}

#[test]
fn a_release_that_does_not_start_stops_the_upgrade_and_there_is_a_way_back() {
    let mut net = Net::new("3.5.16", 3);
    let (old, new) = (etcd("3.5.16").etcd, etcd("sid"));
    let releases = net.path("releases");
    for version in ["3.5.16", new.version.as_str()] {
        std::fs::create_dir_all(releases.join(version)).unwrap();
    }
    symlink(&old, releases.join("3.5.16/etcd")).unwrap();
    let program = releases.join(&new.version).join("etcd");
    broken(&program, &new.etcd);
    std::fs::create_dir(net.path("store")).unwrap();
    net.binary = Some(format!("{}/{{version}}/etcd", releases.display()));
    // What is recorded goes into the store by itself once in an hour: before a release changes, it is asked for.
    net.more += &format!("backup: {{store: \"file://{}\", delta-period: 1h}}\n", net.path("store").display());
    found(&mut net, "3.5.16");
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let (file, written) = (net.shown("n1.yaml"), revision(&net, 0));
    let upgrade = |to: &str, wait: &str| {
        let words = ["cluster", "upgrade", "--to", to, "--config", &file, "--name", "n1", "--yes", "--wait", wait];
        net.quorate(0, &words)
    };
    let begun = upgrade(&new.version, "1s");
    assert!(said(&begun).contains("take a backup, and prove it"), "{}", said(&begun));
    let mut stopped = begun;
    wait_until("the first member that does not come up stops it", LIMIT, || {
        stopped = upgrade(&new.version, "1s");
        let down = (0..3).filter(|at| net.status(*at)["etcd"]["version"].is_null()).count();
        down == 1 && said(&stopped).contains("not taking part")
    });
    let text = said(&stopped);
    assert_eq!(stopped.status.code(), Some(3), "{text}");
    assert!(text.contains("Q0960") && text.contains("cluster upgrade --to 3.5.16"), "{text}");
    assert!(stored(&net) >= written, "the release changed without a backup: {} of {written}", stored(&net));
    // One member is down, the two others run what they ran, and take writes.
    let versions: Vec<Value> = (0..3).map(|at| net.status(at)["etcd"]["version"].clone()).collect();
    assert_eq!(versions.iter().filter(|version| **version == "3.5.16").count(), 2, "{versions:?}");
    let up = versions.iter().position(|version| *version == "3.5.16").unwrap();
    net.try_ctl(up, &["put", "k", "w"]).unwrap();
    // The way back, as it was said.
    let back = upgrade("3.5.16", "120s");
    assert!(back.status.success(), "{}\n{}", said(&back), net.logs());
    // With a program that starts, each member has its backup before it.
    quorate_testkit::run(std::process::Command::new("rm").arg(&program));
    symlink(&new.etcd, &program).unwrap();
    net.try_ctl(0, &["put", "k", "x"]).unwrap();
    let written = revision(&net, 0);
    let done = upgrade(&new.version, "120s");
    assert!(done.status.success(), "{}\n{}", said(&done), net.logs());
    assert!(stored(&net) >= written, "{} of {written}", stored(&net));
    for at in 0..3 {
        net.wait(at, "the release", |status| {
            status["etcd"]["version"] == new.version.as_str() && status["phase"] == "serving"
        });
    }
    assert!(net.try_ctl(0, &["get", "k"]).unwrap().contains('x'));
}

#[test]
fn a_minor_version_that_is_half_done_is_taken_back_under_writes() {
    let mut net = Net::new("3.4.23", 3);
    net.binary = Some(change_support::releases());
    found(&mut net, "3.4.23");
    // The leader comes last. Somebody takes the port of the second of the others as soon as its etcd has left it.
    let leader = net.leader(&[0, 1, 2]);
    let fails = (0..3).rfind(|at| *at != leader).unwrap();
    let (hosts, address) = (Arc::clone(&net.hosts), net.hosts[fails].address());
    let takes = std::thread::spawn(move || {
        hosts[fails].within(|| {
            loop {
                match TcpListener::bind((address, 2380)) {
                    Ok(taken) => return taken,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        })
    });
    let load = net.load_from(0, &[0, 1, 2]);
    load.goes_on(20);
    let file = net.shown("n1.yaml");
    let upgrade = |to: &str, wait: &str| {
        let words = ["cluster", "upgrade", "--to", to, "--config", &file, "--name", "n1", "--yes", "--without-backup"];
        net.quorate(0, &[&words[..], &["--wait", wait]].concat())
    };
    let runs = |version: &str| (0..3).filter(|at| net.status(*at)["etcd"]["version"] == version).count();
    let mut stopped = upgrade("3.5.16", "1s");
    wait_until("the second member stops it", LIMIT, || {
        stopped = upgrade("3.5.16", "1s");
        said(&stopped).contains("not taking part") && runs("3.5.16") == 1 && runs("3.4.23") == 1
    });
    let text = said(&stopped);
    assert!(text.contains("Q0960") && text.contains("cluster upgrade --to 3.4.23"), "{text}");
    load.goes_on(20);
    // The way back, as it was said: while one member has 3.4 the cluster is a 3.4 one.
    let begun = upgrade("3.4.23", "1s");
    assert_eq!(begun.status.code(), Some(3), "{}\n{}", said(&begun), net.logs());
    drop(takes.join().unwrap());
    let back = upgrade("3.4.23", "120s");
    assert!(back.status.success(), "{}\n{}", said(&back), net.logs());
    for at in 0..3 {
        net.wait(at, "3.4.23", |status| status["etcd"]["version"] == "3.4.23" && status["phase"] == "serving");
    }
    net.assert_voters(&[0, 1, 2]);
    load.goes_on(20);
    load.finish();
}

#[test]
fn clocks_that_are_an_hour_apart_make_no_backup_older_or_newer() {
    let mut net = Net::new("3.5.16", 4);
    net.binary = Some(change_support::releases());
    std::fs::create_dir(net.path("store")).unwrap();
    net.more += &format!("backup: {{store: \"file://{}\", delta-period: 1h}}\n", net.path("store").display());
    for (at, seconds) in [0, 3600, -3600].into_iter().enumerate() {
        let own = net.path(&format!("clock-{at}"));
        std::fs::create_dir(&own).unwrap();
        let clock = FakeClock::new(&own);
        clock.set(seconds);
        net.env.insert(at, clock.env());
    }
    found(&mut net, "3.5.16");
    // While there are writes, what was stored before one member changed is not enough for the next one.
    let load = net.load_from(3, &[0, 1, 2]);
    load.goes_on(20);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let (file, written) = (net.shown("n1.yaml"), revision(&net, 0));
    let words = ["cluster", "upgrade", "--to", "3.5.30", "--config", &file, "--name", "n1", "--yes", "--wait", "140s"];
    net.done(0, &words);
    for at in 0..3 {
        net.wait(at, "3.5.30", |status| status["etcd"]["version"] == "3.5.30" && status["phase"] == "serving");
    }
    assert!(stored(&net) > written, "{} of {written}: only the first member had a backup", stored(&net));
    load.goes_on(20);
    load.finish();
}
