//! Decides between two recovered clusters of the same generation, of which operators on two sides of a partition made one each.
//!
//! **Invariant:** of the same facts both sides reach opposite verdicts, and of incomplete facts at most one of them wins. A claimed
//! generation wins; else the only one that clients have written to since its recovery; else the lower cluster id.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use quorate_etcd_formats::membership::ClusterId;
use serde::{Deserialize, Serialize};

use crate::ledger::{Generation, Ledger};

/// Ids of generations that were claimed in a store are drawn from below it, all others from here on.
const UNCLAIMED: u64 = 1 << 63;

/// What a recovered cluster recorded about itself in its own etcd when it first met another one, once for each other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sealed {
    /// Clients have written to it since its recovery.
    Written,
    /// They have not.
    Unwritten,
    /// It cannot tell, or has members of a release that compares ids alone.
    ById,
}

/// What is known of that record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fact {
    /// Its agents are of a release that compares ids alone.
    EarlierRelease,
    /// It was not recorded yet, or could not be learned.
    Unknown,
    /// It was recorded, and does not change any more.
    Known(Sealed),
}

/// A recovered cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// Its id.
    pub cluster: ClusterId,
    /// What it recorded about itself against the other one.
    pub fact: Fact,
}

/// Which of two recovered clusters of the same generation goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The own one: it serves on.
    Wins,
    /// The other one: the own one stops, and keeps its data.
    Loses,
    /// Neither yet: facts are missing.
    Undecided,
}

/// Whether the generation of a recovered cluster was claimed in a store, by its id.
pub fn is_claimed(cluster: ClusterId) -> bool {
    cluster.0 < UNCLAIMED
}

/// Decides between the own cluster and another one of the same generation.
pub fn decide_fork(own: Recovered, rival: Recovered) -> Verdict {
    if is_claimed(own.cluster) != is_claimed(rival.cluster) {
        return by_id(own.cluster, rival.cluster);
    }
    match (own.fact, rival.fact) {
        (Fact::Known(Sealed::Written), Fact::Known(Sealed::Unwritten)) => Verdict::Wins,
        (Fact::Known(Sealed::Unwritten), Fact::Known(Sealed::Written)) => Verdict::Loses,
        (Fact::EarlierRelease | Fact::Known(Sealed::ById), _)
        | (_, Fact::EarlierRelease | Fact::Known(Sealed::ById)) => by_id(own.cluster, rival.cluster),
        (Fact::Unknown, _) | (_, Fact::Unknown) => Verdict::Undecided,
        (Fact::Known(_), Fact::Known(_)) => by_id(own.cluster, rival.cluster),
    }
}

/// Decides where a fact stays missing although both clusters serve: the one with the higher id stops, and the other one waits on. So
/// at most one of them goes on, whatever either learns later.
pub fn decide_late(own: Recovered, rival: Recovered) -> Verdict {
    match decide_fork(own, rival) {
        Verdict::Undecided if by_id(own.cluster, rival.cluster) == Verdict::Loses => Verdict::Loses,
        verdict @ (Verdict::Wins | Verdict::Loses | Verdict::Undecided) => verdict,
    }
}

fn by_id(own: ClusterId, rival: ClusterId) -> Verdict {
    if own < rival { Verdict::Wins } else { Verdict::Loses }
}

/// What an agent reports of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The newest generation that it knows of.
    pub newest: Generation,
    /// The cluster that its node belongs to, where it belongs to one.
    pub cluster: Option<ClusterId>,
    /// What its cluster recorded about itself, by the other cluster. None from agents of earlier releases.
    pub forks: Option<Vec<Fork>>,
}

/// What a cluster recorded about itself when it met another one of the same generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fork {
    /// The other cluster.
    pub rival: ClusterId,
    /// What it recorded.
    pub sealed: Sealed,
}

/// An agent of an earlier release reports no more than this, and of its own cluster.
impl From<Generation> for Report {
    fn from(newest: Generation) -> Report {
        Report { newest, cluster: newest.cluster, forks: None }
    }
}

/// What is known of the other recovered clusters of this node's generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forks {
    /// By cluster id: what the own cluster recorded against it, and what it recorded against the own one.
    pub rivals: BTreeMap<ClusterId, (Fact, Fact)>,
    /// The one that a member of the own cluster has stopped for.
    pub lost_to: Option<ClusterId>,
}

impl Forks {
    /// Gathers what reports and the own ledger say.
    pub fn of(ledger: &Ledger, reports: &[Report]) -> Forks {
        let mut found = Forks::default();
        let Some(own) = ledger.cluster() else { return found };
        for report in reports.iter().filter(|report| ledger.is_rival(report.newest)) {
            let Some(rival) = report.newest.cluster else { continue };
            let known = sealed_against(&ledger.forks, rival).map_or(Fact::Unknown, Fact::Known);
            found.rivals.entry(rival).or_insert((known, Fact::Unknown));
            // A member of the own cluster stopped for it, by the same facts. One of an earlier release compared ids alone.
            if report.cluster == Some(own) && report.forks.is_some() {
                found.lost_to = found.lost_to.or(Some(rival));
            }
        }
        for (rival, (_, theirs)) in &mut found.rivals {
            // Only its own members report what it recorded. One of the current release among them makes that count.
            let members = reports.iter().filter(|report| report.cluster == Some(*rival));
            let facts = members.map(|member| match &member.forks {
                Some(forks) => sealed_against(forks, own).map_or(Fact::Unknown, Fact::Known),
                None => Fact::EarlierRelease,
            });
            *theirs = facts.max().unwrap_or(Fact::Unknown);
        }
        // What the own cluster recorded is the same whoever of it tells.
        let own_members = reports.iter().filter(|report| report.cluster == Some(own));
        for fork in own_members.flat_map(|report| report.forks.iter().flatten()) {
            if let Some((known @ Fact::Unknown, _)) = found.rivals.get_mut(&fork.rival) {
                *known = Fact::Known(fork.sealed);
            }
        }
        found
    }

    /// The verdict against each of them.
    pub fn verdicts(&self, own: ClusterId) -> impl Iterator<Item = (ClusterId, Verdict)> + '_ {
        self.rivals.iter().map(move |(rival, (known, theirs))| {
            let (own, other) = (Recovered { cluster: own, fact: *known }, Recovered { cluster: *rival, fact: *theirs });
            (*rival, if self.lost_to == Some(*rival) { Verdict::Loses } else { decide_fork(own, other) })
        })
    }
}

/// What was recorded against a cluster.
pub fn sealed_against(forks: &[Fork], rival: ClusterId) -> Option<Sealed> {
    forks.iter().find(|fork| fork.rival == rival).map(|fork| fork.sealed)
}
