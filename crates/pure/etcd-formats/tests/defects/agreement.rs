//! Parts that are fine each by itself and do not belong together: Q0350 to Q0355.

use quorate_etcd_formats::founding::Form;
use quorate_etcd_formats::membership::{Member, MemberId};
use quorate_etcd_formats::messages::HardState;
use quorate_etcd_formats::v2store;
use quorate_etcd_formats::verify::Mode;
use quorate_faults::Code::{IdsDisagree, IndexAhead, IndexBehind, MembershipDisagrees, NoSnapshotPoint, TermDisagrees};
use quorate_faults::Severity::{Error, Info, Warning};

use crate::draft::{Draft, Rec, both, finds, full_only, state};

/// What wrote the data decides how bad a wrong member list is: 3.6 is the first to believe the database's.
const WRITERS: [(Form, quorate_faults::Severity); 4] =
    [(Form::Any, Warning), (Form::V3_5, Warning), (Form::V3_6, Error), (Form::V3_7, Error)];

fn stranger() -> Member {
    Member {
        id: MemberId(0x77),
        peer_urls: vec!["http://127.0.0.1:9".to_owned()],
        is_learner: false,
        name: "zombie".to_owned(),
        client_urls: Vec::new(),
    }
}

#[test]
fn q0350_a_database_behind_its_raft_snapshot() {
    let mut draft = Draft::good();
    draft.consistent_index(2);
    both(&draft.files(), &[(IndexBehind, Error)]);
}

#[test]
fn q0350_a_database_that_does_not_say_what_it_has_applied() {
    let mut draft = Draft::good();
    draft.bucket("meta").remove(b"consistent_index".as_slice());
    both(&draft.files(), &[(IndexBehind, Error)]);
}

#[test]
fn q0350_a_database_received_from_the_leader_and_not_yet_put_in_place_is_a_note() {
    let mut draft = Draft::good();
    draft.consistent_index(2);
    let mut files = draft.files();
    files.put("member/snap/0000000000000003.snap.db", Draft::good().db());
    both(&files, &[(IndexBehind, Info)]);
}

#[test]
fn q0351_a_database_ahead_of_the_log() {
    let mut draft = Draft::good();
    draft.consistent_index(4);
    both(&draft.files(), &[(IndexAhead, Error)]);
    // A log without entries ends at its snapshot.
    draft.log().retain(|record| !matches!(record, Rec::Entry(_)));
    both(&draft.files(), &[(IndexAhead, Error)]);
}

#[test]
fn q0351_a_database_ahead_of_the_commit_is_usual_after_a_crash() {
    let mut draft = Draft::good();
    draft.run_on_to(9);
    draft.log().push(crate::draft::entry(10));
    draft.consistent_index(10);
    both(&draft.files(), &[(IndexAhead, Info)]);
}

#[test]
fn q0352_a_wal_of_a_member_that_nobody_knows() {
    for (form, _) in WRITERS {
        let mut draft = Draft::populated(form);
        let Some(Rec::Metadata(metadata)) = draft.log().first_mut() else { panic!("metadata") };
        metadata.node_id = Some(0x77);
        both(&draft.files(), &[(IdsDisagree, Error)]);
    }
}

#[test]
fn q0352_a_wal_of_a_member_that_only_the_database_has_forgotten() {
    for (form, severity) in WRITERS {
        let mut draft = Draft::populated(form);
        let local = draft.founding.member("n1").unwrap().id.to_string();
        draft.bucket("members").remove(local.as_bytes());
        for removed in [false, true] {
            if removed {
                draft.set("members_removed", local.as_bytes(), b"removed");
            }
            finds(&draft.files(), Mode::Sanity, &[(IdsDisagree, severity)]);
            finds(&draft.files(), Mode::Full, &[(IdsDisagree, severity), (MembershipDisagrees, severity)]);
        }
        let told = draft.files().report(Mode::Sanity).findings[0].what.clone();
        assert!(told.contains("removed"), "{told}");
    }
}

#[test]
fn q0352_a_raft_snapshot_of_other_members() {
    let mut draft = Draft::good();
    let metadata = draft.snap.metadata.as_mut().unwrap();
    metadata.conf_state.as_mut().unwrap().voters = vec![0x77];
    draft.snap.data = Some(v2store::encode(&[stranger()]));
    finds(&draft.files(), Mode::Sanity, &[(IdsDisagree, Error)]);
    let missing_and_extra = [(MembershipDisagrees, Warning); 2];
    finds(&draft.files(), Mode::Full, &[&[(IdsDisagree, Error)], missing_and_extra.as_slice()].concat());
}

#[test]
fn q0353_an_empty_member_list() {
    for (form, severity) in WRITERS {
        let mut draft = Draft::populated(form);
        draft.bucket("members").clear();
        finds(&draft.files(), Mode::Sanity, &[(IdsDisagree, severity)]);
        finds(&draft.files(), Mode::Full, &[(IdsDisagree, severity), (MembershipDisagrees, severity)]);
    }
}

#[test]
fn q0353_a_zombie() {
    for (form, severity) in WRITERS {
        let mut draft = Draft::populated(form);
        draft.set("members", b"77", &stranger().to_json());
        full_only(&draft.files(), &[(MembershipDisagrees, severity)]);
    }
}

#[test]
fn q0353_a_learner_that_votes() {
    for (form, severity) in WRITERS {
        let mut draft = Draft::populated(form);
        let member = draft.founding.member("n2").unwrap().clone();
        let learner = Member { is_learner: true, ..member };
        draft.set("members", learner.id.to_string().as_bytes(), &learner.to_json());
        full_only(&draft.files(), &[(MembershipDisagrees, severity)]);
    }
}

#[test]
fn q0353_a_member_that_is_also_removed() {
    for (form, severity) in WRITERS {
        let mut draft = Draft::populated(form);
        let id = draft.founding.member("n2").unwrap().id.to_string();
        draft.set("members_removed", id.as_bytes(), b"removed");
        both(&draft.files(), &[(MembershipDisagrees, severity)]);
    }
}

#[test]
fn q0353_other_peer_urls_are_a_warning() {
    let mut draft = Draft::good();
    let member = draft.founding.member("n2").unwrap().clone();
    let moved = Member { peer_urls: stranger().peer_urls, ..member };
    draft.set("members", moved.id.to_string().as_bytes(), &moved.to_json());
    full_only(&draft.files(), &[(MembershipDisagrees, Warning)]);
}

/// 3.4 and 3.5 reach their peers by the list inside the raft snapshot, and count votes by its conf state.
#[test]
fn q0353_a_raft_snapshot_at_odds_with_itself() {
    for (form, severity) in [(Form::Any, Error), (Form::V3_5, Error), (Form::V3_6, Warning)] {
        let mut draft = Draft::populated(form);
        draft.snap.data = Some(v2store::encode(&draft.founding.members[..2]));
        both(&draft.files(), &[(MembershipDisagrees, severity)]);
    }
}

#[test]
fn q0354_keys_without_a_raft_snapshot_would_never_reach_a_new_member() {
    let draft = Draft::good();
    let mut files = draft.files();
    files.remove(&draft.snap_path());
    full_only(&files, &[(NoSnapshotPoint, Error)]);
}

#[test]
fn q0354_nor_without_its_mark_in_the_log() {
    let mut draft = Draft::good();
    draft.log().retain(|record| !matches!(record, Rec::Snapshot(mark) if mark.index() > 0));
    full_only(&draft.files(), &[(NoSnapshotPoint, Error)]);
}

#[test]
fn q0354_a_log_that_begins_late_needs_its_raft_snapshot() {
    let mut draft = Draft::blank(Form::Any);
    draft.log().retain(|record| !matches!(record, Rec::Entry(_)));
    let mut files = draft.files();
    files.remove(&draft.snap_path());
    full_only(&files, &[(NoSnapshotPoint, Error)]);
}

#[test]
fn q0354_a_member_without_keys_needs_no_raft_snapshot() {
    let draft = Draft::blank(Form::Any);
    let mut files = draft.files();
    files.remove(&draft.snap_path());
    both(&files, &[]);
}

#[test]
fn q0355_a_term_that_the_log_does_not_know() {
    let mut draft = Draft::good();
    draft.set("meta", b"term", &7u64.to_be_bytes());
    both(&draft.files(), &[(TermDisagrees, Error)]);
}

/// Entries 4 and 5 of term 2; the database says term 1, and that it has applied `index`.
fn behind(index: u64) -> Draft {
    let mut draft = Draft::good();
    for at in [4, 5] {
        let Rec::Entry(mut later) = crate::draft::entry(at) else { panic!("an entry") };
        later.term = Some(2);
        draft.log().push(Rec::Entry(later));
    }
    draft.log().push(Rec::State(HardState { term: Some(2), ..state(5) }));
    draft.consistent_index(index);
    draft
}

#[test]
fn q0355_a_term_that_3_4_left_behind_is_a_note() {
    let mut draft = behind(5);
    draft.set("cluster", b"clusterVersion", b"3.5.0");
    both(&draft.files(), &[(TermDisagrees, Error)]);
    // A cluster of 3.4 begins without a version, then as 3.0.
    for version in ["3.4.0", "3.0.0"] {
        draft.set("cluster", b"clusterVersion", version.as_bytes());
        both(&draft.files(), &[(TermDisagrees, Info)]);
    }
    both(&behind(5).files(), &[(TermDisagrees, Info)]);
}

#[test]
fn q0355_a_commit_between_index_and_term_is_a_note() {
    let mut draft = behind(4);
    draft.set("cluster", b"clusterVersion", b"3.5.0");
    both(&draft.files(), &[(TermDisagrees, Info)]);
}
