//! Brings objects of any layout into ours, one for one.

use std::fs::File;
use std::path::Path;

use quorate_faults::{Fault, Result};
use quorate_plan::chain::{Kind, Layout};

use crate::base::Base;
use crate::catalog::Catalog;
use crate::decode::{self, Failure, Job};
use crate::store::Store;
use crate::write::{self, About, Delta};
use quorate_etcd_formats::delta::quorate::Manifest;

/// What became of one object.
pub enum Converted {
    /// It is in the other store now.
    Written(Box<Manifest>),
    /// It is damaged and was left out, because.
    LeftOut(String),
}

/// Converts one object. Its moment stays, so that times mean the same in the other store.
pub fn object(
    from: &Store,
    catalog: &Catalog,
    index: usize,
    to: &Store,
    epoch: u64,
    scratch: &Path,
) -> Result<Converted> {
    let object = &catalog.objects[index];
    let about = About { epoch, created_ms: object.created_ms, ..About::default() };
    let written = match object.kind {
        Kind::Full => full(from, catalog, index, to, &about, scratch),
        Kind::Delta => delta(from, catalog, index, to, &about),
    };
    match written {
        Ok(manifest) => Ok(Converted::Written(Box::new(manifest))),
        Err(Failure::Damaged(why)) => Ok(Converted::LeftOut(why)),
        Err(Failure::Store(fault)) => Err(fault),
    }
}

fn full(
    from: &Store,
    catalog: &Catalog,
    index: usize,
    to: &Store,
    about: &About,
    scratch: &Path,
) -> std::result::Result<Manifest, Failure> {
    let name = &catalog.objects[index].name;
    let base = Base::fetch(from, name, &catalog.handles[index], scratch)?;
    let attempt = || format!("cannot read `{}`", base.path().display());
    let file = File::open(base.path()).map_err(|error| Failure::Store(Fault::io(attempt(), error)))?;
    let holds = write::Holds { revision: base.revision(), items: 0, last_write_ms: None };
    write::full(to, about, holds, file, |error| Fault::io(attempt(), error)).map_err(Failure::Store)
}

fn delta(
    from: &Store,
    catalog: &Catalog,
    index: usize,
    to: &Store,
    about: &About,
) -> std::result::Result<Manifest, Failure> {
    let object = &catalog.objects[index];
    let job = Job { name: object.name.clone(), layout: object.layout, handle: catalog.handles[index].clone() };
    let mut delta = Delta::begin().map_err(Failure::Store)?;
    let mut failed = None;
    decode::decode(from, &job, |batch, _| {
        let grants = batch.grants().iter();
        grants.for_each(|grant| delta.grant(*grant));
        let pushed = (0..batch.len()).filter_map(|index| batch.get(index)).try_for_each(|event| delta.push(&event));
        failed = pushed.err();
        failed.is_none()
    })?;
    if let Some(fault) = failed {
        return Err(Failure::Store(fault));
    }
    match delta.finish(to, about).map_err(Failure::Store)? {
        Some(manifest) => Ok(manifest),
        None => Err(Failure::Damaged("it holds no writes".to_owned())),
    }
}

/// Whether an object has another layout than ours.
pub fn is_foreign(catalog: &Catalog, index: usize) -> bool {
    catalog.objects[index].layout != Layout::Quorate
}
