//! Founding on hosts of their own, with mutual TLS as `quorate ca` makes it, with partitions in the middle of it.

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
    fn new(version: &str) -> Net {
        let (hosts, root, tools) = (Hosts::new(3), tempfile::tempdir().unwrap(), etcd(version));
        let dir = root.path().display();
        let members: String = hosts
            .iter()
            .enumerate()
            .map(|(at, host)| {
                format!("  - {{name: n{}, address: {}, data-dir: {dir}/data-{at}}}\n", at + 1, host.address())
            })
            .collect();
        let text = format!(
            "token: t\nbootstrap: {{id: 1}}\ntls: {{dir: \"{dir}/pki/{{name}}\"}}\nmembers:\n{members}agent:\n  state-dir: \
             {dir}/state\n  health-listen: http://127.0.0.1:2383\n  etcd-binary: {}\netcd: \
             {{heartbeat-interval: 50, election-timeout: 500}}\n",
            tools.etcd.display()
        );
        std::fs::File::create(root.path().join("cluster.yaml")).unwrap().write_all(text.as_bytes()).unwrap();
        let net = Net { agents: vec![None, None, None], hosts, root, tools };
        net.certify();
        net
    }

    /// What an operator types.
    fn certify(&self) {
        let place = |name: &str| self.root.path().join(name).display().to_string();
        let (file, ca) = (place("cluster.yaml"), place("ca"));
        let run = |args: &[&str]| {
            let output = std::process::Command::new(quorate()).args(args).output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        run(&["ca", "init", "--dir", &ca, "--token", "t", "--unencrypted"]);
        for name in ["n1", "n2", "n3"] {
            let (asked, signed) = (place(&format!("{name}.csr")), place(&format!("{name}.bundle")));
            run(&["ca", "csr", "--config", &file, "--name", name, "--out", &asked]);
            run(&["ca", "issue", "--dir", &ca, "--config", &file, "--out", &signed, &asked]);
            run(&["ca", "install", "--config", &file, "--name", name, &signed]);
        }
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
        let file = |name: &str| self.root.path().join("pki/n1").join(name).display().to_string();
        let (ca, cert, key) = (file("client-ca.crt"), file("admin.crt"), file("admin.key"));
        let all = [&["--cacert", &ca, "--cert", &cert, "--key", &key], args].concat();
        self.hosts[at].within(|| self.tools.try_ctl(&format!("https://{}:2379", self.hosts[at].address()), &all))
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
    let mut net = Net::new("3.5.16");
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
        let version = ["3.4.23", "sid"][usize::try_from(round).unwrap() % 2];
        let mut net = Net::new(version);
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
