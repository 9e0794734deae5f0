//! `quorate data defrag`: smaller, the same content, and never a moment without a whole database.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod init_support;

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use quorate_testkit::{Launch, Seat, Server, etcd, golden, quorate, run, strace, wait_until};
use serde_json::Value;

use init_support::{Run, names, read};

fn defrag(path: &Path) -> Run {
    Run::of(Command::new(quorate()).args(["data", "defrag", "--output", "json"]).arg(path))
}

fn defrag_json(path: &Path) -> Value {
    let run = defrag(path);
    assert_eq!(run.exit, 0, "{}{}", run.stderr, run.stdout);
    serde_json::from_str(&run.stdout).unwrap()
}

fn put(path: &Path, bytes: &[u8]) {
    std::fs::File::create(path).unwrap().write_all(bytes).unwrap();
}

fn keys(server: &Server) -> Value {
    server.ctl_json(&["get", "", "--prefix"])["kvs"].clone()
}

/// A stopped member whose database is mostly free pages, and what is in it.
fn fragmented(root: &Path, seat: &Seat) -> (std::path::PathBuf, Value) {
    let dir = root.join("data");
    let found = ["data", "init", "--data-dir", dir.to_str().unwrap(), "--name", &seat.name, "--member"];
    run(Command::new(quorate()).args(found).arg(format!("{}={}", seat.name, seat.peer_url())));
    let server = Server::start(&etcd("sid"), seat, &dir);
    let value = "x".repeat(100_000);
    for n in 0..30 {
        server.ctl(&["put", &format!("k{}", n % 3), &value]);
    }
    server.ctl(&["put", "small", "one"]);
    let now = server.ctl_json(&["endpoint", "status"])[0]["Status"]["header"]["revision"].to_string();
    server.ctl(&["compact", "--physical", &now]);
    let held = defrag(&dir);
    assert_eq!(held.exit, 5, "while etcd runs: {}", held.stdout);
    assert!(
        held.stdout.contains("Q0710") && held.stdout.contains(&format!("process {}", server.pid())),
        "{}",
        held.stdout
    );
    let keys = keys(&server);
    server.stop();
    (dir, keys)
}

#[test]
fn a_data_dir_shrinks_and_etcd_finds_everything_in_it() {
    let root = tempfile::tempdir().unwrap();
    let seat = Seat::new("n1");
    let (dir, wanted) = fragmented(root.path(), &seat);
    let db = dir.join("member/snap/db");
    std::fs::set_permissions(&db, std::fs::Permissions::from_mode(0o640)).unwrap();
    put(&dir.join("member/snap/db.partial-1"), b"left by a run that was killed");
    let (before, modified) = (read(&dir), db.metadata().unwrap());
    let said = defrag_json(&dir);
    assert_eq!(said["bytes_before"], modified.len());
    assert!(said["bytes_after"].as_u64().unwrap() < 1 << 20, "{said}");
    assert_eq!(db.metadata().unwrap().len(), said["bytes_after"].as_u64().unwrap());
    assert_eq!((db.metadata().unwrap().mode(), db.metadata().unwrap().uid()), (modified.mode(), modified.uid()));
    let mut after = read(&dir);
    for (path, node) in &before {
        let same = path.to_string_lossy().contains("snap/db") || after.get(path) == Some(node);
        assert!(same, "{} is as it was", path.display());
    }
    after.retain(|path, _| path.to_string_lossy().contains(".partial-"));
    assert!(after.is_empty(), "{:?}", after.keys());
    run(Command::new(quorate()).args(["data", "verify"]).arg(&dir));
    let server = Server::start(&etcd("sid"), &seat, &dir);
    assert!(keys(&server) == wanted);
    server.ctl(&["put", "after", "defrag"]);
    server.stop();
}

#[test]
fn an_etcd_that_waited_for_the_old_file_stops_and_loses_nothing() {
    let root = tempfile::tempdir().unwrap();
    let seat = Seat::new("n1");
    let (dir, wanted) = fragmented(root.path(), &seat);
    // The run pauses before it puts the new file in place, and etcd is started meanwhile.
    let mut slow = Command::new(strace())
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=?rename,?renameat,?renameat2", "-e"])
        .arg("inject=?rename,?renameat,?renameat2:delay_enter=3000000")
        .arg(quorate())
        .args(["data", "defrag"])
        .arg(&dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let new = || names(&dir).iter().any(|name| name.contains("db.partial-"));
    wait_until("the new file", Duration::from_secs(20), new);
    let mut early = Launch::new(&etcd("sid"), &seat, &dir).spawn();
    assert!(slow.wait().unwrap().success());
    wait_until("the early etcd to stop", Duration::from_secs(20), || early.running.ended().is_some());
    let server = Server::start(&etcd("sid"), &seat, &dir);
    assert!(keys(&server) == wanted);
    server.stop();
}

#[test]
fn a_snapshot_stays_a_snapshot_with_its_hash() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("snap.db");
    for version in ["3.4.23", "3.5.16", "3.5.30", "3.6.14"] {
        put(&path, &golden(&format!("snapshot-{version}.db")));
        let status = || etcd("sid").utl_json(&["snapshot", "status", path.to_str().unwrap()]);
        let before = status();
        let said = defrag_json(&path);
        let after = status();
        for field in ["hash", "revision", "totalKey"] {
            assert_eq!(before[field], after[field], "{version}: {field}");
        }
        assert_eq!(said["hash"], after["hash"], "{version}");
        assert!(said["bytes_after"].as_u64() <= said["bytes_before"].as_u64(), "{said}");
        assert!(said["sha256"].as_str().is_some_and(|hash| hash.len() == 64));
        let restored = root.path().join(version);
        run(Command::new(&etcd("sid").etcdutl)
            .args(["snapshot", "restore"])
            .arg(&path)
            .arg("--data-dir")
            .arg(&restored));
    }
}

#[test]
fn a_damaged_file_is_left_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("snap.db");
    let sound = golden("snapshot-3.5.30.db");
    for at in (0..sound.len()).step_by(509) {
        let mut flipped = sound.clone();
        flipped[at] ^= 4;
        put(&path, &flipped);
        let run = defrag(&path);
        assert_eq!(run.exit, 1, "byte {at}: {}", run.stdout);
        assert!(std::fs::read(&path).unwrap() == flipped && names(root.path()) == ["snap.db"], "byte {at}");
    }
    for (what, exit) in [("absent", 1), (".", 1)] {
        assert_eq!(defrag(&root.path().join(what)).exit, exit, "{what}");
    }
}
