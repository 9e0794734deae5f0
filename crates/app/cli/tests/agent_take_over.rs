//! Taking over an etcd that someone started by hand, while it runs: with flags, with variables, with a config file.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::fmt::Write as _;
use std::process::Command;

use agent_support::{LIMIT, Place};
use quorate_testkit::{Cluster, Launch, Running, Seat, Server, free_port, kill_hard, quorate, run, wait_until};
use serde_json::Value;

#[derive(Clone, Copy, Debug)]
enum How {
    Flags,
    Variables,
    File,
}

/// A data dir for one of several members.
fn make_data(place: &Place, dir: &str, name: &str, members: &[(&str, String)]) {
    let mut command = Command::new(quorate());
    command.args(["data", "init", "--name", name, "--token", "made-by-hand", "--data-dir"]).arg(place.path(dir));
    for (name, url) in members {
        command.arg("--member").arg(format!("{name}={url}"));
    }
    run(&mut command);
}

/// The place's member, made and started by hand with the settings of its cluster file, and one write in it.
fn by_hand(place: &Place, how: How) -> Running {
    make_data(place, "data", "n1", &[("n1", place.seat.peer_url())]);
    let settings = [
        ("name", "n1".to_owned()),
        ("data-dir", place.data().display().to_string()),
        ("listen-client-urls", place.seat.client_url()),
        ("advertise-client-urls", place.seat.client_url()),
        ("listen-peer-urls", place.seat.peer_url()),
        ("heartbeat-interval", "10".to_owned()),
        ("election-timeout", "100".to_owned()),
    ];
    let (mut args, mut env) = (Vec::new(), Vec::new());
    match how {
        How::Flags => args = settings.iter().flat_map(|(key, value)| [format!("--{key}"), value.clone()]).collect(),
        How::Variables => {
            let name = |key: &str| format!("ETCD_{}", key.to_uppercase().replace('-', "_"));
            env = settings.iter().map(|(key, value)| (name(key), value.clone())).collect();
        }
        How::File => {
            let mut text = String::new();
            for (key, value) in &settings {
                writeln!(text, "{key}: {value}").unwrap();
            }
            let path = place.path("by-hand.yaml");
            std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), text.as_bytes()).unwrap();
            args = vec!["--config-file".to_owned(), path.display().to_string()];
        }
    }
    let mut etcd = Running::start(&place.tools.etcd, &args, &env);
    let health = &["endpoint", "health"];
    wait_until("etcd serves", LIMIT, || {
        assert!(etcd.ended().is_none(), "{}", etcd.log());
        place.tools.try_ctl(&place.seat.client_url(), health).is_ok()
    });
    place.put("k", "v");
    place.file();
    etcd
}

fn codes(status: &Value) -> Vec<String> {
    let Some(warnings) = status["warnings"].as_array() else { return Vec::new() };
    warnings.iter().map(|warning| warning["code"].as_str().unwrap().to_owned()).collect()
}

fn is_taken_over(version: &str, how: How) {
    let place = Place::new(version);
    let mut etcd = by_hand(&place, how);
    let adopted = place.json(&["cluster", "adopt"]);
    assert_eq!(adopted["tended"], etcd.pid(), "{version} {how:?}: {adopted}");
    assert_eq!((&adopted["differences"], &adopted["not_tended"]), (&Value::Null, &Value::Null), "{adopted}");
    let mut agent = place.start();
    let status = place.status();
    assert_eq!((&status["etcd"]["pid"], &status["etcd"]["adopted"]), (&etcd.pid().into(), &true.into()), "{status}");
    assert_eq!(codes(&status), ["Q0907"], "{status}");
    // The next agent finds it too.
    agent.kill();
    assert_eq!(place.json(&["cluster", "adopt"])["tended"], etcd.pid());
    let mut agent = place.start();
    assert_eq!(place.etcd_pid(), etcd.pid());
    assert!(agent.stop().success(), "{}", agent.log());
    assert!(etcd.ended().is_some(), "the agent has stopped it");
    let end = place.status()["last_end"].to_string();
    assert!(end.contains("not recorded"), "{end}");
    // From now on it is the agent's own.
    let mut agent = place.start();
    let status = place.status();
    assert_eq!((&status["etcd"]["adopted"], &status["warnings"]), (&false.into(), &Value::Null), "{status}");
    assert_eq!(status["checked"]["why"], "nothing says how etcd ended", "{status}");
    place.assert_holds("k", "v");
    assert!(agent.stop().success());
}

#[test]
fn an_etcd_started_with_flags_is_taken_over_without_a_restart() {
    ["3.4.23", "sid"].into_iter().for_each(|version| is_taken_over(version, How::Flags));
}

#[test]
fn an_etcd_started_with_variables_is_taken_over_without_a_restart() {
    ["3.4.23", "sid"].into_iter().for_each(|version| is_taken_over(version, How::Variables));
}

#[test]
fn an_etcd_started_with_a_file_is_taken_over_without_a_restart() {
    ["3.4.23", "sid"].into_iter().for_each(|version| is_taken_over(version, How::File));
}

#[test]
fn one_that_is_killed_later_is_started_again_under_a_shim() {
    let place = Place::new("sid");
    let etcd = by_hand(&place, How::Flags);
    place.json(&["cluster", "adopt"]);
    let mut agent = place.start();
    kill_hard(etcd.pid());
    wait_until("another etcd", LIMIT, || {
        let status = place.status();
        status["restarts"] == 1 && status["phase"] == "serving"
    });
    let status = place.status();
    assert_eq!(status["warnings"], Value::Null, "{status}");
    assert!(status["last_end"].as_str().unwrap().contains("taken over while it ran"), "{status}");
    place.assert_holds("k", "v");
    assert!(agent.stop().success());
}

#[test]
fn settings_that_differ_are_named_and_wait_for_a_persons_word() {
    let mut place = Place::new("sid");
    make_data(&place, "data", "n1", &[("n1", place.seat.peer_url())]);
    let launch = Launch::new(&place.tools, &place.seat, &place.data());
    let server = launch.arg("--max-txn-ops=256").arg("--heartbeat-interval=10").start();
    place.file();
    let adopted = place.json(&["cluster", "adopt"]);
    assert_eq!(adopted["tended"], server.pid(), "{adopted}");
    let differences = serde_json::json!([
        {"key": "election-timeout", "runs": null, "file": "100"},
        {"key": "max-txn-ops", "runs": "256", "file": null},
    ]);
    assert_eq!(adopted["differences"], differences, "{adopted}");
    let mut agent = place.start();
    for code in ["Q0966", "Q0907"] {
        wait_until(code, LIMIT, || place.status()["warnings"].to_string().contains(code));
    }
    // Longer than it takes the agent to look at the settings, and at whose turn it is.
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_secs(4) {
        assert_eq!(place.etcd_pid(), server.pid(), "it is not started again by itself: {}", agent.log());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(place.status()["warnings"].to_string().contains("taken over with other settings"), "{}", place.status());
    // Another file is such a word, whatever it changes.
    assert!(place.quorate(&["stop", "--keep-running"]).status.success());
    wait_until("the agent has ended", LIMIT, || agent.ended().is_some());
    place.more += "maintenance: {join-timeout: 4m}\n";
    let mut agent = place.start();
    place.wait_for_another_etcd(server.pid());
    assert!(agent.stop().success());
}

#[test]
fn one_command_restarts_what_waits_for_it() {
    let place = Place::new("sid");
    make_data(&place, "data", "n1", &[("n1", place.seat.peer_url())]);
    let launch = Launch::new(&place.tools, &place.seat, &place.data());
    let server = launch.arg("--max-txn-ops=256").start();
    place.file();
    assert_eq!(place.json(&["cluster", "adopt"])["tended"], server.pid());
    let mut agent = place.start();
    let waits = || place.quorate(&["cluster", "status"]);
    wait_until("it is told how to restart it", LIMIT, || {
        String::from_utf8_lossy(&waits().stdout).contains(
            "  do: restart such members one at a time, while the others serve: `quorate cluster restart --pending`",
        )
    });
    let restarted = place.quorate(&["cluster", "restart", "--pending", "--wait", "30s"]);
    assert!(restarted.status.success(), "{restarted:?}\n{}", agent.log());
    assert_eq!(String::from_utf8_lossy(&restarted.stdout), "restarted: n1\n");
    assert_ne!(place.etcd_pid(), server.pid());
    let again = place.quorate(&["cluster", "restart", "--pending"]);
    assert_eq!(String::from_utf8_lossy(&again.stdout), "no member waits for a restart\n");
    assert!(agent.stop().success());
}

#[test]
fn one_that_cannot_be_tended_goes_on_and_is_waited_for() {
    let place = Place::new("sid");
    make_data(&place, "data", "n1", &[("n1", place.seat.peer_url())]);
    let server = Launch::new(&place.tools, &place.seat, &place.data()).arg("--force-new-cluster").start();
    server.ctl(&["put", "k", "v"]);
    place.file();
    let adopted = place.json(&["cluster", "adopt"]);
    assert_eq!((&adopted["running"], &adopted["tended"]), (&true.into(), &Value::Null), "{adopted}");
    assert!(adopted["not_tended"].as_str().unwrap().contains("--force-new-cluster"), "{adopted}");
    // What someone else runs is neither stopped nor started a second time.
    let mut agent = place.run(&[]);
    let status = place.wait_phase("waiting");
    assert_eq!(status["code"], "Q0940", "{status}");
    assert!(status["cause"].as_str().unwrap().contains(&format!("process {}", server.pid())), "{status}");
    assert!(!place.is_ready());
    server.stop();
    place.wait_ready(&mut agent);
    place.assert_holds("k", "v");
    assert!(agent.stop().success());
}

#[test]
fn who_answers_must_be_who_holds_the_data() {
    let place = Place::new("sid");
    let elsewhere = Seat::new("n1");
    // Two members that say the same of themselves: one holds the data, the other one answers.
    make_data(&place, "data", "n1", &[("n1", place.seat.peer_url())]);
    let _holds = Server::start(&place.tools, &Seat::new("n1"), &place.data());
    let mut command = Command::new(quorate());
    command.args(["data", "init", "--name", "n1", "--token", "another", "--data-dir"]).arg(place.path("other"));
    run(command.arg("--member").arg(format!("n1={}", place.seat.peer_url())));
    let answers = Launch::new(&place.tools, &elsewhere, &place.path("other"));
    let _answers = answers.arg(format!("--listen-client-urls={}", place.seat.client_url())).spawn();
    wait_until("etcd serves", LIMIT, || place.tools.try_ctl(&place.seat.client_url(), &["endpoint", "health"]).is_ok());
    place.file();
    let refused = place.json(&["cluster", "adopt"]);
    assert_eq!(refused["error"]["code"], "Q0971", "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("the data is of another one"), "{refused}");
    assert!(!place.state().join("ledger").exists(), "nothing is remembered of a member that is not this one");
}

#[test]
fn a_member_of_three_is_taken_over_while_the_others_go_on() {
    let mut place = Place::new("sid");
    let seats = [place.seat.clone(), Seat::new("n2"), Seat::new("n3")];
    let members: Vec<_> = seats.iter().map(|seat| (seat.name.as_str(), seat.peer_url())).collect();
    let free = [(); 4].map(|()| free_port());
    let mut launches = Vec::new();
    let mut text = "token: t\nplaintext: true\nmembers:\n".to_owned();
    let ports = [(&place.health, &place.api), (&free[0], &free[1]), (&free[2], &free[3])];
    for (at, seat) in seats.iter().enumerate() {
        let dir = if seat.name == "n1" { "data".to_owned() } else { format!("data-{}", seat.name) };
        make_data(&place, &dir, &seat.name, &members);
        launches.push(Launch::new(&place.tools, seat, &place.path(&dir)));
        let (name, peer, client) = (&seat.name, seat.peer_url(), seat.client_url());
        let dir = place.path(&dir);
        let (health, api) = (&ports[at].0, &ports[at].1);
        writeln!(
            text,
            "  - name: {name}\n    peer-urls: [\"{peer}\"]\n    client-urls: [\"{client}\"]\n    data-dir: {}\n    \
             listen-health-url: http://127.0.0.1:{health}\n    listen-agent-url: http://127.0.0.1:{api}",
            dir.display()
        )
        .unwrap();
    }
    let (state, binary) = (place.path("state"), &place.binary);
    writeln!(text, "agent:\n  state-dir: {}\n  etcd-binary: {}", state.display(), binary.display()).unwrap();
    place.raw = Some(text);
    place.file();
    let cluster = Cluster::launch(launches);
    cluster.ctl(&["put", "k", "v"]);
    let adopted = place.json(&["cluster", "adopt"]);
    assert_eq!(adopted["tended"], cluster.servers[0].pid(), "{adopted}");
    let mut agent = place.start();
    assert_eq!(place.etcd_pid(), cluster.servers[0].pid());
    place.assert_holds("k", "v");
    agent.kill();
    // A fourth member that nobody declared.
    // etcd allows it once its members have seen each other for a while.
    let add = ["member", "add", "n4", "--learner", "--peer-urls", "http://127.0.0.1:1"];
    wait_until("etcd adds it", LIMIT, || place.tools.try_ctl(&cluster.endpoints(), &add).is_ok());
    let refused = place.json(&["cluster", "adopt"]);
    assert_eq!(refused["error"]["code"], "Q0971", "{refused}");
}
