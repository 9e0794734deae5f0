//! The servers and fixtures of the testkit are what they claim to be.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use quorate_testkit::{
    FIXTURE_VERSIONS, Launch, Running, Seat, Server, VERSIONS, consul, dnsmasq, etcd, expected, fixture_dir, golden,
    golden_dir, golden_names, run, snapshot, snapshot_bytes, strace, wait_until,
};

fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn every_release_starts_takes_a_write_and_remembers_it() {
    for version in VERSIONS {
        let tools = etcd(version);
        let dir = tempfile::tempdir().unwrap();
        let seat = Seat::new("solo");
        let server = Server::start(&tools, &seat, dir.path());
        assert_eq!(server.ctl_json(&["endpoint", "status"])[0]["Status"]["version"], tools.version);
        server.ctl(&["put", "colour", "blue"]);
        assert_ne!(server.stop().signal(), Some(9), "etcd {version} must stop when asked to");
        let server = Server::start(&tools, &seat, dir.path());
        assert_eq!(server.get("colour").as_deref(), Some("blue"));
        assert_eq!(server.get("shape"), None);
        let pid = server.pid();
        drop(server);
        assert!(!alive(pid), "etcd {version} must die with its guard");
    }
}

#[test]
fn a_server_outlives_the_thread_that_started_it_but_not_its_guard() {
    let sleep = PathBuf::from("/bin/sleep");
    let running = std::thread::spawn(move || Running::start(&sleep, &["600".to_owned()], &[])).join().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(alive(running.pid()));
    let pid = running.pid();
    drop(running);
    assert!(!alive(pid));
}

#[test]
fn a_real_server_serves_what_the_fixture_of_its_release_promises() {
    for version in VERSIONS {
        let tools = etcd(version);
        // The newest release drifts away from the fixture that an earlier one left; the pinned ones never do.
        let Some(fixture) = FIXTURE_VERSIONS.iter().find(|fixture| **fixture == tools.version) else {
            continue;
        };
        let dir = fixture_dir(fixture);
        let name = expected(fixture, "members")["members"][0]["name"].as_str().unwrap().to_owned();
        let server = Launch::new(&tools, &Seat::new(&name), dir.path()).start();
        let keys = server.ctl_json(&["get", "", "--prefix"]);
        assert_eq!(keys["kvs"], expected(fixture, "keys")["kvs"]);
        drop(server);
        let path = snapshot(fixture);
        let status = tools.utl_json(&["snapshot", "status", path.to_str().unwrap()]);
        assert_eq!(status, expected(fixture, "snapshot-status"));
    }
}

#[test]
fn every_fixture_unpacks() {
    for version in FIXTURE_VERSIONS {
        assert!(fixture_dir(version).path().join("member/snap/db").is_file());
        assert!(snapshot_bytes(version).len() > 4096);
        for what in ["status", "members", "hashkv", "snapshot-status", "keys"] {
            assert!(!expected(version, what).is_null());
        }
    }
    let crashed = golden_dir("crash-multiseg-3.5.30");
    assert!(crashed.path().join("member/wal/0000000000000002-0000000000000086.wal").is_file());
    assert!(golden_names().iter().all(|name| !golden(name).is_empty()));
}

#[test]
fn the_other_programs_are_there() {
    assert!(run(std::process::Command::new(consul()).arg("version")).contains("v1.8.7"));
    assert!(run(std::process::Command::new(dnsmasq()).arg("--version")).contains("Dnsmasq"));
    assert!(run(std::process::Command::new(strace()).arg("--version")).contains("strace"));
    wait_until("nothing at all", Duration::from_secs(1), || true);
}
