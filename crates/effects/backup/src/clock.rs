//! What time it is by the store's own clock.
//!
//! **Rule:** the time is that of an object which is written for it. Older objects say only that it is at least so late.

use std::hash::{BuildHasher, RandomState};

use quorate_etcd_formats::delta::quorate::ROOT;
use quorate_faults::{Code, Fault, Result};

use crate::store::Store;

/// Milliseconds since 1970. What is written for it is removed again; where the store protects it, it is passed over by everyone.
pub fn observe_time(store: &Store) -> Result<i64> {
    let name = format!("{}{:016x}.json", folder(), RandomState::new().hash_one(std::process::id()));
    store.create(&name, b"{}\n".to_vec())?;
    let seen = store.head(&name);
    let _ = store.delete(&name);
    let gone = || {
        let attempt = format!("cannot tell the time of `{}`: what was just written is not there", store.url());
        Fault::new(Code::StoreUnreachable, attempt).hint("try again")
    };
    Ok(seen?.ok_or_else(gone)?.modified_ms)
}

/// Whether an object was written to learn the time.
pub(crate) fn is_probe(name: &str) -> bool {
    name.starts_with(&folder()) || name.contains(&format!("/{}", folder()))
}

fn folder() -> String {
    format!("{ROOT}/clock/")
}
