//! Following a cluster on its longer days: members that freeze, a spool that fills, keeping and compacting, a second
//! signal, and what an operator sees of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod follow_support;

use std::time::{Duration, Instant};

use follow_support::{
    LIMIT, Place, hash, metrics, number, put_file, remove_dir, revision, wait_end, wait_log, write_some,
};
use quorate_testkit::{Cluster, FaultyS3, Launch, Running, Seat, Server, Weather, etcd, s3, wait_until};
use rustix::process::Signal;

fn founded(place: &Place, version: &str) -> Cluster {
    let (tools, seats) = (etcd(version), Seat::many(3));
    let all: Vec<String> = seats.iter().map(|seat| format!("{}={}", seat.name, seat.peer_url())).collect();
    let launch = |seat: &Seat| {
        Launch::new(&tools, seat, &place.path(&seat.name))
            .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
            .arg(format!("--initial-cluster={}", all.join(",")))
    };
    Cluster::launch(seats.iter().map(launch).collect())
}

/// The first member is made the leader.
fn lead_with_first(cluster: &Cluster) {
    let statuses = cluster.ctl_json(&["endpoint", "status"]);
    let of = |at: usize, what: &str| statuses[at]["Status"][what].as_u64();
    let first = statuses[0]["Status"]["header"]["member_id"].as_u64().unwrap();
    if of(0, "leader") != Some(first) {
        cluster.ctl(&["move-leader", &format!("{first:x}")]);
    }
}

#[test]
fn a_leader_that_freezes_and_comes_back_leaves_no_seam() {
    let place = Place::new();
    let cluster = founded(&place, "sid");
    lead_with_first(&cluster);
    let mut follower = place.follow(&cluster.endpoints(), "spool", &["--full-schedule", "every 1h"]);
    wait_log(&follower, "stored a full backup and read it back");
    write_some(&cluster.servers[1], "whole");
    place.wait_stored(revision(&cluster.servers[1]));
    cluster.servers[0].running.signal(Signal::STOP);
    let other = &cluster.servers[1];
    wait_until("another member leads", LIMIT, || other.try_ctl(&["put", "another", "leads"]).is_ok());
    write_some(other, "frozen");
    place.wait_stored(revision(other));
    wait_log(&follower, "watching again");
    cluster.servers[0].running.signal(Signal::CONT);
    write_some(other, "thawed");
    place.wait_stored(revision(other));
    assert!(follower.ended().is_none());
    assert!(follower.stop().success(), "{}", follower.log());
    place.assert_seamless();
    assert_eq!(place.fulls(), 1);
    place.assert_equals(other, "restored");
    let newest = revision(other);
    assert_eq!(hash(&cluster.servers[2], newest), hash(other, newest), "the cluster itself is of one mind");
}

#[test]
fn a_full_spool_waits_for_the_store_and_then_goes_on_without_a_hole() {
    let place = Place::new();
    let server = place.etcd("3.5.16");
    let more = ["--spool-max", "64KiB", "--delta-size", "16KiB", "--metrics-listen", "http://127.0.0.1:0"];
    let mut follower = place.follow(&server.seat.client_url(), "spool", &more);
    wait_log(&follower, "stored a full backup and read it back");
    place.hide_deltas();
    let value = "v".repeat(4096);
    for at in 0..40 {
        server.ctl(&["put", &format!("key-{at}"), &value]);
    }
    wait_log(&follower, "Q0852");
    let told = metrics(&follower, &[]);
    assert!(told.contains("\nquorate_backup_paused 1\n"), "{told}");
    assert!(number(&told, "quorate_backup_spool_bytes") >= 65536.0, "{told}");
    // What is on its way when it fills is taken; what comes then is left to etcd.
    for at in 40..80 {
        server.ctl(&["put", &format!("key-{at}"), &value]);
    }
    assert!(place.spooled() < 40 * 4200, "{}", place.spooled());
    assert!(follower.ended().is_none());
    place.show_deltas();
    wait_log(&follower, "the spool has room again");
    place.wait_stored(revision(&server));
    assert!(follower.stop().success(), "{}", follower.log());
    place.assert_seamless();
    assert_eq!(place.fulls(), 1);
    place.assert_equals(&server, "restored");
}

const KEEP_ONE: [&str; 12] = [
    "--keep-last",
    "1",
    "--keep-hourly",
    "0",
    "--keep-daily",
    "0",
    "--keep-weekly",
    "0",
    "--keep-monthly",
    "0",
    "--keep-history",
    "0",
];

#[test]
fn what_need_not_be_kept_goes_after_a_full_that_was_read_back() {
    let place = Place::new();
    let server = place.etcd("sid");
    let url = server.seat.client_url();
    for round in ["one", "two", "three"] {
        write_some(&server, round);
        place.backup(&["now", "--store", &place.store, "--endpoints", &url]).unwrap();
    }
    let schedule: &[&str] = &["--full-schedule", "*/2 * * * * *"];
    let mut follower = place.follow(&url, "spool", &[schedule, &KEEP_ONE[..]].concat());
    wait_log(&follower, "removed what need not be kept");
    write_some(&server, "four");
    place.wait_stored(revision(&server));
    assert!(follower.stop().success(), "{}", follower.log());
    let fulls = place.fulls();
    assert!((1..=2).contains(&fulls), "one stays, and one that was under way: {fulls}");
    place.assert_equals(&server, "restored");
}

#[test]
fn a_chain_that_takes_long_to_restore_becomes_a_full() {
    let place = Place::new();
    let server = place.etcd("sid");
    let url = server.seat.client_url();
    let mut follower = place.follow(&url, "spool", &[]);
    wait_log(&follower, "stored a full backup and read it back");
    for round in ["one", "two"] {
        write_some(&server, round);
        place.wait_stored(revision(&server));
    }
    assert!(follower.stop().success());
    let mut follower = place.follow(&url, "spool", &["--max-restore-time", "0ms"]);
    wait_log(&follower, "compacted the chain");
    write_some(&server, "three");
    place.wait_stored(revision(&server));
    assert!(follower.stop().success(), "{}", follower.log());
    assert_eq!(place.fulls(), 2, "{}", follower.log());
    place.assert_seamless();
    place.assert_equals(&server, "restored");
}

#[test]
fn a_store_that_comes_back_while_it_is_ending_gets_everything() {
    let place = Place::new();
    let server = place.etcd("sid");
    let listen = ["--flush-timeout", "15s", "--metrics-listen", "http://127.0.0.1:0"];
    let mut follower = place.follow(&server.seat.client_url(), "spool", &listen);
    wait_log(&follower, "stored a full backup and read it back");
    place.hide_deltas();
    write_some(&server, "while away");
    // By now it waits for seconds between attempts.
    wait_until("it fails again and again", LIMIT, || failed_deltas(&follower) >= 4.0);
    place.show_deltas();
    let begun = Instant::now();
    assert!(follower.stop().success(), "{}", follower.log());
    assert!(begun.elapsed() < Duration::from_secs(4) && follower.log().contains("everything recorded is in the store"));
    place.assert_equals(&server, "restored");
}

fn failed_deltas(follower: &Running) -> f64 {
    number(&metrics(follower, &[]), "quorate_backup_failures_total{kind=\"delta\"}")
}

#[test]
fn an_outage_is_told_once_and_a_second_signal_ends_at_once() {
    let mut place = Place::new();
    let bucket = s3();
    let weather = FaultyS3::start(&bucket, 7, Weather::Healthy);
    (place.store, place.env) = (bucket.url("prod"), bucket.env_at(&weather.endpoint()));
    let server = place.etcd("sid");
    let url = server.seat.client_url();
    let mut follower =
        place.follow(&url, "spool", &["--flush-timeout", "1h", "--metrics-listen", "http://127.0.0.1:0"]);
    wait_log(&follower, "stored a full backup and read it back");
    let before = follower.log().lines().count();
    weather.set(Weather::Down);
    write_some(&server, "while down");
    wait_log(&follower, "a delta stays in the spool");
    wait_until("it fails again and again", LIMIT, || failed_deltas(&follower) >= 3.0);
    let log = follower.log();
    let told: Vec<&str> = log.lines().skip(before).collect();
    assert!(told.len() <= 3, "one line for the outage, and few others: {told:#?}");
    follower.signal(Signal::TERM);
    wait_log(&follower, "stopping");
    assert!(follower.ended().is_none());
    let begun = Instant::now();
    follower.signal(Signal::TERM);
    assert_eq!(wait_end(&mut follower), 75, "{}", follower.log());
    assert!(begun.elapsed() < Duration::from_secs(5) && follower.log().contains("Q0854"), "{}", follower.log());
    weather.set(Weather::Healthy);
    let mut follower = place.follow(&url, "spool", &[]);
    place.wait_stored(revision(&server));
    assert!(follower.stop().success(), "{}", follower.log());
    place.assert_seamless();
    place.assert_equals(&server, "restored");
}

/// A user that may read records deltas; fulls are taken by another. Without one nothing can be restored, and that is said.
fn deltas_need_no_more_than_reading(version: &str) {
    let place = Place::new();
    let server = place.etcd(version);
    let _ = server.try_ctl(&["role", "add", "root"]);
    let setup = [
        "user add root:secret",
        "user grant-role root root",
        "user add reader:quiet",
        "role add read-all",
        "role grant-permission read-all read  --prefix=true",
        "user grant-role reader read-all",
        "auth enable",
    ];
    for words in setup {
        server.ctl(&words.split(' ').collect::<Vec<_>>());
    }
    put_file(&place.path("root"), "secret\n");
    put_file(&place.path("reader"), "quiet\n");
    let url = server.seat.client_url();
    let file = |name: &str| place.path(name).display().to_string();
    let (reader, root) = (file("reader"), file("root"));
    let login = ["--user", "reader", "--password-file", &reader, "--metrics-listen", "http://127.0.0.1:0"];
    let put = |key: &str| server.ctl(&["--user", "root:secret", "put", key, "v"]);
    put("one");
    let mut follower = place.follow(&url, "spool", &login);
    wait_log(&follower, "cannot take a full backup");
    assert!(follower.log().contains("docs/guide/backup-role.md"), "{}", follower.log());
    put("two");
    wait_log(&follower, "stored a delta");
    let told = metrics(&follower, &[]);
    assert_eq!(number(&told, "quorate_backup_stored_revision"), 0.0, "{told}");
    assert!(follower.stop().success());
    wait_log(&follower, "stopped before the full backup was stored");
    let mut follower = place.follow(&url, "spool", &login);
    wait_log(&follower, "cannot take a full backup");
    let by_root = ["now", "--store", &place.store, "--endpoints", &url, "--user", "root", "--password-file", &root];
    place.backup(&by_root).unwrap();
    wait_log(&follower, "somebody else has stored a full backup");
    put("three");
    wait_log(&follower, "stored a delta");
    wait_until("it is restorable", LIMIT, || number(&metrics(&follower, &[]), "quorate_backup_stored_revision") == 4.0);
    assert!(follower.stop().success(), "{}", follower.log());
    wait_log(&follower, "everything recorded is in the store");
    place.backup(&["verify", "--store", &place.store]).unwrap();
    assert_eq!(place.reach(), 4, "{}", place.list());
}

#[test]
fn deltas_need_no_more_than_reading_on_3_4() {
    deltas_need_no_more_than_reading("3.4.23");
}

#[test]
fn deltas_need_no_more_than_reading_on_3_5() {
    deltas_need_no_more_than_reading("3.5.16");
}

#[test]
fn deltas_need_no_more_than_reading_on_the_newest() {
    deltas_need_no_more_than_reading("sid");
}

#[test]
fn a_first_start_waits_for_the_store_and_a_spool_that_was_lost_is_made_up_for() {
    let place = Place::new();
    let server = place.etcd("sid");
    let url = server.seat.client_url();
    // A link to itself can be neither made, listed nor written to, not even by root.
    std::os::unix::fs::symlink("store", place.path("store")).unwrap();
    let mut follower = place.follow(&url, "spool", &[]);
    wait_log(&follower, "Q0802");
    write_some(&server, "before the first full");
    std::fs::remove_file(place.path("store")).unwrap();
    wait_log(&follower, "stored a full backup and read it back");
    assert!(follower.stop().success());
    remove_dir(&place.path("spool"));
    write_some(&server, "without a spool");
    let mut follower = place.follow(&url, "spool", &[]);
    place.wait_stored(revision(&server));
    assert!(follower.stop().success(), "{}", follower.log());
    place.assert_seamless();
    assert_eq!(place.fulls(), 1);
    place.assert_equals(&server, "restored");
}

#[test]
fn history_that_is_compacted_while_the_watch_is_away_is_said_and_a_full_bridges_it() {
    let place = Place::new();
    let server = place.etcd("3.5.16");
    let (tools, seat) = (server.tools.clone(), server.seat.clone());
    let mut follower = place.follow(&seat.client_url(), "spool", &["--full-schedule", "every 1h"]);
    wait_log(&follower, "stored a full backup and read it back");
    write_some(&server, "seen");
    place.wait_stored(revision(&server));
    server.stop();
    // Where the follower does not find it.
    let hidden = Server::start(&tools, &Seat::new("n1"), &place.path("data"));
    write_some(&hidden, "unseen");
    let last = revision(&hidden);
    hidden.ctl(&["compact", &last.to_string()]);
    hidden.stop();
    let server = Server::start(&tools, &seat, &place.path("data"));
    wait_log(&follower, "Q0851");
    write_some(&server, "after");
    place.wait_stored(revision(&server));
    assert!(follower.ended().is_none());
    assert!(follower.stop().success(), "{}", follower.log());
    assert!(follower.log().contains("the oldest it has"), "{}", follower.log());
    place.backup(&["verify", "--store", &place.store]).unwrap();
    assert_eq!(place.fulls(), 2, "what is missing is bridged by a second full");
    place.assert_equals(&server, "restored");
}
