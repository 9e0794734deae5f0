//! Joins and detaches whose originator, newcomer and leader are killed at every named point, one after the other: they end joined
//! or detached, and nothing is left between.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;
mod peers_support;

use peers_support::{ByHand, LIMIT};
use quorate_testkit::wait_until;

/// Points of whoever carries a change out, in their order, up to where the file is with everyone. Whatever was killed at one goes on,
/// and is killed at the next.
const HANDING: [&str; 5] = ["reserved", "claimed", "given", "file-out", "file-here"];
/// Those after it.
const CLOSING: [&str; 2] = ["closing", "closed"];
/// Points of the command on the newcomer.
const NEWCOMER: [&str; 4] = ["join-claimed", "join-granted", "join-certified", "join-filed"];
/// Points of the newcomer's agent, up to its vote; the leader is killed while it lies dead at one.
const LEARNER: [&str; 4] = ["added", "added-written", "started", "promoted"];

/// Points of the agent of a node that leaves, in their order. Its data is renamed beside what it writes down of its role, so that has a
/// row of its own.
const LEAVING: [&[&str]; 2] =
    [&["handed-over", "buried", "detached", "detached-written"], &["handed-over", "set-aside"]];

#[test]
fn kills_at_every_point_of_a_join_and_of_a_detach_end_joined_and_detached() {
    let mut net = ByHand::new(3);
    net.standalone(0, "10m");
    let code = net.invite(0, "10m");
    net.join(1, &code);
    net.start(1, &[]);
    net.wait_operation(0, "n2", "joined");
    let full = std::env::var("QUORATE_SWEEP").is_ok_and(|sweep| sweep == "full");
    for point in if full { &LEARNER[..] } else { &LEARNER[..1] } {
        joins(&mut net, point);
        net.assert_voters(0, &[0, 1, 2]);
        assert_nothing_between(&net);
        detaches(&mut net);
        net.assert_voters(0, &[0, 1]);
        assert_nothing_between(&net);
        if *point != LEARNER[LEARNER.len() - 1] && full {
            wait_until("n3 knows that it is detached", LIMIT, || net.role(2) == "detached");
            net.kill_agent(2);
        }
    }
    wait_until("n3 knows that it is detached", LIMIT, || net.role(2) == "detached");
    wait_until("its data is renamed", LIMIT, || !net.data(2).exists());
}

#[test]
fn kills_of_who_leaves_and_of_who_removes_it_end_detached() {
    let mut net = ByHand::new(3);
    net.standalone(0, "10m");
    let full = std::env::var("QUORATE_SWEEP").is_ok_and(|sweep| sweep == "full");
    for (round, points) in LEAVING.iter().take(if full { LEAVING.len() } else { 1 }).enumerate() {
        for at in if round == 0 { 1..3 } else { 2..3 } {
            let code = net.invite(0, "10m");
            net.join(at, &code);
            net.start(at, &[]);
            net.wait_operation(0, &format!("n{}", at + 1), "joined");
        }
        net.try_ctl(0, &["put", "k", "v"]).unwrap();
        leaves_as_the_leader(&mut net, points);
        net.kill_agent(2);
    }
}

/// The node leads, and its agent dies when it has handed over; whoever leads then dies when it has removed it, with its etcd; and the
/// node dies at every point up to what it is from then on.
fn leaves_as_the_leader(net: &mut ByHand, points: &[&str]) {
    for at in [0, 1] {
        net.restart_to_end_at(at, "removed");
    }
    net.restart_to_end_at(2, points[0]);
    for at in [0, 1, 2] {
        net.wait(at, "service", |status| status["phase"] == "serving");
    }
    net.make_leader(2, &[0, 1, 2]);
    assert!(!net.quorate(0, &["peer", "detach", "n3", "--wait", "0s"], "").status.success());
    net.wait_end(2);
    let ended = |net: &mut ByHand| [0, 1].into_iter().find(|at| net.agents[*at].as_mut().unwrap().ended().is_some());
    // Another one may lead by the hand of the node alone: it is off until then, as far as its agent goes.
    net.restart_to_end_at(2, points[1]);
    let mut removed = None;
    wait_until("somebody has removed it", LIMIT, || {
        removed = ended(net);
        removed.is_some()
    });
    let removed = removed.unwrap();
    net.power_off(removed);
    net.restart_to_end_at(removed, "closed");
    net.wait_end(2);
    for point in &points[2..] {
        net.restart_to_end_at(2, point);
        net.wait_end(2);
    }
    net.start(2, &[]);
    // The originator closes it, whoever of the two it was, or its heir does.
    for at in [0, 1] {
        net.kill_agent(at);
        net.start(at, &[]);
    }
    net.wait_operation(0, "n3", "detached");
    wait_until("n3 knows that it is detached", LIMIT, || net.role(2) == "detached");
    wait_until("its data is renamed", LIMIT, || !net.data(2).exists());
    net.wait(0, "service", |status| status["phase"] == "serving");
    net.assert_voters(0, &[0, 1]);
    assert_nothing_between(net);
    assert_eq!(net.try_ctl(0, &["get", "k", "--print-value-only"]).unwrap(), "v\n");
}

/// Nobody holds the right to change peers, and every agent says so.
fn assert_nothing_between(net: &ByHand) {
    let keys = net.try_ctl(0, &["get", "quorate/peers/", "--prefix", "--keys-only"]).unwrap();
    assert!(keys.contains("/file") && !keys.contains("/operation"), "{keys}");
}

/// `point`: where the agent of the newcomer dies on its way to its vote.
fn joins(net: &mut ByHand, point: &str) {
    let code = net.invite(0, "10m");
    let words: Vec<String> = net.join_words(2, &code);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // The inviter dies while it says yes: the newcomer hears nothing.
    serve_until(net, HANDING[0]);
    assert!(!net.quorate(2, &words, &code).status.success());
    net.wait_end(0);
    die_at(net, &HANDING[1..]);
    // The newcomer asks again, and dies wherever it comes to.
    net.start(0, &[]);
    for point in NEWCOMER {
        net.env = vec![("QUORATE_END_AT".to_owned(), point.to_owned())];
        let ended = net.quorate(2, &words, &code);
        assert_eq!(ended.status.code(), None, "{point}: it was killed");
        net.env.clear();
    }
    net.join(2, &code);
    net.join(2, &code);
    net.restart_to_end_at(2, point);
    net.wait_end(2);
    close_without_the_leader(net, |net| net.start(2, &[]));
    net.wait_operation(0, "n3", "joined");
}

fn detaches(net: &mut ByHand) {
    serve_until(net, HANDING[0]);
    assert!(!net.quorate(0, &["peer", "detach", "n3", "--wait", "0s"], "").status.success());
    net.wait_end(0);
    die_at(net, &HANDING[1..]);
    // The node that leaves is off for a moment, and so is whoever leads.
    net.power_off(2);
    close_without_the_leader(net, |net| net.start(2, &[]));
    net.wait_operation(0, "n3", "detached");
}

fn serve_until(net: &mut ByHand, point: &str) {
    net.restart_to_end_at(0, point);
    net.wait(0, "service", |status| status["phase"] == "serving");
}

/// The agent of the carrier comes back, goes on, and dies at the next point, once for each.
fn die_at(net: &mut ByHand, points: &[&str]) {
    for point in points {
        net.restart_to_end_at(0, point);
        net.wait_end(0);
    }
}

/// The machine of whoever leads goes off and on again, and the carrier dies before and after it closes the change.
fn close_without_the_leader(net: &mut ByHand, meanwhile: impl Fn(&mut ByHand)) {
    let [closing, closed] = CLOSING;
    net.restart_to_end_at(0, closing);
    let leader = net.leader(&[0, 1]);
    net.power_off(leader);
    match leader {
        0 => net.restart_to_end_at(0, closing),
        _ => net.start(leader, &[]),
    }
    meanwhile(net);
    net.wait_end(0);
    die_at(net, &[closed]);
    net.start(0, &[]);
}
