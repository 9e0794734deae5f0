//! Damages good data dirs in every way and shows that `verify` reports each, or that the format cannot protect it.
//!
//! What the format does not protect is computed here from the good file, not taken from the checker: values and most
//! keys of a bolt page carry no checksum, and slack, free pages and the file's unused tail mean nothing.
//!
//! `QUORATE_SWEEP=full` flips a bit of every byte instead of a sample.

#![expect(clippy::unwrap_used, reason = "a test ends where its fixture is not as it should be")]

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use quorate_etcd_formats::ReadAt;
use quorate_etcd_formats::bolt::page::{HEADER_BYTES, Page};
use quorate_etcd_formats::bolt::{Bucket, MetaPages, tree};
use quorate_etcd_formats::dir::{DB, DataDir, Entry, InUse, Kind};
use quorate_etcd_formats::mvcc::RevisionKey;
use quorate_etcd_formats::verify::{self, Mode, Settings};
use quorate_testkit::{FIXTURE_VERSIONS, fixture_dir};

/// What the format does about a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Region {
    /// Damage must be reported.
    Protected,
    /// A key of a bucket other than `key`: nothing in the file repeats it.
    PlainKey,
    /// A value: bolt pages carry no checksum.
    Value,
    /// A field of a header that no reader looks at.
    Unused,
    /// Bytes behind a page's elements, pages that are free, and the file's tail.
    Slack,
}

/// Files by path.
type Files = BTreeMap<String, Vec<u8>>;

/// A member's files in memory, without the zeros that etcd prepares in advance.
fn load(version: &str) -> Files {
    let dir = fixture_dir(version);
    let mut files = Files::new();
    for folder in ["member/snap", "member/wal"] {
        for file in std::fs::read_dir(dir.path().join(folder)).unwrap() {
            let file = file.unwrap();
            let mut bytes = std::fs::read(file.path()).unwrap();
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            // One page of zeros stays, so that damage behind the end is tried too.
            bytes.truncate((used.div_ceil(4096) + 1) * 4096);
            if file.file_name().to_string_lossy().ends_with(".snap") {
                bytes.truncate(used);
            }
            files.insert(format!("{folder}/{}", file.file_name().to_string_lossy()), bytes);
        }
    }
    files
}

/// How many findings a full check has.
fn findings(files: &Files) -> usize {
    let dir = |path: &str| Entry { path: path.into(), mode: 0o700, uid: 0, kind: Kind::Dir };
    let mut entries = vec![dir("member"), dir("member/snap"), dir("member/wal")];
    entries.extend(files.iter().map(|(path, bytes)| Entry {
        path: path.clone(),
        mode: 0o600,
        uid: 0,
        kind: Kind::File(bytes as &dyn ReadAt),
    }));
    let dir = DataDir { entries, wal_dir: "member/wal".into(), in_use: InUse::No };
    let progress = AtomicU64::new(0);
    verify::data_dir(&dir, &Settings { mode: Mode::Full, workers: 1, progress: &progress }).findings.len()
}

/// Tells for every byte of the database what protects it.
fn db_regions(db: &[u8]) -> Vec<Region> {
    let mut regions = vec![Region::Slack; db.len()];
    let meta = MetaPages::read(db).unwrap().chosen().unwrap();
    let page_size = meta.page_size as usize;
    for start in [0, page_size] {
        regions[start..start + 80].fill(Region::Protected);
        regions[start + 12..start + 16].fill(Region::Unused);
    }
    let mut todo = vec![(meta.root, None::<Vec<u8>>)];
    while let Some((id, bucket)) = todo.pop() {
        let start = id as usize * page_size;
        let header = Page::new(&db[start..start + page_size]).unwrap().header;
        let page = Page::new(&db[start..start + (header.overflow as usize + 1) * page_size]).unwrap();
        mark_page(&page, start, bucket.as_deref(), &mut regions, &mut todo);
    }
    regions
}

fn mark_page(
    page: &Page<'_>,
    start: usize,
    bucket: Option<&[u8]>,
    regions: &mut [Region],
    todo: &mut Vec<(u64, Option<Vec<u8>>)>,
) {
    let table = HEADER_BYTES * (1 + usize::from(page.header.count));
    regions[start..start + table].fill(Region::Protected);
    let mut at = start + table;
    if page.is_branch() {
        for item in page.branch_items().map(Result::unwrap) {
            // A branch key may be below its child's first key, so not every change of it is wrong.
            regions[at..at + item.key.len()].fill(Region::PlainKey);
            at += item.key.len();
            todo.push((item.child, bucket.map(<[u8]>::to_vec)));
        }
        return;
    }
    for item in page.leaf_items().map(Result::unwrap) {
        let is_revision = bucket == Some(b"key");
        let key = if is_revision || bucket.is_none() { Region::Protected } else { Region::PlainKey };
        regions[at..at + item.key.len()].fill(key);
        if is_revision && is_compacted(item.key) {
            // Compaction leaves holes, so a write's place in its transaction can no longer be told wrong.
            regions[at + 9..at + 17].fill(Region::PlainKey);
        }
        at += item.key.len();
        regions[at..at + item.value.len()].fill(Region::Value);
        if bucket.is_none() {
            mark_bucket(&item, at, regions, todo);
        }
        at += item.value.len();
    }
}

fn mark_bucket(
    item: &quorate_etcd_formats::bolt::page::LeafItem<'_>,
    at: usize,
    regions: &mut [Region],
    todo: &mut Vec<(u64, Option<Vec<u8>>)>,
) {
    regions[at..at + 8].fill(Region::Protected);
    // The bucket's sequence, which etcd does not use.
    regions[at + 8..at + 16].fill(Region::Unused);
    match tree::bucket_of(item).unwrap() {
        Bucket::Tree(root) => todo.push((root, Some(item.key.to_vec()))),
        Bucket::Inline(image) => {
            let page = Page::new(&image).unwrap();
            mark_page(&page, at + 16, Some(item.key), regions, &mut Vec::new());
        }
    }
}

/// All fixtures were compacted at this revision.
const COMPACTED: u64 = 125;

fn is_compacted(key: &[u8]) -> bool {
    RevisionKey::decode(key).unwrap().revision.main <= COMPACTED
}

#[derive(Default)]
struct Tally {
    tried: u64,
    reported: u64,
}

fn sweep_step(usual: usize) -> usize {
    if std::env::var("QUORATE_SWEEP").as_deref() == Ok("full") { 1 } else { usual }
}

#[test]
fn every_flipped_bit_is_reported_or_lies_where_the_format_protects_nothing() {
    let mut tallies: BTreeMap<(String, Region), Tally> = BTreeMap::new();
    for (salt, version) in FIXTURE_VERSIONS.iter().enumerate() {
        let mut files = load(version);
        assert_eq!(findings(&files), 0, "{version} is good to begin with");
        let regions = db_regions(&files[DB]);
        for path in files.keys().cloned().collect::<Vec<_>>() {
            let kind = path.rsplit_once('.').map_or("db", |(_, ending)| ending).to_owned();
            let step = sweep_step(23);
            for at in (salt..files[&path].len()).step_by(step) {
                let region = if path == DB { regions[at] } else { Region::Protected };
                // Slack is plentiful and dull.
                if region == Region::Slack && at % (step * 16 + 1) != 0 {
                    continue;
                }
                let bit = 1u8 << ((at / step + salt) % 8);
                files.get_mut(&path).unwrap()[at] ^= bit;
                let reported = findings(&files) > 0;
                files.get_mut(&path).unwrap()[at] ^= bit;
                let tally = tallies.entry((kind.clone(), region)).or_default();
                tally.tried += 1;
                tally.reported += u64::from(reported);
                assert!(
                    reported || region != Region::Protected,
                    "{version} {path}: bit {bit:#04x} of byte {at} went unnoticed"
                );
            }
        }
    }
    for ((kind, region), Tally { tried, reported }) in tallies {
        println!("{kind:>5} {region:<10?} {reported:>6} of {tried:>6} flips reported", region = region);
    }
}

#[test]
fn every_truncation_that_loses_something_is_reported() {
    let (mut tried, mut reported) = (0, 0);
    for version in FIXTURE_VERSIONS {
        let good = load(version);
        let meta = MetaPages::read(&good[DB]).unwrap().chosen().unwrap();
        let db_used = (meta.hwm * u64::from(meta.page_size)) as usize;
        for (path, bytes) in &good {
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            let needed = if path == DB { db_used } else { used };
            for len in (0..bytes.len()).step_by(sweep_step(197)) {
                let mut files = good.clone();
                files.get_mut(path).unwrap().truncate(len);
                let noticed = findings(&files) > 0;
                tried += 1;
                reported += u64::from(noticed);
                // A record may end in zeros, so a few bytes more than that are needed to lose something.
                assert!(
                    noticed || len + 8 >= needed,
                    "{version} {path}: cut to {len} of {needed} bytes went unnoticed"
                );
            }
        }
    }
    println!("{reported} of {tried} truncations reported; the others cut nothing but unused bytes");
}

#[test]
fn every_zeroed_sector_is_reported_or_held_nothing_protected() {
    let (mut tried, mut reported) = (0, 0);
    for version in FIXTURE_VERSIONS {
        let good = load(version);
        let regions = db_regions(&good[DB]);
        for (path, bytes) in &good {
            for start in (0..bytes.len()).step_by(512) {
                let end = (start + 512).min(bytes.len());
                let changes = |at: &usize| bytes[*at] != 0 && (path != DB || regions[*at] == Region::Protected);
                let loses = (start..end).any(|at| changes(&at));
                if bytes[start..end].iter().all(|byte| *byte == 0) {
                    continue;
                }
                let mut files = good.clone();
                files.get_mut(path).unwrap()[start..end].fill(0);
                let noticed = findings(&files) > 0;
                tried += 1;
                reported += u64::from(noticed);
                assert!(noticed || !loses, "{version} {path}: zeroed sector at {start} went unnoticed");
            }
        }
    }
    println!("{reported} of {tried} zeroed sectors reported; the others held only values, free pages or slack");
}
