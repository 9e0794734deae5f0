//! Copies a store into another one, object by object, so that a copy can be stopped and gone on with at any point.
//!
//! **Rule:** epochs come first, then objects in the order of their history, each before its manifest. Half a copy is
//! therefore an older store, and never claims what it does not have. Nothing in the target is overwritten.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_faults::{Code, Fault, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::catalog::Catalog;
use crate::store::{Listed, Store};

/// Bytes that are moved at once.
const PIECE_BYTES: usize = 256 << 10;

/// What became of the objects of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Copied {
    /// Objects, manifests and epochs that were brought over now.
    pub copied: u64,
    /// Those that were there already, with the same bytes.
    pub already: u64,
    /// Bytes that were brought over now.
    pub bytes: u64,
    /// What was not copied, and why.
    pub left_out: Vec<(String, String)>,
}

/// What there is to copy, decided before anything is written.
pub struct Work {
    epochs: Vec<Listed>,
    items: Vec<Item>,
    there: BTreeMap<String, u64>,
    unknown: Vec<String>,
}

/// One object.
struct Item {
    parts: Vec<Listed>,
    /// SHA-256 that its manifest says, and the manifest's name.
    manifest: Option<(String, [u8; 32])>,
}

impl Work {
    /// Looks at both stores. A target that holds another cluster is refused.
    pub fn plan(from: &Store, to: &Store) -> Result<Work> {
        let (source, target) = (Catalog::read(from)?, Catalog::read(to)?);
        refuse_other(&source, &target, to)?;
        let listing = from.list()?;
        let sizes: BTreeMap<&str, &Listed> = listing.iter().map(|listed| (listed.name.as_str(), listed)).collect();
        let mut items = Vec::new();
        for (object, handle) in source.objects.iter().zip(&source.handles) {
            let parts: Vec<Listed> =
                handle.parts.iter().filter_map(|part| sizes.get(part.as_str()).map(|part| (*part).clone())).collect();
            let manifest = object.name.strip_suffix(".zst").map(|stem| format!("{stem}.json"));
            let manifest = manifest.filter(|name| sizes.contains_key(name.as_str())).zip(handle.stored_sha256);
            items.push(Item { parts, manifest });
        }
        let is_epoch = |listed: &&Listed| listed.name.rsplit('/').nth(1) == Some("epoch");
        let known = |name: &String| !source.notes.iter().any(|(note, _)| note == name);
        let epochs = listing.iter().filter(is_epoch).filter(|listed| known(&listed.name)).cloned().collect();
        let notes = source.notes.iter().map(|(name, _)| name.clone());
        let unknown = source.unknown.iter().cloned().chain(notes).collect();
        let there = to.list()?.into_iter().map(|listed| (listed.name, listed.bytes)).collect();
        Ok(Work { epochs, items, there, unknown })
    }

    /// Bytes of all objects, copied or not.
    pub fn bytes(&self) -> u64 {
        self.items.iter().flat_map(|item| &item.parts).map(|part| part.bytes).sum()
    }

    /// Copies what is not there yet. `done` counts bytes.
    pub fn run(&self, from: &Store, to: &Store, done: &AtomicU64) -> Result<Copied> {
        let mut outcome = Copied::default();
        for name in &self.unknown {
            outcome.left_out.push((name.clone(), "it is no backup of ours".to_owned()));
        }
        for epoch in &self.epochs {
            self.small(from, to, &epoch.name, &mut outcome)?;
        }
        for item in &self.items {
            self.object(from, to, item, done, &mut outcome)?;
        }
        Ok(outcome)
    }

    fn object(&self, from: &Store, to: &Store, item: &Item, done: &AtomicU64, outcome: &mut Copied) -> Result<()> {
        let manifest = item.manifest.as_ref();
        // A manifest goes into the target after its object was read back from there.
        let proven = manifest.is_some_and(|(name, _)| self.there.contains_key(name))
            && item.parts.iter().all(|part| self.there.get(&part.name) == Some(&part.bytes));
        for part in &item.parts {
            if proven {
                outcome.already += 1;
            } else if let Some(why) = self.part(from, to, part, manifest.map(|(_, sha256)| *sha256), outcome)? {
                outcome.left_out.push((part.name.clone(), why));
                return Ok(());
            }
            done.fetch_add(part.bytes, Ordering::Relaxed);
        }
        match manifest {
            Some((name, _)) => self.small(from, to, name, outcome),
            None => Ok(()),
        }
    }

    /// Copies one name and reads it back. Says why it was left out, if it was.
    fn part(
        &self,
        from: &Store,
        to: &Store,
        part: &Listed,
        said: Option<[u8; 32]>,
        outcome: &mut Copied,
    ) -> Result<Option<String>> {
        if self.there.contains_key(&part.name) {
            let wanted = match said {
                Some(sha256) => sha256,
                None => drain(from, &part.name)?,
            };
            if drain(to, &part.name)? != wanted {
                return Err(differs(to, &part.name));
            }
            outcome.already += 1;
            return Ok(None);
        }
        if from.head(&part.name)?.is_none() {
            return Ok(Some("it was removed from the source meanwhile".to_owned()));
        }
        let mut upload = to.upload(&part.name)?;
        let moved = drain_into(from, &part.name, &mut upload);
        let sha256 = match moved {
            Ok(sha256) => sha256,
            Err(fault) => {
                upload.abandon();
                return Err(fault);
            }
        };
        if said.is_some_and(|said| said != sha256) {
            upload.abandon();
            return Ok(Some("its bytes are not those that its manifest was made for".to_owned()));
        }
        upload.finish()?;
        if drain(to, &part.name)? != sha256 {
            return Err(differs(to, &part.name));
        }
        outcome.copied += 1;
        outcome.bytes += part.bytes;
        Ok(None)
    }

    /// Copies a manifest or an epoch.
    fn small(&self, from: &Store, to: &Store, name: &str, outcome: &mut Copied) -> Result<()> {
        let bytes = from.read_small(name)?;
        let length = bytes.len() as u64;
        if !self.there.contains_key(name) && to.create(name, bytes.clone())? {
            outcome.copied += 1;
            outcome.bytes += length;
            return Ok(());
        }
        if to.read_small(name)? != bytes {
            return Err(differs(to, name));
        }
        outcome.already += 1;
        Ok(())
    }
}

fn refuse_other(source: &Catalog, target: &Catalog, to: &Store) -> Result<()> {
    let clusters = |catalog: &Catalog| -> BTreeSet<u64> {
        catalog.objects.iter().map(|object| object.cluster_id).filter(|id| *id != 0).collect()
    };
    let (ours, theirs) = (clusters(source), clusters(target));
    let Some((one, other)) = ours.first().zip(theirs.first()).filter(|_| ours.is_disjoint(&theirs)) else {
        return Ok(());
    };
    let attempt = format!("cannot copy cluster `{one:x}` to `{}`: it holds cluster `{other:x}`", to.url());
    Err(Fault::new(Code::CopyOtherCluster, attempt).hint("copy to a folder or prefix of its own"))
}

fn differs(to: &Store, name: &str) -> Fault {
    let attempt = format!("cannot copy `{name}`: `{}` has other bytes under that name", to.url());
    Fault::new(Code::CopyDiffers, attempt)
        .hint("check both stores with `quorate backup verify`; nothing is overwritten")
}

/// The SHA-256 of what is stored under a name.
fn drain(store: &Store, name: &str) -> Result<[u8; 32]> {
    drain_into(store, name, &mut io::sink())
}

fn drain_into(store: &Store, name: &str, to: &mut impl Write) -> Result<[u8; 32]> {
    let mut reader = store.reader(name)?;
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Ok(hasher.finalize().into()),
            Ok(length) => {
                hasher.update(&piece[..length]);
                to.write_all(&piece[..length]).map_err(|error| Fault::io(format!("cannot copy `{name}`"), error))?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::io(format!("cannot read `{name}` in `{}`", store.url()), error)),
        }
    }
}
