//! A group of PostgreSQL servers on this machine: a store, certificates, one agent for each node, and clients.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

mod clients;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_pki::{Authorities, Keys, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue};
use quorate_postgres::Secret;
use quorate_postgres::group::{self, Member};
use quorate_postgres::server::TlsFiles;
use quorate_postgres::sql::{Client, Limits, Place, Way};
use quorate_testkit::{Hosts, Launch, Port, Running, Seat, Server, copy_program, etcd, free_port, quorate};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use clients::{
    Load, POOLER, READ, WRITE, all_arrive, count, eventually, in_words, once, runtime, said, well,
};

/// Two slow cores are what there may be.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Ports of one node: server, pooler, health, write, read.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) ports: [Port; 5],
    pub(crate) agent: Option<Running>,
    /// Where its data lies, if not beside the others'.
    pub(crate) data: Option<PathBuf>,
}

/// What can be killed on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Agent,
    Shims,
    Server,
    All,
}

/// What is not as usual.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    /// Lines of the section `postgres`.
    pub(crate) more: &'a str,
    /// The release of PostgreSQL.
    pub(crate) major: u32,
    /// Where the third node's data lies.
    pub(crate) third: Option<&'a Path>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Setup { more: "role: manager", major: usual_major(), third: None }
    }
}

/// The release of PostgreSQL where a test does not name one: 18, or what `make test-postgres` says.
fn usual_major() -> u32 {
    std::env::var("QUORATE_TEST_POSTGRES").map_or(18, |major| major.parse().unwrap())
}

/// The hosts of a net beyond those of the nodes.
pub(crate) const STORE_HOST: usize = 3;
pub(crate) const CLIENT_HOST: usize = 4;

/// Where the nodes agree.
pub(crate) enum Store {
    Etcd(Server),
    Consul(Running, [Port; 4]),
    /// An etcd on a host of its own.
    Apart(Running),
}

/// A group. Dropped, all of it is ended.
pub(crate) struct Group {
    pub(crate) root: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) nodes: Vec<Node>,
    pub(crate) hosts: Option<Arc<Hosts>>,
    pub(crate) major: u32,
    more: String,
}

impl Group {
    /// Three nodes on an etcd of their own, and nothing started but etcd.
    pub(crate) fn new(more: &str) -> Group {
        Group::with(Setup { more, ..Setup::default() })
    }

    /// The same, with what is not as usual.
    pub(crate) fn with(setup: Setup<'_>) -> Group {
        let root = open_dir();
        let seat = Seat::new("store");
        let server = Launch::new(&etcd("3.5.16"), &seat, &root.path().join("etcd"))
            .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
            .arg(format!("--initial-cluster=store={}", seat.peer_url()))
            .start();
        let line = format!("store-urls: [\"{}\"]", seat.client_url());
        Group::on(root, Store::Etcd(server), &line, setup, None)
    }

    /// Each node on a host of its own, etcd on a fourth, clients on a fifth.
    pub(crate) fn on_hosts(more: &str) -> Group {
        let (root, hosts) = (open_dir(), Hosts::new(5));
        let url = format!("http://{}:2379", hosts[STORE_HOST].address());
        let data = root.path().join("etcd").display().to_string();
        let args = [
            format!("--data-dir={data}"),
            "--name=store".to_owned(),
            "--listen-client-urls=http://0.0.0.0:2379".to_owned(),
            format!("--advertise-client-urls={url}"),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            "--initial-advertise-peer-urls=http://127.0.0.1:2380".to_owned(),
            "--initial-cluster=store=http://127.0.0.1:2380".to_owned(),
        ];
        let store = hosts[STORE_HOST].start(&etcd("3.5.16").etcd, &args, &[]);
        let line = format!("store-urls: [\"{url}\"]");
        Group::on(root, Store::Apart(store), &line, Setup { more, ..Setup::default() }, Some(hosts))
    }

    /// The same on a Consul of their own.
    pub(crate) fn on_consul(more: &str) -> Group {
        let root = open_dir();
        let [http, lan, wan, server]: [Port; 4] = std::array::from_fn(|_| free_port());
        let ports =
            format!("ports {{ http = {http} dns = -1 grpc = -1 serf_lan = {lan} serf_wan = {wan} server = {server} }}");
        let quick = "performance { raft_multiplier = 1 } disable_update_check = true";
        let words =
            ["agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", "-node=a", "-log-level=warn", "-hcl", &ports];
        let args: Vec<String> = words.into_iter().chain(["-hcl", quick]).map(str::to_owned).collect();
        let running = Running::start(&quorate_testkit::consul(), &args, &[]);
        let line = format!("store: consul, store-urls: [\"http://127.0.0.1:{http}\"]");
        let setup = Setup { more, ..Setup::default() };
        Group::on(root, Store::Consul(running, [http, lan, wan, server]), &line, setup, None)
    }

    fn on(root: tempfile::TempDir, store: Store, store_line: &str, setup: Setup<'_>, hosts: Option<Hosts>) -> Group {
        let address = |at: usize| hosts.as_ref().map(|hosts| hosts[at].address().to_string());
        let node = |number: usize| Node {
            name: format!("n{number}"),
            address: address(number - 1).unwrap_or_else(|| "127.0.0.1".to_owned()),
            ports: std::array::from_fn(|_| free_port()),
            agent: None,
            data: setup.third.filter(|_| number == 3).map(|dir| dir.join("n3")),
        };
        let nodes: Vec<Node> = (1..=3).map(node).collect();
        let more = format!("{store_line}, {}", setup.more);
        let group = Group { root, store, nodes, hosts: hosts.map(Arc::new), major: setup.major, more };
        group.certificates();
        let password = group.path("app.password");
        put(&password, b"s3cret-of-app\n");
        std::fs::create_dir(group.path("pg")).unwrap();
        group.file();
        group
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn certificates(&self) {
        let ca = self.path("ca");
        let now = Timestamp::now();
        ensure_authorities(&ca, "t", None, now).unwrap();
        let authorities = Authorities::open(&ca, None).unwrap();
        // A proxy may lead from any address to any node.
        let addresses: std::collections::BTreeSet<&str> = self.nodes.iter().map(|node| node.address.as_str()).collect();
        for node in &self.nodes {
            let dir = self.path("pki").join(&node.name);
            let names = NodeNames::new("t", &node.name, addresses.iter().copied()).unwrap();
            std::fs::create_dir_all(&dir).unwrap();
            let bundle = ensure_requests(&dir, &names, Keys::Keep).unwrap().bundle;
            let signed = issue(&authorities, &bundle, &Policy { days: 90, allowed: None }, now).unwrap();
            ensure_installed(&dir, &names, &signed, now).unwrap();
        }
    }

    /// Writes the cluster file.
    pub(crate) fn file(&self) -> PathBuf {
        let root = self.root.path().display();
        let mut text = format!("token: t\ntls: {{dir: \"{root}/pki/{{name}}\"}}\nmembers:\n");
        for (number, node) in self.nodes.iter().enumerate() {
            let (peer, client, agent) = (2 * number + 1, 2 * number + 2, number + 100);
            text += &format!(
                "  - {{name: {}, peer-urls: [\"https://127.0.0.1:{peer}\"], client-urls: [\"https://127.0.0.1:{client}\"], \
                 listen-agent-url: \"https://127.0.0.1:{agent}\", listen-health-url: \"https://127.0.0.1:{}\", data-dir: {root}/none-{}}}\n",
                node.name,
                agent + 100,
                node.name
            );
        }
        text += &format!(
            "agent: {{state-dir: \"{root}/state\"}}\npostgres:\n  {{user: nobody, bin-dir: {}, lease-ttl: 6s, data-dir: \
             \"{root}/pg/{{name}}\", users: [{{name: app, password-file: {root}/app.password}}, \
             {{name: broker, kind: owner, password-file: {root}/app.password}}], {}, nodes: [",
            quorate_testkit::postgres(self.major).display(),
            self.more
        );
        for node in &self.nodes {
            let [server, pooler, health, write, read] = &node.ports;
            let data = node.data.as_ref().map(|dir| format!("data-dir: {}, ", dir.display())).unwrap_or_default();
            text += &format!(
                "{{name: {}, {data}address: {}, port: {server}, pooler-port: {pooler}, health-port: {health}, write-port: \
                 {write}, read-port: {read}}}, ",
                node.name, node.address
            );
        }
        text = text.trim_end_matches(", ").to_owned() + "]}\n";
        let file = self.path("cluster.yaml");
        put(&file, text.as_bytes());
        file
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = match &self.hosts {
            Some(hosts) => hosts[CLIENT_HOST].command(open_to_all()),
            None => Command::new(open_to_all()),
        };
        command.args(args).arg("--config").arg(self.path("cluster.yaml"));
        command
    }

    pub(crate) fn pg(&self, args: &[&str]) -> Output {
        let words: Vec<&str> = std::iter::once("pg").chain(args.iter().copied()).collect();
        self.command(&words).output().unwrap()
    }

    /// Starts the agent of a node.
    pub(crate) fn start(&mut self, at: usize, more: &[&str]) {
        let file = self.path("cluster.yaml").display().to_string();
        let name = self.nodes[at].name.clone();
        let args = ["pg", "run", "--config", &file, "--name", &name].into_iter().chain(more.iter().copied());
        let args: Vec<String> = args.map(str::to_owned).collect();
        self.nodes[at].agent = Some(match &self.hosts {
            Some(hosts) => hosts[at].start(&open_to_all(), &args, &[]),
            None => Running::start(&open_to_all(), &args, &[]),
        });
    }

    /// Starts all agents.
    pub(crate) fn start_all(&mut self) {
        for at in 0..self.nodes.len() {
            self.start(at, &[]);
        }
    }

    /// Sends a signal to the agent of a node.
    pub(crate) fn signal(&self, at: usize, signal: Signal) {
        self.nodes[at].agent.as_ref().unwrap().signal(signal);
    }

    /// Kills the agent of a node, and nothing else.
    pub(crate) fn kill_agent(&mut self, at: usize) {
        if let Some(mut agent) = self.nodes[at].agent.take() {
            agent.kill();
        }
    }

    /// What the agent of a node has said.
    pub(crate) fn log(&self, at: usize) -> String {
        self.nodes[at].agent.as_ref().map(Running::log).unwrap_or_default()
    }

    pub(crate) fn data_dir(&self, at: usize) -> PathBuf {
        let node = &self.nodes[at];
        node.data.clone().unwrap_or_else(|| self.path("pg").join(&node.name))
    }

    /// Kills all that runs on a node.
    pub(crate) fn kill_node(&mut self, at: usize) {
        self.kill_agent(at);
        let state = format!("{}/state/{}/", self.root.path().display(), self.nodes[at].name);
        let parts = [state, self.data_dir(at).display().to_string()];
        kill_all(|words, cwd| parts.iter().any(|part| words.contains(part) || cwd.starts_with(part)));
    }

    /// Kills a part of a node, and nothing else.
    pub(crate) fn kill_part(&mut self, at: usize, part: Part) {
        let state = format!("{}/state/{}/", self.root.path().display(), self.nodes[at].name);
        let server = format!("-D {}", self.data_dir(at).display());
        match part {
            Part::Agent => self.kill_agent(at),
            Part::Shims => kill_all(|words, _| words.contains("__shim") && words.contains(&state)),
            Part::Server => kill_all(|words, _| words.contains(&server)),
            Part::All => self.kill_node(at),
        }
    }

    /// Sends a signal to all processes of a node's server.
    pub(crate) fn signal_server(&self, at: usize, signal: Signal) {
        let data = self.data_dir(at).display().to_string();
        signal_all(signal, |_, cwd| cwd == data);
    }

    /// The write master's lease is taken away from it in the store.
    pub(crate) fn revoke_lease(&self) {
        let Store::Etcd(store) = &self.store else { panic!("no etcd") };
        let found: Value = serde_json::from_str(&store.ctl(&["get", "quorate/pg/t/pg/writer", "-w", "json"])).unwrap();
        let lease = found["kvs"][0]["lease"].as_i64().unwrap_or_else(|| panic!("nobody writes: {found}"));
        store.ctl(&["lease", "revoke", &format!("{lease:x}")]);
    }

    /// The records in etcd, as they are now.
    pub(crate) fn records(&self) -> BTreeMap<String, Value> {
        let Store::Etcd(store) = &self.store else { panic!("no etcd") };
        let all = store.ctl(&["get", "--prefix", "quorate/pg/t/pg/"]);
        let lines: Vec<&str> = all.lines().collect();
        let short = |key: &str| key.trim_start_matches("quorate/pg/t/pg/").to_owned();
        lines.chunks(2).map(|pair| (short(pair[0]), serde_json::from_str(pair[1]).unwrap())).collect()
    }

    /// Who leads, of which epoch.
    pub(crate) fn leader(&self) -> Option<(usize, u64)> {
        let leader = self.records().remove("leader")?;
        let at = self.nodes.iter().position(|node| leader["node"] == node.name.as_str())?;
        Some((at, leader["epoch"].as_u64()?))
    }

    /// All members, connected.
    pub(crate) async fn seats(&self) -> Vec<group::Seat> {
        let overview = self.overview();
        let mut seats = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(id) = overview["nodes"][at]["id"].as_u64() else { continue };
            let id = u16::try_from(id).unwrap();
            let member =
                Member { id, name: node.name.clone(), host: node.address.clone(), port: node.ports[0].number() };
            let client = Client::connect(&self.inside(at), Limits::default()).await.unwrap();
            seats.push(group::Seat { member, client });
        }
        seats
    }

    /// One group, no second; every member holds the same rows, and what one writes arrives at the others.
    pub(crate) fn assert_one_group(&self) {
        let overview = self.overview();
        runtime().block_on(async {
            let seats = self.seats().await;
            for seat in &seats {
                let id: String = seat.client.value("SELECT group_id FROM mesh.self", &[]).await.unwrap();
                assert_eq!(overview["id"].as_str(), Some(id.as_str()), "{overview}");
                let plans: i64 = seat.client.value("SELECT count(*) FROM cfsb.plans", &[]).await.unwrap();
                assert_eq!(plans, 2, "first rows are there once");
            }
            group::round_trip(&seats, LIMIT).await.unwrap();
            group::same_everywhere(&seats, LIMIT).await.unwrap();
        });
    }

    /// What a node says of itself.
    pub(crate) fn status(&self, at: usize) -> Option<Value> {
        let url = format!("http://{}:{}/v1/pg", self.nodes[at].address, self.nodes[at].ports[2]);
        let ask = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let ask = async { reqwest::get(url).await.ok()?.bytes().await.ok() };
                let bytes = tokio::time::timeout(Duration::from_secs(5), ask).await.ok()??;
                serde_json::from_slice(&bytes).ok()
            })
        };
        match &self.hosts {
            Some(hosts) => hosts[at].within(ask),
            None => ask(),
        }
    }

    /// Whether a text of a node's status holds some words.
    pub(crate) fn says(&self, at: usize, what: &str, words: &str) -> bool {
        self.status(at).is_some_and(|status| status[what].to_string().contains(words))
    }

    pub(crate) fn is_ready(&self, at: usize) -> bool {
        self.status(at).is_some_and(|status| status["ready"] == true)
    }

    /// Waits for something of a node, and shows its log if it does not come.
    pub(crate) fn wait(&self, what: &str, mut holds: impl FnMut(&Group) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            if begun.elapsed() > LIMIT {
                let last: Vec<Option<Value>> = (0..self.nodes.len()).map(|at| self.status(at)).collect();
                panic!("{what}: not within {LIMIT:?}; {last:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn wait_ready(&self) {
        self.wait("every node has its part", |group| (0..group.nodes.len()).all(|at| group.is_ready(at)));
    }

    /// `pg status --output json`.
    pub(crate) fn overview(&self) -> Value {
        let output = self.command(&["--output", "json", "pg", "status"]).output().unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Which node writes.
    pub(crate) fn writer(&self) -> Option<usize> {
        let overview = self.overview();
        let writer = overview["writer"].as_str()?.to_owned();
        self.nodes.iter().position(|node| node.name == writer)
    }

    fn files(&self) -> TlsFiles {
        let dir = self.path("pki").join("n1");
        TlsFiles { cert: dir.join("peer.crt"), key: dir.join("peer.key"), ca: dir.join("peer-ca.crt") }
    }

    /// A client of the application, through the proxy of a node.
    pub(crate) fn door(&self, at: usize, which: usize) -> Place {
        Place {
            node: self.nodes[at].name.clone(),
            way: Way::Tls {
                host: self.nodes[at].address.clone(),
                port: self.nodes[at].ports[which].number(),
                files: self.files(),
            },
            user: "app".to_owned(),
            password: Some(Secret::new("s3cret-of-app".to_owned())),
            database: "rdpg".to_owned(),
        }
    }

    /// The server of a node itself, as its superuser.
    pub(crate) fn inside(&self, at: usize) -> Place {
        let node = &self.nodes[at];
        let dir = PathBuf::from(format!("{}.run", self.data_dir(at).display()));
        Place::socket(&node.name, &dir, node.ports[0].number(), "postgres", "rdpg")
    }
}

/// A directory that everyone may enter.
fn open_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

pub(crate) fn put(path: &Path, bytes: &[u8]) {
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(bytes).unwrap();
}

/// Kills every process whose command line or working directory is meant.
fn kill_all(meant: impl Fn(&str, &str) -> bool) {
    for _ in 0..3 {
        signal_all(Signal::KILL, &meant);
    }
}

fn signal_all(signal: Signal, meant: impl Fn(&str, &str) -> bool) {
    let own = std::process::id();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if pid.cast_unsigned() == own {
            continue;
        }
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let cwd = std::fs::read_link(entry.path().join("cwd")).map(|cwd| cwd.display().to_string()).unwrap_or_default();
        if meant(&words, &cwd) {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for at in 0..self.nodes.len() {
            self.kill_agent(at);
        }
        let root = self.root.path().display().to_string();
        let state = format!("{root}/state/");
        let elsewhere = self.nodes.iter().filter_map(|node| node.data.as_ref());
        let mut data: Vec<String> = elsewhere.map(|dir| dir.display().to_string()).collect();
        data.push(format!("{root}/pg/"));
        kill_all(|words, cwd| {
            words.contains(&state)
                || data.iter().any(|data| words.contains(data) || cwd.starts_with(data))
                || words.contains(&format!("{root}/cluster.yaml"))
        });
    }
}

/// The program where everyone may execute it: what does not run as root starts it too, and the checkout may lie where it cannot go.
pub(crate) fn open_to_all() -> PathBuf {
    static COPY: std::sync::OnceLock<(tempfile::TempDir, PathBuf)> = std::sync::OnceLock::new();
    let copy = || {
        let dir = open_dir();
        let program = dir.path().join("quorate");
        copy_program(&quorate(), &program);
        (dir, program)
    };
    COPY.get_or_init(copy).1.clone()
}
