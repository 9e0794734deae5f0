//! Restoring a million events: from both layouts of a backup store, beside a replay through a live etcd and `gunzip`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use quorate_etcd::client::messages::{PutRequest, Request, RequestOp, TxnRequest};
use quorate_etcd::client::{Client, Settings};
use quorate_testkit::{Launch, Seat, Tools};
use sha2::{Digest, Sha256};

use super::Row;
use super::measure::{self, Sample, alternate};

const EVENTS: u64 = 1_000_000;
const EVENTS_PER_OBJECT: u64 = 10_000;
/// The replay is measured on a tenth and scaled.
const REPLAYED: u64 = 100_000;
const VALUE_BYTES: usize = 150;
/// Keys are written again and again, as they are in real life.
const KEYS: u64 = 200_000;

/// The rows of this part.
pub(super) fn rows(quorate: &Path, tools: &Tools, work: &Path, blank: &Path) -> Result<Vec<Row>> {
    let gardener = work.join("gardener");
    let ours = work.join("store");
    if !gardener.join("done").exists() {
        make_gardener_store(&gardener, blank)?;
    }
    if !ours.join("done").exists() {
        let mut convert = Command::new(quorate);
        convert.args(["backup", "convert", "--quiet", "--store"]).arg(url(&gardener)).arg("--to").arg(url(&ours));
        ensure!(convert.status()?.success(), "the store could not be converted");
        File::create(ours.join("done"))?;
    }
    Ok(vec![ours_against_replay(quorate, tools, work, &ours)?, gardener_against_gunzip(quorate, work, &gardener)?])
}

fn url(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn restore(quorate: &Path, work: &Path, store: &Path) -> Result<Vec<Command>> {
    let target = work.join("restored");
    super::fresh(&target)?;
    let mut command = Command::new(quorate);
    command.args(["backup", "restore", "--quiet", "--store"]).arg(url(store));
    command.args(["--name", "m1", "--member", "m1=https://10.0.0.1:2380", "--data-dir"]).arg(target.join("m1"));
    Ok(vec![command])
}

fn ours_against_replay(quorate: &Path, tools: &Tools, work: &Path, store: &Path) -> Result<Row> {
    let ours = measure::repeat(3, || restore(quorate, work, store))?;
    let theirs = Sample { seconds: replay(tools, work)? * (EVENTS / REPLAYED) as f64, rss_mib: 0.0 };
    let rate = EVENTS as f64 / ours.seconds;
    Ok(Row {
        work: format!("`backup restore`, 1,000,000 events, our layout ({rate:.0} events/s)"),
        ours,
        peer: "replay through a live etcd without fsync, one transaction a revision (100,000 events, scaled)".into(),
        theirs: Some(theirs),
        reach: "≥ 100× faster, ≥ 500,000 events/s".into(),
        met: theirs.seconds >= 100.0 * ours.seconds && rate >= 500_000.0,
    })
}

fn gardener_against_gunzip(quorate: &Path, work: &Path, store: &Path) -> Result<Row> {
    let objects = deltas(store)?;
    let theirs = || {
        let mut command = Command::new("gunzip");
        command.arg("-c").args(&objects);
        Ok(vec![command])
    };
    let (ours, theirs) = alternate(3, || restore(quorate, work, store), theirs)?;
    let rate = EVENTS as f64 / ours.seconds;
    Ok(Row {
        work: format!("`backup restore`, 1,000,000 events, Gardener's layout ({rate:.0} events/s)"),
        ours,
        peer: "`gunzip` of the same deltas".into(),
        theirs: Some(theirs),
        reach: "≥ 200,000 events/s".into(),
        met: rate >= 200_000.0,
    })
}

fn deltas(store: &Path) -> Result<Vec<PathBuf>> {
    let mut objects = Vec::new();
    for object in std::fs::read_dir(store.join("v2"))? {
        let path = object?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("Incr-")) {
            objects.push(path);
        }
    }
    objects.sort();
    Ok(objects)
}

/// What the other tools do: every revision becomes a transaction against a server. Returns the seconds it took.
fn replay(tools: &Tools, work: &Path) -> Result<f64> {
    let dir = work.join("replay");
    super::fresh(&dir)?;
    let seat = Seat::new("replay");
    let server = Launch::new(tools, &seat, &dir.join("data"))
        .arg("--unsafe-no-fsync")
        .arg(format!("--initial-cluster=replay={}", seat.peer_url()))
        .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
        .start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let seconds = runtime.block_on(async {
        let client = Client::connect(&Settings::new([seat.client_url()])).await?;
        let began = Instant::now();
        for n in 0..REPLAYED {
            let put = PutRequest { key: key(n), value: value(n), ..PutRequest::default() };
            let request = TxnRequest { success: vec![RequestOp::from(Request::Put(put))], ..TxnRequest::default() };
            client.txn(request).await?;
        }
        anyhow::Ok(began.elapsed().as_secs_f64())
    })?;
    server.stop();
    Ok(seconds)
}

pub(super) fn key(n: u64) -> Vec<u8> {
    format!("/registry/events/default/object-{:08}", n % KEYS).into_bytes()
}

/// Bytes that do not compress to nothing.
pub(super) fn value(n: u64) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut value = Vec::with_capacity(VALUE_BYTES + 8);
    while value.len() < VALUE_BYTES {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        value.extend_from_slice(format!("{:x}", state >> 32).as_bytes());
    }
    value.truncate(VALUE_BYTES);
    value
}

/// A store as etcd-backup-restore lays it out: a blank full and a hundred deltas.
fn make_gardener_store(store: &Path, blank: &Path) -> Result<()> {
    super::fresh(store)?;
    let objects = store.join("v2");
    std::fs::create_dir_all(&objects)?;
    let mut full = std::fs::read(blank)?;
    let hash = Sha256::digest(&full);
    full.extend_from_slice(&hash);
    gzip(&objects.join("Full-00000000-00000001-1794770000"), &full)?;
    for object in 0..EVENTS / EVENTS_PER_OBJECT {
        let first = object * EVENTS_PER_OBJECT;
        let mut json = String::from("[");
        for n in first..first + EVENTS_PER_OBJECT {
            let (revision, round) = (n + 2, n / KEYS);
            let separator = if n == first { "" } else { "," };
            write!(
                json,
                r#"{separator}{{"etcdEvent":{{"kv":{{"key":"{}","create_revision":{},"mod_revision":{revision},"version":{},"value":"{}"}}}},"time":"2026-11-15T12:{:02}:{:02}.000000000Z"}}"#,
                BASE64.encode(key(n)),
                n % KEYS + 2,
                round + 1,
                BASE64.encode(value(n)),
                object / 60,
                object % 60,
            )?;
        }
        json.push(']');
        let mut body = json.into_bytes();
        let hash = Sha256::digest(&body);
        body.extend_from_slice(&hash);
        let name = format!("Incr-{:08}-{:08}-{}", first + 2, first + 1 + EVENTS_PER_OBJECT, 1794770001 + object);
        gzip(&objects.join(name), &body)?;
    }
    File::create(store.join("done"))?;
    Ok(())
}

fn gzip(path: &Path, bytes: &[u8]) -> Result<()> {
    File::create(path)?.write_all(bytes)?;
    let status = Command::new("gzip").arg(path).status().context("run gzip")?;
    if !status.success() {
        bail!("gzip of `{}` failed", path.display());
    }
    Ok(())
}
