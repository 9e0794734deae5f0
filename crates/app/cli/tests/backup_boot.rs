//! Chains restored under every etcd release: as one member and as three, with every field of every key, and with all of
//! it on a member that joins later. And a disk that fills up while a chain is restored.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod backup_support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backup_support::{backup_json, expected, gardener, url};
use quorate_testkit::{Cluster, Launch, Seat, Server, etcd, quorate, strace, wait_until};
use serde_json::Value;

/// Every key with all its fields, as this one server has it by itself.
fn keys(server: &Server) -> Value {
    server.ctl_json(&["get", "", "--prefix", "--consistency=s"])["kvs"].clone()
}

fn restore(root: &Path, store: &str, name: &str, seats: &[Seat], more: &[&str]) -> Value {
    let list: Vec<String> =
        seats.iter().flat_map(|seat| ["--member".to_owned(), format!("{}={}", seat.name, seat.peer_url())]).collect();
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    let args = ["restore", "--store", store, "--name", name, "--data-dir", name];
    backup_json(root, &[&args, &list[..], more].concat())
}

fn restored_on(version: &str) {
    let (tools, root) = (etcd(version), tempfile::tempdir().unwrap());
    let (store, wanted) = (url(&root.path().join("store")), expected("keys.json")["kvs"].clone());
    backup_json(root.path(), &["convert", "--store", &url(&gardener().join("store")), "--to", &store]);

    let seat = Seat::new("solo");
    restore(root.path(), &store, "solo", std::slice::from_ref(&seat), &["--exact"]);
    let server = Server::start(&tools, &seat, &root.path().join("solo"));
    assert!(keys(&server) == wanted, "{version}: every field of every key");
    server.ctl(&["put", "new", "life"]);
    server.stop();

    let seats = Seat::many(3);
    let point = backup_json(root.path(), &["list", "--store", &store])["restore_point"].as_str().unwrap().to_owned();
    for seat in &seats {
        restore(root.path(), &store, &seat.name, &seats, &["--restore-point", &point]);
    }
    let members: Vec<(Seat, PathBuf)> = seats.iter().map(|seat| (seat.clone(), root.path().join(&seat.name))).collect();
    let cluster = Cluster::start(&tools, &members);
    for server in &cluster.servers {
        assert!(keys(server) == wanted, "{version}: every field of every key, on every member");
    }
    cluster.ctl(&["put", "after", "restore"]);

    let fourth = Seat::new("n4");
    let peer_urls = format!("--peer-urls={}", fourth.peer_url());
    // A cluster takes no member in its first seconds.
    wait_until("the cluster to take a member", Duration::from_secs(30), || {
        cluster.servers[0].try_ctl(&["member", "add", "n4", &peer_urls]).is_ok()
    });
    let all: Vec<String> =
        seats.iter().chain([&fourth]).map(|seat| format!("{}={}", seat.name, seat.peer_url())).collect();
    let joined = Launch::new(&tools, &fourth, &root.path().join("n4"))
        .arg("--initial-cluster-state=existing")
        .arg(format!("--initial-cluster={}", all.join(",")))
        .arg(format!("--initial-advertise-peer-urls={}", fourth.peer_url()))
        .start();
    let here = keys(&cluster.servers[0]);
    assert_eq!(here.as_array().unwrap().len(), wanted.as_array().unwrap().len() + 1);
    wait_until("the new member to have every key", Duration::from_secs(20), || keys(&joined) == here);
}

#[test]
fn a_restored_chain_lives_on_3_4_23() {
    restored_on("3.4.23");
}

#[test]
fn a_restored_chain_lives_on_3_5_16() {
    restored_on("3.5.16");
}

#[test]
fn a_restored_chain_lives_on_the_newest() {
    restored_on("sid");
}

#[test]
fn a_disk_that_is_full_ends_a_restore_and_leaves_what_was_there() {
    let root = tempfile::tempdir().unwrap();
    let store = url(&root.path().join("store"));
    backup_json(root.path(), &["convert", "--store", &url(&gardener().join("store")), "--to", &store]);
    let args = ["backup", "restore", "--store", &store, "--data-dir", "n1"];
    let names = || {
        let entries = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    let mut ended = 0;
    // A disk says that it is full when something is made, or when what was written is to last. (A `write` would be one
    // between threads as well.)
    for call in ["mkdir", "fsync"] {
        for number in 1..=6 {
            let inject = format!("inject={call}:error=ENOSPC:when={number}");
            let mut command = Command::new(strace());
            command.current_dir(root.path()).args([
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                &format!("trace={call}"),
                "-e",
                &inject,
            ]);
            let output = command.arg(quorate()).args(args).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.code() {
                Some(75) => {
                    assert!(said.contains("Q0005"), "{said}");
                    assert_eq!(names(), ["store"], "`{call}` number {number}: nothing is left");
                    ended += 1;
                }
                // There are not so many of that call.
                code => assert_eq!(code, Some(0), "`{call}` number {number}: {said}"),
            }
            if root.path().join("n1").exists() {
                std::fs::remove_dir_all(root.path().join("n1")).unwrap();
            }
        }
    }
    assert!(ended > 2, "{ended} runs met a full disk");
    let done = Command::new(quorate()).current_dir(root.path()).args(args).output().unwrap();
    assert!(done.status.success() && names() == ["n1", "store"]);
}
