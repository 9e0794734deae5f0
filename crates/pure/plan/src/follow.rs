//! Decides where following a cluster goes on: from which revision, in whose epoch, and whether a full must be taken.
//!
//! **Invariant:** every revision from where the store's deltas end on is stored, spooled, watched, or covered by a full
//! only; what is only covered by a full is a hole in the history, and is said. An unknown store is not an empty one.

mod decide;
#[cfg(test)]
mod tests;

pub use decide::plan_follow;

use serde::Serialize;

use crate::Warning;
use crate::chain::{EpochStart, Layout, Object, Span, Target, decide as decide_chain};

/// What was seen. Look at the spool first, then at the store, then at etcd: etcd's revision, read linearizably after the
/// others, is never behind them unless its history was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowSeen {
    /// What etcd says.
    pub etcd: EtcdSeen,
    /// What the store holds.
    pub store: StoreSeen,
    /// What the spool on this machine holds.
    pub spool: Option<SpoolSeen>,
    /// The layout that is written.
    pub layout: Layout,
    /// The operator said that this cluster may overrule another one's backups.
    pub take_over: bool,
}

/// What etcd says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtcdSeen {
    /// Its cluster.
    pub cluster_id: u64,
    /// Its newest revision.
    pub revision: u64,
    /// The first revision that a watch can begin with without missing anything: the compaction's revision and one.
    /// `None`: not known yet; then it is taken to be there, and the plan is made again if the watch says otherwise.
    pub oldest: Option<u64>,
}

/// What the store holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreSeen {
    /// It did not answer.
    Unknown,
    /// It answered, and there is no backup and no epoch in it.
    Empty,
    /// It holds backups or epochs.
    Holds(StoreHolds),
}

/// What a listing of the store amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreHolds {
    /// The cluster of the newest chain; 0 if that is not recorded.
    pub cluster_id: u64,
    /// The newest revision that can be restored; `None` if nothing can be.
    pub reach: Option<u64>,
    /// The newest epoch; 0 if there is none.
    pub newest_epoch: u64,
    /// Revisions before a full that has no delta behind it yet, to which nothing leads: it was taken ahead of the deltas.
    pub gap: Option<Span>,
}

impl StoreSeen {
    /// The newest epoch that was seen; 0 if there is none.
    pub fn newest_epoch(&self) -> u64 {
        match self {
            StoreSeen::Holds(holds) => holds.newest_epoch,
            StoreSeen::Empty | StoreSeen::Unknown => 0,
        }
    }

    /// What a listing amounts to, by its claims.
    pub fn of(objects: &[Object], epochs: &[EpochStart]) -> StoreSeen {
        if objects.is_empty() && epochs.is_empty() {
            return StoreSeen::Empty;
        }
        let decision = decide_chain(objects, epochs, Target::Newest);
        let gap = gap(&decision.recoverable);
        let chain = decision.chain;
        let numbers = epochs.iter().map(|start| start.epoch).chain(objects.iter().map(|object| object.epoch));
        // Any object of the chain that says its cluster speaks for all of it; else one of the same writer does.
        let cluster_id = chain.as_ref().map_or(0, |chain| {
            let deltas = chain.deltas.iter().map(|(index, _)| *index);
            let mut ids = std::iter::once(chain.base).chain(deltas).map(|index| objects[index].cluster_id);
            let epoch = objects[chain.base].epoch;
            let same_writer = objects.iter().filter(|object| epoch != 0 && object.epoch == epoch);
            let known = |id: &u64| *id != 0;
            ids.rfind(known).or(same_writer.map(|object| object.cluster_id).find(known)).unwrap_or(0)
        });
        StoreSeen::Holds(StoreHolds {
            cluster_id,
            reach: chain.map(|chain| chain.reach),
            newest_epoch: numbers.max().unwrap_or(0),
            gap,
        })
    }
}

/// What lies between the last delta and a newest full that no delta follows: there may be other fulls in it.
fn gap(recoverable: &[Span]) -> Option<Span> {
    let (newest, older) = recoverable.split_last().filter(|(newest, _)| newest.from == newest.to)?;
    let before = older.iter().rfind(|span| span.from < span.to).or(older.first())?;
    // A full right behind the deltas leaves none.
    Some(Span { from: before.to.saturating_add(1), to: newest.from.saturating_sub(1) }).filter(|gap| gap.from <= gap.to)
}

/// What the spool on this machine holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpoolSeen {
    /// The cluster that it was recorded from.
    pub cluster_id: u64,
    /// The epoch that it belongs to; `None`: the store was not known while it was recorded.
    pub epoch: Option<u64>,
    /// The whole revisions that wait to be stored; `None` if there are none.
    pub pending: Option<Span>,
    /// The newest revision that this spool brought into the store.
    pub stored: Option<u64>,
}

/// Where following goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FollowPlan {
    /// The first revision to watch.
    pub watch_from: u64,
    /// Why a full must be taken at once; `None`: the schedule decides.
    pub take_full: Option<String>,
    /// Whose epoch this is.
    pub epoch: EpochPlan,
    /// What becomes of what is in the spool.
    pub spool: SpoolPlan,
    /// Revisions that only the full will cover: their state is in it, moments between them are not.
    pub hole: Option<Span>,
    /// The store must be asked again, and the plan be made again, before anything is stored.
    pub ask_again: bool,
    /// What the operator should know.
    pub warnings: Vec<Warning>,
}

/// Whose epoch it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EpochPlan {
    /// Ours, as before.
    Keep(u64),
    /// A new one.
    Take {
        /// From here on, older epochs are not believed.
        begins_at: u64,
    },
    /// Not before the store is known.
    Later,
    /// The layout has none.
    None,
}

/// What becomes of the spool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpoolPlan {
    /// It is used: what waits is stored, and what is watched joins it.
    Use,
    /// It is set aside, because; nothing of it is stored, and an empty one begins.
    SetAside(String),
    /// There is none; an empty one begins.
    Begin,
}
