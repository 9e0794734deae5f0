//! Chains as they are read from real stores, whole and damaged: what is given is a part of the true history, and
//! whatever is left out is said.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests write scratch files, and may stop")]

mod support;

use std::path::Path;
use std::sync::atomic::Ordering;

use quorate_backup::events::Used;
use quorate_backup::session::{Session, Wanted};
use quorate_etcd_formats::delta::{Events, OwnedEvent};
use quorate_faults::Code;
use quorate_plan::chain::Target;
use quorate_plan::restore_point::{Content, RestorePoint};
use support::{Read, copy, files, gardener_store, own_store, read};
use tempfile::TempDir;

const NEWEST: Wanted = Wanted::Target(Target::Newest);

fn whole(store: &Path) -> Read {
    read(store, &NEWEST).expect("the store is whole").0.result
}

#[test]
fn the_real_tools_store_is_read_to_its_last_write() {
    let store = gardener_store();
    let (proven, session) = read(store.path(), &NEWEST).unwrap();
    assert_eq!((proven.revision, proven.result.base_revision), (120, 33));
    assert_eq!(proven.result.events.first().map(|event| event.at.main), Some(34));
    assert_eq!(proven.decision.short, None);
    assert!(session.learned.is_empty());
    let last = proven.result.events.last().unwrap();
    assert_eq!((last.key.as_slice(), last.value.as_slice(), last.at.main), (&b"late-9"[..], &b"back"[..], 120));
}

#[test]
fn a_converted_store_gives_the_same_writes() {
    let (gardener, own) = (gardener_store(), own_store());
    let (one, other) = (whole(gardener.path()), whole(own.path()));
    assert_eq!(one.events, other.events);
    assert_eq!((one.base_revision, one.base_sha256), (other.base_revision, other.base_sha256));
}

#[test]
fn progress_follows_the_stored_bytes_of_the_deltas_and_ends_at_all_of_them() {
    let (store, scratch) = (own_store(), TempDir::new().unwrap());
    let url = format!("file://{}", store.path().display());
    // Also where the last deltas are not needed.
    for target in [Target::Newest, Target::Revision(70)] {
        let mut session = Session::open(&url, scratch.path()).unwrap();
        let proven = session.run(&Wanted::Target(target), |_, events, _| {
            let (progress, total) = (events.progress(), events.stored_bytes());
            let mut seen = vec![progress.load(Ordering::Relaxed)];
            while events.next().unwrap().is_some() {
                seen.push(progress.load(Ordering::Relaxed));
            }
            assert!(seen.is_sorted() && seen[0] == 0);
            seen.dedup();
            Ok((seen, total, progress.load(Ordering::Relaxed)))
        });
        let proven = proven.unwrap();
        let (seen, total, end) = proven.result;
        let bytes = |used: &Used| session.catalog.objects[used.object].bytes;
        assert_eq!((end, total), (total, proven.used.iter().map(bytes).sum()));
        assert!(seen.len() > proven.used.len(), "{seen:?}");
    }
}

#[test]
fn every_revision_can_be_asked_for_and_is_cut_at_its_transaction() {
    for store in [gardener_store(), own_store()] {
        let all = whole(store.path()).events;
        for revision in 33..=120 {
            let (proven, _) = read(store.path(), &Wanted::Target(Target::Revision(revision))).unwrap();
            let expected: Vec<OwnedEvent> = all.iter().filter(|event| event.at.main <= revision).cloned().collect();
            assert_eq!((proven.revision, proven.result.events), (revision, expected));
        }
        for beyond in [1, 32, 121] {
            let fault = read(store.path(), &Wanted::Target(Target::Revision(beyond))).err().unwrap();
            assert_eq!(fault.code(), Code::ChainTarget, "{beyond}");
        }
    }
}

#[test]
fn every_time_is_cut_at_the_last_write_before_it() {
    let store = gardener_store();
    let all = whole(store.path()).events;
    // A transaction happened when its first write was recorded.
    for event in all.iter().filter(|event| event.at.sub == 0) {
        let time = event.time_ms.unwrap();
        let (proven, _) = read(store.path(), &Wanted::Target(Target::Time(time))).unwrap();
        let expected = all
            .iter()
            .filter(|event| event.at.sub == 0 && event.time_ms <= Some(time))
            .map(|event| event.at.main)
            .max();
        assert_eq!(Some(proven.revision), expected);
        let before = read(store.path(), &Wanted::Target(Target::Time(time - 1))).unwrap().0.revision;
        assert!(before < event.at.main, "{before} {}", event.at.main);
    }
    let fault = read(store.path(), &Wanted::Target(Target::Time(1_000))).err().unwrap();
    assert_eq!(fault.code(), Code::ChainTarget);
}

#[test]
fn a_point_is_met_again_after_the_store_has_grown_and_refused_after_it_has_changed() {
    let store = gardener_store();
    let later = store.path().join("v2/Incr-00000109-00000120-1794773666.gz");
    let hidden = std::fs::read(&later).unwrap();
    std::fs::remove_file(&later).unwrap();
    let (proven, mut session) = read(store.path(), &NEWEST).unwrap();
    assert_eq!(session.newest_point().unwrap(), (108, proven.digest.clone()));
    let content = Content { bump: None, mark_compacted: true };
    let point = RestorePoint { revision: 108, digest: proven.digest, nonce: Some(1), content };
    std::fs::write(&later, hidden).unwrap();
    let (again, _) = read(store.path(), &Wanted::Point(point.clone())).unwrap();
    assert_eq!((again.revision, again.result.events), (108, proven.result.events));
    // The same writes, compressed another way, are other objects.
    let changed = store.path().join("v2/Incr-00000067-00000067-1794773654");
    let packed = changed.with_extension("gz");
    let mut content = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(std::fs::File::open(&packed).unwrap()), &mut content)
        .unwrap();
    std::fs::write(&changed, content).unwrap();
    std::fs::remove_file(&packed).unwrap();
    assert_eq!(read(store.path(), &NEWEST).unwrap().0.revision, 120);
    assert_eq!(read(store.path(), &Wanted::Point(point)).err().unwrap().code(), Code::PointGone);
}

/// Whatever was done to the store: the result is a part of the truth, and a shorter one is explained.
fn never_wrong(truth: &Read, store: &Path, what: &str) {
    match read(store, &NEWEST) {
        Err(fault) => assert!(matches!(fault.code(), Code::ChainNone | Code::ChainTarget), "{what}: {fault}"),
        Ok((proven, session)) => {
            let given = &proven.result;
            assert_eq!((given.base_revision, given.base_sha256), (truth.base_revision, truth.base_sha256), "{what}");
            assert!(truth.events.starts_with(&given.events), "{what}: other writes than there were");
            let reached = given.events.last().map_or(truth.base_revision, |event| event.at.main);
            assert_eq!(proven.revision, reached, "{what}");
            let cut = truth.events.get(given.events.len());
            assert!(cut.is_none_or(|next| next.at.main > reached), "{what}: a transaction was torn");
            if cut.is_some() {
                // An object that is gone without a trace and had nothing behind it is the one loss that cannot be seen.
                let last_dropped = what.starts_with("drop") && proven.decision.newest_claimed == reached;
                assert!(proven.decision.short.is_some() || last_dropped, "{what}: lost in silence");
                assert!(!session.catalog.objects.is_empty());
            }
        }
    }
}

/// Does `change` to a fresh copy of the store for each of its objects.
fn for_each_object(store: &Path, truth: &Read, what: &str, change: impl Fn(&Path, &[std::path::PathBuf])) {
    let names = files(store);
    for name in &names {
        let scratch = TempDir::new().unwrap();
        copy(store, scratch.path());
        let relative = name.strip_prefix(store).unwrap();
        change(&scratch.path().join(relative), &files(scratch.path()));
        never_wrong(truth, scratch.path(), &format!("{what} {}", relative.display()));
    }
}

fn damage_everything(store: &Path) {
    let truth = whole(store);
    for_each_object(store, &truth, "drop", |path, _| std::fs::remove_file(path).unwrap());
    for_each_object(store, &truth, "empty", |path, _| std::fs::write(path, b"").unwrap());
    for part in [1, 2, 3] {
        for_each_object(store, &truth, "truncate", |path, _| {
            let bytes = std::fs::read(path).unwrap();
            let kept = if part == 3 { bytes.len() - 1 } else { bytes.len() * part / 3 };
            std::fs::write(path, &bytes[..kept]).unwrap();
        });
    }
    for step in 0..24 {
        for_each_object(store, &truth, "flip", |path, _| {
            let mut bytes = std::fs::read(path).unwrap();
            let at = bytes.len() * step / 24;
            bytes[at] ^= 1 << (step % 8);
            std::fs::write(path, bytes).unwrap();
        });
    }
    for_each_object(store, &truth, "grow", |path, _| {
        let mut bytes = std::fs::read(path).unwrap();
        bytes.extend_from_within(..bytes.len().min(40));
        std::fs::write(path, bytes).unwrap();
    });
    for_each_object(store, &truth, "overwrite with each other", |path, all| {
        for other in all.iter().filter(|other| other.parent() == path.parent()) {
            std::fs::copy(other, path).unwrap();
        }
    });
    for_each_object(store, &truth, "swap", |path, all| {
        if let Some(other) = all.iter().rfind(|other| other.parent() == path.parent() && *other != path) {
            let (one, two) = (std::fs::read(path).unwrap(), std::fs::read(other).unwrap());
            std::fs::write(path, two).unwrap();
            std::fs::write(other, one).unwrap();
        }
    });
}

#[test]
fn no_damage_to_a_gardener_store_gives_wrong_data_in_silence() {
    damage_everything(gardener_store().path());
}

#[test]
fn no_damage_to_our_own_store_gives_wrong_data_in_silence() {
    damage_everything(own_store().path());
}

#[test]
fn duplicates_under_other_names_and_times_change_nothing() {
    let store = gardener_store();
    let truth = whole(store.path());
    for_each_object(store.path(), &truth, "duplicate", |path, _| {
        let name = path.file_name().unwrap().to_string_lossy().replace("-1794", "-1795");
        std::fs::copy(path, path.with_file_name(name)).unwrap();
    });
    let name = "Incr-00000034-00000066-1794773650.gz";
    let v1 = store.path().join("v1/Backup-1794773646");
    std::fs::create_dir_all(&v1).unwrap();
    std::fs::copy(store.path().join("v2").join(name), v1.join(name)).unwrap();
    never_wrong(&truth, store.path(), "both layouts of names");
    assert_eq!(read(store.path(), &NEWEST).unwrap().0.revision, 120);
}

#[test]
fn a_name_that_lies_is_corrected_by_the_content() {
    let store = gardener_store();
    let truth = whole(store.path());
    for (from, to) in [
        ("Full-00000000-00000033-1794773646.gz", "Full-00000000-00000030-1794773646.gz"),
        ("Incr-00000109-00000120-1794773666.gz", "Incr-00000109-00000118-1794773666.gz"),
        ("Incr-00000067-00000067-1794773654.gz", "Incr-00000060-00000067-1794773654.gz"),
    ] {
        let scratch = TempDir::new().unwrap();
        copy(store.path(), scratch.path());
        let v2 = scratch.path().join("v2");
        std::fs::copy(v2.join(from), v2.join(to)).unwrap();
        std::fs::remove_file(v2.join(from)).unwrap();
        let (proven, session) = read(scratch.path(), &NEWEST).unwrap();
        assert_eq!((proven.revision, &proven.result.events), (120, &truth.events), "{to}");
        assert_eq!(session.learned.len(), 1, "{to}: {:?}", session.learned);
        assert_eq!(session.learned[0].0, Code::ObjectMisnamed);
    }
}

#[test]
fn two_writers_that_agree_are_joined_and_two_histories_are_not() {
    let store = gardener_store();
    let truth = whole(store.path());
    let v2 = store.path().join("v2");
    let overlap = |change: &dyn Fn(String) -> String| {
        // A second writer recorded 60 to 80 in one piece.
        let mut text = String::from("[");
        for name in [
            "Incr-00000034-00000066-1794773650.gz",
            "Incr-00000067-00000067-1794773654.gz",
            "Incr-00000068-00000108-1794773658.gz",
        ] {
            let mut body = Vec::new();
            let file = std::fs::File::open(v2.join(name)).unwrap();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file), &mut body).unwrap();
            let array: Vec<serde_json::Value> = serde_json::from_slice(&body[..body.len() - 32]).unwrap();
            for event in array {
                let revision = event["etcdEvent"]["kv"]["mod_revision"].as_u64().unwrap();
                if (60..=112).contains(&revision) {
                    text.push_str(&change(event.to_string()));
                    text.push(',');
                }
            }
        }
        text.pop();
        text.push(']');
        let hash = <sha2::Sha256 as sha2::Digest>::digest(text.as_bytes());
        [text.as_bytes(), hash.as_slice()].concat()
    };
    // It covers up to 108 like the others, but reaches there in one step from 66.
    let path = v2.join("Incr-00000060-00000108-1794773659");
    std::fs::write(&path, overlap(&|event| event)).unwrap();
    let (proven, session) = read(store.path(), &NEWEST).unwrap();
    assert_eq!((proven.revision, &proven.result.events), (120, &truth.events));
    assert!(session.learned.is_empty());
    // Now it tells revision 66 in another way.
    let other = |event: String| {
        if event.contains("\"mod_revision\":66") { event.replace("\"value\":\"", "\"value\":\"AAAA") } else { event }
    };
    std::fs::write(&path, overlap(&other)).unwrap();
    let (proven, session) = read(store.path(), &NEWEST).unwrap();
    assert!(truth.events.starts_with(&proven.result.events));
    assert!(proven.revision < 66, "{}", proven.revision);
    assert!(
        session.learned.iter().any(|(_, what)| what.contains("disagree about revision 66")),
        "{:?}",
        session.learned
    );
    assert!(proven.decision.short.is_some());
}

#[test]
fn a_delta_that_contradicts_the_full_is_not_replayed_on_it() {
    let store = gardener_store();
    let v2 = store.path().join("v2");
    let event = |key: &str, revision: u64, version: u64| {
        format!(
            r#"{{"etcdEvent":{{"kv":{{"key":"{key}","create_revision":{revision},"mod_revision":{revision},"version":{version},"value":"djI5"}}}},"time":"2026-11-15T20:14:06Z"}}"#
        )
    };
    let write = |text: String| {
        let hash = <sha2::Sha256 as sha2::Digest>::digest(text.as_bytes());
        std::fs::write(v2.join("Incr-00000030-00000130-1794773670"), [text.as_bytes(), hash.as_slice()].concat())
            .unwrap();
    };
    // It leads farther than all others, and agrees about revision 30; about 31 it does not.
    let rest: Vec<String> = (31..=130).map(|revision| event("eA==", revision, 1)).collect();
    write(format!("[{},{}]", event("YmFzZS0yOQ==", 30, 1), rest.join(",")));
    let (proven, session) = read(store.path(), &NEWEST).unwrap();
    assert_eq!(proven.revision, 120);
    assert!(session.learned[0].1.contains("revision 31 otherwise than the full"), "{:?}", session.learned);
    assert!(proven.decision.short.is_some());
}

#[test]
fn objects_in_parts_and_in_every_compression_are_read() {
    let store = gardener_store();
    let truth = whole(store.path());
    let v2 = store.path().join("v2");
    let body = |name: &str| {
        let mut body = Vec::new();
        let path = v2.join(format!("{name}.gz"));
        let file = std::fs::File::open(&path).unwrap();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file), &mut body).unwrap();
        std::fs::remove_file(path).unwrap();
        body
    };
    let plain = body("Full-00000000-00000033-1794773646");
    std::fs::write(v2.join("Full-00000000-00000033-1794773646"), plain).unwrap();
    let zlib = body("Incr-00000034-00000066-1794773650");
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, &zlib).unwrap();
    std::fs::write(v2.join("Incr-00000034-00000066-1794773650.zlib"), encoder.finish().unwrap()).unwrap();
    let lzw = body("Incr-00000068-00000108-1794773658");
    let packed = weezl::encode::Encoder::new(weezl::BitOrder::Lsb, 8).encode(&lzw).unwrap();
    let parts = v2.join("Incr-00000068-00000108-1794773658.Z");
    std::fs::create_dir(&parts).unwrap();
    for (piece, number) in packed.chunks(100).zip(1..) {
        std::fs::write(parts.join(format!("{number:010}")), piece).unwrap();
    }
    let read_again = whole(store.path());
    assert_eq!(read_again.events, truth.events);
    std::fs::remove_file(parts.join("0000000002")).unwrap();
    let (proven, _) = read(store.path(), &NEWEST).unwrap();
    assert_eq!(proven.revision, 67);
    assert!(proven.decision.short.unwrap().contains("its part 2 is missing"));
}

#[test]
fn the_folder_v2_itself_may_be_named() {
    let store = gardener_store();
    let (proven, _) = read(&store.path().join("v2"), &NEWEST).unwrap();
    assert_eq!((proven.revision, proven.decision.short), (120, None));
}

#[test]
fn a_store_that_cannot_be_listed_is_a_fault() {
    let gone = TempDir::new().unwrap().path().join("gone");
    assert_eq!(read(&gone, &NEWEST).err().unwrap().code(), Code::StoreUnreachable);
    let empty = TempDir::new().unwrap();
    assert_eq!(read(empty.path(), &NEWEST).err().unwrap().code(), Code::ChainNone);
}

/// LZW with the widths, clear codes and end of Go's `compress/lzw` writer: least significant bit first, 8-bit literals.
fn lzw_as_go_writes_it(bytes: &[u8]) -> Vec<u8> {
    const CLEAR: u32 = 256;
    const LAST_CODE: u32 = 4095;
    let (mut out, mut bits, mut held) = (Vec::new(), 0u64, 0u32);
    let mut emit = |code: u32, width: u32| {
        bits |= u64::from(code) << held;
        held += width;
        while held >= 8 {
            out.push(bits as u8);
            bits >>= 8;
            held -= 8;
        }
        bits as u8
    };
    let mut table = std::collections::HashMap::new();
    let (mut width, mut high, mut overflow) = (9, CLEAR + 1, CLEAR << 1);
    emit(CLEAR, width);
    let mut code = u32::from(bytes[0]);
    for byte in &bytes[1..] {
        let key = (code, *byte);
        if let Some(known) = table.get(&key) {
            code = *known;
            continue;
        }
        emit(code, width);
        code = u32::from(*byte);
        high += 1;
        if high == overflow {
            width += 1;
            overflow <<= 1;
        }
        if high == LAST_CODE {
            emit(CLEAR, width);
            (width, high, overflow) = (9, CLEAR + 1, CLEAR << 1);
            table.clear();
            continue;
        }
        table.insert(key, high);
    }
    emit(code, width);
    high += 1;
    if high == overflow {
        width += 1;
    }
    let last = emit(CLEAR + 1, width);
    out.push(last);
    out
}

#[test]
fn lzw_is_read_across_full_tables() {
    let store = gardener_store();
    let truth = whole(store.path()).events;
    let v2 = store.path().join("v2");
    let events: Vec<String> = (121..=1500u64)
        .map(|revision| {
            let key = u128::from(revision).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            format!(
                r#"{{"etcdEvent":{{"kv":{{"key":"{key:032x}","create_revision":{revision},"mod_revision":{revision},"version":1}}}}}}"#
            )
        })
        .collect();
    let text = format!("[{}]", events.join(","));
    let hash = <sha2::Sha256 as sha2::Digest>::digest(text.as_bytes());
    let packed = lzw_as_go_writes_it(&[text.as_bytes(), hash.as_slice()].concat());
    std::fs::write(v2.join("Incr-00000121-00001500-1794773700.Z"), packed).unwrap();
    let (proven, session) = read(store.path(), &NEWEST).unwrap();
    assert!(session.learned.is_empty(), "{:?}", session.learned);
    assert_eq!((proven.revision, proven.result.events.len()), (1500, truth.len() + 1380));
}
