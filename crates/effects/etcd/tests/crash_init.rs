//! The disk operations of `data init`, replayed into every state that a power cut could leave of them.
//!
//! A state passes if the target is nothing that etcd would start on, or the whole member; and a run on what the cut
//! left makes it whole, byte for byte, with no partial name remaining. The same log with any one sync left out must
//! fail: that shows that each of them is needed, and that this test would notice.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use quorate_crash_model::{CrashState, Op, RecordingDisk, Tree, crash_states, crash_states_after, live_after};
use quorate_etcd::init::{Done, Outcome, Request, Target, ensure_member};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_host::durable::{Access, Disk, RealDisk};

const SEED: u64 = 0x5eed;

/// Where the member goes and what is there before, below some root.
#[derive(Clone, Copy)]
struct Scene {
    name: &'static str,
    data: &'static str,
    wal: Option<&'static str>,
    /// Directories that exist, parents first.
    dirs: &'static [&'static str],
}

const SCENES: [Scene; 8] = [
    Scene { name: "beside", data: "data", wal: None, dirs: &[] },
    Scene { name: "inside an empty dir", data: "data", wal: None, dirs: &["data"] },
    Scene { name: "below missing parents", data: "a/b/data", wal: None, dirs: &[] },
    Scene { name: "separate WAL", data: "data", wal: Some("wal"), dirs: &[] },
    Scene { name: "separate WAL, both empty", data: "data", wal: Some("wal"), dirs: &["data", "wal"] },
    Scene { name: "WAL within the data dir", data: "data", wal: Some("data/wal"), dirs: &[] },
    Scene {
        name: "left-over beside",
        data: "data",
        wal: None,
        dirs: &["data.partial-1", "data.partial-1/member", "data.partial-1/member/wal"],
    },
    Scene {
        name: "left-over inside",
        data: "data",
        wal: Some("wal"),
        dirs: &["data", "data/member.partial-1", "data/member.partial-1/snap", "wal.partial-1"],
    },
];

fn founding() -> Founding {
    let member = |name: &str, port: u16| (name.to_owned(), vec![format!("http://127.0.0.1:{port}")]);
    Founding::new(vec![member("n1", 2380), member("n2", 2381), member("n3", 2382)], "crash").expect("a good list")
}

/// A throw-away directory in memory, where there is one: thousands are made. It is open to others, as `/var/lib` is: what
/// lies above a directory of 0700 is looked at, too, and that would be the machine's own.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.expect("a temporary directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("our own directory");
    dir
}

impl Scene {
    fn set_up(&self, root: &Path) {
        for dir in self.dirs {
            // Open to others, so that no run takes it for the work of an earlier one.
            RealDisk.create_dir(&root.join(dir), Access::mode(0o755)).expect("an empty root");
        }
    }

    fn init(&self, disk: &impl Disk, root: &Path) -> Done {
        let founding = founding();
        let local = founding.member("n1").expect("n1 is a member");
        let target = Target::new(&root.join(self.data), self.wal.map(|wal| root.join(wal)).as_deref());
        let request = Request { founding: &founding, local, form: Form::Any };
        let done = ensure_member(disk, &target.expect("good paths"), request);
        done.unwrap_or_else(|fault| panic!("{}: {fault}: {:?}", self.name, fault.hint_text()))
    }

    /// What is there before, what a run does, and what is there after.
    fn record(&self) -> Recorded {
        let root = scratch();
        self.set_up(root.path());
        let before = Tree::read(root.path()).expect("readable");
        let disk = RecordingDisk::new(RealDisk);
        assert_eq!(self.init(&disk, root.path()).outcome, Outcome::Made);
        let after = Tree::read(root.path()).expect("readable");
        Recorded { root: root.path().to_owned(), before, log: disk.log(), after }
    }

    /// What a tree below the root amounts to.
    fn judge(&self, tree: &Tree, whole: &Tree) -> Verdict {
        let member = tree.below(Path::new(self.data).join("member"));
        let whole_member = whole.below(Path::new(self.data).join("member"));
        let wal = self.wal.map(|wal| tree.below(wal));
        let whole_wal = self.wal.map(|wal| whole.below(wal));
        let has_member = member.nodes().next().is_some();
        let has_wal = wal.as_ref().is_some_and(|wal| wal.nodes().any(|(path, _)| is_segment(path)));
        let wal_whole = wal.as_ref().map(segments_of) == whole_wal.as_ref().map(segments_of);
        match (has_member, has_wal) {
            (false, false) => Verdict::Nothing,
            // No etcd starts on it: its commit index lies beyond the log (`init_boot.rs` shows it of each release).
            (false, true) if wal_whole => Verdict::WalOnly,
            (true, _) if member == whole_member && wal_whole => Verdict::Whole,
            _ => Verdict::Mixed,
        }
    }
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "wal")
}

fn segments_of(wal: &Tree) -> Tree {
    let mut segments = Tree::default();
    for (path, node) in wal.nodes().filter(|(path, _)| is_segment(path)) {
        segments.insert(path.to_owned(), node.clone());
    }
    segments
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Nothing that etcd would start on.
    Nothing,
    /// The separate WAL alone, whole.
    WalOnly,
    /// The member.
    Whole,
    /// Anything else.
    Mixed,
}

struct Recorded {
    root: PathBuf,
    before: Tree,
    log: Vec<Op>,
    after: Tree,
}

/// The first state that must not be, if there is one.
fn first_violation<'a>(scene: &Scene, states: &'a [CrashState], whole: &Tree) -> Option<(&'a CrashState, Verdict)> {
    states.iter().map(|state| (state, scene.judge(&state.tree, whole))).find(|(state, verdict)| match verdict {
        Verdict::Whole => false,
        Verdict::Nothing | Verdict::WalOnly => state.after_end,
        Verdict::Mixed => true,
    })
}

fn assert_no_partial_remains(scene: &Scene, tree: &Tree) {
    let partial = tree.nodes().find(|(path, _)| path.to_string_lossy().contains(".partial-"));
    assert!(partial.is_none(), "{}: {partial:?} remains", scene.name);
}

#[test]
fn every_crash_state_is_nothing_or_the_whole_and_a_run_on_it_makes_the_whole() {
    for scene in SCENES {
        let recorded = scene.record();
        assert_eq!(scene.judge(&recorded.after, &recorded.after), Verdict::Whole);
        assert_no_partial_remains(&scene, &recorded.after);
        let found = crash_states(&recorded.before, &recorded.root, &recorded.log, SEED);
        assert_eq!(found.sampled_points, 0, "{}: more pending changes than all combinations of are tried", scene.name);
        if let Some((state, verdict)) = first_violation(&scene, &found.distinct, &recorded.after) {
            panic!("{}: {verdict:?} after_end={}:\n{:#?}", scene.name, state.after_end, names(&state.tree));
        }
        let mut outcomes = BTreeSet::new();
        for state in &found.distinct {
            let root = scratch();
            state.tree.write(root.path()).expect("an empty root");
            let done = scene.init(&RealDisk, root.path());
            outcomes.insert(format!("{:?}", done.outcome));
            let tree = Tree::read(root.path()).expect("readable");
            assert_eq!(
                scene.judge(&tree, &recorded.after),
                Verdict::Whole,
                "{}: {:#?}",
                scene.name,
                names(&state.tree)
            );
            assert_no_partial_remains(&scene, &tree);
        }
        println!(
            "{}: {} operations, at most {} pending, {} combinations, {} distinct states, all recovered by: {}",
            scene.name,
            recorded.log.len(),
            found.pending_max,
            found.tried,
            found.distinct.len(),
            outcomes.into_iter().collect::<Vec<_>>().join(", "),
        );
    }
}

#[test]
fn no_sync_can_be_left_out_unnoticed() {
    for scene in SCENES {
        let recorded = scene.record();
        let syncs = recorded.log.iter().enumerate();
        let syncs = syncs.filter(|(_, op)| matches!(op, Op::SyncFile { .. } | Op::SyncDir { .. }));
        let mut count = 0;
        for (at, sync) in syncs {
            let mut without = recorded.log.clone();
            without.remove(at);
            let found = crash_states(&recorded.before, &recorded.root, &without, SEED);
            let caught = first_violation(&scene, &found.distinct, &recorded.after);
            assert!(caught.is_some(), "{}: nothing breaks without {sync:?}", scene.name);
            count += 1;
        }
        println!("{}: {count} syncs, each of them missed when left out", scene.name);
    }
}

#[test]
fn a_cut_during_the_run_after_a_kill_is_survived_too() {
    for scene in SCENES {
        let first = scene.record();
        let mut distinct = 0;
        for killed_at in 0..=first.log.len() {
            // The kill leaves what was done so far, synced or not; the next run works on that.
            let live = live_after(&first.before, &first.root, &first.log[..killed_at]);
            let root = scratch();
            live.write(root.path()).expect("an empty root");
            let disk = RecordingDisk::new(RealDisk);
            scene.init(&disk, root.path());
            let second = disk.log().into_iter().map(|op| moved(op, root.path(), &first.root));
            let log: Vec<Op> = first.log[..killed_at].iter().cloned().chain(second).collect();
            // Cuts before the kill are the first run's own, and are tried above.
            let found = crash_states_after(&first.before, &first.root, &log, killed_at, SEED);
            distinct += found.distinct.len();
            if let Some((state, verdict)) = first_violation(&scene, &found.distinct, &first.after) {
                panic!("{}, killed at {killed_at}: {verdict:?}:\n{:#?}", scene.name, names(&state.tree));
            }
        }
        println!("{}: {} kills, {distinct} states", scene.name, first.log.len() + 1);
    }
}

fn moved(op: Op, from: &Path, to: &Path) -> Op {
    let path = |path: PathBuf| to.join(path.strip_prefix(from).expect("below the root"));
    match op {
        Op::CreateDir { path: at, access } => Op::CreateDir { path: path(at), access },
        Op::CreateFile { path: at, access } => Op::CreateFile { path: path(at), access },
        Op::Write { path: at, offset, bytes } => Op::Write { path: path(at), offset, bytes },
        Op::SyncFile { path: at } => Op::SyncFile { path: path(at) },
        Op::SyncDir { path: at } => Op::SyncDir { path: path(at) },
        Op::Rename { from, to } => Op::Rename { from: path(from), to: path(to) },
        Op::Link { from, to } => Op::Link { from: path(from), to: path(to) },
        Op::RemoveFile { path: at } => Op::RemoveFile { path: path(at) },
        Op::RemoveDir { path: at } => Op::RemoveDir { path: path(at) },
    }
}

fn names(tree: &Tree) -> Vec<String> {
    tree.nodes().map(|(path, node)| format!("{} {:?}", path.display(), node.bytes().map(<[u8]>::len))).collect()
}
