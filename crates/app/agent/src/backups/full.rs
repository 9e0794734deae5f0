//! Takes one full backup: from etcd's snapshot through hash, reader and compressor into the store, piece by piece.
//!
//! **Invariant:** nothing of the database is on this machine's disk, and no more than a few pieces are in memory. A full
//! counts after its own SHA-256 was seen to hold, its revision was read from it, and it was read back from the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;
use quorate_backup::store::Store;
use quorate_backup::write::{self, About, FullUpload};
use quorate_etcd::client::Client;
use quorate_etcd_formats::delta::quorate::{Manifest, Origin};
use quorate_etcd_formats::passing::Passing;
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::Layout;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Pieces (of 32 KiB to 64 KiB) that may wait between the network and the compressor.
const PIECES_MAX: usize = 32;

/// What etcd says about itself now.
#[derive(Debug, Clone)]
pub struct Heard {
    /// Who it is.
    pub origin: Origin,
    /// Its newest revision.
    pub revision: u64,
}

/// Asks for the newest revision, so that no later answer of the same member is older.
pub async fn ask(client: &Client) -> Result<Heard> {
    let header = client.header().await?;
    let revision = u64::try_from(header.revision).unwrap_or(0);
    let origin = Origin { cluster_id: header.cluster_id, member_id: header.member_id, etcd_version: String::new() };
    Ok(Heard { origin, revision })
}

/// The same, with the version; costs one more question. Some releases tell it to the role `root` only: then it is empty.
pub async fn ask_all(client: &Client) -> Result<Heard> {
    let mut heard = ask(client).await?;
    heard.origin.etcd_version = match client.status().await {
        Ok(status) => status.version,
        Err(fault) if fault.code() == Code::EtcdRefused => String::new(),
        Err(fault) => return Err(fault),
    };
    Ok(heard)
}

/// What a full is to be like.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// The only cluster that it may be of.
    pub cluster_id: u64,
    /// The writer's epoch.
    pub epoch: u64,
    /// Names and form.
    pub layout: Layout,
    /// The endpoint to begin with, counted around.
    pub turn: usize,
}

/// Where deltas are cut while a full is taken. Only a layout whose names say less than its fulls hold needs it: whoever
/// restores a full by its name takes deltas that end between what it says and what it holds for newer than it is.
pub trait Cuts: Sync {
    /// When this returns, no delta ends any more, and none that ended has a moment as young as a name that is made now.
    fn hold(&self) -> impl Future<Output = ()> + Send;
    /// Deltas end at this revision at the earliest; 0: anywhere.
    fn not_before(&self, revision: u64);
    /// Waits until everything up to there is on disk, so that not even a kill ends a delta earlier.
    fn recorded(&self, revision: u64) -> impl Future<Output = Result<()>> + Send;
}

/// Nobody cuts.
pub struct NoCuts;

impl Cuts for NoCuts {
    async fn hold(&self) {}
    fn not_before(&self, _: u64) {}
    async fn recorded(&self, _: u64) -> Result<()> {
        Ok(())
    }
}

/// A full that is in the store.
#[derive(Debug, Clone)]
pub struct Taken {
    /// Its manifest.
    pub manifest: Manifest,
    /// Its name.
    pub name: String,
    /// The member that sent it.
    pub endpoint: String,
    /// How long it took, reading back included.
    pub took: Duration,
}

/// Takes one. `stop` gives it up, and leaves nothing.
pub async fn take(
    client: &Client,
    store: &Arc<Store>,
    order: &Order,
    cuts: &impl Cuts,
    stop: &CancellationToken,
) -> Result<Taken> {
    let began = Instant::now();
    let members: Vec<Client> = client.each().collect();
    let mut failure = None;
    for at in 0..members.len() {
        let member = &members[(order.turn + at) % members.len()];
        cuts.hold().await;
        let taken = stream(member, store, order, cuts, stop).await;
        if taken.is_err() {
            cuts.not_before(0);
        }
        match taken {
            Ok((manifest, name, endpoint)) => return Ok(Taken { manifest, name, endpoint, took: began.elapsed() }),
            // Another member may be reachable, or whole; a store is the same for all of them.
            Err(fault)
                if matches!(fault.code(), Code::EtcdUnreachable | Code::SnapshotBroken) && !stop.is_cancelled() =>
            {
                failure = Some(fault);
            }
            Err(fault) => return Err(fault),
        }
    }
    Err(failure.unwrap_or_else(|| Fault::new(Code::EtcdUnreachable, "cannot take a snapshot without an endpoint")))
}

/// From one member.
async fn stream(
    member: &Client,
    store: &Arc<Store>,
    order: &Order,
    cuts: &impl Cuts,
    stop: &CancellationToken,
) -> Result<(Manifest, String, String)> {
    let heard = ask_all(member).await?;
    check_cluster(order.cluster_id, heard.origin.cluster_id)?;
    let mut snapshot = member.snapshot().await.map_err(permitted)?;
    let endpoint = snapshot.endpoint().to_owned();
    let about = About {
        origin: heard.origin,
        epoch: order.epoch,
        created_ms: Timestamp::now().as_millisecond(),
        floor: heard.revision,
        declared: None,
        was: Vec::new(),
    };
    let first = snapshot.next().await?;
    let upper = ask(member).await?.revision;
    cuts.not_before(upper);
    let (send, receive) = mpsc::channel::<Piece>(PIECES_MAX);
    let (store, layout) = (Arc::clone(store), order.layout);
    let work = tokio::task::spawn_blocking(move || put(&store, &about, layout, receive));
    let mut next = Ok(first);
    let fetched = loop {
        match next {
            Ok(Some(piece)) => {
                if send.send(Piece::More(piece)).await.is_err() {
                    // The other side has failed, and says why.
                    break Ok(());
                }
            }
            Ok(None) => {
                let recorded = tokio::select! {
                    recorded = cuts.recorded(upper) => recorded,
                    () = stop.cancelled() => Err(given_up()),
                };
                if recorded.is_ok() {
                    let _ = send.send(Piece::End).await;
                }
                break recorded;
            }
            Err(fault) => break Err(fault),
        }
        next = tokio::select! {
            piece = snapshot.next() => piece,
            () = stop.cancelled() => break Err(given_up()),
        };
    };
    // Without an end, what arrived is given up.
    drop(send);
    let put = work.await.map_err(|error| Fault::new(Code::Internal, "the upload came to a halt").caused_by(error))?;
    fetched?;
    let (manifest, name) = put?;
    Ok((manifest, name, endpoint))
}

fn given_up() -> Fault {
    Fault::new(Code::CutShort, "gave up a full backup: the end was asked for")
}

/// etcd names no right in its refusal, so that it is named here.
fn permitted(fault: Fault) -> Fault {
    let denied = std::error::Error::source(&fault).is_some_and(|cause| cause.to_string().contains("permission denied"));
    match fault.code() == Code::EtcdRefused && denied {
        true => fault.hint(
            "etcd hands out snapshots to the role `root` only: `etcdctl user grant-role USER root`, or let another user \
             take fulls; see docs/guide/backup-role.md",
        ),
        false => fault,
    }
}

/// What comes through the channel.
enum Piece {
    More(Bytes),
    End,
}

/// The blocking half: hash, reader, compressor, store, and the way back.
fn put(store: &Store, about: &About, layout: Layout, mut pieces: mpsc::Receiver<Piece>) -> Result<(Manifest, String)> {
    let mut upload = FullUpload::begin(store, about, layout)?;
    let mut passing = Passing::new();
    loop {
        match pieces.blocking_recv() {
            Some(Piece::More(piece)) => {
                passing.push(&piece);
                if let Err(fault) = upload.write(&piece) {
                    upload.abandon();
                    return Err(fault);
                }
            }
            Some(Piece::End) => break,
            None => {
                upload.abandon();
                return Err(broken("it was cut off"));
            }
        }
    }
    let passed = match passing.finish() {
        Ok(passed) if passed.revision >= about.floor => passed,
        other => {
            upload.abandon();
            return Err(match other {
                Ok(passed) => {
                    broken(&format!("it holds revision {}, and {} was there before", passed.revision, about.floor))
                }
                Err(error) => broken(&error.to_string()),
            });
        }
    };
    let (manifest, name) = upload.finish(passed.revision)?;
    if let Err(fault) = write::read_back(store, &name, &manifest) {
        if fault.code() == Code::ObjectDamaged {
            // Nobody is to count on it. If it cannot be removed, its hash still tells.
            let _ = store.delete(&name);
        }
        return Err(fault);
    }
    Ok((manifest, name))
}

fn broken(why: &str) -> Fault {
    Fault::new(Code::SnapshotBroken, format!("cannot use the snapshot that etcd sent: {why}"))
        .hint("it is not in the store; it is tried again, and if it fails again, verify that member's data dir")
}

/// Histories of two clusters are never mixed. `expected` 0: any.
pub(crate) fn check_cluster(expected: u64, heard: u64) -> Result<()> {
    if expected == 0 || expected == heard {
        return Ok(());
    }
    let what = format!("cannot go on: cluster {heard:x} answered, and cluster {expected:x} is recorded");
    Err(Fault::new(Code::OtherCluster, what).hint("see that all endpoints belong to one cluster"))
}
