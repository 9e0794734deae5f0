//! `quorate backup now`: one full backup of a running cluster.
//!
//! **Rule:** it takes over nothing: a follower that is at work goes on, and finds one more full in its chain.

use std::sync::Arc;

use jiff::Timestamp;
use quorate_agent::backups::full::{self, NoCuts, Order, Taken};
use quorate_backup::catalog::Catalog;
use quorate_backup::epochs;
use quorate_backup::store::Store;
use quorate_backup::write::About;
use quorate_etcd::client::{Client, Settings};
use quorate_etcd_formats::hex::unhex;
use quorate_etcd_formats::rebuild::BUMP_DEFAULT;
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::chain::Layout;
use quorate_plan::follow::{Kin, Me, StoreSeen, observe_lineage};
use quorate_plan::restore_point::{Content, RestorePoint};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{StoreArgs, time};
use crate::commands::etcd_args::EtcdArgs;
use crate::commands::fresh_nonce;
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `backup now`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup now --store file:///backups --endpoints http://127.0.0.1:2379
  quorate backup now --store s3://bucket/prod --endpoints https://etcd:2379 \\
      --cacert ca.pem --cert client.pem --key client.key

It is read back from the store before it counts. A follower that records the same
cluster is not disturbed. Snapshots of a cluster with users need the role `root`.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    etcd: EtcdArgs,
}

/// Takes it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let settings = args.etcd.settings(printer)?;
    let runtime = super::follow::runtime()?;
    let mut progress = printer.progress("taking a full backup", None);
    progress.set(0);
    let taken = runtime.block_on(async {
        let stop = CancellationToken::new();
        tokio::select! {
            taken = take(&args.store.store, &settings, &stop) => taken,
            _ = tokio::signal::ctrl_c() => {
                stop.cancel();
                Err(Fault::new(Code::CutShort, "gave up the full backup").hint("nothing of it is in the store"))
            }
        }
    });
    runtime.shutdown_background();
    drop(progress);
    printer.report(&Outcome::of(&args.store.store, &taken?)?);
    Ok(Exit::Done)
}

async fn take(url: &str, settings: &Settings, stop: &CancellationToken) -> Result<Taken, Fault> {
    let client = Client::connect(settings).await?;
    let heard = full::ask_all(&client).await?;
    let (cluster_id, revision, name) = (heard.origin.cluster_id, heard.revision, url.to_owned());
    let prepared = tokio::task::spawn_blocking(move || {
        let store = Store::open(&name, true)?;
        let about = About { origin: heard.origin, created_ms: Timestamp::now().as_millisecond(), ..About::default() };
        let epoch = epoch_for(&store, &about, revision)?;
        Ok::<_, Fault>((Arc::new(store), epoch))
    });
    let halted = |error| Fault::new(Code::Internal, "opening the store came to a halt").caused_by(error);
    let (store, epoch) = prepared.await.map_err(halted)??;
    let order = Order { cluster_id, epoch, layout: Layout::Quorate, turn: 0 };
    full::take(&client, &store, &order, &NoCuts, stop).await
}

/// The newest epoch of the cluster, so that nobody is fenced off; the first one in a store without any.
fn epoch_for(store: &Store, about: &About, revision: u64) -> Result<u64, Fault> {
    let mut catalog = Catalog::read(store)?;
    let here = about.origin.cluster_id;
    let me = Me { cluster_id: here, ..Me::default() };
    let (seen, lineage) = observe_lineage(&catalog.objects, &catalog.epochs, &catalog.opened, &me);
    if let Some(lineage) = &lineage {
        catalog.narrow(lineage);
    }
    if let StoreSeen::Holds(holds) = seen {
        let reach = holds.reach.unwrap_or(0);
        if holds.kin != Kin::Own || (holds.cluster_id != 0 && holds.cluster_id != here) {
            let whose = lineage.map_or_else(|| format!("cluster {:x}", holds.cluster_id), |lineage| lineage.title());
            let what = format!(
                "cannot use this store: it holds backups of {whose} up to revision {reach}, and etcd is of {here:x}"
            );
            return Err(Fault::new(Code::StoreOfOther, what).hint("give `--store` a folder of its own"));
        }
        if reach > revision {
            let what =
                format!("cannot use this store: revision {reach} was backed up, and etcd is at revision {revision}");
            return Err(Fault::new(Code::RevisionWentBack, what)
                .hint("etcd's data was replaced: `quorate backup follow` begins a new history for it"));
        }
    }
    match catalog.newest_epoch() {
        0 => epochs::take(store, about, revision.max(1)),
        epoch => Ok(epoch),
    }
}

/// What is printed.
#[derive(Serialize)]
struct Outcome {
    store: String,
    full: String,
    revision: u64,
    epoch: u64,
    cluster_id: String,
    etcd_version: String,
    endpoint: String,
    bytes: u64,
    content_bytes: u64,
    seconds: f64,
    created: String,
    restore_point: String,
}

impl Outcome {
    fn of(store: &str, taken: &Taken) -> Result<Outcome, Fault> {
        let manifest = &taken.manifest;
        let sha256 = unhex(&manifest.stored.sha256)
            .ok_or_else(|| Fault::new(Code::Internal, "a manifest was made without a hash"))?;
        let point = RestorePoint {
            revision: manifest.last,
            digest: RestorePoint::digest(manifest.last, [(0, sha256)]),
            nonce: Some(fresh_nonce()),
            content: Content { bump: Some(BUMP_DEFAULT), mark_compacted: true },
        };
        Ok(Outcome {
            store: store.to_owned(),
            full: taken.name.clone(),
            revision: manifest.last,
            epoch: manifest.epoch,
            cluster_id: manifest.cluster_id.clone(),
            etcd_version: manifest.etcd_version.clone(),
            endpoint: taken.endpoint.clone(),
            bytes: manifest.stored.bytes,
            content_bytes: manifest.content.bytes,
            seconds: taken.took.as_secs_f64(),
            created: time(manifest.created_ms),
            restore_point: point.to_string(),
        })
    }
}

impl Report for Outcome {
    fn render(&self, page: &mut Page) {
        page.line(format!("stored `{}` and read it back", self.full));
        page.pairs([
            ("store", self.store.clone()),
            ("revision", self.revision.to_string()),
            ("size", format!("{} ({} of database)", bytes(self.bytes), bytes(self.content_bytes))),
            ("took", format!("{:.2} s, from {}", self.seconds, self.endpoint)),
            ("cluster", format!("{}, etcd {}", self.cluster_id, self.etcd_version)),
            ("restore point", self.restore_point.clone()),
        ]);
    }
}
