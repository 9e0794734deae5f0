//! The bolt reader, checker and writer against each other and against files written by real etcd.

use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use quorate_etcd_formats::bolt::check::{ItemCheck, Run, Structure, check};
use quorate_etcd_formats::bolt::{Bucket, Db, PageProblem, build};
use quorate_etcd_formats::verify::{self, Mode, Settings};

const GOLDEN: &[(&str, &[u8])] = &[
    ("3.4.23", include_bytes!("../../../test/testkit/fixtures/golden/fresh-3.4.23.bolt")),
    ("3.5.16", include_bytes!("../../../test/testkit/fixtures/golden/fresh-3.5.16.bolt")),
    ("3.5.30", include_bytes!("../../../test/testkit/fixtures/golden/fresh-3.5.30.bolt")),
    ("3.6.14", include_bytes!("../../../test/testkit/fixtures/golden/fresh-3.6.14.bolt")),
    ("3.7.1", include_bytes!("../../../test/testkit/fixtures/golden/fresh-3.7.1.bolt")),
    ("snapshot 3.4.23", include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.4.23.db")),
    ("snapshot 3.6.14", include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.6.14.db")),
];

struct Count(u64);

impl ItemCheck for Count {
    fn item(&mut self, _page: u64, _key: &[u8], _value: &[u8]) {
        self.0 += 1;
    }

    fn absorb(&mut self, later: Self) {
        self.0 += later.0;
    }
}

fn structure(bytes: &[u8], workers: usize) -> (Structure, u64) {
    let db = Db::open(bytes).expect("a database");
    let progress = AtomicU64::new(0);
    let (structure, counts) = check(&db, &Run { workers, progress: &progress, go_on: None }, |_| Count(0));
    (structure, counts.into_iter().map(|(_, count)| count.0).sum())
}

fn assert_sound(name: &str, bytes: &[u8]) -> u64 {
    let (one, items) = structure(bytes, 1);
    assert!(one.problems.is_empty(), "{name}: {:?}", one.problems);
    assert_eq!(one.freelist, None, "{name}");
    let (two, items_of_two) = structure(bytes, 2);
    assert!(two.problems.is_empty(), "{name}: {:?}", two.problems);
    assert_eq!((one.pages_reached, items), (two.pages_reached, items_of_two), "{name}: one thread and two differ");
    items
}

#[test]
fn files_written_by_etcd_are_sound() {
    for (name, bytes) in GOLDEN {
        assert!(assert_sound(name, bytes) > 0, "{name} has items");
        let buckets = Db::open(*bytes).unwrap().buckets().unwrap();
        let names: Vec<_> = buckets.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect();
        assert!(names.iter().any(|name| name == "members"), "{names:?}");
    }
}

fn numbered(count: u32, value_bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..count).map(|n| (n.to_be_bytes().repeat(4), vec![n as u8; value_bytes])).collect()
}

#[test]
fn every_size_round_trips_without_a_single_child() {
    // 4-KiB branches of 16-byte keys hold about 115 children, so these counts straddle one, two and three levels.
    for count in (0..40).chain(3500..3530).chain([20_000, 60_000]) {
        let items = numbered(count, 100);
        let bytes = build::small_db(&[(b"key", items.clone())], 4096);
        assert_eq!(assert_sound(&format!("{count} items"), &bytes), u64::from(count));
        let db = Db::open(bytes.as_slice()).unwrap();
        let (_, bucket) = db.buckets().unwrap().remove(0);
        let mut read = Vec::new();
        db.for_each(&bucket, |key, value| read.push((key.to_vec(), value.to_vec()))).unwrap();
        assert!(read == items, "{count} items differ");
        assert_eq!(db.last(&bucket).unwrap(), items.last().cloned());
        if let Some((key, value)) = items.get(count as usize / 2) {
            assert_eq!(db.get(&bucket, key).unwrap().as_ref(), Some(value));
        }
        assert_eq!(db.get(&bucket, b"nothing like it").unwrap(), None);
    }
}

#[test]
fn a_page_sits_alone_when_one_value_is_larger_than_a_page() {
    let items = vec![(b"a".to_vec(), vec![1; 10]), (b"b".to_vec(), vec![2; 1_500_000]), (b"c".to_vec(), vec![3; 4096])];
    for page_size in [4096, 16384, 65536] {
        let bytes = build::small_db(&[(b"key", items.clone())], page_size);
        assert_eq!(assert_sound("large values", &bytes), 3);
    }
}

#[test]
fn small_buckets_stay_inline_and_large_ones_do_not() {
    let bytes = build::small_db(&[(b"few", numbered(3, 10)), (b"many", numbered(500, 10)), (b"none", vec![])], 4096);
    let buckets = Db::open(bytes.as_slice()).unwrap().buckets().unwrap();
    let inline: Vec<_> = buckets.iter().map(|(_, bucket)| matches!(bucket, Bucket::Inline(_))).collect();
    assert_eq!(inline, [true, false, true]);
}

#[test]
fn a_page_that_points_to_itself_ends_the_walk() {
    let mut bytes = build::small_db(&[(b"key", numbered(5000, 100))], 4096);
    let db = Db::open(bytes.as_slice()).unwrap();
    let Bucket::Tree(root) = db.buckets().unwrap().remove(0).1 else { panic!("a tree") };
    // The second child of the bucket's root becomes the root itself.
    let at = root as usize * 4096 + 16 + 16 + 8;
    bytes[at..at + 8].copy_from_slice(&root.to_le_bytes());
    let (found, _) = structure(&bytes, 1);
    assert!(found.problems.contains(&(root, PageProblem::ReachedTwice)), "{:?}", found.problems);
}

#[test]
fn a_page_id_beyond_all_bounds_is_reported_like_any_other() {
    let mut bytes = build::small_db(&[(b"key", numbered(500, 100))], 4096);
    let Bucket::Tree(root) = Db::open(bytes.as_slice()).unwrap().buckets().unwrap().remove(0).1 else {
        panic!("a tree")
    };
    let at = bytes.windows(8).rposition(|window| window == root.to_le_bytes()).expect("the bucket's header");
    bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let settings = Settings { mode: Mode::Full, workers: 1, progress: &AtomicU64::new(0) };
    let report = verify::snapshot("db", &bytes, &settings);
    assert!(report.findings.iter().any(|finding| finding.place.page == Some(u64::MAX)), "{:?}", report.findings);
}

proptest! {
    #[test]
    fn no_bytes_make_the_checker_panic(seed in any::<u64>(), flips in 1usize..20) {
        let (_, golden) = GOLDEN[(seed % GOLDEN.len() as u64) as usize];
        let mut bytes = golden.to_vec();
        let mut state = seed | 1;
        for _ in 0..flips {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Past the metas, or nothing but the checksum would be exercised.
            let at = 8192 + (state >> 33) as usize % (bytes.len() - 8192);
            bytes[at] ^= 1 << (state >> 61);
        }
        if Db::open(bytes.as_slice()).is_ok() {
            structure(&bytes, 1);
        }
    }
}
