//! What `quorate data restore` writes, beside what etcd's own tool writes from the same snapshot.

mod restore_support;

use std::process::Command;

use quorate_testkit::{Seat, etcd, run};

use restore_support::*;

type Items = Vec<(Vec<u8>, Vec<u8>)>;

fn without(mut items: Items, key: &[u8]) -> Items {
    items.retain(|(found, _)| found != key);
    items
}

#[test]
fn keys_and_indexes_are_those_of_etcdutl_byte_for_byte() {
    let tools = etcd("sid");
    let root = tempfile::tempdir().unwrap();
    let seat = Seat::new("n1");
    let old = start_new(&tools, &Seat::new("old"), &root.path().join("old"));
    write_everything(&old);
    let take = |name: &str| {
        let path = root.path().join(name);
        old.ctl(&["snapshot", "save", path.to_str().unwrap()]);
        path
    };
    // A snapshot may end with a plain write, in the middle of a transaction's places, or with a deletion.
    let in_transaction = take("transaction.db");
    old.ctl(&["put", "last", "write"]);
    let plain = take("plain.db");
    transaction(&old, &["put a 1", "del last"]);
    let deletion = take("deletion.db");
    old.stop();
    for snapshot in [in_transaction, plain, deletion] {
        for bump in [Some("1000000000"), Some("7"), None] {
            let name = format!("{}-{}", snapshot.file_stem().unwrap().to_str().unwrap(), bump.unwrap_or("exact"));
            let (ours, theirs) = (root.path().join(format!("{name}-ours")), root.path().join(format!("{name}-theirs")));
            let flags = bump.map_or(vec!["--exact"], |bump| vec!["--bump-revision", bump, "--mark-compacted"]);
            let token = ["--token", "same"];
            restore(&snapshot, &ours, "n1", std::slice::from_ref(&seat), &[flags.as_slice(), &token].concat());
            let mut command = Command::new(&tools.etcdutl);
            command.args(["snapshot", "restore"]).arg(&snapshot).arg("--data-dir").arg(&theirs);
            command.args(["--name", "n1", "--initial-cluster-token", "same"]);
            command.arg("--initial-cluster").arg(format!("n1={}", seat.peer_url()));
            command.arg("--initial-advertise-peer-urls").arg(seat.peer_url());
            run(command.args(flags.iter().filter(|flag| **flag != "--exact")));
            let db = "member/snap/db";
            for name in ["key", "lease", "auth", "authUsers", "authRoles", "alarm", "members", "members_removed"] {
                let same = bucket(&ours.join(db), name) == bucket(&theirs.join(db), name);
                assert!(same, "bucket {name} of {} with {bump:?}", snapshot.display());
            }
            // Their confState is the old cluster's; ours is the new one's.
            let meta = |dir: &std::path::Path| without(bucket(&dir.join(db), "meta"), b"confState");
            assert_eq!(meta(&ours), meta(&theirs), "meta of {}", snapshot.display());
            let wal = "member/wal/0000000000000000-0000000000000000.wal";
            let (ours, theirs) = (std::fs::read(ours.join(wal)).unwrap(), std::fs::read(theirs.join(wal)).unwrap());
            assert!(theirs.starts_with(&ours), "the WAL");
        }
    }
}
