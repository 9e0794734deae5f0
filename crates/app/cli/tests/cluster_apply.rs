//! Files that are applied: what was approved or nothing, settings that reach every member in its turn, addresses that move.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;

use std::io::Write;

use change_support::{Net, said};
use serde_json::Value;

fn plan_hash(net: &Net, file: &str) -> String {
    let output = net.quorate(0, &["cluster", "plan", file, "--name", "n1", "--output", "json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
    shown["change"]["hash"].as_str().unwrap_or_else(|| panic!("{shown:#}")).to_owned()
}

fn put(net: &Net, name: &str, text: &str) -> String {
    std::fs::File::create(net.path(name)).unwrap().write_all(text.as_bytes()).unwrap();
    net.shown(name)
}

#[test]
fn the_approved_plan_is_done_or_nothing() {
    let mut net = Net::new("3.5.16", 3);
    net.found(&[0, 1, 2]);
    let two = put(&net, "two.yaml", &net.text(&[0, 1]));
    let hash = plan_hash(&net, &two);
    assert_eq!(plan_hash(&net, &two), hash, "the same change has the same hash");
    let other = put(&net, "other.yaml", &net.text(&[0, 2]));
    assert_ne!(plan_hash(&net, &other), hash);
    // Neither unconfirmed nor another plan than the approved one.
    let unconfirmed = net.quorate(0, &["cluster", "apply", &two, "--name", "n1"]);
    assert_eq!(unconfirmed.status.code(), Some(64), "{}", said(&unconfirmed));
    let stale = net.quorate(0, &["cluster", "apply", &other, "--plan", &hash, "--name", "n1"]);
    assert_eq!(stale.status.code(), Some(5), "{}", said(&stale));
    assert!(said(&stale).contains("Q0989"), "{}", said(&stale));
    net.assert_voters(&[0, 1, 2]);
    // A file of another cluster is refused by the agents, one with mistakes before anyone is asked.
    let foreign = put(&net, "foreign.yaml", &net.text(&[0, 1]).replace("token: t\n", "token: u\n"));
    let foreign = net.quorate(0, &["cluster", "apply", &foreign, "--yes", "--wait", "1s", "--name", "n1"]);
    assert!(!foreign.status.success(), "{}", said(&foreign));
    let bad = put(&net, "bad.yaml", "token: t\nmembres: []\n");
    assert_eq!(net.quorate(0, &["cluster", "apply", &bad, "--yes"]).status.code(), Some(4));
    net.assert_voters(&[0, 1, 2]);
    // The approved one.
    let done = net.quorate(0, &["cluster", "apply", &two, "--plan", &hash, "--name", "n1", "--wait", "120s"]);
    assert!(done.status.success(), "{}\n{}", said(&done), net.logs());
    net.assert_voters(&[0, 1]);
    // The file from before is kept beside the new one.
    let kept = std::fs::read_dir(net.root.path()).unwrap().flatten();
    assert!(kept.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("n1.yaml.replaced-")));
    // Again, with nothing to do.
    net.done(0, &["cluster", "apply", &two, "--plan", &hash, "--name", "n1"]);
}

#[test]
fn new_settings_reach_every_member_in_its_turn_under_writes() {
    let mut net = Net::new("3.5.16", 3);
    net.found(&[0, 1, 2]);
    let before: Vec<Value> = (0..3).map(|at| net.status(at)["etcd"]["pid"].clone()).collect();
    let load = net.load(0);
    load.goes_on(20);
    net.more += "etcd: {heartbeat-interval: 100, election-timeout: 1000, snapshot-count: 5000}\n";
    net.apply(&[0, 1, 2]);
    for (at, before) in before.iter().enumerate() {
        let status = net.wait(at, "current settings", |status| status["etcd"]["settings_current"] == true);
        assert_ne!(status["etcd"]["pid"], *before, "{status:#}");
    }
    // The watch goes through a member that was restarted, so only what was written counts here.
    net.assert_voters(&[0, 1, 2]);
    drop(load);
}

#[test]
fn releases_change_one_member_at_a_time_and_one_minor_version_at_a_time() {
    let mut net = Net::new("3.5.16", 3);
    net.binary = Some(change_support::releases());
    let agent = |text: String, version: &str| {
        text.replace("  etcd-binary:", &format!("  etcd-version: {version}\n  etcd-binary:"))
    };
    for at in 0..3 {
        net.give_to(at, &agent(net.text(&[0, 1, 2]), "3.4.23"));
    }
    for at in 0..3 {
        net.start(at);
    }
    net.done(0, &["cluster", "bootstrap", &net.shown("n1.yaml"), "--wait", "120s"]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let file = net.shown("n1.yaml");
    let refused = net.quorate(0, &["cluster", "upgrade", "--to", "3.6.1", "--config", &file, "--name", "n1", "--yes"]);
    assert_eq!(refused.status.code(), Some(5), "{}", said(&refused));
    for to in ["3.5.16", "3.5.30"] {
        let words = ["cluster", "upgrade", "--to", to, "--config", &file, "--name", "n1", "--yes", "--without-backup"];
        net.done(0, &[&words[..], &["--wait", "120s"]].concat());
        for at in 0..3 {
            net.wait(at, to, |status| status["etcd"]["version"] == to && status["phase"] == "serving");
        }
        assert!(net.try_ctl(0, &["get", "k"]).unwrap().contains('v'));
    }
    let words =
        ["cluster", "upgrade", "--to", "3.4.23", "--config", &file, "--name", "n1", "--yes", "--without-backup"];
    let back = net.quorate(0, &words);
    assert_eq!(back.status.code(), Some(5), "there is no way back over a minor version: {}", said(&back));
}
