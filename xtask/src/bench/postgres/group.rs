//! A group of Quorate's on this machine: a store, certificates, and one agent for each node.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quorate_postgres::Secret;
use quorate_postgres::server::TlsFiles;
use quorate_postgres::sql::{Place, Way};
use quorate_testkit::{Port, Running, free_port};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use super::super::certificates::certify;
use super::load::Table;

const LIMIT: Duration = Duration::from_secs(120);
const PASSWORD: &str = "s3cret-of-app";

/// Where rows go: a table that every group has.
pub(super) const ROWS: Table = Table {
    insert: |number| {
        format!(
            "INSERT INTO backups.file_history (cluster_id, dbname, node, file_name, action, status) VALUES ('t', 'd', \
             'n', '{number}', 'a', 's')"
        )
    },
    numbers: "SELECT file_name::int8 FROM backups.file_history WHERE file_name ~ '^[0-9]+$'",
};

struct Node {
    name: String,
    /// Server, pooler, health, write, read.
    ports: [Port; 5],
    agent: Option<Running>,
}

/// A group.
pub(super) struct Group {
    root: TempDir,
    program: PathBuf,
    nodes: Vec<Node>,
    /// What the section says of its store.
    store: String,
}

impl Group {
    /// Certificates and a file, and nothing started. `store`: the words of the section that lead to it.
    pub(super) fn new(quorate: &Path, count: usize, store: &str) -> Result<Group> {
        let root = TempDir::with_prefix("quorate-bench-")?;
        // The servers run as another user than root, and must come to their data.
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755))?;
        let program = root.path().join("quorate");
        std::fs::copy(quorate, &program).with_context(|| format!("copy `{}`", quorate.display()))?;
        let node = |number: usize| Node {
            name: format!("n{number}"),
            ports: std::array::from_fn(|_| free_port()),
            agent: None,
        };
        let nodes = (1..=count).map(node).collect();
        let group = Group { root, program, nodes, store: store.to_owned() };
        group.certificates()?;
        super::super::write(&group.path("app.password"), PASSWORD)?;
        std::fs::create_dir(group.path("pg"))?;
        Ok(group)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn certificates(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|node| {
            certify(&self.path("ca"), "t", (&node.name, "127.0.0.1"), &self.path("pki").join(&node.name))
        })
    }

    /// Writes the file with the first so many nodes.
    pub(super) fn declare(&self, count: usize) -> Result<()> {
        let root = self.root.path().display();
        let node = |node: &Node| {
            let [server, pooler, health, write, read] = &node.ports;
            format!(
                "    - {{name: {}, address: 127.0.0.1, port: {server}, pooler-port: {pooler}, health-port: {health}, \
                 write-port: {write}, read-port: {read}}}\n",
                node.name
            )
        };
        let nodes: String = self.nodes.iter().take(count).map(node).collect();
        let text = format!(
            "token: t\ntls: {{dir: \"{root}/pki/{{name}}\"}}\nagent: {{state-dir: \"{root}/state\"}}\npostgres:\n  {}\n  user: \
             nobody\n  bin-dir: {}\n  data-dir: \"{root}/pg/{{name}}\"\n  users: [{{name: app, password-file: \
             {root}/app.password}}]\n  nodes:\n{nodes}",
            self.store,
            quorate_testkit::postgres(18).display(),
        );
        super::super::write(&self.path("cluster.yaml"), &text)
    }

    /// Starts the agent of a node: the one that operators run.
    pub(super) fn start(&mut self, at: usize) {
        let file = self.path("cluster.yaml").display().to_string();
        let name = self.nodes[at].name.clone();
        let args = ["run", "--config", &file, "--name", &name].map(str::to_owned);
        self.nodes[at].agent = Some(Running::start(&self.program, &args, &[]));
    }

    /// Kills the agent of a node, and nothing else.
    pub(super) fn kill_agent(&mut self, at: usize) {
        if let Some(mut agent) = self.nodes[at].agent.take() {
            agent.kill();
        }
    }

    /// Kills all that runs on a node.
    pub(super) fn kill_node(&mut self, at: usize) -> Result<()> {
        let root = self.root.path().display().to_string();
        let name = self.nodes[at].name.clone();
        let parts = [format!("{root}/state/{name}/"), format!("{root}/pg/{name}"), format!("--name {name}")];
        let ours = |words: &str, cwd: &str| {
            (words.contains(&root) || cwd.starts_with(&root))
                && parts.iter().any(|part| words.contains(part) || cwd.starts_with(part))
        };
        kill_all(&ours)?;
        self.kill_agent(at);
        Ok(())
    }

    pub(super) fn name(&self, at: usize) -> &str {
        &self.nodes[at].name
    }

    /// What a node says at a path of its health port; `None`: it does not answer with 200.
    fn ask(&self, runtime: &Runtime, at: usize, path: &str) -> Option<String> {
        get(runtime, self.nodes[at].ports[2].number(), path)
    }

    fn is_ready(&self, runtime: &Runtime, at: usize) -> bool {
        let told: Option<serde_json::Value> =
            self.ask(runtime, at, "/v1/pg").and_then(|text| serde_json::from_str(&text).ok());
        told.is_some_and(|told| told["ready"] == true)
    }

    /// Until each of the first so many nodes has its part.
    pub(super) fn wait_ready(&self, runtime: &Runtime, count: usize) -> Result<()> {
        let begun = Instant::now();
        while !(0..count).all(|at| self.is_ready(runtime, at)) {
            if begun.elapsed() > LIMIT {
                let said: Vec<String> = self
                    .nodes
                    .iter()
                    .take(count)
                    .filter_map(|node| node.agent.as_ref())
                    .map(|agent| agent.log_tail(10))
                    .collect();
                bail!("not every node is ready within {LIMIT:?}:\n{}", said.join("\n---\n"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Which node takes writes.
    pub(super) fn writer(&self, runtime: &Runtime) -> Result<usize> {
        let begun = Instant::now();
        loop {
            if let Some(at) = (0..self.nodes.len()).find(|at| self.ask(runtime, *at, "/writer").is_some()) {
                return Ok(at);
            }
            if begun.elapsed() > LIMIT {
                bail!("nobody takes writes");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// As the application, through the proxy of a node, to whoever writes.
    pub(super) fn door(&self, at: usize) -> Place {
        let dir = self.path("pki").join("n1");
        let files = TlsFiles { cert: dir.join("peer.crt"), key: dir.join("peer.key"), ca: dir.join("peer-ca.crt") };
        Place {
            node: self.nodes[at].name.clone(),
            way: Way::Tls { host: "127.0.0.1".to_owned(), port: self.nodes[at].ports[3].number(), files },
            user: "app".to_owned(),
            password: Some(Secret::new(PASSWORD.to_owned())),
            database: "rdpg".to_owned(),
        }
    }

    /// The server of a node itself.
    pub(super) fn inside(&self, at: usize) -> Place {
        let node = &self.nodes[at];
        let dir = self.path(&format!("pg/{}.run", node.name));
        Place::socket(&node.name, &dir, node.ports[0].number(), "postgres", "rdpg")
    }

    /// A command of the group, which must succeed. Returns what it said.
    pub(super) fn pg(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.arg("pg").args(args).arg("--config").arg(self.path("cluster.yaml"));
        let output = command.output()?;
        if !output.status.success() {
            bail!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Writes a file that a command needs.
    pub(super) fn file(&self, name: &str, text: &str) -> Result<String> {
        super::super::write(&self.path(name), text)?;
        Ok(self.path(name).display().to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for at in 0..self.nodes.len() {
            self.kill_agent(at);
        }
        let root = self.root.path().display().to_string();
        // What cannot be killed is shown by the next run, whose ports are others.
        let _ = kill_all(&|words: &str, cwd: &str| words.contains(&root) || cwd.starts_with(&root));
    }
}

/// Kills every process whose command line or working directory is meant.
pub(super) fn kill_all(meant: &dyn Fn(&str, &str) -> bool) -> Result<()> {
    let own = std::process::id();
    for _ in 0..3 {
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).replace('\0', " ");
            let cwd = std::fs::read_link(entry.path().join("cwd"));
            let cwd = cwd.map(|cwd| cwd.display().to_string()).unwrap_or_default();
            if pid != own && meant(&words, &cwd) {
                quorate_testkit::kill_hard(pid);
            }
        }
    }
    Ok(())
}

/// What is answered at a port of this machine; `None`: nothing, or not 200.
pub(super) fn get(runtime: &Runtime, port: u16, path: &str) -> Option<String> {
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let words = format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        stream.write_all(words.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.take(1 << 20).read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.split_once(' ').filter(|(_, rest)| rest.starts_with("200")).map(|_| body.to_owned())
    };
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(2), asked).await.ok().flatten() })
}
