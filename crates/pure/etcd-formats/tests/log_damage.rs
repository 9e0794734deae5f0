//! Damage is seen: every changed byte of a log or a raft snapshot, every cut, and noise of any kind.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod log_support;

use log_support::{FIRST, Reserved, fixture, scan_first};
use proptest::prelude::*;
use quorate_etcd_formats::messages::{ConfState, Entry, HardState, Metadata, WalSnapshot};
use quorate_etcd_formats::snap::SnapFile;
use quorate_etcd_formats::v2store::V2Store;
use quorate_etcd_formats::wal::{
    Damage, ScanOptions, Tail, WalFile, WalProblem, WalSummary, WalWriter, head, scan, scan_newest, scan_newest_whole,
};

const SECOND: &str = "0000000000000001-0000000000000001.wal";

fn metadata() -> Metadata {
    Metadata { node_id: Some(0xb71f75320dc06a6c), cluster_id: Some(0x1c45a069f3a1d796) }
}

fn begin(crc: u32) -> WalWriter {
    let mut wal = WalWriter::new(crc);
    wal.metadata(&metadata());
    wal
}

/// A log of entries with these sizes, each followed by a state that commits it. `zeros` writes zeros out, as etcd
/// does up to 3.6.
fn log(sizes: &[usize], zeros: bool) -> Vec<u8> {
    let mut wal = begin(0);
    wal.snapshot(&WalSnapshot { index: Some(0), term: Some(0), conf_state: None });
    for (&size, index) in sizes.iter().zip(1..) {
        wal.entry(&put(index, 2, size, zeros));
        wal.state(&HardState { term: Some(2), vote: metadata().node_id, commit: Some(index) });
    }
    wal.finish()
}

fn put(index: u64, term: u64, size: usize, zeros: bool) -> Entry {
    let data: Vec<u8> = (0..size).map(|at| (at as u64 * 31 + index) as u8 | 1).collect();
    Entry { r#type: zeros.then_some(0), term: Some(term), index: Some(index), data: (size > 0).then_some(data) }
}

fn is_flawless(summary: &WalSummary) -> bool {
    summary.problems.is_empty() && matches!(summary.tail, Tail::Clean { .. })
}

/// Where the records of a good log begin, and where it ends.
fn record_starts(bytes: &[u8]) -> Vec<usize> {
    let (mut starts, mut at) = (vec![0], 0);
    while let Some(field) = bytes[at..].first_chunk() {
        let length = (u64::from_le_bytes(*field) & ((1 << 56) - 1)) as usize;
        at += 8 + length.next_multiple_of(8);
        starts.push(at);
    }
    starts
}

fn whole_newest(bytes: &[u8]) -> WalSummary {
    scan_newest_whole(&[WalFile { name: FIRST, source: &bytes }], &ScanOptions::default()).unwrap()
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![0..40usize, 400..700usize], 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(sizes in sizes(), zeros: bool, reserved in 0..2000u64) {
        let bytes = log(&sizes, zeros);
        let file = Reserved::new(&bytes, bytes.len() as u64 + reserved / 8 * 8);
        let summary = scan(&[WalFile { name: FIRST, source: &file }], &ScanOptions::default()).unwrap();
        prop_assert!(is_flawless(&summary), "{:?}", summary);
        prop_assert_eq!(summary.metadata, Some(metadata()));
        prop_assert_eq!(summary.last_entry, Some((sizes.len() as u64, 2)));
        prop_assert_eq!(summary.segments[0].records, 3 + 2 * sizes.len() as u64);
        prop_assert_eq!(summary.segments[0].end, bytes.len() as u64);
    }

    #[test]
    fn a_cut_is_torn_or_at_a_record(sizes in sizes(), zeros: bool, cut in any::<prop::sample::Index>()) {
        let bytes = log(&sizes, zeros);
        let cut = cut.index(bytes.len());
        match scan_first(&bytes[..cut], None).tail {
            Tail::Clean { end, .. } => {
                // What was read ends there too when it is followed by other records.
                prop_assert_eq!(end, cut as u64);
                let again = scan_first(&bytes[..cut], None);
                prop_assert_eq!(again.segments[0].end, cut as u64);
            }
            Tail::Torn { offset, dropped, damage, .. } => {
                prop_assert!(matches!(damage, Damage::BeyondEnd { .. }), "{:?}", damage);
                prop_assert!(offset + dropped <= cut as u64);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn a_cut_in_an_older_segment_is_never_torn(sizes in sizes(), cut in any::<prop::sample::Index>()) {
        let bytes = log(&sizes, true);
        let crc = { let mut wal = WalWriter::new(0); wal.metadata(&metadata()); wal.crc() };
        let second = begin(crc ^ 1).finish();
        let cut = cut.index(bytes.len() - 16) + 16;
        let first = &bytes[..cut];
        let files = [WalFile { name: FIRST, source: &first }, WalFile { name: SECOND, source: &second }];
        let summary = scan(&files, &ScanOptions::default()).unwrap();
        prop_assert!(matches!(summary.tail, Tail::Corrupt(_)), "{:?}", summary.tail);
    }

    #[test]
    fn lost_sectors_in_the_last_write_are_torn(sizes in prop::collection::vec(600..3000usize, 1..6)) {
        let mut bytes = log(&sizes, true);
        let last = bytes.len() - 40 - sizes[sizes.len() - 1];
        let sector = last.next_multiple_of(512);
        prop_assume!(sector + 512 < bytes.len() - 48);
        bytes[sector..sector + 512].fill(0);
        let summary = scan_first(&bytes, None);
        prop_assert!(matches!(summary.tail, Tail::Torn { damage: Damage::Crc { .. }, .. }), "{:?}", summary.tail);
    }

    #[test]
    fn a_hole_with_records_behind_it_is_damage_and_no_torn_write(
        sizes in prop::collection::vec(prop_oneof![0..40usize, 400..3000usize], 2..30),
        zeros: bool,
        at in any::<prop::sample::Index>(),
        length in 8..3000usize,
        reserved in 0..5000usize,
    ) {
        let mut bytes = log(&sizes, zeros);
        let starts = record_starts(&bytes);
        let at = at.index(bytes.len());
        let end = bytes.len().min(at + length);
        prop_assume!(bytes[at..end].iter().any(|&byte| byte != 0));
        let behind = starts[..starts.len() - 1].iter().filter(|&&start| start >= end).count();
        bytes[at..end].fill(0);
        bytes.resize(bytes.len() + reserved / 8 * 8, 0);
        for summary in [scan_first(&bytes, None), whole_newest(&bytes)] {
            match &summary.tail {
                Tail::Corrupt(found) => if let Damage::Hole { until, records, entries } = found.problem {
                    prop_assert!(starts.contains(&(until as usize)), "{} is no record", until);
                    prop_assert!(until >= end as u64 && records as usize <= behind);
                    prop_assert!(entries.is_none_or(|(low, high)| low <= high && high <= sizes.len() as u64));
                },
                // Only padding was hit, which is noted.
                Tail::Clean { .. } if summary.segments[0].end as usize == starts[starts.len() - 1] => {}
                Tail::Clean { .. } | Tail::Torn { .. } => prop_assert!(behind < 2, "{:?}", summary.tail),
                Tail::None => prop_assert!(false),
            }
        }
    }

    #[test]
    fn noise_is_read_without_harm(noise in prop::collection::vec(any::<u8>(), 0..5000), applied: Option<u64>) {
        let summary = scan_first(&noise, applied);
        prop_assert!(!is_flawless(&summary) );
        let _ = (head(&noise), SnapFile::read(&noise), V2Store::read(&noise));
        let _ = scan_newest(&[WalFile { name: FIRST, source: &noise }], &ScanOptions { applied });
    }

    #[test]
    fn noise_in_a_good_log_is_read_without_harm(
        sizes in sizes(),
        noise in prop::collection::vec(any::<u8>(), 1..200),
        at in any::<prop::sample::Index>(),
    ) {
        let mut bytes = log(&sizes, true);
        let at = at.index(bytes.len());
        let end = bytes.len().min(at + noise.len());
        bytes[at..end].copy_from_slice(&noise[..end - at]);
        let _ = scan_first(&bytes, Some(0));
        let _ = scan_newest(&[WalFile { name: FIRST, source: &bytes }], &ScanOptions::default());
    }

    #[test]
    fn noise_with_a_right_crc_is_read_without_harm(records in prop::collection::vec(
        (0..8i64, prop::collection::vec(prop_oneof![0..8u8, Just(0x10), Just(0x18), any::<u8>()], 0..60)), 0..40,
    )) {
        use quorate_etcd_formats::wal::RecordType::{Crc, Entry, Metadata, Snapshot, State};
        let mut wal = begin(0);
        for (kind, data) in &records {
            let kinds = [Metadata, Entry, State, Snapshot, Entry, Entry, State, Crc];
            wal.record(kinds[*kind as usize], data);
        }
        let bytes = wal.finish();
        let summary = scan_first(&bytes, Some(0));
        let _ = (summary.term_at(3), summary.continues_from(1), summary.last_index());
    }
}

/// Every value of every byte of a small log in each form. Only padding may pass, and even that is noted.
#[test]
fn every_changed_byte_of_a_log_is_seen() {
    for zeros in [true, false] {
        let bytes = log(&[0, 3, 40, 9], zeros);
        let file_end = bytes.len() + 64;
        let (mut changes, mut corrupt, mut torn, mut noted) = (0, 0, 0, 0);
        for at in 0..bytes.len() {
            for flip in 1..=255u8 {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                changed.resize(file_end, 0);
                let summary = scan_first(&changed, None);
                changes += 1;
                match summary.tail {
                    Tail::Corrupt(_) => corrupt += 1,
                    Tail::Torn { .. } => torn += 1,
                    _ if !summary.problems.is_empty() => noted += 1,
                    tail => panic!("byte {at} ^ {flip:#04x} of {} goes unseen: {tail:?}", bytes.len()),
                }
            }
        }
        println!("{changes} changes: {corrupt} corrupt, {torn} torn, {noted} readable and noted");
        assert_eq!(corrupt + torn + noted, changes);
    }
}

#[test]
fn every_changed_bit_of_a_real_log_is_seen() {
    for bytes in [fixture!("restored-3.5.30.wal"), fixture!("fresh-3.4.23.wal"), fixture!("fresh-3.7.1.wal")] {
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.to_vec();
                changed[at] ^= 1 << bit;
                assert!(!is_flawless(&scan_first(&changed, None)), "byte {at}, bit {bit}");
            }
        }
    }
}

#[test]
fn every_changed_byte_of_a_raft_snapshot_is_seen() {
    for bytes in [fixture!("restored-3.4.23.snap"), fixture!("restored-3.7.1.snap")] {
        for at in 0..bytes.len() {
            for flip in [1u8, 0x80, 0x10, 0xff] {
                let mut changed = bytes.to_vec();
                changed[at] ^= flip;
                assert!(SnapFile::read(&changed).is_err(), "byte {at} ^ {flip:#04x}");
            }
        }
        for cut in 0..bytes.len() {
            assert!(SnapFile::read(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}

fn problems(bytes: &[u8], applied: Option<u64>) -> Vec<WalProblem> {
    scan_first(bytes, applied).problems.into_iter().map(|found| found.problem).collect()
}

#[test]
fn overwritten_entries_are_gone() {
    let mut wal = begin(0);
    for (index, term) in [(1, 1), (2, 1), (3, 1), (4, 1), (3, 2), (4, 2)] {
        wal.entry(&put(index, term, 4, true));
    }
    wal.state(&HardState { term: Some(2), vote: Some(1), commit: Some(4) });
    let bytes = wal.finish();
    let summary = scan_first(&bytes, None);
    assert!(is_flawless(&summary), "{summary:?}");
    assert_eq!([2, 3, 4, 5].map(|index| summary.term_at(index)), [Some(1), Some(2), Some(2), None]);
}

#[test]
fn gaps_are_allowed_only_behind_a_snapshot() {
    let log = |mark: Option<u64>| {
        let mut wal = begin(0);
        wal.entry(&put(1, 1, 4, true));
        if let Some(index) = mark {
            let conf_state = Some(ConfState { voters: vec![1], ..Default::default() });
            wal.snapshot(&WalSnapshot { index: Some(index), term: Some(1), conf_state });
        }
        wal.entry(&put(21, 1, 4, true));
        wal.state(&HardState { term: Some(1), vote: Some(1), commit: Some(21) });
        wal.finish()
    };
    let gap = WalProblem::IndexGap { after: 1, next: 21 };
    assert_eq!(problems(&log(None), None), std::slice::from_ref(&gap));
    assert_eq!(problems(&log(Some(10)), None), [gap]);
    assert_eq!(problems(&log(Some(20)), None), []);
    let summary = scan_first(&log(Some(20)), None);
    assert!(summary.continues_from(20) && !summary.continues_from(19));
    assert_eq!([1, 10, 20, 21].map(|index| summary.term_at(index)), [Some(1), None, Some(1), Some(1)]);
}

#[test]
fn impossible_logs_are_named() {
    let state = |commit| HardState { term: Some(2), vote: Some(1), commit: Some(commit) };
    let with = |build: &dyn Fn(&mut WalWriter)| {
        let mut wal = begin(0);
        build(&mut wal);
        wal.finish()
    };
    let beyond = with(&|wal| {
        wal.entry(&put(1, 2, 4, true));
        wal.state(&state(9));
    });
    assert_eq!(problems(&beyond, None), [WalProblem::CommitBeyondLog { commit: 9, last: 1 }]);

    let decreasing = with(&|wal| {
        wal.entry(&put(1, 2, 4, true));
        wal.entry(&put(2, 1, 4, true));
        wal.state(&state(2));
    });
    assert_eq!(problems(&decreasing, None), [WalProblem::TermDecreases { index: 2, term: 1, before: 2 }]);

    let rewritten = with(&|wal| {
        wal.entry(&put(1, 2, 4, true));
        wal.state(&state(1));
        wal.entry(&put(1, 2, 4, true));
    });
    assert_eq!(problems(&rewritten, None), [WalProblem::CommittedOverwritten { index: 1, commit: 1 }]);

    let late = with(&|wal| {
        wal.entry(&put(5, 2, 4, true));
        wal.state(&state(5));
    });
    assert_eq!(problems(&late, None), [WalProblem::LogStartsLate { first: 5, start: 0 }]);

    let odd = with(&|wal| {
        wal.entry(&Entry { r#type: Some(2), ..put(1, 2, 4, true) });
        wal.state(&state(1));
    });
    assert_eq!(problems(&odd, None), [WalProblem::UnknownEntryType { index: 1, kind: 2 }]);

    let noise = with(&|wal| {
        wal.entry(&Entry { data: Some(vec![0xff; 9]), ..put(1, 2, 4, true) });
        wal.state(&state(1));
    });
    assert_eq!(problems(&noise, Some(0)), [WalProblem::UndecodableEntry { index: 1 }]);
    assert_eq!(problems(&noise, Some(1)), [], "what is applied already will not be decoded again");
}

#[test]
fn other_metadata_in_a_later_segment_is_a_conflict() {
    let mut first = begin(0);
    first.entry(&put(1, 1, 4, true));
    first.state(&HardState { term: Some(1), vote: Some(1), commit: Some(1) });
    let mut second = WalWriter::new(first.crc());
    second.metadata(&Metadata { node_id: Some(7), ..metadata() });
    let (first, second) = (first.finish(), second.finish());
    let files = [WalFile { name: FIRST, source: &first }, WalFile { name: SECOND, source: &second }];
    let summary = scan(&files, &ScanOptions::default()).unwrap();
    assert_eq!(summary.problems.len(), 1, "{:?}", summary.problems);
    assert_eq!(summary.problems[0].problem, WalProblem::MetadataConflict);
    assert_eq!(summary.problems[0].file, SECOND);
}

#[test]
fn a_missing_segment_is_named_and_breaks_the_chain() {
    let first = log(&[5, 5], true);
    let third = begin(0x1234_5678).finish();
    let name = "0000000000000002-0000000000000005.wal";
    let files = [WalFile { name: FIRST, source: &first }, WalFile { name, source: &third }];
    let summary = scan(&files, &ScanOptions::default()).unwrap();
    assert!(matches!(summary.problems[0].problem, WalProblem::Names(_)));
    assert!(matches!(&summary.tail, Tail::Corrupt(found) if matches!(found.problem, Damage::Chain { .. })));
}

#[test]
fn records_too_long_to_hold_are_summed_as_they_stream_by() {
    let mut wal = begin(0);
    let mut data = vec![0x22, 0x80, 0x80, 0x80, 0x05];
    data.resize(5 + (10 << 20), 0x55);
    wal.entry(&Entry { r#type: Some(0), term: Some(1), index: Some(1), data: Some(data) });
    wal.state(&HardState { term: Some(1), vote: Some(1), commit: Some(1) });
    let bytes = wal.finish();
    let summary = scan_first(&bytes, Some(0));
    assert!(is_flawless(&summary), "{summary:?}");
    assert_eq!(summary.last_entry, Some((1, 1)));

    let mut flipped = bytes.clone();
    flipped[5 << 20] ^= 1;
    assert!(matches!(scan_first(&flipped, None).tail, Tail::Corrupt(_)));
    let mut torn = bytes;
    torn[5 << 20..6 << 20].fill(0);
    assert!(matches!(scan_first(&torn, None).tail, Tail::Torn { damage: Damage::Crc { .. }, .. }));
}

#[test]
fn a_large_hole_is_found_by_every_way_of_reading() {
    let mut bytes = log(&vec![300; 2000], true);
    let starts = record_starts(&bytes);
    // From one record's length field to another's: for etcd the log ends there.
    let (from, until) = (starts[1000], starts[1601]);
    assert!(until - from > 100 << 10);
    bytes[from..until].fill(0);
    bytes.resize(bytes.len() + (1 << 20), 0);
    let files = [WalFile { name: FIRST, source: &bytes }];
    let options = ScanOptions::default();
    for summary in [scan(&files, &options), scan_newest(&files, &options), scan_newest_whole(&files, &options)] {
        let Tail::Corrupt(found) = summary.unwrap().tail else { panic!("a hole is no end") };
        assert_eq!(found.offset, from as u64);
        let records = (starts.len() - 1 - 1601) as u64;
        assert_eq!(found.problem, Damage::Hole { until: until as u64, records, entries: Some((800, 2000)) });
        assert!(found.problem.to_string().ends_with("with entries 800 to 2000"), "{}", found.problem);
    }
}

#[test]
fn records_inside_a_torn_value_are_no_records_of_the_log() {
    let inner = log(&[9; 40], true);
    let mut wal = begin(0);
    wal.entry(&put(1, 1, 4, true));
    let end = wal.offset();
    // Seven bytes before the value and its own length, so that the inner records are aligned as outer ones are.
    for shift in 0..8 {
        let mut wal = begin(0);
        wal.entry(&put(1, 1, 4, true));
        let value = [vec![7; 2000 + shift], inner.clone()].concat();
        wal.entry(&Entry { r#type: Some(0), term: Some(1), index: Some(2), data: Some(value) });
        let mut bytes = wal.finish();
        bytes[1024..1536].fill(0);
        let tail = scan_first(&bytes, None).tail;
        assert!(matches!(tail, Tail::Torn { offset, .. } if offset == end), "{tail:?}");
        let cut = bytes.len() - 64;
        bytes.truncate(cut);
        assert!(matches!(scan_first(&bytes, None).tail, Tail::Torn { .. }));
    }
}

#[test]
fn a_length_beyond_everything_allocates_nothing() {
    let mut bytes = log(&[5], true);
    bytes.extend_from_slice(&[0xff; 7]);
    bytes.push(0x7f);
    bytes.extend_from_slice(&[1; 64]);
    let summary = scan_first(&bytes, None);
    assert!(matches!(summary.tail, Tail::Torn { dropped: 72, .. }), "{:?}", summary.tail);
}

#[test]
fn a_quick_look_agrees_with_a_full_one() {
    let bytes = log(&vec![300; 20_000], true);
    let files = [WalFile { name: FIRST, source: &bytes }];
    let full = scan(&files, &ScanOptions::default()).unwrap();
    let quick = scan_newest(&files, &ScanOptions::default()).unwrap();
    assert!(is_flawless(&full) && is_flawless(&quick), "{quick:?}");
    assert_eq!((quick.metadata, quick.hard_state, &quick.tail), (full.metadata, full.hard_state, &full.tail));
    assert_eq!(quick.last_entry, full.last_entry);
    assert!(quick.segments[0].skipped > 30_000);
    assert_eq!(quick.segments[0].skipped + quick.segments[0].records, full.segments[0].records);

    let mut torn = bytes;
    torn.truncate(torn.len() - 100);
    let quick = scan_newest(&[WalFile { name: FIRST, source: &torn }], &ScanOptions::default()).unwrap();
    assert!(matches!(quick.tail, Tail::Torn { .. }));
}
