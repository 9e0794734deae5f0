//! A full backup that streams from etcd into the store.
//!
//! **Rule:** the name carries the revision that was there before the snapshot was asked for; the one that the snapshot
//! holds is known at its end, and is in the manifest.

use std::io::Read;

use quorate_etcd_formats::delta::quorate::{Kind, Manifest, Name};
use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::passing::Passing;
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::Layout;
use sha2::{Digest, Sha256};

use super::object::{Missed, Outgoing, handle};
use super::{About, Holds, manifest, put_manifest};
use crate::body::Body;
use crate::decode::{Failure, Job, decode, read_failure};
use crate::store::Store;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// A full on its way into the store. Nothing is seen there before [`FullUpload::finish`].
pub struct FullUpload<'s> {
    store: &'s Store,
    about: About,
    layout: Layout,
    name: String,
    object: Outgoing<'s>,
}

impl<'s> FullUpload<'s> {
    /// Begins one. `about.floor` is a revision that etcd had reached before the snapshot was asked for.
    pub fn begin(store: &'s Store, about: &About, layout: Layout) -> Result<FullUpload<'s>> {
        let name = full_name(about, layout);
        let object = Outgoing::begin(store, &name)?;
        Ok(FullUpload { store, about: about.clone(), layout, name, object })
    }

    /// Takes the next bytes of the snapshot.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.object.write(bytes)
    }

    /// Puts it in its place. `revision` is what the snapshot holds. Gives the manifest and the object's name.
    pub fn finish(self, revision: u64) -> Result<(Manifest, String)> {
        self.finish_with(Holds { revision, items: 0, last_write_ms: None })
    }

    pub(super) fn finish_with(self, holds: Holds) -> Result<(Manifest, String)> {
        let Holds { revision, items, last_write_ms } = holds;
        let floor = self.about.floor;
        if revision < floor {
            self.object.abandon();
            let attempt =
                format!("cannot keep the snapshot: it holds revision {revision}, and {floor} was there before");
            return Err(
                Fault::new(Code::FullBehind, attempt).hint("it is tried again; see that no endpoint lags behind")
            );
        }
        let arrived = self.object.finish().map_err(|missed| match missed {
            Missed::Fault(fault) => fault,
            Missed::Damaged => taken(self.store, &self.name),
        })?;
        let manifest = manifest(Kind::Full, &self.about, (floor, revision), items, arrived, last_write_ms);
        if self.layout == Layout::Quorate {
            put_manifest(self.store, &name_of(&self.about), &manifest)?;
        }
        Ok((manifest, self.name))
    }

    /// Leaves nothing behind.
    pub fn abandon(self) {
        self.object.abandon();
    }
}

fn taken(store: &Store, name: &str) -> Fault {
    let attempt = format!("cannot write `{name}` in `{}`: damaged bytes are there already", store.url());
    Fault::new(Code::ObjectTaken, attempt).hint("the next full gets another name")
}

fn name_of(about: &About) -> Name {
    Name { first: None, last: about.floor, epoch: about.epoch, created_ms: about.created_ms }
}

fn full_name(about: &About, layout: Layout) -> String {
    match layout {
        Layout::Quorate => name_of(about).object(),
        Layout::Gardener => format!("v2/Full-00000000-{:08}-{}.gz", about.floor, about.created_ms.div_euclid(1000)),
    }
}

/// Reads an object back from the store: it has the hash that was written, decompresses, and holds what its manifest
/// says, to the last byte.
pub fn read_back(store: &Store, name: &str, manifest: &Manifest) -> Result<()> {
    let read = match manifest.kind {
        Kind::Full => read_full(store, name, manifest),
        Kind::Delta => read_delta(store, name, manifest),
    };
    read.map_err(|failure| match failure {
        Failure::Store(fault) => fault,
        Failure::Damaged(why) => {
            let attempt = format!("`{name}` came back from `{}` otherwise than it was written: {why}", store.url());
            Fault::new(Code::ObjectDamaged, attempt).hint("do not count on it: run `quorate backup verify`")
        }
    })
}

fn read_full(store: &Store, name: &str, manifest: &Manifest) -> std::result::Result<(), Failure> {
    let mut body = Body::open(store, &handle(name)).map_err(Failure::Store)?;
    let (mut passing, mut hasher) = (Passing::new(), Sha256::new());
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match body.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => {
                passing.push(&piece[..length]);
                hasher.update(&piece[..length]);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_failure(name, error)),
        }
    }
    let stored = body.stored_sha256().map_err(|error| read_failure(name, error))?;
    let damaged = |why: &str| Failure::Damaged(why.to_owned());
    if hex(&stored) != manifest.stored.sha256 {
        return Err(damaged("its stored bytes differ"));
    }
    if hex(&hasher.finalize()) != manifest.content.sha256 {
        return Err(damaged("its content differs"));
    }
    let passed = passing.finish().map_err(|error| damaged(&error.to_string()))?;
    if passed.revision != manifest.last {
        return Err(Failure::Damaged(format!("it holds revision {}, not {}", passed.revision, manifest.last)));
    }
    Ok(())
}

fn read_delta(store: &Store, name: &str, manifest: &Manifest) -> std::result::Result<(), Failure> {
    let layout = if name.ends_with(".gz") { Layout::Gardener } else { Layout::Quorate };
    let job = Job { name: name.to_owned(), layout, handle: handle(name) };
    let whole = decode(store, &job, |_, _| true)?;
    if hex(&whole.stored_sha256) != manifest.stored.sha256 {
        return Err(Failure::Damaged("its stored bytes differ".to_owned()));
    }
    let holds = whole.summary.map(|summary| (summary.first, summary.last, summary.events));
    if holds != Some((manifest.first, manifest.last, manifest.events)) {
        return Err(Failure::Damaged("it holds other writes than its manifest says".to_owned()));
    }
    Ok(())
}
