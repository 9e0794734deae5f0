//! A group of PostgreSQL servers on this machine: a store, certificates, one agent for each node, and clients.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_pki::{Authorities, Keys, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue};
use quorate_postgres::Secret;
use quorate_postgres::server::TlsFiles;
use quorate_postgres::sql::{Client, Limits, Place, Way};
use quorate_testkit::{Launch, Port, Running, Seat, Server, etcd, free_port, quorate};
use serde_json::Value;

/// Two slow cores are what there may be.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Ports of one node: server, pooler, health, write, read.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) ports: [Port; 5],
    pub(crate) agent: Option<Running>,
}

/// Where the nodes agree.
pub(crate) enum Store {
    Etcd(Server),
    Consul(Running, [Port; 4]),
}

/// A group. Dropped, all of it is ended.
pub(crate) struct Group {
    pub(crate) root: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) nodes: Vec<Node>,
    more: String,
}

impl Group {
    /// Three nodes on an etcd of their own, and nothing started but etcd.
    pub(crate) fn new(more: &str) -> Group {
        let root = tempfile::tempdir().unwrap();
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let seat = Seat::new("store");
        let server = Launch::new(&etcd("3.5.16"), &seat, &root.path().join("etcd"))
            .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
            .arg(format!("--initial-cluster=store={}", seat.peer_url()))
            .start();
        Group::on(root, Store::Etcd(server), &format!("store-urls: [\"{}\"]", seat.client_url()), more)
    }

    /// The same on a Consul of their own.
    pub(crate) fn on_consul(more: &str) -> Group {
        let root = tempfile::tempdir().unwrap();
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let [http, lan, wan, server]: [Port; 4] = std::array::from_fn(|_| free_port());
        let ports =
            format!("ports {{ http = {http} dns = -1 grpc = -1 serf_lan = {lan} serf_wan = {wan} server = {server} }}");
        let quick = "performance { raft_multiplier = 1 } disable_update_check = true";
        let words =
            ["agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", "-node=a", "-log-level=warn", "-hcl", &ports];
        let args: Vec<String> = words.into_iter().chain(["-hcl", quick]).map(str::to_owned).collect();
        let running = Running::start(&quorate_testkit::consul(), &args, &[]);
        let line = format!("store: consul, store-urls: [\"http://127.0.0.1:{http}\"]");
        Group::on(root, Store::Consul(running, [http, lan, wan, server]), &line, more)
    }

    fn on(root: tempfile::TempDir, store: Store, store_line: &str, more: &str) -> Group {
        let node = |number: usize| Node {
            name: format!("n{number}"),
            ports: std::array::from_fn(|_| free_port()),
            agent: None,
        };
        let nodes: Vec<Node> = (1..=3).map(node).collect();
        let group = Group { root, store, nodes, more: format!("{store_line}, {more}") };
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
        for node in &self.nodes {
            let dir = self.path("pki").join(&node.name);
            let names = NodeNames::new("t", &node.name, ["127.0.0.1"]).unwrap();
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
             \"{root}/pg/{{name}}\", users: [{{name: app, password-file: {root}/app.password}}], {}, nodes: [",
            quorate_testkit::postgres(18).display(),
            self.more
        );
        for node in &self.nodes {
            let [server, pooler, health, write, read] = &node.ports;
            text += &format!(
                "{{name: {}, address: 127.0.0.1, port: {server}, pooler-port: {pooler}, health-port: {health}, write-port: \
                 {write}, read-port: {read}}}, ",
                node.name
            );
        }
        text = text.trim_end_matches(", ").to_owned() + "]}\n";
        let file = self.path("cluster.yaml");
        put(&file, text.as_bytes());
        file
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(open_to_all());
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
        self.nodes[at].agent = Some(Running::start(&open_to_all(), &args, &[]));
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

    /// Kills all that runs on a node.
    pub(crate) fn kill_node(&mut self, at: usize) {
        self.kill_agent(at);
        let name = &self.nodes[at].name;
        let root = self.root.path().display().to_string();
        let parts = [format!("{root}/state/{name}/"), format!("{root}/pg/{name}")];
        kill_all(|words, cwd| parts.iter().any(|part| words.contains(part) || cwd.starts_with(part)));
    }

    /// What a node says of itself.
    pub(crate) fn status(&self, at: usize) -> Option<Value> {
        let url = format!("http://127.0.0.1:{}/v1/pg", self.nodes[at].ports[2]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let answer = tokio::time::timeout(Duration::from_secs(5), reqwest::get(url)).await.ok()?.ok()?;
            serde_json::from_slice(&answer.bytes().await.ok()?).ok()
        })
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
                host: "127.0.0.1".to_owned(),
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
        let dir = self.path(&format!("pg/{}.run", node.name));
        Place::socket(&node.name, &dir, node.ports[0].number(), "postgres", "rdpg")
    }
}

/// The write port of a node's proxy, its read port, and its pooler.
pub(crate) const WRITE: usize = 3;
pub(crate) const READ: usize = 4;
pub(crate) const POOLER: usize = 1;

/// Runs one statement over a connection of its own.
pub(crate) async fn once(place: &Place, sql: &str) -> Result<(), String> {
    let limits =
        Limits { connect: Duration::from_secs(2), statement: Duration::from_secs(5), lock: Duration::from_secs(5) };
    let client = Client::connect(place, limits).await.map_err(|fault| in_words(&fault))?;
    client.batch(sql).await.map_err(|fault| in_words(&fault))
}

/// The same until it succeeds: proxies ask a few times a second who writes.
pub(crate) async fn eventually(place: &Place, sql: &str) {
    let begun = Instant::now();
    while let Err(why) = once(place, sql).await {
        assert!(begun.elapsed() < LIMIT, "{sql}: {why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn in_words(fault: &quorate_faults::Fault) -> String {
    format!("{fault}: {:?}", std::error::Error::source(fault).map(ToString::to_string))
}

/// One number from a server itself.
pub(crate) async fn count(place: &Place, sql: &str) -> i64 {
    let client = Client::connect(place, Limits::default()).await.unwrap();
    client.value(sql, &[]).await.unwrap()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn put(path: &Path, bytes: &[u8]) {
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(bytes).unwrap();
}

/// Kills every process whose command line or working directory is meant.
fn kill_all(meant: impl Fn(&str, &str) -> bool) {
    let own = std::process::id();
    for _ in 0..3 {
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            if pid.cast_unsigned() == own {
                continue;
            }
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).replace('\0', " ");
            let cwd =
                std::fs::read_link(entry.path().join("cwd")).map(|cwd| cwd.display().to_string()).unwrap_or_default();
            if meant(&words, &cwd) {
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
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
        let data = format!("{root}/pg/");
        kill_all(|words, cwd| {
            words.contains(&state)
                || words.contains(&data)
                || cwd.starts_with(&data)
                || words.contains(&format!("{root}/cluster.yaml"))
        });
    }
}

/// The program where everyone may execute it: what does not run as root starts it too, and the checkout may lie where it cannot go.
pub(crate) fn open_to_all() -> PathBuf {
    static COPY: std::sync::OnceLock<(tempfile::TempDir, PathBuf)> = std::sync::OnceLock::new();
    let copy = || {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = dir.path().join("quorate");
        std::fs::copy(quorate(), &program).unwrap();
        (dir, program)
    };
    COPY.get_or_init(copy).1.clone()
}
