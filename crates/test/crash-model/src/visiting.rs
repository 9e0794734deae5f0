//! States after a cut, shown one after the other: for runs that write so much that not all of it can be kept or tried.
//!
//! **Rule:** what is left out is writes in a row; every other change is cut before and met by each of its fates.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use crate::{CrashState, Fate, Model, Op, Pending, Tree, next};

/// Up to this many combinations of what is pending are all tried.
const COMBINATIONS_MAX: usize = 256;

/// How much is tried where there is too much to try all of it.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Of writes in a row, one in this many is cut before, and meets each of its fates by itself.
    pub write_step: usize,
    /// Random combinations at each cut.
    pub random_states: usize,
}

/// How much was tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Visited {
    /// Cuts.
    pub points: usize,
    /// States, some of them perhaps the same.
    pub states: usize,
    /// The largest number of changes that were pending at once.
    pub pending_max: usize,
}

/// Shows states that a cut could leave of `base` at `root`, until `visit` has seen enough.
///
/// # Panics
/// As [`crate::crash_states`].
pub fn each_crash_state(
    base: &Tree,
    root: &Path,
    log: &[Op],
    effort: Effort,
    seed: u64,
    mut visit: impl FnMut(&CrashState) -> ControlFlow<()>,
) -> Visited {
    let mut model = Model::new(base, root);
    let mut visited = Visited::default();
    let mut random = seed | 1;
    let mut in_a_row = 0;
    for step in 0..=log.len() {
        let op = log.get(step);
        let writes = matches!(op, Some(Op::Write { .. }));
        if !writes || in_a_row % effort.write_step == 0 {
            visited.points += 1;
            visited.pending_max = visited.pending_max.max(model.pending.len());
            for fates in model.some_combinations(effort, &mut random) {
                visited.states += 1;
                let state = CrashState { after_end: op.is_none(), tree: model.cut(&fates) };
                if visit(&state).is_break() {
                    return visited;
                }
            }
        }
        in_a_row = if writes { in_a_row + 1 } else { 0 };
        op.into_iter().for_each(|op| model.carry_out(op));
    }
    visited
}

impl Model<'_> {
    fn some_combinations(&self, effort: Effort, random: &mut u64) -> BTreeSet<Vec<Fate>> {
        let fates = || self.pending.iter().map(Pending::fates);
        let all = fates().try_fold(1usize, |product, fates| product.checked_mul(fates.len()));
        if all.is_some_and(|all| all <= COMBINATIONS_MAX) {
            let none = BTreeSet::from([vec![]]);
            return fates().fold(none, |all, fates| {
                all.iter().flat_map(|before| fates.iter().map(|fate| [before.as_slice(), &[*fate]].concat())).collect()
            });
        }
        self.thinned(effort, random)
    }

    /// All lost, all kept, some by themselves, each prefix that ends there, and random ones.
    fn thinned(&self, effort: Effort, random: &mut u64) -> BTreeSet<Vec<Fate>> {
        let count = self.pending.len();
        let mut some = BTreeSet::from([vec![Fate::Lost; count], vec![Fate::Kept; count]]);
        let mut writes = 0;
        for (at, change) in self.pending.iter().enumerate() {
            if matches!(change, Pending::Bytes { .. }) {
                writes += 1;
                if (writes - 1) % effort.write_step != 0 {
                    continue;
                }
            }
            for fate in change.fates() {
                for others in [Fate::Kept, Fate::Lost] {
                    let mut fates = vec![others; count];
                    fates[at] = *fate;
                    some.insert(fates);
                }
            }
            some.insert((0..count).map(|i| if i < at { Fate::Kept } else { Fate::Lost }).collect());
        }
        for _ in 0..effort.random_states {
            let pick = |change: &Pending| {
                let fates = change.fates();
                fates[(next(random) % fates.len() as u64) as usize]
            };
            some.insert(self.pending.iter().map(pick).collect());
        }
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, crash_states};
    use quorate_host::durable::Access;
    use std::path::PathBuf;

    fn base() -> Tree {
        let mut tree = Tree::default();
        tree.insert(PathBuf::new(), Node::dir(0o700));
        tree
    }

    fn log(writes: u64) -> Vec<Op> {
        let path = || PathBuf::from("/r/a");
        let write = |at: u64| Op::Write { path: path(), offset: at * 2, bytes: format!("{at:02}").into_bytes() };
        let made = Op::CreateFile { path: path(), access: Access::mode(0o600) };
        let rest = [Op::SyncFile { path: path() }, Op::SyncDir { path: "/r".into() }];
        [made].into_iter().chain((0..writes).map(write)).chain(rest).collect()
    }

    fn visit(log: &[Op], write_step: usize) -> (Visited, Vec<CrashState>) {
        let mut seen = Vec::new();
        let effort = Effort { write_step, random_states: 8 };
        let visited = each_crash_state(&base(), "/r".as_ref(), log, effort, 1, |state| {
            seen.push(state.clone());
            ControlFlow::Continue(())
        });
        (visited, seen)
    }

    #[test]
    fn few_changes_are_all_tried() {
        let (_, seen) = visit(&log(3), 1);
        let all = crash_states(&base(), "/r".as_ref(), &log(3), 1).distinct;
        assert!(all.iter().all(|state| seen.contains(state)) && seen.iter().all(|state| all.contains(state)));
    }

    #[test]
    fn writes_in_a_row_are_thinned_and_nothing_else() {
        let (all, _) = visit(&log(40), 1);
        let (some, seen) = visit(&log(40), 10);
        // Before the first change, before every write, after the last one, after each sync.
        assert_eq!((all.points, some.points), (1 + 40 + 1 + 1 + 1, 1 + 4 + 1 + 1 + 1));
        assert_eq!((all.pending_max, some.pending_max), (41, 41));
        assert!(some.states < all.states / 10);
        let ended: Vec<_> = seen.iter().filter(|state| state.after_end).collect();
        assert!(!ended.is_empty());
        let wanted: String = (0..40).map(|at| format!("{at:02}")).collect();
        for state in ended {
            assert_eq!(state.tree.get("a").and_then(Node::bytes), Some(wanted.as_bytes()));
        }
    }

    #[test]
    fn it_ends_when_enough_was_seen() {
        let effort = Effort { write_step: 1, random_states: 0 };
        let visited = each_crash_state(&base(), "/r".as_ref(), &log(3), effort, 1, |_| ControlFlow::Break(()));
        assert_eq!(visited.states, 1);
    }
}
