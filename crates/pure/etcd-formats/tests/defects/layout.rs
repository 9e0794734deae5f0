//! Defects of what is there and who may see it: Q0301 to Q0305, and files that cannot be read.

use quorate_etcd_formats::dir::{DB, InUse};
use quorate_etcd_formats::verify::Mode;
use quorate_faults::Code::{DataInUse, DataLeftOver, DataMissingPart, DataModeOpen, DataOwnerMixed, Io};
use quorate_faults::Severity::{Error, Info, Warning};

use crate::draft::{Draft, Files, WAL_DIR, both};

#[test]
fn q0301_a_data_dir_in_use_is_not_looked_into() {
    for in_use in [InUse::Yes { pid: Some(7) }, InUse::Yes { pid: None }, InUse::Unknown("no".to_owned())] {
        let mut files = Draft::good().files();
        // Whatever a running etcd is in the middle of writing.
        files.change(DB, |db| db.fill(0xff));
        files.in_use = in_use;
        both(&files, &[(DataInUse, Error)]);
    }
}

#[test]
fn q0301_names_the_process() {
    let mut files = Draft::good().files();
    files.in_use = InUse::Yes { pid: Some(4711) };
    assert!(files.report(Mode::Sanity).findings[0].what.contains("process 4711"));
}

#[test]
fn q0302_a_missing_database() {
    let mut files = Draft::good().files();
    files.remove(DB);
    both(&files, &[(DataMissingPart, Error)]);
}

#[test]
fn q0302_a_wal_without_segments() {
    let draft = Draft::good();
    let mut files = draft.files();
    files.remove(&draft.wal_path(0));
    both(&files, &[(DataMissingPart, Error)]);
    files.dirs.retain(|(path, _)| path != WAL_DIR);
    both(&files, &[(DataMissingPart, Error)]);
}

#[test]
fn q0302_nothing_but_directories() {
    both(&Files::default(), &[(DataMissingPart, Error), (DataMissingPart, Error)]);
}

#[test]
fn q0303_an_open_directory_or_a_file_that_others_may_write_is_a_warning() {
    let mut files = Draft::good().files();
    files.dirs[1].1 = 0o755;
    both(&files, &[(DataModeOpen, Warning)]);
    let mut files = Draft::good().files();
    files.file(DB).mode = 0o660;
    both(&files, &[(DataModeOpen, Warning)]);
}

#[test]
fn q0303_a_raft_snapshot_that_others_may_read_is_how_etcd_writes_it() {
    let draft = Draft::good();
    let mut files = draft.files();
    files.file(&draft.snap_path()).mode = 0o644;
    both(&files, &[]);
}

#[test]
fn q0304_a_file_of_another_user_is_a_warning() {
    let mut files = Draft::good().files();
    files.file(DB).uid = 1000;
    both(&files, &[(DataOwnerMixed, Warning)]);
}

#[test]
fn q0305_left_overs_are_notes() {
    for path in [
        "member/snap/db.tmp.123",
        "member/snap/tmp7",
        "member/snap/0000000000000001-0000000000000002.snap.broken",
        "member/wal/0000000000000000-0000000000000000.wal.broken",
    ] {
        let mut files = Draft::good().files();
        files.put(path, vec![1; 100]);
        both(&files, &[(DataLeftOver, Info)]);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_told_as_that_and_not_as_missing() {
    let draft = Draft::in_three_segments();
    for path in [DB.to_owned(), draft.wal_path(0), draft.wal_path(1), draft.wal_path(2), draft.snap_path()] {
        let mut files = draft.files();
        files.file(&path).unreadable = true;
        println!("{path}");
        both(&files, &[(Io, Error)]);
    }
}

#[test]
fn a_directory_that_cannot_be_listed_is_told_as_that_and_not_as_missing() {
    let draft = Draft::good();
    let mut files = draft.files();
    files.dirs.retain(|(path, _)| path != WAL_DIR);
    files.remove(&draft.wal_path(0));
    files.put(WAL_DIR, Vec::new());
    files.file(WAL_DIR).unreadable = true;
    both(&files, &[(Io, Error)]);
}
