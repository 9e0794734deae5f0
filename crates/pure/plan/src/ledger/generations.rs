//! Generations of the cluster: which one this node holds, and which newer one it has heard of.
//!
//! **Invariant:** what is of an older generation than was heard of is not started any more, also when nobody is left who could tell.

use quorate_etcd_formats::membership::ClusterId;
use serde::{Deserialize, Serialize};

use super::Ledger;
use crate::fork::{Fork, sealed_against};

/// A generation of the cluster: what an operator made of its remains, or what was there before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// They are counted.
    pub number: u64,
    /// The id that the cluster has in it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
}

/// Where the history of a recovered cluster begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecoveredAt {
    /// The cluster.
    pub cluster: ClusterId,
    /// The revision that it began with: everything after it was written since the recovery.
    pub revision: u64,
}

impl Ledger {
    /// The newest generation of the cluster that this node knows of, its own or another.
    pub fn newest(&self) -> Generation {
        let own = Generation { number: self.generation, cluster: self.cluster() };
        self.outdated_by.filter(|_| self.is_outdated()).unwrap_or(own)
    }

    /// Whether what this node holds is of an older generation than it has heard of, or of one that lost against another recovery.
    pub fn is_outdated(&self) -> bool {
        self.outdated_by.is_some_and(|newer| newer.number > self.generation || self.is_rival(newer))
    }

    /// Whether it is another cluster of the same generation: two recoveries made both. A cluster that this node left by a reset is one;
    /// one that its own cluster was restored from is not.
    pub fn is_rival(&self, other: Generation) -> bool {
        let own = self.cluster().filter(|_| self.generation > 0 && other.number == self.generation);
        own.zip(other.cluster).is_some_and(|(own, other)| other != own && !self.was.contains(&other))
    }

    /// The same, knowing of a generation that is newer than its own, or of one with the same number that won.
    #[must_use]
    pub fn outdated_by(&self, newer: Generation) -> Ledger {
        let known = self.newest();
        let says_more = newer.number == known.number && self.is_outdated() && known.cluster.is_none();
        let lost = self.is_rival(newer) && !self.is_outdated();
        let newer = (newer.number > known.number || says_more || lost).then_some(newer);
        Ledger { outdated_by: newer.or(self.outdated_by), ..self.clone() }
    }

    /// The same, knowing that what it holds is of this generation. Which cluster of that generation wins is decided after that.
    #[must_use]
    pub fn of_generation(&self, number: u64) -> Ledger {
        let outdated_by = self.outdated_by.filter(|newer| newer.number > number);
        Ledger { generation: self.generation.max(number), outdated_by, ..self.clone() }
    }

    /// The same with what its cluster recorded about itself against another one. What was recorded stays.
    #[must_use]
    pub fn with_fork(&self, fork: Fork) -> Ledger {
        let mut next = self.clone();
        if sealed_against(&self.forks, fork.rival).is_none() {
            next.forks.push(fork);
            next.forks.sort_unstable();
        }
        next
    }

    /// The revision that the recovered cluster of this node began with.
    pub fn recovered_at(&self) -> Option<u64> {
        self.recovered.filter(|it| Some(it.cluster) == self.cluster()).map(|it| it.revision)
    }
}
