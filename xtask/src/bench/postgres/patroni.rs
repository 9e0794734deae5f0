//! Patroni on this machine: three nodes of Debian's PostgreSQL, etcd as its store, haproxy in front that asks its REST API.
//!
//! **Rule:** it is set up as its own documentation does, once with its defaults and once with the smallest values that it takes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quorate_postgres::sql::Place;
use quorate_testkit::{Port, Running, free_port, haproxy, project_root, start_unprivileged};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::group::{get, kill_all};
use super::load::Table;

const LIMIT: Duration = Duration::from_secs(120);
/// The part of the socket's name that PostgreSQL would choose by its port.
const DOOR: u16 = 5432;

pub(super) const ROWS: Table =
    Table { insert: |number| format!("INSERT INTO bench (id) VALUES ({number})"), numbers: "SELECT id FROM bench" };

/// How it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speed {
    /// As it comes: 30/10/10, and haproxy as in its template.
    Default,
    /// The smallest values that it takes: 20/1/3, and haproxy as often as ours asks.
    Fastest,
}

impl Speed {
    pub(super) fn word(self) -> &'static str {
        match self {
            Speed::Default => "Patroni, defaults (ttl 30, loop_wait 10)",
            Speed::Fastest => "Patroni at its fastest (ttl 20, loop_wait 1)",
        }
    }
}

struct Node {
    name: String,
    server: Port,
    rest: Port,
    patroni: Option<Running>,
}

pub(super) struct Patroni {
    root: TempDir,
    nodes: Vec<Node>,
    proxy: Option<Running>,
}

fn program() -> Result<PathBuf> {
    let path = project_root().join(".tools/patroni-4.1.5/bin/patroni");
    if path.exists() { Ok(path) } else { bail!("`{}` is missing: run `scripts/tools bench`", path.display()) }
}

/// The newest PostgreSQL of Debian: Patroni needs more of its programs than the one that our tests run.
fn debian_postgres() -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    found.retain(|bin| ["postgres", "initdb", "pg_basebackup"].iter().all(|name| bin.join(name).exists()));
    found.sort();
    found.pop().context("PostgreSQL of Debian is missing: run `scripts/tools bench`")
}

/// Its version, for the page.
pub(super) fn versions() -> Result<String> {
    let bin = debian_postgres()?;
    let major = bin.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    Ok(format!("Patroni 4.1.5 with PostgreSQL {}", major.unwrap_or_default()))
}

impl Patroni {
    /// Writes its files; nothing runs yet.
    pub(super) fn new(etcd: u16, speed: Speed) -> Result<Patroni> {
        let root = TempDir::with_prefix("quorate-bench-patroni-")?;
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o777))?;
        let node =
            |number: usize| Node { name: format!("n{number}"), server: free_port(), rest: free_port(), patroni: None };
        let patroni = Patroni { root, nodes: (1..=3).map(node).collect(), proxy: None };
        let bin = debian_postgres()?;
        for node in &patroni.nodes {
            super::super::write(
                &patroni.path(&format!("{}.yml", node.name)),
                &patroni.config(node, etcd, speed, &bin),
            )?;
        }
        super::super::write(&patroni.path("haproxy.cfg"), &patroni.proxy_config(speed))?;
        Ok(patroni)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn config(&self, node: &Node, etcd: u16, speed: Speed, bin: &Path) -> String {
        let (name, server, rest, root) = (&node.name, &node.server, &node.rest, self.root.path().display());
        let (ttl, loop_wait, retry) = match speed {
            Speed::Default => (30, 10, 10),
            Speed::Fastest => (20, 1, 3),
        };
        let user = |name: &str| format!("{{username: {name}, password: secret}}");
        format!(
            "scope: bench-{ttl}-{etcd}-{first}\nname: {name}\nrestapi: {{listen: '127.0.0.1:{rest}', connect_address: \
             '127.0.0.1:{rest}'}}\netcd3: {{hosts: ['127.0.0.1:{etcd}']}}\nbootstrap:\n  dcs:\n    ttl: {ttl}\n    loop_wait: \
             {loop_wait}\n    retry_timeout: {retry}\n    maximum_lag_on_failover: 1048576\n    postgresql: {{use_pg_rewind: \
             true}}\n  initdb: [{{encoding: UTF8}}, data-checksums]\npostgresql:\n  listen: 127.0.0.1:{server}\n  \
             connect_address: 127.0.0.1:{server}\n  data_dir: {root}/{name}\n  bin_dir: {}\n  pgpass: {root}/{name}.pgpass\n  \
             authentication: {{superuser: {}, replication: {}, rewind: {}}}\n  parameters: {{unix_socket_directories: \
             '{root}'}}\n  pg_hba:\n    - local all all trust\n    - host all all 127.0.0.1/32 trust\n    - host replication all \
             127.0.0.1/32 trust\n",
            bin.display(),
            user("postgres"),
            user("replicator"),
            user("rewinder"),
            first = self.nodes[0].server,
        )
    }

    fn proxy_config(&self, speed: Speed) -> String {
        let root = self.root.path().display();
        let often = match speed {
            Speed::Default => "inter 3s fall 3 rise 2",
            Speed::Fastest => "inter 200ms fastinter 100ms downinter 200ms fall 2 rise 1",
        };
        let mut text = format!(
            "global\n  maxconn 1000\ndefaults\n  mode tcp\n  retries 2\n  timeout client 30m\n  timeout connect 4s\n  timeout \
             server 30m\n  timeout check 5s\nlisten primary\n  bind unix@{root}/.s.PGSQL.{DOOR} mode 777\n  option httpchk OPTIONS \
             /primary\n  http-check expect status 200\n  default-server {often} on-marked-down shutdown-sessions\n"
        );
        for node in &self.nodes {
            text += &format!("  server {} 127.0.0.1:{} maxconn 100 check port {}\n", node.name, node.server, node.rest);
        }
        text
    }

    pub(super) fn start(&mut self, at: usize) -> Result<()> {
        let file = self.path(&format!("{}.yml", self.nodes[at].name)).display().to_string();
        self.nodes[at].patroni = Some(start_unprivileged(&program()?, &[file]));
        Ok(())
    }

    pub(super) fn start_proxy(&mut self) {
        let file = self.path("haproxy.cfg").display().to_string();
        self.proxy = Some(Running::start(&haproxy(), &["-db".to_owned(), "-f".to_owned(), file], &[]));
    }

    fn says(&self, runtime: &Runtime, at: usize, path: &str) -> bool {
        get(runtime, self.nodes[at].rest.number(), path).is_some()
    }

    /// Until one leads and both others say that they stream.
    pub(super) fn wait_ready(&self, runtime: &Runtime) -> Result<()> {
        let begun = Instant::now();
        loop {
            let leads = (0..3).filter(|at| self.says(runtime, *at, "/primary")).count();
            let follow = (0..3).filter(|at| self.says(runtime, *at, "/replica?replication_state=streaming")).count();
            if (leads, follow) == (1, 2) {
                return Ok(());
            }
            if begun.elapsed() > LIMIT {
                let said: Vec<String> =
                    self.nodes.iter().filter_map(|node| node.patroni.as_ref()).map(|one| one.log_tail(10)).collect();
                bail!("Patroni is not ready within {LIMIT:?} ({leads}, {follow}):\n{}", said.join("\n---\n"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn leader(&self, runtime: &Runtime) -> Result<usize> {
        (0..3).find(|at| self.says(runtime, *at, "/primary")).context("nobody leads")
    }

    /// Kills all of a node.
    pub(super) fn kill_node(&mut self, at: usize) -> Result<()> {
        let data = self.path(&self.nodes[at].name).display().to_string();
        let file = format!("{data}.yml");
        kill_all(&|words: &str, cwd: &str| words.contains(&file) || cwd == data)?;
        if let Some(mut patroni) = self.nodes[at].patroni.take() {
            patroni.kill();
        }
        Ok(())
    }

    /// Through haproxy, to whoever leads.
    pub(super) fn door(&self) -> Place {
        Place::socket("patroni", self.root.path(), DOOR, "postgres", "postgres")
    }

    /// One server itself.
    pub(super) fn inside(&self, at: usize) -> Place {
        let node = &self.nodes[at];
        Place::socket(&node.name, self.root.path(), node.server.number(), "postgres", "postgres")
    }
}

impl Drop for Patroni {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(mut patroni) = node.patroni.take() {
                patroni.kill();
            }
        }
        let root = self.root.path().display().to_string();
        let _ = kill_all(&|words: &str, cwd: &str| words.contains(&root) || cwd.starts_with(&root));
    }
}
