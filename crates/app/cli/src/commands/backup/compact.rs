//! `quorate backup compact`: one new full backup in place of a full and the deltas behind it.
//!
//! **Rule:** nothing old is touched. The new full goes into the store after it was compared with the chain, write by
//! write, and counts after it was read back from there.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicU64;

use quorate_backup::equal;
use quorate_backup::events::ChainEvents;
use quorate_backup::session::{Session, Wanted};
use quorate_backup::write::{self, About};
use quorate_backup::{Base, catalog::Catalog};
use quorate_etcd::datadir::FileSource;
use quorate_etcd::engine::{BaseFile, Ingredients, write_database};
use quorate_etcd_formats::delta::quorate::{Manifest, Name, Origin};
use quorate_etcd_formats::rebuild::{Options, Rebuilt};
use quorate_faults::{Exit, Fault};
use quorate_host::durable::{Access, Disk, RealDisk};
use quorate_plan::chain::{Layout, Target};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{StoreArgs, now_ms, tell, warn_short};
use crate::commands::data::watched;
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `backup compact`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup compact --store file:///backups

A restore from the new full needs no delta up to its revision. The old objects
stay: they are what earlier revisions are restored from.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
}

/// Compacts it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let mut session = Session::open(&args.store.store, &std::env::temp_dir())?;
    let scratch = TempDir::with_prefix("quorate-compact.partial-")
        .map_err(|error| Fault::io("cannot make a scratch dir", error))?;
    let newest = Wanted::Target(Target::Newest);
    let mut round = 0;
    let proven = session.run(&newest, |base, events, _| {
        round += 1;
        let path = scratch.path().join(format!("full-{round}.partial-db"));
        let rebuilt = merge(base, events, &path, printer)?;
        Ok((path, rebuilt))
    })?;
    tell(&mut session, printer);
    warn_short(proven.decision.short.as_ref(), proven.revision, printer);
    if proven.used.is_empty() && session.catalog.objects[proven.base].layout == Layout::Quorate {
        printer.report(&Outcome::nothing(&args.store.store, proven.revision));
        return Ok(Exit::Done);
    }
    let (path, rebuilt) = &proven.result;
    // The old objects are read once more, and nothing is in the store yet.
    session.run(&newest, |base, events, _| equal::file_equals_chain(path, base, events))?;
    let about = about(&session.catalog, proven.base);
    let attempt = format!("cannot read `{}`", path.display());
    let file = File::open(path).map_err(|error| Fault::io(attempt.clone(), error))?;
    let manifest = write::full(&session.store, &about, proven.revision, rebuilt.revisions, file, |error| {
        Fault::io(attempt.clone(), error)
    })?;
    if let Err(fault) = equal::arrived(&session.store, &name(&manifest).object(), &manifest, scratch.path()) {
        write::withdraw(&session.store, &name(&manifest))?;
        return Err(fault);
    }
    printer.report(&Outcome {
        store: args.store.store.clone(),
        revision: proven.revision,
        writes_merged: proven.events,
        deltas: proven.used.len(),
        full: Some(name(&manifest).object()),
        bytes: manifest.stored.bytes,
        content_bytes: manifest.content.bytes,
        proven_equal: true,
    });
    Ok(Exit::Done)
}

/// Merges a full and the writes behind it into a new snapshot file.
fn merge(base: &Base, events: &mut ChainEvents, path: &Path, printer: &Printer) -> Result<Rebuilt, Fault> {
    let shown = base.name.clone();
    let source = FileSource::open(base.path()).map_err(|error| Fault::io(format!("cannot read `{shown}`"), error))?;
    let progress = AtomicU64::new(0);
    let rebuilt = watched(printer, "merging", base.bytes, &progress, || {
        let mut file = RealDisk.create_file(path, Access::mode(0o600))?;
        // Its hash was checked when it was brought here.
        let base = BaseFile { source: &source, name: &shown, check_hash: false };
        let options = Options::copy();
        let ingredients = Ingredients { base: Some(base), events: Some(events), options, progress: &progress };
        write_database(&mut file, ingredients)
    })??;
    seal(path).map_err(|error| Fault::io(format!("cannot write `{}`", path.display()), error))?;
    Ok(rebuilt)
}

/// Appends the SHA-256 that makes a database a snapshot file.
fn seal(path: &Path) -> std::io::Result<()> {
    let mut file = File::options().read(true).append(true).open(path)?;
    let mut hasher = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            length => hasher.update(&piece[..length]),
        }
    }
    file.write_all(&hasher.finalize())
}

/// Who the new full is from: whoever the old one is from.
fn about(catalog: &Catalog, base: usize) -> About {
    let manifest = catalog.handles[base].manifest.as_ref();
    let id = |hex: &String| u64::from_str_radix(hex, 16).unwrap_or(0);
    let origin = manifest.map_or_else(Origin::default, |manifest| Origin {
        cluster_id: id(&manifest.cluster_id),
        member_id: id(&manifest.member_id),
        etcd_version: manifest.etcd_version.clone(),
    });
    About { origin, epoch: catalog.newest_epoch(), created_ms: now_ms(), ..About::default() }
}

fn name(manifest: &Manifest) -> Name {
    Name { first: None, last: manifest.last, epoch: manifest.epoch, created_ms: manifest.created_ms }
}

/// What is printed.
#[derive(Serialize)]
struct Outcome {
    store: String,
    revision: u64,
    writes_merged: u64,
    deltas: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    full: Option<String>,
    bytes: u64,
    content_bytes: u64,
    proven_equal: bool,
}

impl Outcome {
    fn nothing(store: &str, revision: u64) -> Outcome {
        Outcome {
            store: store.to_owned(),
            revision,
            writes_merged: 0,
            deltas: 0,
            full: None,
            bytes: 0,
            content_bytes: 0,
            proven_equal: false,
        }
    }
}

impl Report for Outcome {
    fn render(&self, page: &mut Page) {
        let Some(full) = &self.full else {
            page.line(format!("nothing to do: revision {} is in a full backup of its own", self.revision));
            return;
        };
        page.line(format!("made `{full}` ({})", bytes(self.bytes)));
        let (writes, deltas) = (self.writes_merged, self.deltas);
        page.line(format!("  revision {}: one full and {writes} writes from {deltas} deltas", self.revision));
        page.line("  equal to the chain, write by write, and read back from the store");
    }
}
