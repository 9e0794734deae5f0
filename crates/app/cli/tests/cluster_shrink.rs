//! Clusters that shrink, and members that are drained: nobody leaves twice, and the last one not at all.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;

use change_support::{LIMIT, Net};
use quorate_testkit::{project_root, quorate, wait_until};
use serde_json::Value;

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

/// As the Director says that a disk goes.
fn no_disk() -> (&'static str, &'static str) {
    ("BOSH_JOB_NEXT_STATE", r#"{"persistent_disk":0}"#)
}

/// Runs BOSH's drain script on a host: one integer and nothing else, and the rest in its log.
#[track_caller]
fn bosh_drain(net: &Net, at: usize, state: &[(&str, &str)]) -> i32 {
    let name = format!("n{}", at + 1);
    let mut command = net.hosts[at].command(project_root().join("deploy/bosh/drain"));
    command.env("QUORATE_CONFIG", net.path(&format!("{name}.yaml"))).env("QUORATE_NAME", &name);
    command.env("QUORATE_BINARY", quorate()).env("QUORATE_DRAIN_LOG", net.path(&format!("log/{name}/drain.log")));
    let before = drain_log(net, at).len();
    let output = command.envs(state.iter().copied()).stdin(std::process::Stdio::null()).output().unwrap();
    let (out, log) = (String::from_utf8_lossy(&output.stdout).into_owned(), drain_log(net, at));
    assert!(output.status.success() && output.stderr.is_empty(), "{}\n{log}", change_support::said(&output));
    let number: i32 = out.trim_end().parse().unwrap_or_else(|_| panic!("`{out}` is not one integer\n{log}"));
    assert_eq!(out, format!("{number}\n"));
    let torn_down = state.contains(&("BOSH_DEPLOYMENT_NEXT_STATE", "delete"));
    assert!(torn_down || log.len() > before, "nothing was logged");
    number
}

fn drain_log(net: &Net, at: usize) -> String {
    std::fs::read_to_string(net.path(&format!("log/n{}/drain.log", at + 1))).unwrap_or_default()
}

/// Runs the command of the hook on a host, word by word, with the paths of this machine.
fn pre_stop(net: &Net, at: usize) {
    let text = std::fs::read_to_string(project_root().join("deploy/kubernetes/pre-stop.yaml")).unwrap();
    let hook: Value = serde_saphyr::from_str(&text).unwrap();
    let words: Vec<String> = serde_json::from_value(hook["lifecycle"]["preStop"]["exec"]["command"].clone()).unwrap();
    let name = format!("n{}", at + 1);
    let here = |word: &String| match word.as_str() {
        "/etc/quorate/cluster.yaml" => net.shown(&format!("{name}.yaml")),
        other => other.to_owned(),
    };
    assert_eq!(words[0], "/usr/bin/quorate");
    // The kubelet takes the words of a hook as they are.
    assert!(!words.iter().any(|word| word.contains("$(")), "{words:?}");
    let mut command = net.hosts[at].command(quorate());
    for entry in hook["env"].as_array().unwrap() {
        assert_eq!(entry["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name", "{entry}");
        command.env(entry["name"].as_str().unwrap(), &name);
    }
    let output = command.args(words[1..].iter().map(here)).stdin(std::process::Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", change_support::said(&output));
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
    // Drained to come back, as BOSH does for a stop and for an update: it leads no more, and stays.
    let keep = [("BOSH_DEPLOYMENT_NEXT_STATE", "keep"), ("BOSH_INSTANCE_NEXT_STATE", "keep")];
    let disk = [("BOSH_JOB_NEXT_STATE", r#"{"persistent_disk":10240}"#)];
    for state in [&keep[..], &[&keep[..], &disk[..]].concat()] {
        assert_eq!(bosh_drain(&net, leader, state), 0);
        assert_eq!(net.leader(&[0, 1]), other);
    }
    assert!(drain_log(&net, leader).contains("handed leadership to member"), "{}", drain_log(&net, leader));
    // As Kubernetes does it before a pod that leads is stopped.
    pre_stop(&net, other);
    assert_eq!(net.leader(&[0, 1]), leader);
    let said = net.done(leader, &[&["cluster", "drain", &name], &config[..]].concat());
    assert!(said.contains("handed leadership to member"), "{said}");
    let said = net.done(leader, &[&["cluster", "drain", &name], &config[..]].concat());
    assert!(said.contains("does not lead"), "{said}");
    // The whole deployment goes: nobody is removed for that.
    assert_eq!(bosh_drain(&net, leader, &[("BOSH_DEPLOYMENT_NEXT_STATE", "delete"), no_disk()]), 0);
    net.assert_voters(&[0, 1]);
    // The instance and its disk go: it leaves, and a second time there is nothing to do.
    for _ in 0..2 {
        let state = [("BOSH_DEPLOYMENT_NEXT_STATE", "keep"), ("BOSH_INSTANCE_NEXT_STATE", "delete"), no_disk()];
        assert_eq!(bosh_drain(&net, leader, &state), 0);
        net.assert_voters(&[other]);
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
fn a_member_whose_etcd_serves_nobody_is_drained_to_come_back_and_leaves_only_by_a_quorum() {
    let mut net = Net::new("3.5.16", 3);
    let program = net.path("etcd");
    let install = |net: &Net| std::os::unix::fs::symlink(&net.tools.etcd, &program).unwrap();
    install(&net);
    net.binary = Some(program.display().to_string());
    net.found(&[0, 1, 2]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let keep = [("BOSH_DEPLOYMENT_NEXT_STATE", "keep"), ("BOSH_JOB_NEXT_STATE", r#"{"persistent_disk":10240}"#)];
    // Nobody can hand over for an etcd that hangs, and the others choose without it.
    let hangs = net.leader(&[0, 1, 2]);
    let pid = net.status(hangs)["etcd"]["pid"].as_u64().unwrap().to_string();
    let signal = |word: &str| drop(quorate_testkit::run(std::process::Command::new("kill").args([word, pid.as_str()])));
    signal("-STOP");
    net.wait(hangs, "silence", |status| status["phase"] == "waiting");
    assert_eq!(bosh_drain(&net, hangs, &keep), 0);
    assert!(drain_log(&net, hangs).contains("serves nobody"), "{}", drain_log(&net, hangs));
    signal("-CONT");
    net.wait(hangs, "service", |status| status["phase"] == "serving");
    // One that does not start, and then two: the third runs without a quorum.
    quorate_testkit::run(std::process::Command::new("rm").arg(&program));
    for at in [2, 1] {
        net.kill_etcd(at);
        net.wait(at, "end", |status| status["etcd"].is_null() && status["phase"] != "serving");
        assert_eq!(bosh_drain(&net, at, &keep), 0);
        assert!(drain_log(&net, at).contains("serves nobody"), "{}", drain_log(&net, at));
    }
    net.wait(0, "silence", |status| status["phase"] == "waiting");
    assert_eq!(bosh_drain(&net, 0, &keep), 0);
    // To leave is another matter: without a quorum, or where one would be lost, it waits and says so.
    let leave = |wait| [no_disk(), ("BOSH_INSTANCE_NEXT_STATE", "delete"), ("QUORATE_DRAIN_WAIT", wait)];
    assert_eq!(bosh_drain(&net, 0, &leave("2s")), -10);
    assert!(drain_log(&net, 0).contains("has not left yet: no quorum confirms"), "{}", drain_log(&net, 0));
    net.power_off(2);
    install(&net);
    net.wait(1, "service", |status| status["phase"] == "serving");
    assert_eq!(bosh_drain(&net, 0, &leave("2s")), -10);
    assert!(drain_log(&net, 0).contains("has not left yet: not taking part: `n3`"), "{}", drain_log(&net, 0));
    net.assert_voters(&[0, 1, 2]);
    net.start(2);
    assert_eq!(bosh_drain(&net, 0, &leave("120s")), 0);
    net.assert_voters(&[1, 2]);
    assert!(net.try_ctl(1, &["get", "k"]).unwrap().contains('v'));
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
