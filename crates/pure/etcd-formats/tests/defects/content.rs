//! Defects of what the buckets hold: Q0320 to Q0328, and snapshot files: Q0360 and Q0361.

use std::sync::atomic::AtomicU64;

use prost::Message;
use quorate_etcd_formats::messages::{AlarmMember, Lease};
use quorate_etcd_formats::verify::{self, Mode};
use quorate_faults::Code::{
    self, AlarmRaised, AuthInconsistent, BucketMissing, IdsDisagree, IndexBehind, KeyValueInvalid, LeaseInvalid,
    LeaseMissing, MemberInvalid, MembershipDisagrees, MetaValue, RevisionInvalid, SnapshotHash, SnapshotNoHash,
};
use quorate_faults::Severity::{self, Error, Info, Warning};
use sha2::{Digest, Sha256};

use crate::draft::{Draft, Kv, LEASE, both, finds, full_only, revision, settings};

/// A good member with a change.
fn spoiled(spoil: impl FnOnce(&mut Draft)) -> crate::draft::Files {
    let mut draft = Draft::good();
    spoil(&mut draft);
    draft.files()
}

#[test]
fn q0320_a_missing_bucket_that_etcd_makes_again_is_a_note() {
    for bucket in ["alarm", "auth", "authRoles", "authUsers", "cluster", "members_removed"] {
        let files = spoiled(|draft| drop(draft.buckets.remove(bucket.as_bytes())));
        both(&files, &[(BucketMissing, Info)]);
    }
}

#[test]
fn q0320_without_meta_or_members_there_is_no_start() {
    let files = spoiled(|draft| drop(draft.buckets.remove(b"meta".as_slice())));
    both(&files, &[(BucketMissing, Error), (IndexBehind, Error)]);
    let files = spoiled(|draft| drop(draft.buckets.remove(b"members".as_slice())));
    finds(&files, Mode::Sanity, &[(BucketMissing, Error), (IdsDisagree, Warning)]);
}

#[test]
fn q0320_a_bucket_of_no_known_etcd_is_a_note() {
    let files = spoiled(|draft| drop(draft.buckets.insert(b"mine".to_vec(), Default::default())));
    both(&files, &[(BucketMissing, Info)]);
}

#[test]
fn q0321_a_consistent_index_of_4_bytes() {
    let files = spoiled(|draft| draft.set("meta", b"consistent_index", &[0, 0, 0, 3]));
    both(&files, &[(MetaValue, Error)]);
}

#[test]
fn q0321_values_of_meta_and_cluster_that_are_not_in_their_form() {
    for (bucket, key, value) in [
        ("meta", "term", b"\x01".as_slice()),
        ("meta", "scheduledCompactRev", b"5"),
        ("meta", "storageVersion", b"newest"),
        ("cluster", "clusterVersion", b"3.5"),
    ] {
        both(&spoiled(|draft| draft.set(bucket, key.as_bytes(), value)), &[(MetaValue, Error)]);
    }
    let files = spoiled(|draft| draft.set("meta", b"mine", b"x"));
    both(&files, &[(MetaValue, Info)]);
}

#[test]
fn q0321_a_compaction_finished_before_it_was_scheduled() {
    let files = spoiled(|draft| {
        draft.set("meta", b"scheduledCompactRev", &revision(3, 0, false));
        draft.set("meta", b"finishedCompactRev", &revision(4, 0, false));
    });
    both(&files, &[(MetaValue, Error)]);
}

#[test]
fn q0322_a_key_of_16_bytes_is_no_revision() {
    let files = spoiled(|draft| draft.set("key", &[0; 16], b""));
    full_only(&files, &[(RevisionInvalid, Error)]);
}

#[test]
fn q0322_a_revision_that_both_puts_and_deletes() {
    let files = spoiled(|draft| draft.delete(4, 0, "a"));
    full_only(&files, &[(RevisionInvalid, Error)]);
}

#[test]
fn q0322_a_missing_write_is_a_warning() {
    let files = spoiled(|draft| drop(draft.bucket("key").remove(&revision(4, 0, false))));
    full_only(&files, &[(RevisionInvalid, Warning)]);
    let files = spoiled(|draft| drop(draft.bucket("key").remove(&revision(6, 0, false))));
    full_only(&files, &[(RevisionInvalid, Warning)]);
}

#[test]
fn q0323_a_value_that_is_not_what_its_revision_says() {
    let good = Kv::first("e", 7);
    for (what, kv) in [
        ("another revision", Kv { mod_revision: 6, ..good.clone() }),
        ("no key", Kv { key: Vec::new(), ..good.clone() }),
        ("created later", Kv { create_revision: 8, ..good.clone() }),
        ("no version", Kv { version: 0, ..good.clone() }),
        ("version 2 at its creation", Kv { version: 2, ..good.clone() }),
        ("more versions than revisions", Kv { create_revision: 6, version: 9, ..good.clone() }),
    ] {
        let files = spoiled(|draft| draft.put(7, 0, &kv));
        println!("{what}");
        full_only(&files, &[(KeyValueInvalid, Error)]);
    }
    let files = spoiled(|draft| draft.set("key", &revision(7, 0, false), b"\xff\xff"));
    full_only(&files, &[(KeyValueInvalid, Error)]);
}

#[test]
fn q0323_a_deletion_with_a_value() {
    let files = spoiled(|draft| draft.set("key", &revision(7, 0, true), &Kv::first("b", 7).encode_to_vec()));
    full_only(&files, &[(KeyValueInvalid, Error)]);
}

#[test]
fn q0324_a_live_key_without_its_lease() {
    let files = spoiled(|draft| draft.put(7, 0, &Kv::first("e", 7).with_lease(0xbad)));
    full_only(&files, &[(LeaseMissing, Warning)]);
    let files = spoiled(|draft| draft.bucket("lease").clear());
    full_only(&files, &[(LeaseMissing, Warning)]);
}

#[test]
fn q0325_a_lease_that_is_not_its_keys() {
    let lease = |id, ttl| Lease { id, ttl, remaining_ttl: 0 }.encode_to_vec();
    for value in [lease(8, 60), lease(7, 0), lease(7, -1), b"\xff".to_vec()] {
        let files = spoiled(|draft| draft.set("lease", &7i64.to_be_bytes(), &value));
        both(&files, &[(LeaseInvalid, Error)]);
    }
    let files = spoiled(|draft| draft.set("lease", b"short", &lease(LEASE, 60)));
    both(&files, &[(LeaseInvalid, Error)]);
}

#[test]
fn q0326_a_member_record_that_is_none() {
    for (key, value) in [("77", "{}"), ("77", r#"{"id":78}"#), ("077", r#"{"id":119}"#), ("77", "")] {
        let files = spoiled(|draft| draft.set("members", key.as_bytes(), value.as_bytes()));
        both(&files, &[(MemberInvalid, Error)]);
    }
    let files = spoiled(|draft| draft.set("members_removed", b"nobody", b"removed"));
    both(&files, &[(MemberInvalid, Error)]);
}

#[test]
fn q0327_an_alarm_is_a_warning() {
    for kind in [1, 2] {
        let alarm = AlarmMember { member_id: Some(9), alarm: Some(kind) }.encode_to_vec();
        both(&spoiled(|draft| draft.set("alarm", &alarm, b"")), &[(AlarmRaised, Warning)]);
    }
}

#[test]
fn q0328_auth_without_root_is_a_warning() {
    let files = spoiled(|draft| draft.set("auth", b"authEnabled", &[1]));
    both(&files, &[(AuthInconsistent, Warning)]);
}

fn snapshot_of(db: &[u8], hash: &[u8], mode: Mode) -> Vec<(Code, Severity)> {
    let file = [db, hash].concat();
    let report = verify::snapshot("backup.db", &file, &settings(mode, &AtomicU64::new(0)));
    report.findings.iter().map(|finding| (finding.code, finding.severity)).collect()
}

#[test]
fn q0360_a_snapshot_with_another_hash_is_an_error_and_with_its_own_is_fine() {
    let db = Draft::with_trees().db();
    let hash = Sha256::digest(&db);
    for mode in [Mode::Sanity, Mode::Full] {
        assert_eq!(snapshot_of(&db, &hash, mode), []);
    }
    // A quick look does not read the whole file.
    assert_eq!(snapshot_of(&db, &[7; 32], Mode::Sanity), []);
    assert_eq!(snapshot_of(&db, &[7; 32], Mode::Full), [(SnapshotHash, Error)]);
}

#[test]
fn q0360_rot_in_a_value_shows_in_the_hash_alone() {
    let mut db = Draft::with_trees().db();
    let hash = Sha256::digest(&db);
    let at = crate::surgery::find(&db, b"xxxxxxxx");
    db[at] ^= 1;
    assert_eq!(snapshot_of(&db, &hash, Mode::Full), [(SnapshotHash, Error)]);
}

#[test]
fn q0361_a_snapshot_without_a_hash_is_a_warning() {
    let db = Draft::good().db();
    for mode in [Mode::Sanity, Mode::Full] {
        assert_eq!(snapshot_of(&db, &[], mode), [(SnapshotNoHash, Warning)]);
    }
}

#[test]
fn a_snapshot_whose_member_is_also_removed_is_told_without_a_log() {
    let mut draft = Draft::good();
    let id = draft.founding.member("n2").unwrap().id.to_string();
    draft.set("members_removed", id.as_bytes(), b"removed");
    let db = draft.db();
    let hash = Sha256::digest(&db);
    assert_eq!(snapshot_of(&db, &hash, Mode::Full), [(MembershipDisagrees, Warning)]);
}
