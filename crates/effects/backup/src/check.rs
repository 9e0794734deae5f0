//! Reads every object on its own, to its last byte, and says what it proved to be.

use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use quorate_faults::{Fault, Result};
use quorate_plan::chain::{Kind, State};
use serde::Serialize;

use crate::base::Base;
use crate::catalog::Catalog;
use crate::decode::{self, Failure, Job};
use crate::store::Store;

/// What an object proved to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// First revision.
    pub first: u64,
    /// Last revision.
    pub last: u64,
    /// Writes; 0 for a full.
    pub events: u64,
    /// Bytes after decompression.
    pub content_bytes: u64,
}

/// Reads all objects on `threads` threads. Each gives what it proved to be, or why it cannot be used.
pub fn all(
    store: &Store,
    catalog: &Catalog,
    scratch: &Path,
    threads: usize,
    done: &AtomicU64,
) -> Result<Vec<std::result::Result<Checked, String>>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![Err("it was not read".to_owned()); catalog.objects.len()]);
    let failed: Mutex<Option<Fault>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(object) = catalog.objects.get(index) else { return };
                    let result = match one(store, catalog, index, scratch) {
                        Ok(checked) => Ok(checked),
                        Err(Failure::Damaged(why)) => Err(why),
                        Err(Failure::Store(fault)) => {
                            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
                            return;
                        }
                    };
                    done.fetch_add(object.bytes, Ordering::Relaxed);
                    results.lock().unwrap_or_else(PoisonError::into_inner)[index] = result;
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(fault) => Err(fault),
        None => Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

fn one(store: &Store, catalog: &Catalog, index: usize, scratch: &Path) -> std::result::Result<Checked, Failure> {
    let (object, handle) = (&catalog.objects[index], &catalog.handles[index]);
    if let (State::Bad(why), 0) = (&object.state, object.bytes) {
        return Err(Failure::Damaged(why.clone()));
    }
    match object.kind {
        Kind::Full => {
            let base = Base::fetch(store, &object.name, handle, scratch)?;
            let revision = base.revision();
            Ok(Checked { first: revision, last: revision, events: 0, content_bytes: base.bytes })
        }
        Kind::Delta => {
            let job = Job { name: object.name.clone(), layout: object.layout, handle: handle.clone() };
            let whole = decode::decode(store, &job, |_, _| true)?;
            let summary = whole.summary.ok_or_else(|| Failure::Damaged("it holds no writes".to_owned()))?;
            let (first, last, events) = (summary.first, summary.last, summary.events);
            Ok(Checked { first, last, events, content_bytes: whole.content_bytes })
        }
    }
}
