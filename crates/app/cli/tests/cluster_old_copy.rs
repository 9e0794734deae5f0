//! Every node of a cluster is wiped and bootstrapped again with the same file; then an old copy of one node returns.
//!
//! **Rule:** the second cluster has other ids than the first, so the old copy belongs to no member of it: it is refused and joins
//! nothing, and the other members serve meanwhile.

mod cluster_support;

use std::path::Path;
use std::process::Command;

use cluster_support::{Declared, LIMIT, Wire};
use quorate_testkit::{run, wait_until};

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to));
}

fn moved(from: &Path, to: &Path) {
    run(Command::new("mv").arg(from).arg(to));
}

#[test]
fn refuses_an_old_copy_of_a_node_after_a_bootstrap_with_the_same_file() {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Clear);
    cluster.start_all();
    cluster.wait_serving();
    cluster.put(0, "k", "first");
    cluster.assert_all_hold("k", "first");
    let first = cluster.assert_one_cluster();
    for at in 0..3 {
        cluster.stop(at);
    }
    let (data, state) = (cluster.path("old-data"), cluster.path("old-state"));
    copy(&cluster.data(0), &data);
    copy(&cluster.state(0), &state);
    for at in 0..3 {
        moved(&cluster.data(at), &cluster.path(&format!("wiped-data-{at}")));
        moved(&cluster.state(at), &cluster.path(&format!("wiped-state-{at}")));
    }

    cluster.start_all();
    cluster.wait_serving();
    let second = cluster.assert_one_cluster();
    assert_ne!(second, first, "the same file leads to other ids");
    cluster.put(0, "k", "second");
    cluster.assert_all_hold("k", "second");

    cluster.stop(0);
    let (new_data, new_state) = (cluster.path("new-data"), cluster.path("new-state"));
    moved(&cluster.data(0), &new_data);
    moved(&cluster.state(0), &new_state);
    moved(&data, &cluster.data(0));
    moved(&state, &cluster.state(0));
    cluster.start(0);
    let status = cluster.wait_status(0, "refusal", |status| status["phase"] == "refused");
    assert_eq!(status["code"], "Q0949", "{status:#}");
    let cause = status["cause"].as_str().unwrap();
    assert!(cause.contains(&first) && cause.contains(&second), "{cause}");
    assert!(status["etcd"].is_null(), "{status:#}");
    // Nothing joined, and the other members take writes.
    let list = cluster.ctl(1, &["member", "list"]);
    assert!(list.lines().count() == 3 && !list.contains("true"), "{list}");
    cluster.put(1, "k", "third");
    wait_until("the write at the other member", LIMIT, || {
        cluster.try_ctl(2, &["get", "--print-value-only", "k"]).is_ok_and(|text| text.trim() == "third")
    });
    assert_eq!(cluster.status(0)["phase"], "refused");

    // What belongs there comes back, and catches up.
    cluster.stop(0);
    moved(&cluster.data(0), &data);
    moved(&cluster.state(0), &state);
    moved(&new_data, &cluster.data(0));
    moved(&new_state, &cluster.state(0));
    cluster.start(0);
    cluster.wait_serving();
    cluster.assert_all_hold("k", "third");
    assert_eq!(cluster.assert_one_cluster(), second);
}
