//! Changes of a cluster that lives, under writes: from one member to five and back, a fourth member for 1 GiB of data, by a file
//! and by hand, and new settings for three members in turn.
//!
//! **Rule:** both ways begin on the same cluster and end at the same condition: the newcomer votes, and its Status has reached the
//! leader's commit of that moment. Both are asked every 50 ms.

mod steps;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quorate_etcd::client::{Client, Consistency, Settings};
use quorate_testkit::{Port, Running, Tools, free_port};
use tokio::runtime::Runtime;

use super::measure::Sample;
use super::{Row, alone, fresh, known};

/// Pairs, unless `QUORATE_BENCH_PAIRS` says otherwise: each copies all the data twice.
const PAIRS: usize = 3;
const ASK_EVERY: Duration = Duration::from_millis(50);
const LIMIT: Duration = Duration::from_secs(120);
/// Keys, and bytes of each: 1 GiB.
const KEYS: usize = 1024;
const VALUE_BYTES: usize = 1 << 20;
const ELECTION_MS: u64 = 1000;

struct Bench<'a> {
    quorate: &'a Path,
    tools: &'a Tools,
    dir: PathBuf,
    seats: Vec<Seat>,
    agents: Vec<Running>,
    runtime: Runtime,
}

struct Seat {
    name: String,
    client: Port,
    peer: Port,
    agent: Port,
    health: Port,
}

/// Measures it.
pub(super) fn rows(quorate: &Path, tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    let steps = known(steps::row(quorate, tools, work)?);
    let mut bench = Bench::new(quorate, tools, work.join("change"), 4)?;
    bench.found(3)?;
    bench.fill()?;
    let rows = vec![known(bench.grow()?), known(bench.restarts()?), steps];
    bench.end();
    Ok(rows)
}

impl<'a> Bench<'a> {
    fn new(quorate: &'a Path, tools: &'a Tools, dir: PathBuf, seats: usize) -> Result<Bench<'a>> {
        let seat = |number: usize| Seat {
            name: format!("n{number}"),
            client: free_port(),
            peer: free_port(),
            agent: free_port(),
            health: free_port(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        fresh(&dir)?;
        Ok(Bench { quorate, tools, dir, seats: (1..=seats).map(seat).collect(), agents: Vec::new(), runtime })
    }
}

impl Bench<'_> {
    fn client_url(&self, at: usize) -> String {
        format!("http://127.0.0.1:{}", self.seats[at].client)
    }

    fn text(&self, count: usize, more: &str) -> String {
        let dir = self.dir.display();
        let member = |seat: &Seat| {
            let Seat { name, client, peer, agent, health } = seat;
            format!(
                "  - {{name: {name}, peer-urls: [\"http://127.0.0.1:{peer}\"], client-urls: \
                 [\"http://127.0.0.1:{client}\"], agent-url: \"http://127.0.0.1:{agent}\", listen-agent-url: \
                 \"http://127.0.0.1:{agent}\", listen-health-url: \"http://127.0.0.1:{health}\", data-dir: \
                 {dir}/data-{name}}}\n"
            )
        };
        let members: String = self.seats.iter().take(count).map(member).collect();
        format!(
            "token: bench\nbootstrap: {{id: 1}}\nplaintext: true\nmembers:\n{members}agent: {{state-dir: {dir}/state, etcd-binary: \
             {}}}\netcd: {{heartbeat-interval: 100, election-timeout: {ELECTION_MS}, quota-backend-bytes: 4294967296{more}}}\n",
            self.tools.etcd.display()
        )
    }

    fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.dir.join(name);
        super::write(&path, text)?;
        Ok(path.display().to_string())
    }

    fn agent(&self, at: usize) -> Running {
        let name = &self.seats[at].name;
        let file = self.dir.join(format!("{name}.yaml")).display().to_string();
        let args = ["run", "--config", &file, "--name", name].map(str::to_owned);
        Running::start(self.quorate, &args, &[])
    }

    fn found(&mut self, members: usize) -> Result<()> {
        let text = self.text(members, "");
        for at in 0..members {
            self.file(&format!("{}.yaml", self.seats[at].name), &text)?;
            let agent = self.agent(at);
            self.agents.push(agent);
        }
        let file = self.dir.join("n1.yaml").display().to_string();
        self.quorate(&["cluster", "bootstrap", &file])
    }

    fn quorate(&self, args: &[&str]) -> Result<()> {
        let output = Command::new(self.quorate).args(args).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("`quorate {}` ended with {}: {said}", args.join(" "), output.status);
        }
        Ok(())
    }

    fn fill(&self) -> Result<()> {
        let settings = Settings::new([self.client_url(0)]);
        self.runtime.block_on(async {
            let client = Client::connect(&settings).await?;
            for number in 0..KEYS {
                // Bytes that do not compress, though nobody tries.
                let value: Vec<u8> = (0..VALUE_BYTES).map(|at| ((at * 31 + number * 17) >> 3) as u8).collect();
                client.put(format!("data/{number:06}"), value).await?;
            }
            anyhow::Ok(())
        })
    }

    /// From three to four and back, by turns with a file and by hand.
    fn grow(&mut self) -> Result<Row> {
        let pairs = std::env::var("QUORATE_BENCH_PAIRS").ok().and_then(|pairs| pairs.parse().ok()).unwrap_or(PAIRS);
        let load = Load::start(self.client_url(0))?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            ours.push(self.by_file()?);
            theirs.push(self.by_hand()?);
        }
        let slowest = load.finish()?;
        ours.sort_by(f64::total_cmp);
        theirs.sort_by(f64::total_cmp);
        let middle = |times: &[f64]| Sample { seconds: times[times.len() / 2], rss_mib: 0.0 };
        let (ours, theirs) = (middle(&ours), middle(&theirs));
        Ok(Row {
            work: format!("3→4 with 1 GiB under writes, from apply to a voter (slowest write: {slowest:.2?})"),
            ours,
            peer: "`etcdctl member add --learner`, start `etcd`, promote as soon as it lets".into(),
            theirs: Some(theirs),
            reach: "≤ 1.1 times theirs; no write slower than 1 s".into(),
            met: ours.seconds <= 1.1 * theirs.seconds && slowest < Duration::from_secs(1),
        })
    }

    fn by_file(&mut self) -> Result<f64> {
        self.clear_fourth()?;
        let text = self.text(4, "");
        let new = self.file("new.yaml", &text)?;
        self.file("n4.yaml", &text)?;
        self.quiet()?;
        let began = Instant::now();
        let agent = self.agent(3);
        let mut apply = Command::new(self.quorate).args(["cluster", "apply", &new, "--yes", "--quiet"]).spawn()?;
        self.wait_voter()?;
        let seconds = began.elapsed().as_secs_f64();
        apply.wait()?;
        let back = self.file("back.yaml", &self.text(3, ""))?;
        self.quorate(&["cluster", "apply", &back, "--yes", "--quiet"])?;
        drop(agent);
        Ok(seconds)
    }

    /// The agents hold still meanwhile: they would remove a member that their file does not declare.
    fn by_hand(&mut self) -> Result<f64> {
        self.signal_agents(rustix::process::Signal::STOP);
        let seconds = self.by_hand_alone();
        self.signal_agents(rustix::process::Signal::CONT);
        seconds
    }

    fn by_hand_alone(&mut self) -> Result<f64> {
        self.clear_fourth()?;
        self.quiet()?;
        let seat = &self.seats[3];
        let peer = format!("http://127.0.0.1:{}", seat.peer);
        let began = Instant::now();
        self.ctl(&["member", "add", "n4", "--learner", &format!("--peer-urls={peer}")])?;
        let list: Vec<String> =
            self.seats.iter().map(|seat| format!("{}=http://127.0.0.1:{}", seat.name, seat.peer)).collect();
        let client = self.client_url(3);
        let args = [
            "--name=n4".to_owned(),
            format!("--data-dir={}", self.dir.join("data-n4").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={}", list.join(",")),
            "--initial-cluster-state=existing".to_owned(),
            "--quota-backend-bytes=4294967296".to_owned(),
            "--heartbeat-interval=100".to_owned(),
            format!("--election-timeout={ELECTION_MS}"),
        ];
        let server = Running::start(&self.tools.etcd, &args, &[]);
        let id = self.id_of(&peer)?;
        let begun = Instant::now();
        while self.ctl(&["member", "promote", &format!("{id:x}")]).is_err() {
            if begun.elapsed() > LIMIT {
                bail!("it is not promoted within {LIMIT:?}\n{}", server.log_tail(20));
            }
            std::thread::sleep(ASK_EVERY);
        }
        self.wait_voter()?;
        let seconds = began.elapsed().as_secs_f64();
        self.ctl(&["member", "remove", &format!("{id:x}")])?;
        drop(server);
        Ok(seconds)
    }

    fn ctl(&self, args: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.tools.etcdctl);
        let output = command.env("ETCDCTL_API", "3").args(["--endpoints", &self.client_url(0)]).args(args).output()?;
        if output.status.success() { Ok(()) } else { bail!("{}", String::from_utf8_lossy(&output.stderr)) }
    }

    fn clear_fourth(&self) -> Result<()> {
        for name in ["data-n4", "state/n4"] {
            fresh(&self.dir.join(name))?;
        }
        Ok(())
    }

    /// etcd changes members only after five quiet seconds, whoever asks.
    fn quiet(&self) -> Result<()> {
        std::thread::sleep(Duration::from_secs(6));
        Ok(())
    }

    fn id_of(&self, peer: &str) -> Result<u64> {
        let settings = Settings::new([self.client_url(0)]);
        let list = self
            .runtime
            .block_on(async { Client::connect(&settings).await?.member_list(Consistency::Linearizable).await })?;
        let found = list.members.iter().find(|member| member.peer_urls.iter().any(|url| url == peer));
        found.map(|member| member.id).context("the newcomer is not listed")
    }

    /// Until four vote, and the fourth has what the leader had committed when that was seen.
    fn wait_voter(&self) -> Result<()> {
        let (first, fourth) = (Settings::new([self.client_url(0)]), Settings::new([self.client_url(3)]));
        let begun = Instant::now();
        let mut wanted = None;
        loop {
            let look = async {
                let client = Client::connect(&first).await?;
                let list = client.member_list(Consistency::Linearizable).await?;
                let votes = list.members.iter().filter(|member| !member.is_learner).count() == 4;
                let commit = client.status().await?.raft_index;
                let its = Client::connect(&fourth).await?.status().await?.raft_index;
                anyhow::Ok((votes, commit, its))
            };
            if let Ok((true, commit, its)) = self.runtime.block_on(look)
                && its >= *wanted.get_or_insert(commit)
            {
                return Ok(());
            }
            if begun.elapsed() > LIMIT {
                bail!("the fourth does not vote within {LIMIT:?}");
            }
            std::thread::sleep(ASK_EVERY);
        }
    }

    /// Another setting of etcd, for three members in turn.
    fn restarts(&mut self) -> Result<Row> {
        let new = self.file("settings.yaml", &self.text(3, ", snapshot-count: 20000"))?;
        let urls: Vec<String> = (0..3).map(|at| self.client_url(at)).collect();
        let load = Load::through(urls)?;
        let began = Instant::now();
        self.quorate(&["cluster", "apply", &new, "--yes", "--quiet"])?;
        let seconds = began.elapsed().as_secs_f64();
        let stall = load.finish()?;
        let work =
            format!("new settings for 3 members with 1 GiB in turn, under writes (longest stall: {stall:.2?}, 0 lost)");
        let limit = Duration::from_millis(ELECTION_MS * 3 / 2);
        Ok(alone(
            &work,
            Sample { seconds, rss_mib: 0.0 },
            "longest stall ≤ 1.5 election timeouts; 0 lost",
            stall <= limit,
        ))
    }

    fn signal_agents(&self, signal: rustix::process::Signal) {
        for agent in &self.agents {
            agent.signal(signal);
        }
    }

    fn end(&mut self) {
        self.signal_agents(rustix::process::Signal::TERM);
        let began = Instant::now();
        while self.agents.iter_mut().any(|one| one.ended().is_none()) && began.elapsed() < LIMIT {
            std::thread::sleep(ASK_EVERY);
        }
    }
}

/// Writes without pause, and knows the longest time between two that were acknowledged.
struct Load {
    stop: Arc<AtomicBool>,
    work: JoinHandle<Result<Duration>>,
}

impl Load {
    fn start(url: String) -> Result<Load> {
        Load::through(vec![url])
    }

    fn through(urls: Vec<String>) -> Result<Load> {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = std::thread::spawn(move || runtime.block_on(write(urls, &ends)));
        Ok(Load { stop, work })
    }

    fn finish(self) -> Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.work.join().map_err(|_| anyhow::anyhow!("the load ended in a panic"))?
    }
}

async fn write(urls: Vec<String>, stop: &AtomicBool) -> Result<Duration> {
    let mut settings = Settings::new(urls);
    settings.timeout = Duration::from_millis(300);
    let client = Client::connect(&settings).await?;
    let (mut number, mut longest, mut last) = (0_u64, Duration::ZERO, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        if client.put(format!("load/{number:08}"), "v").await.is_ok() {
            longest = longest.max(last.elapsed());
            (number, last) = (number + 1, Instant::now());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    let kept = client.with_timeout(Duration::from_secs(10)).list("load/").await?.kvs.len() as u64;
    if kept < number {
        bail!("{number} writes were acknowledged, and {kept} are there");
    }
    Ok(longest)
}
