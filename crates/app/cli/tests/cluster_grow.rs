//! Clusters that grow: under load, with agents and newcomers that are killed, and with a newcomer that is never heard of again.

mod change_support;
mod cluster_support;

use change_support::{LIMIT, Net, STALL_MAX};
use quorate_testkit::wait_until;

#[test]
fn from_one_to_five_and_back_to_one_under_writes_and_watches() {
    let mut net = Net::new("3.5.16", 5);
    net.found(&[0]);
    let load = net.load(0);
    load.goes_on(20);
    for members in [&[0, 1][..], &[0, 1, 2], &[0, 1, 2, 3, 4], &[0, 1, 2], &[0]] {
        // Whoever leads is among those that leave, so that handing over is part of it.
        let last = net.listed(0).len() - 1;
        if last >= members.len() {
            net.lead(last);
        }
        net.apply(members);
        net.assert_voters(members);
        load.goes_on(20);
    }
    // Who left has its etcd ended, its data renamed, and says so.
    for at in 1..5 {
        let status = net.wait(at, "tombstone", |status| status["ledger"] == "tombstone");
        assert!(status["etcd"].is_null(), "{status:#}");
        wait_until("its data is renamed", LIMIT, || !net.data(at).exists());
    }
    let seen = load.finish();
    assert!(seen.longest < STALL_MAX, "writes stalled for {:?}", seen.longest);
}

#[test]
fn kills_in_the_middle_of_growing_delay_it_and_lose_nothing() {
    let mut net = Net::new("sid", 4);
    net.found(&[0, 1, 2]);
    let load = net.load(0);
    load.goes_on(20);
    // The newcomer's machine goes off somewhere between its add and its vote, and comes back.
    net.begin(&[0, 1, 2, 3]);
    net.give_to(3, &net.text(&[0, 1, 2, 3]));
    net.start(3);
    wait_until("it was added", LIMIT, || {
        net.try_ctl(0, &["member", "list"]).is_ok_and(|list| list.lines().count() == 4)
    });
    net.power_off(3);
    let leader = net.leader(&[0, 1, 2]);
    // The leader's agent, too; and its etcd, unless the load goes through it.
    net.kill_agent(leader);
    if leader != 0 {
        net.power_off(leader);
    }
    net.start(leader);
    net.start(3);
    net.apply(&[0, 1, 2, 3]);
    net.assert_voters(&[0, 1, 2, 3]);
    load.goes_on(20);
    load.finish();
}

#[test]
fn a_newcomer_that_does_not_come_up_is_taken_out_and_may_come_back() {
    let mut net = Net::new("3.5.16", 4);
    net.more = "maintenance: {join-timeout: 3s}\n".to_owned();
    net.found(&[0, 1, 2]);
    let members = [0, 1, 2, 3];
    let count = |net: &Net| net.try_ctl(0, &["member", "list"]).map_or(0, |list| list.lines().count());
    net.begin(&members);
    // Someone else has its port, so its etcd does not come up; then its whole machine cannot be reached.
    let address = net.hosts[3].address();
    let taken = net.hosts[3].within(|| std::net::TcpListener::bind((address, 2380)).unwrap());
    net.give_to(3, &net.text(&members));
    net.start(3);
    wait_until("it was added", LIMIT, || count(&net) == 4);
    net.hosts.partition(3, &[0, 1, 2]);
    wait_until("it is taken out again", LIMIT, || count(&net) == 3);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    drop(taken);
    net.hosts.heal();
    net.more = "maintenance: {join-timeout: 60s}\n".to_owned();
    net.apply(&members);
    net.assert_voters(&members);
}

/// Its place is taken by another machine: first removed where etcd takes nobody in beside a dead one (3.5.16), last where it does.
fn replaces_a_dead_machine(version: &str) {
    let mut net = Net::new(version, 4);
    net.found(&[0, 1, 2]);
    let load = net.load(0);
    load.goes_on(20);
    net.power_off(2);
    net.hosts.partition(2, &[0, 1, 3]);
    load.goes_on(20);
    net.apply(&[0, 1, 3]);
    net.assert_voters(&[0, 1, 3]);
    load.goes_on(20);
    load.finish();
}

#[test]
fn a_dead_machine_is_replaced_where_it_has_to_leave_first() {
    replaces_a_dead_machine("3.5.16");
}

#[test]
fn a_dead_machine_is_replaced_where_another_may_join_beside_it() {
    replaces_a_dead_machine("sid");
}
