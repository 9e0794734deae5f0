//! The revision of a snapshot while it passes: against the reader that may jump, for any database, layout and pieces.

use proptest::prelude::*;
use proptest::sample::Index;
use quorate_etcd_formats::bolt::build::{Item, small_db};
use quorate_etcd_formats::bolt::meta::encode;
use quorate_etcd_formats::bolt::page::{BRANCH, BUCKET, HEADER_BYTES, Header, LEAF};
use quorate_etcd_formats::bolt::{Db, MetaPages};
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::mvcc::{Revision, RevisionKey};
use quorate_etcd_formats::passing::{Passed, Passing, PassingError};
use sha2::{Digest, Sha256};

const REAL: &[&[u8]] = &[
    include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.4.23.db"),
    include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.5.16.db"),
    include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.5.30.db"),
    include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.6.14.db"),
];

/// Feeds bytes in pieces of these sizes, over and over.
fn pass(bytes: &[u8], pieces: &[usize]) -> Result<Passed, PassingError> {
    let (mut passing, mut rest) = (Passing::new(), bytes);
    for size in pieces.iter().cycle() {
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        passing.push(piece);
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    assert_eq!(passing.bytes(), bytes.len() as u64);
    passing.finish()
}

fn sealed(mut db: Vec<u8>) -> Vec<u8> {
    let hash = Sha256::digest(&db);
    db.extend_from_slice(&hash);
    db
}

fn revision_by_reader(db: &[u8]) -> u64 {
    let db = Db::open(db).expect("a database");
    Facts::read(&db, &db.buckets().expect("buckets")).expect("sound").revision_now()
}

fn key(main: u64, sub: u64, tombstone: bool) -> Vec<u8> {
    RevisionKey { revision: Revision { main, sub }, tombstone }.encode()
}

/// A database of etcd: writes with values of these sizes, from a revision on, and what was compacted.
fn database(page_size: u32, first: u64, sizes: &[usize], compacted: Option<u64>, extra: usize) -> Vec<u8> {
    let writes = sizes.iter().enumerate().map(|(n, size)| {
        let n = n as u64;
        (key(first + n / 3, n % 3, n % 5 == 4), vec![n as u8; *size])
    });
    let mut meta = vec![(b"consistent_index".to_vec(), vec![1; 8])];
    if let Some(main) = compacted {
        meta.push((b"finishedCompactRev".to_vec(), key(main / 2 + 1, 0, false)));
        meta.push((b"scheduledCompactRev".to_vec(), key(main, 0, false)));
    }
    // Users and members may make the tree of buckets, and the buckets in it, large.
    let users = (0..extra).map(|n| (format!("user{n:04}").into_bytes(), vec![9; 40])).collect();
    let members = vec![(b"8e9e05c52164694d".to_vec(), b"{}".to_vec())];
    let buckets: [(&[u8], Vec<Item>); 5] = [
        (b"authUsers", users),
        (b"key", writes.collect()),
        (b"lease", Vec::new()),
        (b"members", members),
        (b"meta", meta),
    ];
    small_db(&buckets, page_size)
}

/// The same database with its pages elsewhere, as bolt leaves them after much writing: in any order, with pages between
/// them that are free and hold what they held once, which is newer than all that counts.
fn scattered(db: &[u8], order: &[Index], free: &[(Index, u32)]) -> Vec<u8> {
    let metas = MetaPages::read(db).expect("readable");
    let mut meta = metas.chosen().expect("a good meta page");
    let size = meta.page_size as usize;
    // Groups of pages: those of the tree with the id they had, and free ones.
    let (mut groups, mut id) = (Vec::new(), 2);
    while id < meta.hwm as usize {
        let header = Header::decode(&db[id * size..]).expect("a page");
        let next = id + 1 + header.overflow as usize;
        groups.push((Some(id as u64), db[id * size..next * size].to_vec()));
        id = next;
    }
    for (at, index) in order.iter().enumerate() {
        let (a, b) = (at % groups.len(), index.index(groups.len()));
        groups.swap(a, b);
    }
    for (index, overflow) in free {
        groups.insert(index.index(groups.len() + 1), (None, stale(size, *overflow)));
    }
    let (mut moved, mut next) = (std::collections::BTreeMap::new(), 2);
    for (old, bytes) in &groups {
        moved.extend(old.map(|old| (old, next)));
        next += (bytes.len() / size) as u64;
    }
    let mut out = vec![0; 2 * size];
    for (old, mut bytes) in groups {
        let id = out.len() as u64 / size as u64;
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        if old.is_some() {
            repoint(&mut bytes, |old| moved[&old]);
        }
        out.extend_from_slice(&bytes);
    }
    meta.root = moved[&meta.root];
    meta.hwm = next;
    for id in [0, 1] {
        let bytes = encode(&meta, id);
        out[id as usize * size..][..bytes.len()].copy_from_slice(&bytes);
    }
    out
}

/// A page that was a leaf with a revision above all others, and went on for some pages that are others' now.
fn stale(size: usize, overflow: u32) -> Vec<u8> {
    let mut page = vec![0; size];
    let key = key(u64::MAX / 2, 0, false);
    page[..16].copy_from_slice(&Header { id: 0, flags: LEAF, count: 1, overflow }.encode());
    let entry = [0u32, 16, key.len() as u32, 0].map(u32::to_le_bytes).concat();
    page[16..32].copy_from_slice(&entry);
    page[32..32 + key.len()].copy_from_slice(&key);
    page
}

/// Changes every page id that a page of a tree names.
fn repoint(page: &mut [u8], to: impl Fn(u64) -> u64) {
    let header = Header::decode(page).expect("a page");
    let number = |page: &[u8], at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("4 bytes"));
    for n in 1..=usize::from(header.count) {
        let entry = n * HEADER_BYTES;
        let at = match header.flags {
            BRANCH => entry + 8,
            LEAF if number(page, entry) == BUCKET => {
                entry + number(page, entry + 4) as usize + number(page, entry + 8) as usize
            }
            _ => continue,
        };
        let old = u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
        // A bucket that is kept inside its parent names no page.
        if old != 0 {
            page[at..at + 8].copy_from_slice(&to(old).to_le_bytes());
        }
    }
}

fn pieces() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![1usize..40, 1000usize..1050, 4080usize..4130, 1usize..70_000];
    prop::collection::vec(size, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn any_database_in_any_layout_and_pieces_tells_its_revision(
        page_bits in 10u32..14,
        first in 2u64..1_000_000,
        sizes in prop::collection::vec(prop_oneof![9 => 0usize..300, 1 => 0usize..20_000], 0..400),
        compacted in prop::option::of(1u64..2_000_000),
        extra in prop_oneof![Just(0usize), 0usize..200],
        order in prop::collection::vec(any::<Index>(), 0..60),
        free in prop::collection::vec((any::<Index>(), prop_oneof![Just(0u32), 0u32..40]), 0..6),
        pieces in pieces(),
    ) {
        let plain = database(1 << page_bits, first, &sizes, compacted, extra);
        let written = if sizes.is_empty() { 1 } else { first + (sizes.len() as u64 - 1) / 3 };
        let wanted = written.max(compacted.unwrap_or(0));
        prop_assert_eq!(revision_by_reader(&plain), wanted);
        let db = scattered(&plain, &order, &free);
        prop_assert_eq!(revision_by_reader(&db), wanted);
        let bytes = sealed(db);
        let whole = pass(&bytes, &[bytes.len()]).expect("a snapshot");
        prop_assert_eq!((whole.revision, whole.bytes, whole.page_size), (wanted, bytes.len() as u64, 1 << page_bits));
        prop_assert_eq!(pass(&bytes, &pieces), Ok(whole));
    }

    #[test]
    fn no_bytes_make_it_panic_and_no_cut_passes(
        which in 0..REAL.len(),
        flips in prop::collection::vec((0usize..20_480, any::<u8>()), 1..5),
        cut in 0usize..20_512,
        pieces in pieces(),
    ) {
        let good = pass(REAL[which], &pieces).expect("a real snapshot");
        prop_assert_eq!(good.revision, revision_by_reader(&REAL[which][..20_480]));
        prop_assert!(pass(&REAL[which][..cut], &pieces).is_err());
        let mut bytes = REAL[which][..20_480].to_vec();
        for (at, to) in flips {
            bytes[at] = to;
        }
        // With the hash of the broken bytes it gets past the hash; then what is said must not depend on the pieces.
        let bytes = sealed(bytes);
        let whole = pass(&bytes, &[bytes.len()]);
        prop_assert_eq!(pass(&bytes, &pieces), whole);
    }

    #[test]
    fn no_foreign_bytes_are_taken_for_a_snapshot(bytes in prop::collection::vec(any::<u8>(), 0..9000), pieces in pieces()) {
        prop_assert!(pass(&bytes, &pieces).is_err());
    }
}
