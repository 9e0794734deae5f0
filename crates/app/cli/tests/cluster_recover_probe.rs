//! What a surviving agent queries before a recovery: every URL of the members that are called dead, not only those of clients.
//!
//! **Rule:** one URL that answers is enough to refuse, whatever flag is given; the members that answer keep their cluster.

mod change_support;
mod cluster_support;

use std::path::Path;
use std::process::Command;

use change_support::{LIMIT, Net, said};
use quorate_testkit::{run, wait_until};

/// Lets packets from host `from` to this port of each of `others` vanish, or reach it again.
fn port(net: &Net, port: &str, verb: &str, from: usize, others: &[usize]) {
    for other in others {
        let address = net.address(*other).to_string();
        let rule = ["rule", verb, "pref", "10", "to", &address, "ipproto", "tcp", "dport", port, "blackhole"];
        run(net.hosts[from].command("ip").args(rule));
    }
}

fn mv(from: &Path, to: &Path) {
    run(Command::new("mv").arg(from).arg(to));
}

/// The agents of all three answer n1, and no etcd of the other two does. Of one of these a file cannot be read, and the data dir of the
/// other was moved below its etcd.
#[test]
fn refuses_while_members_whose_data_cannot_be_looked_at_serve() {
    let mut net = Net::new("3.5.30", 3);
    net.found(&[0, 1, 2]);
    let before = net.try_ctl(1, &["member", "list"]).unwrap();
    for (from, others) in [(0, &[1, 2][..]), (1, &[0]), (2, &[0])] {
        for closed in ["2379", "2380"] {
            port(&net, closed, "add", from, others);
        }
    }
    net.wait(0, "loss of the quorum", |status| status["phase"] == "waiting");
    wait_until("the others take writes", LIMIT, || net.try_ctl(1, &["put", "later", "v"]).is_ok());
    let (hidden, moved) = (net.data(1).join("member/snap/0.snap"), net.data(2).with_extension("moved"));
    run(Command::new("ln").args(["-s", "0.snap"]).arg(&hidden));
    mv(&net.data(2), &moved);
    let file = net.shown("n1.yaml");
    for more in [&[][..], &["--pass-over", "n2"]] {
        let words = ["cluster", "recover", "--config", &file, "--name", "n1", "--yes"];
        let output = net.quorate(0, &[&words[..], more].concat());
        let text = said(&output);
        assert_eq!(output.status.code(), Some(5), "{text}");
        assert!(text.contains("Q1060") && text.contains("confirms reads"), "{text}");
    }
    assert!(!net.state(0).join("recovery.json").exists(), "no order was taken");
    mv(&moved, &net.data(2));
    run(Command::new("rm").arg(&hidden));
    for (from, others) in [(0, &[1, 2][..]), (1, &[0]), (2, &[0])] {
        for closed in ["2379", "2380"] {
            port(&net, closed, "del", from, others);
        }
    }
    for at in 0..3 {
        net.wait(at, "service", |status| status["phase"] == "serving");
    }
    assert_eq!(net.try_ctl(0, &["member", "list"]).unwrap(), before, "the same members");
    assert_eq!(net.try_ctl(0, &["get", "later", "--print-value-only"]).unwrap().trim(), "v");
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
    port(&net, "2379", "add", 0, &[1, 2]);
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
    port(&net, "2379", "del", 0, &[1, 2]);
    for at in [1, 2] {
        net.start(at);
    }
    for at in 0..3 {
        net.wait(at, "service", |status| status["phase"] == "serving");
    }
    assert_eq!(net.try_ctl(0, &["member", "list"]).unwrap(), before, "the same members");
    assert_eq!(net.try_ctl(0, &["get", "later", "--print-value-only"]).unwrap().trim(), "v");
}
