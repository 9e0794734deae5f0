//! The disk operations of a restore and of a defragmentation, replayed into every state that a power cut could leave.
//!
//! After a restore a state is nothing that etcd would start on, or the whole member; a run on what the cut left makes it
//! whole. After a defragmentation the database is the old one or the new one, whole, at every instant. Leaving out any one
//! sync must fail.
//!
//! A small database is written at once, and every state of it is tried. A larger one is written in many pieces: there, cuts
//! before one write in eight, and fewer combinations of the pieces; `QUORATE_SWEEP=full` cuts before each.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use quorate_crash_model::{CrashState, Effort, Op, RecordingDisk, Tree, Visited, crash_states, each_crash_state};
use quorate_etcd::defrag::defrag;
use quorate_etcd::engine::Ingredients;
use quorate_etcd::init::{Request, Target};
use quorate_etcd::restore::{Snapshot, ensure_restored};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_etcd_formats::rebuild::Options;
use quorate_host::durable::{Disk, RealDisk};
use quorate_testkit::{golden, lived_in_snapshot};

const SEED: u64 = 0x5eed;

fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A snapshot file that the runs read, outside of what is recorded.
fn snapshot(bytes: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file.as_file(), bytes).unwrap();
    file
}

fn restore(disk: &impl Disk, root: &Path, wal: Option<&str>, snapshot: &Path) {
    let member = |name: &str, port: u16| (name.to_owned(), vec![format!("http://127.0.0.1:{port}")]);
    let founding = Founding::new(vec![member("n1", 2380), member("n2", 2381)], "crash").unwrap();
    let local = founding.member("n1").unwrap();
    let target = Target::new(&root.join("data"), wal.map(|wal| root.join(wal)).as_deref()).unwrap();
    let request = Request { founding: &founding, local, form: Form::Any };
    let membership = Some((&founding, Form::Any));
    let options = Options { bump: Some(1000), mark_compacted: true, membership, ..Options::copy() };
    let snapshot = Snapshot::open(snapshot, false).unwrap();
    let progress = AtomicU64::new(0);
    let ingredients = Ingredients { base: Some(snapshot.base()), events: None, options, progress: &progress };
    ensure_restored(disk, &target, request, ingredients).unwrap();
}

fn judge_restored(tree: &Tree, whole: &Tree, wal: Option<&str>) -> Option<bool> {
    let of = |tree: &Tree| (tree.below("data/member"), wal.map(|wal| segments(&tree.below(wal))));
    let ((member, wal), (whole_member, whole_wal)) = (of(tree), of(whole));
    let has_wal = wal.as_ref().is_some_and(|wal| wal.nodes().next().is_some());
    if member.nodes().next().is_none() {
        // A separate WAL comes first, whole; no etcd starts on it alone.
        return (!has_wal || wal == whole_wal).then_some(false);
    }
    (member == whole_member && wal == whole_wal).then_some(true)
}

fn segments(tree: &Tree) -> Tree {
    let mut segments = Tree::default();
    for (path, node) in tree.nodes().filter(|(path, _)| path.extension().is_some_and(|end| end == "wal")) {
        segments.insert(path.to_owned(), node.clone());
    }
    segments
}

struct Recorded {
    root: PathBuf,
    before: Tree,
    log: Vec<Op>,
    after: Tree,
}

fn record(set_up: impl Fn(&Path), run: impl Fn(&RecordingDisk<RealDisk>, &Path)) -> Recorded {
    let root = scratch();
    set_up(root.path());
    let before = Tree::read(root.path()).unwrap();
    let disk = RecordingDisk::new(RealDisk);
    run(&disk, root.path());
    Recorded { root: root.path().to_owned(), before, log: disk.log(), after: Tree::read(root.path()).unwrap() }
}

fn states(recorded: &Recorded, log: &[Op]) -> Vec<CrashState> {
    let found = crash_states(&recorded.before, &recorded.root, log, SEED);
    assert_eq!(found.sampled_points, 0, "more pending changes than all combinations of are tried");
    found.distinct
}

/// Checks each state, shows that no sync can be missed, and repairs each state.
fn try_all(
    recorded: &Recorded,
    good: impl Fn(&CrashState) -> bool,
    again: impl Fn(&Path),
    whole: impl Fn(&Tree) -> bool,
) {
    let found = states(recorded, &recorded.log);
    for state in &found {
        assert!(good(state), "{:?}", state.tree.nodes().map(|(path, _)| path).collect::<Vec<_>>());
        let root = scratch();
        state.tree.write(root.path()).unwrap();
        again(root.path());
        let tree = Tree::read(root.path()).unwrap();
        assert!(whole(&tree), "{:?}", tree.nodes().map(|(path, _)| path).collect::<Vec<_>>());
        assert!(tree.nodes().all(|(path, _)| !path.to_string_lossy().contains(".partial-")));
    }
    let mut syncs = 0;
    for (at, op) in recorded.log.iter().enumerate() {
        if matches!(op, Op::SyncFile { .. } | Op::SyncDir { .. }) {
            let mut without = recorded.log.clone();
            without.remove(at);
            assert!(!states(recorded, &without).iter().all(&good), "nothing breaks without {op:?}");
            syncs += 1;
        }
    }
    assert!(found.len() > 3 && syncs > 1, "{} states, {syncs} syncs", found.len());
}

#[test]
fn every_crash_state_of_a_restore_is_nothing_or_the_whole() {
    let snapshot = snapshot(&golden("snapshot-3.5.30.db"));
    for wal in [None, Some("wal")] {
        let recorded = record(|_| (), |disk, root| restore(disk, root, wal, snapshot.path()));
        assert_eq!(judge_restored(&recorded.after, &recorded.after, wal), Some(true));
        try_all(
            &recorded,
            |state| judge_restored(&state.tree, &recorded.after, wal).is_some_and(|whole| whole || !state.after_end),
            |root| restore(&RealDisk, root, wal, snapshot.path()),
            |tree| judge_restored(tree, &recorded.after, wal) == Some(true),
        );
    }
}

/// A database or snapshot at `root/name`, written anew.
fn record_defrag(name: &str, bytes: &[u8]) -> Recorded {
    record(
        |root| {
            std::fs::File::create(root.join(name))
                .and_then(|mut file| std::io::Write::write_all(&mut file, bytes))
                .unwrap()
        },
        |disk, root| drop(defrag(disk, &root.join(name), 1, &AtomicU64::new(0)).unwrap()),
    )
}

#[test]
fn every_crash_state_of_a_defragmentation_has_the_old_file_or_the_new_one() {
    let snapshot = golden("snapshot-3.5.30.db");
    let database = golden("fresh-3.5.30.bolt");
    for (name, bytes) in [("snap.db", &snapshot), ("db", &database)] {
        let recorded = record_defrag(name, bytes);
        let (old, new) = (recorded.before.below(name), recorded.after.below(name));
        assert!(old != new);
        let is = |tree: &Tree, wanted: &Tree| tree.below(name) == *wanted;
        try_all(
            &recorded,
            |state| is(&state.tree, &new) || is(&state.tree, &old) && !state.after_end,
            |root| drop(defrag(&RealDisk, &root.join(name), 1, &AtomicU64::new(0)).unwrap()),
            |tree| is(tree, &new),
        );
    }
}

/// Writes in a row that make a file one of many pieces.
const MANY: usize = 30;

/// As [`try_all`] for a run that writes in many pieces: some states, one in so many of them repaired.
fn try_many(
    recorded: &Recorded,
    good: impl Fn(&CrashState) -> bool,
    again: impl Fn(&Path),
    whole: impl Fn(&Tree) -> bool,
) {
    let is_full = std::env::var_os("QUORATE_SWEEP").is_some();
    let (write_step, random_states, repair_step) = if is_full { (1, 64, 100) } else { (8, 8, 100) };
    let writes = recorded.log.iter().filter(|op| matches!(op, Op::Write { .. })).count();
    assert!(writes > MANY, "{writes} writes");
    let visit = |log: &[Op], effort: Effort, see: &mut dyn FnMut(&CrashState) -> ControlFlow<()>| -> Visited {
        each_crash_state(&recorded.before, &recorded.root, log, effort, SEED, see)
    };
    let (mut seen, mut repaired) = (0usize, 0usize);
    let visited = visit(&recorded.log, Effort { write_step, random_states }, &mut |state| {
        assert!(good(state), "{:?}", state.tree.nodes().map(|(path, _)| path).collect::<Vec<_>>());
        if seen % repair_step == 0 {
            let root = scratch();
            state.tree.write(root.path()).unwrap();
            again(root.path());
            let tree = Tree::read(root.path()).unwrap();
            assert!(whole(&tree), "{:?}", tree.nodes().map(|(path, _)| path).collect::<Vec<_>>());
            assert!(tree.nodes().all(|(path, _)| !path.to_string_lossy().contains(".partial-")));
            repaired += 1;
        }
        seen += 1;
        ControlFlow::Continue(())
    });
    assert!(visited.pending_max > MANY && repaired > 3, "{visited:?}, {repaired} repaired");
    for (at, op) in recorded.log.iter().enumerate() {
        if matches!(op, Op::SyncFile { .. } | Op::SyncDir { .. }) {
            let mut without = recorded.log.clone();
            without.remove(at);
            let mut is_missed = false;
            visit(&without, Effort { write_step: usize::MAX, random_states: 4 }, &mut |state| {
                is_missed = !good(state);
                if is_missed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(is_missed, "nothing breaks without {op:?}");
        }
    }
}

#[test]
fn crash_states_of_a_restore_in_many_pieces_are_nothing_or_the_whole() {
    let snapshot = snapshot(lived_in_snapshot());
    let recorded = record(|_| (), |disk, root| restore(disk, root, None, snapshot.path()));
    try_many(
        &recorded,
        |state| judge_restored(&state.tree, &recorded.after, None).is_some_and(|whole| whole || !state.after_end),
        |root| restore(&RealDisk, root, None, snapshot.path()),
        |tree| judge_restored(tree, &recorded.after, None) == Some(true),
    );
}

#[test]
fn crash_states_of_a_defragmentation_in_many_pieces_have_the_old_file_or_the_new_one() {
    let snapshot = lived_in_snapshot();
    for (name, bytes) in [("snap.db", snapshot), ("db", &snapshot[..snapshot.len() - 32])] {
        let recorded = record_defrag(name, bytes);
        let (old, new) = (recorded.before.below(name), recorded.after.below(name));
        assert!(old != new);
        let is = |tree: &Tree, wanted: &Tree| tree.below(name) == *wanted;
        try_many(
            &recorded,
            |state| is(&state.tree, &new) || is(&state.tree, &old) && !state.after_end,
            |root| drop(defrag(&RealDisk, &root.join(name), 1, &AtomicU64::new(0)).unwrap()),
            |tree| is(tree, &new),
        );
    }
}
