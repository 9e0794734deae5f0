//! Decides who is the write master, once the group stands.
//!
//! **Invariant:** deciding wrongly costs time, never a second write master: the place is taken by a transaction that fails
//! where somebody has it. Among those who could take it the most advanced comes first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::records::{Candidate, Cutoff, Records};
use crate::spec::{PgSpec, PgWriters};

/// How long the others may take to say how far they are.
const GATHER: Duration = Duration::from_millis(300);
/// After so long whoever is next in line may take the place instead.
const NEXT: Duration = Duration::from_millis(1000);

/// What a node sees of the write master.
#[derive(Debug, Clone)]
pub struct WriterSeen {
    /// Whether we hold the place by a lease that surely lives.
    pub holds: bool,
    /// Whether our own server answers, and we could serve.
    pub well: bool,
    /// The records.
    pub records: Records,
    /// Who is registered.
    pub alive: BTreeSet<String>,
    /// For how long nobody has had the place, as far as we saw.
    pub vacant: Vacancy,
    /// How far we have applied what the last write master wrote.
    pub applied: u64,
    /// Whether nothing more of it is applied here: its subscription is stopped, or there is none.
    pub link_held: bool,
    /// How far we have applied what each other member wrote.
    pub positions: BTreeMap<String, u64>,
}

/// Since when the place is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vacancy {
    /// Somebody has it.
    Taken,
    /// For so long.
    Free(Duration),
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriterPlan {
    /// Go on as write master.
    Keep,
    /// Hand the place over to this node.
    HandOver(String),
    /// Somebody else has it, or will.
    Follow,
    /// Say how far we are.
    Stand(Candidate),
    /// Stop applying what this node, the last one, wrote: how far we are must not change any more.
    HoldLink(String),
    /// Take it, and record by the same transaction how far the old writers were applied here.
    Claim(BTreeMap<String, Cutoff>),
    /// We have it and cannot serve: give it up.
    GiveUp,
}

/// Decides what node `me` does about the write master.
pub fn next_writer(spec: &PgSpec, me: &str, seen: &WriterSeen) -> WriterPlan {
    if seen.holds {
        return match (&seen.records.order, seen.well) {
            (_, false) => WriterPlan::GiveUp,
            (Some((order, _)), true) if order.writer != me && seen.alive.contains(&order.writer) => {
                WriterPlan::HandOver(order.writer.clone())
            }
            (_, true) => WriterPlan::Keep,
        };
    }
    let Vacancy::Free(vacant) = seen.vacant else { return WriterPlan::Follow };
    if !seen.well || spec.node(me).is_none() {
        return WriterPlan::Follow;
    }
    // What the last writer has and this node has not would be lost without a trace.
    if seen.records.lacks(me, &seen.positions) {
        return WriterPlan::Follow;
    }
    let last = seen.records.last_writer.as_ref().map(|(last, _)| last);
    let epoch = last.map_or(0, |last| last.epoch) + 1;
    if let Some((handover, _)) = seen.records.handover.as_ref().filter(|(handover, _)| handover.epoch == epoch) {
        if handover.to == me {
            return WriterPlan::Claim(cutoffs(me, epoch, seen, None));
        }
        if vacant < NEXT * 2 {
            return WriterPlan::Follow;
        }
    }
    // It has not confirmed that we have everything.
    let from = last.map(|last| last.node.as_str()).filter(|last| *last != me && spec.writers == PgWriters::One);
    if let Some(from) = from.filter(|_| !seen.link_held) {
        return WriterPlan::HoldLink(from.to_owned());
    }
    let own =
        Candidate { epoch, applied: if last.is_some_and(|last| last.node == me) { u64::MAX } else { seen.applied } };
    if seen.records.candidates.get(me) != Some(&own) && vacant < NEXT {
        return WriterPlan::Stand(own);
    }
    let standing = seen.records.candidates.iter().filter(|(_, candidate)| candidate.epoch == epoch);
    let mut order: Vec<(&String, u64)> = standing.map(|(name, candidate)| (name, candidate.applied)).collect();
    // The most advanced first; of two that are equal the one that is declared first.
    let place = |name: &str| spec.nodes.iter().position(|node| node.name == name);
    order.sort_by_key(|(name, applied)| (std::cmp::Reverse(*applied), place(name)));
    // The last one is not waited for: it is most likely the one that is gone.
    let silent = seen.alive.iter().filter(|name| last.is_none_or(|last| last.node != **name));
    // Nor is one that stays out: it does not stand.
    let silent = silent.filter(|name| !seen.records.is_out(name));
    let complete = silent.into_iter().all(|name| order.iter().any(|(there, _)| *there == name));
    let rank = order.iter().position(|(name, _)| *name == me).unwrap_or(order.len());
    let rank = u32::try_from(rank).unwrap_or(u32::MAX);
    let due = if complete && rank == 0 { Duration::ZERO } else { GATHER + NEXT.saturating_mul(rank) };
    if vacant >= due { WriterPlan::Claim(cutoffs(me, epoch, seen, from)) } else { WriterPlan::Follow }
}

/// How far each old writer was applied here: those whose cutoff is on record, and the one that is taken over from.
fn cutoffs(me: &str, epoch: u64, seen: &WriterSeen, from: Option<&str>) -> BTreeMap<String, Cutoff> {
    let records = &seen.records;
    let before = records.cutoffs.keys().map(String::as_str).filter(|node| records.cutoff(node).is_some());
    let nodes: BTreeSet<&str> = before.chain(from).filter(|node| *node != me).collect();
    let cutoff = |node: &str| {
        let applied = seen.positions.get(node).copied().unwrap_or_default();
        Some((node.to_owned(), Cutoff { id: records.number(node)?, epoch, writer: me.to_owned(), applied }))
    };
    nodes.into_iter().filter_map(cutoff).collect()
}
