//! Members that are replaced under writes: a machine that lives, one that is gone for good, and data that is damaged.
//!
//! **Rule:** no acknowledged write is lost, and what was there before is renamed and still whole.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use change_support::{LIMIT, Net, said};
use quorate_testkit::wait_until;

/// What lies beside a data dir that was renamed.
fn renamed(net: &Net, at: usize) -> Vec<PathBuf> {
    let before = format!("{}.", net.data(at).file_name().unwrap().to_string_lossy());
    let beside = std::fs::read_dir(net.root.path()).unwrap().flatten();
    let named = beside.filter(|entry| entry.file_name().to_string_lossy().starts_with(&before));
    named.map(|entry| entry.path()).filter(|path| path.join("member/snap/db").exists()).collect()
}

fn mv(from: &Path, to: &Path) {
    quorate_testkit::run(std::process::Command::new("mv").arg(from).arg(to));
}

/// Which member a node is, as the cluster lists it.
fn id_of(net: &Net, at: usize) -> String {
    let list = net.try_ctl(0, &["member", "list"]).unwrap();
    let line = list.lines().find(|line| line.contains(&format!(", n{}, ", at + 1)));
    line.unwrap_or_else(|| panic!("{list}")).split(',').next().unwrap().to_owned()
}

/// It is off, and all that was on it is gone.
fn lose_machine(net: &mut Net, at: usize) {
    net.power_off(at);
    for dir in [net.data(at), net.state(at)] {
        mv(&dir, &dir.with_extension("gone"));
    }
}

#[test]
fn a_machine_that_lives_is_replaced_by_one_that_joins_before_it_leaves() {
    for version in ["3.4.23", "3.5.16"] {
        let mut net = Net::new(version, 4);
        net.found(&[0, 1, 2]);
        let load = net.load(0);
        load.goes_on(20);
        // As long as the new one does not run, the old one stays.
        net.begin(&[0, 1, 3]);
        let words = ["cluster", "apply", &net.shown("new.yaml"), "--yes", "--wait", "3s", "--name", "n1"];
        let waits = net.quorate(0, &words);
        assert_eq!(waits.status.code(), Some(3), "{}", said(&waits));
        net.assert_voters(&[0, 1, 2]);
        load.goes_on(20);
        net.apply(&[0, 1, 3]);
        net.assert_voters(&[0, 1, 3]);
        load.goes_on(20);
        let status = net.wait(2, "tombstone", |status| status["ledger"] == "tombstone");
        assert!(status["etcd"].is_null(), "{status:#}");
        wait_until("its data is renamed", LIMIT, || !net.data(2).exists() && renamed(&net, 2).len() == 1);
        let seen = load.finish();
        assert!(net.try_ctl(3, &["get", "w/00000000"]).unwrap().contains('v'), "{version}: {seen:?}");
    }
}

#[test]
fn a_machine_that_is_gone_for_good_is_replaced_by_another_one_and_nobody_waits_for_it() {
    for version in ["3.4.23", "sid"] {
        let mut net = Net::new(version, 4);
        net.found(&[0, 1, 2]);
        let load = net.load(0);
        load.goes_on(20);
        net.power_off(2);
        net.give_to(3, &net.text(&[0, 1, 3]));
        net.start(3);
        // The operator's own copy.
        let new = net.shown("new.yaml");
        quorate_testkit::run(std::process::Command::new("cp").args([&net.shown("n4.yaml"), &new]));
        // One call, from the first step to the last, though the one that leaves never answers.
        net.done(0, &["cluster", "apply", &new, "--yes", "--wait", "120s", "--name", "n1"]);
        net.assert_voters(&[0, 1, 3]);
        load.goes_on(20);
        load.finish();
        assert!(net.data(2).exists(), "{version}: the data of a machine that is off is its own");
    }
}

#[test]
fn a_machine_that_is_gone_for_good_is_replaced_under_its_name_at_another_address() {
    for version in ["3.4.23", "3.5.16", "sid"] {
        let mut net = Net::new(version, 3);
        net.found(&[0, 1, 2]);
        let load = net.load(0);
        load.goes_on(20);
        let before = id_of(&net, 2);
        // Another machine with nothing on it: whatever the old one had is gone with it.
        lose_machine(&mut net, 2);
        net.move_host(2);
        net.drop_address(2);
        load.goes_on(20);
        net.apply(&[0, 1, 2]);
        net.assert_voters(&[0, 1, 2]);
        assert_ne!(id_of(&net, 2), before, "{version}: another member");
        let list = net.try_ctl(0, &["member", "list"]).unwrap();
        assert!(list.contains(&format!("https://{}:2380", net.address(2))), "{version}: {list}");
        load.goes_on(20);
        load.finish();
        net.try_ctl(2, &["endpoint", "health"]).unwrap();
    }
}

#[test]
fn a_machine_that_is_gone_for_good_is_replaced_by_an_empty_one_at_its_address() {
    let mut net = Net::new("3.5.16", 3);
    net.found(&[0, 1, 2]);
    let load = net.load(0);
    load.goes_on(20);
    let before = id_of(&net, 2);
    lose_machine(&mut net, 2);
    load.goes_on(20);
    net.start(2);
    net.wait(2, "service", |status| status["phase"] == "serving" && status["ledger"] == "started");
    net.assert_voters(&[0, 1, 2]);
    assert_ne!(id_of(&net, 2), before);
    load.goes_on(20);
    load.finish();
}

#[test]
fn data_that_is_damaged_while_a_quorum_lives_is_set_aside_and_copied_from_the_others() {
    for version in ["3.4.23", "3.5.16"] {
        let mut net = Net::new(version, 3);
        net.found(&[0, 1, 2]);
        let load = net.load(0);
        let value = "x".repeat(100_000);
        for number in 0..5 {
            net.try_ctl(1, &["put", &format!("fill/{number}"), &value]).unwrap();
        }
        load.goes_on(20);
        // Ended in order once, so that all of it is in the database; then its machine goes off, and its disk has lost some.
        assert!(net.agents[2].take().unwrap().stop().success());
        net.start(2);
        net.wait(2, "service", |status| status["phase"] == "serving");
        let before = id_of(&net, 2);
        net.power_off(2);
        let database = net.data(2).join("member/snap/db");
        let file = std::fs::OpenOptions::new().write(true).open(&database).unwrap();
        file.write_all_at(&[0; 256 << 10], 64 << 10).unwrap();
        drop(file);
        let damaged = std::fs::read(&database).unwrap();
        net.start(2);
        let joined = |status: &serde_json::Value| {
            let done = status["done"].to_string();
            // Its own agent or that of the leader asks for its vote.
            status["phase"] == "serving" && status["ledger"] == "started" && done.contains("to be added anew")
        };
        net.wait(2, "joined again", joined);
        net.assert_voters(&[0, 1, 2]);
        assert_ne!(id_of(&net, 2), before, "{version}: another member, which learned first");
        let kept = renamed(&net, 2);
        assert_eq!(kept.len(), 1, "{version}: {kept:?}");
        assert!(std::fs::read(kept[0].join("member/snap/db")).unwrap() == damaged, "{version}: a byte was changed");
        load.goes_on(20);
        load.finish();
        let told = net.try_ctl(2, &["get", "fill/4", "--print-value-only"]).unwrap();
        assert!(told.trim() == value, "{version}: {} bytes", told.len());
    }
}
