//! What `quorate backup compact` and `backup convert` did to a store's files, replayed into every state that a power cut
//! could leave.
//!
//! The changes are those of the real program, read from strace. In each state a store that was there still gives its
//! newest state, a store that is being made gives nothing or a state of the old one, and the next run brings the end
//! that was wanted. Once success was reported, everything is there whatever was still pending; also if it was a second
//! run that reported it, after a first one was killed anywhere.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod backup_support;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use backup_support::{gardener, newest, url};
use quorate_crash_model::{CALLS, CrashStates, Op, Tree, crash_states, crash_states_after, live_after, read_strace};
use quorate_testkit::{quorate, strace};

const SEED: u64 = 0x5eed;

/// More than any write of these runs.
const STRING_BYTES: &str = "4194304";

fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A command on the store `store` below a root.
#[derive(Clone, Copy)]
enum Work {
    Compact,
    Convert,
}

impl Work {
    fn args(self, root: &Path) -> Vec<String> {
        let store = url(&root.join("store"));
        let args = match self {
            Work::Compact => vec!["backup", "compact", "--store", &store],
            Work::Convert => vec!["backup", "convert", "--to", &store, "--store"],
        };
        let from = matches!(self, Work::Convert).then(|| url(&gardener().join("store")));
        args.into_iter().map(str::to_owned).chain(from).collect()
    }

    fn run(self, root: &Path) {
        let output = Command::new(quorate()).args(self.args(root)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs it and tells what it changed below `root`.
    fn recorded(self, root: &Path) -> Vec<Op> {
        let log = tempfile::NamedTempFile::new().unwrap();
        let output = Command::new("sh")
            .args(["-c", "umask 022; exec \"$@\"", "sh"])
            .arg(strace())
            .args(["-f", "-qq", "-y", "-xx", "-s", STRING_BYTES, "-e", &format!("trace={CALLS}"), "-o"])
            .arg(log.path())
            .arg(quorate())
            .args(self.args(root))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        read_strace(&std::fs::read_to_string(log.path()).unwrap(), root)
    }
}

/// One run, with what was there before it and what it did.
struct Recorded {
    work: Work,
    root: tempfile::TempDir,
    before: Tree,
    log: Vec<Op>,
}

impl Recorded {
    fn of(work: Work) -> Recorded {
        let root = scratch();
        if matches!(work, Work::Compact) {
            Work::Convert.run(root.path());
        }
        let before = Tree::read(root.path()).unwrap();
        let log = work.recorded(root.path());
        let after = Tree::read(root.path()).unwrap();
        assert!(live_after(&before, root.path(), &log) == after, "the log tells all that was changed");
        assert!(before != after && log.iter().filter(|op| matches!(op, Op::SyncDir { .. })).count() > 1);
        Recorded { work, root, before, log }
    }

    fn states(&self, log: &[Op]) -> CrashStates {
        let found = crash_states(&self.before, self.root.path(), log, SEED);
        assert_eq!(found.sampled_points, 0, "more pending changes than all combinations of are tried");
        found
    }

    /// What the store in `tree` gives.
    fn given(tree: &Tree) -> Option<(u64, u32)> {
        let root = scratch();
        tree.write(root.path()).unwrap();
        newest(&root.path().join("store"), root.path())
    }
}

/// What the whole store gives, and what it gave before each of its deltas came.
fn old_states() -> BTreeMap<u64, u32> {
    let root = scratch();
    Work::Convert.run(root.path());
    let store = root.path().join("store");
    let files = std::fs::read_dir(store.join("quorate-v1/delta")).unwrap().map(|entry| entry.unwrap().path());
    let mut objects: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "zst")).collect();
    objects.sort();
    let mut states = BTreeMap::from_iter(newest(&store, root.path()));
    while let Some(object) = objects.pop() {
        std::fs::remove_file(object.with_extension("json")).unwrap();
        std::fs::remove_file(object).unwrap();
        states.extend(newest(&store, root.path()));
    }
    assert_eq!(states.keys().copied().collect::<Vec<_>>(), [33, 66, 67, 108, 120]);
    states
}

/// Whether a state is one that this run may leave.
fn good(work: Work, states: &BTreeMap<u64, u32>, given: Option<(u64, u32)>, after_end: bool) -> bool {
    let whole = states.last_key_value().map(|(revision, hash)| (*revision, *hash));
    match work {
        Work::Compact => given == whole,
        Work::Convert if after_end => given == whole,
        Work::Convert => given.is_none_or(|(revision, hash)| states.get(&revision) == Some(&hash)),
    }
}

/// Every state of a single run, and the next run on each.
fn every_state_is_good(work: Work) -> Recorded {
    let recorded = Recorded::of(work);
    let states = old_states();
    let found = recorded.states(&recorded.log);
    for state in &found.distinct {
        let root = scratch();
        state.tree.write(root.path()).unwrap();
        let store = root.path().join("store");
        let names = || state.tree.nodes().map(|(path, _)| path.to_owned()).collect::<Vec<_>>();
        let given = newest(&store, root.path());
        assert!(good(work, &states, given, state.after_end), "{given:?} of {:?}", names());
        work.run(root.path());
        assert!(good(work, &states, newest(&store, root.path()), true), "run again on {:?}", names());
    }
    assert!(found.distinct.len() > 10, "{} states", found.distinct.len());
    recorded
}

/// Whether leaving out a sync is noticed: that of the full's bytes, those of the folder that deltas are in.
fn a_missing_sync_is_noticed(recorded: &Recorded) {
    let states = old_states();
    let is_full = |op: &Op| matches!(op, Op::SyncFile { path } if path.to_string_lossy().contains("/full/"));
    let is_deltas = |op: &Op| matches!(op, Op::SyncDir { path } if path.ends_with("delta"));
    let missing: [&dyn Fn(&Op) -> bool; 2] = [&is_full, &is_deltas];
    for (number, missing) in missing.iter().enumerate() {
        let log: Vec<Op> = recorded.log.iter().filter(|op| !missing(op)).cloned().collect();
        assert!(log.len() < recorded.log.len());
        let found = crash_states_after(&recorded.before, recorded.root.path(), &log, log.len(), SEED);
        let mut given = found.distinct.iter().map(|state| Recorded::given(&state.tree));
        assert!(!given.all(|given| good(recorded.work, &states, given, true)), "sync {number} is not missed");
    }
}

/// A first run is killed after each change to a name, a second one succeeds, and then the power goes.
fn a_second_run_makes_good_what_a_killed_one_left(recorded: &Recorded) {
    let states = old_states();
    let named = |op: &Op| matches!(op, Op::CreateDir { .. } | Op::Link { .. } | Op::Rename { .. });
    for killed in (1..=recorded.log.len()).filter(|at| named(&recorded.log[at - 1])) {
        let first = &recorded.log[..killed];
        let root = scratch();
        live_after(&recorded.before, recorded.root.path(), first).write(root.path()).unwrap();
        let second = recorded.work.recorded(root.path());
        let first = first.iter().map(|op| moved(op, recorded.root.path(), root.path()));
        let log: Vec<Op> = first.chain(second).collect();
        let found = crash_states_after(&recorded.before, root.path(), &log, log.len(), SEED);
        for state in &found.distinct {
            let given = Recorded::given(&state.tree);
            assert!(
                good(recorded.work, &states, given, true),
                "{given:?}, killed after {:?}",
                recorded.log[killed - 1]
            );
        }
    }
}

/// The same change below another root.
fn moved(op: &Op, from: &Path, to: &Path) -> Op {
    let place = |path: &PathBuf| to.join(path.strip_prefix(from).unwrap());
    match op.clone() {
        Op::CreateDir { path, access } => Op::CreateDir { path: place(&path), access },
        Op::CreateFile { path, access } => Op::CreateFile { path: place(&path), access },
        Op::Write { path, offset, bytes } => Op::Write { path: place(&path), offset, bytes },
        Op::SyncFile { path } => Op::SyncFile { path: place(&path) },
        Op::SyncDir { path } => Op::SyncDir { path: place(&path) },
        Op::Rename { from, to } => Op::Rename { from: place(&from), to: place(&to) },
        Op::Link { from, to } => Op::Link { from: place(&from), to: place(&to) },
        Op::RemoveFile { path } => Op::RemoveFile { path: place(&path) },
        Op::RemoveDir { path } => Op::RemoveDir { path: place(&path) },
    }
}

#[test]
fn every_crash_state_of_a_compaction_gives_the_same_newest_state() {
    let recorded = every_state_is_good(Work::Compact);
    a_second_run_makes_good_what_a_killed_one_left(&recorded);
}

#[test]
fn every_crash_state_of_a_conversion_gives_a_state_of_the_old_store_and_all_of_it_in_the_end() {
    let recorded = every_state_is_good(Work::Convert);
    a_missing_sync_is_noticed(&recorded);
    a_second_run_makes_good_what_a_killed_one_left(&recorded);
}
