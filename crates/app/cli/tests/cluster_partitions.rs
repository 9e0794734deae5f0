//! Founding on hosts of their own, with partitions in the middle of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate_testkit::{Hosts, Running, Tools, etcd, quorate};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// Three hosts, one cluster file.
struct Net {
    // Agents end before the hosts they run on.
    agents: Vec<Option<Running>>,
    hosts: Hosts,
    root: tempfile::TempDir,
    tools: Tools,
}

impl Net {
    fn new() -> Net {
        let (hosts, root, tools) = (Hosts::new(3), tempfile::tempdir().unwrap(), etcd("3.5.16"));
        let dir = root.path().display();
        let members: String = hosts
            .iter()
            .enumerate()
            .map(|(at, host)| {
                format!("  - {{name: n{}, address: {}, data-dir: {dir}/data-{at}}}\n", at + 1, host.address())
            })
            .collect();
        let text = format!(
            "token: t\nbootstrap: {{id: 1}}\nplaintext: true\nmembers:\n{members}agent:\n  state-dir: {dir}/state\n  \
             api-listen: http://0.0.0.0:2382\n  health-listen: http://127.0.0.1:2383\n  etcd-binary: {}\netcd: \
             {{heartbeat-interval: 50, election-timeout: 500}}\n",
            tools.etcd.display()
        );
        std::fs::File::create(root.path().join("cluster.yaml")).unwrap().write_all(text.as_bytes()).unwrap();
        Net { agents: vec![None, None, None], hosts, root, tools }
    }

    fn file(&self) -> PathBuf {
        self.root.path().join("cluster.yaml")
    }

    fn start(&mut self, at: usize) {
        let file = self.file().display().to_string();
        let args = ["run", "--config", &file, "--name", &format!("n{}", at + 1)].map(str::to_owned);
        self.agents[at] = Some(self.hosts[at].start(&quorate(), &args, &[]));
    }

    fn status(&self, at: usize) -> Value {
        let mut command = std::process::Command::new(quorate());
        command.args(["status", "--output", "json", "--name", &format!("n{}", at + 1), "--config"]).arg(self.file());
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
    }

    #[track_caller]
    fn wait(&self, at: usize, what: &str, wanted: impl Fn(&Value) -> bool) {
        let begun = Instant::now();
        loop {
            let status = self.status(at);
            if wanted(&status) {
                return;
            }
            let log = self.agents[at].as_ref().map(Running::log).unwrap_or_default();
            assert!(begun.elapsed() < LIMIT, "n{}: no {what}: {status:#}\n{log}", at + 1);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn ctl(&self, at: usize, args: &[&str]) -> Result<String, String> {
        self.hosts[at].within(|| self.tools.try_ctl(&format!("http://{}:2379", self.hosts[at].address()), args))
    }

    #[track_caller]
    fn assert_one_cluster(&self) {
        for at in 0..3 {
            self.wait(at, "serving", |status| status["phase"] == "serving");
        }
        let ids: Vec<Value> = (0..3).map(|at| self.status(at)["cluster_id"].clone()).collect();
        assert!(ids.iter().all(|id| *id == ids[0] && id.is_string()), "{ids:?}");
        let begun = Instant::now();
        while let Err(error) = self.ctl(0, &["put", "k", "v"]) {
            assert!(begun.elapsed() < LIMIT, "{error}");
        }
        for at in 0..3 {
            assert_eq!(self.ctl(at, &["get", "--print-value-only", "k"]).unwrap().trim(), "v");
        }
    }
}

#[test]
fn a_node_behind_a_partition_is_waited_for_and_founds_with_the_others_once_it_ends() {
    let mut net = Net::new();
    net.hosts.partition(2, &[0, 1]);
    for at in 0..3 {
        net.start(at);
    }
    for (at, names) in [(0, "waiting for `n3` to promise"), (1, "waiting for `n3` to promise"), (2, "`n1` and `n2`")] {
        net.wait(at, names, |status| status["cause"].as_str().is_some_and(|cause| cause.contains(names)));
    }
    assert!((0..3).all(|at| !net.root.path().join(format!("data-{at}")).exists()), "nothing is founded");
    net.hosts.heal();
    net.assert_one_cluster();
}

#[test]
fn a_partition_in_the_middle_of_founding_delays_it_and_never_founds_two() {
    let rounds = if std::env::var("QUORATE_SWEEP").as_deref() == Ok("full") { 20 } else { 2 };
    for round in 0..rounds {
        let mut net = Net::new();
        for at in 0..3 {
            net.start(at);
        }
        // Somewhere between the first promise and the last start.
        std::thread::sleep(Duration::from_millis(200 + round * 311 % 1500));
        let one = usize::try_from(round).unwrap() % 3;
        // In one direction only, or in both.
        match round % 2 {
            0 => net.hosts.partition(one, &[(one + 1) % 3, (one + 2) % 3]),
            _ => net.hosts.cut(one, (one + 1) % 3),
        }
        std::thread::sleep(Duration::from_millis(500));
        net.hosts.heal();
        net.assert_one_cluster();
    }
}
