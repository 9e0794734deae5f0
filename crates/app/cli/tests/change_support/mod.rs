//! Living clusters on hosts of their own, with mutual TLS: agents that each have a file, commands, and a load that never pauses.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

mod load;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_etcd::client::{Settings, Tls};
use quorate_testkit::{Hosts, Running, Tools, etcd, kill_hard, project_root, quorate, release_or};
use serde_json::Value;

pub(crate) use crate::cluster_support::said;
use crate::cluster_support::{authority, end_all_below, leads, leaf, logs_of, members_in};
pub(crate) use load::Load;

/// Two slow cores are what there may be.
pub(crate) const LIMIT: Duration = Duration::from_secs(150);

/// Short, so that tests are; long enough for a busy machine to keep its leader.
pub(crate) const ELECTION_MS: u64 = 1000;

/// A machine that builds beside its tests stalls everything for a while; what the product promises (1.5 election timeouts) is
/// measured by the bench.
pub(crate) const STALL_MAX: Duration = Duration::from_millis(ELECTION_MS * 5);

/// Hosts `n1` to `n<count>`, each with its own copy of the cluster file.
pub(crate) struct Net {
    // Agents end before the hosts they run on.
    pub(crate) agents: Vec<Option<Running>>,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) root: tempfile::TempDir,
    pub(crate) tools: Tools,
    /// Added to the cluster file.
    pub(crate) more: String,
    /// What the file says of boxes.
    pub(crate) boxes: String,
    /// Added to each member; `NUMBER` is its own.
    pub(crate) member_more: String,
    /// Instead of the program of `tools`.
    pub(crate) binary: Option<String>,
    /// Whether files declare the founding; not once it is used, since fewer than half of its members would found anew.
    pub(crate) bootstrap: bool,
    /// Nodes that have moved away from the addresses of their hosts.
    pub(crate) moved: BTreeMap<usize, Ipv4Addr>,
    /// Data dirs elsewhere than beside the others.
    pub(crate) places: BTreeMap<usize, PathBuf>,
    /// What agents are started with.
    pub(crate) env: BTreeMap<usize, Vec<(String, String)>>,
}

impl Net {
    pub(crate) fn new(version: &str, count: u8) -> Net {
        let (hosts, root) = (Arc::new(Hosts::new(count)), tempfile::tempdir().unwrap());
        let ca = authority("ca");
        put(&root.path().join("ca.pem"), &ca.pem());
        for at in 0..hosts.len() {
            let (here, there) = (hosts[at].address().to_string(), elsewhere(hosts[at].address()).to_string());
            let (cert, key) = leaf(&ca, &[&here, &there, "127.0.0.1"]);
            put(&root.path().join(format!("n{}.pem", at + 1)), &cert);
            let path = root.path().join(format!("n{}.key", at + 1));
            put(&path, &key);
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        }
        let agents = (0..count).map(|_| None).collect();
        let more = "maintenance: {join-timeout: 60s}\n".to_owned();
        let boxes = "box: {level: off}\n".to_owned();
        let (moved, places, env) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Net {
            agents,
            hosts,
            root,
            tools: etcd(&release_or(version)),
            more,
            boxes,
            member_more: String::new(),
            binary: None,
            bootstrap: true,
            moved,
            places,
            env,
        }
    }

    /// Where a node is.
    pub(crate) fn address(&self, at: usize) -> Ipv4Addr {
        self.moved.get(&at).copied().unwrap_or_else(|| self.hosts[at].address())
    }

    /// Gives a host its other address, which its certificates hold as well; the first one stays until it is dropped.
    pub(crate) fn move_host(&mut self, at: usize) {
        let there = elsewhere(self.hosts[at].address());
        self.ip(at, &["address", "add", &format!("{there}/24")]);
        self.moved.insert(at, there);
    }

    /// Takes the first address of a host away.
    pub(crate) fn drop_address(&self, at: usize) {
        // Others of the same net would go with it.
        let there = format!("{}/24", self.address(at));
        self.ip(at, &["address", "del", &format!("{}/24", self.hosts[at].address())]);
        let left = self.hosts[at].command("ip").args(["-4", "address"]).output().unwrap();
        if !String::from_utf8_lossy(&left.stdout).contains(&there) {
            self.ip(at, &["address", "add", &there]);
        }
    }

    fn ip(&self, at: usize, args: &[&str]) {
        let links = self.hosts[at].command("ip").args(["-o", "link"]).output().unwrap();
        let links = String::from_utf8_lossy(&links.stdout).into_owned();
        let names = links.lines().filter_map(|line| line.split(": ").nth(1)?.split('@').next());
        let link = names.into_iter().find(|name| name.starts_with('q')).unwrap();
        quorate_testkit::run(self.hosts[at].command("ip").args(args).args(["dev", link]));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(crate) fn client_url(&self, at: usize) -> String {
        format!("https://{}:2379", self.address(at))
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
                let (number, address, data) = (at + 1, self.address(*at), self.data(*at));
                let more = self.member_more.replace("NUMBER", &number.to_string());
                format!("  - {{name: n{number}, address: {address}, data-dir: {}{more}}}\n", data.display())
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
            "token: t\n{bootstrap}{}tls: {{peer: {files}, client: {files}}}\nmembers:\n{listed}agent:\n  \
             state-dir: {dir}/state\n  health-listen: https://127.0.0.1:2383\n  etcd-binary: \"{binary}\"\n{etcd}{}",
            self.boxes, self.more
        )
    }

    /// Files name this release from now on: 3.5.16, or the one that all tests are to run on.
    pub(crate) fn declare_release(&mut self) {
        let named = release_or("3.5.16");
        let (release, binary) = if named.contains('/') {
            // A directory: where its name tells the release, others lie beside it.
            let binary = self.tools.etcd.display().to_string();
            (self.tools.version.clone(), binary.replace(&self.tools.version, "{version}"))
        } else {
            (named.replace("sid", "3.5.30"), releases())
        };
        self.binary = Some(format!("{binary}\"\n  etcd-version: \"{release}"));
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
        let env = self.env.get(&at).cloned().unwrap_or_default();
        self.agents[at] = Some(self.hosts[at].start(&quorate(), &words, &env));
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
        self.places.get(&at).cloned().unwrap_or_else(|| self.path(&format!("data-{}", at + 1)))
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
        let told = |status: &Value| format!("n{}: no {what}: {status:#}\n{}", at + 1, self.logs());
        crate::cluster_support::answered(LIMIT, || self.status(at), wanted, told)
    }

    /// The names in etcd's own list, as one member has it, and who of them only learns.
    pub(crate) fn listed(&self, at: usize) -> BTreeMap<String, bool> {
        let text = self.try_ctl(at, &["member", "list"]).unwrap_or_default();
        members_in(&text)
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
                if leads(&text) {
                    return *at;
                }
            }
            assert!(begun.elapsed() < LIMIT, "no leader\n{}", self.logs());
        }
    }

    /// Hands leadership to a member.
    #[track_caller]
    pub(crate) fn lead(&self, to: usize) {
        let list = self.try_ctl(to, &["member", "list"]).unwrap();
        let name = format!(", n{}, ", to + 1);
        let id = list.lines().find(|line| line.contains(&name)).and_then(|line| line.split(',').next()).unwrap();
        let all: Vec<usize> = (0..list.lines().count()).collect();
        let from = self.leader(&all);
        if from != to {
            self.try_ctl(from, &["move-leader", id]).unwrap();
        }
    }

    pub(crate) fn logs(&self) -> String {
        logs_of(&self.agents, 60)
    }

    /// Writes and watches through member `at` until it is asked for what it saw. It is to be up all the time.
    pub(crate) fn load(&self, at: usize) -> Load {
        self.load_from(at, &[at])
    }

    /// The same from a host, through whichever of these members answers: a watch that breaks goes on where it was.
    pub(crate) fn load_from(&self, at: usize, through: &[usize]) -> Load {
        let path = |name: &str| Some(self.path(name));
        let mut settings = Settings::new(through.iter().map(|at| self.client_url(*at)));
        settings.tls = Tls { ca: path("ca.pem"), cert: path("n1.pem"), key: path("n1.key"), server_name: None };
        settings.timeout = Duration::from_secs(5);
        Load::start(Arc::clone(&self.hosts), at, settings, through.len() > 1)
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

/// The other address that a host may have.
fn elsewhere(address: Ipv4Addr) -> Ipv4Addr {
    let [a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d + 100)
}

/// Where releases lie side by side, as `make tools` puts them.
pub(crate) fn releases() -> String {
    let tools = etcd("3.5.16").etcd.display().to_string();
    assert!(tools.contains("3.5.16"), "{tools}: see {}", project_root().display());
    tools.replace("3.5.16", "{version}")
}

fn put(path: &Path, text: &str) {
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}
