//! What must not be reported.

use prost::Message;
use quorate_etcd_formats::dir::DB;
use quorate_etcd_formats::founding::Form;
use quorate_etcd_formats::messages::ConfChange;

use crate::draft::{Draft, FORMS, Kv, LEASE, Rec, both, entry, revision, state};
use crate::surgery::{Bolt, Sparse, freelist};

#[test]
fn a_founded_member_of_any_form_has_no_findings() {
    for form in FORMS {
        both(&Draft::blank(form).files(), &[]);
        both(&Draft::populated(form).files(), &[]);
    }
}

#[test]
fn the_wal_of_a_separate_directory_has_no_findings() {
    for form in FORMS {
        let draft = Draft::populated(form);
        let mut files = draft.files();
        let local = draft.founding.member("n1").unwrap().id;
        files.put(&draft.wal_path(0), draft.founding.separate_wal(local, form).bytes);
        both(&files, &[]);
    }
}

#[test]
fn a_log_that_runs_on_in_further_segments_has_no_findings() {
    both(&Draft::in_three_segments().files(), &[]);
    let mut draft = Draft::good();
    draft.run_on_to(40);
    draft.consistent_index(40);
    both(&draft.files(), &[]);
}

#[test]
fn pages_of_16_kib_are_fine() {
    let mut draft = Draft::with_trees();
    draft.page_bytes = 16 << 10;
    both(&draft.files(), &[]);
}

#[test]
fn trees_with_branches_and_values_that_overflow_a_page_are_fine() {
    let mut draft = Draft::with_trees();
    draft.put(7, 0, &Kv { value: vec![b'v'; 1_500_000], ..Kv::first("large", 7) });
    both(&draft.files(), &[]);
}

#[test]
fn a_freelist_of_free_pages_is_fine() {
    let mut files = Draft::good().files();
    files.change(DB, |db| {
        let mut bolt = Bolt::open(std::mem::take(db));
        let free = bolt.append(vec![0xaa; 4096 * 3]);
        bolt.meta.freelist = bolt.append(freelist(&[free, free + 1, free + 2], 4096));
        *db = bolt.finish();
    });
    both(&files, &[]);
}

#[test]
fn a_freelist_of_more_than_65535_pages_is_fine() {
    const FREE: u64 = 70_000;
    let mut draft = Draft::good();
    draft.page_bytes = 1024;
    let mut files = draft.files();
    let mut bolt = Bolt::open(files.bytes(DB).to_vec());
    let image = freelist(&vec![0; FREE as usize], 1024);
    let first = bolt.meta.hwm + image.len().div_ceil(1024) as u64;
    let ids: Vec<u64> = (first..first + FREE).collect();
    bolt.meta.freelist = bolt.append(freelist(&ids, 1024));
    bolt.meta.hwm += FREE;
    let length = bolt.meta.hwm * 1024;
    files.file(DB).source = Box::new(Sparse { bytes: bolt.finish(), length });
    both(&files, &[]);
}

#[test]
fn the_placeholder_of_a_restore_with_a_bumped_revision_is_fine() {
    let mut draft = Draft::good();
    draft.set("key", &revision(1_000_006, 0, false), b"");
    both(&draft.files(), &[]);
    draft.put(1_000_007, 0, &Kv::first("e", 1_000_007));
    both(&draft.files(), &[]);
    // With `--mark-compacted`.
    draft.set("meta", b"scheduledCompactRev", &revision(1_000_006, 0, false));
    both(&draft.files(), &[]);
}

#[test]
fn holes_that_compaction_left_are_fine() {
    let mut draft = Draft::good();
    for (main, sub) in [(2, 0), (6, 0)] {
        draft.bucket("key").remove(&revision(main, sub, false));
    }
    for key in [b"scheduledCompactRev".as_slice(), b"finishedCompactRev"] {
        draft.set("meta", key, &revision(6, 0, false));
    }
    both(&draft.files(), &[]);
}

#[test]
fn an_expired_lease_is_fine_once_its_key_is_gone_or_written_anew() {
    let mut draft = Draft::good();
    draft.put(7, 0, &Kv::first("gone", 7).with_lease(0xbad));
    draft.put(8, 0, &Kv::first("anew", 8).with_lease(0xbad));
    draft.delete(9, 0, "gone");
    draft.put(10, 0, &Kv { create_revision: 8, version: 2, ..Kv::first("anew", 10) }.with_lease(LEASE));
    both(&draft.files(), &[]);
}

#[test]
fn auth_with_root_is_fine() {
    let mut draft = Draft::good();
    draft.set("auth", b"authEnabled", &[1]);
    draft.set("auth", b"authRevision", &1u64.to_be_bytes());
    draft.set("authUsers", b"root", b"\x0a\x04root\x1a\x04root");
    draft.set("authRoles", b"root", b"\x0a\x04root");
    both(&draft.files(), &[]);
}

#[test]
fn a_member_that_joined_and_knows_nothing_yet_is_fine() {
    let mut draft = Draft::blank(Form::V3_5);
    draft.bucket("members").clear();
    draft.bucket("meta").clear();
    let mut files = draft.files();
    files.remove(&draft.snap_path());
    let local = draft.founding.member("n1").unwrap().id;
    draft.log().retain(|record| matches!(record, Rec::Metadata(_)));
    assert_eq!(draft.log().len(), 1, "{local}");
    files.put(&draft.wal_path(0), draft.files().bytes(&draft.wal_path(0)).to_vec());
    both(&files, &[]);
}

#[test]
fn a_space_made_ready_for_the_next_segment_is_fine() {
    let mut files = Draft::good().files();
    files.put("member/wal/0.tmp", vec![0; 4096]);
    both(&files, &[]);
}

#[test]
fn zeros_that_etcd_prepared_in_advance_are_fine() {
    let draft = Draft::in_three_segments();
    let mut files = draft.files();
    files.change(&draft.wal_path(2), |wal| wal.resize(wal.len() + 100_000, 0));
    files.change(DB, |db| db.resize(db.len() + 100_000, 0));
    both(&files, &[]);
}

#[test]
fn a_new_member_whose_url_was_taken_was_refused_by_etcd_and_is_in_no_list() {
    let mut draft = Draft::populated(Form::V3_6);
    let taken = r#"{"id":77,"peerURLs":["http://127.0.0.1:2381"],"name":"n4"}"#;
    let change =
        ConfChange { id: Some(9), r#type: Some(0), node_id: Some(77), context: Some(taken.as_bytes().to_vec()) };
    let Rec::Entry(mut fourth) = entry(4) else { panic!("an entry") };
    fourth.r#type = Some(1);
    fourth.data = Some(change.encode_to_vec());
    draft.log().extend([Rec::Entry(fourth), Rec::State(state(4))]);
    draft.consistent_index(4);
    both(&draft.files(), &[]);
}
