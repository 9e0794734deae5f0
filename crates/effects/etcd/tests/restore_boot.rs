//! Restored data dirs under every etcd release: as one member and as three, with every field of every key, and with all of it
//! on a member that joins later.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod matrix_support;
mod restore_support;

use std::path::PathBuf;

use quorate_testkit::{Cluster, Seat, Server, etcd};

use matrix_support::{agree, join, refs, verify};
use restore_support::*;

fn revision(server: &Server) -> u64 {
    server.ctl_json(&["endpoint", "status"])[0]["Status"]["header"]["revision"].as_u64().unwrap()
}

fn restored_on(version: &str) {
    let tools = etcd(version);
    let root = tempfile::tempdir().unwrap();
    let (snapshot, wanted) = snapshot(&tools, root.path());
    assert!(wanted.as_array().unwrap().len() > 50);

    // One member, as it was.
    let seat = Seat::new("solo");
    let dir = root.path().join("solo");
    let said = restore(&snapshot, &dir, "solo", std::slice::from_ref(&seat), &["--exact"]);
    verify(&dir);
    let server = Server::start(&tools, &seat, &dir);
    assert!(keys(&server) == wanted, "{version}: every field of every key");
    let before = said["restored"]["revision"].as_u64().unwrap();
    assert_eq!(revision(&server), before);
    assert_eq!(server.ctl_json(&["lease", "list"])["leases"].as_array().unwrap().len(), 1);
    server.ctl(&["put", "new", "life"]);
    assert_eq!(revision(&server), before + 1);
    server.stop();
    verify(&dir);

    // Three members, each restored by itself, with the revision raised.
    let seats = Seat::many(3);
    let members: Vec<(Seat, PathBuf)> = seats.iter().map(|seat| (seat.clone(), root.path().join(&seat.name))).collect();
    let said: Vec<_> = members.iter().map(|(seat, dir)| restore(&snapshot, dir, &seat.name, &seats, &[])).collect();
    assert!(said.iter().all(|one| one["cluster_id"] == said[0]["cluster_id"]));
    let cluster = Cluster::start(&tools, &members);
    for server in &cluster.servers {
        assert!(keys(server) == wanted, "{version}: every field of every key, on every member");
        assert_eq!(revision(server), before + 1_000_000_000);
    }
    let old = before.to_string();
    let gone = cluster.servers[0].try_ctl(&["get", "empty", &format!("--rev={old}")]).unwrap_err();
    assert!(gone.contains("compacted"), "watchers must notice: {gone}");
    cluster.servers[1].ctl(&["put", "after", "restore"]);

    let fourth = join(&tools, "n4", root.path(), &refs(&cluster));
    let mut all = refs(&cluster);
    all.push(&fourth);
    agree(&all);
    let here = keys(&fourth);
    assert!(here == keys(&cluster.servers[0]), "{version}: a member added later has every key");
    assert_eq!(here.as_array().unwrap().len(), wanted.as_array().unwrap().len() + 1);
}

#[test]
fn restored_members_live_on_3_4_23() {
    restored_on("3.4.23");
}

#[test]
fn restored_members_live_on_3_5_16() {
    restored_on("3.5.16");
}

#[test]
fn restored_members_live_on_the_newest() {
    restored_on("sid");
}
