//! Defects of the bolt file: Q0310 to Q0317.

use quorate_etcd_formats::bolt::meta;
use quorate_etcd_formats::bolt::{LEAF_BYTES_MAX, Meta};
use quorate_etcd_formats::dir::DB;
use quorate_faults::Code::{
    BoltFreelist, BoltMeta, BoltOrder, BoltPage, BoltPageTwice, BoltSingleChild, BoltTooLarge, BoltTooShort,
};
use quorate_faults::Severity::{Error, Warning};

use crate::draft::{Draft, Files, both, full_only};
use crate::surgery::{Bolt, Sparse, branch, find, freelist};

/// A good member whose database went through an operation.
fn operated(draft: &Draft, operation: impl FnOnce(&mut Bolt)) -> Files {
    let mut files = draft.files();
    files.change(DB, |db| {
        let mut bolt = Bolt::open(std::mem::take(db));
        operation(&mut bolt);
        *db = bolt.finish();
    });
    files
}

#[test]
fn q0310_one_bad_meta_page_is_a_warning() {
    for page in [0, 4096] {
        let mut files = Draft::good().files();
        files.change(DB, |db| db[page + 40] ^= 1);
        both(&files, &[(BoltMeta, Warning)]);
    }
}

#[test]
fn q0310_two_bad_meta_pages_are_the_end() {
    let mut files = Draft::good().files();
    files.change(DB, |db| db[..8192].fill(0xff));
    both(&files, &[(BoltMeta, Error), (BoltMeta, Error)]);
}

#[test]
fn q0310_meta_pages_of_transactions_far_apart_are_a_warning() {
    let mut files = Draft::good().files();
    files.change(DB, |db| {
        let meta = Bolt::open(db.clone()).meta;
        let late = meta::encode(&Meta { txid: meta.txid + 7, ..meta }, 1);
        db[4096..4096 + late.len()].copy_from_slice(&late);
    });
    both(&files, &[(BoltMeta, Warning)]);
}

#[test]
fn q0311_a_file_that_ends_early_is_too_short() {
    let mut files = Draft::good().files();
    files.change(DB, |db| db.truncate(db.len() - 1));
    both(&files, &[(BoltTooShort, Error)]);
}

#[test]
fn q0312_a_page_that_claims_more_pages_than_it_needs() {
    let files = operated(&Draft::good(), |bolt| {
        let top = bolt.meta.root;
        bolt.append(vec![0; 4096]);
        bolt.page(top)[12] = 1;
    });
    both(&files, &[(BoltPage, Error)]);
}

#[test]
fn q0312_a_page_that_says_it_is_another_page() {
    let files = operated(&Draft::with_trees(), |bolt| {
        let root = bolt.root_of("authRoles");
        bolt.page(root)[0] ^= 1;
    });
    full_only(&files, &[(BoltPage, Error)]);
}

#[test]
fn q0312_an_element_that_reaches_out_of_its_page() {
    let files = operated(&Draft::with_trees(), |bolt| {
        let root = bolt.root_of("authRoles");
        // The last element's value size.
        let last = usize::from(u16::from_le_bytes([bolt.page(root)[10], bolt.page(root)[11]]));
        bolt.page(root)[16 * last + 14] = 1;
    });
    full_only(&files, &[(BoltPage, Error)]);
}

#[test]
fn q0313_a_page_that_two_buckets_share() {
    let files = operated(&Draft::with_trees(), |bolt| {
        let roles = bolt.root_of("authRoles");
        bolt.set_root_of("authUsers", roles);
    });
    full_only(&files, &[(BoltPageTwice, Error)]);
}

#[test]
fn q0314_keys_out_of_order_in_a_page() {
    let files = operated(&Draft::with_trees(), |bolt| {
        let root = bolt.root_of("authRoles");
        let at = find(bolt.page(root), b"role-0011");
        bolt.page(root)[at + 5] = b'9';
    });
    full_only(&files, &[(BoltOrder, Error)]);
}

#[test]
fn q0314_keys_below_what_the_branch_above_says() {
    let files = operated(&Draft::with_trees(), |bolt| {
        let root = bolt.root_of("authUsers");
        let page = bolt.page(root);
        assert!(page[8] == 1 && page[10] > 2, "a branch with several children");
        // The second child's key, raised above what the child begins with.
        let second = find(&page[find(page, b"user-") + 1..], b"user-") + find(page, b"user-") + 1;
        page[second + 8] += 1;
    });
    full_only(&files, &[(BoltOrder, Error)]);
}

#[test]
fn q0315_a_branch_with_a_single_child() {
    let files = operated(&Draft::with_trees(), |bolt| {
        let leaf = bolt.root_of("authRoles");
        let lonely = bolt.append(branch(&[(b"role-0000", leaf)]));
        bolt.set_root_of("authRoles", lonely);
    });
    full_only(&files, &[(BoltSingleChild, Error)]);
}

#[test]
fn q0316_a_freelist_with_a_page_that_is_in_use() {
    let files = operated(&Draft::with_trees(), |bolt| {
        let used = bolt.root_of("authRoles");
        bolt.meta.freelist = bolt.append(freelist(&[used], 4096));
    });
    full_only(&files, &[(BoltFreelist, Error)]);
}

#[test]
fn q0316_a_freelist_without_a_page_that_is_free() {
    let files = operated(&Draft::good(), |bolt| {
        let free = bolt.append(vec![0; 4096 * 2]);
        bolt.meta.freelist = bolt.append(freelist(&[free], 4096));
    });
    full_only(&files, &[(BoltFreelist, Error)]);
}

#[test]
fn q0316_a_freelist_out_of_order_or_twice() {
    for order in [[1, 0], [1, 1]] {
        let files = operated(&Draft::good(), |bolt| {
            let free = bolt.append(vec![0; 4096 * 2]);
            bolt.meta.freelist = bolt.append(freelist(&order.map(|at| free + at), 4096));
        });
        full_only(&files, &[(BoltFreelist, Error)]);
    }
}

#[test]
fn q0316_a_freelist_page_that_is_none() {
    let files = operated(&Draft::good(), |bolt| bolt.meta.freelist = bolt.append(vec![0; 4096]));
    full_only(&files, &[(BoltFreelist, Error)]);
}

#[test]
fn q0317_a_page_larger_than_is_examined() {
    let draft = Draft::with_trees();
    let mut files = draft.files();
    let mut bolt = Bolt::open(files.bytes(DB).to_vec());
    let roles = bolt.root_of("authRoles");
    let mut image = bolt.page(roles).to_vec();
    let overflow = (LEAF_BYTES_MAX / 4096) as u32;
    image[12..16].copy_from_slice(&overflow.to_le_bytes());
    let large = bolt.append(image);
    bolt.set_root_of("authRoles", large);
    bolt.meta.hwm += u64::from(overflow);
    let length = bolt.meta.hwm * 4096;
    files.file(DB).source = Box::new(Sparse { bytes: bolt.finish(), length });
    full_only(&files, &[(BoltTooLarge, Error)]);
}
