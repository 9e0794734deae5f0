//! Clusters by hand: how soon an empty node votes, beside the same by etcd's own commands; and what the proxy of a client node costs,
//! beside no proxy and beside etcd's.
//!
//! **Rule:** all ways to the same etcd are used in turns of a second, by the same programs, so that whatever the machine does
//! meanwhile hits all of them. They are measured twice: with a core for etcd and one for the clients and the proxy beside them, as
//! on two machines; and with everything on all cores, where whatever a proxy needs is taken from etcd. Both joins begin on a cluster of one that has been quiet for as long, and end when the newcomer votes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quorate_agent::proxy::Proxy;
use quorate_etcd::client::{Client, Settings};
use quorate_plan::peering::Upstream;
use quorate_testkit::{Hosts, Port, Running, Tools, free_port};
use tokio::runtime::Runtime;

use super::certificates::certify;
use super::measure::Sample;
use super::{Row, fresh, known};

/// Joins of each kind, unless `QUORATE_BENCH_PAIRS` says otherwise.
const PAIRS: usize = 5;
/// Turns of each way, and how long one is; the first ones do not count.
const TURNS: usize = 15;
const WARM_UP: usize = 2;
const TURN: Duration = Duration::from_secs(1);
const WRITERS: usize = 16;
/// Bytes of a value.
const VALUE: usize = 256;
const LIMIT: Duration = Duration::from_secs(120);
const ASK_EVERY: Duration = Duration::from_millis(20);
/// etcd changes members only after five quiet seconds, whoever asks.
const QUIET: Duration = Duration::from_secs(6);

/// Measures all of it. Hosts of network namespaces need root.
pub(super) fn rows(quorate: &Path, tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    ensure!(rustix::process::geteuid().is_root(), "hosts of network namespaces need root");
    let work = work.join("peers");
    fresh(&work)?;
    let mut rows: Vec<Row> = join(quorate, tools, &work)?.into_iter().map(known).collect();
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores >= 2, "etcd and its clients need a core each");
    pin("1")?;
    let apart = proxies(tools, &work.join("apart"), "0", true);
    pin(&format!("0-{}", cores - 1))?;
    rows.extend(apart?.into_iter().map(known));
    rows.extend(proxies(tools, &work.join("together"), &format!("0-{}", cores - 1), false)?.into_iter().map(known));
    Ok(rows)
}

/// Lets this process, and what it starts from now on, run on these cores alone.
fn pin(cores: &str) -> Result<()> {
    let own = std::process::id().to_string();
    said(Command::new("taskset").args(["--all-tasks", "--pid", "--cpu-list", cores, &own])).map(|_| ())
}

fn pairs(usual: usize) -> usize {
    std::env::var("QUORATE_BENCH_PAIRS").ok().and_then(|pairs| pairs.parse().ok()).unwrap_or(usual)
}

/// What the cluster is like that is joined by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Like {
    /// Like ours: with mutual TLS, and with a log whose beginning is gone, as after every restore and some ten thousand writes.
    Ours,
    /// As quick as can be: etcd has just founded it, and anybody may talk to it.
    Bare,
}

/// The second node of a cluster, empty.
fn join(quorate: &Path, tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    let (mut ours, mut like, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..pairs(PAIRS) {
        ours.push(by_code(quorate, tools, &work.join(format!("code-{round}")))?);
        like.push(by_hand(tools, &work.join(format!("like-{round}")), Like::Ours)?);
        bare.push(by_hand(tools, &work.join(format!("bare-{round}")), Like::Bare)?);
    }
    let ours = middle(ours);
    let row = |theirs: Vec<f64>, what: &str| {
        let theirs = middle(theirs);
        Row {
            work: "an empty node joins, from `quorate peer join --run` until it votes and serves, with mutual TLS"
                .into(),
            ours,
            peer: format!("`etcdctl member add --learner`, start `etcd`, promote as soon as it lets; {what}"),
            theirs: Some(theirs),
            reach: "≤ 1.5 times theirs".into(),
            met: ours.seconds <= 1.5 * theirs.seconds,
        }
    };
    Ok(vec![
        row(like, "a restored cluster with mutual TLS"),
        row(bare, "a cluster that etcd has just founded, without TLS"),
    ])
}

fn middle(mut times: Vec<f64>) -> Sample {
    times.sort_by(f64::total_cmp);
    Sample { seconds: times.get(times.len() / 2).copied().unwrap_or_default(), rss_mib: 0.0 }
}

fn by_code(quorate: &Path, tools: &Tools, dir: &Path) -> Result<f64> {
    fresh(dir)?;
    let hosts = Hosts::new(2);
    let state = dir.join("state").display().to_string();
    let place = |at: usize| vec!["--state-dir".to_owned(), state.clone(), "--name".to_owned(), format!("n{}", at + 1)];
    let own = |at: usize| {
        let data = dir.join(format!("data-{at}")).display().to_string();
        let (address, binary) = (hosts[at].address().to_string(), tools.etcd.display().to_string());
        ["--listen", &address, "--data-dir", &data, "--etcd-binary", &binary].map(str::to_owned).to_vec()
    };
    let first = ["run", "--standalone", "--box", "off"].map(str::to_owned).into_iter().chain(place(0)).chain(own(0));
    let first = hosts[0].start(quorate, &first.collect::<Vec<_>>(), &[]);
    let pki = |name: &str| dir.join("state/n1/pki").join(name).display().to_string();
    let ctl = |args: &[&str]| {
        let mut command = hosts[0].command(&tools.etcdctl);
        let url = format!("https://{}:2379", hosts[0].address());
        command.env("ETCDCTL_API", "3").args(["--endpoints", &url, "--cacert", &pki("client-ca.crt")]);
        command.args(["--cert", &pki("admin.crt"), "--key", &pki("admin.key")]).args(args);
        said(&mut command)
    };
    wait("the first node serves", || ctl(&["endpoint", "health"]).is_ok())?;
    std::thread::sleep(QUIET);
    let mut invite = hosts[0].command(quorate);
    let code = said(invite.args(["peer", "invite"]).args(place(0)))?;
    let file = dir.join("code");
    super::write(&file, code.lines().next().unwrap_or_default())?;
    let words = ["peer", "join", "--run", "--code-file"].map(str::to_owned).into_iter();
    let words = words.chain([file.display().to_string()]).chain(place(1)).chain(own(1));
    let began = Instant::now();
    let second = hosts[1].start(quorate, &words.collect::<Vec<_>>(), &[]);
    let voted = wait("the newcomer votes", || ctl(&["member", "list"]).is_ok_and(|list| voters(&list) == 2));
    let seconds = began.elapsed().as_secs_f64();
    voted.with_context(|| format!("{}\n{}", first.log_tail(20), second.log_tail(20)))?;
    Ok(seconds)
}

fn by_hand(tools: &Tools, dir: &Path, like: Like) -> Result<f64> {
    fresh(dir)?;
    let hosts = Hosts::new(2);
    let scheme = if like == Like::Ours { "https" } else { "http" };
    let url = |at: usize, port: u16| format!("{scheme}://{}:{port}", hosts[at].address());
    let pki = |at: usize, name: &str| dir.join(format!("pki-{at}")).join(name).display().to_string();
    if like == Like::Ours {
        for at in 0..2 {
            let (name, address) = (format!("n{}", at + 1), hosts[at].address().to_string());
            certify(&dir.join("ca"), "bench", (&name, &address), &dir.join(format!("pki-{at}")))?;
        }
    }
    let start = |at: usize, data: &str, list: &str, state: &str| {
        let mut args = vec![
            format!("--name=n{}", at + 1),
            format!("--data-dir={}", dir.join(data).display()),
            format!("--listen-client-urls={}", url(at, 2379)),
            format!("--advertise-client-urls={}", url(at, 2379)),
            format!("--listen-peer-urls={}", url(at, 2380)),
            format!("--initial-advertise-peer-urls={}", url(at, 2380)),
            format!("--initial-cluster={list}"),
            format!("--initial-cluster-state={state}"),
        ];
        for (flag, name) in [("", "client"), ("peer-", "peer")].into_iter().filter(|_| like == Like::Ours) {
            args.push(format!("--{flag}cert-file={}", pki(at, &format!("{name}.crt"))));
            args.push(format!("--{flag}key-file={}", pki(at, &format!("{name}.key"))));
            args.push(format!("--{flag}trusted-ca-file={}", pki(at, &format!("{name}-ca.crt"))));
            args.push(format!("--{flag}client-cert-auth"));
        }
        hosts[at].start(&tools.etcd, &args, &[])
    };
    let ctl = |args: &[&str]| {
        let mut command = hosts[0].command(&tools.etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &url(0, 2379)]);
        if like == Like::Ours {
            command.args(["--cacert", &pki(0, "client-ca.crt"), "--cert", &pki(0, "client.crt")]);
            command.args(["--key", &pki(0, "client.key")]);
        }
        said(command.args(args))
    };
    let list = format!("n1={}", url(0, 2380));
    let mut first = start(0, "founded", &list, "new");
    wait("the first member serves", || ctl(&["endpoint", "health"]).is_ok())?;
    if like == Like::Ours {
        let (file, data) = (dir.join("saved").display().to_string(), dir.join("restored").display().to_string());
        ctl(&["put", "k", "v"])?;
        ctl(&["snapshot", "save", &file])?;
        first.kill();
        let mut restore = Command::new(&tools.etcdutl);
        restore.args(["snapshot", "restore", &file, "--name", "n1", "--data-dir", &data, "--initial-cluster", &list]);
        said(restore.args(["--initial-advertise-peer-urls", &url(0, 2380)]))?;
        first = start(0, "restored", &list, "new");
        wait("the restored member serves", || ctl(&["endpoint", "health"]).is_ok())?;
    }
    std::thread::sleep(QUIET);
    let began = Instant::now();
    let added = ctl(&["member", "add", "n2", "--learner", &format!("--peer-urls={}", url(1, 2380))])?;
    let id = added.split_whitespace().nth(1).context("`etcdctl member add` names no member")?.to_owned();
    let _second = start(1, "joined", &format!("n1={},n2={}", url(0, 2380), url(1, 2380)), "existing");
    wait("the learner is promoted", || ctl(&["member", "promote", &id]).is_ok())?;
    wait("the newcomer votes", || ctl(&["member", "list"]).is_ok_and(|list| voters(&list) == 2))?;
    let seconds = began.elapsed().as_secs_f64();
    drop(first);
    Ok(seconds)
}

fn voters(list: &str) -> usize {
    list.lines().filter(|line| line.contains(" started,") && line.ends_with("false")).count()
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        bail!("{}", String::from_utf8_lossy(&output.stderr))
    }
}

fn wait(what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !ready() {
        ensure!(begun.elapsed() < LIMIT, "waited {LIMIT:?} in vain for: {what}");
        std::thread::sleep(ASK_EVERY);
    }
    Ok(())
}

/// One way to etcd, and what was measured on it.
struct Way {
    clients: Vec<Client>,
    /// Requests in each turn, for puts and gets.
    counts: [Vec<f64>; 2],
    /// Of all requests, in seconds.
    times: [Vec<f64>; 2],
}

/// The same etcd, directly, through our proxy, and through etcd's.
fn proxies(tools: &Tools, work: &Path, cores: &str, apart: bool) -> Result<Vec<Row>> {
    fresh(work)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (client, peer, ours, theirs) = (free_port(), free_port(), free_port(), free_port());
    let url = |port: &Port| format!("http://127.0.0.1:{port}");
    let args = [
        "--cpu-list".to_owned(),
        cores.to_owned(),
        tools.etcd.display().to_string(),
        format!("--data-dir={}", work.join("proxied").display()),
        format!("--listen-client-urls={}", url(&client)),
        format!("--advertise-client-urls={}", url(&client)),
        format!("--listen-peer-urls={}", url(&peer)),
    ];
    let _server = Running::start(Path::new("/usr/bin/taskset"), &args, &[]);
    let args = ["grpc-proxy".to_owned(), "start".to_owned(), format!("--endpoints={}", url(&client))];
    let at = [format!("--listen-addr=127.0.0.1:{theirs}"), format!("--advertise-client-url=127.0.0.1:{theirs}")];
    let grpc = Running::start(&tools.etcd, &args.into_iter().chain(at).collect::<Vec<_>>(), &[]);
    let proxy = Proxy::default();
    let address = format!("127.0.0.1:{client}");
    proxy.set_members(vec![Upstream { name: "n1".to_owned(), address, healthy: true, rtt_us: None }]);
    proxy.listen(vec![format!("127.0.0.1:{ours}").parse()?])?;
    let mut ways = Vec::new();
    for port in [&client, &ours, &theirs] {
        let way = Way { clients: Vec::new(), counts: Default::default(), times: Default::default() };
        ways.push(open(&runtime, way, &url(port)).with_context(|| grpc.log_tail(10))?);
    }
    for turn in 0..WARM_UP + pairs(TURNS) {
        for what in [0, 1] {
            for way in &mut ways {
                take_turn(&runtime, way, what, turn >= WARM_UP)?;
            }
        }
    }
    let [direct, ours, theirs] = <[Way; 3]>::try_from(ways).map_err(|_| anyhow::anyhow!("three ways were opened"))?;
    let mut rows = Vec::new();
    for (what, name) in [(0, "puts"), (1, "gets")] {
        let (name, most, reach) = match apart {
            true => (format!("{name}, a core for etcd and one for the rest,"), 1.0 / 0.95, "≥ 95 % of direct"),
            false => (format!("{name}, etcd and the rest on the same cores,"), f64::MAX, "–"),
        };
        rows.push(throughput(&name, what, &ours, &direct, ("directly", most, reach)));
        rows.push(throughput(&name, what, &ours, &theirs, ("`etcd grpc-proxy`", 1.0, "not slower")));
        rows.push(p99(&name, what, &ours, &direct, ("directly", 2.0, "≤ 2 times direct")));
        rows.push(p99(&name, what, &ours, &theirs, ("`etcd grpc-proxy`", 1.0, "not slower")));
    }
    Ok(rows)
}

fn open(runtime: &Runtime, mut way: Way, url: &str) -> Result<Way> {
    wait("etcd answers on this way", || {
        runtime.block_on(async { Client::connect(&Settings::new([url])).await?.serves().await }).is_ok()
    })?;
    for _ in 0..WRITERS {
        way.clients.push(runtime.block_on(Client::connect(&Settings::new([url])))?);
    }
    Ok(way)
}

fn take_turn(runtime: &Runtime, way: &mut Way, what: usize, counts: bool) -> Result<()> {
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
        way.counts[what].push(times.len() as f64 / TURN.as_secs_f64());
        way.times[what].extend(times);
    }
    Ok(())
}

/// How long a thousand requests take; each turn is compared with the one beside it.
fn throughput(name: &str, what: usize, ours: &Way, theirs: &Way, (peer, most, reach): (&str, f64, &str)) -> Row {
    let per_thousand = |way: &Way| middle(way.counts[what].iter().map(|rate| 1000.0 / rate).collect());
    let ratios = ours.counts[what].iter().zip(&theirs.counts[what]).map(|(ours, theirs)| theirs / ours);
    let ratio = middle(ratios.collect()).seconds;
    Row {
        work: format!("1000 {name} by {WRITERS} clients through the proxy ({:.1} % of theirs)", 100.0 / ratio),
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
    let (ours, theirs) = (worst(ours), worst(theirs));
    Row {
        work: format!("p99 of {name} by {WRITERS} clients through the proxy"),
        ours,
        peer: peer.into(),
        theirs: Some(theirs),
        reach: reach.into(),
        met: ours.seconds <= most * theirs.seconds,
    }
}
