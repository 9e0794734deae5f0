//! Which backups of a store belong together: a lineage is the chain of cluster ids that descend from one bootstrap by restores,
//! recoveries and explicit take-overs.
//!
//! **Rule:** a restore, a list and a removal see one lineage. Nothing links two clusters but their own records: an epoch that
//! names its ancestors, or the ledger of the node that asks. Equal tokens and ascending revisions link nothing.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::delta::quorate::Epoch;
use serde::Serialize;

use crate::chain::{Object, State};

/// One lineage, as far as a store shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lineage {
    /// Its clusters, in the order in which they first wrote; empty where no object records its cluster.
    #[serde(serialize_with = "hex_all")]
    pub clusters: Vec<u64>,
    /// The cluster that opened the newest epoch, or made the newest object; 0 where that is not recorded.
    #[serde(serialize_with = "hex_one")]
    pub newest_cluster: u64,
    /// The tokens that its epochs name, oldest first.
    pub tokens: Vec<String>,
    /// The numbers of its epochs, ascending.
    pub epochs: Vec<u64>,
    /// Its objects, as indexes.
    #[serde(skip)]
    pub objects: Vec<usize>,
    /// The highest revision that it mentions anywhere, whether or not it can be restored.
    pub highest_revision: u64,
}

impl Lineage {
    /// Whether one of these clusters is part of it.
    pub fn has_any(&self, clusters: &[u64]) -> bool {
        clusters.iter().any(|cluster| self.clusters.contains(cluster))
    }

    /// The token and cluster ids, for people.
    pub fn title(&self) -> String {
        let token = match self.tokens.last() {
            Some(token) => format!("token `{token}`"),
            None => "no recorded token".to_owned(),
        };
        match self.clusters.as_slice() {
            [] => format!("{token}, no recorded cluster id"),
            [one] => format!("{token}, cluster {one:x}"),
            many => {
                let older: Vec<String> =
                    many.iter().filter(|id| **id != self.newest_cluster).map(|id| format!("{id:x}")).collect();
                format!("{token}, cluster {:x}, before that {}", self.newest_cluster, older.join(", "))
            }
        }
    }
}

fn hex_all<S: serde::Serializer>(ids: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ids.iter().map(|id| format!("{id:x}")))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn hex_one<S: serde::Serializer>(id: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{id:x}"))
}

/// The cluster that opened an epoch; 0 where it is not recorded.
pub fn cluster_of(epoch: &Epoch) -> u64 {
    u64::from_str_radix(&epoch.cluster_id, 16).unwrap_or(0)
}

/// The clusters that an epoch's cluster descends from, by its own record.
pub fn ancestors_of(epoch: &Epoch) -> impl Iterator<Item = u64> + '_ {
    epoch.was.iter().filter_map(|id| u64::from_str_radix(id, 16).ok()).filter(|id| *id != 0)
}

/// Splits a store into its lineages, in the order of their first epoch or object. `own`: clusters that the caller knows to be of
/// one lineage, its own. What does not record its cluster belongs to the only lineage there is, or to one of its own.
pub fn lineages(objects: &[Object], epochs: &[Epoch], own: &[u64]) -> Vec<Lineage> {
    let mut groups = Groups::default();
    let mut opened: Vec<&Epoch> = epochs.iter().collect();
    opened.sort_by_key(|epoch| epoch.epoch);
    for pair in own.windows(2) {
        groups.join(pair[0], pair[1]);
    }
    for epoch in &opened {
        let cluster = cluster_of(epoch);
        for ancestor in ancestors_of(epoch).filter(|_| cluster != 0) {
            groups.join(cluster, ancestor);
        }
    }
    let writer: BTreeMap<u64, u64> = opened.iter().map(|epoch| (epoch.epoch, cluster_of(epoch))).collect();
    let cluster = |object: &Object| match object.cluster_id {
        0 => writer.get(&object.epoch).copied().unwrap_or(0),
        id => id,
    };
    let mut found: BTreeMap<u64, Lineage> = BTreeMap::new();
    for epoch in &opened {
        let id = cluster_of(epoch);
        let lineage = found.entry(groups.root(id)).or_insert_with(Lineage::none);
        lineage.epochs.push(epoch.epoch);
        lineage.add_cluster(id);
        lineage.newest_cluster = id;
        lineage.highest_revision = lineage.highest_revision.max(epoch.begins_at.saturating_sub(1));
        if let Some(declared) = epoch.declared.as_ref().filter(|declared| !lineage.tokens.contains(&declared.token)) {
            lineage.tokens.push(declared.token.clone());
        }
    }
    for (index, object) in objects.iter().enumerate() {
        let id = cluster(object);
        let lineage = found.entry(groups.root(id)).or_insert_with(Lineage::none);
        lineage.add_cluster(id);
        lineage.objects.push(index);
        lineage.highest_revision = lineage.highest_revision.max(object.last);
        if lineage.epochs.is_empty() {
            lineage.newest_cluster = id;
        }
    }
    settle_unrecorded(found)
}

/// What records no cluster is taken to be of the only lineage there is.
fn settle_unrecorded(mut found: BTreeMap<u64, Lineage>) -> Vec<Lineage> {
    if found.len() == 2
        && let Some(unrecorded) = found.remove(&0)
        && let Some(only) = found.values_mut().next()
    {
        only.objects.extend(&unrecorded.objects);
        only.objects.sort_unstable();
        only.epochs.extend(&unrecorded.epochs);
        only.epochs.sort_unstable();
        only.highest_revision = only.highest_revision.max(unrecorded.highest_revision);
    }
    let mut all: Vec<Lineage> = found.into_values().collect();
    all.sort_by_key(|lineage| (lineage.epochs.first().copied().unwrap_or(0), lineage.objects.first().copied()));
    all
}

impl Lineage {
    fn none() -> Lineage {
        Lineage {
            clusters: Vec::new(),
            newest_cluster: 0,
            tokens: Vec::new(),
            epochs: Vec::new(),
            objects: Vec::new(),
            highest_revision: 0,
        }
    }

    fn add_cluster(&mut self, id: u64) {
        if id != 0 && !self.clusters.contains(&id) {
            self.clusters.push(id);
        }
    }
}

/// Whether a newer epoch than `number` overrules the writer whose clusters these are: one of the same cluster, or of one that
/// names it as an ancestor. A newer epoch of another lineage overrules nothing of this one.
pub fn overruled_by<'e>(newer: &'e [Epoch], number: u64, clusters: &[u64]) -> Option<&'e Epoch> {
    let mut kin: BTreeSet<u64> = clusters.iter().copied().collect();
    let mut later: Vec<&Epoch> = newer.iter().filter(|epoch| epoch.epoch > number).collect();
    later.sort_by_key(|epoch| epoch.epoch);
    let mut found = None;
    for epoch in later {
        let id = cluster_of(epoch);
        // An epoch that does not record its cluster may be of any.
        if id == 0 || kin.contains(&id) || ancestors_of(epoch).any(|ancestor| kin.contains(&ancestor)) {
            kin.insert(id);
            found = Some(epoch);
        }
    }
    found
}

/// Sets of clusters that belong together.
#[derive(Default)]
struct Groups(BTreeMap<u64, u64>);

impl Groups {
    fn root(&self, id: u64) -> u64 {
        let mut at = id;
        while let Some(next) = self.0.get(&at).filter(|next| **next != at) {
            at = *next;
        }
        at
    }

    fn join(&mut self, one: u64, other: u64) {
        let (one, other) = (self.root(one), self.root(other));
        if one != other && one != 0 && other != 0 {
            self.0.insert(one, other);
        }
    }
}

/// Whether an object can be used at all, by what is known of it.
pub fn holds_backups(lineage: &Lineage, objects: &[Object]) -> bool {
    lineage.objects.iter().any(|index| !matches!(objects[*index].state, State::Bad(_)))
}

#[cfg(test)]
mod tests {
    use quorate_etcd_formats::delta::quorate::{Declared, FORMAT};

    use super::*;
    use crate::chain::{Kind, Layout};

    fn epoch(number: u64, cluster: u64, was: &[u64], token: Option<&str>) -> Epoch {
        Epoch {
            format: FORMAT.to_owned(),
            epoch: number,
            begins_at: number * 10,
            cluster_id: format!("{cluster:x}"),
            member_id: "1".to_owned(),
            created_ms: 0,
            writer: String::new(),
            declared: token.map(|token| Declared { token: token.to_owned(), bootstrap: Some(1) }),
            was: was.iter().map(|id| format!("{id:x}")).collect(),
        }
    }

    fn full(epoch: u64, cluster_id: u64, last: u64) -> Object {
        Object {
            name: format!("{epoch}-{last}"),
            kind: Kind::Full,
            layout: Layout::Quorate,
            first: last,
            last,
            created_ms: 0,
            bytes: 1,
            epoch,
            cluster_id,
            state: State::Claimed,
        }
    }

    #[test]
    fn clusters_are_linked_by_their_own_record_alone() {
        let objects = [full(1, 0xa, 10), full(2, 0xb, 20), full(3, 0xc, 2_000_000_000)];
        let epochs = [epoch(1, 0xa, &[], Some("t")), epoch(2, 0xb, &[], Some("t")), epoch(3, 0xc, &[0xa], Some("t"))];
        let found = lineages(&objects, &epochs, &[]);
        let clusters: Vec<&[u64]> = found.iter().map(|lineage| lineage.clusters.as_slice()).collect();
        assert_eq!(clusters, [&[0xa, 0xc][..], &[0xb][..]], "an equal token links nothing");
        assert_eq!(found[0].objects, [0, 2]);
        assert_eq!((found[0].newest_cluster, found[0].highest_revision), (0xc, 2_000_000_000));
        assert_eq!(found[0].title(), "token `t`, cluster c, before that a");
        let known = lineages(&objects, &epochs, &[0xb, 0xc]);
        assert_eq!(known.len(), 1, "the ledger of who asks links as well");
    }

    #[test]
    fn what_records_no_cluster_belongs_to_the_only_lineage() {
        let objects = [full(0, 0, 5), full(1, 0, 10)];
        let one = lineages(&objects, &[epoch(1, 0xa, &[], None)], &[]);
        assert_eq!((one.len(), one[0].objects.as_slice()), (1, &[0, 1][..]));
        let two = lineages(&objects, &[epoch(1, 0xa, &[], None), epoch(2, 0xb, &[], None)], &[]);
        let objects: Vec<&[usize]> = two.iter().map(|lineage| lineage.objects.as_slice()).collect();
        assert_eq!(objects, [&[0][..], &[1][..], &[][..]], "with two of them it is of neither");
    }

    #[test]
    fn an_epoch_of_another_lineage_overrules_nothing() {
        let newer = [epoch(2, 0xb, &[], None), epoch(3, 0xc, &[0xb], None)];
        assert_eq!(overruled_by(&newer, 1, &[0xa]), None);
        assert_eq!(overruled_by(&newer, 1, &[0xb]).map(|epoch| epoch.epoch), Some(3));
        let taken = [epoch(2, 0xb, &[0xa], None), epoch(3, 0xc, &[0xb], None)];
        assert_eq!(overruled_by(&taken, 1, &[0xa]).map(|epoch| epoch.epoch), Some(3), "through the one in between");
        assert_eq!(overruled_by(&taken, 3, &[0xa]), None);
    }
}
