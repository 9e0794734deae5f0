//! The ledger in every state that a power cut could leave: the old one or the new one, never none and never a torn one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use quorate_crash_model::{CrashState, Op, RecordingDisk, Tree, crash_states};
use quorate_etcd::ledger::{FILE_NAME, ensure_ledger, observe_ledger};
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_host::durable::RealDisk;
use quorate_plan::ledger::{Ledger, LedgerSeen, Promise, State};
use tempfile::TempDir;

fn ledger(generation: u64) -> Ledger {
    let promise = Promise {
        bootstrap: 1,
        declaration: "d".repeat(64),
        cluster: ClusterId(0x1234),
        member: MemberId(generation),
        members: Vec::new(),
        over: false,
        nonce: None,
        nonces: Default::default(),
    };
    Ledger { generation, state: State::Promised(promise), ..Ledger::default() }
}

/// What a node that starts after the cut reads.
fn read(dir: &Path, number: usize, state: &CrashState) -> LedgerSeen {
    let at = dir.join(format!("s{number}"));
    std::fs::create_dir(&at).unwrap();
    state.tree.write(&at).unwrap();
    observe_ledger(&at.join(FILE_NAME))
}

/// Records the writing of `new` over `old`; gives the tree before and what was done.
fn recorded(dir: &TempDir, old: Option<&Ledger>, new: &Ledger) -> (Tree, Vec<Op>) {
    let root = dir.path().join("state");
    std::fs::create_dir(&root).unwrap();
    let path = root.join(FILE_NAME);
    if let Some(old) = old {
        ensure_ledger(&RealDisk, &path, old).unwrap();
    }
    let base = Tree::read(&root).unwrap();
    let disk = RecordingDisk::new(RealDisk);
    ensure_ledger(&disk, &path, new).unwrap();
    (base, disk.log())
}

/// Whether every state is one that the rule allows.
fn holds(dir: &Path, old: &LedgerSeen, new: &LedgerSeen, states: &[CrashState]) -> Result<(), String> {
    for (number, state) in states.iter().enumerate() {
        let seen = read(dir, number, state);
        let allowed = if state.after_end { seen == *new } else { seen == *new || seen == *old };
        if !allowed {
            return Err(format!("state {number} (after the end: {}): {seen:?}", state.after_end));
        }
    }
    Ok(())
}

#[test]
fn every_cut_leaves_the_old_or_the_new_ledger() {
    for old in [None, Some(ledger(1))] {
        let dir = tempfile::tempdir().unwrap();
        let new = ledger(2);
        let (base, log) = recorded(&dir, old.as_ref(), &new);
        let states = crash_states(&base, &dir.path().join("state"), &log, 1);
        assert!(states.distinct.len() >= 4 && states.sampled_points == 0, "{}", states.distinct.len());
        assert!(states.distinct.iter().any(|state| state.after_end));
        let old = old.map_or(LedgerSeen::Absent, |old| LedgerSeen::There(Box::new(old)));
        holds(dir.path(), &old, &LedgerSeen::There(Box::new(new)), &states.distinct).unwrap();
    }
}

#[test]
fn each_sync_is_needed() {
    let seen = |generation| LedgerSeen::There(Box::new(ledger(generation)));
    let dir = tempfile::tempdir().unwrap();
    let (base, log) = recorded(&dir, Some(&ledger(1)), &ledger(2));
    let is_sync = |op: &Op| matches!(op, Op::SyncFile { .. } | Op::SyncDir { .. });
    let syncs: Vec<usize> = (0..log.len()).filter(|at| is_sync(&log[*at])).collect();
    assert_eq!(syncs.len(), 2, "the file, then its directory: {log:?}");
    for left_out in syncs {
        let mut without = log.clone();
        let op = without.remove(left_out);
        let states = crash_states(&base, &dir.path().join("state"), &without, 1);
        let place = tempfile::tempdir().unwrap();
        let broken = holds(place.path(), &seen(1), &seen(2), &states.distinct);
        assert!(broken.is_err(), "nothing is lost without {op:?}");
    }
}
