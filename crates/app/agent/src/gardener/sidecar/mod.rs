//! Stands in for `etcdbrctl server`: sees to the data before etcd starts, hands out its configuration, and backs it up in
//! Gardener's layout.
//!
//! **Invariant:** the store's absence keeps no good data from starting, and no data is replaced but by a proven backup.

mod backups;
mod config;
mod decide;
mod defrag;
mod etcdbr;
mod guard;
mod initialize;
mod learner;
mod provider;
mod routes;
mod settings;
mod snapshots;
mod state;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate_etcd_formats::verify::Mode;
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::Layout;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

pub use settings::{Elsewhere, HELP, Settings};

use super::etcd_yaml::{self, EtcdYaml};
use super::{Signals, in_words, small_file};
use crate::backups::follow::{FollowSettings, TakeOver};
use crate::backups::metrics::Metrics;
use crate::serve::{self, Address, Bound, TlsFiles};
use backups::Demand;
use config::Live;
use decide::ClusterSeen;
use etcdbr::{Act, Etcdbr};
use initialize::{Job, Next};
use state::{Handshake, Status};

/// How long the cluster is asked for its members.
const LIVE_LIMIT: Duration = Duration::from_secs(5);

/// How long the end may be put off for uploads.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Done,
    /// A second signal came before all was done.
    Forced,
}

/// What all parts share.
struct Shared {
    settings: Settings,
    handshake: Mutex<Handshake>,
    health: AtomicBool,
    metrics: Metrics,
    etcdbr: Etcdbr,
    demands: mpsc::Sender<Demand>,
    /// Members that the configuration declared when it was last read.
    members: AtomicUsize,
    /// Whether this member is on its way into a running cluster.
    joined: AtomicBool,
}

/// Serves until a signal.
pub async fn run(settings: Settings, mut signals: Signals) -> Result<Ended> {
    for note in &settings.notes {
        warn!("{note}");
    }
    let bound = bind(&settings).await?;
    let (sender, demands) = mpsc::channel(16);
    let metrics = Metrics::new();
    let shared = Arc::new(Shared {
        settings,
        handshake: Mutex::new(Handshake::new()),
        health: AtomicBool::new(false),
        etcdbr: Etcdbr::new(&metrics),
        metrics,
        demands: sender,
        members: AtomicUsize::new(1),
        joined: AtomicBool::new(false),
    });
    if let Err(fault) = shared.read_config() {
        warn!(code = %fault.code(), "{}", in_words(&fault));
    }
    if shared.settings.store.is_some() && !shared.store_is_there() {
        warn!("the folder of the store is not there: is it mounted?");
    }
    let stop = CancellationToken::new();
    let serving = tokio::spawn(bound.serve(routes::router(Arc::clone(&shared)), stop.clone()));
    let mut recording = tokio::spawn(backups::work(Arc::clone(&shared), demands, stop.clone()));
    let tidying = tokio::spawn(defrag::work(Arc::clone(&shared), stop.clone()));
    let promoting = tokio::spawn(learner::work(Arc::clone(&shared), stop.clone()));
    let asked = signals.next().await;
    info!("ending: `{}`", asked.word());
    stop.cancel();
    let ended = tokio::select! {
        _ = &mut recording => Ended::Done,
        _ = signals.next() => Ended::Forced,
    };
    serving.abort();
    tidying.abort();
    promoting.abort();
    Ok(ended)
}

async fn bind(settings: &Settings) -> Result<Bound> {
    let client_ca = match &settings.elsewhere {
        Elsewhere::Certified(ca) => ca.clone(),
        Elsewhere::Nobody | Elsewhere::Anybody => None,
    };
    let tls = settings.tls.clone().map(|(cert, key)| TlsFiles { cert, key, client_ca, operators: None });
    let scheme = if tls.is_some() { "https" } else { "http" };
    let port = settings.port;
    let hosts: &[&str] = match settings.elsewhere {
        Elsewhere::Nobody => &["127.0.0.1"],
        // A machine without IPv6 has no such address.
        Elsewhere::Certified(_) | Elsewhere::Anybody => &["[::]", "0.0.0.0"],
    };
    let mut failure = None;
    for host in hosts {
        let address = Address::parse(&format!("{scheme}://{host}:{port}"), tls.clone())?.admit_unknown();
        match serve::bind(&address).await {
            Ok(bound) => {
                info!(port, scheme, host, "listening");
                return Ok(bound);
            }
            Err(fault) if fault.code() == Code::ListenFailed => failure = Some(fault),
            Err(fault) => return Err(fault),
        }
    }
    Err(failure.unwrap_or_else(|| Fault::new(Code::ListenFailed, "there is nowhere to listen")))
}

impl Shared {
    fn read_config(&self) -> Result<EtcdYaml> {
        let path = &self.settings.config_file;
        let whence = format!("`{}`", path.display());
        let attempt = || format!("cannot read the configuration of etcd from {whence}");
        let text = small_file::read(path, etcd_yaml::BYTES_MAX as u64).map_err(|error| Fault::io(attempt(), error))?;
        let text = text.ok_or_else(|| {
            Fault::new(Code::GardenerConfig, attempt()).hint("mount it there, or name another place in ETCD_CONF")
        })?;
        let yaml = EtcdYaml::parse(&text, &whence)?;
        let members = config::declared(&yaml).len().max(1);
        self.members.store(members, Ordering::Relaxed);
        self.etcdbr.set_cluster_size(members);
        Ok(yaml)
    }

    fn members(&self) -> usize {
        self.members.load(Ordering::Relaxed)
    }

    fn health(&self) -> bool {
        self.health.load(Ordering::Acquire)
    }

    fn set_health(&self, healthy: bool) {
        if self.health.swap(healthy, Ordering::AcqRel) != healthy {
            info!(healthy, "health changed");
        }
    }

    fn root(&self) -> &str {
        self.settings.store.as_ref().map_or("", |store| store.root.as_str())
    }

    /// A folder that is missing is created, as etcd-backup-restore does, unless this volume was backed up before: then it is not
    /// mounted, and an empty one would hide the backups.
    fn store_is_there(&self) -> bool {
        let Some(store) = &self.settings.store else { return false };
        let Some(folder) = store.url.strip_prefix("file://").map(Path::new) else { return true };
        let container = store.root.split('/').filter(|part| !part.is_empty()).try_fold(folder, |at, _| at.parent());
        if !container.is_some_and(Path::is_dir) && self.settings.spool.is_dir() {
            warn!("`{}` is missing, and this volume was backed up before: is it mounted?", folder.display());
            return false;
        }
        match std::fs::create_dir_all(folder) {
            Ok(()) => true,
            Err(error) => {
                warn!(%error, "cannot make `{}`", folder.display());
                false
            }
        }
    }

    fn follow_settings(&self) -> Option<FollowSettings> {
        let settings = &self.settings;
        let store = settings.store.as_ref()?;
        Some(FollowSettings {
            store: store.url.clone(),
            etcd: settings.etcd.clone(),
            spool: settings.spool.clone(),
            spool_max_bytes: settings.spool_max_bytes,
            delta_period: settings.delta_period,
            delta_bytes: settings.delta_bytes,
            full_schedule: settings.full_schedule.clone(),
            layout: Layout::Gardener,
            max_restore_time: None,
            keep: settings.keep,
            flush_timeout: FLUSH_LIMIT,
            take_over: TakeOver::No,
            // The sidecar restores etcd from this very store, and continues.
            restored: true,
            taken_over: false,
            was: Vec::new(),
            declared: None,
            peers: None,
            scratch: settings.data_dir.parent().unwrap_or(Path::new("/")).to_owned(),
        })
    }

    fn read_status(&self, by: IpAddr, takes: bool) -> Status {
        self.handshake.lock().unwrap_or_else(PoisonError::into_inner).read(by, takes)
    }

    /// Begins an initialization, unless one is under way or its outcome has not been read.
    fn start_initialization(self: &Arc<Shared>, by: IpAddr, mode: Mode) {
        if !self.handshake.lock().unwrap_or_else(PoisonError::into_inner).start(by) {
            return;
        }
        self.set_health(false);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let done = shared.initialize(mode).await;
            if let Err(fault) = &done {
                let hint = fault.hint_text().unwrap_or_default();
                error!(code = %fault.code(), hint, "{}", in_words(fault));
            }
            shared.handshake.lock().unwrap_or_else(PoisonError::into_inner).finish(done.is_ok());
            let _ = shared.demands.send(Demand::GoOn).await;
        });
    }

    async fn initialize(&self, mode: Mode) -> Result<()> {
        let (done, quiet) = oneshot::channel();
        let _ = self.demands.send(Demand::Quiet { done }).await;
        let yaml = self.read_config()?;
        self.joined.store(false, Ordering::Relaxed);
        let cluster = self.place_in_cluster(&yaml).await?;
        let settings = &self.settings;
        let job = Job {
            data_dir: settings.data_dir.clone(),
            store: settings.store.as_ref().map(|store| store.url.clone()),
            spool: settings.spool.clone(),
            spool_max_bytes: settings.spool_max_bytes,
            namespace: settings.namespace.clone(),
            pod: settings.pod.clone(),
            mode,
        };
        let quiet = move || {
            let _ = quiet.blocking_recv();
        };
        let (etcdbr, data_dir, pod) = (self.etcdbr.clone(), job.data_dir.clone(), job.pod.clone());
        let peer_urls = move |yaml: &EtcdYaml| config::peer_urls(yaml, pod.as_deref());
        let looked = unblock(move || {
            let next = initialize::initialize(&job, &yaml, cluster, &etcdbr, quiet)?;
            Ok((next, peer_urls(&yaml)))
        });
        match looked.await? {
            (Next::Start, _) => Ok(()),
            (Next::Join { former, add }, peer_urls) => {
                let began = Instant::now();
                let replaces = former.is_some();
                let done = self.join(former, add.then_some(peer_urls?), data_dir).await;
                if replaces {
                    self.etcdbr.did(Act::ReplaceMember, began.elapsed(), done.is_ok());
                }
                done
            }
        }
    }

    /// Takes the former self out, sets aside what is there, and has this member added at `urls` unless that was done before.
    async fn join(
        &self,
        former: Option<(u64, Vec<String>)>,
        urls: Option<Vec<String>>,
        data_dir: PathBuf,
    ) -> Result<()> {
        if let Some((id, client_urls)) = former {
            learner::remove(self, id, &client_urls).await?;
        }
        unblock(move || initialize::set_aside(&data_dir)).await?;
        if let Some(urls) = urls {
            learner::add(self, urls).await?;
        }
        self.joined.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// What the running cluster knows of this member.
    async fn place_in_cluster(&self, yaml: &EtcdYaml) -> Result<ClusterSeen> {
        if self.members() < 2 {
            return Ok(ClusterSeen::Silent);
        }
        let pod = self.settings.pod.as_deref();
        let (name, peer_urls) = (config::name(yaml, pod)?, config::peer_urls(yaml, pod)?);
        Ok(learner::place(self.live().await.as_deref(), &name, &peer_urls))
    }

    /// Who is in the running cluster; `None`: nobody answers.
    async fn live(&self) -> Option<Vec<Live>> {
        if self.settings.service_endpoints.is_empty() {
            return None;
        }
        let asked = async { learner::members(&learner::cluster(self).await?).await };
        tokio::time::timeout(LIVE_LIMIT, asked).await.ok()?.ok()
    }

    async fn config(&self) -> Result<String> {
        let yaml = self.read_config()?;
        let live = if self.members() > 1 { self.live().await } else { None };
        if self.joined.load(Ordering::Relaxed) {
            let pod = self.settings.pod.as_deref();
            let place = learner::place(live.as_deref(), &config::name(&yaml, pod)?, &config::peer_urls(&yaml, pod)?);
            if matches!(place, ClusterSeen::Silent | ClusterSeen::WithoutUs) {
                // Told to found a cluster, etcd would do so beside the one that this member was added to.
                let what = "cannot tell how to join: the cluster does not show this member now";
                return Err(Fault::new(Code::GardenerConfig, what).hint("it is asked again"));
            }
        }
        Ok(config::merge(yaml, self.settings.pod.as_deref(), live.as_deref())?.render())
    }
}

/// Runs what blocks where it may.
async fn unblock<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let halted = |error| Fault::new(Code::Internal, "a part of the sidecar came to a halt").caused_by(error);
    tokio::task::spawn_blocking(work).await.map_err(halted)?
}
