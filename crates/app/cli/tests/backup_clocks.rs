//! Backups of a cluster whose leader has a wrong clock, and a store that has the same: the other agents tell.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use std::collections::BTreeSet;
use std::process::Command;

use cluster_support::{Declared, LIMIT, Wire, leads};
use quorate_testkit::{FakeClock, S3, quorate, s3_with, wait_until};
use serde_json::Value;

const HOUR: i64 = 3600;
const DAYS: i64 = 3 * 24 * HOUR;

/// The names of the full backups in the store.
fn fulls(s3: &S3) -> BTreeSet<String> {
    let mut command = Command::new(quorate());
    command.envs(s3.env()).args(["backup", "list", "--store", &s3.url("b"), "--output", "json"]);
    let listed: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let objects = listed["objects"].as_array().unwrap_or_else(|| panic!("{listed}")).iter();
    objects.filter(|it| it["kind"] == "full").map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

/// The agents of a cluster of three, each with a clock of its own.
struct Agents {
    cluster: Declared,
    clocks: Vec<FakeClock>,
    s3: S3,
}

impl Agents {
    fn start(&mut self, at: usize) {
        self.cluster.env = [self.clocks[at].env(), self.s3.env()].concat();
        self.cluster.start(at);
    }

    /// Another run of an agent, which looks at the schedule at once.
    fn restart(&mut self, at: usize) {
        self.cluster.kill_agent(at);
        self.start(at);
    }

    /// Waits until the agent logs that nothing is removed, after it has taken a full that would let the earlier ones go.
    fn keeps(&self, at: usize, code: &str, earlier: &BTreeSet<String>) {
        wait_until(&format!("nothing is removed: {code}"), LIMIT, || {
            let log = self.cluster.log(at);
            log.contains("cannot remove old backups") && log.contains(code)
        });
        let now = fulls(&self.s3);
        assert!(now.len() > earlier.len() && now.is_superset(earlier), "{earlier:?}\n{now:?}");
    }
}

#[test]
fn no_backup_is_removed_by_a_clock_that_the_other_agents_do_not_confirm() {
    let cluster = Declared::new("3.5.16", 3, Wire::Clear);
    let clock = |name: &str| {
        let dir = cluster.path(name);
        std::fs::create_dir(&dir).unwrap();
        FakeClock::new(&dir)
    };
    let of_store = clock("clock-store");
    let clocks: Vec<FakeClock> = ["clock-1", "clock-2", "clock-3"].map(clock).into();
    let own = s3_with(&of_store.env());
    let s3 = own.s3.clone();
    let mut agents = Agents { cluster, clocks, s3 };
    agents.cluster.more = format!(
        "backup: {{store: \"{}\", delta-period: 200ms, full-schedule: every 1h, \
         keep: {{last: 1, hourly: 0, daily: 0, weekly: 0, monthly: 0, history: 0s}}}}\n",
        agents.s3.url("b")
    );
    agents.cluster.file();
    (0..3).for_each(|at| agents.start(at));
    agents.cluster.wait_serving();
    agents.cluster.put(0, "k", "v");
    agents.cluster.wait_backed_up();
    let status = ["endpoint", "status", "--write-out=json"];
    let leader = (0..3).find(|at| leads(&agents.cluster.ctl(*at, &status))).unwrap();
    let first = fulls(&agents.s3);
    assert_eq!(first.len(), 1, "{first:?}");

    // No other agent runs: that none answers does not say that none is behind.
    (0..3).for_each(|at| agents.cluster.kill_agent(at));
    of_store.set(DAYS);
    agents.clocks[leader].set(DAYS);
    agents.start(leader);
    agents.keeps(leader, "Q1437", &first);

    // They answer, and are right. The first question is put right before something would be removed.
    (0..3).filter(|at| *at != leader).for_each(|at| agents.start(at));
    agents.cluster.wait_serving();
    let second = fulls(&agents.s3);
    of_store.set(DAYS + 2 * HOUR);
    agents.clocks[leader].set(DAYS + 2 * HOUR);
    agents.restart(leader);
    agents.keeps(leader, "Q1429", &second);

    // All clocks agree: what the rules do not keep goes.
    let third = fulls(&agents.s3);
    of_store.set(DAYS + 4 * HOUR);
    agents.clocks.iter().for_each(|clock| clock.set(DAYS + 4 * HOUR));
    agents.restart(leader);
    wait_until("the earlier fulls are removed", LIMIT, || fulls(&agents.s3).is_disjoint(&third));
}
