//! The spool as a place: what goes in comes out, whatever happened to the process, the disk or the files meanwhile.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests write scratch files, and may stop")]

use std::path::{Path, PathBuf};

use quorate_backup::spool::{Recovered, Segment, Spool, SpoolSettings, SpoolState};
use quorate_etcd_formats::delta::quorate::QuorateDecoder;
use quorate_etcd_formats::delta::{Decoder, Event, LeaseGrant, OwnedEvent};
use quorate_etcd_formats::mvcc::Revision;
use quorate_faults::Code;
use quorate_plan::chain::Layout;

const SETTINGS: SpoolSettings = SpoolSettings { max_bytes: 1 << 20 };

/// In memory where there is such a place: hundreds are made, and every one is synced.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

fn put(main: u64, sub: u64, bytes: usize) -> OwnedEvent {
    OwnedEvent {
        at: Revision { main, sub },
        key: format!("key-{main}-{sub}").into_bytes(),
        value: vec![b'v'; bytes],
        create_revision: main as i64,
        version: 1,
        time_ms: Some(1_794_773_649_000 + main as i64),
        ..OwnedEvent::default()
    }
}

fn lend(events: &[OwnedEvent]) -> Vec<Event<'_>> {
    events.iter().map(OwnedEvent::lend).collect()
}

fn state(stored: u64) -> SpoolState {
    SpoolState { cluster_id: 0xabc, epoch: 3, layout: Layout::Quorate, stored }
}

fn begun(dir: &Path, stored: u64) -> Spool {
    let (mut spool, _) = Spool::open(dir, SETTINGS).unwrap();
    spool.reset(state(stored)).unwrap();
    spool
}

fn append(spool: &mut Spool, revisions: std::ops::RangeInclusive<u64>) {
    for main in revisions {
        spool.append(&lend(&[put(main, 0, 20), put(main, 1, 20)]), true).unwrap();
    }
}

fn events_of(segment: &Segment) -> Vec<(u64, u64)> {
    let mut decoder = QuorateDecoder::default();
    decoder.feed(&std::fs::read(&segment.path).unwrap()).unwrap();
    let (batch, summary) = decoder.finish().unwrap();
    let summary = summary.unwrap();
    assert_eq!((summary.first, summary.last, summary.events), (segment.first, segment.last, segment.events));
    (0..batch.len()).map(|index| batch.get(index).unwrap().at).map(|at| (at.main, at.sub)).collect()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn only_open(dir: &Path) -> PathBuf {
    files(dir).into_iter().find(|path| path.extension().is_some_and(|end| end == "open")).unwrap()
}

#[test]
fn what_is_cut_waits_in_order_and_goes_once_it_is_stored() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 10);
    append(&mut spool, 11..=14);
    let first = spool.cut().unwrap().unwrap();
    append(&mut spool, 15..=15);
    let second = spool.cut().unwrap().unwrap();
    assert_eq!(spool.cut().unwrap(), None, "there is nothing to cut");
    assert_eq!((first.first, first.last, first.events, first.epoch, first.cluster_id), (11, 14, 8, 3, 0xabc));
    assert_eq!(first.bytes, first.path.metadata().unwrap().len());
    assert_eq!(events_of(&first).first(), Some(&(11, 0)));
    assert_eq!(spool.pending(), [first.clone(), second.clone()]);
    assert_eq!(spool.bytes(), first.bytes + second.bytes);
    assert_eq!(spool.stored(&second).unwrap_err().code(), Code::Internal, "the older one goes first");
    spool.stored(&first).unwrap();
    assert!(!first.path.exists());
    drop(spool);
    let (spool, recovered) = Spool::open(dir.path(), SETTINGS).unwrap();
    assert_eq!(recovered, Recovered { last: Some(15), state: Some(state(14)), ..Recovered::default() });
    assert_eq!(spool.pending().first(), Some(&second));
    let mut spool = spool;
    spool.stored(&second).unwrap();
    assert_eq!(files(dir.path()), [dir.path().join("state")]);
    drop(spool);
    assert_eq!(Spool::open(dir.path(), SETTINGS).unwrap().1.last, Some(15));
}

#[test]
fn a_second_user_is_refused_until_the_first_one_is_gone() {
    let dir = scratch();
    let at = dir.path().join("made/with/parents");
    let (spool, recovered) = Spool::open(&at, SETTINGS).unwrap();
    assert_eq!(recovered, Recovered::default());
    assert_eq!(Spool::open(&at, SETTINGS).err().unwrap().code(), Code::SpoolLocked);
    drop(spool);
    Spool::open(&at, SETTINGS).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&at.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_transaction_in_pieces_is_kept_whole_or_not_at_all() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 4);
    spool.append(&lend(&[put(5, 0, 9), put(6, 0, 9), put(6, 1, 9)]), false).unwrap();
    assert_eq!(spool.last(), Some(5));
    spool.sync().unwrap();
    assert_eq!(spool.cut().unwrap(), None, "no cut inside a transaction");
    // The watch broke off; the transaction will be sent again.
    let recovered = spool.recover().unwrap();
    assert_eq!(recovered.last, Some(5));
    assert!(recovered.torn_bytes > 0);
    assert_eq!(events_of(&spool.pending()[0]), [(5, 0)]);
    spool.append(&lend(&[put(6, 0, 9)]), false).unwrap();
    spool.append(&lend(&[put(6, 1, 9)]), false).unwrap();
    // A piece may end where its transaction ends; that is seen by the next one.
    spool.append(&lend(&[put(7, 0, 9)]), true).unwrap();
    let segment = spool.cut().unwrap().unwrap();
    assert_eq!(events_of(&segment), [(6, 0), (6, 1), (7, 0)]);
}

#[test]
fn what_was_synced_before_a_kill_is_there_afterwards() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 1);
    spool.grant(LeaseGrant { id: 7, ttl: 60 }).unwrap();
    append(&mut spool, 2..=50);
    spool.sync().unwrap();
    append(&mut spool, 51..=60);
    drop(spool);
    let (mut spool, recovered) = Spool::open(dir.path(), SETTINGS).unwrap();
    assert_eq!((recovered.last, recovered.torn_bytes), (Some(50), 0));
    append(&mut spool, 51..=52);
    assert_eq!(spool.cut().unwrap().map(|segment| (segment.first, segment.last)), Some((51, 52)));
    assert_eq!(spool.pending().len(), 2);
}

#[test]
fn every_torn_end_is_cut_back_to_a_whole_transaction() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 1);
    let mut ends = vec![(0, 1)];
    for main in 2..=6 {
        append(&mut spool, main..=main);
        spool.sync().unwrap();
        ends.push((only_open(dir.path()).metadata().unwrap().len() as usize, main));
    }
    let name = only_open(dir.path());
    drop(spool);
    let whole = std::fs::read(&name).unwrap();
    for length in 0..=whole.len() {
        for zeros in [0, 100] {
            let other = scratch();
            std::fs::copy(dir.path().join("state"), other.path().join("state")).unwrap();
            let torn = [&whole[..length], &vec![0; zeros]].concat();
            std::fs::write(other.path().join(name.file_name().unwrap()), &torn).unwrap();
            let (spool, recovered) = Spool::open(other.path(), SETTINGS).unwrap();
            let last = ends.iter().rev().find(|(end, _)| *end <= length).unwrap();
            assert_eq!(recovered.last, Some(last.1), "{length} {zeros}");
            assert_eq!(recovered.torn_bytes, (torn.len() - last.0) as u64, "{length} {zeros}");
            assert_eq!(spool.pending().first().map(|segment| segment.last), Some(last.1).filter(|last| *last > 1));
            assert!(recovered.damaged.is_empty());
            assert!(files(other.path()).len() <= 2, "no left-over: {:?}", files(other.path()));
        }
    }
}

#[test]
fn damage_in_the_middle_is_set_aside_and_said_and_nothing_behind_it_is_believed() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 1);
    let cut = |spool: &mut Spool, revisions| {
        append(spool, revisions);
        spool.cut().unwrap().unwrap()
    };
    let segments = [cut(&mut spool, 2..=4), cut(&mut spool, 5..=6), cut(&mut spool, 7..=8)];
    drop(spool);
    let mut bytes = std::fs::read(&segments[1].path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&segments[1].path, &bytes).unwrap();
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let (spool, recovered) = Spool::open(dir.path(), SETTINGS).unwrap();
    assert_eq!((recovered.last, recovered.damaged.len()), (Some(4), 2), "{recovered:?}");
    assert_eq!(recovered.foreign, ["notes.txt"]);
    assert!(recovered.damaged[1].contains("revisions 5 to 6"), "{recovered:?}");
    assert_eq!(spool.pending(), segments[..1]);
    let aside = files(dir.path()).into_iter().filter(|path| path.to_string_lossy().contains(".damaged-"));
    assert_eq!(aside.count(), 2);
    drop(spool);
    let (_, again) = Spool::open(dir.path(), SETTINGS).unwrap();
    assert_eq!((again.last, again.damaged), (Some(4), vec![]), "it is said once");
}

#[test]
fn damage_before_good_frames_of_the_open_segment_keeps_the_original() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 1);
    for main in 2..=5 {
        append(&mut spool, main..=main);
        spool.sync().unwrap();
    }
    drop(spool);
    let name = only_open(dir.path());
    let mut bytes = std::fs::read(&name).unwrap();
    // Four frames of one size: this is in the third.
    let middle = bytes.len() / 2 + 20;
    bytes[middle] ^= 1;
    std::fs::write(&name, &bytes).unwrap();
    let (spool, recovered) = Spool::open(dir.path(), SETTINGS).unwrap();
    assert_eq!(recovered.damaged.len(), 1, "{recovered:?}");
    assert_eq!(recovered.last, Some(3));
    assert_eq!(events_of(&spool.pending()[0]), [(2, 0), (2, 1), (3, 0), (3, 1)]);
    let aside = files(dir.path()).into_iter().find(|path| path.to_string_lossy().contains(".damaged-")).unwrap();
    assert_eq!(std::fs::read(aside).unwrap(), bytes);
}

#[test]
fn a_state_that_does_not_match_its_checksum_is_set_aside() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 1);
    append(&mut spool, 2..=3);
    spool.cut().unwrap();
    drop(spool);
    let path = dir.path().join("state");
    let text = std::fs::read_to_string(&path).unwrap().replace("\"stored\":1", "\"stored\":9");
    std::fs::write(&path, text).unwrap();
    let (spool, recovered) = Spool::open(dir.path(), SETTINGS).unwrap();
    assert_eq!((recovered.state, recovered.last, recovered.damaged.len()), (None, Some(3), 1));
    assert_eq!(spool.pending().len(), 1, "segments say themselves what they are");
}

#[test]
fn a_hole_is_refused_and_recovering_makes_it_usable_again() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 1);
    append(&mut spool, 2..=3);
    assert_eq!(spool.append(&lend(&[put(5, 0, 1)]), true).unwrap_err().code(), Code::SpoolBroken);
    assert_eq!(spool.sync().unwrap_err().code(), Code::SpoolBroken);
    let recovered = spool.recover().unwrap();
    let next = recovered.last.unwrap() + 1;
    append(&mut spool, next..=5);
    spool.cut().unwrap().unwrap();
    assert_eq!(spool.append(&lend(&[put(9, 0, 1)]), true).unwrap_err().code(), Code::SpoolBroken);
    spool.recover().unwrap();
    assert_eq!(spool.last(), Some(5));
}

#[test]
fn a_new_epoch_keeps_what_waits_under_the_old_one() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 100);
    append(&mut spool, 101..=103);
    let newer = SpoolState { cluster_id: 0xdef, epoch: 4, layout: Layout::Quorate, stored: 7 };
    spool.reset(newer.clone()).unwrap();
    append(&mut spool, 8..=9);
    spool.cut().unwrap().unwrap();
    let told = |spool: &Spool| -> Vec<_> {
        spool.pending().iter().map(|it| (it.first, it.last, it.epoch, it.cluster_id)).collect()
    };
    let expected = [(101, 103, 3, 0xabc), (8, 9, 4, 0xdef)];
    assert_eq!(told(&spool), expected);
    drop(spool);
    let (mut spool, recovered) = Spool::open(dir.path(), SETTINGS).unwrap();
    assert_eq!((recovered.last, recovered.state.as_ref()), (Some(9), Some(&newer)));
    assert_eq!(told(&spool), expected);
    spool.stored(&spool.pending()[0].clone()).unwrap();
    assert_eq!(spool.state(), Some(&newer), "what was stored was the old epoch's");
}

#[test]
fn no_cut_comes_before_the_revision_that_was_asked_for() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 1);
    spool.cut_not_before(5);
    append(&mut spool, 2..=4);
    assert_eq!(spool.cut().unwrap(), None);
    append(&mut spool, 5..=5);
    assert_eq!(spool.cut().unwrap().map(|segment| segment.last), Some(5));
}

#[test]
fn it_is_full_at_its_bound_and_memory_stays_small() {
    let dir = scratch();
    let mut spool = begun(dir.path(), 1);
    let mut main = 2;
    while !spool.is_full() {
        spool.append(&lend(&[put(main, 0, 4000)]), true).unwrap();
        main += 1;
    }
    assert!((250..280).contains(&main), "{main}");
    // What goes beyond a few frames is in the file already, without any sync.
    let on_disk = only_open(dir.path()).metadata().unwrap().len();
    assert!(spool.open_bytes() - on_disk < 600 << 10, "{on_disk}");
    let segment = spool.cut().unwrap().unwrap();
    spool.stored(&segment).unwrap();
    assert!(!spool.is_full());
}
