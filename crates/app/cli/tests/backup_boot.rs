//! Chains restored under every etcd release: as one member and as three, with every field of every key, and with all of
//! it on a member that joins later. And a disk that fills up while a chain is restored.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests clear away, and one that cannot go on says where"
)]

mod backup_support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use backup_support::{backup_json, expected, gardener, url};
use quorate_testkit::{Cluster, Launch, Seat, Server, etcd, lived_in_snapshot, quorate, strace, wait_until};
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
    // A disk says that it is full when something is made, or when what was written is to last. (Or at a `write`: below.)
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

/// The names below a folder, folders before what they hold, without those of one folder.
fn names_below(root: &Path, but: &str) -> Vec<String> {
    let (mut names, mut stack) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().map(Result::unwrap).filter(|entry| entry.file_name() != but) {
            names.push(entry.path().strip_prefix(root).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                stack.push(entry.path());
            }
        }
    }
    names.sort();
    names
}

/// `quorate` in `root`, for which the disk is full at the `number`th write into one file, which may be named by the
/// program's id: `$$`.
fn with_full_disk(root: &Path, file: &str, number: usize, args: &[&str]) -> Output {
    // Traced by a grandchild, the program is the shell itself, so its id is known in time. Only calls on that one file
    // fail: threads wake each other by `write` as well.
    let script = format!("tracer=$1; shift; exec \"$tracer\" -P \"$PWD/{file}\" \"$@\"");
    let inject = format!("inject=write:error=ENOSPC:when={number}");
    let mut command = Command::new("sh");
    command.current_dir(root).args(["-c", &script, "sh"]).arg(strace());
    command.args(["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=write", "-e", &inject]);
    command.arg(quorate()).args(args).output().unwrap()
}

#[test]
fn a_disk_that_is_full_half_way_through_a_file_leaves_nothing_to_start_on() {
    let root = tempfile::tempdir().unwrap();
    // A chain of small objects, and a full that is written in many pieces.
    let (chain, large) = (root.path().join("stores/chain"), root.path().join("stores/large"));
    backup_json(root.path(), &["convert", "--store", &url(&gardener().join("store")), "--to", &url(&chain)]);
    std::fs::create_dir_all(large.join("v2")).unwrap();
    let full = large.join("v2/Full-00000000-00000027-1794773646");
    std::fs::File::create(full).and_then(|mut file| file.write_all(lived_in_snapshot())).unwrap();
    // A data dir that is made, and one that is there and empty.
    std::fs::create_dir(root.path().join("empty")).unwrap();
    let before = names_below(root.path(), "stores");
    assert_eq!(before, ["empty"]);
    let (log, snap) = ("wal/0000000000000000-0000000000000000.wal", "snap/0000000000000001-0000000000000001.snap");
    let cases =
        [(&chain, "snap/db", 1), (&large, "snap/db", 1), (&large, "snap/db", 2), (&chain, log, 1), (&chain, snap, 1)];
    for (store, file, number) in cases {
        for (data_dir, partial) in [("n1", "n1.partial-$$/member"), ("empty", "empty/member.partial-$$")] {
            let what = format!("write {number} of `{file}` for `{data_dir}`");
            let args = ["backup", "restore", "--store", &url(store), "--data-dir", data_dir];
            let output = with_full_disk(root.path(), &format!("{partial}/{file}"), number, &args);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(75), "{what}: {said}");
            assert!(said.contains("Q0005") && said.contains(file), "{what}: {said}");
            assert_eq!(names_below(root.path(), "stores"), before, "{what}: as it was");
        }
    }
    // With room, the same is done.
    for (store, data_dir) in [(&chain, "n1"), (&large, "empty")] {
        backup_json(root.path(), &["restore", "--store", &url(store), "--data-dir", data_dir]);
        assert!(root.path().join(data_dir).join("member/snap/db").is_file());
    }
}
