//! The snapshotter: follows etcd into the store while this member leads, and gives way to whoever needs it quiet.
//!
//! A backup on demand ends the follower first, which brings all that was recorded into the store, and begins it again
//! behind. So no delta ends inside of a full, as Gardener's restorer needs it.
//!
//! **Invariant:** there is at most one follower, and none while an initialization restores.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quorate_backup::store::Store;
use quorate_etcd::client::Client;
use quorate_etcd_formats::delta::gardener::Name;
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::Layout;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::snapshots::{self, Snapshot};
use super::{Shared, in_words, unblock};
use crate::backups::follow::{Ended, FollowSettings, follow};
use crate::backups::full::{self, NoCuts, Order};
use crate::backups::metrics::Kind;

/// Between two looks at etcd.
const LOOK: Duration = Duration::from_secs(1);

/// First and longest pause after a follower that failed.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(128));

/// Who waits for a backup on demand. `None`: there was nothing new.
pub(super) type Answer = oneshot::Sender<Result<Option<Snapshot>>>;

/// What is asked of the snapshotter.
pub(super) enum Demand {
    /// A full, now.
    Full { is_final: bool, answer: Answer },
    /// All that was recorded, now.
    Delta { answer: Answer },
    /// Nothing, until told to go on; answered when it is quiet.
    Quiet { done: oneshot::Sender<()> },
    /// Go on.
    GoOn,
}

/// Works until the end.
pub(super) async fn work(shared: Arc<Shared>, mut demands: mpsc::Receiver<Demand>, stop: CancellationToken) {
    let (mut quiet, mut pause) = (false, PAUSE.0);
    loop {
        if stop.is_cancelled() {
            return;
        }
        let client = if quiet { None } else { leads(&shared).await };
        let store_is_there = shared.settings.store.is_none() || shared.store_is_there();
        shared.set_health(client.is_some() && store_is_there);
        let Some(client) = client.filter(|_| store_is_there) else {
            tokio::select! {
                demand = demands.recv() => idle(demand, &mut quiet),
                () = tokio::time::sleep(LOOK) => {}
                () = stop.cancelled() => return,
            }
            continue;
        };
        let Some(settings) = shared.follow_settings() else {
            // No store: there is nothing to do but to look.
            tokio::select! {
                demand = demands.recv() => idle(demand, &mut quiet),
                () = tokio::time::sleep(LOOK) => {}
                () = stop.cancelled() => return,
            }
            continue;
        };
        let turn = stop.child_token();
        let follower = tokio::spawn(follow(settings.clone(), shared.metrics.clone(), turn.clone()));
        match attend(&shared, follower, &mut demands, &turn).await {
            Next::Failed => {
                shared.set_health(false);
                let until = tokio::time::Instant::now() + pause;
                while !quiet && tokio::time::Instant::now() < until {
                    tokio::select! {
                        demand = demands.recv() => idle(demand, &mut quiet),
                        () = tokio::time::sleep_until(until) => {}
                        () = stop.cancelled() => return,
                    }
                }
                pause = (pause * 2).min(PAUSE.1);
            }
            Next::Over => return,
            Next::Again => pause = PAUSE.0,
            Next::Asked(demand, before) => {
                pause = PAUSE.0;
                if let Err(demand) = on_demand(&shared, &client, &settings, (demand, before), &stop).await {
                    idle(Some(demand), &mut quiet);
                }
            }
        }
    }
}

enum Next {
    Failed,
    Over,
    Again,
    /// And the last revision of the newest delta before that.
    Asked(Demand, u64),
}

/// Stays with a follower until it ends, somebody asks for something, or another member leads.
async fn attend(
    shared: &Shared,
    mut follower: JoinHandle<Result<Ended>>,
    demands: &mut mpsc::Receiver<Demand>,
    turn: &CancellationToken,
) -> Next {
    let next = loop {
        tokio::select! {
            ended = &mut follower => return match said(shared, ended) {
                Some(_) if turn.is_cancelled() => Next::Over,
                Some(_) => Next::Again,
                None => Next::Failed,
            },
            demand = demands.recv() => {
                let before = shared.metrics.position.delta_revision.load(Ordering::Relaxed);
                break demand.map_or(Next::Over, |demand| Next::Asked(demand, before));
            }
            () = tokio::time::sleep(LOOK) => {
                let leads = leads(shared).await.is_some();
                shared.set_health(leads);
                // One member may be away for a moment; of several, another one records.
                if !leads && shared.members() > 1 {
                    break Next::Again;
                }
            }
        }
    };
    turn.cancel();
    said(shared, follower.await);
    next
}

fn said(shared: &Shared, ended: std::result::Result<Result<Ended>, tokio::task::JoinError>) -> Option<Ended> {
    let fault = match ended {
        Ok(Ok(ended)) => return Some(ended),
        Ok(Err(fault)) => fault,
        Err(error) => Fault::new(Code::Internal, "the follower came to a halt").caused_by(error),
    };
    shared.etcdbr.failed(fault.code());
    let hint = fault.hint_text().unwrap_or_default();
    error!(code = %fault.code(), hint, "backups ended: {}", in_words(&fault));
    None
}

/// Whether etcd serves and this member is to record it.
async fn leads(shared: &Shared) -> Option<Client> {
    let client = Client::connect(&shared.settings.etcd).await.ok()?;
    client.serves().await.ok()?;
    if shared.members() > 1 {
        let status = client.status().await.ok()?;
        let member = status.header.as_ref()?.member_id;
        if status.leader != member {
            return None;
        }
    }
    Some(client)
}

/// Answers while there is no follower.
fn idle(demand: Option<Demand>, quiet: &mut bool) {
    let inactive = || Fault::new(Code::EtcdUnreachable, "no backups are taken at the moment");
    match demand {
        None => {}
        Some(Demand::Full { answer, .. } | Demand::Delta { answer }) => {
            let _ = answer.send(Err(inactive().hint("see the sidecar's log for why")));
        }
        Some(Demand::Quiet { done }) => {
            *quiet = true;
            let _ = done.send(());
        }
        Some(Demand::GoOn) => *quiet = false,
    }
}

/// Does what was asked; what is not a backup is given back.
async fn on_demand(
    shared: &Shared,
    client: &Client,
    settings: &FollowSettings,
    (demand, before): (Demand, u64),
    stop: &CancellationToken,
) -> std::result::Result<(), Demand> {
    let (answer, result) = match demand {
        Demand::Full { is_final, answer } => {
            (answer, take_full(shared, client, settings, is_final, stop).await.map(Some))
        }
        Demand::Delta { answer } => (answer, newest_delta(shared, settings, before).await),
        other => return Err(other),
    };
    if let Err(fault) = &result {
        shared.etcdbr.failed(fault.code());
        warn!(code = %fault.code(), "a backup on demand failed: {}", in_words(fault));
    }
    let _ = answer.send(result);
    Ok(())
}

async fn take_full(
    shared: &Shared,
    client: &Client,
    settings: &FollowSettings,
    is_final: bool,
    stop: &CancellationToken,
) -> Result<Snapshot> {
    let url = settings.store.clone();
    let store = Arc::new(unblock(move || Store::open(&url, true)).await?);
    let order = Order { cluster_id: 0, epoch: 0, layout: Layout::Gardener, turn: 0 };
    let began = Instant::now();
    let taken = full::take(client, &store, &order, &NoCuts, stop).await;
    let taken = taken.inspect_err(|_| shared.metrics.failed(Kind::full, began.elapsed()))?;
    shared.metrics.uploaded(Kind::full, taken.manifest.stored.bytes, taken.took);
    info!(name = taken.name, "stored a full backup on demand and read it back");
    let name = match is_final {
        false => taken.name,
        true => unblock(move || make_final(&store, &taken.name)).await?,
    };
    let unknown = || Fault::new(Code::Internal, format!("`{name}` is no name of this layout"));
    Name::parse(&name).map(|name| Snapshot::of(&name, shared.root())).ok_or_else(unknown)
}

/// Gives a full the name that says that its cluster was meant to end with it. Stores cannot rename.
fn make_final(store: &Store, name: &str) -> Result<String> {
    let last = format!("{name}.final");
    let mut from = store.reader(name)?;
    let mut to = store.upload(&last)?;
    let copied = io::copy(&mut from, &mut to).and_then(|bytes| to.flush().map(|()| bytes));
    if let Err(error) = copied {
        to.abandon();
        return Err(Fault::io(format!("cannot write `{last}`"), error));
    }
    to.finish()?;
    store.delete(name)?;
    Ok(last)
}

/// The newest delta, if the end of the follower brought one that ends after `before`.
async fn newest_delta(shared: &Shared, settings: &FollowSettings, before: u64) -> Result<Option<Snapshot>> {
    let (url, root) = (settings.store.clone(), shared.root().to_owned());
    let newest = unblock(move || {
        let names = snapshots::names(&Store::open(&url, true)?)?;
        let newest = names.into_iter().rfind(|name| !name.full && name.last > before);
        Ok(newest.map(|name| Snapshot::of(&name, &root)))
    });
    newest.await
}
