//! The log that real servers wrote is read as they would read it.

mod log_support;

use log_support::{FIRST, Reserved, fixture, scan_first, unfold};
use quorate_etcd_formats::membership::{ClusterId, Member, MemberId};
use quorate_etcd_formats::messages::{Entry, HardState, Metadata, WalSnapshot};
use quorate_etcd_formats::snap::{SnapFile, SnapName};
use quorate_etcd_formats::v2store::V2Store;
use quorate_etcd_formats::wal::{ScanOptions, Tail, WalFile, WalSummary, WalWriter, head, scan, scan_newest};

struct Server {
    version: &'static str,
    wal: &'static [u8],
    snap: &'static [u8],
    status: &'static [u8],
}

fn servers() -> [Server; 4] {
    [
        Server {
            version: "3.4.0",
            wal: fixture!("datadir-3.4.23.wal"),
            snap: fixture!("datadir-3.4.23.snap"),
            status: fixture!("datadir-3.4.23.status.json"),
        },
        Server {
            version: "3.5.0",
            wal: fixture!("datadir-3.5.16.wal"),
            snap: fixture!("datadir-3.5.16.snap"),
            status: fixture!("datadir-3.5.16.status.json"),
        },
        Server {
            version: "3.5.0",
            wal: fixture!("datadir-3.5.30.wal"),
            snap: fixture!("datadir-3.5.30.snap"),
            status: fixture!("datadir-3.5.30.status.json"),
        },
        Server {
            version: "3.6.0",
            wal: fixture!("datadir-3.6.14.wal"),
            snap: fixture!("datadir-3.6.14.snap"),
            status: fixture!("datadir-3.6.14.status.json"),
        },
    ]
}

fn assert_flawless(summary: &WalSummary) {
    assert_eq!(summary.problems, [], "{summary:?}");
    assert!(matches!(summary.tail, Tail::Clean { .. }), "{:?}", summary.tail);
}

#[test]
fn data_dirs_say_what_their_servers_said() {
    for server in servers() {
        let status: serde_json::Value = serde_json::from_slice(server.status).unwrap();
        let status = &status[0]["Status"];
        let number = |value: &serde_json::Value| value.as_u64().unwrap();

        let summary = scan_first(server.wal, Some(0));
        assert_flawless(&summary);
        assert_eq!(summary.member_id(), Some(MemberId(number(&status["header"]["member_id"]))));
        assert_eq!(summary.cluster_id(), Some(ClusterId(number(&status["header"]["cluster_id"]))));
        let (last, term) = summary.last_entry.unwrap();
        assert_eq!((last, term), (number(&status["raftIndex"]), number(&status["raftTerm"])));
        assert_eq!(summary.first_entry, Some(1));
        assert_eq!(summary.last_index(), last);

        let state = summary.hard_state.unwrap();
        assert_eq!((state.term(), state.commit()), (term, last));
        assert_eq!(Some(MemberId(state.vote())), summary.member_id());
        assert_eq!((summary.term_at(1), summary.term_at(2), summary.term_at(last)), (Some(1), Some(2), Some(2)));
        assert_eq!(summary.term_at(last + 1), None);

        let [first, mark] = summary.snapshots.as_slice() else { panic!("{:?}", summary.snapshots) };
        assert_eq!((first.index, first.term), (0, 0));
        assert_eq!((mark.index, mark.term), (151, 2));
        // 3.4 does not say who votes.
        let voters = mark.conf_state.as_ref().map(|state| state.voters.clone());
        assert_eq!(voters, (server.version != "3.4.0").then(|| vec![summary.member_id().unwrap().0]));
        assert_eq!(summary.start(), Some(mark));
        assert!(summary.continues_from(151) && summary.continues_from(0));
    }
}

#[test]
fn raft_snapshots_of_data_dirs_agree_with_their_log() {
    for server in servers() {
        let summary = scan_first(server.wal, None);
        let snap = SnapFile::read(server.snap).unwrap();
        assert_eq!(snap.point, SnapName { term: 2, index: 151 });
        assert_eq!(snap.conf_state.voters, [summary.member_id().unwrap().0]);

        let store = V2Store::read(snap.store_json()).unwrap();
        assert_eq!((store.version.as_deref(), store.user_keys), (Some(server.version), 0));
        assert_eq!(store.removed, []);
        let [member] = store.members.as_slice() else { panic!("{store:?}") };
        let [joined] = summary.conf_changes.as_slice() else { panic!("{:?}", summary.conf_changes) };
        let founder = Member::from_json(joined.change.context()).unwrap();
        assert_eq!((joined.index, joined.change.r#type()), (1, 0));
        assert_eq!(member.id, MemberId(joined.change.node_id()));
        assert_eq!((member.id, &member.peer_urls, &member.name), (founder.id, &founder.peer_urls, &founder.name));
        assert_eq!(member.client_urls.len(), 1);
    }
}

#[test]
fn entries_that_3_7_cannot_read_are_found_behind_the_snapshot() {
    for (wal, holds) in [
        (fixture!("fresh-3.4.23.wal"), true),
        (fixture!("fresh-3.5.16.wal"), true),
        (fixture!("fresh-3.5.30.wal"), true),
        (fixture!("fresh-3.6.14.wal"), false),
        (fixture!("fresh-3.7.1.wal"), false),
        (fixture!("restored-3.5.30.wal"), false),
    ] {
        let summary = scan_first(wal, None);
        assert_eq!(!summary.v2_behind_start().is_empty(), holds, "{:?}", summary.v2);
    }
    // A snapshot mark behind them makes them history.
    for (mark, behind) in [(None, &[2, 3][..]), (Some(2), &[3]), (Some(4), &[])] {
        let mut log = WalWriter::new(0);
        log.metadata(&Metadata { node_id: Some(1), cluster_id: Some(2) });
        let publish = b"\x08\x05\x12\x03PUT\x1a\x0a/0/version\x22\x053.5.0\x28\x00\x32\x00".to_vec();
        let put = b"\x22\x06\x0a\x01a\x12\x011\xa2\x06\x0a\x08\x85\x88\xe5\xb3\x8b\xbc\xa8\xeb\x27".to_vec();
        for (index, data) in [(1, &put), (2, &publish), (3, &publish), (4, &put)] {
            let (term, index) = (Some(1), Some(index));
            log.entry(&Entry { r#type: Some(0), term, index, data: Some(data.clone()) });
        }
        log.state(&HardState { term: Some(1), vote: Some(1), commit: Some(4) });
        if let Some(index) = mark {
            log.snapshot(&WalSnapshot { index: Some(index), term: Some(1), conf_state: None });
        }
        assert_eq!(scan_first(&log.finish(), None).v2_behind_start(), behind, "{mark:?}");
    }
}

#[test]
fn fresh_logs_of_all_versions_are_flawless() {
    for (bytes, last) in [
        (fixture!("fresh-3.4.23.wal"), 16),
        (fixture!("fresh-3.5.16.wal"), 16),
        (fixture!("fresh-3.5.30.wal"), 16),
        (fixture!("fresh-3.6.14.wal"), 12),
        (fixture!("fresh-3.7.1.wal"), 12),
    ] {
        let summary = scan_first(bytes, Some(0));
        assert_flawless(&summary);
        assert_eq!(summary.member_id(), Some(MemberId(0x95dcb2c5cb1427d6)));
        assert_eq!(summary.cluster_id(), Some(ClusterId(9296732719946741756)));
        assert_eq!(summary.last_entry, Some((last, 2)));
        assert_eq!(summary.commit(), last);
        let Tail::Clean { end, .. } = summary.tail else { unreachable!() };
        assert_eq!(end, bytes.len() as u64 - 512);
    }
}

#[test]
fn restored_logs_of_all_versions_are_flawless() {
    for bytes in [
        fixture!("restored-3.4.23.wal"),
        fixture!("restored-3.5.16.wal"),
        fixture!("restored-3.5.30.wal"),
        fixture!("restored-3.6.14.wal"),
        fixture!("restored-3.7.1.wal"),
    ] {
        let summary = scan_first(bytes, Some(0));
        assert_flawless(&summary);
        assert_eq!(summary.member_id(), Some(MemberId(5933004850344994746)));
        assert_eq!(summary.cluster_id(), Some(ClusterId(2896442439880236257)));
        let state = summary.hard_state.unwrap();
        assert_eq!((state.term(), state.vote(), state.commit()), (1, 4357444920725069473, 3));
        assert_eq!(summary.start().map(|point| (point.index, point.term)), Some((3, 1)));
        assert_eq!(summary.conf_changes.len(), 3);
    }
}

const CRASH: [&str; 3] = [
    "0000000000000000-0000000000000000.wal",
    "0000000000000001-0000000000000046.wal",
    "0000000000000002-0000000000000086.wal",
];

fn crash_segments() -> [Vec<u8>; 3] {
    [
        unfold(fixture!("crash-0000000000000000-0000000000000000.runs")),
        unfold(fixture!("crash-0000000000000001-0000000000000046.runs")),
        unfold(fixture!("crash-0000000000000002-0000000000000086.runs")),
    ]
}

fn files<'a>(segments: &'a [Vec<u8>; 3]) -> Vec<WalFile<'a>> {
    CRASH.iter().zip(segments).map(|(name, source)| WalFile { name, source }).collect()
}

#[test]
fn a_killed_servers_segments_form_one_log() {
    let segments = crash_segments();
    let reserved = vec![0u8; 4096];
    let mut files = files(&segments);
    files.push(WalFile { name: "0.tmp", source: &reserved });
    files.rotate_left(2);

    let summary = scan(&files, &ScanOptions { applied: Some(100) }).unwrap();
    assert_flawless(&summary);
    assert_eq!(summary.member_id(), Some(MemberId(11417610130673999598)));
    assert_eq!(summary.cluster_id(), Some(ClusterId(14443903163313418560)));
    assert_eq!(summary.tail, Tail::Clean { file: CRASH[2].to_owned(), end: 22_002_384 });
    assert_eq!((summary.first_entry, summary.last_entry, summary.commit()), (Some(1), Some((155, 2)), 155));
    let marks: Vec<_> = summary.snapshots.iter().map(|point| point.index).collect();
    assert_eq!(marks, [0, 41, 82, 123]);
    let seen: Vec<_> = summary.segments.iter().map(|s| (s.records, s.first_entry, s.last_entry, s.end)).collect();
    assert_eq!(
        seen,
        [
            (141, Some(1), Some(69), 64_007_352),
            (133, Some(70), Some(133), 64_006_776),
            (47, Some(134), Some(155), 22_002_384),
        ]
    );
    let snap = SnapFile::read(fixture!("crash.snap")).unwrap();
    assert_eq!(summary.start().map(|point| (point.term, point.index)), Some((snap.point.term, snap.point.index)));
}

#[test]
fn the_newest_segment_alone_tells_ids_state_and_tail() {
    let segments = crash_segments();
    let summary = scan_newest(&files(&segments), &ScanOptions::default()).unwrap();
    assert_flawless(&summary);
    assert_eq!(summary.segments.len(), 1);
    assert_eq!(summary.member_id(), Some(MemberId(11417610130673999598)));
    assert_eq!((summary.last_entry, summary.commit()), (Some((155, 2)), 155));
    for segment in &segments {
        let head = head(segment).unwrap();
        assert!(head.crc.is_some());
        assert_eq!(head.metadata.map(|metadata| metadata.node_id()), Some(11417610130673999598));
    }
}

#[test]
fn reserved_space_is_not_read_through() {
    let wal = fixture!("datadir-3.5.30.wal");
    let file = Reserved::new(wal, 64_000_000);
    let summary = scan(&[WalFile { name: FIRST, source: &file }], &ScanOptions::default()).unwrap();
    assert_flawless(&summary);
    assert!(file.read_to.into_inner() < 1 << 20);
    let brief = Reserved::new(wal, 64_000_000);
    assert!(head(&brief).unwrap().metadata.is_some());
    assert_eq!(brief.read_to.into_inner(), 4096);
}
