//! Founds members with the real program, and asks real clusters what they hold.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use quorate_testkit::{Cluster, Launch, Seat, Server, Tools, quorate, run, wait_until};
use serde_json::Value;

/// A member as `--member` takes it.
pub(crate) type Listed = (String, Vec<String>);

pub(crate) fn listed(seats: &[Seat]) -> Vec<Listed> {
    seats.iter().map(|seat| (seat.name.clone(), vec![seat.peer_url()])).collect()
}

/// Founds `name` in `dir` with `quorate data init`, and returns what that said.
pub(crate) fn found(dir: &Path, name: &str, token: &str, members: &[Listed], more: &[&str]) -> Value {
    let mut command = Command::new(quorate());
    command.args(["data", "init", "--output", "json", "--name", name, "--token", token, "--data-dir"]).arg(dir);
    for (name, urls) in members {
        command.arg("--member").arg(format!("{name}={}", urls.join(",")));
    }
    serde_json::from_str(&run(command.args(more))).unwrap()
}

/// Founds a data dir for each seat, in `root/<name>`.
pub(crate) fn found_all(root: &Path, token: &str, seats: &[Seat]) -> (Vec<(Seat, PathBuf)>, Value) {
    let mut said = Value::Null;
    let members = seats.iter().map(|seat| {
        let dir = root.join(&seat.name);
        said = found(&dir, &seat.name, token, &listed(seats), &[]);
        (seat.clone(), dir)
    });
    (members.collect(), said)
}

/// `quorate data verify --mode full` is content with a stopped data dir.
pub(crate) fn verify(dir: &Path) {
    run(Command::new(quorate()).args(["data", "verify", "--mode", "full"]).arg(dir));
}

/// A number that etcdctl prints in decimal, as it is shown elsewhere.
pub(crate) fn hex(value: &Value) -> String {
    format!("{:x}", value.as_u64().unwrap_or_else(|| panic!("not a number: {value}")))
}

/// Member ids and names of a running cluster.
pub(crate) fn member_list(server: &Server) -> (String, BTreeMap<String, String>) {
    let list = server.ctl_json(&["member", "list"]);
    let members = list["members"].as_array().unwrap().iter();
    let members = members.map(|member| (hex(&member["ID"]), member["name"].as_str().unwrap_or_default().to_owned()));
    (hex(&list["header"]["cluster_id"]), members.collect())
}

/// Member ids and names as `data init` said they will be.
pub(crate) fn promised(said: &Value) -> (String, BTreeMap<String, String>) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let members = said["members"].as_array().unwrap().iter();
    (text(&said["cluster_id"]), members.map(|member| (text(&member["id"]), text(&member["name"]))).collect())
}

/// Writes `PREFIX-0` to `PREFIX-<count - 1>` in transactions of 100.
pub(crate) fn put_many(server: &Server, prefix: &str, count: usize) {
    for from in (0..count).step_by(100) {
        let puts = (from..count.min(from + 100)).map(|i| format!("put {prefix}-{i} {prefix}-value-{i}\n"));
        // Compares, then what to do if they hold, then what to do if not: each ends with an empty line.
        let script = format!("\n{}\n\n", puts.collect::<String>());
        let mut command = server.tools.ctl_command(&server.seat.client_url(), &["txn"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait_with_output().unwrap().status.success());
    }
}

/// Every key and value that this one server holds by itself.
pub(crate) fn local_keys(server: &Server) -> Value {
    server.ctl_json(&["get", "", "--prefix", "--consistency=s"])["kvs"].clone()
}

/// Waits until every server computes the same hash over its own history.
pub(crate) fn agree(servers: &[&Server]) {
    let hashes = || -> Vec<(Value, Value)> {
        let asked = servers.iter().map(|server| server.ctl_json(&["endpoint", "hashkv"])[0]["HashKV"].clone());
        asked.map(|said| (said["hash"].clone(), said["compact_revision"].clone())).collect()
    };
    wait_until("every member to have the same history", Duration::from_secs(20), || {
        let hashes = hashes();
        hashes.iter().all(|hash| *hash == hashes[0])
    });
}

/// Adds a member the way etcd documents it, starts it on nothing, and waits until it is ready.
pub(crate) fn join(tools: &Tools, name: &str, root: &Path, running: &[&Server]) -> Server {
    let seat = Seat::new(name);
    let peer = format!("--peer-urls={}", seat.peer_url());
    // Right after a start the leader may not yet trust its peers enough to let one in.
    wait_until("the cluster to accept a member", Duration::from_secs(20), || {
        running[0].try_ctl(&["member", "add", name, &peer]).is_ok()
    });
    let others = running.iter().map(|server| format!("{}={}", server.seat.name, server.seat.peer_url()));
    let all: Vec<String> = others.chain([format!("{name}={}", seat.peer_url())]).collect();
    Launch::new(tools, &seat, &root.join(name))
        .arg("--initial-cluster-state=existing")
        .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
        .arg(format!("--initial-cluster={}", all.join(",")))
        .start()
}

/// Saves a snapshot and lets etcd's own tool judge it.
pub(crate) fn save_snapshot(server: &Server, path: &Path) -> Value {
    let path = path.to_str().unwrap();
    server.ctl(&["snapshot", "save", path]);
    server.tools.utl_json(&["snapshot", "status", path])
}

/// Compacts at the present revision, waits until the work is done, and gives the space back.
pub(crate) fn compact_and_defragment(server: &Server) {
    let revision = server.ctl_json(&["endpoint", "status"])[0]["Status"]["header"]["revision"].to_string();
    server.ctl(&["compact", "--physical", &revision]);
    server.ctl(&["--command-timeout=30s", "defrag"]);
}

pub(crate) fn refs(cluster: &Cluster) -> Vec<&Server> {
    cluster.servers.iter().collect()
}
