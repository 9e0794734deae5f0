//! Files that are applied: what was approved or nothing, settings that reach every member in its turn, addresses that move.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;

use std::io::Write;
use std::process::Stdio;

use change_support::{LIMIT, Net, STALL_MAX, said};
use quorate_testkit::wait_until;
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
    // One that a single node would not take is given to none.
    let elsewhere = net.text(&[0, 1]).replace(&net.shown("data-2"), &net.shown("elsewhere"));
    assert_ne!(elsewhere, net.text(&[0, 1]));
    let elsewhere = put(&net, "elsewhere.yaml", &elsewhere);
    for verb in ["plan", "apply"] {
        let refused = net.quorate(0, &["cluster", verb, &elsewhere, "--name", "n1"]);
        assert_eq!(refused.status.code(), Some(5), "{}", said(&refused));
        assert!(said(&refused).contains("`n2`") && said(&refused).contains("data-dir"), "{}", said(&refused));
    }
    assert_eq!(plan_hash(&net, &two), hash, "nobody holds another file");
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

/// Whether a node has taken another file over, and keeps the one from before.
fn kept(net: &Net, at: usize) -> Option<String> {
    let before = format!("n{}.yaml.replaced-", at + 1);
    let mut names = std::fs::read_dir(net.root.path()).unwrap().flatten();
    names.find_map(|entry| entry.file_name().into_string().ok().filter(|name| name.starts_with(&before)))
}

#[test]
fn a_cluster_that_changed_since_its_plan_was_approved_is_left_alone() {
    let mut net = Net::new("3.5.16", 3);
    net.found(&[0, 1, 2]);
    let two = put(&net, "two.yaml", &net.text(&[0, 1]));
    let hash = plan_hash(&net, &two);
    // A member that stays is stopped between the plan and its apply: to remove another one is not safe any more.
    net.power_off(1);
    let refused = net.quorate(0, &["cluster", "apply", &two, "--plan", &hash, "--name", "n1"]);
    assert_eq!(refused.status.code(), Some(5), "{}", said(&refused));
    let text = said(&refused);
    assert!(text.contains("Q0989") && text.contains("nothing was changed"), "{text}");
    net.start(1);
    net.wait(1, "service", |status| status["phase"] == "serving");
    wait_until("the plan is the approved one again", LIMIT, || plan_hash(&net, &two) == hash);
    // The same while a person reads the plan, and says yes to what was shown.
    let mut terminal = net.hosts[0].command("script");
    let command = format!("{} cluster apply {two} --name n1", quorate_testkit::quorate().display());
    terminal.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm");
    let typescript = std::fs::File::create(net.path("typescript")).unwrap();
    terminal.stdin(Stdio::piped()).stdout(typescript.try_clone().unwrap()).stderr(typescript);
    let mut terminal = terminal.spawn().unwrap();
    let path = net.path("typescript");
    let shown = || std::fs::read_to_string(&path).unwrap_or_default();
    wait_until("it asks", LIMIT, || shown().contains("Type `yes`"));
    net.power_off(1);
    terminal.stdin.as_mut().unwrap().write_all(b"yes\n").unwrap();
    let ended = terminal.wait().unwrap();
    let shown = shown();
    assert_eq!(ended.code(), Some(5), "{shown}");
    assert!(shown.contains("Q0989") && shown.contains("nothing was changed"), "{shown}");
    assert!((0..3).all(|at| kept(&net, at).is_none()), "a file was given out");
    net.assert_voters(&[0, 1, 2]);
}

#[test]
fn a_cluster_that_changes_while_the_file_is_given_out_is_said_with_the_way_back() {
    let mut net = Net::new("3.5.16", 3);
    net.found(&[0, 1, 2]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let stranger = ["member", "add", "stranger", "--learner", "--peer-urls=https://192.0.2.1:2380"];
    // etcd takes changes once it was quiet for a while; whom nobody declares is taken out again.
    wait_until("etcd takes a learner", LIMIT, || net.try_ctl(0, &stranger).is_ok());
    let count = || net.try_ctl(0, &["member", "list"]).map_or(0, |list| list.lines().count());
    wait_until("it is taken out", LIMIT, || count() == 3);
    // The agent of the leader is silent, so that the command takes its time, and nobody acts meanwhile.
    let leader = net.leader(&[0, 1, 2]);
    let leaves = if leader == 2 { 1 } else { 2 };
    let stay: Vec<usize> = (0..3).filter(|at| *at != leaves).collect();
    let new = put(&net, "new.yaml", &net.text(&stay));
    let hash = plan_hash(&net, &new);
    net.agents[leader].as_ref().unwrap().signal(rustix::process::Signal::STOP);
    let asks = (0..3).find(|at| *at != leader).unwrap();
    let mut apply = net.hosts[asks].command(quorate_testkit::quorate());
    apply.args(["cluster", "apply", &new, "--plan", &hash, "--name", &format!("n{}", asks + 1)]);
    let apply = apply.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the others have the file", LIMIT, || {
        (0..3).filter(|at| *at != leader).all(|at| kept(&net, at).is_some())
    });
    net.try_ctl(asks, &stranger).unwrap();
    let output = apply.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("Q0989") && text.contains("take the learner"), "{text}");
    // The way back, as it was said.
    let (_, back) = text.split_once("`quorate cluster apply ").unwrap_or_else(|| panic!("{text}"));
    let back = back.split('`').next().unwrap().to_owned();
    net.agents[leader].as_ref().unwrap().signal(rustix::process::Signal::CONT);
    net.done(asks, &["cluster", "apply", &back, "--yes", "--wait", "120s", "--name", &format!("n{}", asks + 1)]);
    net.assert_voters(&[0, 1, 2]);
    assert!(net.try_ctl(leaves, &["get", "k"]).unwrap().contains('v'));
}

#[test]
fn new_settings_reach_every_member_in_its_turn_under_writes() {
    let mut net = Net::new("3.5.16", 3);
    net.found(&[0, 1, 2]);
    let before: Vec<Value> = (0..3).map(|at| net.status(at)["etcd"]["pid"].clone()).collect();
    // Through whoever answers, as clients do: each member is restarted.
    let load = net.load_from(0, &[0, 1, 2]);
    load.goes_on(20);
    net.more += "etcd: {heartbeat-interval: 100, election-timeout: 1000, snapshot-count: 5000}\n";
    // All of it is shown before: who restarts, why, and that a quorum holds meanwhile.
    let settings = put(&net, "settings.yaml", &net.text(&[0, 1, 2]));
    let plan = said(&net.quorate(0, &["cluster", "plan", &settings, "--name", "n1"]));
    for name in ["n1", "n2", "n3"] {
        let restarts = plan.lines().filter(|line| line.contains(&format!("restart the etcd of `{name}`")));
        let restarts: Vec<&str> = restarts.collect();
        assert!(matches!(restarts[..], [one] if one.contains("snapshot-count")), "{plan}");
    }
    assert_eq!(plan.matches("the quorum holds").count(), 3, "{plan}");
    let hash = plan_hash(&net, &settings);
    net.done(0, &["cluster", "apply", &settings, "--plan", &hash, "--name", "n1", "--wait", "120s"]);
    for (at, before) in before.iter().enumerate() {
        let status = net.wait(at, "current settings", |status| status["etcd"]["settings_current"] == true);
        assert_ne!(status["etcd"]["pid"], *before, "{status:#}");
    }
    net.assert_voters(&[0, 1, 2]);
    load.goes_on(20);
    // No acknowledged write was lost, and the watch told each of them once, wherever it went on.
    let seen = load.finish();
    assert!(seen.breaks > 0, "the watch never noticed a restart");
    assert!(seen.longest < STALL_MAX, "writes stalled for {:?}", seen.longest);
}

#[test]
fn members_get_other_addresses_while_they_run_and_after_they_were_away() {
    let mut net = Net::new("3.5.16", 3);
    net.found(&[0, 1, 2]);
    let load = net.load(0);
    load.goes_on(20);
    // Two of three at once could lose each other: nothing is changed.
    let here = net.moved.clone();
    net.move_host(1);
    net.move_host(2);
    let both = put(&net, "both.yaml", &net.text(&[0, 1, 2]));
    let refused = net.quorate(0, &["cluster", "apply", &both, "--yes", "--name", "n1"]);
    assert_eq!(refused.status.code(), Some(5), "{}", said(&refused));
    assert!(said(&refused).contains("Q0988"), "{}", said(&refused));
    // One that runs: the cluster is told first, then it is restarted at its new address.
    let second = net.moved.remove(&1).unwrap();
    let before = net.status(2)["etcd"]["pid"].clone();
    net.apply(&[0, 1, 2]);
    is_at(&net, 2);
    assert_ne!(net.status(2)["etcd"]["pid"], before);
    load.goes_on(20);
    // One whose machine comes back with another address, and nobody finds it at the old one.
    net.power_off(1);
    net.moved = here.into_iter().chain(net.moved.clone()).chain([(1, second)]).collect();
    net.drop_address(1);
    net.start(1);
    net.apply(&[0, 1, 2]);
    is_at(&net, 1);
    net.assert_voters(&[0, 1, 2]);
    load.goes_on(20);
    load.finish();
}

/// The cluster knows a node at its address, and it serves there.
#[track_caller]
fn is_at(net: &Net, at: usize) {
    let (peers, clients) = (format!("https://{}:2380,", net.address(at)), format!("{},", net.client_url(at)));
    // etcd tells where clients find it a moment after it serves.
    wait_until("the list has its addresses", LIMIT, || {
        let list = net.try_ctl(0, &["member", "list"]).unwrap_or_default();
        let line = list.lines().find(|line| line.contains(&format!(", n{}, ", at + 1)));
        line.is_some_and(|line| line.contains(&peers) && line.contains(&clients))
    });
    net.try_ctl(at, &["endpoint", "health"]).unwrap();
}
