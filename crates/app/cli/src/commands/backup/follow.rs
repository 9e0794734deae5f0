//! `quorate backup follow`: records a running cluster until it is told to stop.
//!
//! **Rule:** the first signal ends it in order, the second one at once. Either way nothing that was recorded is lost.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use quorate_agent::backups::follow::{Ended, FollowSettings, TakeOver, follow};
use quorate_agent::backups::metrics::Metrics;
use quorate_agent::serve::{self, Address, TlsFiles};
use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::chain;
use quorate_plan::retention::Policy;
use quorate_plan::schedule::{Schedule, parse_duration_ms};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::StoreArgs;
use crate::args::duration;
use crate::commands::etcd_args::EtcdArgs;
use crate::logging::{self, LogArgs};
use crate::printer::Printer;

/// Flags of `backup follow`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup follow --store file:///backup --endpoints http://127.0.0.1:2379
  quorate backup follow --store s3://bucket/prod --endpoints https://etcd:2379 \\
      --cacert ca.pem --cert client.pem --key client.key \\
      --keep-daily 14 --metrics-listen http://127.0.0.1:9979

Every write goes to a spool on this machine first, so that neither a restart nor a
store that is away loses any. SIGTERM uploads what is left and ends. The cluster is
only read. Rules for keeping are those of `backup prune`, applied after each full;
without any of them everything is kept.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    etcd: EtcdArgs,

    #[command(flatten)]
    record: RecordArgs,

    #[command(flatten)]
    keep: KeepArgs,

    #[command(flatten)]
    metrics: MetricsArgs,

    #[command(flatten)]
    log: LogArgs,
}

/// What is recorded, and how.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Recording")]
struct RecordArgs {
    /// Folder where writes wait for the store [default: below /var/lib/quorate or ~/.local/state]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,

    /// Size that the spool may have
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = size)]
    spool_max: u64,

    /// How long a write may wait before its delta is uploaded
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    delta_period: Duration,

    /// Size at which a delta is uploaded earlier
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size)]
    delta_size: u64,

    /// When full backups are taken: cron in UTC, or `every 6h`
    #[arg(long, value_name = "WHEN", default_value = "0 */6 * * *")]
    full_schedule: String,

    /// quorate, or gardener: what etcd-backup-restore restores
    #[arg(long, value_enum, default_value_t, value_name = "LAYOUT", hide_possible_values = true)]
    layout: Layout,

    /// Compact the chain when a restore of it would take longer
    #[arg(long, value_name = "TIME", value_parser = duration)]
    max_restore_time: Option<Duration>,

    /// How long uploads may put off the end
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    flush_timeout: Duration,

    /// Let this cluster replace the one whose backups are in the store
    #[arg(long)]
    take_over: bool,
}

/// What stays in the store.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Keeping (after each full backup)")]
struct KeepArgs {
    /// Keep the newest full backups
    #[arg(long, value_name = "N")]
    keep_last: Option<u32>,

    /// Keep the newest full of each of so many hours
    #[arg(long, value_name = "N")]
    keep_hourly: Option<u32>,

    /// Keep the newest full of each of so many days
    #[arg(long, value_name = "N")]
    keep_daily: Option<u32>,

    /// Keep the newest full of each of so many weeks
    #[arg(long, value_name = "N")]
    keep_weekly: Option<u32>,

    /// Keep the newest full of each of so many months
    #[arg(long, value_name = "N")]
    keep_monthly: Option<u32>,

    /// Keep every moment of this time restorable, such as 12h or 7d
    #[arg(long, value_name = "TIME")]
    keep_history: Option<String>,
}

/// Where metrics are.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Metrics")]
struct MetricsArgs {
    /// Where Prometheus finds /metrics, as http://127.0.0.1:9979
    #[arg(long, value_name = "URL")]
    metrics_listen: Option<String>,

    /// PEM file with the certificate, for https
    #[arg(long, value_name = "FILE", requires = "metrics_key")]
    metrics_cert: Option<PathBuf>,

    /// PEM file with its key
    #[arg(long, value_name = "FILE", requires = "metrics_cert")]
    metrics_key: Option<PathBuf>,
}

/// Names and forms in the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Layout {
    /// Ours.
    #[default]
    Quorate,
    /// etcd-backup-restore's.
    Gardener,
}

/// Follows.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let settings = args.settings(printer)?;
    let address = args.metrics.address()?;
    logging::start(&args.log)?;
    let runtime = runtime()?;
    let ended = runtime.block_on(work(settings, address));
    // What hangs in a system call does not keep us: all that must last is on disk.
    runtime.shutdown_background();
    ended.map(|_| Exit::Done)
}

/// A runtime with as few threads as this work needs.
pub(super) fn runtime() -> Result<Runtime, Fault> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(|error| Fault::io("cannot start the runtime", error))
}

async fn work(settings: FollowSettings, address: Option<Address>) -> Result<Ended, Fault> {
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let (stop, metrics) = (CancellationToken::new(), Metrics::new());
    if let Some(address) = address {
        let bound = serve::bind(&address).await?;
        if let Some(at) = bound.local_addr() {
            info!("metrics are at {at}");
        }
        tokio::spawn(bound.serve(metrics.router(), stop.clone()));
    }
    let followed = follow(settings, metrics, stop.clone());
    tokio::pin!(followed);
    tokio::select! {
        ended = &mut followed => return ended,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    info!("stopping: uploading what is in the spool");
    stop.cancel();
    tokio::select! {
        ended = followed => return ended,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Err(Fault::new(Code::CutShort, "ended at once, by a second signal")
        .hint("what was not uploaded is in the spool; the next run goes on from there"))
}

fn listen(kind: SignalKind) -> Result<Signal, Fault> {
    signal(kind).map_err(|error| Fault::io("cannot listen for signals", error))
}

impl Args {
    fn settings(&self, printer: &mut Printer) -> Result<FollowSettings, Fault> {
        let record = &self.record;
        if record.delta_period.is_zero() || record.delta_size == 0 || record.spool_max == 0 {
            return Err(Fault::new(Code::Usage, "cannot record with a period or size of nothing")
                .hint("`--delta-period 10s`, `--delta-size 16MiB` and `--spool-max 2GiB` are good for most"));
        }
        let spool = record.spool.clone().map_or_else(|| default_spool(&self.store.store), Ok)?;
        Ok(FollowSettings {
            store: self.store.store.clone(),
            etcd: self.etcd.settings(printer)?,
            spool,
            spool_max_bytes: record.spool_max,
            delta_period: record.delta_period,
            delta_bytes: record.delta_size,
            full_schedule: Schedule::parse(&record.full_schedule)?,
            layout: match record.layout {
                Layout::Quorate => chain::Layout::Quorate,
                Layout::Gardener => chain::Layout::Gardener,
            },
            max_restore_time: record.max_restore_time,
            keep: self.keep.policy()?,
            flush_timeout: record.flush_timeout,
            take_over: if record.take_over { TakeOver::Any } else { TakeOver::No },
            restored: false,
            taken_over: false,
            was: Vec::new(),
            declared: None,
            peers: None,
            scratch: std::env::temp_dir(),
        })
    }
}

impl KeepArgs {
    /// `None`: no rule was given, and everything stays. Rules that were not given are those of `backup prune`.
    fn policy(&self) -> Result<Option<Policy>, Fault> {
        let numbers = [self.keep_last, self.keep_hourly, self.keep_daily, self.keep_weekly, self.keep_monthly];
        if numbers.iter().all(Option::is_none) && self.keep_history.is_none() {
            return Ok(None);
        }
        let history_ms = match self.keep_history.as_deref() {
            None => Policy::DEFAULT.history_ms,
            Some("0") => 0,
            Some(text) => parse_duration_ms(text).ok_or_else(|| {
                Fault::new(
                    Code::ScheduleInvalid,
                    format!("cannot use `--keep-history {text}`: it is no length of time"),
                )
                .hint("write a number with `m`, `h`, `d` or `w`, such as `12h` or `7d`")
            })?,
        };
        Ok(Some(Policy {
            last: self.keep_last.unwrap_or(Policy::DEFAULT.last),
            hourly: self.keep_hourly.unwrap_or(Policy::DEFAULT.hourly),
            daily: self.keep_daily.unwrap_or(Policy::DEFAULT.daily),
            weekly: self.keep_weekly.unwrap_or(Policy::DEFAULT.weekly),
            monthly: self.keep_monthly.unwrap_or(Policy::DEFAULT.monthly),
            history_ms,
        }))
    }
}

impl MetricsArgs {
    fn address(&self) -> Result<Option<Address>, Fault> {
        let Some(url) = &self.metrics_listen else { return Ok(None) };
        let tls = self.metrics_cert.clone().zip(self.metrics_key.clone());
        Address::parse(url, tls.map(|(cert, key)| TlsFiles { cert, key, client_ca: None, operators: None })).map(Some)
    }
}

/// One folder for each store, where a service or a user may keep things.
fn default_spool(store: &str) -> Result<PathBuf, Fault> {
    let hash = hex(&Sha256::digest(store)[..8]);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let base = match rustix::process::geteuid().is_root() {
        true => Some(PathBuf::from("/var/lib")),
        false => std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home),
    };
    let base = base.ok_or_else(|| {
        Fault::new(Code::Usage, "cannot choose a folder for the spool: HOME is not set").hint("give `--spool DIR`")
    })?;
    Ok(base.join("quorate/spool").join(hash))
}

/// Reads `16MiB`, `2GiB`, `1000`.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || "not a size; write it as `16MiB` or `2GiB`".to_owned();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" | "K" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        "TiB" | "T" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!((size("16MiB"), size("2GiB"), size("1000")), (Ok(16 << 20), Ok(2 << 30), Ok(1000)));
        for text in ["", "MiB", "5 furlongs", "-1", "99999999999TiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
