//! `quorate backup compact` and `backup convert`, killed before each system call that changes the files of a store.
//!
//! The calls of an undisturbed run are listed with strace; then there is one run for each that is killed as a thread
//! enters it. After each kill the store gives its newest state as before, or, while it is being made, nothing or a state
//! of the old store; the next run brings the end that was wanted. By default the calls on some of the deltas are left
//! out, since each delta is written like the others; `QUORATE_SWEEP=full` leaves out none. (Power cuts are another
//! matter: `backup_crash.rs`.)

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod backup_support;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use backup_support::{gardener, newest, url};
use quorate_testkit::{quorate, strace};

/// Every call that changes a file or makes a change last. `?`: not every machine has each of them.
const CALLS: &str = "?mkdir,?openat,?write,?pwrite64,?fsync,?fdatasync,?rename,?renameat,?renameat2,?link,?linkat,?unlink,\
                     ?unlinkat,?ftruncate";

fn convert(root: &Path) -> Vec<String> {
    let (from, to) = (url(&gardener().join("store")), url(&root.join("store")));
    ["backup", "convert", "--store", &from, "--to", &to].map(str::to_owned).to_vec()
}

fn compact(root: &Path) -> Vec<String> {
    ["backup", "compact", "--store", &url(&root.join("store"))].map(str::to_owned).to_vec()
}

fn traced(args: &[String], trace: &[&str]) -> Output {
    Command::new(strace()).args(["-f", "-qq", "-y"]).args(trace).arg(quorate()).args(args).output().unwrap()
}

fn succeeds(args: &[String]) {
    let output = Command::new(quorate()).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A call below the store, and the how-manieth of that name in its thread, or on its path, it is.
type Call = (String, usize);

/// The lines of a log that change something below `root`, as thread, call and rest.
fn changes<'l>(log: &'l str, root: &Path) -> Vec<(&'l str, &'l str, &'l str, bool)> {
    let marker = format!("{}/store", root.display());
    let parts = log.lines().filter_map(|line| {
        let (thread, text) = line.split_once(' ')?;
        let (name, rest) = text.trim_start().split_once('(')?;
        let opens_to_read = name == "openat" && !rest.contains("O_CREAT") && !rest.contains("O_RDONLY|O_CLOEXEC)");
        Some((thread, name, rest, rest.contains(&marker) && !opens_to_read))
    });
    parts.collect()
}

fn log_of(args: &[String]) -> String {
    let log = tempfile::NamedTempFile::new().unwrap();
    let output = traced(args, &["-o", &log.path().display().to_string(), "-e", &format!("trace={CALLS}")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(log.path()).unwrap()
}

/// strace counts each thread by itself, so a call of the busiest thread is as far as counting goes.
fn by_thread(log: &str, root: &Path) -> BTreeSet<Call> {
    let (mut seen, mut calls) = (BTreeMap::<(&str, &str), usize>::new(), BTreeSet::new());
    for (thread, name, _, changes) in changes(log, root) {
        let number = seen.entry((thread, name)).or_insert(0);
        *number += 1;
        if changes {
            calls.insert((name.to_owned(), *number));
        }
    }
    calls
}

/// Paths that are named or open, with the calls on each. Only where a run gives the same names again.
fn by_path(log: &str, root: &Path) -> BTreeMap<String, BTreeSet<Call>> {
    let (mut seen, mut calls) = (BTreeMap::<(&str, &str, String), usize>::new(), BTreeMap::new());
    let marker = format!("{}/store", root.display());
    for (thread, name, rest, _) in changes(log, root).into_iter().filter(|(.., changes)| *changes) {
        let Some(from) = rest.find(&marker) else { continue };
        let path = rest[from..].split(['"', '>']).next().unwrap_or_default().to_owned();
        let number = seen.entry((thread, name, path.clone())).or_insert(0);
        *number += 1;
        calls.entry(path).or_insert_with(BTreeSet::new).insert((name.to_owned(), *number));
    }
    calls
}

/// Runs `args` and kills it there. Says whether it was reached.
fn killed(args: &[String], (name, number): &Call, path: Option<&str>) -> bool {
    let (trace, inject) = (format!("trace={name}"), format!("inject={name}:signal=KILL:when={number}"));
    let mut flags = vec!["-o", "/dev/null", "-e", &trace, "-e", &inject];
    flags.extend(path.iter().flat_map(|path| ["-P", path]));
    let output = traced(args, &flags);
    let killed = output.status.signal() == Some(9);
    assert!(killed || output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    killed
}

#[test]
fn a_killed_compaction_leaves_a_store_that_gives_the_same() {
    let scene = || {
        let root = tempfile::tempdir().unwrap();
        succeeds(&convert(root.path()));
        root
    };
    let root = scene();
    let before = newest(&root.path().join("store"), root.path());
    let calls = by_thread(&log_of(&compact(root.path())), root.path());
    assert_eq!(newest(&root.path().join("store"), root.path()), before);
    let mut kills = 0;
    for call in &calls {
        let root = scene();
        let (store, args) = (root.path().join("store"), compact(root.path()));
        kills += usize::from(killed(&args, call, None));
        assert_eq!(newest(&store, root.path()), before, "killed before {call:?}");
        succeeds(&args);
        assert_eq!(newest(&store, root.path()), before, "killed before {call:?}, and run again");
    }
    assert!(kills > 10, "{kills} kills of {calls:?}");
    println!("{kills} kills");
}

#[test]
fn a_killed_conversion_leaves_nothing_or_a_state_of_the_old_store() {
    let root = tempfile::tempdir().unwrap();
    let paths = by_path(&log_of(&convert(root.path())), root.path());
    let whole = newest(&root.path().join("store"), root.path());
    assert_eq!(whole.map(|(revision, _)| revision), Some(120));
    let is_full = std::env::var_os("QUORATE_SWEEP").is_some();
    // The second and third delta are written like the first and the last.
    let is_left_out = |path: &str| {
        !is_full
            && ["/delta/00000000000000000067", "/delta/00000000000000000068"].iter().any(|part| path.contains(part))
    };
    let (mut kills, mut given) = (0, BTreeSet::new());
    for (path, calls) in paths.iter().filter(|(path, _)| !is_left_out(path)) {
        for call in calls {
            let here = tempfile::tempdir().unwrap();
            let (store, args) = (here.path().join("store"), convert(here.path()));
            let path = path.replace(&root.path().display().to_string(), &here.path().display().to_string());
            kills += usize::from(killed(&args, call, Some(&path)));
            let state = newest(&store, here.path());
            if let Some((revision, hash)) = state {
                assert!(revision < 120 || Some((revision, hash)) == whole, "killed before {call:?} on {path}");
                assert!([33, 66, 67, 108, 120].contains(&revision), "{revision}");
            }
            given.insert(state);
            succeeds(&args);
            assert_eq!(newest(&store, here.path()), whole, "killed before {call:?} on {path}, and run again");
        }
    }
    // Each revision was seen with one content only.
    let revisions: BTreeSet<_> = given.iter().flatten().map(|(revision, _)| revision).collect();
    assert_eq!(revisions.len(), given.iter().flatten().count(), "{given:?}");
    assert!(kills > 30 && given.contains(&None) && revisions.len() > 2, "{kills} kills: {given:?}");
    println!("{kills} kills");
}
