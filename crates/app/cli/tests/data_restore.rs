//! `quorate data restore` as people and machines use it: agreement, repetition, refusals, damage, memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod init_support;

use std::io::Write;
use std::path::Path;
use std::process::Command;

use quorate_testkit::{Seat, Server, etcd, golden, quorate};
use serde_json::Value;

use init_support::{Run, names, read, times};

fn restore(dir: &Path, args: &[&str]) -> Run {
    Run::of(Command::new(quorate()).current_dir(dir).args(["data", "restore"]).args(args))
}

fn restore_json(dir: &Path, args: &[&str]) -> Value {
    let run = restore(dir, &[args, &["--output", "json"]].concat());
    assert_eq!(run.exit, 0, "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// A directory with a snapshot in it.
fn with_snapshot() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    put(&root.path().join("snap.db"), &golden("snapshot-3.5.30.db"));
    root
}

fn put(path: &Path, bytes: &[u8]) {
    std::fs::File::create(path).unwrap().write_all(bytes).unwrap();
}

const LIST: [&str; 6] = [
    "--member",
    "n1=http://10.0.0.1:2380",
    "--member",
    "n2=http://10.0.0.2:2380",
    "--member",
    "n3=http://10.0.0.3:2380",
];

#[test]
fn members_that_know_nothing_of_each_other_restore_the_same_cluster() {
    let root = with_snapshot();
    let run = |name: &str, more: &[&str]| {
        let dir = format!("{name}-{}", more.join("").replace(['-', ':', '+'], ""));
        let dir: String = dir.chars().take(60).collect();
        restore_json(
            root.path(),
            &[&["--snapshot", "snap.db", "--name", name, "--data-dir", &dir], &LIST[..], more].concat(),
        )
    };
    let (one, two) = (run("n1", &[]), run("n2", &[]));
    assert_eq!(one["cluster_id"], two["cluster_id"]);
    assert_eq!(one["restore_point"], two["restore_point"]);
    assert_eq!(one["restored"]["hash"], two["restored"]["hash"], "the databases are the same");
    // Whatever changes the content changes the cluster.
    let others = [run("n1", &["--exact"]), run("n1", &["--bump-revision", "5"]), run("n1", &["--token", "mine"])];
    let mut ids: Vec<_> = others.iter().map(|said| said["cluster_id"].as_str().unwrap()).collect();
    ids.push(one["cluster_id"].as_str().unwrap());
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4);
    assert_eq!(others[0]["restored"]["revision"], one["restored"]["last_write"]);
    assert_eq!(others[1]["restored"]["revision"].as_u64(), one["restored"]["last_write"].as_u64().map(|last| last + 5));
}

#[test]
fn a_restore_point_is_kept_to_or_refused() {
    let root = with_snapshot();
    let common = [&["--snapshot", "snap.db", "--name", "n1"], &LIST[..]].concat();
    let dry =
        |more: &[&str]| restore_json(root.path(), &[&common, &["--data-dir", "d", "--dry-run"][..], more].concat());
    let (first, second) = (dry(&[]), dry(&[]));
    assert_ne!(first["restore_point"], second["restore_point"], "each has a number of its own");
    assert_eq!(names(root.path()), ["snap.db"], "nothing is written");
    let point = first["restore_point"].as_str().unwrap();
    let with = |dir: &str, more: &[&str]| {
        restore(
            root.path(),
            &[&common, &["--data-dir", dir, "--restore-point", point, "--output", "json"][..], more].concat(),
        )
    };
    let a: Value = serde_json::from_str(&with("a", &[]).stdout).unwrap();
    let b: Value = serde_json::from_str(&with("b", &["--mark-compacted"]).stdout).unwrap();
    assert_eq!((&a["cluster_id"], &a["restore_point"]), (&b["cluster_id"], &first["restore_point"]));
    assert_eq!(a["cluster_id"], first["cluster_id"]);
    for flags in [&["--exact"][..], &["--bump-revision", "7"]] {
        let refused = with("c", flags);
        assert_eq!(refused.exit, 5);
        assert!(refused.stdout.contains("Q0704"), "{}", refused.stdout);
    }
    let mut other = golden("snapshot-3.5.16.db");
    put(&root.path().join("snap.db"), &other);
    assert_eq!(with("c", &[]).exit, 5, "another snapshot");
    other.clear();
    let garbled = restore(root.path(), &[&common, &["--data-dir", "c", "--restore-point", &point[1..]][..]].concat());
    assert_eq!(garbled.exit, 5);
    assert!(!root.path().join("c").exists());
}

#[test]
fn run_again_it_says_so_and_touches_nothing() {
    let root = with_snapshot();
    let args = [&["--snapshot", "snap.db", "--name", "n1", "--data-dir", "d"], &LIST[..]].concat();
    assert_eq!(restore_json(root.path(), &args)["outcome"], "made");
    let before = (read(root.path()), times(root.path()));
    assert_eq!(restore_json(root.path(), &args)["outcome"], "already");
    assert_eq!((read(root.path()), times(root.path())), before);
    // Another snapshot is another cluster.
    let other = restore(root.path(), &[&args[..], &["--exact"]].concat());
    assert_eq!(other.exit, 5);
    assert!(other.stderr.contains("Q0201"), "{}", other.stderr);
}

#[test]
fn damage_anywhere_is_noticed_and_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let sound = golden("snapshot-3.5.30.db");
    let step = if std::env::var_os("QUORATE_SWEEP").is_some() { 1 } else { 311 };
    let attempt = |bytes: &[u8], what: &str| {
        put(&root.path().join("snap.db"), bytes);
        let run = restore(root.path(), &["--snapshot", "snap.db", "--data-dir", "d"]);
        assert!([1, 5].contains(&run.exit), "{what}: {} {}", run.exit, run.stderr);
        assert_eq!(names(root.path()), ["snap.db"], "{what}");
        run.stderr
    };
    for at in (0..sound.len()).step_by(step) {
        let mut flipped = sound.clone();
        flipped[at] ^= 0x10;
        attempt(&flipped, &format!("byte {at} flipped"));
    }
    for len in (0..sound.len()).step_by(step * 4).chain([sound.len() - 1, sound.len() - 32, sound.len() - 512]) {
        attempt(&sound[..len], &format!("cut at {len}"));
    }
    let longer = [sound.as_slice(), &[0]].concat();
    attempt(&longer, "one byte more");
    let mut value = sound.clone();
    let at = value.windows(3).position(|bytes| bytes == b"bar").unwrap_or(9000);
    value[at] ^= 1;
    assert!(attempt(&value, "a value").contains("Q0360"));
}

#[test]
fn a_copied_database_is_restored_only_when_told_so() {
    let root = tempfile::tempdir().unwrap();
    let snapshot = golden("snapshot-3.5.30.db");
    put(&root.path().join("db"), &snapshot[..snapshot.len() - 32]);
    let refused = restore(root.path(), &["--snapshot", "db", "--data-dir", "d"]);
    assert_eq!(refused.exit, 5);
    assert!(refused.stderr.contains("Q0705") && refused.stderr.contains("--skip-hash"), "{}", refused.stderr);
    let said = restore_json(root.path(), &["--snapshot", "db", "--skip-hash", "--data-dir", "d"]);
    assert_eq!(said["outcome"], "made");
}

#[test]
fn what_is_there_is_never_overwritten_and_a_running_etcd_is_left_alone() {
    let root = with_snapshot();
    let path = root.path();
    std::fs::create_dir(path.join("foreign")).unwrap();
    put(&path.join("foreign/notes.txt"), b"mine");
    let (seat, tools) = (Seat::new("n1"), etcd("sid"));
    let list = format!("n1={}", seat.peer_url());
    let args = ["--snapshot", "snap.db", "--name", "n1", "--member", &list];
    restore_json(path, &[&args[..], &["--data-dir", "running"]].concat());
    let server = Server::start(&tools, &seat, &path.join("running"));
    let running = restore(path, &[&args[..], &["--data-dir", "running", "--exact"]].concat());
    assert_eq!(running.exit, 5, "{}", running.stderr);
    assert!(running.stderr.contains("Q0203"), "{}", running.stderr);
    // Nor is its database a snapshot.
    let db = restore(path, &["--snapshot", "running/member/snap/db", "--skip-hash", "--data-dir", "x"]);
    assert!(db.stderr.contains("Q0301"), "{}", db.stderr);
    server.stop();
    let foreign = restore(path, &[&args[..], &["--data-dir", "foreign"]].concat());
    assert_eq!(foreign.exit, 5);
    assert!(foreign.stderr.contains("Q0205"), "{}", foreign.stderr);
    assert_eq!(std::fs::read(path.join("foreign/notes.txt")).unwrap(), b"mine");
    assert_eq!(restore(path, &["--snapshot", "absent", "--data-dir", "x"]).exit, 1);
}

/// A snapshot of about `mib` MiB, made by restoring nothing but size: values in a database of our own.
fn large_snapshot(path: &Path, mib: u64) {
    use quorate_etcd_formats::bolt::build::BoltWriter;
    use quorate_etcd_formats::mvcc::{Revision, RevisionKey};
    use quorate_etcd_formats::snapshot_file::sha256;
    let mut writer = BoltWriter::new(Vec::new(), 4096).unwrap();
    for name in quorate_etcd_formats::database::BUCKETS {
        let mut bucket = writer.bucket(name.as_bytes());
        if name == "key" {
            for n in 0..mib * 256 {
                let main = n + 2;
                let key = RevisionKey { revision: Revision { main, sub: 0 }, tombstone: false }.encode();
                let mut kv = format!("\x0a\x0bk{n:010}").into_bytes();
                for tag in [0x10, 0x18] {
                    kv.push(tag);
                    let mut rest = main;
                    while rest >= 0x80 {
                        kv.push(rest as u8 | 0x80);
                        rest >>= 7;
                    }
                    kv.push(rest as u8);
                }
                kv.extend_from_slice(b"\x20\x01\x2a\x80\x18");
                kv.resize(kv.len() + 3072, n as u8);
                bucket.put(&key, &kv).unwrap();
            }
        }
        bucket.finish().unwrap();
    }
    let mut bytes = writer.finish().unwrap();
    let hash = sha256(&bytes, bytes.len() as u64, |_| ()).unwrap();
    bytes.extend_from_slice(&hash);
    put(path, &bytes);
}

/// Runs a command and tells its peak resident memory in MiB.
fn peak_mib(dir: &Path, args: &[&str]) -> f64 {
    let output = Command::new("/usr/bin/time")
        .current_dir(dir)
        .args(["-f", "%M", "--"])
        .arg(quorate())
        .args(args)
        .output()
        .expect("GNU time is there: run `make tools`");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    stderr.lines().last().unwrap().trim().parse::<f64>().unwrap() / 1024.0
}

#[test]
fn memory_does_not_grow_with_the_snapshot() {
    let root = tempfile::tempdir().unwrap();
    let mut peaks = Vec::new();
    for mib in [32, 256] {
        let (snapshot, dir) = (format!("{mib}.db"), format!("d{mib}"));
        large_snapshot(&root.path().join(&snapshot), mib);
        let restored = peak_mib(root.path(), &["data", "restore", "--snapshot", &snapshot, "--data-dir", &dir]);
        let defragged = peak_mib(root.path(), &["data", "defrag", &dir]);
        peaks.push([restored, defragged]);
    }
    println!("restore and defrag: {peaks:?} MiB");
    for (small, large) in peaks[0].iter().zip(peaks[1]) {
        assert!(large < 64.0 && large < small + 8.0, "{peaks:?}");
    }
}

#[test]
fn a_disk_that_fills_up_half_way_is_left_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    large_snapshot(&root.path().join("snap.db"), 8);
    // A limit on the size of files stands for a full disk: the write fails in the same place.
    let script = "trap '' XFSZ; ulimit -f 4096; exec \"$@\"";
    let limited = |args: &[&str]| {
        let mut command = Command::new("bash");
        command.current_dir(root.path()).args(["-c", script, "limited"]).arg(quorate()).args(args);
        Run::of(&mut command)
    };
    let failed = limited(&["data", "restore", "--snapshot", "snap.db", "--data-dir", "d"]);
    assert_eq!(failed.exit, 2, "{}", failed.stderr);
    assert_eq!(names(root.path()), ["snap.db"]);
    let before = std::fs::read(root.path().join("snap.db")).unwrap();
    assert_eq!(limited(&["data", "defrag", "snap.db"]).exit, 2);
    assert_eq!(names(root.path()), ["snap.db"]);
    assert!(std::fs::read(root.path().join("snap.db")).unwrap() == before);
    let done = restore(root.path(), &["--snapshot", "snap.db", "--data-dir", "d"]);
    assert_eq!(done.exit, 0, "{}", done.stderr);
}

#[test]
fn the_text_names_the_point_and_what_to_run_next() {
    let root = with_snapshot();
    let run = restore(root.path(), &["--snapshot", "snap.db", "--data-dir", "n1"]);
    assert_eq!(run.exit, 0, "{}", run.stderr);
    for word in ["restore point", "newest write", "begins at", "etcd --name"] {
        assert!(run.stdout.contains(word), "{word}: {}", run.stdout);
    }
}
