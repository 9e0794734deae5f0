//! Clusters by hand: how soon an empty node takes part, beside the same by etcd's own commands. What the proxy of a client node costs
//! is in `proxied.rs`.
//!
//! **Rule:** both joins begin on a cluster of one that has been quiet for as long, and end when the newcomer itself answers a read
//! that a quorum confirms: a learner answers none, so it votes by then, and whoever was to use it can. When the others let it
//! vote is told beside that: etcd's own word for it comes before the newcomer serves anybody.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quorate_testkit::{Hosts, Tools};

use super::certificates::certify;
use super::measure::Sample;
use super::{Row, fresh, known, proxied};

/// Joins of each kind, unless `QUORATE_BENCH_PAIRS` says otherwise.
const PAIRS: usize = 5;
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
    rows.extend(proxied::rows(tools, &work)?.into_iter().map(known));
    Ok(rows)
}

pub(super) fn pairs(usual: usize) -> usize {
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

/// How long a join took, in seconds.
struct Took {
    /// Until the list of the others has it as a voter.
    votes: f64,
    /// Until it answers itself.
    serves: f64,
}

/// The second node of a cluster, empty.
fn join(quorate: &Path, tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    let (mut ours, mut like, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..pairs(PAIRS) {
        ours.push(by_code(quorate, tools, &work.join(format!("code-{round}")))?);
        like.push(by_hand(tools, &work.join(format!("like-{round}")), Like::Ours)?);
        bare.push(by_hand(tools, &work.join(format!("bare-{round}")), Like::Bare)?);
    }
    let theirs =
        [(like, "a restored cluster with mutual TLS"), (bare, "a cluster that etcd has just founded, without TLS")];
    let row = |of: fn(&Took) -> f64, until: &str, most: Option<f64>| {
        let taken = |all: &[Took]| middle(all.iter().map(of).collect());
        let ours = taken(&ours);
        let rows = theirs.iter().map(|(all, what)| {
            let theirs = taken(all);
            Row {
                work: format!("an empty node joins, from `quorate peer join --run` {until}, with mutual TLS"),
                ours,
                peer: format!("`etcdctl member add --learner`, start `etcd`, promote as soon as it lets; {what}"),
                theirs: Some(theirs),
                reach: most.map_or_else(|| "–".to_owned(), |most| format!("≤ {most} times theirs")),
                met: most.is_none_or(|most| ours.seconds <= most * theirs.seconds),
            }
        });
        rows.collect::<Vec<_>>()
    };
    let mut rows = row(|took| took.serves, "until a read through it succeeds", Some(1.5));
    rows.extend(row(|took| took.votes, "until the others let it vote, whoever serves", None));
    Ok(rows)
}

pub(super) fn middle(mut times: Vec<f64>) -> Sample {
    times.sort_by(f64::total_cmp);
    Sample { seconds: times.get(times.len() / 2).copied().unwrap_or_default(), rss_mib: 0.0 }
}

fn by_code(quorate: &Path, tools: &Tools, dir: &Path) -> Result<Took> {
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
    let ctl = |at: usize, args: &[&str]| {
        let mut command = hosts[0].command(&tools.etcdctl);
        let url = format!("https://{}:2379", hosts[at].address());
        command.env("ETCDCTL_API", "3").args(["--endpoints", &url, "--cacert", &pki("client-ca.crt")]);
        command.args(["--cert", &pki("admin.crt"), "--key", &pki("admin.key")]).args(args);
        said(&mut command)
    };
    wait("the first node serves", || ctl(0, &["endpoint", "health"]).is_ok())?;
    std::thread::sleep(QUIET);
    let mut invite = hosts[0].command(quorate);
    let code = said(invite.args(["peer", "invite"]).args(place(0)))?;
    let file = dir.join("code");
    super::write(&file, code.lines().next().unwrap_or_default())?;
    let secret = dir.join("secret");
    super::write(&secret, code.lines().find(|line| line.starts_with("secret: ")).unwrap_or_default())?;
    let files = [
        "--code-file".to_owned(),
        file.display().to_string(),
        "--secret-file".to_owned(),
        secret.display().to_string(),
    ];
    let words = ["peer", "join", "--run"].map(str::to_owned).into_iter();
    let words = words.chain(files).chain(place(1)).chain(own(1));
    let began = Instant::now();
    let second = hosts[1].start(quorate, &words.collect::<Vec<_>>(), &[]);
    let took = taken_in(began, ctl);
    took.with_context(|| format!("{}\n{}", first.log_tail(20), second.log_tail(20)))
}

/// Waits until the second node takes part. `ctl` asks the first node or the second one, by its number.
fn taken_in(began: Instant, ctl: impl Fn(usize, &[&str]) -> Result<String>) -> Result<Took> {
    wait("the newcomer votes", || ctl(0, &["member", "list"]).is_ok_and(|list| voters(&list) == 2))?;
    let votes = began.elapsed().as_secs_f64();
    // What it does not answer at once it is asked again: a client that waits for a connection backs off for longer.
    let read = ["--dial-timeout=200ms", "--command-timeout=500ms", "get", "k"];
    wait("the newcomer serves", || ctl(1, &read).is_ok())?;
    Ok(Took { votes, serves: began.elapsed().as_secs_f64() })
}

fn by_hand(tools: &Tools, dir: &Path, like: Like) -> Result<Took> {
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
    let ctl_at = |at: usize, args: &[&str]| {
        let mut command = hosts[0].command(&tools.etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &url(at, 2379)]);
        if like == Like::Ours {
            command.args(["--cacert", &pki(0, "client-ca.crt"), "--cert", &pki(0, "client.crt")]);
            command.args(["--key", &pki(0, "client.key")]);
        }
        said(command.args(args))
    };
    let ctl = |args: &[&str]| ctl_at(0, args);
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
    let took = taken_in(began, ctl_at);
    drop(first);
    took
}

fn voters(list: &str) -> usize {
    list.lines().filter(|line| line.contains(" started,") && line.ends_with("false")).count()
}

pub(super) fn said(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        bail!("{}", String::from_utf8_lossy(&output.stderr))
    }
}

pub(super) fn wait(what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !ready() {
        ensure!(begun.elapsed() < LIMIT, "waited {LIMIT:?} in vain for: {what}");
        std::thread::sleep(ASK_EVERY);
    }
    Ok(())
}
