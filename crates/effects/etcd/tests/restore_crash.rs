//! The disk operations of a restore and of a defragmentation, replayed into every state that a power cut could leave.
//!
//! After a restore a state is nothing that etcd would start on, or the whole member; a run on what the cut left makes it
//! whole. After a defragmentation the database is the old one or the new one, whole, at every instant. Leaving out any one
//! sync must fail.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use quorate_crash_model::{CrashState, Op, RecordingDisk, Tree, crash_states};
use quorate_etcd::defrag::defrag;
use quorate_etcd::engine::Ingredients;
use quorate_etcd::init::{Request, Target};
use quorate_etcd::restore::{Snapshot, ensure_restored};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_etcd_formats::rebuild::Options;
use quorate_host::durable::{Disk, RealDisk};
use quorate_testkit::golden;

const SEED: u64 = 0x5eed;

fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A snapshot file that the runs read, outside of what is recorded.
fn snapshot() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file.as_file(), &golden("snapshot-3.5.30.db")).unwrap();
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
    let snapshot = snapshot();
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

#[test]
fn every_crash_state_of_a_defragmentation_has_the_old_file_or_the_new_one() {
    let snapshot = golden("snapshot-3.5.30.db");
    let database = golden("fresh-3.5.30.bolt");
    for (name, bytes) in [("snap.db", &snapshot), ("db", &database)] {
        let run = |disk: &RecordingDisk<RealDisk>, root: &Path| {
            defrag(disk, &root.join(name), 1, &AtomicU64::new(0)).unwrap();
        };
        let recorded = record(
            |root| {
                std::fs::File::create(root.join(name))
                    .and_then(|mut file| std::io::Write::write_all(&mut file, bytes))
                    .unwrap()
            },
            run,
        );
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
