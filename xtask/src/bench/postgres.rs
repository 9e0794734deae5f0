//! A group of PostgreSQL servers, side by side with Patroni: coming up, losing the write master's node, moving it on purpose, and a
//! join with many rows under load.
//!
//! **Rule:** both lose a node in the same way (kill -9 of all that runs on it), and both are asked through haproxy until the first
//! write is taken. Rows that were acknowledged are counted once the node is back.

mod group;
mod load;
mod patroni;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use quorate_postgres::sql::{Client, Limits};
use quorate_testkit::{Launch, Port, Running, Seat, Server, Tools, free_port};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::measure::Sample;
use super::{Row, alone, known};
use group::Group;
use load::{Connections, Load, first_write, lost};
use patroni::{Patroni, Speed};

/// Rounds, unless `QUORATE_BENCH_PAIRS` says otherwise.
const ROUNDS: usize = 3;
/// Rows of the join, unless `QUORATE_BENCH_ROWS` says otherwise.
const ROWS: u64 = 1_000_000;
/// How long the loss of a node may take to be made good.
const LIMIT: Duration = Duration::from_secs(90);
/// How long a writer writes before something happens to it.
const SETTLE: Duration = Duration::from_secs(1);
/// How long acknowledged rows may take to arrive everywhere once all nodes are back.
const ARRIVE: Duration = Duration::from_secs(60);
/// Where single writes are numbered from: above all of a writer's.
const SINGLE: u64 = 900_000_000;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn middle(times: &[f64]) -> Sample {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    Sample { seconds: times.get(times.len() / 2).copied().unwrap_or_default(), rss_mib: 0.0 }
}

/// One round: how long it took to come up, how long the loss of the writer's node took, and how many rows were lost.
#[derive(Default)]
struct Rounds {
    up: Vec<f64>,
    over: Vec<f64>,
    lost: usize,
}

impl Rounds {
    fn add(&mut self, (up, over, lost): (f64, f64, usize)) {
        self.up.push(up);
        self.over.push(over);
        self.lost += lost;
    }
}

/// An etcd of one member.
fn etcd(tools: &Tools, dir: &TempDir) -> Result<(Server, u16)> {
    let seat = Seat::new("store");
    let server = Launch::new(tools, &seat, &dir.path().join("etcd"))
        .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
        .arg(format!("--initial-cluster=store={}", seat.peer_url()))
        .start();
    let url = seat.client_url();
    let port = url.rsplit(':').next().unwrap_or_default().parse()?;
    Ok((server, port))
}

/// A Consul of one server.
fn consul() -> (Running, [Port; 4]) {
    let ports: [Port; 4] = std::array::from_fn(|_| free_port());
    let [http, lan, wan, server] = &ports;
    let list =
        format!("ports {{ http = {http} dns = -1 grpc = -1 serf_lan = {lan} serf_wan = {wan} server = {server} }}");
    let quick = "performance { raft_multiplier = 1 } disable_update_check = true";
    let words = [
        "agent",
        "-dev",
        "-bind=127.0.0.1",
        "-client=127.0.0.1",
        "-node=a",
        "-log-level=warn",
        "-hcl",
        &list,
        "-hcl",
        quick,
    ];
    (Running::start(&quorate_testkit::consul(), &words.map(str::to_owned), &[]), ports)
}

/// Measures it.
pub(super) fn rows(quorate: &Path, tools: &Tools) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let dir = TempDir::with_prefix("quorate-bench-store-")?;
    let (_server, port) = etcd(tools, &dir)?;
    let store = |round: usize| format!("group: g{round}\n  store-urls: [\"http://127.0.0.1:{port}\"]");
    let (mut ours, mut default, mut fastest) = (Rounds::default(), Rounds::default(), Rounds::default());
    for round in 0..usize::try_from(number("QUORATE_BENCH_PAIRS", ROUNDS as u64))? {
        ours.add(our_round(&runtime, quorate, &store(round))?);
        default.add(their_round(&runtime, port, Speed::Default)?);
        fastest.add(their_round(&runtime, port, Speed::Fastest)?);
    }
    let mut rows = comparisons(&ours, &default, &fastest)?;
    rows.push(known(by_consul(&runtime, quorate, &ours)?));
    let mut group = Group::new(quorate, 4, &store(1000))?;
    group.declare(3)?;
    (0..3).for_each(|at| group.start(at));
    group.wait_ready(&runtime, 3)?;
    let single = |number: u64| (group::ROWS.insert)(SINGLE + number);
    first_write(&runtime, &group.door(0), &single(0), Instant::now(), LIMIT)?;
    rows.push(known(switchover(&runtime, &group)?));
    rows.push(known(join(&runtime, &mut group)?));
    Ok(rows)
}

fn comparisons(ours: &Rounds, default: &Rounds, fastest: &Rounds) -> Result<Vec<Row>> {
    let version = patroni::versions()?;
    let row = |work: &str, ours: &[f64], theirs: &[f64], speed: Speed, reach: &str, times: f64, more: bool| {
        let (ours, theirs) = (middle(ours), middle(theirs));
        known(Row {
            work: work.to_owned(),
            ours,
            peer: format!("{} ({version})", speed.word()),
            theirs: Some(theirs),
            reach: reach.to_owned(),
            met: theirs.seconds >= times * ours.seconds && more,
        })
    };
    let up = "three empty data dirs to verified replication, write master, poolers and proxies";
    let over = format!(
        "kill -9 of all on the write master's node to the first write through haproxy ({} rows lost; theirs: {} and {})",
        ours.lost, default.lost, fastest.lost
    );
    let kept = ours.lost == 0;
    Ok(vec![
        row(up, &ours.up, &default.up, Speed::Default, "≥ 2× faster", 2.0, true),
        row(up, &ours.up, &fastest.up, Speed::Fastest, "faster", 1.0, true),
        row(&over, &ours.over, &default.over, Speed::Default, "≥ 5× faster, 0 rows lost", 5.0, kept),
        row("the same", &ours.over, &fastest.over, Speed::Fastest, "–", 1.0, kept),
    ])
}

/// Comes up, is written to, loses the node of its write master, and gets it back.
fn our_round(runtime: &Runtime, quorate: &Path, store: &str) -> Result<(f64, f64, usize)> {
    let mut group = Group::new(quorate, 3, store)?;
    group.declare(3)?;
    let began = Instant::now();
    (0..3).for_each(|at| group.start(at));
    group.wait_ready(runtime, 3)?;
    let insert = |number: u64| (group::ROWS.insert)(SINGLE + number);
    first_write(runtime, &group.door(0), &insert(0), began, LIMIT)?;
    let up = began.elapsed().as_secs_f64();
    let writer = group.writer(runtime)?;
    let other = (writer + 1) % 3;
    let load = Load::begin(runtime, group.door(other), group::ROWS, Connections::New, 0);
    std::thread::sleep(SETTLE);
    let began = Instant::now();
    group.kill_node(writer)?;
    let over = first_write(runtime, &group.door(other), &insert(1), began, LIMIT)?;
    std::thread::sleep(SETTLE);
    let mut rows = load.end(runtime)?.acknowledged;
    rows.extend([SINGLE, SINGLE + 1]);
    group.start(writer);
    group.wait_ready(runtime, 3)?;
    let mut missing = 0;
    for at in 0..3 {
        missing += lost(runtime, &group.inside(at), group::ROWS, &rows, ARRIVE)?;
    }
    Ok((up, over, missing))
}

/// The same with Patroni. It says when its replicas stream; a proxy is not waited for.
fn their_round(runtime: &Runtime, etcd: u16, speed: Speed) -> Result<(f64, f64, usize)> {
    let mut patroni = Patroni::new(etcd, speed)?;
    let began = Instant::now();
    for at in 0..3 {
        patroni.start(at)?;
    }
    patroni.wait_ready(runtime)?;
    let up = began.elapsed().as_secs_f64();
    patroni.start_proxy();
    first_write(
        runtime,
        &patroni.door(),
        "CREATE TABLE IF NOT EXISTS bench (id int8 PRIMARY KEY)",
        Instant::now(),
        LIMIT,
    )?;
    wait_table(runtime, &patroni)?;
    let load = Load::begin(runtime, patroni.door(), patroni::ROWS, Connections::New, 0);
    std::thread::sleep(SETTLE);
    let leader = patroni.leader(runtime)?;
    let began = Instant::now();
    patroni.kill_node(leader)?;
    let insert = (patroni::ROWS.insert)(SINGLE + 1);
    let over = first_write(runtime, &patroni.door(), &insert, began, LIMIT)?;
    std::thread::sleep(SETTLE);
    let mut rows = load.end(runtime)?.acknowledged;
    rows.push(SINGLE + 1);
    patroni.start(leader)?;
    patroni.wait_ready(runtime)?;
    let next = patroni.leader(runtime)?;
    Ok((up, over, lost(runtime, &patroni.inside(next), patroni::ROWS, &rows, Duration::ZERO)?))
}

/// Until the table is on every node: Patroni says that replicas stream before they do.
fn wait_table(runtime: &Runtime, patroni: &Patroni) -> Result<()> {
    for at in 0..3 {
        let begun = Instant::now();
        while lost(runtime, &patroni.inside(at), patroni::ROWS, &[], Duration::ZERO).is_err() {
            if begun.elapsed() > LIMIT {
                bail!("the table does not arrive at node {at} of Patroni");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn by_consul(runtime: &Runtime, quorate: &Path, etcd: &Rounds) -> Result<Row> {
    let (_running, ports) = consul();
    let store = format!("store: consul\n  store-urls: [\"http://127.0.0.1:{}\"]", ports[0]);
    let (_, over, missing) = our_round(runtime, quorate, &store)?;
    let slower = over - middle(&etcd.over).seconds;
    let work = format!("the same with Consul as the store: {slower:.1} s slower ({missing} rows lost)");
    Ok(alone(&work, Sample { seconds: over, rss_mib: 0.0 }, "0 rows lost", missing == 0))
}

/// Moves the write master around under load.
fn switchover(runtime: &Runtime, group: &Group) -> Result<Row> {
    let writers = [Connections::Kept, Connections::Kept, Connections::Kept, Connections::New];
    let loads: Vec<Load> = writers
        .into_iter()
        .zip(1_u64..)
        .map(|(how, number)| Load::begin(runtime, group.door(0), group::ROWS, how, number * 10_000_000))
        .collect();
    std::thread::sleep(SETTLE);
    for _ in 0..3 {
        let next = (group.writer(runtime)? + 1) % 3;
        group.pg(&["switchover", "--to", group.name(next)])?;
        std::thread::sleep(SETTLE * 3);
    }
    let (mut failed, mut longest, mut done) = (Vec::new(), Duration::ZERO, 0);
    for load in loads {
        let written = load.end(runtime)?;
        failed.extend(written.failed);
        longest = longest.max(written.longest);
        done += written.acknowledged.len();
    }
    let said = failed.first().map(|first| format!("; first: {first}")).unwrap_or_default();
    let work = format!(
        "planned switchover under load, three times: longest stall of a transaction ({} of {} failed{said})",
        failed.len(),
        done + failed.len()
    );
    let met = failed.is_empty() && longest <= Duration::from_millis(500);
    let sample = Sample { seconds: longest.as_secs_f64(), rss_mib: 0.0 };
    Ok(alone(&work, sample, "0 failed, stall ≤ 500 ms", met))
}

/// Takes a fourth node in while the group is written to.
fn join(runtime: &Runtime, group: &mut Group) -> Result<Row> {
    let rows = number("QUORATE_BENCH_ROWS", ROWS);
    let sql = "CREATE TABLE rdpg.many (id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), text text NOT NULL);\n\
               GRANT SELECT, INSERT ON rdpg.many TO quorate_apps;\n";
    let file = group.file("many.sql", sql)?;
    group.pg(&["ddl", "apply", &file])?;
    fill(runtime, group, rows)?;
    group.declare(4)?;
    for at in 0..3 {
        group.kill_agent(at);
        group.start(at);
    }
    group.wait_ready(runtime, 3)?;
    group.start(3);
    // Proxies lost sight of agents that were all started again at once.
    first_write(runtime, &group.door(0), &(group::ROWS.insert)(SINGLE + 1), Instant::now(), LIMIT)?;
    let loads: Vec<Load> = [Connections::Kept, Connections::New]
        .into_iter()
        .zip(10_u64..)
        .map(|(how, number)| Load::begin(runtime, group.door(0), group::ROWS, how, number * 10_000_000))
        .collect();
    std::thread::sleep(SETTLE);
    let began = Instant::now();
    let said = group.pg(&["join", group.name(3)])?;
    let seconds = began.elapsed().as_secs_f64();
    let mut failed = Vec::new();
    for load in loads {
        failed.extend(load.end(runtime)?.failed);
    }
    let same = said.contains("all rows are the same on every node");
    let first = failed.first().map(|first| format!("; first: {first}")).unwrap_or_default();
    let hashes = if same { "equal" } else { "not equal" };
    let work = format!(
        "join of a fourth node with {rows} rows under load ({} client errors{first}; hashes {hashes})",
        failed.len()
    );
    let sample = Sample { seconds, rss_mib: 0.0 };
    Ok(alone(&work, sample, "no client error, hashes equal", failed.is_empty() && same))
}

/// Rows in pieces, until every node has them.
fn fill(runtime: &Runtime, group: &Group, rows: u64) -> Result<()> {
    let piece = 50_000;
    runtime.block_on(async {
        let limits = Limits::default().statement(Duration::from_secs(120));
        for from in (0..rows).step_by(piece) {
            let to = rows.min(from + piece as u64);
            let client = Client::connect(&group.door(0), limits).await?;
            let sql =
                format!("INSERT INTO rdpg.many (text) SELECT 'row ' || n FROM generate_series({from}, {to} - 1) n");
            client.batch(&sql).await?;
        }
        for at in 0..3 {
            let begun = Instant::now();
            loop {
                let client = Client::connect(&group.inside(at), limits).await?;
                let there: i64 = client.value("SELECT count(*) FROM rdpg.many", &[]).await?;
                if u64::try_from(there)? == rows {
                    break;
                }
                if begun.elapsed() > LIMIT * 4 {
                    bail!("{there} of {rows} rows have arrived at node {at}");
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        Ok(())
    })
}
