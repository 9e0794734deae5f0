//! Replays a recorded run into every state of the disk that a power cut could leave.
//!
//! The model is as unkind as POSIX allows. A write is pending until its file is synced; a name that was made, moved or
//! removed is pending until its directory is synced, and syncing the file does not help. At a cut each pending change is
//! lost or kept on its own, in any combination, whatever the order it was made in; pending bytes may also be torn: cut
//! in half, or the right length and all zeros.
//!
//! **Invariant:** only a sync moves a change from pending to durable.

mod recording;
mod strace;
mod tree;
mod visiting;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use quorate_host::durable::Owner;

pub use recording::{Op, RecordingDisk, RecordingFile};
pub use strace::{CALLS, read_strace};
use tree::Piece;
pub use tree::{Node, Tree};
pub use visiting::{Effort, Visited, each_crash_state};

/// Up to this many pending changes every combination is tried.
const EXHAUSTIVE_MAX: usize = 12;
/// Beyond that, this many random combinations besides the systematic ones.
const RANDOM_STATES: usize = 512;

/// What the disk may hold after a power cut.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CrashState {
    /// Whether the cut came after the last recorded change, when success had been reported.
    pub after_end: bool,
    /// What is there.
    pub tree: Tree,
}

/// All states that were found.
#[derive(Debug, Default)]
pub struct CrashStates {
    /// The different ones.
    pub distinct: Vec<CrashState>,
    /// How many combinations were tried to find them.
    pub tried: u64,
    /// Cut points at which there were too many pending changes to try every combination.
    pub sampled_points: usize,
    /// The largest number of changes that were pending at once.
    pub pending_max: usize,
}

type Inode = usize;

#[derive(Debug, Clone)]
struct Content {
    node: Node,
    names: BTreeMap<OsString, Inode>,
}

/// A change that no sync has covered yet.
#[derive(Debug, Clone)]
enum Pending {
    Name { dir: Inode, name: OsString, child: Inode },
    Unname { dir: Inode, name: OsString },
    Rename { dir: Inode, from: OsString, to: OsString, child: Inode },
    Bytes { file: Inode, offset: usize, bytes: Rc<[u8]> },
    Owner { inode: Inode, owner: Owner },
}

/// What becomes of one pending change at the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Lost,
    Kept,
    Halved,
    Zeroed,
}

impl Pending {
    fn synced_by(&self) -> Inode {
        match self {
            Pending::Name { dir, .. } | Pending::Unname { dir, .. } | Pending::Rename { dir, .. } => *dir,
            Pending::Bytes { file, .. } => *file,
            Pending::Owner { inode, .. } => *inode,
        }
    }

    fn fates(&self) -> &'static [Fate] {
        match self {
            Pending::Bytes { .. } => &[Fate::Lost, Fate::Kept, Fate::Halved, Fate::Zeroed],
            Pending::Name { .. } | Pending::Unname { .. } | Pending::Rename { .. } | Pending::Owner { .. } => {
                &[Fate::Lost, Fate::Kept]
            }
        }
    }

    fn apply(&self, inodes: &mut [Content], fate: Fate) {
        if fate == Fate::Lost {
            return;
        }
        match self {
            Pending::Name { dir, name, child } => {
                inodes[*dir].names.insert(name.clone(), *child);
            }
            Pending::Unname { dir, name } => {
                inodes[*dir].names.remove(name);
            }
            Pending::Rename { dir, from, to, child } => {
                inodes[*dir].names.remove(from);
                inodes[*dir].names.insert(to.clone(), *child);
            }
            Pending::Bytes { file, offset, bytes } => inodes[*file].node.put(*offset, torn(bytes, fate)),
            Pending::Owner { inode, owner } => inodes[*inode].node.set_owner(*owner),
        }
    }
}

fn torn(bytes: &Rc<[u8]>, fate: Fate) -> Rc<[u8]> {
    match fate {
        Fate::Halved => bytes[..bytes.len() / 2].into(),
        Fate::Zeroed => vec![0; bytes.len()].into(),
        Fate::Lost | Fate::Kept => Rc::clone(bytes),
    }
}

/// The disk as the running system sees it, and as a cut would leave it.
struct Model<'a> {
    root: &'a Path,
    /// What is surely on the platter. Inode 0 is the root.
    durable: Vec<Content>,
    /// The names as the running system sees them, to follow paths by.
    live: Vec<BTreeMap<OsString, Inode>>,
    pending: Vec<Pending>,
    /// Open files by the name they were made under; a rename does not change what a handle writes to.
    handles: HashMap<PathBuf, Inode>,
}

/// Every state that a cut before, between and after the recorded changes could leave of `base` at `root`.
///
/// # Panics
/// If the log does not fit the base, which is a mistake in the test that recorded it.
pub fn crash_states(base: &Tree, root: &Path, log: &[Op], seed: u64) -> CrashStates {
    crash_states_after(base, root, log, 0, seed)
}

/// The same, of cuts after the first `done` changes only.
///
/// # Panics
/// As [`crash_states`].
pub fn crash_states_after(base: &Tree, root: &Path, log: &[Op], done: usize, seed: u64) -> CrashStates {
    let mut model = Model::new(base, root);
    let mut found = CrashStates::default();
    let mut seen = HashSet::new();
    let mut random = seed | 1;
    log.iter().take(done).for_each(|op| model.carry_out(op));
    for step in done..=log.len() {
        let after_end = step == log.len();
        found.pending_max = found.pending_max.max(model.pending.len());
        let combinations = model.combinations(&mut random, &mut found.sampled_points);
        for fates in combinations {
            found.tried += 1;
            let state = CrashState { after_end, tree: model.cut(&fates) };
            if seen.insert(state.clone()) {
                found.distinct.push(state);
            }
        }
        if let Some(op) = log.get(step) {
            model.carry_out(op);
        }
    }
    found
}

/// What the running system sees after the recorded changes; what a kill of the process leaves.
///
/// # Panics
/// As [`crash_states`].
pub fn live_after(base: &Tree, root: &Path, log: &[Op]) -> Tree {
    let mut model = Model::new(base, root);
    log.iter().for_each(|op| model.carry_out(op));
    model.cut(&vec![Fate::Kept; model.pending.len()])
}

impl<'a> Model<'a> {
    fn new(base: &Tree, root: &'a Path) -> Model<'a> {
        let mut model = Model { root, durable: vec![], live: vec![], pending: vec![], handles: HashMap::new() };
        for (path, node) in base.nodes() {
            let inode = model.add(node.clone());
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
                let dir = model.inode(&root.join(parent));
                model.durable[dir].names.insert(name.to_owned(), inode);
                model.live[dir].insert(name.to_owned(), inode);
            }
        }
        model
    }

    fn add(&mut self, node: Node) -> Inode {
        self.durable.push(Content { node, names: BTreeMap::new() });
        self.live.push(BTreeMap::new());
        self.durable.len() - 1
    }

    fn inode(&self, path: &Path) -> Inode {
        let below = path.strip_prefix(self.root).expect("the log stays below the root");
        below.iter().fold(0, |dir, name| *self.live[dir].get(name).expect("the log fits the base"))
    }

    fn place(&self, path: &Path) -> (Inode, OsString) {
        let (parent, name) = (path.parent().expect("has a parent"), path.file_name().expect("has a name"));
        (self.inode(parent), name.to_owned())
    }

    fn carry_out(&mut self, op: &Op) {
        match op {
            Op::CreateDir { path, access } => self.create(path, Node::dir(access.mode), access.owner),
            Op::CreateFile { path, access } => self.create(path, Node::file(access.mode), access.owner),
            Op::Write { path, offset, bytes } => {
                let file = self.handles[path];
                let offset = usize::try_from(*offset).expect("test files are small");
                self.pending.push(Pending::Bytes { file, offset, bytes: bytes.as_slice().into() });
            }
            Op::SyncFile { path } => self.sync(self.handles[path]),
            Op::SyncDir { path } => self.sync(self.inode(path)),
            Op::Rename { from, to } => {
                let (dir, from) = self.place(from);
                let (to_dir, to) = self.place(to);
                assert_eq!(dir, to_dir, "a rename stays in its directory");
                let child = self.live[dir].remove(&from).expect("the log fits the base");
                self.live[dir].insert(to.clone(), child);
                self.pending.push(Pending::Rename { dir, from, to, child });
            }
            Op::Link { from, to } => {
                let child = self.inode(from);
                let (dir, name) = self.place(to);
                self.live[dir].insert(name.clone(), child);
                self.pending.push(Pending::Name { dir, name, child });
            }
            Op::RemoveFile { path } | Op::RemoveDir { path } => {
                let (dir, name) = self.place(path);
                self.live[dir].remove(&name);
                self.pending.push(Pending::Unname { dir, name });
            }
        }
    }

    fn create(&mut self, path: &Path, node: Node, owner: Option<Owner>) {
        let (dir, name) = self.place(path);
        let child = self.add(node);
        self.live[dir].insert(name.clone(), child);
        self.handles.insert(path.to_owned(), child);
        self.pending.push(Pending::Name { dir, name, child });
        self.pending.extend(owner.map(|owner| Pending::Owner { inode: child, owner }));
    }

    fn sync(&mut self, inode: Inode) {
        let (covered, rest) = std::mem::take(&mut self.pending).into_iter().partition(|p| p.synced_by() == inode);
        self.pending = rest;
        let covered: Vec<Pending> = covered;
        for change in covered {
            change.apply(&mut self.durable, Fate::Kept);
        }
    }

    /// What is there after a cut at which each pending change met its fate.
    fn cut(&self, fates: &[Fate]) -> Tree {
        let mut inodes = self.durable.clone();
        let mut written: BTreeMap<Inode, Vec<Piece>> = BTreeMap::new();
        for (change, fate) in self.pending.iter().zip(fates) {
            match change {
                Pending::Bytes { file, offset, bytes } if *fate != Fate::Lost => {
                    written.entry(*file).or_default().push((*offset, torn(bytes, *fate)));
                }
                _ => change.apply(&mut inodes, *fate),
            }
        }
        for (file, pieces) in written {
            inodes[file].node.put_all(&pieces);
        }
        let mut tree = Tree::default();
        let mut stack = vec![(PathBuf::new(), 0)];
        while let Some((path, inode)) = stack.pop() {
            stack.extend(inodes[inode].names.iter().map(|(name, child)| (path.join(name), *child)));
            tree.insert(path, inodes[inode].node.clone());
        }
        tree
    }

    fn combinations(&self, random: &mut u64, sampled_points: &mut usize) -> Vec<Vec<Fate>> {
        if self.pending.len() <= EXHAUSTIVE_MAX {
            return self.pending.iter().fold(vec![vec![]], |all, change| {
                all.iter()
                    .flat_map(|fates| change.fates().iter().map(|fate| [fates.as_slice(), &[*fate]].concat()))
                    .collect()
            });
        }
        *sampled_points += 1;
        self.sample(random)
    }

    /// All lost, all kept, each one lost, each one torn, each one kept, each prefix kept, and random ones.
    fn sample(&self, random: &mut u64) -> Vec<Vec<Fate>> {
        let count = self.pending.len();
        let mut all = vec![vec![Fate::Lost; count], vec![Fate::Kept; count]];
        for (at, change) in self.pending.iter().enumerate() {
            for fate in change.fates() {
                let mut others_kept = vec![Fate::Kept; count];
                others_kept[at] = *fate;
                let mut others_lost = vec![Fate::Lost; count];
                others_lost[at] = *fate;
                all.extend([others_kept, others_lost]);
            }
            all.push((0..count).map(|i| if i < at { Fate::Kept } else { Fate::Lost }).collect());
        }
        for _ in 0..RANDOM_STATES {
            let pick = |change: &Pending| {
                let fates = change.fates();
                fates[(next(random) % fates.len() as u64) as usize]
            };
            all.push(self.pending.iter().map(pick).collect());
        }
        all
    }
}

/// Xorshift: enough to pick combinations, and the same ones for the same seed.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_host::durable::Access;

    fn base() -> Tree {
        let mut tree = Tree::default();
        tree.insert(PathBuf::new(), Node::dir(0o700));
        tree
    }

    fn listing(state: &CrashState) -> String {
        let names = state.tree.nodes().skip(1).map(|(path, node)| match node.bytes() {
            Some(bytes) => format!("{}={}", path.display(), String::from_utf8_lossy(bytes).replace('\0', "0")),
            None => format!("{}/", path.display()),
        });
        names.collect::<Vec<_>>().join(" ")
    }

    fn states(log: &[Op]) -> Vec<String> {
        let mut all: Vec<_> = crash_states(&base(), "/r".as_ref(), log, 1).distinct.iter().map(listing).collect();
        all.sort();
        all.dedup();
        all
    }

    fn create(path: &str) -> Op {
        Op::CreateFile { path: path.into(), access: Access::mode(0o600) }
    }

    fn write(path: &str, bytes: &str) -> Op {
        Op::Write { path: path.into(), offset: 0, bytes: bytes.into() }
    }

    fn rename(from: &str, to: &str) -> Op {
        Op::Rename { from: from.into(), to: to.into() }
    }

    #[test]
    fn unsynced_bytes_are_lost_kept_halved_or_zeroed() {
        assert_eq!(states(&[create("/r/a"), write("/r/a", "wxyz")]), ["", "a=", "a=0000", "a=wx", "a=wxyz"]);
    }

    #[test]
    fn a_synced_file_still_needs_its_directory_synced() {
        let sync = Op::SyncFile { path: "/r/a".into() };
        let log = [create("/r/a"), write("/r/a", "wxyz"), sync, Op::SyncDir { path: "/r".into() }];
        let found = crash_states(&base(), "/r".as_ref(), &log, 1);
        let last: Vec<_> = found.distinct.iter().filter(|state| state.after_end).map(listing).collect();
        assert_eq!(last, ["a=wxyz"]);
        let found = crash_states(&base(), "/r".as_ref(), &log[..3], 1);
        let last: Vec<_> = found.distinct.iter().filter(|state| state.after_end).map(listing).collect();
        assert_eq!(last, ["", "a=wxyz"]);
    }

    #[test]
    fn a_rename_may_outlive_the_bytes_of_what_it_renamed() {
        let log = [create("/r/a"), write("/r/a", "wx"), rename("/r/a", "/r/b"), Op::SyncDir { path: "/r".into() }];
        let found = crash_states(&base(), "/r".as_ref(), &log, 1);
        let last: Vec<_> = found.distinct.iter().filter(|state| state.after_end).map(listing).collect();
        assert_eq!(last, ["b=", "b=wx", "b=w", "b=00"]);
    }

    #[test]
    fn a_lost_removal_brings_the_name_back() {
        let log = [create("/r/a"), Op::SyncDir { path: "/r".into() }, Op::RemoveFile { path: "/r/a".into() }];
        assert_eq!(states(&log[1..][..1]), [""]);
        assert_eq!(states(&log), ["", "a="]);
    }

    #[test]
    fn many_pending_changes_are_sampled_and_said_to_be() {
        let log: Vec<Op> = (0..20).map(|i| create(&format!("/r/{i:02}"))).collect();
        let found = crash_states(&base(), "/r".as_ref(), &log, 1);
        assert_eq!((found.pending_max, found.sampled_points), (20, 8));
        assert!(found.distinct.len() > 4096);
    }
}
