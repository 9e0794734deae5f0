//! What reading a snapshot as it passes costs in memory, for honest bytes and for bytes that claim as much as they can.
//!
//! **Rule:** this file has one test, so that its process holds nothing else.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use quorate_etcd_formats::bolt::meta::{Meta, NO_FREELIST, encode};
use quorate_etcd_formats::bolt::page::{Header, LEAF};
use quorate_etcd_formats::passing::{Passing, PassingError};

const PAGE: usize = 1024;
const PAGES: u64 = 100_000;

/// Bytes that this process holds now.
fn held() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// A leaf whose only entry says that its key lies at a distance.
fn leaf(id: u64, overflow: u32, count: u16, distance: u32) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    page[..16].copy_from_slice(&Header { id, flags: LEAF, count, overflow }.encode());
    let entry = [0, distance, 17, 0].map(u32::to_le_bytes).concat();
    for at in (16..PAGE).step_by(16) {
        page[at..at + 16].copy_from_slice(&entry);
    }
    if distance == 16 {
        page[32..40].copy_from_slice(&id.to_be_bytes());
        page[40] = b'_';
    }
    page
}

/// The most that is held per page while pages of this kind pass, and who holds it: what is given back could be used again
/// unseen by those that are measured later.
fn cost(page: impl Fn(u64) -> [u8; PAGE]) -> (u64, Passing) {
    let before = held();
    let (mut passing, mut most) = (Passing::new(), before);
    for id in 0..PAGES {
        let mut bytes = [0; PAGE];
        match id {
            0 | 1 => {
                let meta = Meta { page_size: PAGE as u32, root: 2, freelist: NO_FREELIST, hwm: PAGES, txid: id };
                let head = encode(&meta, id);
                bytes[..head.len()].copy_from_slice(&head);
            }
            id => bytes = page(id),
        }
        passing.push(&bytes);
        if id % 1000 == 0 {
            most = most.max(held());
        }
    }
    passing.push(&[0; 32]);
    most = most.max(held());
    ((most - before) / PAGES, passing)
}

#[test]
fn a_snapshot_costs_little_memory_whatever_it_claims() {
    let to_the_end = |overflow: u32| move |id: u64| overflow.min((PAGES - id - 1) as u32);
    let (far, near) = (to_the_end(65_535), to_the_end(15));
    let (honest, first) = cost(|id| leaf(id, 0, 1, 16));
    let (buckets, second) = cost(|id| leaf(id, near(id), 3, 900));
    let (endless, third) = cost(|id| leaf(id, far(id), u16::MAX, 63 << 20));
    assert!((5..30).contains(&honest), "{honest} bytes for each page of revisions");
    assert!(buckets < 200, "{buckets} bytes for each page that claims to hold buckets");
    assert!((30..200).contains(&endless), "{endless} bytes for each page that claims to go on for 64 MiB");
    for passing in [first, second, third] {
        assert_eq!(passing.finish(), Err(PassingError::Hash));
    }
}
