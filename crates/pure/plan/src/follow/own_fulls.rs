//! Which fulls of a store that records no cluster this cluster wrote, and what follows from one that it did not.
//!
//! **Invariant:** a store is bound to the cluster that wrote to it first. Two clusters that both began on an empty store find each other's
//! fulls, and the later one stops.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Lists;
use crate::chain::{Kind, Object};

/// What this node has recorded about the fulls of its store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnFulls {
    /// The cluster that it is about.
    pub cluster_id: u64,
    /// Fulls that this node wrote, by name.
    #[serde(default)]
    pub names: BTreeSet<String>,
    /// Fulls made up to this time are accepted: they list this cluster's members, or were taken over.
    #[serde(default)]
    pub accepted_ms: i64,
}

impl OwnFulls {
    /// The record, if it is about this cluster.
    #[must_use]
    pub fn of(self, cluster_id: u64) -> OwnFulls {
        if self.cluster_id == cluster_id { self } else { OwnFulls { cluster_id, ..OwnFulls::default() } }
    }

    /// The newest full that this node did not write and has not accepted: its members are to be compared.
    pub fn newest_unknown<'o>(&self, objects: &'o [Object]) -> Option<&'o Object> {
        let unknown = |it: &&Object| self.accepted_ms < it.created_ms && !self.names.contains(&it.name);
        fulls(objects).filter(unknown).max_by_key(|it| (it.created_ms, it.last))
    }

    /// Whether this node had written a full before that one.
    pub fn precedes(&self, objects: &[Object], other: &Object) -> bool {
        fulls(objects).any(|it| self.names.contains(&it.name) && it.created_ms < other.created_ms)
    }

    /// What a comparison amounts to: a full of other members that came after one of this cluster does not bind the store.
    pub fn judge(&self, objects: &[Object], other: &Object, lists: Lists) -> Verdict {
        match lists {
            Lists::Others(members) if self.precedes(objects, other) => Verdict::Intruder(members),
            Lists::Others(members) => Verdict::Bound(members),
            Lists::OwnMembers | Lists::NotCompared => Verdict::Own,
        }
    }

    /// The same with all fulls up to this one accepted, and without names that are gone from the store.
    #[must_use]
    pub fn accepting(mut self, objects: &[Object], up_to_ms: i64) -> OwnFulls {
        self.accepted_ms = self.accepted_ms.max(up_to_ms);
        self.names.retain(|name| fulls(objects).any(|it| it.name == *name));
        self
    }
}

/// Whose full it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It lists members of this cluster.
    Own,
    /// It is of another cluster, which came later. Its members.
    Intruder(String),
    /// It is of another cluster, which was there first. Its members.
    Bound(String),
}

/// When the newest full was made.
pub fn newest_full_ms(objects: &[Object]) -> i64 {
    fulls(objects).map(|it| it.created_ms).max().unwrap_or(0)
}

fn fulls(objects: &[Object]) -> impl Iterator<Item = &Object> {
    objects.iter().filter(|it| it.kind == Kind::Full)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{Layout, State};

    fn full(name: &str, created_ms: i64) -> Object {
        let (kind, layout, state) = (Kind::Full, Layout::Gardener, State::Claimed);
        let name = name.to_owned();
        Object { name, kind, layout, first: 9, last: 9, created_ms, bytes: 1, epoch: 0, cluster_id: 0, state }
    }

    fn record(names: &[&str], accepted_ms: i64) -> OwnFulls {
        OwnFulls { cluster_id: 7, names: names.iter().map(|name| (*name).to_owned()).collect(), accepted_ms }
    }

    #[test]
    fn of_two_clusters_that_began_on_an_empty_store_the_later_one_stops() {
        let store = [full("a", 100), full("b", 101)];
        let others = || Lists::Others("`m`".to_owned());
        let (first, second) = (record(&["a"], 0), record(&["b"], 0));
        let seen = first.newest_unknown(&store).unwrap();
        assert_eq!(seen.name, "b");
        assert_eq!(first.judge(&store, seen, others()), Verdict::Intruder("`m`".to_owned()));
        let seen = second.newest_unknown(&store).unwrap();
        assert_eq!(second.judge(&store, seen, others()), Verdict::Bound("`m`".to_owned()));
        // Which was first cannot be told: neither writes on.
        let same = [full("a", 100), full("b", 100)];
        for it in [first, second] {
            let seen = it.newest_unknown(&same).unwrap();
            assert_eq!(it.judge(&same, seen, others()), Verdict::Bound("`m`".to_owned()));
        }
    }

    #[test]
    fn what_was_written_here_or_accepted_is_not_compared_again() {
        let store = [full("a", 100), full("b", 101), full("c", 102)];
        assert_eq!(record(&[], 0).newest_unknown(&store).unwrap().name, "c");
        assert_eq!(record(&["c"], 0).newest_unknown(&store).unwrap().name, "b");
        assert_eq!(record(&["c"], 101).newest_unknown(&store), None);
        let kept = record(&["c", "gone"], 0).accepting(&store, 101);
        assert_eq!(kept, record(&["c"], 101));
        assert_eq!(newest_full_ms(&store), 102);
        // What is recorded of another cluster says nothing about this one.
        assert_eq!(kept.of(8), OwnFulls { cluster_id: 8, ..OwnFulls::default() });
    }
}
