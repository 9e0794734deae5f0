//! Every change of a living cluster while clocks are stepped by an hour, forward and back: each agent's own in every run of the
//! tests, the machine's by `make test-clock`.

mod change_support;
mod cluster_support;

use change_support::Net;
use quorate_testkit::Clocks;

#[test]
fn every_change_ends_as_declared_while_clocks_are_stepped() {
    let mut net = Net::new("3.5.16", 4);
    let clocks = Clocks::new(net.root.path(), 4);
    for at in 0..4 {
        net.env.insert(at, clocks.env(at));
    }
    net.declare_release();
    let mut steps = clocks.stepped(|| net.found(&[0, 1, 2])).1;
    let load = net.load_from(3, &[0, 1, 2]);
    load.goes_on(20);
    for members in [&[0, 1, 2, 3][..], &[0, 1, 2]] {
        steps += clocks.stepped(|| net.apply(members)).1;
        net.assert_voters(members);
        load.goes_on(20);
    }
    // Another setting: everyone is started again, in its turn.
    net.more = "etcd: {heartbeat-interval: 100, election-timeout: 1000, max-txn-ops: 256}\n".to_owned();
    steps += clocks.stepped(|| net.apply(&[0, 1, 2])).1;
    let file = net.shown("n1.yaml");
    let own = ["--config", file.as_str(), "--name", "n1", "--yes", "--wait", "120s"];
    let words = [&["cluster", "upgrade", "--to", "3.5.30", "--without-backup"], &own[..]].concat();
    steps += clocks.stepped(|| net.done(0, &words)).1;
    for at in 0..3 {
        net.wait(at, "3.5.30", |status| status["etcd"]["version"] == "3.5.30" && status["phase"] == "serving");
    }
    load.goes_on(20);
    load.finish();
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    // A machine that comes back, a machine that is gone for good, and the one that is left.
    for at in [1, 2] {
        net.power_off(at);
    }
    net.wait(0, "loss of the quorum", |status| status["phase"] == "waiting");
    let dead = ["--fenced", "n2", "--fenced", "n3"];
    let words = [&["cluster", "recover"], &own[..], &dead].concat();
    let (said, more) = clocks.stepped(|| net.done(0, &words));
    assert!(said.contains("recovered: generation 1, begun by `n1`"), "{said}");
    net.wait(0, "serving", |status| status["phase"] == "serving");
    assert!(net.try_ctl(0, &["get", "k"]).unwrap().contains('v'));
    assert!(steps + more > 10, "the clocks were stepped {steps} and {more} times");
}
