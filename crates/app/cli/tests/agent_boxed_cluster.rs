//! A living cluster whose etcds run in the box that they get where nothing is said about it: founded, grown by a member with a WAL
//! dir of its own, changed and shrunk, with certificates that lie beside the state.

mod change_support;
mod cluster_support;

use std::os::unix::fs::{MetadataExt, chown};

use change_support::{LIMIT, Net};
use quorate_testkit::wait_until;

fn usual_level() -> &'static str {
    if rustix::process::geteuid().is_root() { "strict" } else { "basic" }
}

#[track_caller]
fn assert_boxed(net: &Net, members: &[usize]) {
    for at in members {
        let status = net.wait(*at, "serving member in its box", |status| {
            status["phase"] == "serving" && status["etcd"]["box"] == usual_level()
        });
        assert!(!status["warnings"].to_string().contains("Q1109"), "{status:#}");
    }
}

#[test]
fn a_cluster_is_founded_grown_changed_and_shrunk_in_the_usual_boxes() {
    // The oldest one that is kept: it reads its settings and certificates in its own way.
    let mut net = Net::new("3.4.23", 3);
    net.boxes = String::new();
    net.member_more = format!(", wal-dir: {}/wal-NUMBER/wal", net.root.path().display());
    for number in 1..=3 {
        std::fs::create_dir(net.path(&format!("wal-{number}"))).unwrap();
    }
    net.found(&[0]);
    assert_boxed(&net, &[0]);
    let load = net.load(0);
    load.goes_on(20);
    // Whoever joins has no WAL yet, and etcd makes it beside its place: where that is not its user's, it is not started.
    let user = net.data(0).metadata().unwrap();
    let parent = net.path("wal-2");
    net.begin(&[0, 1]);
    net.give_to(1, &net.text(&[0, 1]));
    net.start(1);
    if usual_level() == "strict" {
        assert_ne!(user.uid(), 0);
        let status = net.wait(1, "way out", |status| status["code"] == "Q1108");
        assert!(
            status["way_out"].as_str().is_some_and(|way| way.contains(&format!("chown {}", user.uid()))),
            "{status}"
        );
        assert!(!parent.join("wal").exists());
        for at in [1, 2] {
            chown(net.path(&format!("wal-{}", at + 1)), Some(user.uid()), Some(user.gid())).unwrap();
        }
    }
    net.apply(&[0, 1]);
    net.apply(&[0, 1, 2]);
    net.assert_voters(&[0, 1, 2]);
    assert_boxed(&net, &[0, 1, 2]);
    assert_eq!(parent.join("wal").metadata().unwrap().uid(), user.uid());
    load.goes_on(20);
    // Killed at once, it is back with all it had: its WAL is found where the file says.
    net.power_off(1);
    net.start(1);
    assert_boxed(&net, &[1]);
    // Another setting: every etcd is started anew, in its turn, in its box again.
    net.more = format!("{}etcd: {{heartbeat-interval: 100, election-timeout: 1000, snapshot-count: 5000}}\n", net.more);
    net.apply(&[0, 1, 2]);
    assert_boxed(&net, &[0, 1, 2]);
    net.apply(&[0]);
    net.assert_voters(&[0]);
    for at in [1, 2] {
        net.wait(at, "tombstone", |status| status["ledger"] == "tombstone" && status["etcd"].is_null());
        wait_until("its data is renamed", LIMIT, || !net.data(at).exists());
    }
}
