//! etcd-backup-restore's layout, written under load: by that program's own rules every set restores.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod follow_support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use follow_support::{Place, revision, wait_log};
use quorate_etcd::client::{Client, Settings};
use quorate_testkit::{Running, Server, Tools, wait_until};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// One object by its name alone, as that program reads it.
#[derive(Debug)]
struct Named {
    path: PathBuf,
    full: bool,
    first: u64,
    last: u64,
    created: u64,
}

/// All of them: by last revision, then by moment.
fn listed(folder: &Path) -> Vec<Named> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // What is still being written, or was cut off in that, is no object yet.
    let mut all: Vec<Named> =
        paths.filter(|path| !path.to_string_lossy().contains('#')).map(|path| named(&path)).collect();
    all.sort_by_key(|named| (named.last, named.created));
    all
}

fn named(path: &Path) -> Named {
    let name = path.file_name().unwrap().to_str().unwrap().strip_suffix(".gz").unwrap();
    let [kind, first, last, created] = name.split('-').collect::<Vec<_>>().try_into().unwrap();
    let number = |text: &str| text.parse().unwrap();
    let path = path.to_owned();
    Named { path, full: kind == "Full", first: number(first), last: number(last), created: number(created) }
}

fn unpacked(path: &Path) -> Vec<u8> {
    let output = Command::new("gzip").arg("-dc").arg(path).output().unwrap();
    assert!(output.status.success(), "{}", path.display());
    output.stdout
}

/// The revision that a full really holds.
fn content_revision(tools: &Tools, full: &Named, scratch: &Path) -> u64 {
    let path = scratch.join("full.db");
    std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), &unpacked(&full.path)).unwrap();
    tools.utl_json(&["snapshot", "status", path.to_str().unwrap()])["revision"].as_u64().unwrap()
}

/// The mod revisions of a delta's events, in order, after its hash was seen to hold.
fn events(delta: &Named) -> Vec<u64> {
    let bytes = unpacked(&delta.path);
    let (json, hash) = bytes.split_at(bytes.len() - 32);
    assert_eq!(Sha256::digest(json)[..], *hash, "{delta:?}");
    let events: Vec<Value> = serde_json::from_slice(json).unwrap();
    events.iter().map(|event| event["etcdEvent"]["kv"]["mod_revision"].as_u64().unwrap()).collect()
}

/// Restores a full and what follows it by the rules of that program. Gives the revision at the end.
fn replayed(tools: &Tools, set: &[&Named], scratch: &Path) -> u64 {
    let mut current = content_revision(tools, set[0], scratch);
    for (at, delta) in set[1..].iter().enumerate() {
        let mut events = events(delta);
        assert_eq!((events.first(), events.last()), (Some(&delta.first), Some(&delta.last)), "{delta:?}");
        if at == 0 {
            if current == delta.last {
                continue;
            }
            // With none left, that program applies nothing, and stumbles over the check below.
            events.retain(|revision| *revision > current);
        }
        // Each group of equal revisions is one transaction, and so one revision of the restored etcd.
        events.dedup();
        current += events.len() as u64;
        assert_eq!(current, delta.last, "after {delta:?} of a set that begins with {:?}", set[0]);
    }
    current
}

/// Writes as fast as one client can, until it is told to end.
fn write_until(url: &str, end: &AtomicBool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&Settings::new([url.to_owned()])).await.unwrap();
        let mut at = 0u64;
        while !end.load(Ordering::Relaxed) {
            client.put(format!("key-{}", at % 500), vec![b'v'; 512]).await.unwrap();
            if at.is_multiple_of(50) {
                client.delete(format!("key-{}", at % 500)).await.unwrap();
            }
            at += 1;
        }
    });
}

fn fulls_in_log(follower: &Running) -> usize {
    follower.log().matches("stored a full backup and read it back").count()
}

#[test]
fn every_full_that_was_taken_under_load_restores_with_the_deltas_behind_it() {
    let place = Place::new();
    let server: Server = place.etcd("sid");
    let url = server.seat.client_url();
    let end = AtomicBool::new(false);
    let more = ["--layout", "gardener", "--full-schedule", "*/3 * * * * *", "--delta-period", "100ms"];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&url, &end));
        let mut follower = place.follow(&url, "spool", &more);
        wait_until("fulls are taken", follow_support::LIMIT, || fulls_in_log(&follower) >= 3);
        // Ended in the middle of one, it leaves nothing that does not restore; nor does a kill.
        let taking = |follower: &Running| follower.log().matches("taking a full backup").count();
        wait_until("one is being taken", follow_support::LIMIT, || taking(&follower) > fulls_in_log(&follower));
        assert!(follower.stop().success(), "{}", follower.log());
        let mut follower = place.follow(&url, "spool", &more);
        wait_until("fulls are taken again", follow_support::LIMIT, || fulls_in_log(&follower) >= 1);
        wait_until("one is being taken", follow_support::LIMIT, || taking(&follower) > fulls_in_log(&follower));
        follower.kill();
        let mut follower = place.follow(&url, "spool", &more);
        wait_until("fulls are taken again", follow_support::LIMIT, || fulls_in_log(&follower) >= 1);
        end.store(true, Ordering::Relaxed);
        // Its last write may still be on the way.
        writer.join().unwrap();
        wait_log(&follower, "stored a delta");
        place.wait_stored(revision(&server));
        assert!(follower.stop().success(), "{}", follower.log());
    });
    let all = listed(&place.path("store/v2"));
    let fulls: Vec<usize> = (0..all.len()).filter(|at| all[*at].full).collect();
    assert!(fulls.len() >= 5, "{all:#?}");
    for at in &fulls {
        // Later fulls are as if they were not there yet.
        let set: Vec<&Named> =
            all[*at..].iter().enumerate().filter(|(n, one)| *n == 0 || !one.full).map(|(_, one)| one).collect();
        let reached = replayed(&server.tools, &set, place.root.path());
        assert!(reached >= revision(&server), "{reached}: {set:#?}");
    }
    let ahead =
        fulls.iter().filter(|at| content_revision(&server.tools, &all[**at], place.root.path()) > all[**at].last);
    assert!(ahead.count() > 0, "no full was taken while etcd was written to");
    place.assert_seamless();
    place.assert_equals(&server, "restored");
}
