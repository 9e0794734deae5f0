//! Living clusters on hosts of their own, with mutual TLS: agents that each have a file, commands, and a load that never pauses.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_etcd::client::{Client, KeyRange, Settings, Tls, WatchFrom, WatchTurn};
use quorate_testkit::{Hosts, Running, Tools, etcd, kill_hard, project_root, quorate};
use serde_json::Value;

use crate::cluster_support::{authority, end_all_below, leaf};

/// Two slow cores are what there may be.
pub(crate) const LIMIT: Duration = Duration::from_secs(150);

/// Short, so that tests are; long enough for a busy machine to keep its leader.
pub(crate) const ELECTION_MS: u64 = 1000;

/// Hosts `n1` to `n<count>`, each with its own copy of the cluster file.
pub(crate) struct Net {
    // Agents end before the hosts they run on.
    pub(crate) agents: Vec<Option<Running>>,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) root: tempfile::TempDir,
    pub(crate) tools: Tools,
    /// Added to the cluster file.
    pub(crate) more: String,
    /// Instead of the program of `tools`.
    pub(crate) binary: Option<String>,
    /// Whether files declare the founding; not once it is used, since fewer than half of its members would found anew.
    pub(crate) bootstrap: bool,
}

impl Net {
    pub(crate) fn new(version: &str, count: u8) -> Net {
        let (hosts, root) = (Arc::new(Hosts::new(count)), tempfile::tempdir().unwrap());
        let ca = authority("ca");
        put(&root.path().join("ca.pem"), &ca.pem());
        for at in 0..hosts.len() {
            let (cert, key) = leaf(&ca, &[&hosts[at].address().to_string(), "127.0.0.1"]);
            put(&root.path().join(format!("n{}.pem", at + 1)), &cert);
            let path = root.path().join(format!("n{}.key", at + 1));
            put(&path, &key);
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        }
        let agents = (0..count).map(|_| None).collect();
        let more = "maintenance: {join-timeout: 60s}\n".to_owned();
        Net { agents, hosts, root, tools: etcd(version), more, binary: None, bootstrap: true }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(crate) fn client_url(&self, at: usize) -> String {
        format!("https://{}:2379", self.hosts[at].address())
    }

    /// A cluster file with these members.
    pub(crate) fn text(&self, members: &[usize]) -> String {
        let dir = self.root.path().display();
        let files = format!(
            "{{cert-file: \"{dir}/{{name}}.pem\", key-file: \"{dir}/{{name}}.key\", trusted-ca-file: {dir}/ca.pem}}"
        );
        let listed: String = members
            .iter()
            .map(|at| {
                let (number, address) = (at + 1, self.hosts[*at].address());
                format!("  - {{name: n{number}, address: {address}, data-dir: {dir}/data-{number}}}\n")
            })
            .collect();
        let bootstrap = if self.bootstrap { "bootstrap: {id: 1}\n" } else { "" };
        let binary = self.binary.clone().unwrap_or_else(|| self.tools.etcd.display().to_string());
        let etcd = if self.more.contains("etcd:") {
            String::new()
        } else {
            format!("etcd: {{heartbeat-interval: 100, election-timeout: {ELECTION_MS}}}\n")
        };
        format!(
            "token: t\n{bootstrap}box: {{level: off}}\ntls: {{peer: {files}, client: {files}}}\nmembers:\n{listed}agent:\n  \
             state-dir: {dir}/state\n  health-listen: https://127.0.0.1:2383\n  etcd-binary: \"{binary}\"\n{etcd}{}",
            self.more
        )
    }

    /// Writes the file of these members for all of them, without telling an agent.
    pub(crate) fn give(&self, members: &[usize]) {
        let text = self.text(members);
        for at in members {
            put(&self.path(&format!("n{}.yaml", at + 1)), &text);
        }
    }

    pub(crate) fn give_to(&self, at: usize, text: &str) {
        put(&self.path(&format!("n{}.yaml", at + 1)), text);
    }

    pub(crate) fn start(&mut self, at: usize) {
        let name = format!("n{}", at + 1);
        let words = ["run", "--config", &self.shown(&format!("{name}.yaml")), "--name", &name].map(str::to_owned);
        self.agents[at] = Some(self.hosts[at].start(&quorate(), &words, &[]));
    }

    /// SIGKILL to the agent alone.
    pub(crate) fn kill_agent(&mut self, at: usize) {
        if let Some(mut agent) = self.agents[at].take() {
            agent.kill();
        }
    }

    /// SIGKILL to agent, shim and etcd: the machine is off.
    pub(crate) fn power_off(&mut self, at: usize) {
        self.kill_agent(at);
        end_all_below(&self.state(at));
    }

    /// SIGKILL to etcd alone.
    pub(crate) fn kill_etcd(&self, at: usize) {
        let status = self.status(at);
        if let Some(pid) = status["etcd"]["pid"].as_u64() {
            kill_hard(u32::try_from(pid).unwrap());
        }
    }

    pub(crate) fn state(&self, at: usize) -> PathBuf {
        self.path(&format!("state/n{}", at + 1))
    }

    pub(crate) fn data(&self, at: usize) -> PathBuf {
        self.path(&format!("data-{}", at + 1))
    }

    /// `quorate` on a host.
    pub(crate) fn quorate(&self, at: usize, args: &[&str]) -> Output {
        self.hosts[at].command(quorate()).args(args).stdin(std::process::Stdio::null()).output().unwrap()
    }

    /// The same, and it has to succeed.
    #[track_caller]
    pub(crate) fn done(&self, at: usize, args: &[&str]) -> String {
        let output = self.quorate(at, args);
        let text = said(&output);
        assert!(output.status.success(), "{args:?}: {}\n{text}\n{}", output.status, self.logs());
        text
    }

    /// Founds a cluster of these members, and waits until all serve.
    pub(crate) fn found(&mut self, members: &[usize]) {
        self.give(members);
        for at in members {
            self.start(*at);
        }
        self.done(
            members[0],
            &["cluster", "bootstrap", &self.shown(&format!("n{}.yaml", members[0] + 1)), "--wait", "120s"],
        );
        self.bootstrap = false;
    }

    /// Gives a file with these members to every node, and does not wait for what comes of it.
    pub(crate) fn begin(&self, members: &[usize]) {
        put(&self.path("new.yaml"), &self.text(members));
        let words = ["cluster", "apply", &self.shown("new.yaml"), "--yes", "--wait", "0s", "--name", "n1"];
        let begun = self.quorate(0, &words);
        assert!(matches!(begun.status.code(), Some(0 | 3)), "{}\n{}", said(&begun), self.logs());
    }

    /// Applies a file with these members, from host 0, starts those that are new, and waits until it is done.
    #[track_caller]
    pub(crate) fn apply(&mut self, members: &[usize]) -> String {
        self.begin(members);
        for at in members {
            if self.agents[*at].is_none() {
                self.give_to(*at, &self.text(members));
                self.start(*at);
            }
        }
        self.done(0, &["cluster", "apply", &self.shown("new.yaml"), "--yes", "--wait", "120s", "--name", "n1"])
    }

    pub(crate) fn status(&self, at: usize) -> Value {
        let name = format!("n{}", at + 1);
        let file = self.shown(&format!("{name}.yaml"));
        let output = self.quorate(at, &["status", "--config", &file, "--name", &name, "--output", "json"]);
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    #[track_caller]
    pub(crate) fn wait(&self, at: usize, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status(at);
            if wanted(&status) {
                return status;
            }
            assert!(begun.elapsed() < LIMIT, "n{}: no {what}: {status:#}\n{}", at + 1, self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The names in etcd's own list, as one member has it, and who of them only learns.
    pub(crate) fn listed(&self, at: usize) -> BTreeMap<String, bool> {
        let text = self.try_ctl(at, &["member", "list"]).unwrap_or_default();
        let member = |line: &str| {
            let parts: Vec<&str> = line.split(", ").collect();
            Some(((*parts.get(2)?).to_owned(), *parts.last()? == "true"))
        };
        text.lines().filter_map(member).collect()
    }

    #[track_caller]
    pub(crate) fn assert_voters(&self, members: &[usize]) {
        let wanted: BTreeMap<String, bool> = members.iter().map(|at| (format!("n{}", at + 1), false)).collect();
        assert_eq!(self.listed(members[0]), wanted, "{}", self.logs());
    }

    pub(crate) fn try_ctl(&self, at: usize, args: &[&str]) -> Result<String, String> {
        let (ca, cert, key) = (self.shown("ca.pem"), self.shown("n1.pem"), self.shown("n1.key"));
        let mut command = self.hosts[at].command(&self.tools.etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.client_url(at)]);
        command.args(["--cacert", &ca, "--cert", &cert, "--key", &key]).args(args);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(text) } else { Err(said(&output)) }
    }

    /// Which of the hosts has the leader.
    pub(crate) fn leader(&self, members: &[usize]) -> usize {
        let begun = Instant::now();
        loop {
            for at in members {
                let text = self.try_ctl(*at, &["endpoint", "status", "--write-out=json"]).unwrap_or_default();
                let status: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
                let status = &status[0]["Status"];
                if status["leader"].is_u64() && status["leader"] == status["header"]["member_id"] {
                    return *at;
                }
            }
            assert!(begun.elapsed() < LIMIT, "no leader\n{}", self.logs());
        }
    }

    pub(crate) fn logs(&self) -> String {
        let log = |(at, agent): (usize, &Option<Running>)| {
            format!("--- n{}\n{}\n", at + 1, agent.as_ref().map(|agent| agent.log_tail(60)).unwrap_or_default())
        };
        self.agents.iter().enumerate().map(log).collect()
    }

    /// Writes and watches through member `at` until it is asked for what it saw.
    pub(crate) fn load(&self, at: usize) -> Load {
        let path = |name: &str| Some(self.path(name));
        let mut settings = Settings::new([self.client_url(at)]);
        settings.tls = Tls { ca: path("ca.pem"), cert: path("n1.pem"), key: path("n1.key"), server_name: None };
        settings.timeout = Duration::from_secs(5);
        Load::start(Arc::clone(&self.hosts), at, settings)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for agent in self.agents.iter_mut().flatten() {
            agent.kill();
        }
        end_all_below(self.root.path());
    }
}

/// Where releases lie side by side, as `make tools` puts them.
pub(crate) fn releases() -> String {
    let tools = etcd("3.5.16").etcd.display().to_string();
    assert!(tools.contains("3.5.16"), "{tools}: see {}", project_root().display());
    tools.replace("3.5.16", "{version}")
}

pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn put(path: &Path, text: &str) {
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// Writes one key after the other and watches them all, through one member.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    work: Option<JoinHandle<Seen>>,
}

/// What a load saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Keys `w/0` to `w/<n-1>` were acknowledged.
    pub(crate) acknowledged: u64,
    /// The longest time between two acknowledged writes.
    pub(crate) longest: Duration,
    /// Revisions that the watch told, in its order.
    pub(crate) revisions: Vec<i64>,
    /// Keys that it told.
    pub(crate) keys: BTreeSet<String>,
    /// Keys that are there at the end.
    pub(crate) kept: BTreeSet<String>,
}

impl Load {
    fn start(hosts: Arc<Hosts>, at: usize, settings: Settings) -> Load {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts) = (Arc::clone(&stop), Arc::clone(&written));
        let work = std::thread::spawn(move || {
            hosts[at].within(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(write_and_watch(settings, &ends, &counts))
            })
        });
        Load { stop, written, work: Some(work) }
    }

    /// Waits until so many more writes were acknowledged.
    #[track_caller]
    pub(crate) fn goes_on(&self, more: u64) {
        let (from, begun) = (self.written.load(Ordering::Relaxed), Instant::now());
        while self.written.load(Ordering::Relaxed) < from + more {
            assert!(begun.elapsed() < LIMIT, "writes do not go on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it: nothing acknowledged is lost, and the watch told every event once and in order.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.work.take().unwrap().join().unwrap();
        let wanted: BTreeSet<String> = (0..seen.acknowledged).map(key).collect();
        let lost: Vec<&String> = wanted.difference(&seen.kept).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        let untold: Vec<&String> = wanted.difference(&seen.keys).collect();
        assert!(untold.is_empty(), "never told by the watch: {untold:?}");
        assert!(seen.revisions.windows(2).all(|two| two[0] < two[1]), "an event came twice, or out of order");
        assert!(seen.acknowledged > 0);
        seen
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn key(number: u64) -> String {
    format!("w/{number:08}")
}

async fn write_and_watch(settings: Settings, stop: &AtomicBool, written: &AtomicU64) -> Seen {
    let client = connect(&settings).await;
    let range = KeyRange::prefix("w/");
    let from = client.header().await.unwrap().revision + 1;
    let mut watch = client.watch_range(&range, WatchFrom { revision: from, progress: false }).await.unwrap();
    let mut seen = Seen::default();
    let writer = async {
        let (mut client, mut number, mut longest, mut last) = (client.clone(), 0, Duration::ZERO, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            match client.put(key(number), "v").await {
                Ok(_) => {
                    longest = longest.max(last.elapsed());
                    (number, last) = (number + 1, Instant::now());
                    written.store(number, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                // No word is no promise: the same key is written again.
                Err(_) => client = connect(&settings).await,
            }
        }
        (number, longest)
    };
    let (mut revisions, mut keys) = (Vec::new(), BTreeSet::new());
    {
        let watcher = async {
            loop {
                match watch.next().await.unwrap() {
                    WatchTurn::Events { events, .. } => {
                        for event in events {
                            assert!(!event.is_delete());
                            let kv = event.kv.unwrap();
                            revisions.push(kv.mod_revision);
                            keys.insert(String::from_utf8(kv.key.to_vec()).unwrap());
                        }
                    }
                    WatchTurn::Progress { .. } => {}
                    WatchTurn::Compacted { oldest } => panic!("compacted up to {oldest}"),
                }
            }
        };
        tokio::pin!(watcher);
        tokio::select! {
            ended = writer => (seen.acknowledged, seen.longest) = ended,
            () = &mut watcher => {}
        }
        // The last ones may still be under way.
        let _ = tokio::time::timeout(Duration::from_secs(3), &mut watcher).await;
    }
    (seen.revisions, seen.keys) = (revisions, keys);
    let listing = connect(&settings).await.list("w/").await.unwrap();
    seen.kept = listing.kvs.into_iter().map(|kv| String::from_utf8(kv.key).unwrap()).collect();
    seen
}

async fn connect(settings: &Settings) -> Client {
    let begun = Instant::now();
    loop {
        match Client::connect(settings).await {
            Ok(client) => return client,
            Err(fault) => assert!(begun.elapsed() < LIMIT, "{fault}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
