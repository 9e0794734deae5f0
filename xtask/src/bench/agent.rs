//! The agent beside an etcd that is started by hand: how soon it serves, what it costs while nothing happens, and how soon
//! etcd is back after it was killed.
//!
//! **Rule:** both are asked in the same manner, by an HTTP request that is answered with 200 only after a linearizable
//! read: `/readyz` of the agent, `/health` of etcd; every two milliseconds, and every 25 where a start takes seconds. Until
//! it serves, etcd refuses the connection and the agent answers: a thousand answers would be what is measured. Both are
//! started by the same launcher, in turns,
//! and with an election timeout of 100 ms: a lone member waits a random part of it, and with the usual 1 s chance alone
//! would move the medians by more than what is to be seen.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quorate_testkit::{Port, Running, Seat, Tools, free_port, kill_hard};

use super::measure::Sample;
use super::{Row, alone, dataset, fresh, known};

/// Pairs of every measurement, unless `QUORATE_BENCH_PAIRS` says otherwise.
const PAIRS: usize = 20;
/// Between two questions.
const ASK_EVERY: Duration = Duration::from_millis(2);
/// The same during starts that take seconds.
const ASK_SELDOM: Duration = Duration::from_millis(25);
/// A start that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(120);
/// How long an idle agent is watched.
const IDLE: Duration = Duration::from_secs(60);
/// And how long it may settle before.
const SETTLE: Duration = Duration::from_secs(5);
/// A database of about 100 MiB.
const SMALL_KEYS: u64 = 76_000;

struct Bench<'a> {
    quorate: &'a Path,
    etcd: &'a Path,
    dir: PathBuf,
    seat: Seat,
    health: Port,
    api: Port,
    pairs: usize,
    ask_every: Cell<Duration>,
}

/// Measures all of it.
pub(super) fn rows(quorate: &Path, tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    let gib = dataset::Dataset::make(work, &tools.etcdutl)?.snapshot;
    let small = dataset::snapshot_of(work, "mib-100.snapshot", SMALL_KEYS)?;
    let pairs = std::env::var("QUORATE_BENCH_PAIRS").ok().and_then(|pairs| pairs.parse().ok()).unwrap_or(PAIRS);
    let bench = Bench {
        quorate,
        etcd: &tools.etcd,
        dir: work.join("agent"),
        seat: Seat::new("n1"),
        health: free_port(),
        api: free_port(),
        pairs,
        ask_every: Cell::new(ASK_EVERY),
    };
    let rows =
        vec![known(bench.cold()?), known(bench.idle()?), known(bench.killed(&small)?), known(bench.again(&gib)?)];
    fresh(&bench.dir)?;
    Ok(rows)
}

impl Bench<'_> {
    /// From nothing to the first read.
    fn cold(&self) -> Result<Row> {
        let ours = || {
            fresh(&self.dir)?;
            let (agent, seconds) = self.agent_ready()?;
            self.end(agent)?;
            Ok(seconds)
        };
        let theirs = || {
            fresh(&self.dir)?;
            let (etcd, seconds) = self.plain_ready()?;
            end_plain(etcd)?;
            Ok(seconds)
        };
        let (ours, theirs) = self.in_turns(ours, theirs)?;
        let more = ours.seconds - theirs.seconds;
        Ok(Row {
            work: format!("cold start of the agent to `/readyz`, empty dir, one member ({:+.0} ms)", more * 1e3),
            ours,
            peer: "plain `etcd` to its first linearizable read".into(),
            theirs: Some(theirs),
            reach: "within 150 ms of it".into(),
            met: more <= 0.150,
        })
    }

    /// A clean restart on a large database.
    fn again(&self, snapshot: &Path) -> Result<Row> {
        self.restore(snapshot)?;
        self.ask_every.set(ASK_SELDOM);
        let ours = || {
            let (agent, seconds) = self.agent_ready()?;
            self.end(agent)?;
            Ok(seconds)
        };
        let theirs = || {
            let (etcd, seconds) = self.plain_ready()?;
            end_plain(etcd)?;
            Ok(seconds)
        };
        // The first start of each finds what no later one does: a dir that never ran, a cold cache.
        ours()?;
        theirs()?;
        let (ours, theirs) = self.in_turns(ours, theirs)?;
        let more = (ours.seconds / theirs.seconds - 1.0) * 100.0;
        Ok(Row {
            work: format!("clean restart of the agent to `/readyz`, 1 GiB db ({more:+.1} %)"),
            ours,
            peer: "plain `etcd` on the same dir".into(),
            theirs: Some(theirs),
            reach: "≤ 5 % slower".into(),
            met: more <= 5.0,
        })
    }

    /// What an agent takes while nothing happens, backups off.
    fn idle(&self) -> Result<Row> {
        fresh(&self.dir)?;
        let (agent, _) = self.agent_ready()?;
        std::thread::sleep(SETTLE);
        let before = cpu_seconds(agent.pid())?;
        std::thread::sleep(IDLE);
        let (cpu, rss_mib) = (cpu_seconds(agent.pid())? - before, resident_mib(agent.pid())?);
        self.end(agent)?;
        let part = cpu / IDLE.as_secs_f64() * 100.0;
        let met = part <= 0.2 && rss_mib <= 20.0;
        let work = format!("CPU time of an idle agent in {} s ({part:.2} % of a core), its memory", IDLE.as_secs());
        Ok(alone(&work, Sample { seconds: cpu, rss_mib }, "≤ 0.2 % of a core, ≤ 20 MiB", met))
    }

    /// From SIGKILL of etcd until reads succeed again; the agent reads all data before it starts etcd.
    fn killed(&self, snapshot: &Path) -> Result<Row> {
        self.restore(snapshot)?;
        let ours = || {
            // An agent of its own for each: ends in a row would be met with a wait.
            let (mut agent, _) = self.agent_ready()?;
            let etcd = self.etcd_pid()?;
            let began = Instant::now();
            kill_hard(etcd);
            self.wait(&mut agent, began, || status(self.health.number(), "/readyz") != Some(200))?;
            let seconds = self.wait(&mut agent, began, || self.is_ready())?;
            self.end(agent)?;
            Ok(seconds)
        };
        let theirs = || {
            let (mut etcd, _) = self.plain_ready()?;
            let began = Instant::now();
            kill_hard(etcd.pid());
            etcd.kill();
            let mut etcd = self.plain();
            let seconds = self.wait(&mut etcd, began, || self.serves())?;
            end_plain(etcd)?;
            Ok(seconds)
        };
        let (ours, theirs) = self.in_turns(ours, theirs)?;
        let more = ours.seconds - theirs.seconds;
        Ok(Row {
            work: format!("`kill -9` of etcd to `/readyz`, 100 MiB db, all of it checked ({:+.0} ms)", more * 1e3),
            ours,
            peer: "`kill -9` and immediate start of plain `etcd` on the same dir".into(),
            theirs: Some(theirs),
            reach: "within 400 ms of it".into(),
            met: more <= 0.400,
        })
    }

    /// Both in turns, each first as often as the other; the medians.
    fn in_turns(&self, ours: impl Fn() -> Result<f64>, theirs: impl Fn() -> Result<f64>) -> Result<(Sample, Sample)> {
        let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
        for pair in 0..self.pairs {
            for ours_next in [pair % 2 == 0, pair % 2 != 0] {
                if ours_next { our_times.push(ours()?) } else { their_times.push(theirs()?) }
            }
        }
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            Sample { seconds: times[times.len() / 2], rss_mib: 0.0 }
        };
        Ok((median(our_times), median(their_times)))
    }

    /// A data dir from a snapshot, which belongs to the agent.
    fn restore(&self, snapshot: &Path) -> Result<()> {
        fresh(&self.dir)?;
        let mut command = Command::new(self.quorate);
        command.args(["data", "restore", "--quiet", "--name", "n1", "--snapshot"]).arg(snapshot);
        command.arg("--data-dir").arg(self.data()).arg("--member").arg(format!("n1={}", self.seat.peer_url()));
        run(&mut command)?;
        let mut command = Command::new(self.quorate);
        run(command.args(["cluster", "adopt", "--quiet", "--name", "n1", "--config"]).arg(self.file()?))
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn file(&self) -> Result<PathBuf> {
        let path = self.dir.join("cluster.yaml");
        let text = format!(
            "token: bench\nbootstrap: {{id: 1}}\nplaintext: true\nmembers:\n  - name: n1\n    peer-urls: [\"{}\"]\n    \
             client-urls: [\"{}\"]\n    data-dir: {}\nagent:\n  health-listen: http://127.0.0.1:{}\n  \
             api-listen: http://127.0.0.1:{}\n  state-dir: {}\n  etcd-binary: {}\n\
             etcd: {{quota-backend-bytes: 8589934592, heartbeat-interval: 10, election-timeout: 100}}\n",
            self.seat.peer_url(),
            self.seat.client_url(),
            self.data().display(),
            self.health,
            self.api,
            self.dir.join("state").display(),
            self.etcd.display(),
        );
        super::write(&path, &text)?;
        Ok(path)
    }

    fn agent_ready(&self) -> Result<(Running, f64)> {
        let args = ["run", "--name", "n1", "--config", &self.file()?.display().to_string()].map(str::to_owned);
        let began = Instant::now();
        let mut agent = Running::start(self.quorate, &args, &[]);
        let seconds = self.wait(&mut agent, began, || self.is_ready())?;
        Ok((agent, seconds))
    }

    fn plain(&self) -> Running {
        let args = [
            "--name=n1".to_owned(),
            format!("--data-dir={}", self.data().display()),
            format!("--listen-client-urls={}", self.seat.client_url()),
            format!("--advertise-client-urls={}", self.seat.client_url()),
            format!("--listen-peer-urls={}", self.seat.peer_url()),
            format!("--initial-advertise-peer-urls={}", self.seat.peer_url()),
            format!("--initial-cluster=n1={}", self.seat.peer_url()),
            "--quota-backend-bytes=8589934592".to_owned(),
            "--heartbeat-interval=10".to_owned(),
            "--election-timeout=100".to_owned(),
        ];
        Running::start(self.etcd, &args, &[])
    }

    fn plain_ready(&self) -> Result<(Running, f64)> {
        let began = Instant::now();
        let mut etcd = self.plain();
        let seconds = self.wait(&mut etcd, began, || self.serves())?;
        Ok((etcd, seconds))
    }

    fn is_ready(&self) -> bool {
        status(self.health.number(), "/readyz") == Some(200)
    }

    fn serves(&self) -> bool {
        let url = self.seat.client_url();
        let port = url.rsplit(':').next().and_then(|port| port.parse().ok());
        port.is_some_and(|port| status(port, "/health") == Some(200))
    }

    /// Seconds since `began` when it has come.
    fn wait(&self, who: &mut Running, began: Instant, come: impl Fn() -> bool) -> Result<f64> {
        loop {
            if come() {
                return Ok(began.elapsed().as_secs_f64());
            }
            if let Some(status) = who.ended() {
                bail!("it ended with {status} instead:\n{}", who.log());
            }
            if began.elapsed() > LIMIT {
                bail!("waited {LIMIT:?} in vain:\n{}", who.log());
            }
            std::thread::sleep(self.ask_every.get());
        }
    }

    fn etcd_pid(&self) -> Result<u32> {
        let mut command = Command::new(self.quorate);
        command.args(["status", "--output", "json", "--name", "n1", "--config"]).arg(self.file()?);
        let status: serde_json::Value = serde_json::from_slice(&command.output()?.stdout)?;
        let pid = status["etcd"]["pid"].as_u64().with_context(|| format!("etcd does not run: {status}"))?;
        Ok(u32::try_from(pid)?)
    }

    fn end(&self, mut agent: Running) -> Result<()> {
        let status = agent.stop();
        if !status.success() {
            bail!("the agent ended with {status}:\n{}", agent.log());
        }
        Ok(())
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // An agent that was cut off leaves etcd running.
        if let Ok(file) = self.file() {
            let mut command = Command::new(self.quorate);
            let _ = run(command.args(["stop", "--quiet", "--name", "n1", "--config"]).arg(file));
        }
    }
}

fn end_plain(mut etcd: Running) -> Result<()> {
    etcd.stop();
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// The status of an HTTP answer; `None`: nobody answers.
fn status(port: u16, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// CPU time of a process and its threads, also those that have ended.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("no process name")?;
    let ticks = |at: usize| fields.split(' ').nth(at).and_then(|ticks| ticks.parse::<f64>().ok());
    // Fields 14 and 15 of the whole line, in hundredths of a second on Linux.
    let (user, system) = ticks(11).zip(ticks(12)).context("no times")?;
    Ok((user + system) / 100.0)
}

fn resident_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(resident.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}
