//! Changes of peers whose node is lost, a file that a person applies meanwhile, two changes at once, and a cluster that is off as a
//! whole: whoever comes back finds what the others agreed on, and what is not known is said.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;
mod peers_support;

use std::io::Write;
use std::time::{Duration, Instant};

use cluster_support::said;
use peers_support::{ByHand, LIMIT};
use quorate_testkit::{quorate, wait_until};

#[test]
fn a_change_goes_on_without_who_began_it_and_nothing_that_came_since_is_lost() {
    let mut net = ByHand::new(5);
    net.standalone(0, "5m");
    for at in [1, 2] {
        let code = net.invite(0, "10m");
        net.join(at, &code);
        net.start(at, &[]);
        net.wait_operation(0, &format!("n{}", at + 1), "joined");
    }
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let code = net.invite(0, "10m");
    net.join(3, &code);
    net.wait_operation(0, "n4", "given");
    let second = two_joins_at_once(&net);
    a_file_that_a_person_applies_holds(&net);
    let adopter = the_originator_is_lost_and_another_server_goes_on(&mut net);
    net.join(4, &second);
    net.start(4, &[]);
    net.wait_operation(1, "n5", "joined");
    the_originator_comes_back_and_drops_nobody(&mut net, adopter);
    an_originator_that_is_gone_for_good_is_detached(&mut net);
    all_are_off_and_come_back(&mut net);
}

/// One of both is told who is at work; returns the code, which still holds.
fn two_joins_at_once(net: &ByHand) -> String {
    wait_until("n2 has the issuing keys", LIMIT, || net.state(1).join("pki/agent-ca.key").is_file());
    let code = net.invite(1, "30m");
    let text = net.join_refused(4, &code, "Q1214");
    assert!(text.contains("`n1` is at work on another change: join of `n4`"), "{text}");
    code
}

fn holds(net: &ByHand, at: usize, words: &str) -> bool {
    std::fs::read_to_string(net.state(at).join("cluster.yaml")).is_ok_and(|text| text.contains(words))
}

/// While the join waits, somebody applies another file: it is not put back, and the join goes on with it.
fn a_file_that_a_person_applies_holds(net: &ByHand) {
    wait_until("all have the file of the join", LIMIT, || (0..3).all(|at| holds(net, at, "\"n4\"")));
    let text = std::fs::read_to_string(net.state(0).join("cluster.yaml")).unwrap();
    let file = net.shown("applied.yaml");
    let applied = text.replace("join-timeout: \"5m\"", "join-timeout: \"7m\"");
    assert_ne!(applied, text);
    std::fs::File::create(&file).unwrap().write_all(applied.as_bytes()).unwrap();
    let words = ["cluster", "apply", &file, "--yes", "--wait", "0s", "--name", "n1"];
    let output = net.hosts[0].command(quorate()).args(words).output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", said(&output));
    wait_until("the change takes the file for its own", LIMIT, || {
        net.agents[0].as_ref().unwrap().log().contains("another file was applied meanwhile")
    });
    for at in 0..3 {
        assert!(holds(net, at, "join-timeout: \"7m\""), "n{} holds another file\n{}", at + 1, net.logs());
    }
    net.wait_operation(0, "n4", "given");
}

/// The agent of the inviter is gone, while its etcd goes on: who joins holds the file from before, and gets on by another's hand.
fn the_originator_is_lost_and_another_server_goes_on(net: &mut ByHand) -> usize {
    net.kill_agent(0);
    net.start(3, &[]);
    let begun = Instant::now();
    let adopter = loop {
        let joined = |at: &usize| {
            let operation = &net.peers(*at)["operation"];
            operation["name"] == "n4" && operation["step"] == "joined"
        };
        if let Some(at) = [1, 2].into_iter().find(joined) {
            break at;
        }
        assert!(begun.elapsed() < LIMIT, "nobody goes on\n{}", net.logs());
        std::thread::sleep(Duration::from_millis(200));
    };
    net.assert_voters(1, &[0, 1, 2, 3]);
    assert!(holds(net, 3, "join-timeout: \"7m\""), "the newcomer has the file that was applied");
    adopter
}

/// Its own file knows nothing of n5, and it had the right to hand it out once.
fn the_originator_comes_back_and_drops_nobody(net: &mut ByHand, adopter: usize) {
    assert!(!holds(net, 0, "\"n5\""));
    net.start(0, &[]);
    net.wait_operation(0, "n4", "joined");
    wait_until("n1 follows the file of the others", LIMIT, || holds(net, 0, "\"n5\""));
    for at in 0..5 {
        assert!(holds(net, at, "\"n4\"") && holds(net, at, "\"n5\""), "n{}\n{}", at + 1, net.logs());
    }
    net.wait(0, "service", |status| status["phase"] == "serving");
    net.assert_voters(adopter, &[0, 1, 2, 3, 4]);
}

/// It dies while it makes a client of n5, and does not come back: who takes it out goes on with that first.
fn an_originator_that_is_gone_for_good_is_detached(net: &mut ByHand) {
    net.restart_to_end_at(0, "given");
    net.wait(0, "service", |status| status["phase"] == "serving");
    let _ = net.quorate(0, &["peer", "set-role", "n5", "client", "--wait", "0s"], "");
    net.wait_end(0);
    net.power_off(0);
    // While it is missing nobody else leaves: it goes first, with the change that it had begun.
    net.detach_dead(1, "n1");
    net.wait_operation(1, "n5", "changed");
    net.assert_listed(1, &[1, 2, 3]);
    assert_eq!(net.role(4), "client");
    let listed = net.peers(1);
    let client = listed["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "n5").unwrap();
    assert_eq!(client["role"], "client", "it is on record: {listed:#}");
    net.start(0, &[]);
    wait_until("n1 knows that it is detached", LIMIT, || net.role(0) == "detached");
    wait_until("n5 carries", LIMIT, || {
        net.peers(1)["nodes"].as_array().is_some_and(|nodes| nodes.iter().any(|node| node["state"] == "carries"))
    });
}

/// Every server goes off, and one comes back alone: it answers at once, and says what it does not know. With the others, all is as
/// it was.
fn all_are_off_and_come_back(net: &mut ByHand) {
    for at in 0..5 {
        net.power_off(at);
    }
    net.start(1, &[]);
    wait_until("the agent answers", LIMIT, || !net.peers(1).is_null());
    let alone = net.peers(1);
    assert!(alone["unread"].is_string(), "{alone:#}");
    let answers: Vec<bool> = alone["nodes"].as_array().unwrap().iter().map(|node| node["answers"] == true).collect();
    assert_eq!(answers, [true, false, false], "{alone:#}");
    let text = net.done(1, &["peer", "list"], "");
    assert!(text.contains("who the clients are cannot be read"), "{text}");
    let status = net.status(1);
    assert!(status["phase"] != "serving" && status["cause"].is_string(), "{status:#}");
    // A client of that name may be there.
    net.refused(1, &["peer", "detach", "n5"], "", "Q1230");
    net.refused(1, &["peer", "set-role", "n5", "server"], "", "Q1230");
    for at in [2, 3, 4] {
        net.start(at, &[]);
    }
    for at in [1, 2, 3] {
        net.wait(at, "service", |status| status["phase"] == "serving");
    }
    wait_until("the record is read again", LIMIT, || net.peers(1)["unread"].is_null());
    net.refused(1, &["peer", "detach", "n9"], "", "Q1221");
    assert_eq!(net.try_ctl(2, &["get", "k", "--print-value-only"]).unwrap(), "v\n");
    let listed = net.peers(1);
    let names: Vec<&str> =
        listed["nodes"].as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["n2", "n3", "n4", "n5"], "{listed:#}");
}

#[test]
fn nodes_that_have_ipv6_alone_invite_and_join() {
    let mut net = ByHand::new(2);
    for at in 0..2 {
        let link = net.hosts[at].within(|| {
            let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
            names.into_iter().find(|name| name != "lo").unwrap()
        });
        let address = format!("fd00:77::{}/64", at + 1);
        let mut command = net.hosts[at].command("ip");
        quorate_testkit::run(command.args(["-6", "address", "add", &address, "dev", &link, "nodad"]));
        let four = format!("{}/24", net.hosts[at].address());
        let mut command = net.hosts[at].command("ip");
        quorate_testkit::run(command.args(["address", "del", &four, "dev", &link]));
    }
    net.listen = Some(|at| format!("fd00:77::{}", at + 1));
    net.standalone(0, "2m");
    let code = net.invite(0, "10m");
    net.join(1, &code);
    net.start(1, &[]);
    net.wait_operation(0, "n2", "joined");
    let listed = net.peers(1);
    for node in listed["nodes"].as_array().unwrap() {
        assert_eq!(node["answers"], true, "{listed:#}");
    }
    assert_eq!(listed["nodes"].as_array().unwrap().len(), 2, "{listed:#}");
}
