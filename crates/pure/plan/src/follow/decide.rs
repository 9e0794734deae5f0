//! The decision itself, one function for each thing that the store can be.

use quorate_faults::{Code, Fault, Result};

use super::{
    EpochPlan, EtcdSeen, FollowPlan, FollowSeen, Kin, Lists, Order, SpoolPlan, SpoolSeen, StoreHolds, StoreSeen,
};
use crate::Warning;
use crate::chain::{Layout, Span};

/// As much of etcd's history as this is recorded behind the newest full's back: it is, or may be, what the store lacks.
const LOOK_BACK_MAX: u64 = 100_000;

/// Decides where following goes on.
pub fn plan_follow(seen: &FollowSeen) -> Result<FollowPlan> {
    let etcd = &seen.etcd;
    let ours = seen.spool.filter(|spool| spool.cluster_id == etcd.cluster_id);
    let mut plan = match &seen.store {
        StoreSeen::Unknown => unknown(etcd, ours),
        StoreSeen::Empty => empty(seen, ours),
        StoreSeen::Holds(store) => {
            bound(seen, store)?;
            if let (Lists::Others(members), false) = (&seen.lists, seen.take_over == Order::Due) {
                return Err(bound_by_members(etcd.cluster_id, members));
            }
            match kinship(store, etcd, ours) {
                Kinship::Same => same(seen, store, ours)?,
                Kinship::Unrecorded => unrecorded(seen, store)?,
                Kinship::Other => other(seen, store)?,
            }
        }
    };
    if let (Some(stranger), None) = (seen.spool, ours) {
        let why = format!("it is of cluster {:x}, and etcd is of cluster {:x}", stranger.cluster_id, etcd.cluster_id);
        plan.set_aside(why);
    }
    if seen.layout == Layout::Gardener {
        plan.epoch = EpochPlan::None;
    }
    Ok(plan)
}

/// A store is bound to the lineage that writes there: another one needs the operator's word.
fn bound(seen: &FollowSeen, store: &StoreHolds) -> Result<()> {
    let (whose, cluster_id, what) = match &store.kin {
        Kin::Own => return Ok(()),
        Kin::Stranger { whose, cluster_id } => (whose, cluster_id, "it belongs to another cluster"),
        Kin::Superseded { whose, cluster_id } => {
            (whose, cluster_id, "another cluster of this lineage has taken it over")
        }
    };
    if seen.take_over == Order::Due && seen.layout == Layout::Quorate {
        return Ok(());
    }
    let attempt = format!("cannot back cluster {:x} up to this store: {what} ({whose})", seen.etcd.cluster_id);
    let hint = match seen.layout {
        Layout::Quorate if seen.take_over == Order::Done => {
            "give this cluster a store of its own: the take-over that is ordered was \
             carried out before, and a cluster takes the same one over once"
                .to_owned()
        }
        Layout::Quorate => format!(
            "give this cluster a store of its own; if it replaces the other one, write `take-over: \"{cluster_id:x}\"` below \
             `backup` in the cluster file (`backup follow` takes `--take-over`)"
        ),
        Layout::Gardener => "give this cluster a store of its own".to_owned(),
    };
    Err(Fault::new(Code::StoreBound, attempt).hint(hint))
}

enum Kinship {
    Same,
    Unrecorded,
    Other,
}

/// What a full of other members means where no cluster is recorded.
pub fn bound_by_members(cluster_id: u64, members: &str) -> Fault {
    let attempt = format!(
        "cannot back cluster {cluster_id:x} up to this store: it belongs to another cluster, one of whose fulls lists other members \
         ({members})"
    );
    let hint = format!(
        "give this cluster a store of its own; if it replaces that one, write `take-over: \"{cluster_id:x}\"` below `backup` in the \
         cluster file (`backup follow` takes `--take-over`)"
    );
    Fault::new(Code::StoreBound, attempt).hint(hint)
}

/// Whether the store's newest chain is of this cluster. Where it does not say, a spool that filled it does.
fn kinship(store: &StoreHolds, etcd: &EtcdSeen, ours: Option<SpoolSeen>) -> Kinship {
    let filled = || ours.and_then(|spool| spool.stored).is_some_and(|stored| Some(stored) <= store.reach);
    match store.cluster_id {
        id if id == etcd.cluster_id => Kinship::Same,
        // A store of nothing that can be restored joins with nothing.
        0 if store.reach.is_none() || filled() => Kinship::Same,
        0 => Kinship::Unrecorded,
        _ => Kinship::Other,
    }
}

impl FollowPlan {
    fn new(watch_from: u64, epoch: EpochPlan, spool: SpoolPlan) -> FollowPlan {
        FollowPlan { watch_from, take_full: None, epoch, spool, hole: None, ask_again: false, warnings: Vec::new() }
    }

    /// Begins anew with a full, joined to nothing that is there: the revision before the first watched one is believed
    /// from this epoch alone, and no delta of it has it.
    fn anew(etcd: &EtcdSeen, why: impl Into<String>) -> FollowPlan {
        let begins_at = etcd.revision.max(1);
        let plan = FollowPlan::new(after(etcd.revision), EpochPlan::Take { begins_at }, SpoolPlan::Begin);
        plan.full(why)
    }

    fn full(mut self, why: impl Into<String>) -> FollowPlan {
        self.take_full = Some(why.into());
        self
    }

    fn warn(&mut self, code: Code, text: impl Into<String>) {
        self.warnings.push(Warning::new(code, text));
    }

    fn set_aside(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.warn(Code::SpoolSetAside, format!("the spool is set aside: {why}"));
        self.spool = SpoolPlan::SetAside(why);
    }

    /// What is missing from `first` on is covered by a full, and watching goes on behind etcd's newest revision.
    fn over_a_hole(&mut self, first: u64, etcd: &EtcdSeen, last: u64) {
        let hole = Span { from: first, to: last };
        let oldest = etcd.oldest.unwrap_or(0);
        let text = format!(
            "revisions {first} to {last} are neither stored nor spooled, and etcd keeps only {oldest} and later: \
             a full backup is taken, moments in between cannot be restored"
        );
        self.warn(Code::HistoryHole, text);
        self.hole = Some(hole);
        self.take_full = Some(format!("etcd has compacted revision {first}"));
    }

    /// A full that is in the store covers what nobody has.
    fn lost_before(&mut self, gap: Span, full: u64) {
        let Span { from, to } = gap;
        let text = format!(
            "revisions {from} to {to} are neither stored nor spooled, and cannot be recorded any more: the full backup at \
             revision {full} covers them, moments in between cannot be restored"
        );
        self.warn(Code::HistoryHole, text);
        self.hole.get_or_insert(gap).from = from;
    }
}

fn after(revision: u64) -> u64 {
    revision.saturating_add(1)
}

fn has(etcd: &EtcdSeen, revision: u64) -> bool {
    etcd.oldest.is_none_or(|oldest| oldest <= revision)
}

/// The newest revision that a spool has or had.
fn newest_of(spool: &SpoolSeen) -> Option<u64> {
    spool.pending.map(|span| span.to).max(spool.stored)
}

fn unknown(etcd: &EtcdSeen, ours: Option<SpoolSeen>) -> FollowPlan {
    let mut plan = match ours.and_then(|spool| newest_of(&spool).map(|newest| (spool, newest))) {
        Some((_, newest)) if newest > etcd.revision => {
            let mut plan = FollowPlan::new(after(etcd.revision), EpochPlan::Later, SpoolPlan::Begin)
                .full("etcd's revision went back");
            went_back(&mut plan, newest, etcd.revision);
            plan.set_aside("etcd no longer has what it holds");
            plan
        }
        Some((spool, newest)) => {
            let epoch = spool.epoch.map_or(EpochPlan::Later, EpochPlan::Keep);
            let mut plan = FollowPlan::new(after(newest), epoch, SpoolPlan::Use);
            if !has(etcd, plan.watch_from) {
                plan.over_a_hole(after(newest), etcd, etcd.revision);
                plan.watch_from = after(etcd.revision);
            }
            plan
        }
        None => {
            // What the store lacks is not known; what etcd may compact meanwhile is worth recording.
            let far = after(etcd.revision).saturating_sub(LOOK_BACK_MAX).max(1);
            let from = etcd.oldest.map_or(after(etcd.revision), |oldest| oldest.max(far).min(after(etcd.revision)));
            FollowPlan::new(from, EpochPlan::Later, SpoolPlan::Begin)
        }
    };
    plan.ask_again = true;
    plan.warn(Code::StoreNotSeen, "the store does not answer; writes are spooled, and it is asked again");
    plan
}

fn empty(seen: &FollowSeen, ours: Option<SpoolSeen>) -> FollowPlan {
    let etcd = &seen.etcd;
    let from = after(etcd.revision);
    let mut plan =
        FollowPlan::new(from, EpochPlan::Take { begins_at: from }, SpoolPlan::Begin).full("the store is empty");
    let Some(spool) = ours else { return plan };
    match (spool.epoch, spool.pending) {
        // Recorded while the store was not known: it joins the full that comes.
        (None, Some(span)) if span.to <= etcd.revision && has(etcd, after(span.to)) => {
            plan.watch_from = after(span.to);
            plan.epoch = EpochPlan::Take { begins_at: span.from };
            plan.spool = SpoolPlan::Use;
        }
        (None, None) => plan.spool = SpoolPlan::Use,
        (None, Some(_)) => plan.set_aside("what follows it is not in etcd"),
        (Some(_), _) => {
            let stored = spool.stored.map_or_else(String::new, |stored| format!(" up to revision {stored}"));
            plan.set_aside(format!("it belongs to a store with backups{stored}, and this one is empty"));
        }
    }
    plan
}

/// The newest chain is this cluster's own, or there is none.
fn same(seen: &FollowSeen, store: &StoreHolds, ours: Option<SpoolSeen>) -> Result<FollowPlan> {
    let etcd = &seen.etcd;
    let is_own = |spool: &SpoolSeen| match (seen.layout, spool.epoch) {
        // Without epochs, whatever this machine recorded of the cluster is as good as anyone's.
        (Layout::Gardener, _) | (_, None) => true,
        (Layout::Quorate, Some(epoch)) => epoch == store.newest_epoch,
    };
    let own = ours.filter(is_own);
    let newest = own.as_ref().and_then(newest_of).max(store.reach);
    if let Some(newest) = newest.filter(|newest| *newest > etcd.revision) {
        return rolled_back(seen, newest, ours);
    }
    // In etcd-backup-restore's layout no delta begins before a full that it follows.
    let short = |gap: Span| gap.to.saturating_sub(gap.from) < LOOK_BACK_MAX;
    let gap = store.gap.map(|gap| (gap, seen.layout == Layout::Quorate && short(gap)));
    let mut plan = joined(etcd, store.reach, gap, own.and_then(|spool| spool.pending));
    if let Some(spool) = own {
        if plan.spool == SpoolPlan::Begin {
            plan.spool = SpoolPlan::Use;
        }
        if let Some(epoch) = spool.epoch {
            plan.epoch = EpochPlan::Keep(epoch);
        }
    } else if let Some(spool) = ours {
        let (theirs, mine) = (store.newest_epoch, spool.epoch.unwrap_or(0));
        plan.set_aside(match theirs > mine {
            true => format!("it is of epoch {mine}, and another writer took over with epoch {theirs}"),
            false => format!("it is of epoch {mine}, and the store knows none after {theirs}"),
        });
    }
    Ok(plan)
}

/// Goes on behind the store's reach and what the spool adds to it, or before that where a full was ahead of the deltas.
/// The epoch is a new one, as if there were no own.
fn joined(etcd: &EtcdSeen, reach: Option<u64>, gap: Option<(Span, bool)>, pending: Option<Span>) -> FollowPlan {
    let Some(reach) = reach else {
        // No full leads anywhere: the one that is taken does.
        let pending = pending.filter(|span| has(etcd, after(span.to)));
        let from = after(pending.map_or(etcd.revision, |span| span.to));
        let epoch = EpochPlan::Take { begins_at: pending.map_or(from, |span| span.from) };
        let spool = if pending.is_some() { SpoolPlan::Use } else { SpoolPlan::Begin };
        return FollowPlan::new(from, epoch, spool).full("nothing in the store can be restored");
    };
    let gap = gap.and_then(|(gap, may_fill)| uncovered(gap, pending).map(|gap| (gap, may_fill)));
    match gap {
        Some((gap, true)) if has(etcd, gap.from) => going_on(etcd, reach, gap.from, pending),
        Some((gap, _)) => {
            let mut plan = going_on(etcd, reach, after(reach), pending);
            plan.lost_before(gap, reach);
            plan
        }
        None => going_on(etcd, reach, after(reach), pending),
    }
}

/// The next revision is `next`, unless the spool has it.
fn going_on(etcd: &EtcdSeen, reach: u64, next: u64, pending: Option<Span>) -> FollowPlan {
    let behind = after(reach);
    // The store's own objects are believed up to its reach, whatever is recorded anew beside them.
    let begin =
        |from: u64, spool: SpoolPlan| FollowPlan::new(from, EpochPlan::Take { begins_at: from.max(behind) }, spool);
    let mut plan = match pending {
        None => begin(next, SpoolPlan::Begin),
        Some(span) if span.from <= next => {
            let mut plan = begin(after(span.to).max(next), SpoolPlan::Use);
            plan.epoch = EpochPlan::Take { begins_at: behind };
            plan
        }
        Some(span) if has(etcd, next) => {
            let mut plan = begin(next, SpoolPlan::Begin);
            let text = format!("it begins at revision {}, and {next} is recorded anew from etcd", span.from);
            plan.set_aside(text);
            return plan;
        }
        Some(span) => {
            let mut plan = begin(after(span.to), SpoolPlan::Use);
            plan.epoch = EpochPlan::Take { begins_at: span.from };
            plan.over_a_hole(next, etcd, span.from.saturating_sub(1));
            plan
        }
    };
    if !has(etcd, plan.watch_from) {
        let first = plan.hole.map_or(plan.watch_from, |hole| hole.from);
        plan.warnings.retain(|warning| warning.code != Code::HistoryHole);
        plan.over_a_hole(first, etcd, etcd.revision);
        plan.watch_from = after(etcd.revision);
        if pending.is_none() {
            plan.epoch = EpochPlan::Take { begins_at: plan.watch_from };
        }
    }
    plan
}

/// What of a gap the spool does not hold.
fn uncovered(gap: Span, pending: Option<Span>) -> Option<Span> {
    let held = pending.filter(|span| span.from <= gap.from).map_or(0, |span| after(span.to));
    Some(Span { from: gap.from.max(held), to: gap.to }).filter(|gap| gap.from <= gap.to)
}

fn went_back(plan: &mut FollowPlan, newest: u64, revision: u64) {
    let text = format!(
        "etcd is at revision {revision}, and revision {newest} was backed up: its data was replaced by an older copy; \
         what lies behind {revision} in the store is no longer used"
    );
    plan.warn(Code::RevisionWentBack, text);
}

fn rolled_back(seen: &FollowSeen, newest: u64, ours: Option<SpoolSeen>) -> Result<FollowPlan> {
    let revision = seen.etcd.revision;
    if seen.layout == Layout::Gardener {
        let what = format!(
            "cannot go on with this store: etcd is at revision {revision}, and revision {newest} was backed up"
        );
        return Err(Fault::new(Code::RevisionWentBack, what)
            .hint("in this layout a restore would take the old history; give `--store` a folder of its own"));
    }
    // The store's own word: what clients were told is written is there, and not in etcd any more.
    let StoreSeen::Holds(store) = &seen.store else { return Ok(anew_after(seen, newest, ours)) };
    if store.reach.is_some_and(|reach| reach > revision) && seen.take_over != Order::Due && !seen.taken_over {
        let what = format!(
            "cannot back up to this store: etcd is at revision {revision}, and revision {newest} of this cluster was backed up: \
             its data was put back to an older copy"
        );
        return Err(Fault::new(Code::RevisionWentBack, what).hint(
            "put the right data back, or restore the newest backup; to go on with the older copy, see `quorate explain Q0844`",
        ));
    }
    Ok(anew_after(seen, newest, ours))
}

/// Begins a new history in the store, beside the one that etcd no longer has.
fn anew_after(seen: &FollowSeen, newest: u64, ours: Option<SpoolSeen>) -> FollowPlan {
    let revision = seen.etcd.revision;
    let mut plan = FollowPlan::anew(&seen.etcd, "etcd's revision went back");
    went_back(&mut plan, newest, revision);
    if ours.is_some() {
        plan.set_aside("etcd's history was replaced");
    }
    plan
}

/// The newest chain does not say whose it is, and no spool knows either.
fn unrecorded(seen: &FollowSeen, store: &StoreHolds) -> Result<FollowPlan> {
    let (reach, revision) = (store.reach.unwrap_or(0), seen.etcd.revision);
    let may = (seen.take_over == Order::Due || seen.restored) && seen.layout == Layout::Quorate;
    if reach > revision && !may {
        return Err(overrules(seen, reach, "a cluster whose id is not recorded".to_owned()));
    }
    let mut plan = FollowPlan::anew(&seen.etcd, "the store does not say which cluster its backups are of");
    // The end of the old history and the beginning of ours may be one and the same; that cannot be known.
    if reach < revision {
        plan.hole = Some(Span { from: after(reach), to: revision });
        let text = format!(
            "the store does not say which cluster its backups up to revision {reach} are of: a full backup is taken, \
             moments between there and revision {revision} cannot be restored"
        );
        plan.warn(Code::HistoryHole, text);
    }
    if let Some(spool) = seen.spool.filter(|spool| spool.cluster_id == seen.etcd.cluster_id) {
        settle_unjoined(&mut plan, &spool);
    }
    Ok(plan)
}

/// The newest chain is another cluster's.
fn other(seen: &FollowSeen, store: &StoreHolds) -> Result<FollowPlan> {
    let (reach, revision) = (store.reach.unwrap_or(0), seen.etcd.revision);
    let may = (seen.take_over == Order::Due || seen.restored) && seen.layout == Layout::Quorate;
    if reach >= revision && !may {
        return Err(overrules(seen, reach, format!("cluster {:x}", store.cluster_id)));
    }
    let mut plan = FollowPlan::anew(&seen.etcd, "the store's newest backups are another cluster's");
    let text = format!(
        "the store's backups up to revision {reach} are of cluster {:x}; those of cluster {:x} begin with a full backup",
        store.cluster_id, seen.etcd.cluster_id
    );
    plan.warn(Code::StoreOfOther, text);
    if let Some(spool) = seen.spool.filter(|spool| spool.cluster_id == seen.etcd.cluster_id) {
        settle_unjoined(&mut plan, &spool);
    }
    Ok(plan)
}

/// A chain that must not join an older one begins behind its full; what was spooled before that is not needed.
fn settle_unjoined(plan: &mut FollowPlan, spool: &SpoolSeen) {
    match spool.pending {
        Some(_) => plan.set_aside("a new history begins in the store, with a full backup that covers it"),
        None => plan.spool = SpoolPlan::SetAside("it belongs to what was in the store before".to_owned()),
    }
}

fn overrules(seen: &FollowSeen, reach: u64, whose: String) -> Fault {
    let revision = seen.etcd.revision;
    let what = format!(
        "cannot go on with this store: it holds backups of {whose} up to revision {reach}, and etcd is at {revision}"
    );
    let hint = match seen.layout {
        Layout::Quorate => {
            "give this cluster a store of its own; if it replaces that one, write `take-over: CLUSTER` below `backup` in the \
             cluster file (`backup follow` takes `--take-over`)"
        }
        Layout::Gardener => "give this cluster a store of its own",
    };
    Fault::new(Code::StoreOfOther, what).hint(hint)
}
