//! `quorate data restore` and `data defrag`, killed before each system call that touches their files.
//!
//! The system calls of an undisturbed run are counted with strace; then there is one run for each of them that is killed as a
//! thread enters it. After each kill a restore has left nothing that etcd would start on, or the whole; a defragmentation
//! has left the old file or the new one, whole. The next run always brings the end that was wanted, and leaves no partial
//! name behind. (Power cuts are another matter: `crates/effects/etcd/tests/restore_crash.rs`.)
//!
//! The database is large enough to be written in several pieces, each of which meets the kill.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod init_support;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use quorate_testkit::{lived_in_snapshot, quorate, strace};

use init_support::{Node, read};

/// Every call that changes something. `?`: not every machine has each of them.
const CALLS: &str = "?mkdir,?mkdirat,?openat,?write,?pwrite64,?fsync,?rename,?renameat,?renameat2,?link,?unlink,?rmdir,\
                     ?fchmod,?fchown,?flock,?sync_file_range";

type Tree = BTreeMap<PathBuf, Node>;

/// What is killed, and how its left-overs are judged.
struct Scene {
    name: &'static str,
    /// Below the root, which holds `snap.db` and, for a defragmentation, `data`.
    args: &'static [&'static str],
    restores: bool,
}

const RESTORE: Scene = Scene {
    name: "restore",
    args: &["data", "restore", "--snapshot", "snap.db", "--data-dir", "data", "--output", "json"],
    restores: true,
};

const RESTORE_WITH_WAL: Scene = Scene {
    name: "restore with a separate WAL",
    args: &["data", "restore", "--snapshot", "snap.db", "--data-dir", "data", "--wal-dir", "wal", "--output", "json"],
    restores: true,
};

const DEFRAG_DIR: Scene =
    Scene { name: "defrag of a data dir", args: &["data", "defrag", "data", "--output", "json"], restores: false };

const DEFRAG_SNAPSHOT: Scene =
    Scene { name: "defrag of a snapshot", args: &["data", "defrag", "snap.db", "--output", "json"], restores: false };

/// The root before a run, made once and copied.
fn set_up(scene: &Scene) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let put =
        |name: &str, bytes: &[u8]| std::fs::File::create(root.path().join(name)).unwrap().write_all(bytes).unwrap();
    let snapshot = lived_in_snapshot();
    put("snap.db", snapshot);
    if !scene.restores {
        std::fs::create_dir_all(root.path().join("data/member/snap")).unwrap();
        std::fs::create_dir_all(root.path().join("data/member/wal")).unwrap();
        put("data/member/snap/db", &snapshot[..snapshot.len() - 32]);
    }
    root
}

fn traced(scene: &Scene, root: &Path, trace: &[&str]) -> Output {
    let mut command = Command::new(strace());
    command.current_dir(root).args(["-f", "-qq", "-y"]).args(trace).arg(quorate()).args(scene.args).output().unwrap()
}

/// How often each call is made by the busiest thread: strace counts each thread by itself.
fn calls(scene: &Scene) -> BTreeMap<String, usize> {
    let root = set_up(scene);
    let log = tempfile::NamedTempFile::new().unwrap();
    let output =
        traced(scene, root.path(), &["-o", &log.path().display().to_string(), "-e", &format!("trace={CALLS}")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let marker = root.path().display().to_string();
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut most: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(log.path()).unwrap().lines() {
        let mut words = line.split_whitespace();
        let (Some(thread), Some(word)) = (words.next(), words.next()) else { continue };
        let Some((name, _)) = word.split_once('(') else { continue };
        let number = seen.entry((thread.to_owned(), name.to_owned())).or_insert(0);
        *number += 1;
        // Calls before the first one that has to do with the files are the start of the program.
        if line.contains(&marker) || line.contains("data") || line.contains("snap.db") {
            let most = most.entry(name.to_owned()).or_insert(0);
            *most = (*most).max(*number);
        }
    }
    most
}

fn good(scene: &Scene, tree: &Tree, before: &Tree, whole: &Tree) -> bool {
    let of = |tree: &Tree, wanted: &dyn Fn(&Path) -> bool| -> Tree {
        tree.iter().filter(|(path, _)| wanted(path)).map(|(path, node)| (path.clone(), node.clone())).collect()
    };
    if !scene.restores {
        let settled = |path: &Path| !path.to_string_lossy().contains(".partial-") && !path.as_os_str().is_empty();
        let left = of(tree, &settled);
        return left == of(before, &settled) || left == of(whole, &settled);
    }
    let member = |path: &Path| path.starts_with("data/member");
    let wal = |path: &Path| path.starts_with("wal") && path.extension().is_some_and(|end| end == "wal");
    let (has_member, has_wal) = (!of(tree, &member).is_empty(), !of(tree, &wal).is_empty());
    let (same_member, same_wal) = (of(tree, &member) == of(whole, &member), of(tree, &wal) == of(whole, &wal));
    match (has_member, has_wal) {
        (false, false) => true,
        (false, true) => same_wal,
        (true, _) => same_member && same_wal,
    }
}

fn sweep(scene: &Scene) {
    let root = set_up(scene);
    let before = read(root.path());
    let plain = |root: &Path| Command::new(quorate()).current_dir(root).args(scene.args).output().unwrap();
    assert!(plain(root.path()).status.success());
    let whole = read(root.path());
    assert!(before != whole);
    let mut kills = 0;
    let calls = calls(scene);
    assert!(calls["write"] > 2, "{}: in one piece, {calls:?}", scene.name);
    for (name, most) in calls {
        for number in 1..=most {
            let when = format!("{}, killed at `{name}` number {number}", scene.name);
            let root = set_up(scene);
            let inject = format!("inject={name}:signal=KILL:when={number}");
            let killed =
                traced(scene, root.path(), &["-o", "/dev/null", "-e", &format!("trace={name}"), "-e", &inject]);
            assert!(killed.status.signal() == Some(9) || killed.status.success(), "{when}");
            kills += usize::from(killed.status.signal() == Some(9));
            let left = read(root.path());
            assert!(good(scene, &left, &before, &whole), "{when}: {:?}", left.keys());
            let again = plain(root.path());
            assert!(again.status.success(), "{when}: {}", String::from_utf8_lossy(&again.stderr));
            assert_eq!(read(root.path()).keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>(), "{when}");
            assert!(read(root.path()) == whole, "{when}: the end is another");
        }
    }
    assert!(kills > 10, "{}: only {kills} kills", scene.name);
}

#[test]
fn a_killed_restore_leaves_nothing_or_the_whole() {
    sweep(&RESTORE);
}

#[test]
fn a_killed_restore_with_a_separate_wal_leaves_nothing_or_the_whole() {
    sweep(&RESTORE_WITH_WAL);
}

#[test]
fn a_killed_defragmentation_of_a_data_dir_leaves_the_old_file_or_the_new_one() {
    sweep(&DEFRAG_DIR);
}

#[test]
fn a_killed_defragmentation_of_a_snapshot_leaves_the_old_file_or_the_new_one() {
    sweep(&DEFRAG_SNAPSHOT);
}
