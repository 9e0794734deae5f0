//! The spool's disk operations, replayed into every state that a power cut could leave of them.
//!
//! A state passes if what is recovered from it is a beginning of the true history that ends with a whole transaction and
//! holds everything that was synced before the cut; and if a cut during the recovery changes nothing about that.

#![allow(clippy::unwrap_used, reason = "tests may stop")]

use std::path::{Path, PathBuf};

use quorate_backup::spool::{Recovered, Spool, SpoolSettings, SpoolState};
use quorate_crash_model::{CrashState, Op, RecordingDisk, Tree, crash_states, live_after};
use quorate_etcd_formats::delta::quorate::QuorateDecoder;
use quorate_etcd_formats::delta::{Decoder, Event, OwnedEvent};
use quorate_etcd_formats::mvcc::Revision;
use quorate_host::durable::{Disk, RealDisk};
use quorate_plan::chain::Layout;

const SEED: u64 = 0x5eed;
const SETTINGS: SpoolSettings = SpoolSettings { max_bytes: 1 << 30 };
/// The history begins behind it.
const BASE: u64 = 10;

fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Every third transaction has two writes.
fn writes(main: u64) -> Vec<OwnedEvent> {
    let subs = if main.is_multiple_of(3) { 2 } else { 1 };
    let write = |sub| OwnedEvent {
        at: Revision { main, sub },
        key: format!("k{main}-{sub}").into_bytes(),
        value: b"value".to_vec(),
        create_revision: main as i64,
        version: 1,
        ..OwnedEvent::default()
    };
    (0..subs).map(write).collect()
}

fn append<D: Disk>(spool: &mut Spool<D>, main: u64, whole: bool) {
    let writes = writes(main);
    let events: Vec<Event<'_>> = writes.iter().map(OwnedEvent::lend).collect();
    spool.append(&events, whole).unwrap();
}

/// What happened, and how many operations had been done then.
#[derive(Debug, Clone, Copy)]
enum Mark {
    /// Everything up to this revision was synced.
    Synced(u64),
    /// Everything up to this revision may be gone: it is in the store.
    Stored(u64),
    /// A segment that ends with this revision was sealed: its object may have gone out under that name.
    Sealed(u64, i64),
}

struct Recorded {
    root: PathBuf,
    before: Tree,
    log: Vec<Op>,
    /// Operations of opening a spool that is not there yet: its last sync covers what an earlier run left.
    opening: usize,
    marks: Vec<(usize, Mark)>,
}

fn record() -> Recorded {
    let root = scratch();
    let before = Tree::read(root.path()).unwrap();
    let disk = std::rc::Rc::new(RecordingDisk::new(RealDisk));
    let mut marks = Vec::new();
    let dir = root.path().join("spool");
    let (mut spool, _) = Spool::open_on(Shared(std::rc::Rc::clone(&disk)), &dir, SETTINGS).unwrap();
    let opening = disk.log().len();
    let state = SpoolState { cluster_id: 1, epoch: 1, layout: Layout::Quorate, stored: BASE };
    spool.reset(state).unwrap();
    let mut mark = |mark| marks.push((disk.log().len(), mark));
    mark(Mark::Synced(BASE));
    for main in 11..=13 {
        append(&mut spool, main, true);
        spool.sync().unwrap();
        mark(Mark::Synced(main));
    }
    // A sync inside a transaction covers what stands before it.
    append(&mut spool, 14, true);
    append(&mut spool, 15, false);
    spool.sync().unwrap();
    mark(Mark::Synced(14));
    append(&mut spool, 16, true);
    let first = spool.cut().unwrap().unwrap();
    mark(Mark::Synced(16));
    mark(Mark::Sealed(16, first.created_ms));
    append(&mut spool, 17, true);
    spool.sync().unwrap();
    mark(Mark::Synced(17));
    mark(Mark::Stored(16));
    spool.stored(&first).unwrap();
    append(&mut spool, 18, true);
    let second = spool.cut().unwrap().unwrap();
    mark(Mark::Synced(18));
    mark(Mark::Sealed(18, second.created_ms));
    append(&mut spool, 19, true);
    spool.sync().unwrap();
    mark(Mark::Synced(19));
    mark(Mark::Stored(18));
    spool.stored(&second).unwrap();
    append(&mut spool, 20, true);
    spool.sync().unwrap();
    mark(Mark::Synced(20));
    drop(spool);
    Recorded { root: root.path().to_owned(), before, log: disk.log(), opening, marks }
}

/// A disk that can be asked for its log while a spool owns it.
struct Shared(std::rc::Rc<RecordingDisk<RealDisk>>);

impl Disk for Shared {
    type File = <RecordingDisk<RealDisk> as Disk>::File;

    fn create_dir(&self, path: &Path, access: quorate_host::durable::Access) -> Result<(), Error> {
        self.0.create_dir(path, access)
    }

    fn create_file(&self, path: &Path, access: quorate_host::durable::Access) -> Result<Self::File, Error> {
        self.0.create_file(path, access)
    }

    fn sync_dir(&self, path: &Path) -> Result<(), Error> {
        self.0.sync_dir(path)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.0.rename_new(from, to)
    }

    fn replace_file(&self, partial: &Path, to: &Path) -> Result<(), Error> {
        self.0.replace_file(partial, to)
    }

    fn remove_partial(&self, path: &Path) -> Result<(), Error> {
        self.0.remove_partial(path)
    }
}

type Error = quorate_host::durable::DiskError;

/// Why a spool does not hold what it must, if so.
fn wrong<D: Disk>(spool: &Spool<D>, recovered: &Recovered, promised: &Promised) -> Option<String> {
    let Promised { synced, stored, .. } = *promised;
    let last = recovered.last.unwrap_or(0);
    if !recovered.damaged.is_empty() {
        return Some(format!("something is set aside: {:?}", recovered.damaged));
    }
    if synced >= BASE && last < synced {
        return Some(format!("revision {synced} was synced, and {last} is found"));
    }
    for (last, created_ms) in promised.sealed.iter().filter(|(last, _)| *last > stored) {
        if !spool.pending().iter().any(|segment| (segment.last, segment.created_ms) == (*last, *created_ms)) {
            return Some(format!("the segment up to {last} has lost its name"));
        }
    }
    let mut reach = stored.max(BASE);
    for segment in spool.pending() {
        let mut decoder = QuorateDecoder::default();
        decoder.feed(&std::fs::read(&segment.path).unwrap()).unwrap();
        let (batch, _) = decoder.finish().unwrap();
        let found: Vec<_> = (0..batch.len()).map(|index| OwnedEvent::of(&batch.get(index).unwrap())).collect();
        let expected: Vec<_> = (segment.first..=segment.last).flat_map(writes).collect();
        if found != expected {
            return Some(format!("other writes in {} to {}", segment.first, segment.last));
        }
        if segment.first > reach + 1 {
            return Some(format!("revisions from {} are missing", reach + 1));
        }
        reach = reach.max(segment.last);
    }
    (reach < last).then(|| format!("revision {last} is claimed, and {reach} is there"))
}

/// What may be counted on.
#[derive(Debug, Clone, Default)]
struct Promised {
    synced: u64,
    stored: u64,
    sealed: Vec<(u64, i64)>,
}

fn promised(marks: &[(usize, Mark)], step: usize) -> Promised {
    let mut promised = Promised::default();
    for (_, mark) in marks.iter().filter(|(at, _)| *at <= step) {
        match *mark {
            Mark::Synced(revision) => promised.synced = revision,
            Mark::Stored(revision) => promised.stored = revision,
            Mark::Sealed(last, created_ms) => promised.sealed.push((last, created_ms)),
        }
    }
    promised
}

/// The distinct states of cuts after exactly `step` operations.
fn states_at(recorded: &Recorded, log: &[Op], step: usize) -> Vec<CrashState> {
    let found = crash_states(&recorded.before, &recorded.root, &log[..step], SEED);
    assert_eq!(found.sampled_points, 0, "more pending changes than all combinations of are tried");
    found.distinct.into_iter().filter(|state| state.after_end).collect()
}

/// Recovers what a cut left, and says what is wrong with it.
fn recover(tree: &Tree, promised: &Promised) -> (Option<String>, Vec<Op>, PathBuf, Tree) {
    let root = scratch();
    tree.write(root.path()).unwrap();
    let disk = std::rc::Rc::new(RecordingDisk::new(RealDisk));
    let dir = root.path().join("spool");
    let opened = Spool::open_on(Shared(std::rc::Rc::clone(&disk)), &dir, SETTINGS);
    let (spool, recovered) = opened.unwrap();
    let problem = wrong(&spool, &recovered, promised);
    (problem, disk.log(), root.path().to_owned(), Tree::read(root.path()).unwrap())
}

fn violations(recorded: &Recorded, log: &[Op], shift: impl Fn(usize) -> usize) -> Option<String> {
    for step in 0..=log.len() {
        let promised = promised(&recorded.marks, shift(step));
        // What is being stored at the moment may be gone already.
        for state in states_at(recorded, log, step) {
            if let Some(problem) = recover(&state.tree, &promised).0 {
                return Some(format!("after {step} operations: {problem}"));
            }
        }
    }
    None
}

#[test]
fn every_crash_state_is_recovered_to_whole_transactions_with_all_that_was_synced() {
    let recorded = record();
    assert_eq!(violations(&recorded, &recorded.log, |step| step), None);
}

#[test]
fn a_cut_during_recovery_is_recovered_from_too() {
    let recorded = record();
    let mut tried = 0;
    // Kills at every operation; then cuts at every operation of the recovery that follows.
    for step in 0..=recorded.log.len() {
        let promised = promised(&recorded.marks, step);
        let live = live_after(&recorded.before, &recorded.root, &recorded.log[..step]);
        let (problem, second, root, _) = recover(&live, &promised);
        assert_eq!(problem, None, "killed at {step}");
        let moved = second.into_iter().map(|op| moved(op, &root, &recorded.root));
        let log: Vec<Op> = recorded.log[..step].iter().cloned().chain(moved).collect();
        let found = quorate_crash_model::crash_states_after(&recorded.before, &recorded.root, &log, step, SEED);
        for state in &found.distinct {
            tried += 1;
            assert_eq!(recover(&state.tree, &promised).0, None, "killed at {step}");
        }
    }
    println!("{tried} states of cuts during recovery");
}

#[test]
fn no_sync_can_be_left_out_unnoticed() {
    let recorded = record();
    let syncs = recorded.log.iter().enumerate().filter(|(at, _)| at + 1 != recorded.opening);
    let mut needless = Vec::new();
    for (at, sync) in syncs.filter(|(_, op)| matches!(op, Op::SyncFile { .. } | Op::SyncDir { .. })) {
        let mut without = recorded.log.clone();
        without.remove(at);
        if violations(&recorded, &without, |step| if step >= at { step + 1 } else { step }).is_none() {
            needless.push(format!("{at}: {sync:?} after {:?}", recorded.log.get(at.wrapping_sub(1))));
        }
    }
    assert!(needless.is_empty(), "nothing breaks without {needless:#?}");
}

fn moved(op: Op, from: &Path, to: &Path) -> Op {
    let path = |path: PathBuf| to.join(path.strip_prefix(from).unwrap());
    match op {
        Op::CreateDir { path: at, access } => Op::CreateDir { path: path(at), access },
        Op::CreateFile { path: at, access } => Op::CreateFile { path: path(at), access },
        Op::Write { path: at, offset, bytes } => Op::Write { path: path(at), offset, bytes },
        Op::SyncFile { path: at } => Op::SyncFile { path: path(at) },
        Op::SyncDir { path: at } => Op::SyncDir { path: path(at) },
        Op::Rename { from, to } => Op::Rename { from: path(from), to: path(to) },
        Op::RemoveFile { path: at } => Op::RemoveFile { path: path(at) },
        Op::RemoveDir { path: at } => Op::RemoveDir { path: path(at) },
        other => other,
    }
}
