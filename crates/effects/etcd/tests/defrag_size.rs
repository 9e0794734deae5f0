//! A defragmented database is at most as large as what `etcdutl defrag` makes of the same one, whatever its values are.
//!
//! `QUORATE_SWEEP=full` tries more sizes and mixes.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on says where")]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicU64;

use quorate_etcd::defrag::defrag;
use quorate_etcd_formats::bolt::build::{Item, small_db};
use quorate_etcd_formats::bolt::meta::MetaPages;
use quorate_etcd_formats::dir::DB;
use quorate_etcd_formats::mvcc::{Revision, RevisionKey};
use quorate_host::durable::RealDisk;
use quorate_testkit::{etcd, run};

/// Values of these lengths as a `key` bucket holds them, behind the key and the numbers that etcd stores with a value.
fn items(lengths: impl Iterator<Item = usize>) -> Vec<Item> {
    let mut items = Vec::new();
    for (main, length) in (2..).zip(lengths) {
        let key = RevisionKey { revision: Revision { main, sub: 0 }, tombstone: false }.encode();
        // {1 key, 2 create revision, 3 mod revision, 4 version, 5 value}
        let mut value = vec![0x0a, 1, b'k', 0x10, 2, 0x18];
        varint(&mut value, main);
        value.extend([0x20, 1, 0x2a]);
        varint(&mut value, length as u64);
        value.resize(value.len() + length, 7);
        items.push((key, value));
    }
    items
}

fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Bytes up to the high-water mark: what a snapshot of it has. Behind it, bbolt reserves room.
fn used(path: &Path) -> u64 {
    let bytes = quorate_etcd::datadir::FileSource::open(path).unwrap();
    let meta = MetaPages::read(&bytes).unwrap().chosen().unwrap();
    meta.hwm * u64::from(meta.page_size)
}

/// Sizes after `quorate data defrag` and after `etcdutl defrag`.
fn sizes(what: &str, items: Vec<Item>) -> (u64, u64) {
    let root = tempfile::tempdir().unwrap();
    let bytes = small_db(&[(b"key", items), (b"lease", Vec::new()), (b"meta", Vec::new())], 4096);
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        let dir = root.path().join(name);
        std::fs::create_dir_all(dir.join("member/snap")).unwrap();
        File::create(dir.join(DB)).unwrap().write_all(&bytes).unwrap();
        dir
    });
    let tools = etcd("sid");
    run(Command::new(&tools.etcdutl).args(["defrag", "--data-dir"]).arg(&theirs));
    let done = defrag(&RealDisk, &ours.join(DB), 1, &AtomicU64::new(0)).unwrap();
    assert_eq!(done.bytes_after, used(&ours.join(DB)), "{what}");
    // Its own check of every page comes first.
    let [our_file, their_file] = [&ours, &theirs].map(|dir| dir.join(DB).metadata().unwrap().len());
    assert!(our_file <= their_file, "{what}: a file of {our_file} bytes, etcdutl {their_file}");
    let status = tools.utl_json(&["snapshot", "status", ours.join(DB).to_str().unwrap()]);
    assert_eq!(status["hash"], u64::from(done.hash), "{what}");
    (done.bytes_after, used(&theirs.join(DB)))
}

#[track_caller]
fn compare(what: &str, items: Vec<Item>) {
    let (ours, theirs) = sizes(what, items);
    println!("{what}: {ours} bytes, etcdutl {theirs}: {:.4}", ours as f64 / theirs as f64);
    assert!(ours <= theirs, "{what}: {ours} bytes, etcdutl {theirs}");
}

fn is_full() -> bool {
    std::env::var("QUORATE_SWEEP").is_ok_and(|sweep| sweep == "full")
}

/// Pseudo-random lengths up to `most`, mostly short ones.
fn mixed(seed: u64, count: usize, most: u64) -> impl Iterator<Item = usize> {
    let mut state = seed;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let most = most >> ((state >> 20) % 12);
        ((state >> 33) % most.max(1)) as usize
    })
}

#[test]
fn values_of_every_length_take_no_more_than_etcdutl_needs() {
    let some = [1, 1000, 2000, 4050, 4500, 9000, 20_000, 100_000, 1_400_000].as_slice();
    let all = [
        1, 10, 100, 500, 1000, 1300, 1800, 2000, 2100, 3000, 3600, 4000, 4040, 4050, 4500, 5000, 6000, 8000, 8150,
        9000, 12_000, 20_000, 65_000, 100_000, 500_000, 1_400_000,
    ];
    for &length in if is_full() { all.as_slice() } else { some } {
        let count = (4_000_000 / (length + 60)).clamp(11, 25_000);
        compare(&format!("{count} values of {length} bytes"), items(std::iter::repeat_n(length, count)));
    }
}

#[test]
fn few_values_take_no_more_than_etcdutl_needs() {
    let lengths = if is_full() { [500, 1500, 3700, 4500, 9000].as_slice() } else { &[1500, 4500] };
    for &length in lengths {
        for count in if is_full() { 0..12 } else { 3..6 } {
            compare(&format!("{count} values of {length} bytes"), items(std::iter::repeat_n(length, count)));
        }
    }
}

#[test]
fn mixed_values_take_no_more_than_etcdutl_needs() {
    for seed in 0..if is_full() { 40 } else { 3 } {
        compare(&format!("mix {seed}"), items(mixed(seed, 1500, 40_000)));
    }
}
