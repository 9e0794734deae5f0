//! 1→2→3→5→3→1 under writes and a watch that never pause: how long writes stall at most, and whether anything is lost or told twice.
//!
//! **Rule:** written and watched through the member that stays from the first to the last, by a client that asks again after half an
//! election timeout, as a client that cares would: what was sent to a leader that just handed over is answered by nobody.

use std::convert::Infallible;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quorate_etcd::client::{Client, KeyRange, Settings, WatchFrom, WatchTurn};
use quorate_testkit::Tools;

use super::super::measure::Sample;
use super::super::{Row, alone};
use super::{Bench, ELECTION_MS, LIMIT};

/// How many members there are, one file after the other.
const SIZES: [usize; 6] = [1, 2, 3, 5, 3, 1];
const PREFIX: &str = "steps/";
/// Between two writes.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) fn row(quorate: &Path, tools: &Tools, work: &Path) -> Result<Row> {
    let most = SIZES.into_iter().max().unwrap_or(1);
    let mut bench = Bench::new(quorate, tools, work.join("steps"), most)?;
    bench.found(SIZES[0])?;
    let load = Watched::start(bench.client_url(0))?;
    load.goes_on(100)?;
    let (began, mut stalls) = (Instant::now(), Vec::new());
    for two in SIZES.windows(2) {
        load.forget();
        if two[1] < two[0] {
            // Whoever leads is one of those that leave: handing over is part of it.
            bench.lead(two[0] - 1)?;
        }
        bench.change_to(two[1])?;
        load.goes_on(100)?;
        stalls.push((format!("{}→{}", two[0], two[1]), load.longest()));
    }
    let seconds = began.elapsed().as_secs_f64();
    let written = load.finish()?;
    bench.end();
    let longest = stalls.iter().map(|(_, stall)| *stall).max().unwrap_or_default();
    let each: Vec<String> = stalls.iter().map(|(step, stall)| format!("{step} {stall:.0?}")).collect();
    let work = format!(
        "1→2→3→5→3→1 under {written} writes and a watch (longest stall {longest:.0?}: {}; 0 lost, every event once)",
        each.join(", ")
    );
    let met = longest <= Duration::from_millis(ELECTION_MS * 3 / 2);
    let reach = "longest stall ≤ 1.5 election timeouts; 0 lost; every event once";
    Ok(alone(&work, Sample { seconds, rss_mib: 0.0 }, reach, met))
}

impl Bench<'_> {
    /// Hands leadership to a member.
    fn lead(&self, to: usize) -> Result<()> {
        let peer = format!("http://127.0.0.1:{}", self.seats[to].peer);
        let id = self.id_of(&peer)?;
        let ask = |at: usize| {
            let settings = Settings::new([self.client_url(at)]);
            self.runtime.block_on(async {
                let client = Client::connect(&settings).await?;
                // Only the leader itself takes that.
                client.move_leader(id).await
            })
        };
        ensure!((0..=to).any(|at| ask(at).is_ok()), "nobody handed leadership to `{}`", self.seats[to].name);
        Ok(())
    }

    /// Brings the cluster to its first `count` members by a file, and ends the agents of those that left.
    fn change_to(&mut self, count: usize) -> Result<()> {
        // A file that keeps few of the members declares no founding.
        let text = self.text(count, "").replace("bootstrap: {id: 1}\n", "");
        let new = self.file("new.yaml", &text)?;
        let mut apply = Command::new(self.quorate);
        let mut apply = apply.args(["cluster", "apply", &new, "--yes", "--quiet"]).stdout(Stdio::null()).spawn()?;
        for at in self.agents.len()..count {
            self.file(&format!("{}.yaml", self.seats[at].name), &text)?;
            let agent = self.agent(at);
            self.agents.push(agent);
        }
        let ended = apply.wait()?;
        ensure!(ended.success(), "`quorate cluster apply` with {count} members ended with {ended}");
        self.agents.truncate(count);
        Ok(())
    }
}

/// Writes and watches, and knows the longest time between two acknowledged writes.
struct Watched {
    shared: Arc<Shared>,
    work: JoinHandle<Result<u64>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    written: AtomicU64,
    told: AtomicU64,
    longest_ms: AtomicU64,
}

impl Watched {
    fn start(url: String) -> Result<Watched> {
        let shared = Arc::new(Shared::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let seen = Arc::clone(&shared);
        let work = std::thread::spawn(move || {
            runtime.block_on(async {
                let settings = settings(&url, Duration::from_millis(ELECTION_MS / 2));
                let from = Client::connect(&settings).await?.header().await?.revision + 1;
                let watcher = watch(&url, from, &seen);
                tokio::pin!(watcher);
                let written = tokio::select! {
                    written = write(&settings, &seen) => written?,
                    ended = &mut watcher => match ended? {},
                };
                // The last ones may still be under way.
                let begun = Instant::now();
                while seen.told.load(Ordering::Relaxed) < written {
                    ensure!(begun.elapsed() < LIMIT, "a write was never told by the watch");
                    if let Ok(ended) = tokio::time::timeout(Duration::from_millis(20), &mut watcher).await {
                        match ended? {}
                    }
                }
                anyhow::Ok(written)
            })
        });
        Ok(Watched { shared, work })
    }

    /// Waits until so many more writes were acknowledged.
    fn goes_on(&self, more: u64) -> Result<()> {
        let (from, begun) = (self.shared.written.load(Ordering::Relaxed), Instant::now());
        while self.shared.written.load(Ordering::Relaxed) < from + more {
            ensure!(begun.elapsed() < LIMIT && !self.work.is_finished(), "writes do not go on");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn forget(&self) {
        self.shared.longest_ms.store(0, Ordering::Relaxed);
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.shared.longest_ms.load(Ordering::Relaxed))
    }

    /// Ends it, and says how many writes were acknowledged; an error if one is lost, or was not told exactly once.
    fn finish(self) -> Result<u64> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.work.join().map_err(|_| anyhow::anyhow!("the load ended in a panic"))?
    }
}

fn settings(url: &str, timeout: Duration) -> Settings {
    let mut settings = Settings::new([url.to_owned()]);
    settings.timeout = timeout;
    settings
}

fn key(number: u64) -> String {
    format!("{PREFIX}{number:08}")
}

async fn write(settings: &Settings, shared: &Shared) -> Result<u64> {
    let client = Client::connect(settings).await?;
    let (mut number, mut last) = (0_u64, Instant::now());
    while !shared.stop.load(Ordering::Relaxed) {
        // No word is no promise: the same key is written again.
        if client.put(key(number), "v").await.is_ok() {
            let stall = u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX);
            shared.longest_ms.fetch_max(stall, Ordering::Relaxed);
            (number, last) = (number + 1, Instant::now());
            shared.written.store(number, Ordering::Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
    }
    let kept = client.with_timeout(Duration::from_secs(10)).list(PREFIX).await?.kvs;
    let lost = (0..number).filter(|number| !kept.iter().any(|kv| kv.key == key(*number).as_bytes())).count();
    ensure!(lost == 0, "{number} writes were acknowledged, and {lost} of them are lost");
    Ok(number)
}

/// Follows every event; one that comes twice or out of its order is an error.
async fn watch(url: &str, mut from: i64, shared: &Shared) -> Result<Infallible> {
    let settings = settings(url, Duration::from_secs(5));
    let range = KeyRange::prefix(PREFIX);
    loop {
        let client = Client::connect(&settings).await?;
        let mut watch = client.watch_range(&range, WatchFrom { revision: from, progress: false }).await?;
        while let Ok(turn) = watch.next().await {
            let events = match turn {
                WatchTurn::Events { events, .. } => events,
                WatchTurn::Progress { .. } => continue,
                WatchTurn::Compacted { oldest } => bail!("compacted up to {oldest}"),
            };
            for event in events {
                let kv = event.kv.context("an event without a key")?;
                ensure!(kv.mod_revision >= from, "revision {} was told twice", kv.mod_revision);
                from = kv.mod_revision + 1;
                let (told, key_is) = (shared.told.load(Ordering::Relaxed), |number| *kv.key == *key(number).as_bytes());
                // A write that nobody answered may have been written, and is written again.
                let again = told.checked_sub(1).is_some_and(key_is);
                ensure!(again || key_is(told), "`{}` was told out of its turn", String::from_utf8_lossy(&kv.key));
                shared.told.store(told + u64::from(!again), Ordering::Relaxed);
            }
        }
    }
}
