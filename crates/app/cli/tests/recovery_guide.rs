//! Runs the commands of `docs/guide/disaster-recovery.md`, as they stand there, on three machines' worth of data dirs.
//!
//! The store is the one that the real etcd-backup-restore wrote. There is no systemd here: `systemctl start etcd` of the
//! guide notes that it was asked, and real etcd servers are then started on the data dirs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod backup_support;
mod cluster_support;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use backup_support::{expected, gardener, put, url};
use cluster_support::{Declared, LIMIT, Wire};
use quorate_testkit::{Cluster, Seat, etcd, project_root, quorate, wait_until};
use tempfile::TempDir;

/// The `sh` blocks of the guide, by heading.
fn blocks() -> BTreeMap<String, Vec<String>> {
    let text = std::fs::read_to_string(project_root().join("docs/guide/disaster-recovery.md")).unwrap();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut heading, mut block) = (String::new(), None::<String>);
    for line in text.lines() {
        match (&mut block, line) {
            (None, "```sh") => block = Some(String::new()),
            (Some(done), "```") => {
                found.entry(heading.clone()).or_default().push(done.clone());
                block = None;
            }
            (Some(open), line) => *open += &format!("{line}\n"),
            (None, line) => {
                if let Some(title) = line.strip_prefix("## ") {
                    heading = title.split('.').next().unwrap_or_default().to_owned();
                }
            }
        }
    }
    found
}

/// A night with three machines, all of them in one folder.
struct Night {
    root: TempDir,
    seats: Vec<Seat>,
    endpoints: String,
    blocks: BTreeMap<String, Vec<String>>,
    ran: Vec<String>,
}

impl Night {
    fn new() -> Night {
        let root = tempfile::tempdir().unwrap();
        let seats = Seat::many(3);
        let bin = root.path().join("bin");
        put(&bin.join("systemctl"), b"#!/bin/sh\nprintf '%s\\n' \"$NAME: $*\" >> \"$ASKED\"\n");
        std::fs::set_permissions(bin.join("systemctl"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(quorate(), bin.join("quorate")).unwrap();
        std::os::unix::fs::symlink(&etcd("sid").etcdctl, bin.join("etcdctl")).unwrap();
        std::os::unix::fs::symlink(&etcd("sid").etcd, bin.join("etcd")).unwrap();
        let endpoints = seats.iter().map(Seat::client_url).collect::<Vec<_>>().join(",");
        Night { root, seats, endpoints, blocks: blocks(), ran: Vec::new() }
    }

    fn data(&self, name: &str) -> PathBuf {
        self.root.path().join(name).join("etcd")
    }

    /// Runs the blocks of a step on a machine, with more variables.
    fn step(&mut self, step: &str, name: &str, data: &Path, more: &[(&str, &str)]) -> String {
        let blocks = self.blocks.get(step).unwrap_or_else(|| panic!("the guide has no step {step}")).clone();
        self.ran.push(step.to_owned());
        let output = self.bash(&blocks.concat(), name, data, more);
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "step {step} on {name}:\n{said}");
        said
    }

    fn bash(&self, script: &str, name: &str, data: &Path, more: &[(&str, &str)]) -> Output {
        let members: Vec<String> =
            self.seats.iter().map(|seat| format!("--member {}={}", seat.name, seat.peer_url())).collect();
        let path = std::env::var("PATH").unwrap();
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(self.root.path())
            .env("PATH", format!("{}:{path}", self.root.path().join("bin").display()))
            .env("ASKED", self.root.path().join("asked"))
            .env("STORE", url(&gardener()))
            .env("NAME", name)
            .env("DATA", data)
            .env("MEMBERS", members.join(" "))
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", &self.endpoints)
            .envs(more.iter().copied())
            .output()
            .unwrap()
    }
}

#[test]
fn the_guide_brings_a_lost_cluster_back() {
    let mut night = Night::new();
    let first = night.data("n1");
    put(&first.join("member/snap/db"), b"not a database any more");

    let said = night.step("1", "n1", &first, &[]);
    assert!(said.contains("exit code 1"), "{said}");
    let said = night.step("2", "n1", &first, &[]);
    assert!(said.contains("recoverable") && said.contains("33-120"), "{said}");
    night.step("3", "n1", &first, &[]);
    let kept: Vec<_> = std::fs::read_dir(first.parent().unwrap()).unwrap().flatten().collect();
    assert_eq!(kept.len(), 1, "set aside, not deleted: {kept:?}");
    let said = night.step("4", "n1", &first, &[]);
    let point = said.lines().find_map(|line| line.strip_prefix("POINT=")).unwrap().to_owned();
    assert!(point.starts_with("120:"), "{point}");

    for name in ["n1", "n2", "n3"] {
        let data = night.data(name);
        std::fs::create_dir_all(data.parent().unwrap()).unwrap();
        night.step("3", name, &data, &[]);
        night.step("5", name, &data, &[("POINT", &point)]);
        night.step("6", name, &data, &[]);
    }
    let asked = std::fs::read_to_string(night.root.path().join("asked")).unwrap();
    assert_eq!(asked, "n1: start etcd\nn2: start etcd\nn3: start etcd\n");
    let members: Vec<(Seat, PathBuf)> = night.seats.iter().map(|seat| (seat.clone(), night.data(&seat.name))).collect();
    let cluster = Cluster::start(&etcd("sid"), &members);
    let keys = expected("keys.json")["kvs"].as_array().unwrap().len();
    let said = night.step("7", "n1", &first, &[]);
    assert!(said.contains(&format!("\"Count\" : {keys}")), "{keys} keys: {said}");
    assert_eq!(said.matches("is healthy").count(), 3, "{said}");

    let snapshot = night.root.path().join("snap.db").display().to_string();
    cluster.servers[0].ctl(&["snapshot", "save", &snapshot]);
    let from_snapshot = night.root.path().join("from-snapshot");
    night.step("9", "n1", &from_snapshot, &[("SNAPSHOT", &snapshot)]);
    assert!(from_snapshot.join("member/snap/db").exists());

    let back = night.root.path().join("back");
    let said = night.step("8", "n2", &back, &[("WHEN", "2026-11-15T20:14:15Z")]);
    assert!(said.contains("exit code 5"), "several members need one point: {said}");
    assert!(night.root.path().join("back.look/member/snap/db").exists() && !back.exists());

    night.step("Before the next time", "n1", &first, &[]);
    cluster.stop();

    let run: std::collections::BTreeSet<&String> = night.ran.iter().collect();
    let agents = |step: &String| step.starts_with("Kept by agents");
    let left: Vec<&String> =
        night.blocks.keys().filter(|step| !run.contains(step) && *step != "0" && !agents(step)).collect();
    assert!(left.is_empty(), "steps of the guide that nobody tried: {left:?}");
}

/// Runs one block beside the cluster file.
fn run_block(cluster: &Declared, block: &str, more: &[(&str, &str)]) -> String {
    let bin = cluster.path("bin");
    if !bin.exists() {
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(quorate(), bin.join("quorate")).unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", block]).current_dir(cluster.root.path()).env("PATH", path);
    let output = command.envs(more.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said
}

/// Puts a value, and returns its revision once that is in the store.
fn put_stored(cluster: &Declared, value: &str) -> u64 {
    cluster.put(0, "k", value);
    cluster.wait_backed_up()
}

#[test]
fn one_command_recovers_a_cluster_kept_by_agents_and_brings_an_earlier_state_back() {
    let blocks = blocks();
    let (lost, point) = (&blocks["Kept by agents: one command"], &blocks["Kept by agents: back to a point in time"]);
    let store = tempfile::tempdir().unwrap();
    let mut cluster = Declared::new("3.5.30", 3, Wire::Clear);
    cluster.more = format!("backup: {{store: \"file://{}\", delta-period: 200ms}}\n", store.path().display());
    cluster.file_as("cluster.yaml", &cluster.text().replace("agent:\n", "agent:\n  ready-timeout: 2s\n"));
    cluster.start_all();
    cluster.wait_serving();
    put_stored(&cluster, "first");
    // Every disk is lost; the agents start on new ones.
    for at in 0..3 {
        cluster.power_off(at);
    }
    for at in 0..3 {
        quorate_testkit::run(Command::new("mv").arg(cluster.data(at)).arg(cluster.path(&format!("lost-{at}"))));
        cluster.start(at);
    }
    wait_until("the agents answer", LIMIT, || run_block(&cluster, &lost[0], &[]).matches("no data").count() == 3);
    let said = run_block(&cluster, &lost[1], &[]);
    assert!(said.contains("recovered: generation 1"), "{said}");
    cluster.wait_serving();
    cluster.assert_all_hold("k", "first");
    let good = put_stored(&cluster, "good");
    let when = std::process::Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S.%3NZ"]).output().unwrap();
    let when = String::from_utf8(when.stdout).unwrap();
    let bad = put_stored(&cluster, "bad");
    // The cluster serves, and what somebody wrote is to be undone.
    let said = run_block(&cluster, &point[0], &[("WHEN", when.trim())]);
    assert!(said.contains("recovered: generation 2"), "{said}");
    cluster.wait_serving();
    cluster.assert_all_hold("k", "good");
    assert!(cluster.revision(0) > bad, "revisions do not go back");
    let later = put_stored(&cluster, "bad again");
    let said = run_block(&cluster, &point[1], &[("REVISION", &good.to_string())]);
    assert!(said.contains("recovered: generation 3"), "{said}");
    cluster.wait_serving();
    cluster.assert_all_hold("k", "good");
    assert!(cluster.revision(0) > later);
    put_stored(&cluster, "backups continue");
    // Every machine is lost, the state dirs with the ledgers too. What the refusal advises brings the cluster back.
    for at in 0..3 {
        cluster.power_off(at);
    }
    for at in 0..3 {
        let gone = cluster.path(&format!("lost-with-ledger-{at}"));
        std::fs::create_dir(&gone).unwrap();
        quorate_testkit::run(Command::new("mv").arg(cluster.data(at)).arg(cluster.state(at)).arg(&gone));
        cluster.start(at);
    }
    for at in 0..3 {
        let status = cluster.wait_phase(at, "refused");
        assert_eq!(status["code"], "Q0948", "{status}");
    }
    let log = cluster.log(0);
    assert!(log.contains("`quorate cluster recover` brings the whole cluster back"), "{log}");
    wait_until("the agents answer", LIMIT, || run_block(&cluster, &lost[0], &[]).matches("no data").count() == 3);
    let said = run_block(&cluster, &lost[1], &[]);
    assert!(said.contains("recovered: generation"), "{said}");
    cluster.wait_serving();
    cluster.assert_all_hold("k", "backups continue");
}
