//! Objects as they are written: found again, never doubled, and restored from in either layout.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests write scratch files, and may stop")]

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quorate_backup::catalog::Catalog;
use quorate_backup::epochs;
use quorate_backup::session::{Session, Wanted};
use quorate_backup::spool::{Segment, Spool, SpoolSettings, SpoolState};
use quorate_backup::store::Store;
use quorate_backup::write::{self, About, FullUpload};
use quorate_etcd_formats::delta::quorate::{Manifest, Origin};
use quorate_etcd_formats::delta::{Event, OwnedEvent};
use quorate_etcd_formats::mvcc::Revision;
use quorate_faults::Code;
use quorate_plan::chain::{Kind, Layout, Target};
use sha2::Digest;
use support::{files, gardener_store, own_store, read, url};

const NEWEST: Wanted = Wanted::Target(Target::Newest);

fn open(dir: &Path) -> Store {
    Store::open(&url(dir), true).unwrap()
}

fn about(floor: u64) -> About {
    let origin = Origin { cluster_id: 0xabc, member_id: 0xdef, etcd_version: "3.5.16".to_owned() };
    About { origin, epoch: 1, created_ms: 1_794_773_640_000, floor, declared: None, was: Vec::new() }
}

/// A spool with these writes as segments that end with the given revisions.
fn spooled(dir: &Path, events: &[OwnedEvent], ends: &[u64]) -> (Spool, Vec<Segment>) {
    let (mut spool, _) = Spool::open(dir, SpoolSettings { max_bytes: 1 << 30 }).unwrap();
    let stored = events[0].at.main - 1;
    spool.reset(SpoolState { cluster_id: 0xabc, epoch: 1, layout: Layout::Quorate, stored }).unwrap();
    let mut rest = events;
    for end in ends {
        let (now, later) = rest.split_at(rest.partition_point(|event| event.at.main <= *end));
        let lent: Vec<Event<'_>> = now.iter().map(OwnedEvent::lend).collect();
        spool.append(&lent, true).unwrap();
        spool.cut().unwrap().unwrap();
        rest = later;
    }
    assert!(rest.is_empty());
    let pending = spool.pending();
    (spool, pending)
}

/// The real store's full, unpacked, and the writes behind it.
fn truth() -> (Vec<u8>, Vec<OwnedEvent>) {
    let store = gardener_store();
    let mut session = Session::open(&url(store.path()), store.path()).unwrap();
    let full = session.run(&NEWEST, |base, _, _| Ok(std::fs::read(base.path()).unwrap())).unwrap().result;
    (full, read(store.path(), &NEWEST).unwrap().0.result.events)
}

fn put_full(store: &Store, floor: u64, exact: u64, bytes: &[u8], layout: Layout) -> (Manifest, String) {
    let mut upload = FullUpload::begin(store, &about(floor), layout).unwrap();
    bytes.chunks(10_000).for_each(|piece| upload.write(piece).unwrap());
    upload.finish(exact).unwrap()
}

/// All files with their content, apart from manifests.
fn content(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    files(root).into_iter().map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn what_is_written_in_either_layout_is_restored_to_the_same_writes() {
    let (full, events) = truth();
    for layout in [Layout::Quorate, Layout::Gardener] {
        let (dir, spool_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(dir.path());
        // The name says 30, the snapshot holds 33.
        let (manifest, name) = put_full(&store, 30, 33, &full, layout);
        assert_eq!((manifest.first, manifest.last), (30, 33));
        write::read_back(&store, &name, &manifest).unwrap();
        let (_spool, segments) = spooled(spool_dir.path(), &events, &[66, 67, 90, 120]);
        for segment in &segments {
            let manifest = write::segment(&store, &about(0), segment, layout).unwrap();
            assert_eq!((manifest.first, manifest.last, manifest.epoch), (segment.first, segment.last, 1));
            write::read_back(&store, &write::segment_name(segment, layout), &manifest).unwrap();
        }
        let (proven, session) = read(dir.path(), &NEWEST).unwrap();
        assert_eq!((proven.revision, proven.result.base_revision), (120, 33), "{layout:?}");
        assert_eq!(proven.result.events, events, "{layout:?}");
        assert_eq!(proven.result.base_sha256.as_slice(), sha2::Sha256::digest(&full).as_slice(), "{layout:?}");
        assert_eq!(session.learned.is_empty(), layout == Layout::Quorate, "{:?}", session.learned);
    }
}

#[test]
fn gardeners_names_follow_on_each_other_and_none_overlaps() {
    let (full, events) = truth();
    let (dir, spool_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path());
    put_full(&store, 33, 33, &full, Layout::Gardener);
    let (_spool, segments) = spooled(spool_dir.path(), &events, &[40, 66, 120]);
    for segment in &segments {
        write::segment(&store, &about(0), segment, Layout::Gardener).unwrap();
    }
    let names: Vec<String> = store.list().unwrap().into_iter().map(|listed| listed.name).collect();
    let mut ranges = Vec::new();
    for name in &names {
        let parsed = quorate_etcd_formats::delta::gardener::Name::parse(name).unwrap();
        ranges.push((parsed.last, parsed.first, parsed.full));
    }
    ranges.sort_unstable();
    assert_eq!(ranges, [(33, 0, true), (40, 34, false), (66, 41, false), (120, 67, false)], "{names:?}");
    assert!(names.iter().any(|name| name == "v2/Full-00000000-00000033-1794773640.gz"), "{names:?}");
}

#[test]
fn an_upload_that_is_repeated_changes_nothing() {
    let (_, events) = truth();
    for layout in [Layout::Quorate, Layout::Gardener] {
        let (dir, spool_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(dir.path());
        let (_spool, segments) = spooled(spool_dir.path(), &events, &[120]);
        let first = write::segment(&store, &about(0), &segments[0], layout).unwrap();
        let there = content(dir.path());
        assert_eq!(write::segment(&store, &about(0), &segments[0], layout).unwrap(), first);
        assert_eq!(content(dir.path()), there);
        // Killed between the object and its manifest.
        for manifest in files(dir.path()).iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
            std::fs::remove_file(manifest).unwrap();
        }
        write::segment(&store, &about(0), &segments[0], layout).unwrap();
        assert_eq!(content(dir.path()), there);
    }
}

#[test]
fn an_attempt_that_a_store_shows_half_is_made_whole() {
    let (_, events) = truth();
    for layout in [Layout::Quorate, Layout::Gardener] {
        let (dir, spool_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(dir.path());
        let (_spool, segments) = spooled(spool_dir.path(), &events, &[120]);
        write::segment(&store, &about(0), &segments[0], layout).unwrap();
        for (path, whole) in content(dir.path()) {
            for length in [0, 1, whole.len() / 2, whole.len() - 2] {
                std::fs::write(&path, &whole[..length]).unwrap();
                write::segment(&store, &about(0), &segments[0], layout).unwrap();
                assert_eq!(std::fs::read(&path).unwrap(), whole, "{} {length}", path.display());
            }
        }
    }
}

#[test]
fn the_same_content_compressed_otherwise_is_the_same_object() {
    let (_, events) = truth();
    let (dir, spool_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path());
    let (_spool, segments) = spooled(spool_dir.path(), &events, &[120]);
    let object = dir.path().join(write::segment_name(&segments[0], Layout::Quorate));
    std::fs::create_dir_all(object.parent().unwrap()).unwrap();
    let other = zstd::encode_all(std::fs::File::open(&segments[0].path).unwrap(), 19).unwrap();
    std::fs::write(&object, &other).unwrap();
    let manifest = write::segment(&store, &about(0), &segments[0], Layout::Quorate).unwrap();
    assert_eq!(std::fs::read(&object).unwrap(), other);
    assert_eq!(manifest.stored.bytes, other.len() as u64);
    write::read_back(&store, &write::segment_name(&segments[0], Layout::Quorate), &manifest).unwrap();
}

#[test]
fn other_content_under_the_same_name_is_refused_and_left_alone() {
    let (_, events) = truth();
    let (dir, spool_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path());
    let (_spool, segments) = spooled(spool_dir.path(), &events, &[120]);
    let object = dir.path().join(write::segment_name(&segments[0], Layout::Quorate));
    std::fs::create_dir_all(object.parent().unwrap()).unwrap();
    let alien = zstd::encode_all(&b"somebody else's"[..], 3).unwrap();
    std::fs::write(&object, &alien).unwrap();
    let fault = write::segment(&store, &about(0), &segments[0], Layout::Quorate).unwrap_err();
    assert_eq!(fault.code(), Code::ObjectTaken);
    assert_eq!(std::fs::read(&object).unwrap(), alien);
}

#[test]
fn large_segments_go_in_parts_and_are_found_again_too() {
    let mut noise = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise.to_le_bytes()
    };
    let event = |main: u64, value: Vec<u8>| OwnedEvent {
        at: Revision { main, sub: 0 },
        key: b"k".to_vec(),
        value,
        create_revision: 2,
        version: 1,
        ..OwnedEvent::default()
    };
    let events: Vec<_> = (2..14).map(|main| event(main, (0..131_072).flat_map(|_| random()).collect())).collect();
    let (dir, spool_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path());
    let (_spool, segments) = spooled(spool_dir.path(), &events, &[13]);
    let first = write::segment(&store, &about(0), &segments[0], Layout::Quorate).unwrap();
    assert!(first.stored.bytes > 8 << 20, "it does not fit one request");
    let name = write::segment_name(&segments[0], Layout::Quorate);
    write::read_back(&store, &name, &first).unwrap();
    assert_eq!(write::segment(&store, &about(0), &segments[0], Layout::Quorate).unwrap(), first);
    let path = dir.path().join(&name);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    write::segment(&store, &about(0), &segments[0], Layout::Quorate).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), whole);
}

#[test]
fn a_segment_that_rots_in_the_spool_is_not_uploaded() {
    let (_, events) = truth();
    let (dir, spool_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path());
    let (mut spool, segments) = spooled(spool_dir.path(), &events, &[66, 120]);
    let mut bytes = std::fs::read(&segments[0].path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&segments[0].path, bytes).unwrap();
    for layout in [Layout::Quorate, Layout::Gardener] {
        let fault = write::segment(&store, &about(0), &segments[0], layout).unwrap_err();
        assert_eq!(fault.code(), Code::SpoolDamaged);
    }
    assert!(files(dir.path()).is_empty(), "{:?}", files(dir.path()));
    spool.set_aside(&segments[0]).unwrap();
    assert_eq!(spool.recover().unwrap().last, Some(33), "etcd is asked from there");
}

#[test]
fn a_full_is_believed_by_its_manifest_and_without_one_by_its_content_in_silence() {
    let (full, _) = truth();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (_, name) = put_full(&store, 20, 33, &full, Layout::Quorate);
    let listed = Catalog::read(&store).unwrap();
    assert_eq!((listed.objects[0].kind, listed.objects[0].first, listed.objects[0].last), (Kind::Full, 33, 33));
    assert!(listed.notes.is_empty());
    let manifest = dir.path().join(name.replace(".zst", ".json"));
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::remove_file(&manifest).unwrap();
    let (proven, session) = read(dir.path(), &NEWEST).unwrap();
    assert_eq!(proven.revision, 33);
    assert!(session.learned.is_empty(), "{:?}", session.learned);
    // A manifest that leads nowhere near its name is not believed.
    for (from, to) in [("\"first\": 20", "\"first\": 21"), ("\"last\": 33", "\"last\": 19")] {
        std::fs::write(&manifest, text.replace(from, to)).unwrap();
        assert_eq!(Catalog::read(&store).unwrap().notes.len(), 1, "{to}");
    }
    // One that promises another revision than is there is found out.
    std::fs::write(&manifest, text.replace("\"last\": 33", "\"last\": 34")).unwrap();
    let (proven, session) = read(dir.path(), &NEWEST).unwrap();
    assert_eq!((proven.revision, session.learned.len()), (33, 1));
}

#[test]
fn a_snapshot_that_is_older_than_it_should_be_is_not_kept() {
    let (full, _) = truth();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut upload = FullUpload::begin(&store, &about(34), Layout::Quorate).unwrap();
    upload.write(&full).unwrap();
    assert_eq!(upload.finish(33).unwrap_err().code(), Code::FullBehind);
    let mut upload = FullUpload::begin(&store, &about(1), Layout::Quorate).unwrap();
    upload.write(&full).unwrap();
    upload.abandon();
    assert!(files(dir.path()).is_empty());
}

#[test]
fn reading_back_notices_every_kind_of_damage() {
    let (full, _) = truth();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (manifest, name) = put_full(&store, 33, 33, &full, Layout::Quorate);
    let path = dir.path().join(&name);
    let whole = std::fs::read(&path).unwrap();
    let damaged = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        write::read_back(&store, &name, &manifest).unwrap_err().code()
    };
    let mut flipped = whole.clone();
    let middle = whole.len() / 2;
    flipped[middle] ^= 1;
    let bent = zstd::encode_all(&full[..full.len() - 1], 3).unwrap();
    for bytes in [&whole[..middle], &[], &flipped, &bent] {
        assert_eq!(damaged(bytes), Code::ObjectDamaged);
    }
    std::fs::write(&path, &whole).unwrap();
    let wrong = Manifest { last: 34, ..manifest.clone() };
    assert_eq!(write::read_back(&store, &name, &wrong).unwrap_err().code(), Code::ObjectDamaged);
    write::read_back(&store, &name, &manifest).unwrap();
}

#[test]
fn each_epoch_goes_to_exactly_one_of_many_that_want_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert_eq!(epochs::newest(&store).unwrap(), None);
    let taken: Vec<u64> = std::thread::scope(|scope| {
        let rivals: Vec<_> = (0..12).map(|_| scope.spawn(|| epochs::take(&store, &about(0), 77).unwrap())).collect();
        rivals.into_iter().map(|rival| rival.join().unwrap()).collect()
    });
    assert_eq!(taken.iter().copied().collect::<BTreeSet<_>>(), (1..=12).collect());
    let newest = epochs::newest(&store).unwrap().unwrap();
    assert_eq!((newest.epoch, newest.begins_at), (12, 77));
    // Objects without their epoch count as well.
    let own = own_store();
    assert_eq!(epochs::take(&open(own.path()), &about(0), 121).unwrap(), 2);
}
