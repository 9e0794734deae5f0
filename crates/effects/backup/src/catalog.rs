//! What a listing says is in a store: objects of both layouts, their manifests, and epochs.
//!
//! **Rule:** nothing is opened here but manifests and epochs; what they say is a claim.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::delta::gardener::{self, Compression};
use quorate_etcd_formats::delta::quorate::{self, Epoch, Manifest, ROOT};
use quorate_etcd_formats::hex::unhex;
use quorate_faults::Result;
use quorate_plan::chain::{Decision, EpochStart, Kind, Layout, Object, State, Target, decide};
use quorate_plan::lineage::{Lineage, lineages};

use crate::claims::is_claim;
use crate::clock::is_probe;
use crate::drills::Drill;
use crate::store::{Listed, Store};

/// A store's content.
pub struct Catalog {
    /// The objects, by revision.
    pub objects: Vec<Object>,
    /// How to read each of them.
    pub handles: Vec<Handle>,
    /// Who took over where.
    pub epochs: Vec<EpochStart>,
    /// The same in their own words.
    pub opened: Vec<Epoch>,
    /// Names that no layout knows.
    pub unknown: Vec<String>,
    /// Manifests and epochs that cannot be read, and why.
    pub notes: Vec<(String, String)>,
}

/// How to read one object.
#[derive(Debug, Clone)]
pub struct Handle {
    /// The names whose bytes, one after the other, are the object.
    pub parts: Vec<String>,
    /// Its compression.
    pub compression: Compression,
    /// SHA-256 of its stored bytes, if a manifest says it or it has been computed.
    pub stored_sha256: Option<[u8; 32]>,
    /// Its manifest.
    pub manifest: Option<Manifest>,
    /// Whether its cluster was meant to end with it.
    pub is_final: bool,
}

impl Handle {
    /// An object of our own layout.
    pub(crate) fn own(name: &str) -> Handle {
        Handle {
            parts: vec![name.to_owned()],
            compression: Compression::Zstd,
            stored_sha256: None,
            manifest: None,
            is_final: false,
        }
    }
}

impl Catalog {
    /// Lists the store.
    pub fn read(store: &Store) -> Result<Catalog> {
        let listing = store.list()?;
        let mut catalog = Catalog {
            objects: vec![],
            handles: vec![],
            epochs: vec![],
            opened: vec![],
            unknown: vec![],
            notes: vec![],
        };
        let mut others = Vec::new();
        let mut chunks: BTreeMap<String, Vec<(u64, Listed)>> = BTreeMap::new();
        for listed in listing {
            if let Some(name) = quorate::Name::parse(&listed.name) {
                catalog.own(&name, &listed);
            } else if let Some(name) = gardener_name(&listed.name) {
                match name.chunk {
                    Some(part) => chunks.entry(name.object.clone()).or_default().push((part, listed)),
                    None => catalog.gardener(&name, vec![listed.name], listed.bytes),
                }
            } else if Drill::parse(&listed.name).is_none() && !is_claim(&listed.name) && !is_probe(&listed.name) {
                others.push(listed.name);
            }
        }
        for (object, parts) in chunks {
            catalog.chunked(&object, parts);
        }
        catalog.sort();
        let index: BTreeMap<String, usize> =
            catalog.objects.iter().enumerate().map(|(index, object)| (object.name.clone(), index)).collect();
        let is_small = |name: &String| name.ends_with(".json") && name.contains(ROOT);
        let (small, unknown): (Vec<String>, Vec<String>) = others.into_iter().partition(is_small);
        catalog.unknown.extend(unknown);
        let bodies = store.read_all_small(&small)?;
        for (name, bytes) in small.into_iter().zip(bodies) {
            // One that is gone again was pruned meanwhile, and its object before it.
            if let Some(bytes) = bytes {
                catalog.small(name, &bytes, &index);
            }
        }
        catalog.sort();
        Ok(catalog)
    }

    /// In the order of the history: by last revision, a full before what builds on it.
    fn sort(&mut self) {
        let mut both: Vec<(Object, Handle)> = self.objects.drain(..).zip(self.handles.drain(..)).collect();
        both.sort_by_key(|(object, _)| (object.last, object.kind == Kind::Full, object.first, object.created_ms));
        (self.objects, self.handles) = both.into_iter().unzip();
    }

    /// The lineages of the store. `own`: clusters that are known to be of one.
    pub fn lineages(&self, own: &[u64]) -> Vec<Lineage> {
        lineages(&self.objects, &self.opened, own)
    }

    /// Keeps nothing but what is of this lineage. Indexes are others afterwards.
    pub fn narrow(&mut self, lineage: &Lineage) {
        let both: Vec<(Object, Handle)> = self.objects.drain(..).zip(self.handles.drain(..)).collect();
        let own = both.into_iter().enumerate().filter(|(index, _)| lineage.objects.contains(index));
        (self.objects, self.handles) = own.map(|(_, both)| both).unzip();
        self.epochs.retain(|start| lineage.epochs.contains(&start.epoch));
        self.opened.retain(|epoch| lineage.epochs.contains(&epoch.epoch));
    }

    /// The highest revision that anything in it mentions, whether or not it can be restored.
    pub fn highest_revision(&self) -> u64 {
        let epochs = self.epochs.iter().map(|start| start.begins_at.saturating_sub(1));
        self.objects.iter().map(|object| object.last).chain(epochs).max().unwrap_or(0)
    }

    /// The same, without what one cluster wrote. What records no cluster counts.
    pub fn highest_revision_without(&self, cluster_id: u64) -> u64 {
        let of_cluster = |epoch: &&Epoch| u64::from_str_radix(&epoch.cluster_id, 16) == Ok(cluster_id);
        let own: BTreeSet<u64> = self.opened.iter().filter(of_cluster).map(|epoch| epoch.epoch).collect();
        let epochs = self.epochs.iter().filter(|start| !own.contains(&start.epoch));
        let epochs = epochs.map(|start| start.begins_at.saturating_sub(1));
        let is_own = |object: &&Object| object.cluster_id == cluster_id || own.contains(&object.epoch);
        self.objects.iter().filter(|object| !is_own(object)).map(|object| object.last).chain(epochs).max().unwrap_or(0)
    }

    /// Decides on what is known now.
    pub fn decide(&self, target: Target) -> Decision {
        decide(&self.objects, &self.epochs, target)
    }

    /// The newest epoch; 0 if there is none.
    pub fn newest_epoch(&self) -> u64 {
        let claimed = self.objects.iter().map(|object| object.epoch);
        self.epochs.iter().map(|start| start.epoch).chain(claimed).max().unwrap_or(0)
    }

    /// Whether an object that claims an earlier revision is none the less as it should be: without its manifest, our own
    /// full is known by a revision that it has surely passed.
    pub fn may_lead_to(&self, index: usize, last: u64) -> bool {
        let object = &self.objects[index];
        let own_full = object.layout == Layout::Quorate && object.kind == Kind::Full;
        own_full && object.state == State::Claimed && self.handles[index].manifest.is_none() && object.last <= last
    }

    /// Records that an object cannot be used.
    pub fn condemn(&mut self, index: usize, why: impl Into<String>) {
        self.objects[index].state = State::Bad(why.into());
    }

    fn own(&mut self, name: &quorate::Name, listed: &Listed) {
        self.objects.push(Object {
            name: listed.name.clone(),
            kind: if name.first.is_some() { Kind::Delta } else { Kind::Full },
            layout: Layout::Quorate,
            first: name.first.unwrap_or(name.last),
            last: name.last,
            created_ms: name.created_ms,
            bytes: listed.bytes,
            epoch: name.epoch,
            cluster_id: 0,
            state: State::Claimed,
        });
        self.handles.push(Handle::own(&listed.name));
    }

    fn gardener(&mut self, name: &gardener::Name, parts: Vec<String>, bytes: u64) {
        self.objects.push(Object {
            name: name.object.clone(),
            kind: if name.full { Kind::Full } else { Kind::Delta },
            layout: Layout::Gardener,
            first: if name.full { name.last } else { name.first },
            last: name.last,
            created_ms: name.created_s.saturating_mul(1000),
            bytes,
            epoch: 0,
            cluster_id: 0,
            state: State::Claimed,
        });
        self.handles.push(Handle {
            parts,
            compression: name.compression,
            stored_sha256: None,
            manifest: None,
            is_final: name.is_final,
        });
    }

    /// An object in parts. Where the object itself is there with content, the parts are left-overs of its upload.
    fn chunked(&mut self, object: &str, mut parts: Vec<(u64, Listed)>) {
        parts.sort_by_key(|(part, _)| *part);
        let whole = self.objects.iter().position(|known| known.name == object);
        if whole.is_some_and(|index| self.objects[index].bytes > 0) {
            return;
        }
        let bytes = parts.iter().map(|(_, listed)| listed.bytes).sum();
        let missing =
            parts.iter().zip(1..).find(|((part, _), expected)| part != expected).map(|(_, expected)| expected);
        let names: Vec<String> = parts.into_iter().map(|(_, listed)| listed.name).collect();
        let index = match (whole, gardener::Name::parse(object)) {
            (Some(index), _) => {
                self.objects[index].bytes = bytes;
                self.handles[index].parts = names;
                index
            }
            (None, Some(name)) => {
                self.gardener(&name, names, bytes);
                self.objects.len() - 1
            }
            (None, None) => return self.unknown.extend(names),
        };
        if let Some(missing) = missing {
            self.condemn(index, format!("its part {missing} is missing"));
        }
    }

    /// A manifest whose object is not there: what it says was lost, or was removed half.
    fn missing(&mut self, object: &str, manifest: String) {
        match quorate::Name::parse(object) {
            Some(name) => {
                self.own(&name, &Listed { name: object.to_owned(), bytes: 0, modified_ms: 0 });
                self.condemn(self.objects.len() - 1, "it is not there, only its manifest is");
            }
            None => self.notes.push((manifest, "there is no object beside this manifest".to_owned())),
        }
    }

    /// A manifest or an epoch.
    fn small(&mut self, name: String, bytes: &[u8], index: &BTreeMap<String, usize>) {
        let stem = name.strip_suffix(".json").unwrap_or(&name);
        if stem.rsplit('/').nth(1) == Some("epoch") {
            match Epoch::parse(bytes).filter(|epoch| name.ends_with(&quorate::epoch_name(epoch.epoch))) {
                Some(epoch) => {
                    self.epochs.push(EpochStart { epoch: epoch.epoch, begins_at: epoch.begins_at });
                    self.opened.push(epoch);
                }
                None => self.notes.push((name, "it is not an epoch".to_owned())),
            }
            return;
        }
        let object = format!("{stem}.zst");
        let Some(index) = index.get(&object).copied() else {
            self.missing(&object, name);
            return;
        };
        let claimed = &self.objects[index];
        let fits = |manifest: &Manifest| {
            // A full is named by a revision that was there before it was asked for; its manifest says which one it holds.
            let last = if claimed.kind == Kind::Full { manifest.first } else { manifest.last };
            let range = (manifest.first, last) == (claimed.first, claimed.last) && manifest.first <= manifest.last;
            range && manifest.epoch == claimed.epoch
        };
        let stored = |manifest: &Manifest| unhex(&manifest.stored.sha256);
        match Manifest::parse(bytes).filter(fits) {
            Some(manifest) => {
                if claimed.kind == Kind::Full {
                    (self.objects[index].first, self.objects[index].last) = (manifest.last, manifest.last);
                }
                self.objects[index].cluster_id = u64::from_str_radix(&manifest.cluster_id, 16).unwrap_or(0);
                let (there, said) = (self.objects[index].bytes, manifest.stored.bytes);
                if there != said {
                    self.condemn(index, format!("it has {there} bytes, and its manifest says {said}"));
                }
                self.handles[index].stored_sha256 = stored(&manifest);
                self.handles[index].manifest = Some(manifest);
            }
            None => self.notes.push((name, "it is not the manifest of the object beside it".to_owned())),
        }
    }
}

/// A name of Gardener's layout, also where the store is the folder `v2` itself.
fn gardener_name(name: &str) -> Option<gardener::Name> {
    gardener::Name::parse(name).or_else(|| gardener::Name::parse(&format!("v2/{name}")))
}
