//! Clusters that shrink, and members that are drained: nobody leaves twice, and the last one not at all.

mod change_support;
mod cluster_support;

use change_support::{LIMIT, Net};
use quorate_testkit::wait_until;

#[test]
fn kills_in_the_middle_of_shrinking_delay_it_and_lose_nothing() {
    let mut net = Net::new("3.5.16", 3);
    net.found(&[0, 1, 2]);
    let load = net.load(0);
    load.goes_on(20);
    // The command is killed after the nodes have the file, and the leader's agent with it.
    net.begin(&[0]);
    let leader = net.leader(&[0, 1, 2]);
    net.kill_agent(leader);
    net.start(leader);
    net.apply(&[0]);
    net.assert_voters(&[0]);
    load.goes_on(20);
    load.finish();
    for at in [1, 2] {
        net.wait(at, "tombstone", |status| status["ledger"] == "tombstone");
        // It does not come back by itself, also not after a restart of its agent.
        net.kill_agent(at);
        net.start(at);
        let status = net.wait(at, "refusal", |status| status["phase"] == "refused");
        assert_eq!(status["code"], "Q0941", "{status:#}");
    }
    net.assert_voters(&[0]);
}

#[test]
fn a_member_leaves_when_it_is_drained_once_or_twice_and_the_last_one_does_not() {
    let mut net = Net::new("3.4.23", 2);
    net.found(&[0, 1]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let leader = net.leader(&[0, 1]);
    let (other, name) = (1 - leader, format!("n{}", leader + 1));
    let file = net.shown(&format!("{name}.yaml"));
    let config = ["--config", file.as_str(), "--name", name.as_str()];
    // Drained to come back: it leads no more, and stays.
    let said = net.done(leader, &[&["cluster", "drain", &name], &config[..]].concat());
    assert!(said.contains("handed leadership to member"), "{said}");
    let said = net.done(leader, &[&["cluster", "drain", &name], &config[..]].concat());
    assert!(said.contains("does not lead"), "{said}");
    net.assert_voters(&[0, 1]);
    // As BOSH does it: one integer, and a second time the same.
    for _ in 0..2 {
        let output = net.quorate(leader, &[&["drain", "--leave"], &config[..]].concat());
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{}", change_support::said(&output));
        assert!(output.status.success());
    }
    net.done(leader, &[&["cluster", "drain", &name, "--leave"], &config[..]].concat());
    net.assert_voters(&[other]);
    net.try_ctl(other, &["get", "k"]).unwrap();
    wait_until("its data is renamed", LIMIT, || !net.data(leader).exists());
    // The last one.
    let last = format!("n{}", other + 1);
    let file = net.shown(&format!("{last}.yaml"));
    let refused = net.quorate(other, &["cluster", "drain", &last, "--leave", "--config", &file, "--name", &last]);
    assert_eq!(refused.status.code(), Some(5), "{}", change_support::said(&refused));
    assert!(change_support::said(&refused).contains("Q0955"), "{}", change_support::said(&refused));
    net.try_ctl(other, &["put", "k", "w"]).unwrap();
}

#[test]
fn a_cluster_that_is_torn_down_stops_keeps_every_byte_and_comes_back() {
    let mut net = Net::new("3.5.16", 2);
    net.found(&[0, 1]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let file = net.shown("n1.yaml");
    net.done(0, &["cluster", "teardown", "--yes", "--config", &file, "--name", "n1"]);
    for at in [0, 1] {
        let status = net.wait(at, "stop", |status| status["etcd"].is_null() && status["phase"] == "refused");
        assert_eq!(status["code"], "Q0958", "{status:#}");
        assert!(net.data(at).exists());
    }
    // Nothing starts it again by itself.
    net.kill_agent(0);
    net.start(0);
    net.wait(0, "refusal", |status| status["code"] == "Q0958");
    net.done(0, &["cluster", "teardown", "--cancel", "--config", &file, "--name", "n1"]);
    for at in [0, 1] {
        net.wait(at, "serving", |status| status["phase"] == "serving");
    }
    assert!(net.try_ctl(0, &["get", "k"]).unwrap().contains('v'));
}
