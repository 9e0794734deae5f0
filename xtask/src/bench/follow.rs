//! `backup follow` beside a live etcd: whether it keeps up, how much it would lose, and what it costs the writers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use quorate_etcd::client::messages::{PutRequest, Request, RequestOp, TxnRequest};
use quorate_etcd::client::{Client, Settings};
use quorate_testkit::{Launch, Seat, Server, Tools};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::measure::Sample;
use super::{Row, known};

/// The default of `--delta-period`.
const PERIOD: Duration = Duration::from_secs(10);
/// What may come on top of it.
const SLACK: Duration = Duration::from_secs(2);
const LOAD: Duration = Duration::from_secs(45);
const PAIRS: usize = 6;
const PAIR_LOAD: Duration = Duration::from_secs(6);
const VALUE_BYTES: usize = 200;

/// How writes are sent.
#[derive(Clone, Copy)]
struct Writer {
    tasks: u64,
    puts_per_txn: u64,
}

/// Single puts, as many at a time as make this machine busy.
const PUTS: Writer = Writer { tasks: 192, puts_per_txn: 1 };
/// Transactions, which bring more writes into etcd than anything else.
const TXNS: Writer = Writer { tasks: 24, puts_per_txn: 100 };

struct Bench<'a> {
    quorate: &'a Path,
    work: PathBuf,
    server: Server,
    runtime: Runtime,
}

/// Measures all of it.
pub(super) fn rows(quorate: &Path, tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    let work = work.join("follow");
    super::fresh(&work)?;
    let seat = Seat::new("follow");
    let server = Launch::new(tools, &seat, &work.join("data"))
        .arg("--quota-backend-bytes=8589934592")
        .arg(format!("--initial-cluster=follow={}", seat.peer_url()))
        .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
        .start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let bench = Bench { quorate, work, server, runtime };
    Ok(vec![
        known(bench.cost()?),
        known(bench.behind(PUTS, "single puts")?),
        known(bench.behind(TXNS, "transactions of 100 puts")?),
    ])
}

impl Bench<'_> {
    /// Puts a second with a follower, and without one, in turns.
    fn cost(&self) -> Result<Row> {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        self.load(PUTS, Duration::from_secs(3))?;
        for pair in 0..PAIRS {
            for on in [pair % 2 == 0, pair % 2 != 0] {
                let follower = on.then(|| self.follow()).transpose()?;
                if on {
                    self.wait_for(self.revision()?)?;
                }
                let (events, seconds) = self.load(PUTS, PAIR_LOAD)?;
                if on { &mut with } else { &mut without }.push(seconds / events as f64 * 10_000.0);
                follower.map(Follower::stop).transpose()?;
            }
        }
        let sample = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            Sample { seconds: times[times.len() / 2], rss_mib: 0.0 }
        };
        let (ours, theirs) = (sample(with), sample(without));
        Ok(Row {
            work: format!(
                "10,000 puts of {VALUE_BYTES} B with `backup follow` on ({:.0} puts/s)",
                10_000.0 / ours.seconds
            ),
            ours,
            peer: "the same without it".into(),
            theirs: Some(theirs),
            reach: "≤ 5 % fewer puts/s".into(),
            met: theirs.seconds >= 0.95 * ours.seconds,
        })
    }

    /// How old the newest stored write is at worst while this writer runs, and whether the end is reached in time.
    fn behind(&self, writer: Writer, what: &str) -> Result<Row> {
        let follower = self.follow()?;
        self.wait_for(self.revision()?)?;
        let over = Arc::new(AtomicBool::new(false));
        let watched = std::thread::spawn({
            let (over, store) = (Arc::clone(&over), self.store());
            move || worst_age(&store, &over)
        });
        let (events, seconds) = self.load(writer, LOAD)?;
        over.store(true, Ordering::Relaxed);
        let worst = watched.join().map_err(|_| anyhow::anyhow!("the watching thread panicked"))??;
        let began = Instant::now();
        self.wait_for(self.revision()?)?;
        let rest = began.elapsed();
        let rss_mib = follower.peak_mib()?;
        follower.stop()?;
        let (rate, mb) = (events as f64 / seconds, events as f64 * VALUE_BYTES as f64 / seconds / 1e6);
        let worst = worst.max(rest);
        Ok(Row {
            work: format!(
                "`backup follow` behind {what} ({rate:.0} events/s, {mb:.1} MB/s): age of the newest stored write at worst"
            ),
            ours: Sample { seconds: worst.as_secs_f64(), rss_mib },
            peer: "–".into(),
            theirs: None,
            reach: "≤ 10 s period + 2 s, ≤ 64 MiB".into(),
            met: worst <= PERIOD + SLACK && rss_mib <= 64.0,
        })
    }

    fn store(&self) -> PathBuf {
        self.work.join("store")
    }

    fn follow(&self) -> Result<Follower> {
        let log = File::options().create(true).append(true).open(self.work.join("follow.log"))?;
        let mut command = Command::new(self.quorate);
        command.args(["backup", "follow", "--endpoints", &self.server.seat.client_url()]);
        command.args(["--store", &format!("file://{}", self.store().display())]);
        command.arg("--spool").arg(self.work.join("spool"));
        command.args(["--delta-period", "10s", "--spool-max", "8GiB"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(Follower(command.spawn().context("start `backup follow`")?))
    }

    fn revision(&self) -> Result<i64> {
        self.runtime.block_on(async {
            let client = Client::connect(&Settings::new([self.server.seat.client_url()])).await?;
            Ok(client.status().await?.header.unwrap_or_default().revision)
        })
    }

    /// Waits until the store holds that revision.
    fn wait_for(&self, revision: i64) -> Result<()> {
        let began = Instant::now();
        while stored(&self.store()) < revision {
            if began.elapsed() > Duration::from_secs(180) {
                bail!("`backup follow` did not reach revision {revision}; see `{}/follow.log`", self.work.display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Writes for a while; says how many writes there were, and in how many seconds.
    fn load(&self, writer: Writer, limit: Duration) -> Result<(u64, f64)> {
        self.runtime.block_on(async {
            let client = Client::connect(&Settings::new([self.server.seat.client_url()])).await?;
            let count = Arc::new(AtomicU64::new(0));
            let began = Instant::now();
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..writer.tasks {
                let (client, count) = (client.clone(), Arc::clone(&count));
                tasks.spawn(async move {
                    let mut n = task;
                    while began.elapsed() < limit {
                        write(&client, writer, n).await?;
                        n += writer.tasks;
                        count.fetch_add(writer.puts_per_txn, Ordering::Relaxed);
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            Ok((count.load(Ordering::Relaxed), began.elapsed().as_secs_f64()))
        })
    }
}

async fn write(client: &Client, writer: Writer, n: u64) -> Result<()> {
    let put =
        |n: u64| PutRequest { key: super::deltas::key(n), value: super::deltas::value(n), ..PutRequest::default() };
    if writer.puts_per_txn == 1 {
        client.put_with(put(n)).await?;
        return Ok(());
    }
    let first = n * writer.puts_per_txn;
    let success = (first..first + writer.puts_per_txn).map(|n| RequestOp::from(Request::Put(put(n)))).collect();
    client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
    Ok(())
}

/// The follower's process.
struct Follower(Child);

impl Follower {
    fn peak_mib(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        Ok(peak.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }

    fn stop(mut self) -> Result<()> {
        Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status()?;
        let status = self.0.wait()?;
        if !status.success() {
            bail!("`backup follow` ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The newest manifest of a kind.
fn manifest(store: &Path, kind: &str) -> Option<Value> {
    let mut manifests: Vec<PathBuf> = std::fs::read_dir(store.join("quorate-v1").join(kind))
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    manifests.sort();
    serde_json::from_slice(&std::fs::read(manifests.last()?).ok()?).ok()
}

/// The newest revision in the store.
fn stored(store: &Path) -> i64 {
    let last = |kind| manifest(store, kind).and_then(|manifest| manifest["last"].as_i64()).unwrap_or(0);
    last("full").max(last("delta"))
}

/// Last revision and time of last write of the newest delta in the store.
fn newest(store: &Path) -> Option<(i64, i64)> {
    let manifest = manifest(store, "delta")?;
    Some((manifest["last"].as_i64()?, manifest["last_write_ms"].as_i64()?))
}

/// The largest age of the newest stored write, from the first delta of this load on.
fn worst_age(store: &Path, over: &AtomicBool) -> Result<Duration> {
    let before = newest(store);
    let mut worst = Duration::ZERO;
    let began = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        let age = match newest(store) {
            // What was stored before the load began says nothing about it.
            here if here == before => began.elapsed(),
            Some((_, written_ms)) => {
                let age = now_ms.saturating_sub(u128::try_from(written_ms)?);
                Duration::from_millis(u64::try_from(age)?)
            }
            None => began.elapsed(),
        };
        worst = worst.max(age);
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(worst)
}
