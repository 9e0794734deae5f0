//! Writes objects: fulls, deltas, their manifests, epochs.
//!
//! **Rule:** the object first, its manifest after it: an object without a manifest is readable, a manifest without an
//! object is not.

mod full;
mod object;
mod segment;

use std::io::Read;

use quorate_etcd_formats::delta::quorate::{
    Declared, DeltaWriter, Epoch, FORMAT, Hashed, Kind, Manifest, Name, Origin, epoch_name,
};
use quorate_etcd_formats::delta::{Event, LeaseGrant};
use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::Layout;
use sha2::{Digest, Sha256};

use crate::body;
use crate::catalog::Handle;
use crate::store::Store;

pub use full::{FullUpload, read_back};
pub use segment::{segment, segment_name};

use object::{Arrived, LEVEL, cannot_compress};

/// What a manifest says beyond sizes and hashes.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// Who was recorded.
    pub origin: Origin,
    /// The writer's epoch.
    pub epoch: u64,
    /// When the object was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// Of a full: a revision that was there before the snapshot was asked for. It is in the object's name.
    pub floor: u64,
    /// Of an epoch: the declaration that the cluster comes of, where it is known.
    pub declared: Option<Declared>,
    /// Of an epoch: the clusters that this one descends from.
    pub was: Vec<u64>,
}

/// What a snapshot file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holds {
    /// Its newest revision.
    pub revision: u64,
    /// How many revisions it has.
    pub items: u64,
    /// When its newest write was recorded, where that is known.
    pub last_write_ms: Option<i64>,
}

/// Writes a snapshot file as a full.
pub fn full(
    store: &Store,
    about: &About,
    holds: Holds,
    mut snapshot: impl Read,
    copied: impl Fn(std::io::Error) -> Fault,
) -> Result<Manifest> {
    let about = About { floor: holds.revision, ..about.clone() };
    let mut upload = FullUpload::begin(store, &about, Layout::Quorate)?;
    let mut piece = vec![0; 1 << 20];
    let copy = loop {
        match snapshot.read(&mut piece) {
            Ok(0) => break Ok(()),
            Ok(length) => match upload.write(&piece[..length]) {
                Ok(()) => {}
                Err(fault) => break Err(fault),
            },
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => break Err(copied(error)),
        }
    };
    if let Err(fault) = copy {
        upload.abandon();
        return Err(fault);
    }
    upload.finish_with(holds).map(|(manifest, _)| manifest)
}

/// A delta that is being written. Its name is known when it ends, so it is compressed in memory-bounded pieces first.
pub struct Delta {
    writer: DeltaWriter,
    compressed: Vec<u8>,
    encoder: zstd::stream::raw::Encoder<'static>,
    content: Sha256,
}

impl Delta {
    /// Begins one.
    pub fn begin() -> Result<Delta> {
        let encoder = zstd::stream::raw::Encoder::new(LEVEL).map_err(cannot_compress)?;
        Ok(Delta { writer: DeltaWriter::default(), compressed: Vec::new(), encoder, content: Sha256::new() })
    }

    /// Adds a write.
    pub fn push(&mut self, event: &Event<'_>) -> Result<()> {
        self.writer.push(event).map_err(|disorder| {
            Fault::new(Code::Internal, "cannot write a delta whose revisions are not in order").caused_by(disorder)
        })?;
        self.compress(false)
    }

    /// Records a lease.
    pub fn grant(&mut self, grant: LeaseGrant) {
        self.writer.grant(grant);
    }

    /// Bytes before compression so far.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// Puts it into the store. `None`: it has no writes, and nothing was put.
    pub fn finish(mut self, store: &Store, about: &About) -> Result<Option<Manifest>> {
        let written = self.writer.finish();
        self.compress(true)?;
        let Some(summary) = written.summary else { return Ok(None) };
        let name =
            Name { first: Some(summary.first), last: summary.last, epoch: about.epoch, created_ms: about.created_ms };
        let stored = Hashed { bytes: self.compressed.len() as u64, sha256: hex(&Sha256::digest(&self.compressed)) };
        let content = Hashed { bytes: written.bytes, sha256: hex(&self.content.finalize()) };
        let range = (summary.first, summary.last);
        let arrived = Arrived { stored, content };
        let manifest = manifest(Kind::Delta, about, range, summary.events, arrived, written.last_write_ms);
        if !store.create(&name.object(), self.compressed)? && !is_there(store, &name, &manifest)? {
            let attempt = format!("cannot write `{}`: it is there already, with other bytes", name.object());
            return Err(Fault::new(Code::ObjectTaken, attempt)
                .hint("another writer is at work on this store, or this was done before"));
        }
        put_manifest(store, &name, &manifest)?;
        Ok(Some(manifest))
    }

    fn compress(&mut self, last: bool) -> Result<()> {
        use zstd::stream::raw::{Operation, OutBuffer};
        if !last && self.writer.out.len() < 128 << 10 {
            return Ok(());
        }
        self.content.update(&self.writer.out);
        let mut rest = self.writer.out.as_slice();
        let mut piece = vec![0; 64 << 10];
        while !rest.is_empty() {
            let status = self.encoder.run_on_buffers(rest, &mut piece).map_err(cannot_compress)?;
            rest = &rest[status.bytes_read..];
            self.compressed.extend_from_slice(&piece[..status.bytes_written]);
        }
        self.writer.out.clear();
        let mut open = last;
        while open {
            let mut out = OutBuffer::around(piece.as_mut_slice());
            let more = self.encoder.finish(&mut out, true).map_err(cannot_compress)?;
            self.compressed.extend_from_slice(out.as_slice());
            open = more > 0;
        }
        Ok(())
    }
}

/// Whether the object of that name is this very one: a run that was repeated makes it again.
fn is_there(store: &Store, name: &Name, manifest: &Manifest) -> Result<bool> {
    let there = body::stored_sha256(store, &Handle::own(&name.object()))?;
    Ok(hex(&there) == manifest.stored.sha256)
}

/// Opens an epoch, unless it is there: then says `false`.
pub fn epoch(store: &Store, about: &About, begins_at: u64) -> Result<bool> {
    let epoch = Epoch {
        format: FORMAT.to_owned(),
        epoch: about.epoch,
        begins_at,
        cluster_id: format!("{:x}", about.origin.cluster_id),
        member_id: format!("{:x}", about.origin.member_id),
        created_ms: about.created_ms,
        writer: String::new(),
        declared: about.declared.clone(),
        was: about.was.iter().map(|id| format!("{id:x}")).collect(),
    };
    store.create(&epoch_name(about.epoch), epoch.to_json())
}

/// Takes back a full that proved to be wrong.
pub fn withdraw(store: &Store, name: &Name) -> Result<()> {
    store.withdraw(&name.manifest())?;
    store.withdraw(&name.object())
}

/// An equal name means an equal epoch and moment, so one that is there already is from a run of ours; if it was cut off,
/// it is made again.
fn put_manifest(store: &Store, name: &Name, manifest: &Manifest) -> Result<()> {
    let (name, json) = (name.manifest(), manifest.to_json());
    if store.create(&name, json.clone())? {
        return Ok(());
    }
    let there = Manifest::parse(&store.read_small(&name)?);
    let same = |there: &Manifest| {
        (there.first, there.last, &there.stored) == (manifest.first, manifest.last, &manifest.stored)
    };
    if there.as_ref().is_some_and(same) {
        return Ok(());
    }
    store.withdraw(&name)?;
    store.create(&name, json).map(|_| ())
}

fn manifest(
    kind: Kind,
    about: &About,
    (first, last): (u64, u64),
    events: u64,
    Arrived { stored, content }: Arrived,
    last_write_ms: Option<i64>,
) -> Manifest {
    Manifest {
        format: FORMAT.to_owned(),
        kind,
        first,
        last,
        events,
        stored,
        content,
        cluster_id: format!("{:x}", about.origin.cluster_id),
        member_id: format!("{:x}", about.origin.member_id),
        etcd_version: about.origin.etcd_version.clone(),
        epoch: about.epoch,
        created_ms: about.created_ms,
        last_write_ms,
    }
}
