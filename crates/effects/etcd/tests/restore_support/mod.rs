//! A snapshot with everything that history can hold, and the real programs that restore it.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quorate_etcd_formats::bolt::Db;
use quorate_testkit::{Launch, Seat, Server, Tools, quorate, run};
use serde_json::Value;

/// Runs a transaction of these lines.
pub(crate) fn transaction(server: &Server, lines: &[&str]) {
    let mut command = server.tools.ctl_command(&server.seat.client_url(), &["txn"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let script = format!("\n{}\n\n\n", lines.join("\n"));
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
}

/// Starts a cluster of one from nothing.
pub(crate) fn start_new(tools: &Tools, seat: &Seat, dir: &Path) -> Server {
    Launch::new(tools, seat, dir)
        .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
        .arg(format!("--initial-cluster={}={}", seat.name, seat.peer_url()))
        .start()
}

/// Writes of every kind: transactions, deletions, keys made again, leases, empty and binary and large values, compaction.
pub(crate) fn write_everything(server: &Server) {
    let lease = server.ctl_json(&["lease", "grant", "3600"]);
    let lease = format!("{:x}", lease["ID"].as_i64().unwrap());
    let puts: Vec<String> = (0..60).map(|n| format!("put plain-{n:02} value-{n}")).collect();
    for puts in puts.chunks(20) {
        transaction(server, &puts.iter().map(String::as_str).collect::<Vec<_>>());
    }
    server.ctl(&["put", "leased", "yes", &format!("--lease={lease}")]);
    server.ctl(&["put", "empty", ""]);
    server.ctl(&["put", "large", &"x".repeat(100_000)]);
    server.ctl(&["del", "plain-1", "--prefix"]);
    server.ctl(&["put", "plain-11", "again"]);
    let now = server.ctl_json(&["endpoint", "status"])[0]["Status"]["header"]["revision"].to_string();
    server.ctl(&["compact", "--physical", &now]);
    for n in 0..3 {
        server.ctl(&["put", "plain-11", &format!("version {n}")]);
    }
    transaction(server, &["put t-1 one", "put t-2 two", "del plain-20", "put t-3 three"]);
}

/// Makes a snapshot with this release, in `root`.
pub(crate) fn snapshot(tools: &Tools, root: &Path) -> (PathBuf, Value) {
    let seat = Seat::new("old");
    let server = start_new(tools, &seat, &root.join("old"));
    write_everything(&server);
    let path = root.join("snap.db");
    server.ctl(&["snapshot", "save", path.to_str().unwrap()]);
    let keys = keys(&server);
    server.stop();
    (path, keys)
}

/// Every key with all its fields, as this one server has it by itself.
pub(crate) fn keys(server: &Server) -> Value {
    server.ctl_json(&["get", "", "--prefix", "--consistency=s"])["kvs"].clone()
}

/// `quorate data restore`, as machines see it.
pub(crate) fn restore(snapshot: &Path, dir: &Path, name: &str, seats: &[Seat], more: &[&str]) -> Value {
    let mut command = Command::new(quorate());
    command.args(["data", "restore", "--output", "json", "--name", name, "--snapshot"]).arg(snapshot);
    command.arg("--data-dir").arg(dir);
    for seat in seats {
        command.arg("--member").arg(format!("{}={}", seat.name, seat.peer_url()));
    }
    serde_json::from_str(&run(command.args(more))).unwrap()
}

/// A bucket's items.
pub(crate) fn bucket(db: &Path, name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = std::fs::read(db).unwrap();
    let db = Db::open(&bytes).unwrap();
    let mut items = Vec::new();
    for (_, bucket) in db.buckets().unwrap().iter().filter(|(found, _)| found == name.as_bytes()) {
        db.for_each(bucket, |key, value| items.push((key.to_vec(), value.to_vec()))).unwrap();
    }
    items
}
