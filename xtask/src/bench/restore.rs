//! Restoring and defragmenting, beside etcdutl on the same files.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use quorate_etcd::datadir::FileSource;
use quorate_etcd_formats::ReadAt;
use quorate_etcd_formats::snapshot_file::sha256;

use super::dataset::{Dataset, snapshot_of};
use super::{Row, alone, fresh};
use crate::bench::measure::{alternate, system_seconds};

/// How much memory either may take, in MiB.
const MEMORY: f64 = 128.0;

/// Keys of a snapshot of 518 MB.
const KEYS_BESIDE_DD: u64 = 376_000;

pub(crate) fn rows(quorate: &Path, etcdutl: &Path, work: &Path, gib: &Dataset) -> Result<Vec<Row>> {
    let scratch = work.join("restored");
    let large = Dataset::large_snapshot(work)?;
    let rows = vec![
        restore(quorate, etcdutl, &scratch, gib)?,
        restore_large(quorate, &scratch, &gib.snapshot, &large)?,
        beside_dd(quorate, work, &scratch)?,
        defrag(quorate, etcdutl, work, gib)?,
    ];
    fresh(&scratch)?;
    Ok(rows)
}

fn restore(quorate: &Path, etcdutl: &Path, scratch: &Path, gib: &Dataset) -> Result<Row> {
    let theirs = || {
        fresh(scratch)?;
        let mut command = Command::new(etcdutl);
        command.args(["snapshot", "restore"]).arg(&gib.snapshot).arg("--data-dir").arg(scratch.join("member-1"));
        Ok(vec![command])
    };
    let (ours, theirs) = alternate(7, || ours(quorate, scratch, &gib.snapshot), theirs)?;
    let met = theirs.seconds >= 2.0 * ours.seconds && ours.rss_mib <= MEMORY;
    Ok(Row {
        work: "`data restore`, 1 GiB snapshot, SHA-256 checked".into(),
        ours,
        peer: "`etcdutl snapshot restore` of the same file".into(),
        theirs: Some(theirs),
        reach: "≥ 2× faster, ≤ 128 MiB".into(),
        met,
    })
}

fn restore_large(quorate: &Path, scratch: &Path, small: &Path, large: &Path) -> Result<Row> {
    let times = large.metadata()?.len() as f64 / small.metadata()?.len() as f64;
    let (large, small) = alternate(5, || ours(quorate, scratch, large), || ours(quorate, scratch, small))?;
    // A tenth for what the disk does differently from run to run.
    let met = large.seconds <= 1.1 * times * small.seconds && large.rss_mib <= small.rss_mib + 8.0;
    let work = format!(
        "the same, 4 GiB snapshot: {times:.1}× the size, {:.1}× the time of the smaller in turns",
        large.seconds / small.seconds
    );
    Ok(alone(&work, large, "time grows no faster than size, memory flat", met))
}

/// Beside what merely writing the same bytes takes, durably. The time that the hash of them takes alone is printed, too: no
/// restore that checks it is faster.
pub(crate) fn beside_dd(quorate: &Path, work: &Path, scratch: &Path) -> Result<Row> {
    let snapshot = snapshot_of(work, "518-mb.snapshot", KEYS_BESIDE_DD)?;
    let ours = || ours(quorate, scratch, &snapshot);
    let floor = || {
        fresh(scratch)?;
        let mut command = Command::new("dd");
        command.arg(format!("if={}", snapshot.display())).arg(format!("of={}", scratch.join("copy").display()));
        command.args(["bs=1M", "conv=fsync"]);
        Ok(vec![command])
    };
    let (system, floor_system) = (system_seconds(3, ours)?, system_seconds(3, floor)?);
    let hash = hash_seconds(&snapshot)?;
    let (ours, floor) = alternate(9, ours, floor)?;
    let ratio = ours.seconds / floor.seconds;
    let megabytes = snapshot.metadata()?.len() as f64 / 1e6;
    Ok(Row {
        work: format!(
            "`data restore`, {megabytes:.0} MB snapshot, SHA-256 checked: {ratio:.2}× `dd`; {system:.2} s in the kernel, `dd` {floor_system:.2} s; its SHA-256 alone {hash:.2} s"
        ),
        ours,
        peer: "`dd bs=1M conv=fsync` of the same file".into(),
        theirs: Some(floor),
        reach: "≤ 1.3× `dd`, ≤ 32 MiB".into(),
        met: ratio <= 1.3 && ours.rss_mib <= 32.0,
    })
}

/// The least that reading and hashing a file took in three attempts.
fn hash_seconds(path: &Path) -> Result<f64> {
    let bytes = FileSource::open(path)?;
    let mut least = f64::INFINITY;
    for _ in 0..3 {
        let began = Instant::now();
        sha256(&bytes, bytes.len(), |_| ())?;
        least = least.min(began.elapsed().as_secs_f64());
    }
    Ok(least)
}

fn ours(quorate: &Path, scratch: &Path, snapshot: &Path) -> Result<Vec<Command>> {
    fresh(scratch)?;
    let mut command = Command::new(quorate);
    command.args(["data", "restore", "--quiet", "--snapshot"]).arg(snapshot);
    command.arg("--data-dir").arg(scratch.join("member-1"));
    Ok(vec![command])
}

/// Each works on a data dir of its own: its output is its next input, with the same content and size.
fn defrag(quorate: &Path, etcdutl: &Path, work: &Path, gib: &Dataset) -> Result<Row> {
    let copy = |name: &str| -> Result<std::path::PathBuf> {
        let dir = work.join(name);
        fresh(&dir)?;
        let copied =
            Command::new("cp").arg("-a").arg(gib.data_dir.join("member")).arg(&dir).status().context("run cp")?;
        if !copied.success() {
            bail!("cannot copy `{}`", gib.data_dir.display());
        }
        Ok(dir)
    };
    let (our_dir, their_dir) = (copy("defrag-ours")?, copy("defrag-theirs")?);
    let ours = || {
        let mut command = Command::new(quorate);
        command.args(["data", "defrag", "--quiet"]).arg(&our_dir);
        Ok(vec![command])
    };
    let theirs = || {
        let mut command = Command::new(etcdutl);
        command.args(["defrag", "--data-dir"]).arg(&their_dir);
        Ok(vec![command])
    };
    let (ours, theirs) = alternate(7, ours, theirs)?;
    fresh(&our_dir)?;
    fresh(&their_dir)?;
    let met = theirs.seconds >= 3.0 * ours.seconds && ours.rss_mib <= MEMORY;
    Ok(Row {
        work: "`data defrag`, data dir with a 1 GiB db".into(),
        ours,
        peer: "`etcdutl defrag` of the same db".into(),
        theirs: Some(theirs),
        reach: "≥ 3× faster, ≤ 128 MiB".into(),
        met,
    })
}
