//! Real servers for the suites, and the store in memory beside them.
//!
//! **Rule:** cases that hurt nobody else share one server per test program, each in a namespace of its own; cases that kill,
//! compact or lock have one for themselves.

#![allow(dead_code, clippy::unwrap_used, reason = "each test program uses its part; one that cannot go on says where")]

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_coordination::{ConsulSettings, LeaseId, Memory, Place, Revision, Settings, Store};
use quorate_etcd::client;
use quorate_testkit::{Launch, Port, Running, Seat, Server, consul, etcd, free_port, run, wait_until};
use tempfile::TempDir;

/// A limit that only something broken reaches.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A server that runs, and how others treat it.
pub(crate) enum World {
    Memory(Memory),
    Etcd(EtcdServer),
    Consul(ConsulServer),
}

impl World {
    /// A part of it that nobody else uses.
    pub(crate) async fn store(&self) -> Store {
        self.store_at(&fresh_namespace()).await
    }

    pub(crate) async fn store_at(&self, namespace: &str) -> Store {
        let place = match self {
            World::Memory(memory) => return Store::in_memory(memory, namespace).unwrap(),
            World::Etcd(server) => server.place(),
            World::Consul(server) => server.place(),
        };
        Store::open(&Settings::new(place, namespace)).await.unwrap()
    }

    /// A lease that a busy machine can keep, and whose end can be waited for.
    pub(crate) fn ttl(&self) -> Duration {
        match self {
            World::Memory(_) => Duration::from_secs(4),
            World::Etcd(_) => Duration::from_secs(5),
            World::Consul(_) => Duration::from_secs(10),
        }
    }

    /// Ends a lease as an operator would.
    pub(crate) fn end_lease(&self, lease: &LeaseId) {
        match self {
            World::Memory(memory) => memory.end_lease(lease),
            World::Etcd(server) => drop(server.server().ctl(&["lease", "revoke", &lease.0])),
            World::Consul(server) => server.curl("PUT", &format!("session/destroy/{lease}"), ""),
        }
    }

    pub(crate) fn compact(&self, revision: Revision) {
        match self {
            World::Memory(memory) => memory.compact(revision),
            World::Etcd(server) => drop(server.server().ctl(&["compact", "--physical", &revision.to_string()])),
            World::Consul(_) => panic!("Consul has no history"),
        }
    }

    /// A server of our own: etcd of this release.
    pub(crate) fn own_etcd(version: &str) -> World {
        World::Etcd(EtcdServer::start(version))
    }

    /// A server of our own: Consul that keeps its data.
    pub(crate) fn own_consul() -> World {
        World::Consul(ConsulServer::start(Kind::Lasting, ""))
    }

    pub(crate) fn own_memory() -> World {
        let memory = Memory::new(10_000);
        let clock = memory.clone();
        // The store has no clock, so somebody tells it what time has passed: never more than really has.
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(10));
                clock.pass(Duration::from_millis(10));
            }
        });
        World::Memory(memory)
    }

    pub(crate) fn memory() -> &'static World {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(World::own_memory)
    }

    pub(crate) fn etcd_3_4() -> &'static World {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(|| World::own_etcd("3.4.23"))
    }

    pub(crate) fn etcd_3_5() -> &'static World {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(|| World::own_etcd("3.5.16"))
    }

    pub(crate) fn etcd_newest() -> &'static World {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(|| World::own_etcd("sid"))
    }

    pub(crate) fn consul() -> &'static World {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(|| World::Consul(ConsulServer::start(Kind::Fleeting, "")))
    }
}

pub(crate) fn fresh_namespace() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test/{}-{}/", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// One etcd member that can be killed and started again.
pub(crate) struct EtcdServer {
    version: String,
    seat: Seat,
    dir: TempDir,
    server: Option<Server>,
}

impl EtcdServer {
    pub(crate) fn start(version: &str) -> EtcdServer {
        let (seat, dir) = (Seat::new("n1"), TempDir::new().unwrap());
        let mut this = EtcdServer { version: version.to_owned(), seat, dir, server: None };
        this.revive();
        this
    }

    pub(crate) fn place(&self) -> Place {
        let mut settings = client::Settings::new([self.url()]);
        settings.timeout = Duration::from_secs(5);
        Place::Etcd(settings)
    }

    pub(crate) fn url(&self) -> String {
        self.seat.client_url()
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.server.take().unwrap().kill();
    }

    /// Starts it on what it left.
    pub(crate) fn revive(&mut self) {
        let peer = self.seat.peer_url();
        let launch = Launch::new(&etcd(&self.version), &self.seat, &self.dir.path().join("data"));
        let launch = launch.arg(format!("--initial-advertise-peer-urls={peer}"));
        self.server = Some(launch.arg(format!("--initial-cluster=n1={peer}")).start());
    }

    /// The next start finds nothing, as after a lost disk.
    pub(crate) fn lose_data(&mut self) {
        self.dir = TempDir::new().unwrap();
    }
}

/// Whether a Consul keeps its data over a restart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Fleeting,
    Lasting,
}

/// One Consul agent, which is its own cluster.
pub(crate) struct ConsulServer {
    port: Port,
    others: Vec<Port>,
    dir: TempDir,
    kind: Kind,
    config: String,
    pub(crate) token: Option<String>,
    running: Option<Running>,
}

impl ConsulServer {
    pub(crate) fn start(kind: Kind, config: &str) -> ConsulServer {
        ConsulServer::start_with_token(kind, config, None)
    }

    pub(crate) fn start_with_token(kind: Kind, config: &str, token: Option<&str>) -> ConsulServer {
        let others = (0..3).map(|_| free_port()).collect();
        let (port, dir) = (free_port(), TempDir::new().unwrap());
        let token = token.map(str::to_owned);
        let mut this = ConsulServer { port, others, dir, kind, config: config.to_owned(), token, running: None };
        this.revive();
        this
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn place(&self) -> Place {
        Place::Consul(ConsulSettings::new(self.url()))
    }

    pub(crate) fn http_port(&self) -> &Port {
        &self.port
    }

    pub(crate) fn kill(&mut self) {
        self.running.take().unwrap().kill();
    }

    pub(crate) fn revive(&mut self) {
        let (http, others) = (&self.port, &self.others);
        let ports = format!(
            "ports {{ http = {http} dns = -1 grpc = -1 serf_lan = {} serf_wan = {} server = {} }}",
            others[0], others[1], others[2]
        );
        let mode: Vec<String> = match self.kind {
            Kind::Fleeting => vec!["-dev".to_owned()],
            Kind::Lasting => {
                let data = self.dir.path().join("data").display().to_string();
                vec!["-server".to_owned(), "-bootstrap-expect=1".to_owned(), format!("-data-dir={data}")]
            }
        };
        let common = ["-bind=127.0.0.1", "-client=127.0.0.1", "-node=node-a", "-log-level=warn", "-hcl"];
        let quick = "performance { raft_multiplier = 1 } disable_update_check = true";
        let args: Vec<String> = std::iter::once("agent".to_owned())
            .chain(mode)
            .chain(common.map(str::to_owned))
            .chain([ports, "-hcl".to_owned(), quick.to_owned(), "-hcl".to_owned(), self.config.clone()])
            .collect();
        self.running = Some(Running::start(&consul(), &args, &[]));
        wait_until("Consul has a leader", LIMIT, || {
            let out = self.command(&["catalog", "nodes"]).output();
            out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("node-a"))
        });
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(consul());
        command.args(args).env("CONSUL_HTTP_ADDR", self.url());
        if let Some(token) = &self.token {
            command.env("CONSUL_HTTP_TOKEN", token);
        }
        command
    }

    pub(crate) fn curl(&self, method: &str, path: &str, body: &str) {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail", "-X", method, "--data-binary", body]);
        if let Some(token) = &self.token {
            command.args(["-H", &format!("X-Consul-Token: {token}")]);
        }
        run(command.arg(format!("{}/v1/{path}", self.url())));
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}
