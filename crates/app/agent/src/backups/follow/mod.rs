//! Follows a cluster: every write goes into the spool, from there into the store, and fulls are taken on schedule.
//!
//! One turn: look at spool, store and etcd; `plan::follow` decides where to go on; tasks work until something ends them;
//! if that is a break in the history, the next turn begins with another look.
//!
//! **Invariant:** what left the watch is in the spool before anything else is done with it, and what left the spool is in
//! the store. Whatever ends this program, the next run goes on where the spool ends.

mod capture;
mod fulls;
mod keeper;
mod leases;
mod observe;
mod patience;
mod run;
mod upload;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quorate_backup::spool::{Spool, SpoolSettings};
use quorate_etcd::client::{Client, Settings};
use quorate_etcd_formats::delta::quorate::Declared;
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::Layout;
use quorate_plan::retention::Policy;
use quorate_plan::schedule::Schedule;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use quorate_plan::follow::TakeOver;

use super::metrics::Metrics;
use super::peer_clocks::PeerClocks;
use super::size;
use patience::{Patience, in_words};
use run::Run;

/// How to follow.
#[derive(Debug, Clone)]
pub struct FollowSettings {
    /// The store's URL.
    pub store: String,
    /// The cluster.
    pub etcd: Settings,
    /// Where writes wait for the store.
    pub spool: PathBuf,
    /// Bytes that may wait there.
    pub spool_max_bytes: u64,
    /// A delta is cut when its oldest write is this old.
    pub delta_period: Duration,
    /// Or when it has so many bytes.
    pub delta_bytes: u64,
    /// When fulls are taken.
    pub full_schedule: Schedule,
    /// Names and forms in the store.
    pub layout: Layout,
    /// A chain whose restore would take longer is compacted.
    pub max_restore_time: Option<Duration>,
    /// What to keep; `None`: everything.
    pub keep: Option<Policy>,
    /// How long the end may be put off for uploads.
    pub flush_timeout: Duration,
    /// Whose backups this cluster may overrule by the operator's word.
    pub take_over: TakeOver,
    /// This cluster was restored from a backup of its own: its revision may be behind what the store holds.
    pub restored: bool,
    /// The operator took the data of this cluster over as it is: it may be behind what the store holds of it.
    pub taken_over: bool,
    /// The clusters that this one descends from, where that is known.
    pub was: Vec<u64>,
    /// The declaration that the cluster comes of, where it is known: said in every epoch that is opened.
    pub declared: Option<Declared>,
    /// How the clocks of the other agents of the cluster are read; `None`: it has no others.
    pub peers: Option<PeerClocks>,
    /// Where large files of a compaction lie for a while.
    pub scratch: PathBuf,
}

impl FollowSettings {
    /// Whether the cluster comes from a backup or from another cluster: fulls of other members may be its own history.
    fn is_descendant(&self) -> bool {
        self.restored || self.taken_over || !self.was.is_empty()
    }
}

/// How it ended when it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Everything up to here can be restored from the store.
    pub stored: u64,
    /// Bytes that are still in the spool.
    pub spooled_bytes: u64,
}

/// Why the tasks of a turn ended.
#[derive(Debug)]
enum Ending {
    /// It was asked for.
    Stopped,
    /// Look again, and go on.
    Again(Again),
    /// Nothing can be done here.
    Failed(Fault),
}

/// What broke the history.
#[derive(Debug)]
enum Again {
    /// etcd has only this and later.
    Compacted { oldest: u64 },
    /// Another cluster answers.
    OtherCluster(Fault),
    /// etcd's data was replaced by an older copy.
    WentBack { recorded: u64, now: u64 },
    /// The spool could not be written or read.
    Spool(Fault),
    /// A store that was away answers.
    StoreSeen,
}

/// Follows until `stop`. Etcd and the store may come and go; what cannot be helped by waiting is a fault.
pub async fn follow(settings: FollowSettings, metrics: Metrics, stop: CancellationToken) -> Result<Ended> {
    let settings = Arc::new(settings);
    metrics.position.spool_max_bytes.store(settings.spool_max_bytes, Ordering::Relaxed);
    let dir = settings.spool.clone();
    let spool_settings = SpoolSettings { max_bytes: settings.spool_max_bytes };
    let opened = tokio::task::spawn_blocking(move || Spool::open(&dir, spool_settings)).await;
    let (mut spool, recovered) = opened.map_err(halted)??;
    for what in &recovered.damaged {
        warn!(code = %Code::SpoolBroken, "in the spool: {what}");
    }
    if recovered.torn_bytes > 0 {
        info!(bytes = recovered.torn_bytes, "the spool ended in the middle of a write, which is asked for again");
    }
    let Some(client) = until(&stop, "reach etcd", || Client::connect(&settings.etcd)).await? else {
        return Ok(ended(&metrics, &spool));
    };
    let (mut oldest, mut patience) = (None, Patience::new(Duration::from_millis(200), Duration::from_secs(30)));
    loop {
        let observed = observe::observe(&settings, &client, &metrics, &mut spool, oldest, &stop).await?;
        let Some(seen) = observed else { return Ok(ended(&metrics, &spool)) };
        let begun = observe::begin(&settings, &client, &metrics, &mut spool, seen).await?;
        let Some((run, plan)) = begun else { continue };
        let (back, ending) = run::turn(run, spool, plan, &stop).await?;
        spool = back;
        match ending {
            Ending::Stopped => break,
            Ending::Failed(fault) => return Err(fault),
            Ending::Again(why) => {
                oldest = None;
                let fault = why.fault();
                if let Again::Compacted { oldest: there } = why {
                    oldest = Some(there);
                }
                match &why {
                    Again::StoreSeen => info!("the store answers"),
                    _ => warn!(code = %fault.code(), "{}", in_words(&fault)),
                }
                if !matches!(fault.code(), Code::HistoryCompacted | Code::StoreNotSeen) {
                    let (wait, _) = patience.failed(&fault);
                    tokio::select! { () = tokio::time::sleep(wait) => {}, () = stop.cancelled() => break }
                }
                let recovered = tokio::task::spawn_blocking(move || spool.recover().map(|_| spool)).await;
                spool = recovered.map_err(halted)??;
            }
        }
    }
    let ended = ended(&metrics, &spool);
    let leads = metrics.position.full_missing_since_ms.load(Ordering::Relaxed) == 0;
    match ended.spooled_bytes {
        0 if !leads => warn!(
            code = %Code::FlushIncomplete,
            restorable = ended.stored,
            "stopped before the full backup was stored that later deltas need; the next run takes it"
        ),
        0 => info!(stored = ended.stored, "stopped; everything recorded is in the store"),
        bytes => warn!(
            code = %Code::FlushIncomplete,
            stored = ended.stored,
            spooled = size(bytes),
            "stopped; the rest is in the spool and is uploaded by the next run"
        ),
    }
    Ok(ended)
}

impl Again {
    fn fault(&self) -> Fault {
        match self {
            Again::Compacted { oldest } => Fault::new(
                Code::HistoryCompacted,
                format!("etcd has compacted history that was not recorded; revision {oldest} is the oldest it has"),
            ),
            Again::WentBack { recorded, now } => Fault::new(
                Code::RevisionWentBack,
                format!("etcd is at revision {now}, and revision {recorded} was recorded: its data was replaced"),
            ),
            Again::StoreSeen => Fault::new(Code::StoreNotSeen, "the store answers again"),
            Again::OtherCluster(fault) | Again::Spool(fault) => {
                Fault::new(fault.code(), in_words(fault)).hint(fault.hint_text().unwrap_or_default())
            }
        }
    }
}

fn ended(metrics: &Metrics, spool: &Spool) -> Ended {
    Ended { stored: metrics.position.stored.load(Ordering::Relaxed), spooled_bytes: spool.bytes() }
}

/// Tries until it works. `None`: the end was asked for. What an operator must mend is a fault at once.
async fn until<T, F>(stop: &CancellationToken, what: &str, mut attempt: impl FnMut() -> F) -> Result<Option<T>>
where
    F: Future<Output = Result<T>>,
{
    let mut patience = Patience::new(Duration::from_millis(200), Duration::from_secs(10));
    loop {
        let fault = tokio::select! {
            done = attempt() => match done {
                Ok(done) => return Ok(Some(done)),
                Err(fault) => fault,
            },
            () = stop.cancelled() => return Ok(None),
        };
        if !matches!(fault.code(), Code::EtcdUnreachable | Code::StoreUnreachable) {
            return Err(fault);
        }
        let (wait, say) = patience.failed(&fault);
        if say {
            warn!(code = %fault.code(), "cannot {what} yet: {}", in_words(&fault));
        }
        tokio::select! { () = tokio::time::sleep(wait) => {}, () = stop.cancelled() => return Ok(None) }
    }
}

fn halted(error: tokio::task::JoinError) -> Fault {
    Fault::new(Code::Internal, "a part of the follower came to a halt").caused_by(error)
}
