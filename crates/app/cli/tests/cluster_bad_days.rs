//! Changes on bad days: full disks, partitions and kills in the middle of each, and clocks that are stepped by an hour below the
//! agent that decides.

mod change_support;
mod cluster_support;

use change_support::{LIMIT, Net, said};
use cluster_support::disk::Disk;
use quorate_testkit::{FakeClock, wait_until};

const HOUR: i64 = 3600;

#[test]
fn a_newcomer_without_room_waits_is_taken_out_by_a_clock_that_jumps_and_joins_in_the_end() {
    let mut net = Net::new("3.5.16", 4);
    // Each has a clock of its own.
    let clocks: Vec<FakeClock> = (0..3)
        .map(|at| {
            let dir = net.path(&format!("clock-{at}"));
            std::fs::create_dir(&dir).unwrap();
            FakeClock::new(&dir)
        })
        .collect();
    for (at, clock) in clocks.iter().enumerate() {
        net.env.insert(at, clock.env());
    }
    // etcd wants 64 MiB for its log alone.
    let disk = Disk::new(&net.path("disk-4"), 20);
    net.places.insert(3, net.path("disk-4/data"));
    // So long that nothing but a clock ends the wait of this test.
    net.more = "maintenance: {join-timeout: 30m}\n".to_owned();
    net.found(&[0, 1, 2]);
    let load = net.load(0);
    load.goes_on(20);
    let members = [0, 1, 2, 3];
    net.begin(&members);
    net.give_to(3, &net.text(&members));
    net.start(3);
    let full = net.wait(3, "word of the full disk", |status| status["code"] == "Q0005");
    assert_eq!(full["phase"], "waiting", "{full:#}");
    // It is a learner that everyone sees, and nobody minds.
    let listed = |net: &Net| net.try_ctl(0, &["member", "list"]).map_or(0, |list| list.lines().count());
    assert_eq!(listed(&net), 4);
    load.goes_on(20);
    // An hour passes for the agent of the leader, and for nobody else: it takes the learner out, which costs nothing.
    let leader = net.leader(&[0, 1, 2]);
    let done = |net: &Net| net.status(leader)["done"].to_string();
    // Its time runs from when this agent saw it.
    net.wait(leader, "sight of the learner", |status| status["cluster"].to_string().contains("learner"));
    clocks[leader].set(HOUR);
    wait_until("the learner is taken out", LIMIT, || done(&net).contains("out again"));
    // And back, behind where it was. There is room now, and a later file has the newcomer look at once.
    clocks[leader].set(-HOUR);
    disk.enlarge(400);
    net.more = "maintenance: {join-timeout: 60s}\n".to_owned();
    net.apply(&members);
    net.assert_voters(&members);
    clocks[leader].set(0);
    load.goes_on(20);
    load.finish();
    // Hosts and agents end before the disk that they use.
    drop(net);
    drop(disk);
}

/// Cuts a host off until this much was written through the others, and lets it back.
fn cut_off(net: &Net, load: &change_support::Load, at: usize) {
    let others: Vec<usize> = (0..4).filter(|other| *other != at).collect();
    net.hosts.partition(at, &others);
    load.goes_on(10);
    net.hosts.heal();
}

#[test]
fn partitions_and_kills_in_the_middle_of_each_change_delay_it_and_lose_nothing() {
    let mut net = Net::new("3.5.16", 4);
    net.declare_release();
    net.found(&[0, 1, 2]);
    let (members, more) = ([0, 1, 2], [0, 1, 2, 3]);
    // From a host that is never cut off from a quorum, through whoever answers.
    let load = net.load_from(3, &members);
    load.goes_on(20);
    for wanted in [&more[..], &members] {
        net.begin(wanted);
        if wanted.len() == 4 {
            net.give_to(3, &net.text(wanted));
            net.start(3);
        }
        cut_off(&net, &load, net.leader(&members));
        net.kill_etcd(1);
        net.kill_agent(2);
        net.start(2);
        net.apply(wanted);
        net.assert_voters(wanted);
    }
    net.more = "etcd: {heartbeat-interval: 100, election-timeout: 1000, max-txn-ops: 256}\n".to_owned();
    net.begin(&members);
    cut_off(&net, &load, 1);
    net.kill_etcd(2);
    net.kill_agent(0);
    net.start(0);
    net.apply(&members);
    let file = net.shown("n1.yaml");
    let upgrade = |wait: &'static str| {
        let own = ["--config", file.as_str(), "--name", "n1", "--yes", "--without-backup", "--wait", wait];
        [&["cluster", "upgrade", "--to", "3.5.30"], &own[..]].concat()
    };
    let begun = net.quorate(0, &upgrade("0s"));
    assert!(matches!(begun.status.code(), Some(0 | 3)), "{}\n{}", said(&begun), net.logs());
    cut_off(&net, &load, 2);
    net.kill_etcd(0);
    net.kill_agent(1);
    net.start(1);
    // Whoever was away is waited for.
    wait_until("the upgrade", LIMIT, || net.quorate(0, &upgrade("20s")).status.success());
    for at in members {
        net.wait(at, "3.5.30", |status| status["etcd"]["version"] == "3.5.30" && status["phase"] == "serving");
    }
    load.goes_on(20);
    load.finish();
}

#[test]
fn a_recovery_without_room_says_so_and_goes_on_once_there_is_some() {
    let mut net = Net::new("3.5.16", 3);
    let disk = Disk::new(&net.path("disk-1"), 400);
    net.places.insert(0, net.path("disk-1/data"));
    net.found(&[0, 1, 2]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    for at in [1, 2] {
        net.power_off(at);
    }
    net.wait(0, "loss of the quorum", |status| status["phase"] == "waiting");
    let file = net.shown("n1.yaml");
    let words = ["cluster", "recover", "--config", &file, "--name", "n1", "--yes", "--wait", "5s"];
    let words = [&words[..], &["--fenced", "n2", "--fenced", "n3"]].concat();
    // What is there stays readable; a copy of it does not fit beside it.
    disk.kept_full(|| {
        let stopped = net.quorate(0, &words);
        assert!(!stopped.status.success(), "{}", said(&stopped));
        // Where it stops depends on what was given back meanwhile; that it waits for room is said in any case.
        let status = net.wait(0, "word of the full disk", |status| {
            status["phase"] == "waiting" && status.to_string().to_lowercase().contains("no space left")
        });
        let kept = std::fs::read_dir(net.path("disk-1")).unwrap().flatten();
        let kept = kept.filter(|entry| entry.path().join("member/snap/db").exists()).count();
        assert!(kept > 0, "{status:#}");
    });
    disk.empty();
    net.wait(0, "serving", |status| status["phase"] == "serving");
    assert!(net.try_ctl(0, &["get", "k"]).unwrap().contains('v'));
    drop(net);
    drop(disk);
}

#[test]
fn a_member_without_room_delays_each_change_and_loses_nothing() {
    let mut net = Net::new("3.5.16", 4);
    let disk = Disk::new(&net.path("disk-2"), 400);
    net.places.insert(1, net.path("disk-2/data"));
    net.declare_release();
    net.found(&[0, 1, 2, 3]);
    let members = [0, 1, 2];
    let load = net.load_from(0, &[0, 2]);
    load.goes_on(20);
    // Somebody leaves, everyone is started again, another release: each begins while one member has no room for anything.
    disk.kept_full(|| {
        net.begin(&members);
        load.goes_on(20);
    });
    disk.empty();
    net.apply(&members);
    net.assert_voters(&members);
    net.more = "etcd: {heartbeat-interval: 100, election-timeout: 1000, max-txn-ops: 256}\n".to_owned();
    disk.kept_full(|| {
        net.begin(&members);
        load.goes_on(20);
    });
    disk.empty();
    net.apply(&members);
    let file = net.shown("n1.yaml");
    let upgrade = |wait: &'static str| {
        let own = ["--config", file.as_str(), "--name", "n1", "--yes", "--without-backup", "--wait", wait];
        net.quorate(0, &[&["cluster", "upgrade", "--to", "3.5.30"], &own[..]].concat())
    };
    disk.kept_full(|| {
        let begun = upgrade("0s");
        assert!(matches!(begun.status.code(), Some(0 | 3)), "{}\n{}", said(&begun), net.logs());
        load.goes_on(20);
    });
    disk.empty();
    wait_until("the upgrade", LIMIT, || upgrade("20s").status.success());
    for at in members {
        net.wait(at, "3.5.30", |status| status["etcd"]["version"] == "3.5.30" && status["phase"] == "serving");
    }
    load.goes_on(20);
    load.finish();
    drop(net);
    drop(disk);
}
