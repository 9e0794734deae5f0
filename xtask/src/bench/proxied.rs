//! What the proxy of a client node costs, beside no proxy and beside etcd's.
//!
//! **Rule:** all ways to the same etcd are used in turns of a second, by the same programs, so that whatever the machine does
//! meanwhile hits all of them. Over a network, as clients are: what they send and hear takes a while on its way to etcd, and the
//! proxy is on their side of it. And without one, where every core is busy all the time, so that what a proxy needs is missing
//! elsewhere: with a core for etcd and one for the clients and the proxy beside them, and with everything on all cores.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quorate_agent::proxy::Proxy;
use quorate_etcd::client::{Client, Settings, Tls};
use quorate_plan::peering::Upstream;
use quorate_testkit::{Port, Running, Tools, free_port};
use tokio::runtime::Runtime;

use super::certificates::certify;
use super::measure::Sample;
use super::peers::{middle, pairs, said, wait};
use super::{Row, fresh};

/// Turns of each way, and how long one is; the first ones do not count.
const TURNS: usize = 15;
const WARM_UP: usize = 2;
const TURN: Duration = Duration::from_secs(1);
const CLIENTS: usize = 16;
/// Over a network, so that no core is busy all the time: what is compared is then the way, not the cores.
const CLIENTS_AFAR: usize = 4;
/// One way over that network, as between two zones of a region.
const AFAR: Duration = Duration::from_micros(500);
/// Bytes of a value.
const VALUE: usize = 256;
/// Values of a snapshot, and bytes of each: below what etcd takes in one request.
const BULK: (usize, usize) = (64, 1 << 20);
/// Snapshots of each way.
const COPIES: usize = 7;

/// What is measured with one etcd.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// With TLS, over a network.
    Afar,
    /// A core for etcd, and one for the rest.
    Apart,
    /// Everything on all cores.
    Together,
}

impl Setting {
    fn words(self) -> &'static str {
        match self {
            Setting::Afar => "with TLS, over a network of 0.5 ms each way,",
            Setting::Apart => "a core for etcd and one for the rest,",
            Setting::Together => "etcd and the rest on the same cores,",
        }
    }

    fn clients(self) -> usize {
        if self == Setting::Afar { CLIENTS_AFAR } else { CLIENTS }
    }
}

/// All rows.
pub(super) fn rows(tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores >= 2, "etcd and its clients need a core each");
    let all = format!("0-{}", cores - 1);
    let mut rows = proxies(tools, &work.join("afar"), &all, Setting::Afar)?;
    pin("1")?;
    let apart = proxies(tools, &work.join("apart"), "0", Setting::Apart);
    pin(&all)?;
    rows.extend(apart?);
    rows.extend(proxies(tools, &work.join("together"), &all, Setting::Together)?);
    Ok(rows)
}

/// Lets this process, and what it starts from now on, run on these cores alone.
fn pin(cores: &str) -> Result<()> {
    let own = std::process::id().to_string();
    said(Command::new("taskset").args(["--all-tasks", "--pid", "--cpu-list", cores, &own])).map(|_| ())
}

/// One way to etcd, and what was measured on it.
struct Way {
    clients: Vec<Client>,
    /// Requests in each turn, for puts and gets.
    counts: [Vec<f64>; 2],
    /// Of all requests, in seconds.
    times: [Vec<f64>; 2],
    /// Whose processor time is spent on it beside etcd's and the clients'.
    worker: Worker,
    /// That time for a thousand gets, in each turn.
    spent: Vec<f64>,
}

/// Whose processor time is counted.
enum Worker {
    Nobody,
    /// The thread of our proxy.
    Thread,
    /// A process.
    Process(u32),
}

impl Worker {
    /// Seconds so far.
    fn spent(&self) -> Result<f64> {
        let (tasks, name) = match self {
            Worker::Nobody => return Ok(0.0),
            Worker::Thread => ("/proc/self/task".to_owned(), Some("proxy")),
            Worker::Process(pid) => (format!("/proc/{pid}/task"), None),
        };
        let mut nanoseconds = 0.0;
        for task in std::fs::read_dir(&tasks)?.flatten() {
            // One that has ended meanwhile is not counted; those that matter stay.
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            if name.is_none_or(|name| read("comm").trim() == name) {
                nanoseconds += read("schedstat").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
            }
        }
        Ok(nanoseconds / 1e9)
    }
}

/// The same etcd, directly, through our proxy, and through etcd's.
fn proxies(tools: &Tools, work: &Path, cores: &str, setting: Setting) -> Result<Vec<Row>> {
    fresh(work)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (client, peer, ours, theirs) = (free_port(), free_port(), free_port(), free_port());
    let afar = setting == Setting::Afar;
    let scheme = if afar { "https" } else { "http" };
    let url = |port: u16| format!("{scheme}://127.0.0.1:{port}");
    let pki = |name: &str| work.join("pki").join(name);
    let mut args = vec![
        "--cpu-list".to_owned(),
        cores.to_owned(),
        tools.etcd.display().to_string(),
        format!("--data-dir={}", work.join("proxied").display()),
        format!("--listen-client-urls={}", url(client.number())),
        format!("--advertise-client-urls={}", url(client.number())),
        format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
    ];
    let mut tls = Tls::default();
    if afar {
        certify(&work.join("ca"), "bench", ("n1", "127.0.0.1"), &work.join("pki"))?;
        args.push("--client-cert-auth".to_owned());
        for (flag, name) in [("cert", "client.crt"), ("key", "client.key"), ("trusted-ca", "client-ca.crt")] {
            args.push(format!("--{flag}-file={}", pki(name).display()));
        }
        let file = |name: &str| Some(pki(name));
        tls = Tls { ca: file("client-ca.crt"), cert: file("admin.crt"), key: file("admin.key"), server_name: None };
    }
    let _server = Running::start(Path::new("/usr/bin/taskset"), &args, &[]);
    let at = |port: &Port| SocketAddr::from(([127, 0, 0, 1], port.number()));
    // Each way has a network of its own.
    let direct = if afar { network(at(&client), AFAR)? } else { at(&client) };
    let behind = if afar { network(at(&client), AFAR)? } else { at(&client) };
    let proxy = Proxy::default();
    proxy.set_members(vec![Upstream {
        name: "n1".to_owned(),
        address: behind.to_string(),
        healthy: true,
        rtt_us: None,
    }]);
    proxy.listen(vec![at(&ours)])?;
    let mut ports = vec![(direct.port(), Worker::Nobody), (ours.number(), Worker::Thread)];
    let mut grpc = None;
    if !afar {
        let args = ["grpc-proxy".to_owned(), "start".to_owned(), format!("--endpoints={}", url(client.number()))];
        let at = [format!("--listen-addr=127.0.0.1:{theirs}"), format!("--advertise-client-url=127.0.0.1:{theirs}")];
        let running = Running::start(&tools.etcd, &args.into_iter().chain(at).collect::<Vec<_>>(), &[]);
        ports.push((theirs.number(), Worker::Process(running.pid())));
        grpc = Some(running);
    }
    let mut ways = Vec::new();
    for (port, worker) in ports {
        let settings = Settings { tls: tls.clone(), ..Settings::new([url(port)]) };
        let way = open(&runtime, &settings, setting.clients(), worker);
        ways.push(way.with_context(|| grpc.as_ref().map(|grpc| grpc.log_tail(10)).unwrap_or_default())?);
    }
    for turn in 0..WARM_UP + pairs(TURNS) {
        for what in [0, 1] {
            for way in &mut ways {
                take_turn(&runtime, way, what, turn >= WARM_UP)?;
            }
        }
    }
    let mut rows = compared(setting, &ways);
    if afar {
        rows.push(bulk(&runtime, &ways)?);
    }
    Ok(rows)
}

fn compared(setting: Setting, ways: &[Way]) -> Vec<Row> {
    let [direct, ours, rest @ ..] = ways else { return Vec::new() };
    let mut rows = Vec::new();
    for (what, name) in [(0, "puts"), (1, "gets")] {
        let name = format!("{name}, {}", setting.words());
        let (most, reach) = match setting {
            Setting::Afar => (1.0 / 0.95, "≥ 95 % of direct"),
            // Carrying bytes takes time, and here there is none to spare.
            Setting::Apart | Setting::Together => (f64::MAX, "–"),
        };
        rows.push(throughput(&name, what, ours, direct, ("directly", most, reach)));
        rows.push(p99(&name, what, ours, direct, ("directly", 2.0, "≤ 2 times direct")));
        for theirs in rest {
            rows.push(throughput(&name, what, ours, theirs, ("`etcd grpc-proxy`", 1.0, "not slower")));
            rows.push(p99(&name, what, ours, theirs, ("`etcd grpc-proxy`", 1.0, "not slower")));
        }
    }
    for theirs in rest {
        let (ours, theirs) = (middle(ours.spent.clone()), middle(theirs.spent.clone()));
        rows.push(Row {
            work: format!("processor time of the proxy for 1000 gets, {} of {CLIENTS} clients", setting.words()),
            ours,
            peer: "`etcd grpc-proxy`".into(),
            theirs: Some(theirs),
            reach: "not more".into(),
            met: ours.seconds <= theirs.seconds,
        });
    }
    rows
}

fn open(runtime: &Runtime, settings: &Settings, clients: usize, worker: Worker) -> Result<Way> {
    wait("etcd answers on this way", || {
        runtime.block_on(async { Client::connect(settings).await?.serves().await }).is_ok()
    })?;
    let connected: Result<Vec<Client>> =
        (0..clients).map(|_| Ok(runtime.block_on(Client::connect(settings))?)).collect();
    Ok(Way { clients: connected?, counts: Default::default(), times: Default::default(), worker, spent: Vec::new() })
}

fn take_turn(runtime: &Runtime, way: &mut Way, what: usize, counts: bool) -> Result<()> {
    let before = way.worker.spent()?;
    let until = Instant::now() + TURN;
    let times: Result<Vec<Vec<f64>>> = runtime.block_on(async {
        let mut work = tokio::task::JoinSet::new();
        for (number, client) in way.clients.iter().cloned().enumerate() {
            work.spawn(async move {
                let (mut times, key) = (Vec::new(), format!("bench/{number:02}"));
                while Instant::now() < until {
                    let began = Instant::now();
                    match what {
                        0 => drop(client.put(key.clone(), vec![b'v'; VALUE]).await?),
                        _ => drop(client.get(key.clone()).await?),
                    }
                    times.push(began.elapsed().as_secs_f64());
                }
                anyhow::Ok(times)
            });
        }
        work.join_all().await.into_iter().collect()
    });
    let times: Vec<f64> = times?.into_iter().flatten().collect();
    if counts {
        let count = times.len() as f64;
        if what == 1 {
            way.spent.push((way.worker.spent()? - before) * 1000.0 / count);
        }
        way.counts[what].push(count / TURN.as_secs_f64());
        way.times[what].extend(times);
    }
    Ok(())
}

/// A whole copy of the database, as it is asked for by backups.
fn bulk(runtime: &Runtime, ways: &[Way]) -> Result<Row> {
    let [direct, ours, ..] = ways else { anyhow::bail!("there are two ways at least") };
    let writer = direct.clients.first().context("a way has clients")?;
    for number in 0..BULK.0 {
        runtime.block_on(writer.put(format!("bulk/{number:03}"), vec![b'v'; BULK.1]))?;
    }
    let copy = |way: &Way| -> Result<f64> {
        let (client, began) = (way.clients.first().context("a way has clients")?, Instant::now());
        let bytes = runtime.block_on(async {
            let (mut stream, mut bytes) = (client.snapshot().await?, 0);
            while let Some(piece) = stream.next().await? {
                bytes += piece.len();
            }
            anyhow::Ok(bytes)
        })?;
        ensure!(bytes > BULK.0 * BULK.1, "a snapshot of {bytes} bytes lacks some");
        Ok(began.elapsed().as_secs_f64())
    };
    let (mut through, mut past) = (Vec::new(), Vec::new());
    for _ in 0..pairs(COPIES) {
        past.push(copy(direct)?);
        through.push(copy(ours)?);
    }
    let (ours, theirs) = (middle(through), middle(past));
    Ok(Row {
        work: format!(
            "a snapshot of {} MiB, {} through the proxy ({:.1} % of theirs)",
            (BULK.0 * BULK.1) >> 20,
            Setting::Afar.words(),
            100.0 * theirs.seconds / ours.seconds
        ),
        ours,
        peer: "directly".into(),
        theirs: Some(theirs),
        reach: "≥ 95 % of direct".into(),
        met: ours.seconds <= theirs.seconds / 0.95,
    })
}

/// A network in between: what is sent to the address that is returned arrives a while later at the other one, and what comes back
/// too. The kernel's own (netem) is not everywhere.
fn network(to: SocketAddr, delay: Duration) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let Ok(near) = near else { return };
            let Ok(far) = TcpStream::connect(to) else { continue };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let (Ok(from_near), Ok(from_far)) = (near.try_clone(), far.try_clone()) else { continue };
            later(from_near, far, delay);
            later(from_far, near, delay);
        }
    });
    Ok(at)
}

/// One way, on two threads: what was taken is held for its time while the next is taken.
fn later(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (held, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    let piece = buffer.get(..length).unwrap_or_default().to_vec();
                    if held.send((Instant::now() + delay, piece)).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    std::thread::spawn(move || {
        for (at, piece) in due {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
}

/// How long a thousand requests take; each turn is compared with the one beside it.
fn throughput(name: &str, what: usize, ours: &Way, theirs: &Way, (peer, most, reach): (&str, f64, &str)) -> Row {
    let per_thousand = |way: &Way| middle(way.counts[what].iter().map(|rate| 1000.0 / rate).collect());
    let ratios = ours.counts[what].iter().zip(&theirs.counts[what]).map(|(ours, theirs)| theirs / ours);
    let ratio = middle(ratios.collect()).seconds;
    Row {
        work: format!(
            "1000 {name} by {} clients through the proxy ({:.1} % of theirs)",
            ours.clients.len(),
            100.0 / ratio
        ),
        ours: per_thousand(ours),
        peer: peer.into(),
        theirs: Some(per_thousand(theirs)),
        reach: reach.into(),
        met: ratio <= most,
    }
}

fn p99(name: &str, what: usize, ours: &Way, theirs: &Way, (peer, most, reach): (&str, f64, &str)) -> Row {
    let worst = |way: &Way| {
        let mut times = way.times[what].clone();
        times.sort_by(f64::total_cmp);
        Sample { seconds: times.get(times.len() * 99 / 100).copied().unwrap_or_default(), rss_mib: 0.0 }
    };
    let clients = ours.clients.len();
    let (ours, theirs) = (worst(ours), worst(theirs));
    Row {
        work: format!("p99 of {name} by {clients} clients through the proxy"),
        ours,
        peer: peer.into(),
        theirs: Some(theirs),
        reach: reach.into(),
        met: ours.seconds <= most * theirs.seconds,
    }
}
