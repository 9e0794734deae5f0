//! What a surviving agent queries before a recovery: every URL of the members that are called dead, not only those of clients.
//!
//! **Rule:** one URL that answers is enough to refuse, whatever flag is given; the members that answer keep their cluster.

mod change_support;
mod cluster_support;

use std::process::Command;

use change_support::{LIMIT, Net, said};
use quorate_testkit::{run, wait_until};

/// Lets packets from host `from` to the client port of each of `others` vanish, or reach it again.
fn client_ports(net: &Net, verb: &str, from: usize, others: &[usize]) {
    for other in others {
        let address = net.address(*other).to_string();
        let rule = ["rule", verb, "pref", "10", "to", &address, "ipproto", "tcp", "dport", "2379", "blackhole"];
        run(net.hosts[from].command("ip").args(rule));
    }
}

/// The agents of n2 and n3 are dead and the etcd of n1 hangs. The other two serve, and n1 reaches only their peer URLs.
#[test]
fn refuses_while_only_the_peer_url_of_a_silent_node_answers() {
    let mut net = Net::new("3.5.30", 3);
    net.found(&[0, 1, 2]);
    let before = net.try_ctl(1, &["member", "list"]).unwrap();
    let etcd = net.status(0)["etcd"]["pid"].as_i64().unwrap().to_string();
    for at in [1, 2] {
        net.kill_agent(at);
    }
    client_ports(&net, "add", 0, &[1, 2]);
    run(Command::new("kill").args(["-STOP", &etcd]));
    net.wait(0, "loss of the quorum", |status| status["phase"] == "waiting");
    wait_until("the others take writes", LIMIT, || net.try_ctl(1, &["put", "later", "v"]).is_ok());
    let file = net.shown("n1.yaml");
    for flag in ["--confirm-dead", "--fenced"] {
        let words = ["cluster", "recover", "--config", &file, flag, "n2", flag, "n3", "--yes"];
        let output = net.quorate(0, &words);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(5), "{text}");
        assert!(text.contains("Q1420") && text.contains(":2380") && !text.contains(":2379"), "{text}");
    }
    assert!(!net.state(0).join("recovery.json").exists(), "no order was taken");
    run(Command::new("kill").args(["-CONT", &etcd]));
    client_ports(&net, "del", 0, &[1, 2]);
    for at in [1, 2] {
        net.start(at);
    }
    for at in 0..3 {
        net.wait(at, "service", |status| status["phase"] == "serving");
    }
    assert_eq!(net.try_ctl(0, &["member", "list"]).unwrap(), before, "the same members");
    assert_eq!(net.try_ctl(0, &["get", "later", "--print-value-only"]).unwrap().trim(), "v");
}
