//! Changes on bad days: a newcomer whose disk is full, and clocks that are stepped by an hour below the agent that decides.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;

use std::path::{Path, PathBuf};
use std::process::Command;

use change_support::{LIMIT, Net};
use quorate_testkit::{FakeClock, run, wait_until};

const HOUR: i64 = 3600;

/// A small disk, which may get larger.
struct Disk(PathBuf);

impl Disk {
    fn new(place: &Path, mebibytes: u32) -> Disk {
        std::fs::create_dir(place).unwrap();
        let size = format!("size={mebibytes}m");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "quorate-test"]).arg(place));
        Disk(place.to_owned())
    }

    fn enlarge(&self, mebibytes: u32) {
        run(Command::new("mount").args(["-o", &format!("remount,size={mebibytes}m")]).arg(&self.0));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

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
