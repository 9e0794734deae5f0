//! Decides where following a cluster goes on: from which revision, in whose epoch, and whether a full must be taken.
//!
//! **Invariant:** every revision from where the store's deltas end on is stored, spooled, watched, or covered by a full
//! only; what is only covered by a full is a hole in the history, and is said. An unknown store is not an empty one.

mod decide;
mod own_fulls;
mod take_over;
#[cfg(test)]
mod tests;

pub use decide::{bound_by_members, plan_follow};
pub use own_fulls::{OwnFulls, Verdict, newest_full_ms};
pub use take_over::{Order, TakeOver, observe_order};

use quorate_etcd_formats::delta::quorate::Epoch;
use serde::Serialize;

use crate::Warning;
use crate::chain::{EpochStart, Layout, Object, Span, Target, decide as decide_chain};
use crate::lineage::{Lineage, ancestors_of, cluster_of, lineages};
use crate::roster::names;

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
    /// The members that a full lists which this node did not write, where the store does not record whose it is.
    pub lists: Lists,
    /// The layout that is written.
    pub layout: Layout,
    /// Whether the operator's order that this cluster may overrule other backups is still to be carried out.
    pub take_over: Order,
    /// This cluster was restored from a backup of its own lineage: its revision may be behind what the store holds.
    pub restored: bool,
    /// The operator took the data of this cluster over as it is: it may be behind what the store holds of it.
    pub taken_over: bool,
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

/// Whether a full that records no cluster is of this one, by the members that it lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lists {
    /// They were not compared: nothing depends on it.
    NotCompared,
    /// At least one member of this cluster, as a member or as a removed one.
    OwnMembers,
    /// Other members only: their names.
    Others(String),
}

/// Compares the members of a full with those of this cluster. Ids of removed members count: members may all have been replaced since.
pub fn compare_members(full: &[(u64, String)], removed: &[u64], own: &[u64]) -> Lists {
    let known = |id: &u64| own.contains(id);
    // A snapshot lists the members that took it; one without any says nothing.
    if full.is_empty() || full.iter().any(|(id, _)| known(id)) || removed.iter().any(known) {
        return Lists::OwnMembers;
    }
    Lists::Others(names(full.iter().map(|(_, name)| name.as_str())))
}

/// How the store's last writer is related to this cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kin {
    /// It is this cluster, one that this cluster descends from, or one that is not recorded.
    Own,
    /// It is of the same lineage, and this cluster does not descend from it: it took over, or both were recovered from one.
    Superseded {
        /// Token and cluster ids.
        whose: String,
        /// The last writer's cluster.
        cluster_id: u64,
    },
    /// It has no common ancestor with this cluster, or another token.
    Stranger {
        /// Token and cluster ids.
        whose: String,
        /// The last writer's cluster.
        cluster_id: u64,
    },
}

/// This cluster, as far as it knows itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Me {
    /// Its id.
    pub cluster_id: u64,
    /// The clusters that it descends from, by its ledger.
    pub was: Vec<u64>,
    /// The token of its file.
    pub token: Option<String>,
}

impl Me {
    /// All ids of its lineage that it knows.
    pub fn clusters(&self) -> Vec<u64> {
        std::iter::once(self.cluster_id).chain(self.was.iter().copied()).filter(|id| *id != 0).collect()
    }
}

/// What a listing of the store amounts to, for one lineage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreHolds {
    /// Whose it is.
    pub kin: Kin,
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
            kin: Kin::Own,
            cluster_id,
            reach: chain.map(|chain| chain.reach),
            newest_epoch: numbers.max().unwrap_or(0),
            gap,
        })
    }
}

impl FollowSeen {
    /// Whether the members that a full lists decide: the layout records no cluster, and this one does not come from a backup of it.
    pub fn depends_on_members(&self, is_descendant: bool) -> bool {
        let StoreSeen::Holds(store) = &self.store else { return false };
        self.layout == Layout::Gardener && !is_descendant && store.cluster_id == 0 && store.reach.is_some()
    }
}

/// What a store holds for one cluster: its own lineage, or the one that the store is bound to. Also the lineage that was meant.
pub fn observe_lineage(
    objects: &[Object],
    starts: &[EpochStart],
    opened: &[Epoch],
    me: &Me,
) -> (StoreSeen, Option<Lineage>) {
    let all = lineages(objects, opened, &me.clusters());
    let (mine, others): (Vec<Lineage>, Vec<Lineage>) =
        all.into_iter().partition(|lineage| lineage.has_any(&me.clusters()));
    let mine = mine.into_iter().next();
    let recorded: Vec<Lineage> = others.iter().filter(|other| !other.clusters.is_empty()).cloned().collect();
    let first = |lineage: &Lineage| lineage.epochs.first().copied().unwrap_or(0);
    // Whoever was first binds an empty store; an epoch without a backup behind it does not.
    let holds = |mine: &Lineage| {
        let before = recorded.iter().any(|other| !other.objects.is_empty() || first(other) < first(mine));
        !mine.objects.is_empty() || !before
    };
    let seen_as = |lineage: &Lineage, kin: Kin| {
        let part: Vec<Object> = lineage.objects.iter().map(|index| objects[*index].clone()).collect();
        let starts: Vec<EpochStart> =
            starts.iter().filter(|start| lineage.epochs.contains(&start.epoch)).copied().collect();
        match StoreSeen::of(&part, &starts) {
            StoreSeen::Holds(holds) => StoreSeen::Holds(StoreHolds { kin, ..holds }),
            seen @ (StoreSeen::Unknown | StoreSeen::Empty) => seen,
        }
    };
    match mine.filter(holds) {
        Some(mine) => {
            let kin = kin_of(&mine, opened, me);
            (seen_as(&mine, kin), Some(mine))
        }
        None => match recorded.into_iter().next().or_else(|| others.into_iter().next()) {
            None => (StoreSeen::of(objects, starts), None),
            Some(bound) => {
                let kin = match bound.clusters.is_empty() {
                    true => Kin::Own,
                    false => Kin::Stranger { whose: bound.title(), cluster_id: bound.newest_cluster },
                };
                (seen_as(&bound, kin), Some(bound))
            }
        },
    }
}

/// How this cluster is related to the last writer of its lineage.
fn kin_of(mine: &Lineage, opened: &[Epoch], me: &Me) -> Kin {
    let (whose, cluster_id) = (mine.title(), mine.newest_cluster);
    let other_token = me.token.as_ref().is_some_and(|token| !mine.tokens.is_empty() && !mine.tokens.contains(token));
    if other_token && !mine.clusters.contains(&me.cluster_id) {
        return Kin::Stranger { whose, cluster_id };
    }
    let recorded = opened.iter().filter(|epoch| cluster_of(epoch) == me.cluster_id).flat_map(ancestors_of);
    let ancestors: Vec<u64> = me.was.iter().copied().chain(recorded).collect();
    let last = opened.iter().filter(|epoch| mine.epochs.contains(&epoch.epoch)).max_by_key(|epoch| epoch.epoch);
    let replaced = last.is_some_and(|last| ancestors_of(last).any(|id| id == me.cluster_id));
    match cluster_id {
        0 => Kin::Own,
        id if id == me.cluster_id => Kin::Own,
        id if ancestors.contains(&id) && !replaced => Kin::Own,
        _ => Kin::Superseded { whose, cluster_id },
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
