//! The exit record in every state that a power cut could leave.

use quorate_crash_model::{RecordingDisk, Tree, crash_states};
use quorate_host::durable::RealDisk;
use quorate_host::exit_record::{ExitRecord, Reason, Recorded, consume, last_path, read, write};

fn record(pid: u32) -> ExitRecord {
    ExitRecord {
        reason: Reason::Stopped,
        code: None,
        signal: Some(15),
        clean: true,
        asked_by: Some("the agent".to_owned()),
        error: None,
        started_at_ms: 1,
        ended_at_ms: 2,
        pid,
        config_hash: "c".to_owned(),
        etcd_version: "3.5.16".to_owned(),
        last_revision: Some(7),
    }
}

#[test]
fn a_record_is_whole_or_absent_and_there_once_it_was_claimed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("state");
    std::fs::create_dir(&root).unwrap();
    let base = Tree::read(&root).unwrap();
    let disk = RecordingDisk::new(RealDisk);
    write(&disk, &root.join("exit-record"), &record(1)).unwrap();
    let states = crash_states(&base, &root, &disk.log(), 1);
    assert!(states.distinct.len() > 3);
    for (number, state) in states.distinct.iter().enumerate() {
        let at = dir.path().join(format!("s{number}"));
        std::fs::create_dir(&at).unwrap();
        state.tree.write(&at).unwrap();
        match read(&at.join("exit-record")) {
            Recorded::Record(found) => assert_eq!(found, record(1)),
            Recorded::Absent => assert!(!state.after_end),
            Recorded::Unreadable(why) => panic!("state {number}: {why}"),
        }
    }
}

#[test]
fn a_consumed_record_never_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("state");
    std::fs::create_dir(&root).unwrap();
    let path = root.join("exit-record");
    write(&RealDisk, &path, &record(1)).unwrap();
    assert_eq!(consume(&RealDisk, &path).unwrap(), Recorded::Record(record(1)));
    assert_eq!(consume(&RealDisk, &path).unwrap(), Recorded::Absent);
    write(&RealDisk, &path, &record(2)).unwrap();
    let base = Tree::read(&root).unwrap();
    let disk = RecordingDisk::new(RealDisk);
    consume(&disk, &path).unwrap();
    assert_eq!(read(&last_path(&path)), Recorded::Record(record(2)));
    for (number, state) in crash_states(&base, &root, &disk.log(), 1).distinct.iter().enumerate() {
        let at = dir.path().join(format!("s{number}"));
        std::fs::create_dir(&at).unwrap();
        state.tree.write(&at).unwrap();
        match read(&at.join("exit-record")) {
            Recorded::Record(found) => assert!(!state.after_end && found == record(2)),
            Recorded::Absent => {}
            Recorded::Unreadable(why) => panic!("state {number}: {why}"),
        }
    }
}
