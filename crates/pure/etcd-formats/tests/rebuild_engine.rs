//! The engine against files of real etcd, and against a model of etcd's own history.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use quorate_etcd_formats::bolt::{Db, build};
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::delta::{LeaseGrant, OwnedEvent, VecEvents};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_etcd_formats::mvcc::{KeyValue, Revision, RevisionKey};
use quorate_etcd_formats::rebuild::{Options, RebuildError, Rebuilt, rebuild};
use quorate_etcd_formats::snapshot_file::Body;
use quorate_etcd_formats::verify::{self, Mode, Settings};

const SNAPSHOTS: &[(&str, &[u8])] = &[
    ("3.4.23", include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.4.23.db")),
    ("3.5.16", include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.5.16.db")),
    ("3.5.30", include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.5.30.db")),
    ("3.6.14", include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.6.14.db")),
    ("fresh 3.7.1", include_bytes!("../../../test/testkit/fixtures/golden/fresh-3.7.1.bolt")),
];

type Never = std::convert::Infallible;

fn run(
    base: Option<&[u8]>,
    events: Option<VecEvents>,
    options: &Options<'_>,
) -> Result<(Vec<u8>, Rebuilt), RebuildError<Never>> {
    let whole = base.map(<[u8]>::to_vec);
    let body = whole.as_ref().map(|bytes| Body::new(bytes));
    let db = body.as_ref().map(|body| Db::open(body).expect("a database"));
    let mut events = events;
    let events = events.as_mut().map(|events| events as &mut dyn quorate_etcd_formats::delta::Events);
    rebuild(db.as_ref(), events, options, Vec::new(), &AtomicU64::new(0))
}

fn hash(bytes: &[u8]) -> u32 {
    report(bytes).hash.expect("looked at in full")
}

fn report(bytes: &[u8]) -> verify::Report {
    let progress = AtomicU64::new(0);
    verify::snapshot("db", &bytes, &Settings { mode: Mode::Full, workers: 1, progress: &progress })
}

fn facts(bytes: &[u8]) -> Facts {
    let db = Db::open(bytes).expect("a database");
    Facts::read(&db, &db.buckets().expect("buckets")).expect("sound")
}

fn items(bytes: &[u8], bucket: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let db = Db::open(bytes).expect("a database");
    let buckets = db.buckets().expect("buckets");
    let mut items = Vec::new();
    if let Some((_, bucket)) = buckets.iter().find(|(name, _)| name == bucket.as_bytes()) {
        db.for_each(bucket, |key, value| items.push((key.to_vec(), value.to_vec()))).expect("sound");
    }
    items
}

fn founding() -> Founding {
    let members = (1..=3).map(|n| (format!("n{n}"), vec![format!("http://127.0.0.1:{n}")])).collect();
    Founding::new(members, "new").expect("a good list")
}

fn assert_sound(name: &str, bytes: &[u8]) {
    let report = report(bytes);
    let errors: Vec<_> =
        report.findings.iter().filter(|finding| finding.severity == quorate_faults::Severity::Error).collect();
    assert!(errors.is_empty(), "{name}: {errors:?}");
}

#[test]
fn a_copy_has_the_same_content_in_fewer_pages() {
    for (name, bytes) in SNAPSHOTS {
        let (copy, rebuilt) = run(Some(bytes), None, &Options::copy()).expect(name);
        assert_eq!(hash(bytes), hash(&copy), "{name}");
        assert_eq!(rebuilt.hash, hash(&copy), "{name}: the hash of what was written");
        assert!(copy.len() <= bytes.len(), "{name}: {} > {}", copy.len(), bytes.len());
        assert_eq!(rebuilt.revision, facts(&copy).revision_now(), "{name}");
        let (again, _) = run(Some(&copy), None, &Options::copy()).expect(name);
        assert!(again == copy, "{name}: a copy of a copy is the same, byte for byte");
    }
}

#[test]
fn a_new_cluster_keeps_what_is_the_users_and_replaces_what_is_the_clusters() {
    let founding = founding();
    for (name, bytes) in SNAPSHOTS {
        let before = bytes[..bytes.len() / 4096 * 4096].to_vec();
        for form in [Form::Any, Form::V3_4, Form::V3_5, Form::V3_6, Form::V3_7] {
            let options = Options { membership: Some((&founding, form)), ..Options::copy() };
            let (after, _) = run(Some(bytes), None, &options).expect(name);
            for bucket in ["key", "lease", "auth", "authRoles", "authUsers", "alarm"] {
                assert_eq!(items(&before, bucket), items(&after, bucket), "{name}: {bucket}");
            }
            let (was, is) = (facts(&before), facts(&after));
            assert_eq!(is.members.len(), 3, "{name}");
            assert!(is.removed.is_empty() && is.cluster_version.is_none(), "{name}");
            assert_eq!(is.storage_version, founded(&founding, form).storage_version, "{name}");
            assert_eq!((is.consistent_index, is.term), (Some(3), (form != Form::V3_4).then_some(1)), "{name}");
            assert_eq!(is.finished_compact, was.finished_compact, "{name}");
            assert_sound(name, &after);
        }
    }
}

fn founded(founding: &Founding, form: Form) -> Facts {
    facts(&founding.files(founding.members[0].id, form).db.bytes)
}

#[test]
fn without_a_base_it_founds() {
    let founding = founding();
    for form in [Form::Any, Form::V3_4, Form::V3_5, Form::V3_6, Form::V3_7] {
        let options = Options { membership: Some((&founding, form)), ..Options::copy() };
        let (bytes, rebuilt) = run(None, None, &options).expect("nothing can go wrong");
        assert_eq!(bytes, build::small_db(&founding.buckets(form), 4096));
        assert_eq!((rebuilt.revision, rebuilt.revisions), (1, 0));
    }
}

/// What etcd does with a list of transactions: puts with a lease, and deletions.
fn history(transactions: &[Vec<(u8, Option<i64>)>]) -> Vec<OwnedEvent> {
    let mut live: BTreeMap<u8, (i64, i64)> = BTreeMap::new();
    let mut events = Vec::new();
    let mut main = 1;
    for writes in transactions {
        main += 1;
        let mut seen = Vec::new();
        for (key, put) in writes {
            if seen.contains(key) || (put.is_none() && !live.contains_key(key)) {
                continue;
            }
            let at = Revision { main, sub: seen.len() as u64 };
            seen.push(*key);
            let (create, version) = match (put, live.get(key)) {
                (Some(_), Some((create, version))) => (*create, version + 1),
                (Some(_), None) => (main as i64, 1),
                (None, _) => (0, 0),
            };
            if put.is_some() {
                live.insert(*key, (create, version))
            } else {
                live.remove(key)
            };
            events.push(OwnedEvent {
                at,
                tombstone: put.is_none(),
                key: vec![b'k', *key],
                value: if put.is_some() { vec![*key; usize::from(*key) * 37] } else { Vec::new() },
                create_revision: create,
                version,
                lease: put.unwrap_or(0),
                time_ms: None,
            });
        }
        if seen.is_empty() {
            main -= 1;
        }
    }
    events
}

/// When, whether a deletion, key, value, creation, version, lease.
type Write = (Revision, bool, Vec<u8>, Vec<u8>, i64, i64, i64);

fn expected(events: &[OwnedEvent]) -> Vec<Write> {
    let row =
        |e: &OwnedEvent| (e.at, e.tombstone, e.key.clone(), e.value.clone(), e.create_revision, e.version, e.lease);
    events.iter().map(row).collect()
}

fn found(bytes: &[u8]) -> Vec<Write> {
    let row = |(key, value): (Vec<u8>, Vec<u8>)| {
        let at = RevisionKey::decode(&key).expect("a revision");
        let kv = KeyValue::decode(&value).expect("a value");
        if !at.tombstone {
            assert_eq!(kv.mod_revision as u64, at.revision.main);
        }
        (at.revision, at.tombstone, kv.key.to_vec(), kv.value.to_vec(), kv.create_revision, kv.version, kv.lease)
    };
    items(bytes, "key").into_iter().map(row).collect()
}

fn up_to(events: &[OwnedEvent], main: u64) -> Vec<OwnedEvent> {
    events.iter().filter(|event| event.at.main <= main).cloned().collect()
}

fn live_leases(events: &[OwnedEvent]) -> Vec<i64> {
    let mut newest: BTreeMap<&[u8], i64> = BTreeMap::new();
    for event in events {
        newest.insert(&event.key, if event.tombstone { 0 } else { event.lease });
    }
    let mut leases: Vec<i64> = newest.into_values().filter(|lease| *lease != 0).collect();
    leases.sort_unstable_by_key(|id| *id as u64);
    leases.dedup();
    leases
}

fn lease_ids(bytes: &[u8]) -> Vec<i64> {
    let id = |(key, _): (Vec<u8>, Vec<u8>)| i64::from_be_bytes(key.as_slice().try_into().expect("8 bytes"));
    items(bytes, "lease").into_iter().map(id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_base_and_the_history_behind_it_give_every_revision(
        transactions in prop::collection::vec(
            prop::collection::vec((0u8..12, prop::option::of(prop::sample::select(vec![0i64, 0, 7, -9, 4711]))), 1..5),
            1..40,
        ),
        cut in 0usize..40,
        overlap in 0u64..10,
    ) {
        let events = history(&transactions);
        let last = events.last().map_or(1, |event| event.at.main);
        let base_at = (cut as u64).clamp(1, last);
        let grants = vec![LeaseGrant { id: 7, ttl: 60 }, LeaseGrant { id: 99, ttl: 5 }];
        let founding = founding();
        let whole = Options { membership: Some((&founding, Form::Any)), ..Options::copy() };
        let (base, _) = run(None, Some(VecEvents::new(up_to(&events, base_at), grants.clone())), &whole).unwrap();
        prop_assert_eq!(lease_ids(&base), live_leases(&up_to(&events, base_at)));
        // A history that begins somewhat before the base ends.
        let from = base_at.saturating_sub(overlap);
        let tail: Vec<_> = events.iter().filter(|event| event.at.main > from).cloned().collect();
        for at in 1..=last {
            let options = Options { up_to: Some(at), ..whole };
            let (bytes, rebuilt) = run(Some(&base), Some(VecEvents::new(tail.clone(), grants.clone())), &options).unwrap();
            let wanted = up_to(&events, at);
            prop_assert_eq!(found(&bytes), expected(&wanted), "at revision {}", at);
            prop_assert_eq!(rebuilt.revision, wanted.last().map_or(1, |event| event.at.main));
            let leases = lease_ids(&bytes);
            for lease in live_leases(&wanted) {
                prop_assert!(leases.contains(&lease), "lease {} at revision {}", lease, at);
            }
            assert_sound("rebuilt", &bytes);
        }
    }
}

fn put(main: u64, key: &str, lease: i64) -> OwnedEvent {
    let (at, create) = (Revision { main, sub: 0 }, main as i64);
    OwnedEvent {
        at,
        key: key.into(),
        value: b"v".to_vec(),
        create_revision: create,
        version: 1,
        lease,
        ..OwnedEvent::default()
    }
}

#[test]
fn every_lease_of_a_live_key_exists_and_no_other_is_made_up() {
    let events =
        vec![put(2, "granted", 7), put(3, "unknown", 8), put(4, "moved", 9), put(5, "moved", 0), put(6, "old", -1)];
    let grants = vec![LeaseGrant { id: 7, ttl: 60 }, LeaseGrant { id: 9, ttl: 60 }];
    let founding = founding();
    let options = Options { membership: Some((&founding, Form::Any)), ..Options::copy() };
    let (bytes, rebuilt) = run(None, Some(VecEvents::new(events, grants)), &options).unwrap();
    // Ids are stored as unsigned numbers: the negative one comes last.
    assert_eq!(lease_ids(&bytes), [7, 8, -1]);
    assert_eq!((rebuilt.leases_granted, rebuilt.leases_created), (1, 2));
    assert_eq!(rebuilt.leases_created_ids, [8, -1]);
    assert_eq!(items(&bytes, "lease")[0].1, b"\x08\x07\x10\x3c");
    assert_eq!(items(&bytes, "lease")[1].1, b"\x08\x08\x10\x90\x1c", "one hour");
}

#[test]
fn the_revision_is_raised_and_history_is_marked_compacted() {
    let founding = founding();
    let base =
        run(None, Some(VecEvents::new(vec![put(2, "a", 0), put(3, "b", 0)], vec![])), &Options::copy()).unwrap().0;
    let membership = Some((&founding, Form::Any));
    let options = Options { bump: Some(1000), mark_compacted: true, membership, ..Options::copy() };
    let (bytes, rebuilt) = run(Some(&base), None, &options).unwrap();
    let facts = facts(&bytes);
    assert_eq!((facts.revision_now(), facts.scheduled_compact, facts.finished_compact), (1003, Some(1003), None));
    assert_eq!((rebuilt.revision, rebuilt.last_write, rebuilt.compact_revision), (1003, 3, Some(1003)));
    assert_eq!(items(&bytes, "key").last().unwrap().1, b"");
    let too_much = Options { bump: Some(u64::MAX - 2), ..options };
    assert!(matches!(run(Some(&base), None, &too_much), Err(RebuildError::TooHigh { revision: 3, .. })));
}

#[test]
fn a_revision_that_was_compacted_away_is_refused() {
    let (_, snapshot) = SNAPSHOTS[2];
    let compacted = facts(&snapshot[..snapshot.len() - 32]).compact_revision().expect("the fixture is compacted");
    let at = |up_to| run(Some(snapshot), None, &Options { up_to: Some(up_to), ..Options::copy() });
    assert!(matches!(at(compacted - 1), Err(RebuildError::Compacted { .. })));
    assert_eq!(at(compacted).expect("still there").1.revision, compacted);
}

#[test]
fn values_larger_than_any_buffer_come_through() {
    let large =
        |main, mib: usize| OwnedEvent { value: vec![main as u8; mib << 20], ..put(main, &format!("{main}"), 0) };
    let events = vec![large(2, 5), put(3, "small", 0), large(4, 2), large(5, 3)];
    let (base, _) = run(None, Some(VecEvents::new(up_to(&events, 3), vec![])), &Options::copy()).unwrap();
    let (bytes, rebuilt) = run(Some(&base), Some(VecEvents::new(events.clone(), vec![])), &Options::copy()).unwrap();
    assert!(found(&bytes) == expected(&events));
    assert_eq!((rebuilt.events_skipped, rebuilt.events_applied), (2, 2));
    assert_sound("large values", &bytes);
}

#[test]
fn a_history_finds_its_buckets_even_where_the_base_has_none() {
    let bare = build::small_db(&[(b"meta", Vec::new())], 4096);
    let events = VecEvents::new(vec![put(2, "a", 5)], vec![]);
    let (bytes, rebuilt) = run(Some(&bare), Some(events), &Options::copy()).unwrap();
    assert_eq!((items(&bytes, "key").len(), lease_ids(&bytes), rebuilt.revision), (1, vec![5], 2));
}

#[test]
fn a_history_that_goes_back_is_refused() {
    for second in [2, 1] {
        let events = VecEvents::new(vec![put(2, "a", 0), put(second, "b", 0)], vec![]);
        assert!(matches!(run(None, Some(events), &Options::copy()), Err(RebuildError::OutOfOrder { .. })));
    }
}

#[test]
fn more_unknown_leases_than_are_remembered_one_by_one_still_exist_afterwards() {
    let many = quorate_etcd_formats::rebuild::SUSPECTS_MAX as u64 + 10;
    let events =
        (0..many).map(|n| OwnedEvent { value: Vec::new(), ..put(n + 2, &format!("{n}"), n as i64 % 1000 + 1) });
    let (bytes, rebuilt) = run(None, Some(VecEvents::new(events.collect(), vec![])), &Options::copy()).unwrap();
    assert_eq!(rebuilt.leases_created, 1000);
    assert_eq!(lease_ids(&bytes).len(), 1000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_bytes_make_the_engine_panic_and_what_it_writes_is_sound(
        which in 0..SNAPSHOTS.len(),
        flips in prop::collection::vec((0usize..24_000, any::<u8>()), 1..6),
        cut in prop::option::of(0usize..24_000),
        rewritten in any::<bool>(),
    ) {
        let mut bytes = SNAPSHOTS[which].1.to_vec();
        for (at, to) in flips {
            let at = at % bytes.len();
            bytes[at] = to;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut);
        }
        let body = Body::new(&bytes);
        let founding = founding();
        let membership = rewritten.then_some((&founding, Form::Any));
        let options = Options { membership, bump: rewritten.then_some(7), mark_compacted: rewritten, ..Options::copy() };
        let Ok(db) = Db::open(&body) else { return Ok(()) };
        if let Ok((written, rebuilt)) = rebuild(Some(&db), None, &options, Vec::new(), &AtomicU64::new(0)) {
            let report = report(&written);
            prop_assert_eq!(report.hash, Some(rebuilt.hash));
            let structure = |code: &str| ("Q0310".."Q0320").contains(&code);
            prop_assert!(report.findings.iter().all(|finding| !structure(finding.code.as_str())), "{:?}", report.findings);
        }
    }
}
