//! Following a cluster: nothing is missed, nothing is stored twice, whatever is stopped or killed.

mod follow_support;

use follow_support::{
    LIMIT, Place, certificates, put_file, rename, revision, transaction, wait_end, wait_log, write_some,
};
use quorate_testkit::{Launch, Seat, Server, VERSIONS, etcd, s3, wait_until};

/// First start, SIGTERM, a restart while etcd was written to, and SIGKILL in the middle: one history without a seam.
fn every_end_is_survived(place: &Place, version: &str) {
    let server = place.etcd(version);
    write_some(&server, "before");
    let url = server.seat.client_url();
    let mut follower = place.follow(&url, "spool", &[]);
    wait_log(&follower, "stored a full backup and read it back");
    write_some(&server, "first");
    assert!(follower.stop().success(), "{}", follower.log());
    assert_eq!(place.reach(), revision(&server), "what was written before SIGTERM is stored: {}", follower.log());
    write_some(&server, "while away");
    let mut follower = place.follow(&url, "spool", &["--delta-period", "1h"]);
    wait_until("it records", LIMIT, || follower.log().contains("following into"));
    write_some(&server, "second");
    wait_until("the writes are spooled", LIMIT, || place.spooled() > 0);
    follower.kill();
    write_some(&server, "third");
    let mut follower = place.follow(&url, "spool", &[]);
    place.wait_stored(revision(&server));
    assert!(follower.stop().success(), "{}", follower.log());
    place.assert_seamless();
    assert_eq!(place.fulls(), 1, "a restart takes no full before it is due");
    place.assert_equals(&server, "restored");
}

#[test]
fn every_end_is_survived_on_3_4() {
    every_end_is_survived(&Place::new(), VERSIONS[0]);
}

#[test]
fn every_end_is_survived_on_3_5() {
    every_end_is_survived(&Place::new(), VERSIONS[1]);
}

#[test]
fn every_end_is_survived_on_the_newest_and_with_a_bucket() {
    let bucket = s3();
    let mut place = Place::new();
    (place.store, place.env) = (bucket.url("prod"), bucket.env());
    every_end_is_survived(&place, VERSIONS[2]);
}

#[test]
fn a_store_that_is_away_costs_nothing_but_time() {
    let place = Place::new();
    let server = place.etcd("sid");
    let mut follower = place.follow(&server.seat.client_url(), "spool", &[]);
    wait_log(&follower, "stored a full backup and read it back");
    place.hide_deltas();
    write_some(&server, "while away");
    wait_log(&follower, "a delta stays in the spool");
    write_some(&server, "and more");
    assert!(follower.ended().is_none());
    place.show_deltas();
    place.wait_stored(revision(&server));
    wait_log(&follower, "the store takes deltas again");
    assert!(follower.stop().success());
    place.assert_seamless();
    place.assert_equals(&server, "restored");
}

#[test]
fn history_that_etcd_compacted_is_replaced_by_a_full_and_said() {
    let place = Place::new();
    let server = place.etcd("sid");
    let url = server.seat.client_url();
    let mut follower = place.follow(&url, "spool", &[]);
    wait_log(&follower, "stored a full backup and read it back");
    write_some(&server, "recorded");
    place.wait_stored(revision(&server));
    follower.kill();
    write_some(&server, "missed");
    server.ctl(&["compact", &revision(&server).to_string()]);
    server.ctl(&["put", "after", "the compaction"]);
    let mut follower = place.follow(&url, "spool", &[]);
    wait_log(&follower, "Q0845");
    place.wait_stored(revision(&server));
    write_some(&server, "again");
    place.wait_stored(revision(&server));
    assert!(follower.stop().success(), "{}", follower.log());
    assert_eq!(place.fulls(), 2);
    place.assert_equals(&server, "restored");
}

#[test]
fn of_two_followers_the_older_one_stops_and_nothing_it_wrote_later_is_read() {
    let place = Place::new();
    let server = place.etcd("sid");
    let url = server.seat.client_url();
    let mut older = place.follow(&url, "spool-1", &[]);
    wait_log(&older, "stored a full backup and read it back");
    write_some(&server, "by the older");
    place.wait_stored(revision(&server));
    let mut newer = place.follow(&url, "spool-2", &[]);
    wait_log(&newer, "epoch=2");
    write_some(&server, "by the newer");
    assert_eq!(wait_end(&mut older), 5, "{}", older.log());
    assert!(older.log().contains("Q0850"), "{}", older.log());
    place.wait_stored(revision(&server));
    assert!(newer.stop().success());
    place.assert_equals(&server, "restored");
}

#[test]
fn leases_come_back_with_the_time_they_were_granted_for() {
    let place = Place::new();
    let server = place.etcd("3.5.16");
    let mut follower = place.follow(&server.seat.client_url(), "spool", &[]);
    wait_log(&follower, "stored a full backup and read it back");
    let granted = server.ctl_json(&["lease", "grant", "4321"]);
    let id = format!("{:x}", granted["ID"].as_i64().unwrap());
    server.ctl(&["put", "leased", "x", &format!("--lease={id}")]);
    place.wait_stored(revision(&server));
    assert!(follower.stop().success());
    let seat = Seat::new("r1");
    let member = format!("r1={}", seat.peer_url());
    let args = ["restore", "--store", &place.store, "--data-dir", "r1", "--exact", "--name", "r1", "--member", &member];
    let said = place.backup(&args).unwrap();
    assert_eq!(said["written"]["leases_granted"].as_u64(), Some(1), "{said}");
    let restored = Launch::new(&server.tools, &seat, &place.path("r1")).start();
    assert_eq!(restored.ctl_json(&["lease", "timetolive", &id])["granted-ttl"].as_i64(), Some(4321));
}

#[test]
fn a_transaction_that_comes_in_many_pieces_stays_in_one_delta() {
    let place = Place::new();
    let server = Launch::new(&etcd("sid"), &Seat::new("n1"), &place.path("data")).arg("--max-txn-ops=1000").start();
    let mut follower = place.follow(&server.seat.client_url(), "spool", &["--delta-size", "1KiB"]);
    wait_log(&follower, "stored a full backup and read it back");
    // etcd cuts what it sends at 1.5 MiB and more; deleting these keys is one transaction of 4 MiB.
    for round in 0..8 {
        let keys: Vec<String> = (0..500).map(|at| format!("key-{round}-{at:0>1000}")).collect();
        transaction(&server, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    }
    server.ctl(&["del", "--prefix", "key-"]);
    server.ctl(&["put", "and", "after"]);
    place.wait_stored(revision(&server));
    assert!(follower.stop().success());
    place.assert_seamless();
    place.assert_equals(&server, "restored");
}

#[test]
fn a_restart_of_etcd_is_followed_through() {
    let place = Place::new();
    let server = place.etcd("3.4.23");
    let (url, tools, seat) = (server.seat.client_url(), server.tools.clone(), server.seat.clone());
    let mut follower = place.follow(&url, "spool", &[]);
    wait_log(&follower, "stored a full backup and read it back");
    write_some(&server, "one");
    server.kill();
    wait_log(&follower, "the watch ended");
    let server = Server::start(&tools, &seat, &place.path("data"));
    write_some(&server, "two");
    place.wait_stored(revision(&server));
    assert!(follower.stop().success(), "{}", follower.log());
    place.assert_seamless();
    place.assert_equals(&server, "restored");
}

#[test]
fn the_layout_of_gardener_is_written_so_that_it_restores() {
    let place = Place::new();
    let server = place.etcd("sid");
    write_some(&server, "before");
    let mut follower =
        place.follow(&server.seat.client_url(), "spool", &["--layout", "gardener", "--full-schedule", "every 1m"]);
    wait_log(&follower, "stored a full backup and read it back");
    write_some(&server, "one");
    place.wait_stored(revision(&server));
    write_some(&server, "two");
    assert!(follower.stop().success(), "{}", follower.log());
    assert!(place.path("store/v2").is_dir() && !place.path("store/quorate-v1").exists());
    place.assert_seamless();
    place.assert_equals(&server, "restored");
}

#[test]
fn users_and_a_password_file_are_enough() {
    let place = Place::new();
    let server = place.etcd("sid");
    for words in ["user add root:secret", "user grant-role root root", "auth enable"] {
        let _ = server.try_ctl(&["role", "add", "root"]);
        server.ctl(&words.split(' ').collect::<Vec<_>>());
    }
    let file = place.path("password");
    put_file(&file, "secret\n");
    let login = ["--user", "root", "--password-file", &file.display().to_string()].map(str::to_owned);
    let login: Vec<&str> = login.iter().map(String::as_str).collect();
    let mut follower = place.follow(&server.seat.client_url(), "spool", &login);
    wait_log(&follower, "stored a full backup and read it back");
    server.ctl(&["--user", "root:secret", "put", "k", "v"]);
    wait_log(&follower, "stored a delta");
    assert!(follower.stop().success());
    assert!(!follower.log().contains("secret"), "{}", follower.log());
    place.backup(&["verify", "--store", &place.store]).unwrap();
}

#[test]
fn a_store_that_is_away_at_a_restart_does_not_hold_up_recording() {
    let place = Place::new();
    let server = place.etcd("sid");
    let url = server.seat.client_url();
    let mut follower = place.follow(&url, "spool", &[]);
    wait_log(&follower, "stored a full backup and read it back");
    write_some(&server, "one");
    place.wait_stored(revision(&server));
    follower.kill();
    // A link to itself can be neither made, listed nor written to, not even by root.
    let (store, aside) = (place.path("store/quorate-v1"), place.path("aside"));
    rename(&store, &aside);
    std::os::unix::fs::symlink("quorate-v1", &store).unwrap();
    let follower = place.follow(&url, "spool", &[]);
    wait_log(&follower, "Q0847");
    write_some(&server, "two");
    wait_until("the writes are spooled", LIMIT, || place.spooled() > 0);
    std::fs::remove_file(&store).unwrap();
    rename(&aside, &store);
    place.wait_stored(revision(&server));
    let mut follower = follower;
    assert!(follower.stop().success(), "{}", follower.log());
    place.assert_seamless();
    place.assert_equals(&server, "restored");
}

#[test]
fn mutual_tls_is_enough() {
    let place = Place::new();
    let (ca, cert, key) = certificates(&place);
    let seat = Seat::new("n1");
    let url = seat.client_url().replace("http://", "https://");
    let _server = Launch::new(&etcd("3.5.16"), &seat, &place.path("data"))
        .arg(format!("--listen-client-urls={url}"))
        .arg(format!("--advertise-client-urls={url}"))
        .arg(format!("--cert-file={cert}"))
        .arg(format!("--key-file={key}"))
        .arg(format!("--trusted-ca-file={ca}"))
        .arg("--client-cert-auth")
        .spawn();
    // It also waits for an etcd that is not there yet.
    let mut follower = place.follow(&url, "spool", &["--cacert", &ca, "--cert", &cert, "--key", &key]);
    wait_log(&follower, "stored a full backup and read it back");
    assert!(follower.stop().success(), "{}", follower.log());
    place.backup(&["verify", "--store", &place.store]).unwrap();
    let stranger = place.backup(&["now", "--store", &place.store, "--endpoints", &url, "--cacert", &ca]).unwrap_err();
    assert!(stranger.contains("wants a client certificate"), "{stranger}");
}
