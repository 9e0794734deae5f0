//! Removes objects that a plan gave up.
//!
//! **Rule:** an object goes before its manifest: what is left by a run that was cut short is a manifest that says what was
//! there, which the next run removes, and never an object whose cluster nobody knows. What the store protects stays whole.

use std::time::Duration;

use quorate_etcd_formats::delta::quorate::Name;
use quorate_faults::Result;
use quorate_plan::chain::Layout;

use crate::catalog::Catalog;
use crate::store::{Deleted, Store};

/// Left-overs of uploads that were killed are removed once they are so old that no upload can still be at work on them.
pub const STAGED_KEPT: Duration = Duration::from_secs(24 * 3600);

/// What was done.
#[derive(Debug, Default)]
pub struct Removed {
    /// Objects that are gone, by name.
    pub objects: Vec<String>,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that the store protects, and why.
    pub locked: Vec<(String, String)>,
}

/// Removes objects in the given order; `each` is called after each one.
pub fn remove(store: &Store, catalog: &Catalog, removals: &[usize], mut each: impl FnMut(usize)) -> Result<Removed> {
    let mut removed = Removed::default();
    for (done, index) in removals.iter().enumerate() {
        let object = &catalog.objects[*index];
        match remove_one(store, catalog, *index)? {
            Deleted::Gone => {
                removed.objects.push(object.name.clone());
                removed.bytes += object.bytes;
            }
            Deleted::Locked(why) => removed.locked.push((object.name.clone(), why)),
        }
        each(done + 1);
    }
    Ok(removed)
}

fn remove_one(store: &Store, catalog: &Catalog, index: usize) -> Result<Deleted> {
    let object = &catalog.objects[index];
    // The first part first: an object without its beginning does not pass for whole. The empty object that some tools
    // leave in place of the parts goes too.
    let parts = &catalog.handles[index].parts;
    let placeholder = parts.iter().all(|part| *part != object.name).then_some(&object.name);
    for name in parts.iter().chain(placeholder) {
        if let Deleted::Locked(why) = store.delete(name)? {
            return Ok(Deleted::Locked(why));
        }
    }
    match (object.layout, Name::parse(&object.name)) {
        (Layout::Quorate, Some(_)) => store.delete(&manifest_of(&object.name)),
        _ => Ok(Deleted::Gone),
    }
}

/// The path of the manifest beside an object of our layout, below whatever folder the store has it in.
fn manifest_of(object: &str) -> String {
    format!("{}.json", object.strip_suffix(".zst").unwrap_or(object))
}

/// Removes what killed uploads left behind more than a day ago, and names it.
pub fn remove_staged(store: &Store) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for (name, age) in store.staged()? {
        if age >= STAGED_KEPT {
            store.remove_staged(&name)?;
            removed.push(name);
        }
    }
    Ok(removed)
}
