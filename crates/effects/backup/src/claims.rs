//! Generations of a cluster that recoveries claimed: create-only objects, one for each number.
//!
//! **Invariant:** of any number of recoveries that try for it, exactly one gets each generation of a cluster.

use quorate_etcd_formats::delta::quorate::ROOT;
use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::Result;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::store::Store;

/// A claimed generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The token of the cluster.
    pub token: String,
    /// The number.
    pub generation: u64,
    /// Identifies the recovery.
    pub nonce: u64,
    /// The node that begins it.
    pub node: String,
    /// When, in RFC 3339.
    pub at: String,
    /// The cluster that comes of it. None in claims of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
}

impl Claim {
    /// Its path below the store's folder.
    fn name(&self) -> String {
        format!("{}-{:020}.claim", prefix(&self.token), self.generation)
    }
}

/// Whether a name in a store is that of a claim, below whatever folder.
pub fn is_claim(name: &str) -> bool {
    name.ends_with(".claim") && name.contains(&format!("{ROOT}/generation/"))
}

fn prefix(token: &str) -> String {
    let sum = hex(&Sha256::digest(token.as_bytes()));
    format!("{ROOT}/generation/{}", sum.get(..16).unwrap_or(&sum))
}

/// Claims a generation. False: another recovery has it.
pub fn take(store: &Store, claim: &Claim) -> Result<bool> {
    let bytes = serde_json::to_vec(claim).unwrap_or_default();
    if store.create(&claim.name(), bytes)? {
        return Ok(true);
    }
    // Ours, where the answer to an earlier attempt was lost.
    Ok(list(store, &claim.token)?.iter().any(|it| (it.generation, it.nonce) == (claim.generation, claim.nonce)))
}

/// All claims of a cluster, by number. One that cannot be read counts by its name.
pub fn list(store: &Store, token: &str) -> Result<Vec<Claim>> {
    let (folder, begins) = (format!("{ROOT}/generation"), prefix(token));
    let names: Vec<String> = store.list_under(&folder)?.into_iter().map(|listed| listed.name).collect();
    let names: Vec<String> = names.into_iter().filter(|name| is_claim(name) && name.contains(&begins)).collect();
    let bodies = store.read_all_small(&names)?;
    let mut claims = Vec::new();
    for (name, body) in names.iter().zip(bodies) {
        let numbered =
            name.strip_suffix(".claim").and_then(|stem| stem.rsplit('-').next()).and_then(|it| it.parse().ok());
        let Some(generation) = numbered else { continue };
        let read = body.and_then(|bytes| serde_json::from_slice::<Claim>(&bytes).ok());
        let unread = || Claim {
            token: token.to_owned(),
            generation,
            nonce: 0,
            node: "an unknown node".to_owned(),
            at: "an unknown time".to_owned(),
            cluster: None,
        };
        claims.push(read.filter(|claim| claim.generation == generation && claim.token == token).unwrap_or_else(unread));
    }
    claims.sort_by_key(|claim| claim.generation);
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_generation_is_claimed_once_and_again_only_by_the_same_recovery() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("file://{}", dir.path().display()), true).unwrap();
        let claim = |generation, nonce, token: &str| Claim {
            token: token.to_owned(),
            generation,
            nonce,
            node: "n1".to_owned(),
            at: "2026-11-18T02:00:00Z".to_owned(),
            cluster: None,
        };
        assert!(list(&store, "t").unwrap().is_empty());
        assert!(take(&store, &claim(1, 7, "t")).unwrap());
        assert!(take(&store, &claim(1, 7, "t")).unwrap(), "the same one again");
        assert!(!take(&store, &claim(1, 8, "t")).unwrap());
        assert!(take(&store, &claim(2, 8, "t")).unwrap() && take(&store, &claim(1, 9, "other")).unwrap());
        let numbers: Vec<u64> = list(&store, "t").unwrap().iter().map(|claim| claim.generation).collect();
        assert_eq!(numbers, [1, 2]);
        let catalog = crate::catalog::Catalog::read(&store).unwrap();
        assert!(catalog.unknown.is_empty() && catalog.notes.is_empty(), "{:?} {:?}", catalog.unknown, catalog.notes);
    }
}
