//! Who may write: create-only objects with ascending numbers.
//!
//! **Invariant:** of any number of writers that try for it, exactly one gets each number.

use std::hash::{BuildHasher, RandomState};

use quorate_etcd_formats::delta::quorate::{Epoch, FORMAT, Name, ROOT, epoch_name};
use quorate_faults::{Code, Fault, Result};

use crate::store::Store;
use crate::write::About;

/// Others that may take a number before us in one go.
const RIVALS_MAX: u64 = 1000;

/// The newest epoch that was opened; `None`: none was.
pub fn newest(store: &Store) -> Result<Option<Epoch>> {
    let listed = store.list_under(&format!("{ROOT}/epoch"))?;
    let newest = listed.iter().filter_map(|listed| Some((number(&listed.name)?, &listed.name))).max();
    let Some((number, name)) = newest else { return Ok(None) };
    let unreadable = || {
        let attempt = format!("cannot tell who writes to `{}`: `{name}` is not an epoch", store.url());
        Fault::new(Code::ObjectDamaged, attempt).hint("see who wrote it; nothing is recorded before that is clear")
    };
    let epoch = Epoch::parse(&store.read_small(name)?).filter(|epoch| epoch.epoch == number);
    epoch.ok_or_else(unreadable).map(Some)
}

/// The epochs with a higher number than this one. One that is gone again or cannot be read is a fault: it may be anyone's.
pub fn newer(store: &Store, than: u64) -> Result<Vec<Epoch>> {
    let listed = store.list_under(&format!("{ROOT}/epoch"))?;
    let names = listed.iter().filter(|listed| number(&listed.name).is_some_and(|number| number > than));
    let unreadable = |name: &str| {
        let attempt = format!("cannot tell who writes to `{}`: `{name}` is not an epoch", store.url());
        Fault::new(Code::ObjectDamaged, attempt).hint("see who wrote it; nothing is recorded before that is clear")
    };
    names
        .map(|listed| {
            let epoch = Epoch::parse(&store.read_small(&listed.name)?);
            epoch.filter(|epoch| Some(epoch.epoch) == number(&listed.name)).ok_or_else(|| unreadable(&listed.name))
        })
        .collect()
}

/// Opens the next epoch: from `begins_at` on, nothing of older ones is believed. Gives its number.
pub fn take(store: &Store, about: &About, begins_at: u64) -> Result<u64> {
    let listing = store.list()?;
    // Objects count too: their numbers are taken, whatever became of the epochs that they belong to.
    let taken = |name: &str| number(name).or_else(|| Name::parse(name).map(|name| name.epoch));
    let newest = listing.iter().filter_map(|listed| taken(&listed.name)).max().unwrap_or(0);
    let writer = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
    for next in (newest.saturating_add(1)..).take(usize::try_from(RIVALS_MAX).unwrap_or(usize::MAX)) {
        let epoch = Epoch {
            format: FORMAT.to_owned(),
            epoch: next,
            begins_at,
            cluster_id: format!("{:x}", about.origin.cluster_id),
            member_id: format!("{:x}", about.origin.member_id),
            created_ms: about.created_ms,
            writer: writer.clone(),
            declared: about.declared.clone(),
            was: about.was.iter().map(|id| format!("{id:x}")).collect(),
        };
        if store.create(&epoch_name(next), epoch.to_json())? {
            return Ok(next);
        }
    }
    let attempt = format!("cannot open an epoch in `{}`: others were faster {RIVALS_MAX} times", store.url());
    Err(Fault::new(Code::StoreUnreachable, attempt).hint("see who else writes to this store"))
}

fn number(name: &str) -> Option<u64> {
    let (folder, file) = name.rsplit_once('/')?;
    let number = file.strip_suffix(".json")?.parse().ok()?;
    (folder.ends_with("epoch") && name.ends_with(&epoch_name(number))).then_some(number)
}
