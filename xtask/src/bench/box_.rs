//! The box beside runc and beside no box: how soon a program runs, what it costs etcd's writers, what the shim takes.
//!
//! **Rule:** both sides start the same program with the same files, in turns. The two etcds run at the same time and are
//! written to in turns, and each turn is compared with the one beside it, so that whatever the machine does meanwhile hits both.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quorate_etcd::client::messages::PutRequest;
use quorate_etcd::client::{Client, Settings};
use quorate_host::logs::Rotation;
use quorate_host::sandbox::observe_machine;
use quorate_host::shim::{Rung, Running, Send, ShimSpec, StopOrder, spawn_boxed};
use quorate_host::state::StateDir;
use quorate_plan::boxes::{BoxSpec, Level, plan_box};
use quorate_testkit::{Seat, Tools};
use serde_json::{Value, json};

use super::measure::{Sample, alternate};
use super::{Row, alone, fresh, known};

const SPAWNS: usize = 41;
const PROGRAM: &str = "/bin/true";
/// Pairs of turns of writing, one to each etcd, and how long a turn is.
const TURNS: usize = 120;
const TURN: Duration = Duration::from_millis(400);
/// Pairs before the first one that counts.
const WARM_UP: usize = 6;
const WRITERS: u64 = 64;
/// Boxes beside each other, as on a machine with several processes.
const BOXES: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);
const MIB: f64 = 1024.0 * 1024.0;

/// Measures all of it. A strict box, and runc, need root.
pub(super) fn rows(quorate: &Path, tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    ensure!(rustix::process::geteuid().is_root(), "the boxes of this benchmark, and runc, need root");
    let work = work.join("box");
    fresh(&work)?;
    let mut rows = vec![known(spawn(quorate, &work)?), known(whole(quorate, &work)?), known(shim(quorate, &work)?)];
    rows.extend(puts(quorate, tools, &work)?.into_iter().map(known));
    Ok(rows)
}

/// As a supervisor sees it: from its wish to the moment when it knows that the program runs, with a limit of memory.
fn spawn(quorate: &Path, work: &Path) -> Result<Row> {
    let bundle = bundle(work, &["/bin/sleep", "600"])?;
    let mut spec = BoxSpec::new(Level::Strict);
    spec.limits.memory_bytes = Some(256 << 20);
    let plan = plan_box(&spec, &observe_machine());
    let plan = plan.map_err(|refused| anyhow::anyhow!("no strict box: {:?}", refused.parts))?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for n in 0..SPAWNS {
        // A state dir of its own: what the end before has left to be read does not belong to the start.
        let state = StateDir::open(&work.join(format!("spawn-{n}")))?;
        let orders = idle(&work.join("spawn-log"));
        let began = Instant::now();
        let mut running = spawn_boxed(quorate, &state, &orders, Some(plan.clone()))?;
        ours.push(began.elapsed().as_secs_f64());
        end(&mut running)?;
        theirs.push(detached(&bundle)?);
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        Sample { seconds: times[times.len() / 2], rss_mib: 0.0 }
    };
    let (ours, theirs) = (median(ours), median(theirs));
    Ok(Row {
        work: "a program in a strict box below the shim, until it is known to run".into(),
        ours,
        peer: "`runc run --detach` of the same".into(),
        met: theirs.seconds >= 4.0 * ours.seconds,
        theirs: Some(theirs),
        reach: "≥ 4× faster, with a record on disk".into(),
    })
}

/// How long runc takes until the program runs; it is ended afterwards.
fn detached(bundle: &Path) -> Result<f64> {
    let name = format!("quorate-bench-{}", std::process::id());
    let run = |args: &[&str]| -> Result<()> {
        let mut command = Command::new("runc");
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        ensure!(command.status().context("run runc (`make tools`)")?.success(), "`runc {}` failed", args.join(" "));
        Ok(())
    };
    let bundle = bundle.to_str().context("a path that is no text")?;
    let began = Instant::now();
    run(&["run", "--detach", "--bundle", bundle, &name])?;
    let took = began.elapsed().as_secs_f64();
    run(&["delete", "--force", &name])?;
    Ok(took)
}

/// By hand: from the start of the command to its end, with all that is taken down.
fn whole(quorate: &Path, work: &Path) -> Result<Row> {
    let bundle = bundle(work, &[PROGRAM])?;
    let ours = || {
        let mut command = Command::new(quorate);
        command.args(["box", "run", "--level", "strict", "--memory", "256MiB", "--", PROGRAM]);
        Ok(vec![command])
    };
    let theirs = || {
        let mut command = Command::new("runc");
        command.args(["run", "--bundle"]).arg(&bundle).arg(format!("quorate-bench-{}", std::process::id()));
        Ok(vec![command])
    };
    let (ours, theirs) = alternate(SPAWNS, ours, theirs)?;
    Ok(Row {
        work: "`box run`, strict, `/bin/true` from start to end".into(),
        ours,
        peer: "`runc run` of the same".into(),
        met: theirs.seconds >= 4.0 * ours.seconds,
        theirs: Some(theirs),
        reach: "≥ 4× faster".into(),
    })
}

/// What `runc spec` writes, with the program and its libraries, and the same limit of memory.
fn bundle(work: &Path, words: &[&str]) -> Result<PathBuf> {
    let bundle = work.join(format!("bundle-{}", words.len()));
    std::fs::create_dir_all(bundle.join("rootfs"))?;
    let made = Command::new("runc").current_dir(&bundle).arg("spec").status().context("run runc (`make tools`)")?;
    ensure!(made.success(), "`runc spec` failed");
    let path = bundle.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!(words);
    config["linux"]["resources"]["memory"] = json!({"limit": 256 << 20});
    let mounts = config["mounts"].as_array_mut().context("no mounts")?;
    for dir in ["/usr/lib", "/lib", "/lib64", "/bin"] {
        mounts.push(json!({"destination": dir, "source": dir, "type": "bind", "options": ["rbind", "ro"]}));
    }
    super::write(&path, &config.to_string())?;
    Ok(bundle)
}

/// What one turn of writing took.
struct Took {
    per_put: f64,
    slowest: f64,
}

/// Puts a second and their slowest hundredth, in the box and outside.
fn puts(quorate: &Path, tools: &Tools, work: &Path) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let boxed = Etcd::start(quorate, tools, work, true)?;
    let bare = Etcd::start(quorate, tools, work, false)?;
    let connect = |etcd: &Etcd| runtime.block_on(Client::connect(&Settings::new([etcd.seat.client_url()])));
    let (in_box, in_none) = (connect(&boxed)?, connect(&bare)?);
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for turn in 0..TURNS + WARM_UP {
        for ours in [turn % 2 == 0, turn % 2 != 0] {
            let took = runtime.block_on(load(if ours { &in_box } else { &in_none }, turn as u64))?;
            if turn >= WARM_UP {
                if ours { &mut inside } else { &mut outside }.push(took);
            }
        }
    }
    let row = |work: &str, of: fn(&Took) -> f64, within: Option<f64>| {
        let ratios: Vec<f64> = inside.iter().zip(&outside).map(|(ours, theirs)| of(ours) / of(theirs)).collect();
        let (ratio, noise) = (quantile(&ratios, 0.5), uncertainty(&ratios));
        let median = |turns: &[Took]| quantile(&turns.iter().map(of).collect::<Vec<f64>>(), 0.5);
        let sample = |seconds| Sample { seconds, rss_mib: 0.0 };
        let reach = within.map_or("within its noise".to_owned(), |part| format!("within {:.0} %", part * 100.0));
        Row {
            work: format!("{work} ({:+.1} % ± {:.1} %)", (ratio - 1.0) * 100.0, noise * 100.0),
            ours: sample(median(&inside)),
            peer: "the same etcd outside".into(),
            theirs: Some(sample(median(&outside))),
            met: ratio <= 1.0 + within.unwrap_or(noise),
            reach,
        }
    };
    Ok(vec![
        row("10,000 puts by 64 writers into an etcd in a strict box", |took| took.per_put * 10_000.0, Some(0.03)),
        row("the slowest hundredth of them (p99)", |took| took.slowest, None),
    ])
}

fn quantile(values: &[f64], part: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}

/// How far the median of these ratios may be off, 19 times of 20: that of pairs drawn from them again and again.
fn uncertainty(ratios: &[f64]) -> f64 {
    let mut state = 1_u64;
    let mut draw = || {
        // Any sequence that visits all of them will do, and the same one every time is best.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ratios[(state >> 33) as usize % ratios.len()]
    };
    let medians: Vec<f64> =
        (0..2000).map(|_| quantile(&(0..ratios.len()).map(|_| draw()).collect::<Vec<f64>>(), 0.5)).collect();
    (quantile(&medians, 0.975) - quantile(&medians, 0.025)) / 2.0
}

async fn load(client: &Client, turn: u64) -> Result<Took> {
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let client = client.clone();
        tasks.spawn(async move {
            let (mut n, mut took) = (turn * 1_000_000 + writer, Vec::new());
            while began.elapsed() < TURN {
                let (key, value) = (super::deltas::key(n), super::deltas::value(n));
                let since = Instant::now();
                client.put_with(PutRequest { key, value, ..PutRequest::default() }).await?;
                took.push(since.elapsed().as_secs_f64());
                n += WRITERS;
            }
            anyhow::Ok(took)
        });
    }
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        all.extend(ended??);
    }
    let seconds = began.elapsed().as_secs_f64();
    all.sort_by(f64::total_cmp);
    ensure!(!all.is_empty(), "nothing was written");
    Ok(Took { per_put: seconds / all.len() as f64, slowest: all[all.len() * 99 / 100] })
}

/// An etcd on an empty data dir, in a box or not.
struct Etcd {
    process: Child,
    seat: Seat,
}

impl Etcd {
    fn start(quorate: &Path, tools: &Tools, work: &Path, boxed: bool) -> Result<Etcd> {
        let (seat, data) = (Seat::new("box"), work.join(if boxed { "inside" } else { "outside" }));
        fresh(&data)?;
        let (client, peer) = (seat.client_url(), seat.peer_url());
        let port = |url: &str| url.rsplit(':').next().unwrap_or_default().to_owned();
        let mut command = Command::new(if boxed { quorate } else { &tools.etcd });
        if boxed {
            // The same user as outside: what is compared is the box.
            command.args(["box", "run", "--level", "strict", "--user", "root", "--seccomp", "etcd"]);
            command.args(["--memory", "4GiB", "--pids", "512"]).arg("--write").arg(&data);
            for port in [port(&client), port(&peer)] {
                command.args(["--bind", &port, "--connect", &port]);
            }
            command.arg("--").arg(&tools.etcd);
        }
        command.arg("--name=box").arg(format!("--data-dir={}", data.display())).arg("--log-level=error");
        command.arg(format!("--listen-client-urls={client}")).arg(format!("--advertise-client-urls={client}"));
        command.arg(format!("--listen-peer-urls={peer}")).arg(format!("--initial-advertise-peer-urls={peer}"));
        command.arg(format!("--initial-cluster=box={peer}")).arg("--quota-backend-bytes=8589934592");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let etcd = Etcd { process: command.spawn()?, seat };
        let since = Instant::now();
        while tools.try_ctl(&client, &["endpoint", "health"]).is_err() {
            if since.elapsed() > LIMIT {
                bail!("etcd does not serve after {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(etcd)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // The end of the keeper is the end of the box.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Memory that the shim and the first process of a box have for themselves, with several boxes on the machine.
fn shim(quorate: &Path, work: &Path) -> Result<Row> {
    let plan = plan_box(&BoxSpec::new(Level::Strict), &observe_machine());
    let plan = plan.map_err(|refused| anyhow::anyhow!("no strict box: {:?}", refused.parts))?;
    let start = |n: usize| -> Result<Running> {
        let state = StateDir::open(&work.join(format!("state-{n}")))?;
        Ok(spawn_boxed(quorate, &state, &idle(&work.join(format!("log-{n}"))), Some(plan.clone()))?)
    };
    let mut boxes = (0..BOXES).map(start).collect::<Result<Vec<Running>>>()?;
    let own = |running: &Running| -> Result<f64> {
        Ok(own_bytes(running.shim().pid)? + own_bytes(parent(running.child().pid)?)?)
    };
    let measured = boxes.iter().map(own).collect::<Result<Vec<f64>>>();
    boxes.iter_mut().try_for_each(end)?;
    let most = measured?.into_iter().fold(0.0, f64::max);
    let ours = Sample { seconds: 0.0, rss_mib: most / MIB };
    let work = format!("the shim and the first process of a box: memory of their own (the most of {BOXES})");
    Ok(alone(&work, ours, "≤ 2 MiB", most <= 2.0 * MIB))
}

fn end(running: &mut Running) -> Result<()> {
    let ladder = vec![Rung { send: Send::Kill, wait_ms: 10_000 }];
    running.stop(&StopOrder { asked_by: "the benchmark".to_owned(), ladder, last_revision: None })?;
    running.wait(LIMIT)?.context("the program does not end")?;
    Ok(())
}

fn idle(log_dir: &Path) -> ShimSpec {
    ShimSpec {
        name: "idle".to_owned(),
        program: "/bin/sleep".into(),
        args: vec!["600".to_owned()],
        env: vec![],
        env_files: vec![],
        dir: "/".into(),
        log_dir: log_dir.to_owned(),
        rotation: Rotation::default(),
        config_hash: String::new(),
        etcd_version: String::new(),
        stopping_words: vec![],
        kept_level: None,
        ladder: Rung::usual(),
    }
}

fn parent(pid: u32) -> Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).context("no PPid")?;
    Ok(line.trim().parse()?)
}

/// What would be free if it were gone. The two processes of a box are copies of each other: memory that is no file's and that
/// only the two share counts too, half for each; pages of the program's file count where no other process has them.
fn own_bytes(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
    };
    let (anonymous, clean) =
        (kib("Pss_Anon").context("no Pss_Anon")?, kib("Private_Clean").context("no Private_Clean")?);
    Ok((anonymous + clean) * 1024.0)
}
