//! Three members from empty dirs to a write through each of them, with mutual TLS: three agents, and three plain etcd that
//! are started with the same certificates and a static list.
//!
//! **Rule:** both are asked in the same manner, by puts that are repeated until one succeeds through every member, and in
//! turns.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use quorate_etcd::client::{Client, Settings, Tls};
use quorate_testkit::{Port, Running, Tools, free_port};
use tokio::runtime::Runtime;

use super::measure::Sample;
use super::{Row, alone, fresh, known};

/// Pairs, unless `QUORATE_BENCH_PAIRS` says otherwise.
const PAIRS: usize = 20;
/// Between two attempts to write.
const ASK_EVERY: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(60);
/// Lives of the simulator.
const LIVES: u64 = 2000;
const NAMES: [&str; 3] = ["n1", "n2", "n3"];

struct Bench<'a> {
    quorate: &'a Path,
    etcd: &'a Path,
    dir: PathBuf,
    seats: Vec<Seat>,
    runtime: Runtime,
}

struct Seat {
    name: &'static str,
    client: Port,
    peer: Port,
    agent: Port,
    health: Port,
}

/// Measures it.
pub(super) fn rows(quorate: &Path, tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    let seat = |name| Seat { name, client: free_port(), peer: free_port(), agent: free_port(), health: free_port() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bench = Bench { quorate, etcd: &tools.etcd, dir: work.join("found"), seats: NAMES.map(seat).into(), runtime };
    fresh(&bench.dir)?;
    bench.certificates()?;
    let pairs = std::env::var("QUORATE_BENCH_PAIRS").ok().and_then(|pairs| pairs.parse().ok()).unwrap_or(PAIRS);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        for ours_next in [pair % 2 == 0, pair % 2 != 0] {
            if ours_next { ours.push(bench.agents()?) } else { theirs.push(bench.plain()?) }
        }
    }
    ours.sort_by(f64::total_cmp);
    theirs.sort_by(f64::total_cmp);
    let slowest = |times: &[f64]| times.last().copied().unwrap_or_default();
    let middle = |times: &[f64]| Sample { seconds: times[times.len() / 2], rss_mib: 0.0 };
    let row = Row {
        work: format!(
            "three empty dirs to a write through each member, mutual TLS (slowest of {pairs}: {:.2} s)",
            slowest(&ours)
        ),
        ours: middle(&ours),
        peer: format!("three plain `etcd`, static list, the same certificates (slowest: {:.2} s)", slowest(&theirs)),
        theirs: Some(middle(&theirs)),
        reach: "median no slower, slowest ≤ ½ of theirs".into(),
        met: middle(&ours).seconds <= middle(&theirs).seconds && slowest(&ours) <= 0.5 * slowest(&theirs),
    };
    Ok(vec![known(row), known(planner()?)])
}

/// The planner, in the simulated world: one thread, the world's own work included.
fn planner() -> Result<Row> {
    let began = Instant::now();
    let mut plans = 0;
    for seed in 0..LIVES {
        let life = quorate_sim::live(seed, quorate_sim::Settings::default());
        if let Some(broken) = life.broken {
            bail!("seed {seed} breaks a rule: {broken}");
        }
        plans += life.plans;
    }
    let seconds = began.elapsed().as_secs_f64();
    let speed = plans as f64 / seconds;
    let work = format!("{LIVES} simulated lives on one core ({speed:.0} plans/s)");
    let sample = Sample { seconds, rss_mib: 0.0 };
    Ok(alone(&work, sample, "≥ 10,000 plans/s; lives < 60 s", speed >= 10_000.0 && seconds < 60.0))
}

impl Bench<'_> {
    fn file(&self) -> PathBuf {
        self.dir.join("cluster.yaml")
    }

    fn pki(&self, name: &str) -> PathBuf {
        self.dir.join("pki").join(name)
    }

    /// The cluster file and everyone's certificates, once for all.
    fn certificates(&self) -> Result<()> {
        let mut text = "token: bench\nbootstrap: {id: 1}\nmembers:\n".to_owned();
        for seat in &self.seats {
            let Seat { name, client, peer, agent, health } = seat;
            text += &format!(
                "  - name: {name}\n    peer-urls: [\"https://127.0.0.1:{peer}\"]\n    \
                 client-urls: [\"https://127.0.0.1:{client}\"]\n    agent-url: https://127.0.0.1:{agent}\n    \
                 listen-agent-url: https://127.0.0.1:{agent}\n    listen-health-url: https://127.0.0.1:{health}\n    \
                 data-dir: {}\n",
                self.dir.join("run").join(name).display()
            );
        }
        text += &format!("tls: {{dir: \"{}\"}}\n", self.pki("{name}").display());
        text += &format!(
            "agent: {{state-dir: \"{}\", etcd-binary: \"{}\"}}\n",
            self.dir.join("run/state").display(),
            self.etcd.display()
        );
        super::write(&self.file(), &text)?;
        std::fs::create_dir_all(self.dir.join("pki"))?;
        let ca = self.dir.join("ca").display().to_string();
        self.quorate(&["ca", "init", "--unencrypted", "--token", "bench", "--dir", &ca])?;
        for name in NAMES {
            let (csr, bundle) = (self.dir.join(format!("{name}.csr")), self.dir.join(format!("{name}.bundle")));
            let (file, csr, bundle) =
                (self.file().display().to_string(), csr.display().to_string(), bundle.display().to_string());
            self.quorate(&["ca", "csr", "--config", &file, "--name", name, "--out", &csr])?;
            self.quorate(&["ca", "issue", "--dir", &ca, "--config", &file, "--out", &bundle, &csr])?;
            self.quorate(&["ca", "install", "--config", &file, "--name", name, &bundle])?;
        }
        Ok(())
    }

    fn quorate(&self, args: &[&str]) -> Result<()> {
        let output = Command::new(self.quorate).args(args).output()?;
        if !output.status.success() {
            bail!(
                "`quorate {}` ended with {}: {}",
                args.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(())
    }

    fn agents(&self) -> Result<f64> {
        fresh(&self.dir.join("run"))?;
        let file = self.file().display().to_string();
        let run = |seat: &Seat| {
            let args = ["run", "--config", &file, "--name", seat.name].map(str::to_owned);
            Running::start(self.quorate, &args, &[])
        };
        self.timed(run)
    }

    fn plain(&self) -> Result<f64> {
        fresh(&self.dir.join("run"))?;
        let list: Vec<String> =
            self.seats.iter().map(|seat| format!("{}=https://127.0.0.1:{}", seat.name, seat.peer)).collect();
        let run = |seat: &Seat| {
            let pki = self.pki(seat.name);
            let flag = |name: &str, file: &str| format!("--{name}={}", pki.join(file).display());
            let args = [
                format!("--name={}", seat.name),
                format!("--data-dir={}", self.dir.join("run").join(seat.name).display()),
                format!("--listen-client-urls=https://127.0.0.1:{}", seat.client),
                format!("--advertise-client-urls=https://127.0.0.1:{}", seat.client),
                format!("--listen-peer-urls=https://127.0.0.1:{}", seat.peer),
                format!("--initial-advertise-peer-urls=https://127.0.0.1:{}", seat.peer),
                format!("--initial-cluster={}", list.join(",")),
                "--client-cert-auth".to_owned(),
                "--peer-client-cert-auth".to_owned(),
                flag("cert-file", "client.crt"),
                flag("key-file", "client.key"),
                flag("trusted-ca-file", "client-ca.crt"),
                flag("peer-cert-file", "peer.crt"),
                flag("peer-key-file", "peer.key"),
                flag("peer-trusted-ca-file", "peer-ca.crt"),
            ];
            Running::start(self.etcd, &args, &[])
        };
        self.timed(run)
    }

    /// Starts all three, and takes the time until a write through each of them has succeeded.
    fn timed(&self, run: impl Fn(&Seat) -> Running) -> Result<f64> {
        let began = Instant::now();
        let mut running: Vec<Running> = self.seats.iter().map(run).collect();
        let written = self.runtime.block_on(async {
            let mut writes = tokio::task::JoinSet::new();
            for seat in &self.seats {
                let file = |name: &str| Some(self.pki(seat.name).join(name));
                let mut settings = Settings::new([format!("https://127.0.0.1:{}", seat.client)]);
                settings.tls = Tls {
                    ca: file("client-ca.crt"),
                    cert: file("admin.crt"),
                    key: file("admin.key"),
                    server_name: None,
                };
                settings.timeout = Duration::from_secs(5);
                writes.spawn(write(settings, seat.name));
            }
            while let Some(written) = writes.join_next().await {
                written??;
            }
            anyhow::Ok(began.elapsed().as_secs_f64())
        });
        let seconds = match written {
            Ok(seconds) => seconds,
            Err(error) => {
                bail!("{error}\n{}", running.iter().map(|one| one.log_tail(15)).collect::<Vec<_>>().join("\n"))
            }
        };
        for one in &running {
            one.signal(rustix::process::Signal::TERM);
        }
        // Asked once: an agent that is asked again ends before its etcd.
        let began = Instant::now();
        while running.iter_mut().any(|one| one.ended().is_none()) {
            if began.elapsed() > LIMIT {
                bail!("they do not end within {LIMIT:?}");
            }
            std::thread::sleep(ASK_EVERY);
        }
        Ok(seconds)
    }
}

async fn write(settings: Settings, name: &'static str) -> Result<()> {
    let began = Instant::now();
    loop {
        let attempt = async { Client::connect(&settings).await?.put(name, "written").await };
        match attempt.await {
            Ok(_) => return Ok(()),
            Err(fault) if began.elapsed() > LIMIT => bail!("no write through {name} within {LIMIT:?}: {fault}"),
            Err(_) => tokio::time::sleep(ASK_EVERY).await,
        }
    }
}
