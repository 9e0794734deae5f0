//! Writes that wait in the spools of surviving nodes, and how far the store would reach with them.
//!
//! **Rule:** what a spool holds beyond the store is uploaded before a restore where it follows on the store, and is named where
//! it does not; nothing that waits is left out in silence.

use super::StoreNewest;

/// What waits in the spool of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolSeen {
    /// The node.
    pub node: String,
    /// The segments.
    pub parts: Vec<SpoolPart>,
    /// Why it could not be read.
    pub unread: Option<String>,
}

/// One stretch of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpoolPart {
    /// First revision.
    pub first: u64,
    /// Last revision.
    pub last: u64,
    /// The epoch of its writer.
    pub epoch: u64,
    /// The cluster; 0 where that is not known.
    pub cluster: u64,
}

/// How far the store reaches once spools are uploaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extended {
    /// The revision.
    pub revision: u64,
    /// What is uploaded for it: node, first and last revision.
    pub uploads: Vec<(String, u64, u64)>,
}

/// Follows the store with what waits in spools. None where the store proves nothing.
pub fn extend(store: &StoreNewest, spools: &[SpoolSeen]) -> Option<Extended> {
    let StoreNewest::Newest { revision, epoch, .. } = store else { return None };
    let mut it = Extended { revision: *revision, uploads: Vec::new() };
    let parts = |spool: &SpoolSeen| {
        let node = spool.node.clone();
        spool.parts.clone().into_iter().map(move |part| (part, node.clone())).collect::<Vec<_>>()
    };
    let mut waiting: Vec<(SpoolPart, String)> = spools.iter().flat_map(parts).collect();
    waiting.retain(|(part, _)| is_of(store, part) && (*epoch == 0 || part.epoch == *epoch));
    waiting.sort_by(|(one, here), (other, there)| (one.first, one.last, here).cmp(&(other.first, other.last, there)));
    for (SpoolPart { first, last, .. }, node) in waiting {
        if first <= it.revision.saturating_add(1) && last > it.revision {
            it.revision = last;
            it.uploads.push((node, first, last));
        }
    }
    Some(it)
}

/// Whether the store's chain can be of the same cluster.
fn is_of(store: &StoreNewest, part: &SpoolPart) -> bool {
    match store {
        StoreNewest::Newest { cluster: Some(cluster), .. } => part.cluster == 0 || part.cluster == cluster.0,
        StoreNewest::Newest { cluster: None, .. } => true,
        StoreNewest::NotDeclared | StoreNewest::Unknown(_) | StoreNewest::Empty => false,
    }
}

/// What waits behind `revision` and is not used, one line for each node.
pub(super) fn left_out(spools: &[SpoolSeen], revision: Option<u64>, used: &[(String, u64, u64)]) -> Vec<String> {
    let reached = revision.unwrap_or(0);
    let mut lines = Vec::new();
    for SpoolSeen { node, parts, unread } in spools {
        let unused = |part: &&SpoolPart| {
            part.last > reached && !used.iter().any(|(of, first, _)| of == node && *first == part.first)
        };
        let first = parts.iter().filter(unused).map(|part| part.first).min();
        let last = parts.iter().filter(unused).map(|part| part.last).max();
        if let Some((first, last)) = first.zip(last) {
            lines.push(format!(
                "revisions {} to {last}, which wait in the spool of `{node}` and do not follow on what is used",
                first.max(reached.saturating_add(1))
            ));
        }
        if let Some(why) = unread {
            lines.push(format!("what waits in the spool of `{node}`: it cannot be read ({why})"));
        }
    }
    lines
}
