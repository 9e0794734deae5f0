//! Taking a member over that others made, and letting one go.

mod agent_support;

use std::process::Command;

use agent_support::{LIMIT, Place};
use quorate_testkit::{quorate, run, wait_until};

/// A data dir for the place's member, made with another token than the agent would use.
fn make_data(place: &Place, url: &str) {
    let mut command = Command::new(quorate());
    command.args(["data", "init", "--name", "n1", "--token", "made-by-hand", "--data-dir"]).arg(place.data());
    run(command.arg("--member").arg(format!("n1={url}")));
}

#[test]
fn data_that_others_made_is_refused_until_it_is_adopted() {
    let place = Place::new("3.5.16");
    make_data(&place, &place.seat.peer_url());
    let mut agent = place.run(&[]);
    let status = place.wait_phase("refused");
    assert_eq!(status["code"], "Q0944", "{status}");
    assert!(status["way_out"].as_str().unwrap().contains("quorate cluster adopt"), "{status}");
    // The agent works on it, so nobody else does.
    assert_eq!(place.quorate(&["cluster", "adopt"]).status.code(), Some(5));
    assert!(agent.stop().success());
    let adopted = place.json(&["cluster", "adopt"]);
    assert_eq!((&adopted["already"], &adopted["running"]), (&false.into(), &false.into()), "{adopted}");
    assert_eq!(place.json(&["cluster", "adopt"])["already"], true);
    let _agent = place.start();
    place.put("k", "v");
    assert_eq!(place.status()["cluster_id"], adopted["cluster_id"]);
}

#[test]
fn a_member_that_is_not_the_declared_one_is_not_adopted() {
    let place = Place::new("3.5.16");
    make_data(&place, "http://127.0.0.1:1");
    place.file();
    let refused = place.json(&["cluster", "adopt"]);
    assert_eq!(refused["error"]["code"], "Q0971", "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("`http://127.0.0.1:1`"), "{refused}");
    assert!(!place.state().join("ledger").exists());
}

#[test]
fn data_of_another_cluster_is_never_started() {
    let place = Place::new("3.5.16");
    let mut agent = place.start();
    assert!(agent.stop().success());
    run(Command::new("mv").arg("-T").arg(place.data()).arg(place.path("mine")));
    make_data(&place, &place.seat.peer_url());
    let mut agent = place.run(&["--once"]);
    wait_until("the turn is over", LIMIT, || agent.ended().is_some());
    assert_eq!(agent.ended().unwrap().code(), Some(5), "{}", agent.log());
    assert!(agent.log().contains("Q0942"), "{}", agent.log());
}

#[test]
fn a_reset_renames_everything_and_a_used_declaration_founds_nothing() {
    let mut place = Place::new("3.5.16");
    let mut agent = place.start();
    place.put("k", "v");
    assert_eq!(place.quorate(&["data", "reset", "--yes"]).status.code(), Some(5), "while the agent runs");
    agent.kill();
    let busy = place.quorate(&["data", "reset", "--yes"]);
    assert_eq!(busy.status.code(), Some(1), "while etcd runs: {busy:?}");
    assert!(place.quorate(&["stop"]).status.success());
    assert_eq!(place.quorate(&["data", "reset"]).status.code(), Some(64));
    assert!(place.data().join("member").exists());
    let reset = place.json(&["data", "reset", "--yes"]);
    assert_eq!(reset["renamed"].as_array().unwrap().len(), 2, "{reset}");
    assert!(!place.data().exists());
    assert_eq!(place.names(place.root.path(), "data.replaced-").len(), 1);
    assert_eq!(place.names(&place.state(), "ledger.replaced-").len(), 1);
    let mut agent = place.run(&[]);
    let status = place.wait_phase("waiting");
    assert!(status["cause"].as_str().unwrap().contains("founding 1 has been used here"), "{status}");
    assert!(agent.stop().success());
    place.bootstrap = 2;
    let _agent = place.start();
    assert_eq!(place.ctl(&["get", "k"]), "");
}
