//! Defects of the WAL and the raft snapshots: Q0330 to Q0335 and Q0340 to Q0342.

use quorate_etcd_formats::messages::{Entry, HardState};
use quorate_etcd_formats::verify::Mode;
use quorate_faults::Code::{
    DataMissingPart, SnapInvalid, SnapName, SnapStore, WalCorrupt, WalEntries, WalHardState, WalHeader, WalNames,
    WalTornTail,
};
use quorate_faults::Severity::{Error, Info, Warning};

use crate::draft::{Draft, Rec, both, entry, finds, full_only, state};

/// A good member with entries 4 to 9, of which one is another.
fn with_entry(at: u64, change: impl FnOnce(&mut Entry)) -> Draft {
    let mut draft = Draft::good();
    draft.run_on_to(9);
    let found = draft.log().iter_mut().find_map(|record| match record {
        Rec::Entry(entry) if entry.index() == at => Some(entry),
        _ => None,
    });
    change(found.unwrap());
    draft
}

#[test]
fn q0330_a_gap_between_segments_also_right_after_the_first() {
    for missing in [1, 2] {
        let mut draft = Draft::in_three_segments();
        for (name, _) in &mut draft.segments[missing..] {
            name.sequence += 1;
        }
        both(&draft.files(), &[(WalNames, Error)]);
    }
}

#[test]
fn q0330_a_lost_segment_breaks_the_chain_of_checksums_too() {
    let draft = Draft::in_three_segments();
    let mut files = draft.files();
    files.remove(&draft.wal_path(1));
    finds(&files, Mode::Sanity, &[(WalNames, Error)]);
    finds(&files, Mode::Full, &[(WalNames, Error), (WalCorrupt, Error)]);
}

#[test]
fn q0330_two_segments_with_one_number() {
    let mut draft = Draft::in_three_segments();
    draft.segments[2].0.sequence = 1;
    both(&draft.files(), &[(WalNames, Error)]);
}

#[test]
fn q0330_a_segment_that_claims_to_begin_before_the_one_before_it_is_a_warning() {
    let mut draft = Draft::in_three_segments();
    draft.segments[2].0.index = 2;
    both(&draft.files(), &[(WalNames, Warning)]);
}

#[test]
fn q0330_a_name_that_etcd_passes_over_is_a_warning() {
    let mut files = Draft::good().files();
    files.put("member/wal/1.wal", b"copy".to_vec());
    both(&files, &[(WalNames, Warning)]);
}

#[test]
fn q0330_a_wal_of_nothing_but_misnamed_segments_is_no_wal() {
    let draft = Draft::good();
    let mut files = draft.files();
    let bytes = files.bytes(&draft.wal_path(0)).to_vec();
    files.remove(&draft.wal_path(0));
    files.put("member/wal/0.wal", bytes);
    both(&files, &[(DataMissingPart, Error), (WalNames, Warning)]);
}

#[test]
fn q0331_metadata_that_differs_between_segments() {
    for segment in [1, 2] {
        let mut draft = Draft::in_three_segments();
        let Some(Rec::Metadata(metadata)) = draft.segments[segment].1.first_mut() else { panic!("metadata") };
        metadata.cluster_id = Some(7);
        both(&draft.files(), &[(WalHeader, Error)]);
    }
}

#[test]
fn q0331_a_segment_without_metadata() {
    let mut draft = Draft::in_three_segments();
    draft.segments[2].1.remove(0);
    // A quick look reads the newest segment and the heads of all.
    let found = draft.files().verify(Mode::Sanity);
    assert!(found.iter().all(|found| *found == (WalHeader, Error)) && !found.is_empty(), "{found:?}");
    finds(&draft.files(), Mode::Full, &[(WalHeader, Error)]);
}

#[test]
fn q0332_a_flipped_bit_is_not_repairable_in_the_middle_nor_at_the_end() {
    let mut draft = Draft::good();
    draft.run_on_to(9);
    let (path, length) = (draft.wal_path(0), draft.files().bytes(&draft.wal_path(0)).len());
    for from_end in [length / 2, 9] {
        let mut files = draft.files();
        files.change(&path, |wal| wal[length - from_end] ^= 4);
        both(&files, &[(WalCorrupt, Error)]);
    }
}

#[test]
fn q0332_a_torn_write_before_the_last_segment_is_damage() {
    let draft = Draft::in_three_segments();
    let mut files = draft.files();
    files.change(&draft.wal_path(1), |wal| wal.truncate(wal.len() - 4));
    full_only(&files, &[(WalCorrupt, Error)]);
}

#[test]
fn q0332_bytes_behind_the_end_are_a_warning_and_dirty_padding_a_note() {
    let draft = Draft::good();
    let mut files = draft.files();
    files.change(&draft.wal_path(0), |wal| wal.extend([[0; 8], [7; 8]].concat()));
    both(&files, &[(WalCorrupt, Warning)]);
    let mut files = draft.files();
    // The first record has 4 bytes and as many of padding.
    files.change(&draft.wal_path(0), |wal| wal[15] = 1);
    both(&files, &[(WalCorrupt, Info)]);
}

#[test]
fn q0333_a_cut_inside_the_last_record_is_a_torn_write() {
    let mut draft = Draft::good();
    draft.run_on_to(9);
    draft.log().push(entry(10));
    for cut in [1, 8, 15] {
        let mut files = draft.files();
        files.change(&draft.wal_path(0), |wal| wal.truncate(wal.len() - cut));
        both(&files, &[(WalTornTail, Warning)]);
    }
}

#[test]
fn q0333_a_zeroed_sector_in_the_last_record_is_a_torn_write() {
    let mut draft = Draft::good();
    draft.run_on_to(9);
    let large = Entry { data: Some(vec![0xee; 3000]), r#type: Some(0), term: Some(1), index: Some(10) };
    draft.log().push(Rec::Entry(large));
    let mut files = draft.files();
    files.change(&draft.wal_path(0), |wal| {
        let sector = (wal.len() - 1200) / 512 * 512;
        wal[sector..sector + 512].fill(0);
    });
    both(&files, &[(WalTornTail, Warning)]);
}

#[test]
fn q0334_an_entry_type_that_etcd_stops_on() {
    for kind in [2, 7] {
        both(&with_entry(7, |entry| entry.r#type = Some(kind)).files(), &[(WalEntries, Error)]);
    }
}

#[test]
fn q0334_a_gap_between_entries() {
    let mut draft = with_entry(7, |_| ());
    draft.log().retain(|record| !matches!(record, Rec::Entry(entry) if entry.index() == 7));
    full_only(&draft.files(), &[(WalEntries, Error)]);
}

#[test]
fn q0334_a_term_that_goes_back() {
    let mut draft = with_entry(7, |entry| entry.term = Some(3));
    draft.log().push(Rec::State(HardState { term: Some(3), ..state(9) }));
    both(&draft.files(), &[(WalEntries, Error)]);
}

#[test]
fn q0334_a_committed_entry_that_etcd_cannot_apply() {
    both(&with_entry(7, |entry| entry.data = Some(vec![0xff; 9])).files(), &[(WalEntries, Error)]);
    // It is applied already: nobody reads it again.
    let mut applied = with_entry(7, |entry| entry.data = Some(vec![0xff; 9]));
    applied.consistent_index(9);
    both(&applied.files(), &[]);
}

#[test]
fn q0335_a_hard_state_beyond_the_log() {
    let mut draft = Draft::good();
    draft.run_on_to(9);
    draft.log().push(Rec::State(state(12)));
    both(&draft.files(), &[(WalHardState, Error)]);
}

#[test]
fn q0335_a_hard_state_beyond_a_log_without_entries() {
    let mut draft = Draft::good();
    draft.log().retain(|record| !matches!(record, Rec::Entry(_)));
    both(&draft.files(), &[]);
    draft.log().push(Rec::State(state(12)));
    both(&draft.files(), &[(WalHardState, Error)]);
}

#[test]
fn q0335_a_hard_state_that_goes_back() {
    let mut draft = Draft::good();
    draft.run_on_to(9);
    draft.log().push(Rec::State(state(8)));
    both(&draft.files(), &[(WalHardState, Error)]);
}

#[test]
fn q0335_a_hard_state_of_an_older_term_than_the_last_entry_is_a_warning() {
    let mut draft = with_entry(9, |entry| entry.term = Some(2));
    both(&draft.files(), &[(WalHardState, Warning)]);
    draft.log().push(Rec::State(HardState { term: Some(2), ..state(9) }));
    both(&draft.files(), &[]);
}

#[test]
fn q0340_a_newest_raft_snapshot_that_is_damaged() {
    let draft = Draft::blank(quorate_etcd_formats::founding::Form::Any);
    let spoils: [fn(&mut Vec<u8>); 3] = [|snap| snap[40] ^= 1, Vec::clear, |snap| snap.truncate(60)];
    for spoil in spoils {
        let mut files = draft.files();
        files.change(&draft.snap_path(), spoil);
        both(&files, &[(SnapInvalid, Error)]);
    }
}

#[test]
fn q0340_an_older_raft_snapshot_that_is_damaged_is_a_warning() {
    let mut files = Draft::good().files();
    files.put("member/snap/0000000000000001-0000000000000002.snap", b"rot".to_vec());
    full_only(&files, &[(SnapInvalid, Warning)]);
}

#[test]
fn q0341_a_raft_snapshot_under_another_name() {
    let draft = Draft::blank(quorate_etcd_formats::founding::Form::Any);
    let mut files = draft.files();
    let bytes = files.bytes(&draft.snap_path()).to_vec();
    files.remove(&draft.snap_path());
    files.put("member/snap/0000000000000001-0000000000000009.snap", bytes);
    both(&files, &[(SnapName, Error)]);
}

#[test]
fn q0341_a_name_that_is_no_raft_snapshots_is_a_warning() {
    let mut files = Draft::good().files();
    files.put("member/snap/mine.snap", b"x".to_vec());
    both(&files, &[(SnapName, Warning)]);
}

#[test]
fn q0342_keys_of_the_v2_api_are_a_warning() {
    let mut draft = Draft::good();
    let store = String::from_utf8(draft.snap.data().to_vec()).unwrap();
    let empty = r#""Path":"/1","CreatedIndex":0,"ModifiedIndex":0,"Children":{"#;
    assert!(store.contains(empty), "{store}");
    let key = r#""k":{"Path":"/1/k","CreatedIndex":4,"ModifiedIndex":4,"Value":"v"}"#;
    draft.snap.data = Some(store.replace(empty, &format!("{empty}{key}")).into_bytes());
    both(&draft.files(), &[(SnapStore, Warning)]);
}

#[test]
fn q0342_a_member_list_that_cannot_be_read() {
    let mut draft = Draft::good();
    draft.snap.data = Some(b"{\"Root\":".to_vec());
    both(&draft.files(), &[(SnapStore, Error)]);
}
