//! One new full backup in place of a full and the deltas behind it.
//!
//! **Rule:** nothing old is touched. The new full goes into the store after it was compared with the chain, write by
//! write, and counts after it was read back from there.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use quorate_backup::catalog::Catalog;
use quorate_backup::events::ChainEvents;
use quorate_backup::session::{Session, Wanted};
use quorate_backup::write::{self, About};
use quorate_backup::{Base, equal};
use quorate_etcd::datadir::FileSource;
use quorate_etcd::engine::{BaseFile, Ingredients, write_database};
use quorate_etcd_formats::delta::quorate::{Manifest, Name, Origin};
use quorate_etcd_formats::rebuild::{Options, Rebuilt};
use quorate_faults::{Fault, Result};
use quorate_host::durable::{Access, Disk, RealDisk};
use quorate_plan::chain::{Layout, Target};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// What came of it.
#[derive(Debug)]
pub struct Compacted {
    /// The revision of the chain's end.
    pub revision: u64,
    /// Writes that went into the full.
    pub writes_merged: u64,
    /// Deltas that they came from.
    pub deltas: usize,
    /// Why the chain ends before the newest revision that is mentioned.
    pub short: Option<String>,
    /// The new full; `None`: the chain is a full of ours already, and nothing was done.
    pub full: Option<Manifest>,
}

impl Compacted {
    /// The new full's name in the store.
    pub fn name(&self) -> Option<String> {
        self.full.as_ref().map(|manifest| name(manifest).object())
    }
}

/// Someone who shows how the merge goes.
pub trait Onlooker {
    /// Runs `work`, which counts up to `total` bytes into `done`.
    fn merging<T: Send>(&self, total: u64, done: &AtomicU64, work: impl FnOnce() -> T + Send) -> Result<T>;
}

/// Nobody looks on.
pub struct Nobody;

impl Onlooker for Nobody {
    fn merging<T: Send>(&self, _: u64, _: &AtomicU64, work: impl FnOnce() -> T + Send) -> Result<T> {
        Ok(work())
    }
}

/// Compacts the chain to the newest state. Large files lie in `scratch` meanwhile.
pub fn compact(session: &mut Session, scratch: &Path, onlooker: &impl Onlooker) -> Result<Compacted> {
    let dir = TempDir::with_prefix_in("quorate-compact.partial-", scratch)
        .map_err(|error| Fault::io(format!("cannot make a scratch dir in `{}`", scratch.display()), error))?;
    let newest = Wanted::Target(Target::Newest);
    let mut round = 0;
    let proven = session.run(&newest, |base, events, _| {
        round += 1;
        let path = dir.path().join(format!("full-{round}.partial-db"));
        let rebuilt = merge(base, events, &path, onlooker)?;
        Ok((path, rebuilt))
    })?;
    let mut done = Compacted {
        revision: proven.revision,
        writes_merged: proven.events,
        deltas: proven.used.len(),
        short: proven.decision.short.clone(),
        full: None,
    };
    if proven.used.is_empty() && session.catalog.objects[proven.base].layout == Layout::Quorate {
        return Ok(done);
    }
    let (path, rebuilt) = &proven.result;
    // The old objects are read once more, and nothing is in the store yet.
    session.run(&newest, |base, events, _| equal::file_equals_chain(path, base, events))?;
    let about = about(&session.catalog, proven.base);
    let attempt = format!("cannot read `{}`", path.display());
    let file = File::open(path).map_err(|error| Fault::io(attempt.clone(), error))?;
    let before = session.catalog.handles[proven.base].manifest.as_ref().and_then(|manifest| manifest.last_write_ms);
    let holds = write::Holds {
        revision: proven.revision,
        items: rebuilt.revisions,
        // When it was written, not when it was made: `backup list` says by it what is at risk.
        last_write_ms: proven.last_time_ms.or(before),
    };
    let manifest = write::full(&session.store, &about, holds, file, |error| Fault::io(attempt.clone(), error))?;
    if let Err(fault) = equal::arrived(&session.store, &name(&manifest).object(), &manifest, dir.path()) {
        write::withdraw(&session.store, &name(&manifest))?;
        return Err(fault);
    }
    done.full = Some(manifest);
    Ok(done)
}

/// Merges a full and the writes behind it into a new snapshot file.
fn merge(base: &Base, events: &mut ChainEvents, path: &Path, onlooker: &impl Onlooker) -> Result<Rebuilt> {
    let shown = base.name.clone();
    let source = FileSource::open(base.path()).map_err(|error| Fault::io(format!("cannot read `{shown}`"), error))?;
    let (progress, total) = (events.progress(), base.bytes.saturating_add(events.stored_bytes()));
    let rebuilt = onlooker.merging(total, &progress, || {
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
    let created_ms = Timestamp::now().as_millisecond();
    About { origin, epoch: catalog.newest_epoch(), created_ms, ..About::default() }
}

fn name(manifest: &Manifest) -> Name {
    Name { first: None, last: manifest.last, epoch: manifest.epoch, created_ms: manifest.created_ms }
}
