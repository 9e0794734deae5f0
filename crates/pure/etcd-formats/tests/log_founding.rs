//! Founding files are what etcd's own restore tool writes.

mod log_support;

use log_support::{fixture, scan_first};
use quorate_etcd_formats::bolt::tree::Db;
use quorate_etcd_formats::founding::{Form, Founding, FoundingError};
use quorate_etcd_formats::membership::{Member, member_id};
use quorate_etcd_formats::snap::{SnapFile, SnapName};
use quorate_etcd_formats::v2store::V2Store;
use quorate_etcd_formats::wal::Tail;

const FORMS: [Form; 5] = [Form::Any, Form::V3_4, Form::V3_5, Form::V3_6, Form::V3_7];

fn three() -> Founding {
    let members = (0..3).map(|n| (format!("m{n}"), vec![format!("http://127.0.0.1:{}", 21380 + n)])).collect();
    Founding::new(members, "tok2").expect("a valid list")
}

#[test]
fn the_wal_is_the_restore_tools_byte_for_byte() {
    let founding = three();
    let local = founding.member("m1").unwrap().id;
    for (form, golden) in [
        (Form::V3_4, fixture!("restored-3.4.23.wal")),
        (Form::V3_5, fixture!("restored-3.5.16.wal")),
        (Form::V3_5, fixture!("restored-3.5.30.wal")),
        (Form::V3_6, fixture!("restored-3.6.14.wal")),
        (Form::Any, fixture!("restored-3.6.14.wal")),
        (Form::V3_7, fixture!("restored-3.7.1.wal")),
    ] {
        let (records, reserved) = golden.split_at(golden.len() - 512);
        assert_eq!(reserved, [0; 512]);
        let wal = founding.files(local, form).wal;
        assert_eq!(wal.name, "0000000000000000-0000000000000000.wal");
        assert!(wal.bytes == records, "{form:?}");
    }
}

#[test]
fn one_members_wal_is_the_known_one() {
    let founding = Founding::new(vec![("m0".to_owned(), vec!["http://127.0.0.1:2380".to_owned()])], "etcd-cluster");
    let founding = founding.unwrap();
    let wal = founding.files(founding.members[0].id, Form::Any).wal.bytes;
    let hex: String = wal.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "040000000000008408041000000000001f00000000000081080110efb5fcea071a1508ecd481eea0a6dd8fb7011096af879d9f8de8a21c000e00000000000082080510bbe89af00a1a040800100000006e00000000000082080210caddde061a65080110011801225d0800100018ecd481eea0a6dd8fb701224c7b226964223a31333139353339343239313035383337313138302c227065657255524c73223a5b22687474703a2f2f3132372e302e302e313a32333830225d2c226e616d65223a226d30227d0000190000000000008708031080e6acff091a0f080110ecd481eea0a6dd8fb7011801000000000000001d00000000000083080510b1e5cb9b081a13080110011a0d08ecd481eea0a6dd8fb7012800000000"
    );
}

#[test]
fn the_raft_snapshot_means_what_the_restore_tools_means() {
    let founding = three();
    for (form, golden) in [
        (Form::V3_4, fixture!("restored-3.4.23.snap")),
        (Form::Any, fixture!("restored-3.5.16.snap")),
        (Form::V3_5, fixture!("restored-3.5.30.snap")),
        (Form::V3_6, fixture!("restored-3.6.14.snap")),
        (Form::V3_7, fixture!("restored-3.7.1.snap")),
    ] {
        let theirs = SnapFile::read(golden).unwrap();
        let file = founding.files(founding.members[0].id, form).snap;
        assert_eq!(SnapName::parse(&file.name), Some(theirs.point));
        let ours = SnapFile::read(&file.bytes).unwrap();
        assert_eq!((ours.point, &ours.conf_state), (theirs.point, &theirs.conf_state), "{form:?}");
        let (ours, theirs) = (V2Store::read(ours.store_json()).unwrap(), V2Store::read(theirs.store_json()).unwrap());
        assert_eq!(ours, theirs);
    }
}

#[test]
fn only_the_wals_own_id_differs_between_members() {
    let founding = three();
    for form in FORMS {
        let files: Vec<_> = founding.members.iter().map(|member| founding.files(member.id, form)).collect();
        let summaries: Vec<_> = files.iter().map(|files| scan_first(&files.wal.bytes, Some(0))).collect();
        let first = &files[0];
        for ((files, summary), member) in files.iter().zip(&summaries).zip(&founding.members) {
            assert_eq!((&files.snap, &files.db), (&first.snap, &first.db));
            assert_eq!(summary.problems, []);
            assert!(matches!(summary.tail, Tail::Clean { .. }));
            assert_eq!(summary.member_id(), Some(member.id));
            assert_eq!(summary.cluster_id(), Some(founding.cluster_id));
            assert_eq!(summary.hard_state, summaries[0].hard_state);
            assert_eq!(summary.snapshots, summaries[0].snapshots);
            assert_eq!(summary.conf_changes, summaries[0].conf_changes);
            assert_eq!((summary.first_entry, summary.last_entry), (Some(1), Some((3, 1))));
        }
    }
}

#[test]
fn the_database_has_all_buckets_and_the_members() {
    let founding = three();
    for form in FORMS {
        let file = founding.files(founding.members[0].id, form).db;
        assert_eq!(file.name, "db");
        let db = Db::open(&file.bytes).unwrap();
        let buckets = db.buckets().unwrap();
        let names: Vec<_> = buckets.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect();
        let all = "alarm auth authRoles authUsers cluster key lease members members_removed meta";
        assert_eq!(names.join(" "), all);

        let mut members = Vec::new();
        let mut meta = Vec::new();
        for (name, bucket) in &buckets {
            db.for_each(bucket, |key, value| match name.as_slice() {
                b"members" => {
                    members.push((String::from_utf8_lossy(key).into_owned(), Member::from_json(value).unwrap()))
                }
                b"meta" => meta.push((String::from_utf8_lossy(key).into_owned(), value.to_vec())),
                other => panic!("{other:?} is not empty"),
            })
            .unwrap();
        }
        assert!(members.is_sorted_by_key(|(key, _)| key.clone()));
        assert!(members.iter().all(|(key, member)| *key == member.id.to_string()));
        let mut found: Vec<_> = members.into_iter().map(|(_, member)| member).collect();
        found.sort_by_key(|member| member.id);
        assert_eq!(found, founding.members);
        assert_eq!(meta, expected_meta(form));
    }
}

fn expected_meta(form: Form) -> Vec<(String, Vec<u8>)> {
    let conf_state = br#"{"voters":[4357444920725069473,5933004850344994746,14664307013850871418],"auto_leave":false}"#;
    let version = match form {
        Form::V3_6 => Some("3.6.0"),
        Form::V3_7 => Some("3.7.0"),
        Form::Any | Form::V3_4 | Form::V3_5 => None,
    };
    let since_3_5 = form != Form::V3_4;
    [
        since_3_5.then(|| ("confState", conf_state.to_vec())),
        Some(("consistent_index", vec![0, 0, 0, 0, 0, 0, 0, 3])),
        version.map(|version| ("storageVersion", version.as_bytes().to_vec())),
        since_3_5.then(|| ("term", vec![0, 0, 0, 0, 0, 0, 0, 1])),
    ]
    .into_iter()
    .flatten()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

#[test]
fn ids_without_padding_are_sorted_as_text() {
    let id = |urls: &Vec<String>| member_id(urls, "t");
    let with = |fits: &dyn Fn(&Vec<String>) -> bool| {
        (0..100_000).map(|port| vec![format!("http://a:{port}")]).find(fits).expect("ids are spread evenly")
    };
    // A smaller number, but as text without its leading zero it comes later.
    let small = with(&|urls| id(urls).0 >> 60 == 0 && id(urls).to_string().starts_with('f'));
    let large = with(&|urls| id(urls).0 >> 60 == 1);
    let founding = Founding::new(vec![("small".to_owned(), small), ("large".to_owned(), large)], "t").unwrap();
    assert_eq!(founding.members[0].name, "small");
    let buckets = founding.buckets(Form::Any);
    let (_, members) = buckets.iter().find(|(name, _)| *name == b"members").unwrap();
    assert!(members.is_sorted());
    assert_eq!(members[1].0, founding.members[0].id.to_string().into_bytes());
}

#[test]
fn impossible_lists_are_refused() {
    assert_eq!(Founding::new(Vec::new(), "t"), Err(FoundingError::NoMembers));
    let same = vec!["http://a:1".to_owned()];
    let error = Founding::new(vec![("x".to_owned(), same.clone()), ("y".to_owned(), same)], "t").unwrap_err();
    assert!(matches!(&error, FoundingError::SameId { first, second, .. } if first == "x" && second == "y"), "{error}");
}
