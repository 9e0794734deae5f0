//! The server's process: what its shim is told, and when the server answers.
//!
//! **Rule:** it is stopped by SIGINT: open transactions are rolled back, all else is written down. SIGTERM would wait for
//! clients to leave.

use std::path::Path;
use std::time::Duration;

use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_host::logs::Rotation;
use quorate_host::shim::{self, Rung, Running, Send, ShimSpec, StopOrder};
use quorate_host::state::StateDir;
use quorate_plan::boxes::{BoxPlan, BoxSpec, Level, Ports};
use sha2::{Digest, Sha256};

use super::{Installation, ServerConfig};
use crate::sql::{Client, Limits, Place};

/// How long an orderly stop may take: a checkpoint of all that is in memory.
const STOP_MS: u64 = 60_000;

/// How to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// In order, without waiting for clients.
    Fast,
    /// At once; the next start recovers.
    Immediate,
}

/// What the shim is told.
pub fn server_orders(installation: &Installation, data: &Path, state: &Path) -> ShimSpec {
    let program = installation.program("postgres");
    let args = vec!["-D".to_owned(), data.display().to_string()];
    // Settings are reloaded; what makes it another process is its program and its data.
    let hash = Sha256::digest(format!("{}\0{}\0{}", program.display(), installation.version, data.display()));
    let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    ShimSpec {
        name: "postgres".to_owned(),
        program,
        args,
        env: vec![text("LC_ALL", "C"), text("PATH", "/usr/bin:/bin"), text("TZ", "UTC")],
        env_files: Vec::new(),
        dir: "/".into(),
        log_dir: state.join("logs"),
        rotation: Rotation { bytes_max: 64 << 20, age_max_s: 86_400, keep: 7 },
        config_hash: hex(&hash),
        etcd_version: installation.version.to_string(),
        stopping_words: Vec::new(),
        kept_level: None,
        ladder: ladder(StopMode::Fast),
    }
}

/// The box that it needs; limits and escapes are the caller's.
pub fn box_spec(installation: &Installation, data: &Path, config: &ServerConfig, level: Level, user: &str) -> BoxSpec {
    let text = |path: &Path| path.display().to_string();
    let home = installation.bin.parent().unwrap_or(&installation.bin);
    // Who comes by the socket is looked up by name.
    let mut reads = vec!["/etc/passwd".to_owned(), text(home)];
    if let Some(tls) = &config.tls {
        reads.extend([&tls.cert, &tls.key, &tls.ca].map(|path| text(path)));
    }
    // Its own modules are mapped as code.
    let execs =
        [home.join("lib"), installation.bin.clone()].iter().filter(|dir| dir.is_dir()).map(|dir| text(dir)).collect();
    BoxSpec {
        user: Some(user.to_owned()),
        reads,
        writes: vec![text(data), text(&config.socket_dir)],
        execs,
        ports: Ports { bind: vec![config.port], connect: Vec::new(), connect_any: true },
        ..BoxSpec::new(level)
    }
}

/// How many processes it can have at once by its settings: clients, workers, senders, and its own.
pub fn processes_max(config: &ServerConfig) -> u32 {
    const CLIENTS_USUAL: u32 = 100;
    const OWN: u32 = 64;
    /// What a strict box has by itself.
    const LEAST: u32 = 512;
    let clients = config.extra.get("max_connections").and_then(|text| text.trim().parse().ok());
    let links = 8 * u32::from(config.members.max(3));
    let all = clients.unwrap_or(CLIENTS_USUAL).saturating_add(3 * links + 16 + OWN);
    all.max(LEAST)
}

fn ladder(mode: StopMode) -> Vec<Rung> {
    let rung = |send, wait_ms| Rung { send, wait_ms };
    let hard = [rung(Send::Quit, 5_000), rung(Send::Kill, 10_000)];
    match mode {
        StopMode::Fast => [rung(Send::Int, STOP_MS)].into_iter().chain(hard).collect(),
        StopMode::Immediate => hard.into(),
    }
}

/// An order to stop, for [`Running::stop`].
pub fn stop_order(asked_by: &str, mode: StopMode) -> StopOrder {
    StopOrder { asked_by: asked_by.to_owned(), ladder: ladder(mode), last_revision: None }
}

/// Starts it below a shim, or finds it running.
pub fn start(shim: &Path, state: &StateDir, orders: &ShimSpec, boxed: Option<BoxPlan>) -> Result<Running, Fault> {
    match shim::adopt(state)? {
        shim::Adoption::Running(running) if running.config_hash() == orders.config_hash => Ok(running),
        shim::Adoption::Running(running) => Err(Fault::new(
            Code::StrangerRuns,
            format!("process {} runs here with another program or other data", running.child().pid),
        )
        .hint("stop it first")),
        shim::Adoption::Stranger(why) => {
            Err(Fault::new(Code::StrangerRuns, "something runs that was not started here").caused_by(why))
        }
        shim::Adoption::Gone(_) | shim::Adoption::Lost(_) | shim::Adoption::None => {
            shim::spawn_boxed(shim, state, orders, boxed)
        }
    }
}

/// Waits until the server lets us in.
pub async fn wait_ready(place: &Place, limit: Duration) -> Result<Client, Fault> {
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        match Client::connect(place, Limits::default()).await {
            Ok(client) => return Ok(client),
            // What a person has to mend does not mend itself by waiting.
            Err(fault) if fault.code() == Code::PgAuth => return Err(fault),
            Err(fault) if tokio::time::Instant::now() >= deadline => {
                return Err(Fault::new(
                    Code::PgSilent,
                    format!("PostgreSQL of `{}` is not ready after {limit:?}", place.node),
                )
                .hint("its log says what it does; see `quorate logs postgres`")
                .caused_by(fault));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Has the server read its configuration and certificates again.
pub async fn reload(client: &Client) -> Result<(), Fault> {
    client.one("SELECT pg_reload_conf()", &[]).await.map(drop)
}

/// Whether the server runs without connections to other nodes.
pub async fn is_isolated(client: &Client) -> Result<bool, Fault> {
    client.value("SELECT current_setting('max_logical_replication_workers') = '0'", &[]).await
}

/// Settings that were changed and wait for a restart.
pub async fn pending_restart(client: &Client) -> Result<Vec<String>, Fault> {
    let rows = client.query("SELECT name FROM pg_settings WHERE pending_restart ORDER BY name", &[]).await?;
    rows.iter().map(|row| client.read(row, 0)).collect()
}
