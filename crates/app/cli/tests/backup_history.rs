//! Histories of a live etcd, restored at many revisions and compared with what that etcd itself said about each.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod backup_support;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use backup_support::{
    OneWrite, backup, backup_json, gardener_delta, live_keys, put, revision, time_of, url, watched, write_of, writes_of,
};
use quorate_testkit::{Launch, Seat, Server, Tools, etcd, wait_until};
use serde_json::Value;
use tempfile::TempDir;

/// Above what etcd takes unless told otherwise, and just below what etcdctl sends.
const BIG: usize = 1_900_000;

/// What happened, and what etcd said about each moment of it.
struct History {
    root: TempDir,
    /// Revision of the snapshot.
    base: u64,
    events: Vec<Value>,
    /// All keys, by revision.
    states: BTreeMap<u64, Value>,
}

/// `etcdctl put` with a value from stdin, so that it may be anything.
fn put_bytes(server: &Server, key: &str, value: &[u8], more: &[&str]) {
    let mut command = server.tools.ctl_command(&server.seat.client_url(), &[&["put", key], more].concat());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(value).unwrap();
    assert!(child.wait().unwrap().success(), "put {key}");
}

fn txn(server: &Server, script: &str) {
    let mut command = server.tools.ctl_command(&server.seat.client_url(), &["txn"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

fn state(server: &Server, at: Option<u64>) -> (u64, Value) {
    let at = at.map(|revision| format!("--rev={revision}"));
    let args: Vec<&str> = ["get", "", "--prefix"].into_iter().chain(at.as_deref()).collect();
    let said = server.ctl_json(&args);
    (said["header"]["revision"].as_u64().unwrap(), said["kvs"].clone())
}

/// A process that ends with the test, also with one that fails.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl History {
    fn record(tools: &Tools) -> History {
        let root = tempfile::tempdir().unwrap();
        let seat = Seat::new("n1");
        let args = [
            format!("--initial-cluster=n1={}", seat.peer_url()),
            format!("--initial-advertise-peer-urls={}", seat.peer_url()),
            "--max-request-bytes=8388608".to_owned(),
        ];
        let launch = Launch::new(tools, &seat, &root.path().join("live"));
        let server = args.into_iter().fold(launch, Launch::arg).start();
        for number in 0..8 {
            server.ctl(&["put", &format!("k{number}"), "base"]);
        }
        server.ctl(&["del", "k7"]);
        let snapshot = root.path().join("store/v2/snapshot");
        put(&snapshot, b"");
        server.ctl(&["snapshot", "save", &snapshot.display().to_string()]);
        let (base, first) = state(&server, None);
        let name = format!("Full-00000000-{base:08}-{}", time_of(base));
        put(&snapshot.with_file_name(name), &std::fs::read(&snapshot).unwrap());
        std::fs::remove_file(&snapshot).unwrap();
        let mut history = History { root, base, events: Vec::new(), states: BTreeMap::from([(base, first)]) };
        history.live(&server);
        history
    }

    /// Writes of every kind, with the state after each.
    fn live(&mut self, server: &Server) {
        let log = self.root.path().join("watch.json");
        let from = format!("--rev={}", self.base + 1);
        let mut watch =
            server.tools.ctl_command(&server.seat.client_url(), &["watch", "", "--prefix", &from, "-w", "json"]);
        let watch = watch.stdout(std::fs::File::create(&log).unwrap()).stderr(Stdio::null()).spawn();
        let _watch = Killed(watch.unwrap());
        let lease = server.ctl_json(&["lease", "grant", "600"])["ID"].as_i64().unwrap();
        let lease = format!("--lease={lease:x}");
        let binary: Vec<u8> = (0..=255).collect();
        let steps: Vec<Box<dyn Fn()>> = vec![
            Box::new(|| drop(server.ctl(&["put", "k1", "again"]))),
            Box::new(|| put_bytes(server, "binary", &binary, &[])),
            Box::new(|| drop(server.ctl(&["put", "empty", ""]))),
            Box::new(|| txn(server, "\nput t1 one\nput t2 two\ndel k2\n\n\n")),
            Box::new(|| drop(server.ctl(&["del", "k1"]))),
            Box::new(|| drop(server.ctl(&["put", "k1", "created anew"]))),
            Box::new(|| drop(server.ctl(&["put", "k1", "and changed"]))),
            Box::new(|| put_bytes(server, "big", &vec![b'x'; BIG], &[])),
            Box::new(|| drop(server.ctl(&["put", "leased", "value", &lease]))),
            Box::new(|| drop(server.ctl(&["del", "k3", "k6"]))),
            Box::new(|| drop(server.ctl(&["put", "k4", "after the range"]))),
            Box::new(|| drop(server.ctl(&["compact", &(self.base + 6).to_string()]))),
            Box::new(|| txn(server, "\nput t1 three\ndel t2\nput t3 four\nput k5 five\n\n\n")),
            Box::new(|| put_bytes(server, "big", b"small again", &[])),
            Box::new(|| drop(server.ctl(&["del", "", "--prefix"]))),
            Box::new(|| drop(server.ctl(&["put", "phoenix", "1"]))),
            Box::new(|| drop(server.ctl(&["put", "phoenix", "2"]))),
        ];
        let mut states = Vec::new();
        for step in &steps {
            step();
            states.push(state(server, None));
        }
        drop(steps);
        self.states.extend(states);
        let last = *self.states.keys().last().unwrap();
        let read = || watched(&std::fs::read_to_string(&log).unwrap());
        wait_until("the watch to see everything", Duration::from_secs(20), || {
            read().last().is_some_and(|event| revision(event) == last)
        });
        self.events = read();
    }

    /// Every write that a database with the whole history holds: the snapshot's, and what the watch saw, in order.
    fn writes(&self) -> Vec<OneWrite> {
        let name = format!("store/v2/Full-00000000-{:08}-{}", self.base, time_of(self.base));
        let snapshot = std::fs::read(self.root.path().join(name)).unwrap();
        let mut writes = writes_of(&snapshot[..snapshot.len() - 32]);
        for event in &self.events {
            let sub = writes.iter().rev().take_while(|write| write.at.0 == revision(event)).count();
            writes.push(write_of(event, sub as u64));
        }
        writes
    }

    /// Writes the events as deltas of some transactions each.
    fn deltas(&self, transactions: u64) {
        let store = self.root.path().join("store");
        let mut from = 0;
        while from < self.events.len() {
            let end = revision(&self.events[from]) + transactions;
            let to = self.events.iter().position(|event| revision(event) >= end).unwrap_or(self.events.len());
            gardener_delta(&store, &self.events[from..to]);
            from = to;
        }
    }
}

#[test]
fn every_moment_of_a_live_history_comes_back_as_etcd_had_it() {
    let tools = etcd("sid");
    let history = History::record(&tools);
    history.deltas(4);
    let root = history.root.path();
    let (gardener, own) = (url(&root.join("store")), url(&root.join("own-store")));
    backup_json(root, &["convert", "--store", &gardener, "--to", &own]);
    let last = *history.states.keys().last().unwrap();
    for (layout, store) in [("gardener", &gardener), ("own", &own)] {
        let seat = Seat::new("n1");
        let member = format!("n1={}", seat.peer_url());
        let args = ["restore", "--store", store, "--name", "n1", "--data-dir", layout, "--member", &member, "--exact"];
        let said = backup_json(root, &args);
        assert_eq!(said["events"].as_u64(), Some(history.events.len() as u64));
        let server = Launch::new(&tools, &seat, &root.join(layout)).start();
        // The restored server has the whole history, so it can be asked about each moment.
        for (revision, kvs) in &history.states {
            assert_eq!(&state(&server, Some(*revision)).1, kvs, "{layout} at revision {revision}");
        }
        assert_eq!(state(&server, None).0, last);
    }
    // Restored up to a revision or a time, the moment is the newest one, and nothing younger is in the database.
    let writes = history.writes();
    let tombstones = writes.iter().filter(|write| write.tombstone).count();
    assert!(history.states.len() > 15 && tombstones > 8, "{} states, {tombstones} tombstones", history.states.len());
    for (number, (revision, kvs)) in history.states.iter().enumerate() {
        let (dir, to) = (format!("at-{revision}"), revision.to_string());
        let time = jiff::Timestamp::from_second(time_of(*revision)).unwrap().to_string();
        let target = if number % 2 == 0 { ["--to-revision", &to] } else { ["--to-time", &time] };
        let store = if number % 4 < 2 { &gardener } else { &own };
        let seat = Seat::new("n1");
        let member = format!("n1={}", seat.peer_url());
        let args = ["restore", "--store", store, "--name", "n1", "--data-dir", &dir, "--member", &member, "--exact"];
        let said = backup_json(root, &[&args, &target[..]].concat());
        assert_eq!(said["last_write_revision"].as_u64(), Some(*revision), "{target:?}");
        let restored = writes_of(&std::fs::read(root.join(&dir).join("member/snap/db")).unwrap());
        let wanted: Vec<OneWrite> = writes.iter().filter(|write| write.at.0 <= *revision).cloned().collect();
        assert!(restored == wanted, "{target:?}: every write, tombstones too");
        assert!(live_keys(&restored) == *kvs, "{target:?}: what etcd said at that revision");
        if number % 8 == 3 {
            let server = Launch::new(&tools, &seat, &root.join(&dir)).start();
            assert!(state(&server, None) == (*revision, kvs.clone()), "{target:?}: what etcd says of the restored");
        }
    }
}

#[test]
fn a_compacted_full_boots_and_has_the_same_keys() {
    let tools = etcd("3.5.16");
    let history = History::record(&tools);
    history.deltas(1);
    let root = history.root.path();
    let store = url(&root.join("store"));
    let said = backup_json(root, &["compact", "--store", &store]);
    assert_eq!(said["proven_equal"].as_bool(), Some(true));
    let newest = said["full"].as_str().unwrap();
    let seat = Seat::new("n1");
    let member = format!("n1={}", seat.peer_url());
    let restored =
        backup_json(root, &["restore", "--store", &store, "--name", "n1", "--data-dir", "n1", "--member", &member]);
    assert_eq!(restored["full"].as_str(), Some(newest));
    let server = Launch::new(&tools, &seat, &root.join("n1")).start();
    let (last, kvs) = history.states.last_key_value().unwrap();
    let (now, restored) = state(&server, None);
    assert_eq!(&restored, kvs);
    assert_eq!(now, last + 1_000_000_000);
}

#[test]
fn flags_that_cannot_be_met_are_refused() {
    let root = tempfile::tempdir().unwrap();
    for (args, exit, code) in [
        (&["list", "--store", "ftp://bucket"][..], 4, "Q0801"),
        (&["list", "--store", "file:///nowhere/at/all"], 6, "Q0802"),
        (&["restore", "--store", "file:///tmp", "--data-dir", "d", "--restore-point", "1:2"], 4, "Q0808"),
    ] {
        let run = backup(root.path(), args);
        assert!(run.exit == exit && run.stderr.contains(code), "{args:?}: {} {}", run.exit, run.stderr);
    }
    let empty = url(root.path());
    let run = backup(root.path(), &["restore", "--store", &empty, "--data-dir", "d"]);
    assert!(run.exit == 1 && run.stderr.contains("Q0803"), "{}", run.stderr);
}
