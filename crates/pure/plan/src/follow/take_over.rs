//! Whether a take-over that the operator ordered is still to be carried out.
//!
//! **Rule:** an order is carried out once. The epoch that carried it out names the cluster that it took over, so every agent reads from
//! the store that it is done, and a line that stays in a file lets nothing happen a second time.

use quorate_etcd_formats::delta::quorate::Epoch;

use super::Me;
use crate::chain::{Kind, Object};
use crate::lineage::{Lineage, ancestors_of, cluster_of};

/// Whose backups a cluster may overrule by the operator's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOver {
    /// No cluster's.
    No,
    /// Those of the cluster that the store is bound to: a flag of a command, given for this run.
    Any,
    /// Those of this cluster. Its own id: the history that its data does not have any more.
    Of(u64),
}

/// What has become of a take-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// None was ordered, or it names a cluster that this store is not of.
    None,
    /// It is to be carried out, or was interrupted before its first full.
    Due,
    /// It was carried out.
    Done,
}

/// Decides by the epochs of the store whether an order is due.
pub fn observe_order(
    take_over: TakeOver,
    lineage: Option<&Lineage>,
    opened: &[Epoch],
    objects: &[Object],
    me: &Me,
) -> Order {
    // Nothing in the store records a cluster: the order names the one that gives it, and its own full completes it.
    let unrecorded = lineage.is_none_or(|lineage| lineage.clusters.is_empty());
    if unrecorded && matches!(take_over, TakeOver::Of(named) if named == me.cluster_id) {
        return Order::Due;
    }
    let Some(lineage) = lineage else { return if take_over == TakeOver::Any { Order::Due } else { Order::None } };
    let named = match take_over {
        TakeOver::No => return Order::None,
        // Restores leave lineages without a recorded cluster; and a flag that is given for one run speaks of this run's history.
        TakeOver::Any if matches!(lineage.newest_cluster, 0) || lineage.newest_cluster == me.cluster_id => {
            return Order::Due;
        }
        TakeOver::Any => lineage.newest_cluster,
        TakeOver::Of(named) => named,
    };
    if !lineage.clusters.contains(&named) {
        return Order::None;
    }
    let of_me = |epoch: &&Epoch| lineage.epochs.contains(&epoch.epoch) && cluster_of(epoch) == me.cluster_id;
    let names = |epoch: &Epoch| ancestors_of(epoch).any(|id| id == named);
    let carried = match named == me.cluster_id {
        // Epochs without the mark came after the line was removed: a line that is written again is a new order.
        true => opened.iter().filter(of_me).max_by_key(|epoch| epoch.epoch).filter(|epoch| names(epoch)),
        false => opened.iter().filter(of_me).filter(|epoch| names(epoch)).min_by_key(|epoch| epoch.epoch),
    };
    if let Some(carried) = carried {
        let has_full = |index: &usize| {
            let object = &objects[*index];
            let mine = object.cluster_id == me.cluster_id || object.cluster_id == 0;
            object.kind == Kind::Full && object.epoch >= carried.epoch && mine
        };
        let done = lineage.objects.iter().any(has_full) || lineage.newest_cluster != me.cluster_id;
        return if done { Order::Done } else { Order::Due };
    }
    // Another cluster than the named one may have taken the store over since: that is not what was ordered.
    if lineage.newest_cluster == named { Order::Due } else { Order::None }
}

#[cfg(test)]
mod tests {
    use quorate_etcd_formats::delta::quorate::{Declared, FORMAT};
    use quorate_faults::{Code, Result};

    use super::*;
    use crate::chain::{EpochStart, Layout, State};
    use crate::follow::{EtcdSeen, FollowPlan, FollowSeen, Lists, observe_lineage, plan_follow};

    fn epoch(number: u64, cluster: u64, was: &[u64]) -> Epoch {
        Epoch {
            format: FORMAT.to_owned(),
            epoch: number,
            begins_at: 1,
            cluster_id: format!("{cluster:x}"),
            member_id: "1".to_owned(),
            created_ms: 0,
            writer: String::new(),
            declared: Some(Declared { token: "t".to_owned(), bootstrap: Some(1) }),
            was: was.iter().map(|id| format!("{id:x}")).collect(),
        }
    }

    fn full(epoch: u64, cluster_id: u64, last: u64) -> Object {
        let (kind, layout, state) = (Kind::Full, Layout::Quorate, State::Claimed);
        let name = format!("{epoch}-{last}");
        Object { name, kind, layout, first: last, last, created_ms: 0, bytes: 1, epoch, cluster_id, state }
    }

    /// What cluster `mine` at `revision` does, with `take-over: "named"` in its file.
    fn plan(store: (&[Object], &[Epoch]), mine: u64, revision: u64, named: u64) -> (Order, Result<FollowPlan>) {
        let (objects, opened) = store;
        let me = Me { cluster_id: mine, was: Vec::new(), token: Some("t".to_owned()) };
        let starts: Vec<EpochStart> =
            opened.iter().map(|epoch| EpochStart { epoch: epoch.epoch, begins_at: epoch.begins_at }).collect();
        let (seen, lineage) = observe_lineage(objects, &starts, opened, &me);
        let take_over = observe_order(TakeOver::Of(named), lineage.as_ref(), opened, objects, &me);
        let plan = plan_follow(&FollowSeen {
            etcd: EtcdSeen { cluster_id: mine, revision, oldest: None },
            store: seen,
            spool: None,
            lists: Lists::NotCompared,
            layout: Layout::Quorate,
            take_over,
            restored: false,
            taken_over: false,
        });
        (take_over, plan)
    }

    fn code(planned: (Order, Result<FollowPlan>)) -> (Order, Option<Code>) {
        (planned.0, planned.1.err().map(|fault| fault.code()))
    }

    #[test]
    fn another_cluster_is_taken_over_once_and_an_interrupted_take_over_is_repeated() {
        let (a, b) = (full(1, 0xa, 100), full(2, 0xb, 20));
        let first = [epoch(1, 0xa, &[])];
        assert_eq!(code(plan((std::slice::from_ref(&a), &first), 0xb, 20, 0xa)), (Order::Due, None));
        let opened = [epoch(1, 0xa, &[]), epoch(2, 0xb, &[0xa])];
        let (order, again) = plan((std::slice::from_ref(&a), &opened), 0xb, 20, 0xa);
        assert_eq!(order, Order::Due, "its epoch has no full yet");
        assert!(again.unwrap().take_full.is_some());
        let objects = [a, b];
        let (order, done) = plan((&objects, &opened), 0xb, 25, 0xa);
        assert!(order == Order::Done && done.unwrap().take_full.is_none(), "it continues, and takes over no more");
        let older = code(plan((&objects, &opened), 0xb, 15, 0xa));
        assert_eq!(older, (Order::Done, Some(Code::RevisionWentBack)), "the line is no order to lose its own writes");
    }

    #[test]
    fn two_clusters_do_not_take_a_store_over_back_and_forth() {
        let objects = [full(1, 0xa, 100), full(2, 0xb, 20), full(3, 0xa, 110)];
        let opened = [epoch(1, 0xa, &[]), epoch(2, 0xb, &[0xa]), epoch(3, 0xa, &[0xb])];
        let back = plan((&objects[..2], &opened[..2]), 0xa, 110, 0xb);
        assert_eq!(code(back), (Order::Due, None), "the operator undoes a mistake");
        let (order, refused) = plan((&objects, &opened), 0xb, 30, 0xa);
        let refused = refused.unwrap_err();
        assert_eq!((order, refused.code()), (Order::Done, Code::StoreBound));
        assert!(refused.hint_text().unwrap().contains("carried out before"), "{refused:?}");
        let own = code(plan((&objects[..2], &opened[..2]), 0xa, 110, 0xa));
        assert_eq!(own, (Order::None, Some(Code::StoreBound)), "its own id takes nothing from another cluster");
    }

    #[test]
    fn its_own_id_lets_a_cluster_continue_with_an_older_copy_once() {
        let objects = [full(1, 0xa, 100)];
        let opened = [epoch(1, 0xa, &[])];
        assert_eq!(code(plan((&objects, &opened), 0xa, 50, 0xa)), (Order::Due, None));
        let marked = [epoch(1, 0xa, &[]), epoch(2, 0xa, &[0xa])];
        assert_eq!(code(plan((&objects, &marked), 0xa, 50, 0xa)), (Order::Due, None), "no full of it yet");
        let objects = [full(1, 0xa, 40), full(2, 0xa, 60)];
        let again = code(plan((&objects, &marked), 0xa, 55, 0xa));
        assert_eq!(again, (Order::Done, Some(Code::RevisionWentBack)));
        let removed = [epoch(1, 0xa, &[]), epoch(2, 0xa, &[0xa]), epoch(3, 0xa, &[])];
        assert_eq!(code(plan((&objects, &removed), 0xa, 55, 0xa)), (Order::Due, None), "a new order");
    }

    #[test]
    fn hints_have_no_runs_of_blanks() {
        let (objects, opened) = ([full(1, 0xa, 100)], [epoch(1, 0xa, &[])]);
        let refused = plan((&objects, &opened), 0xb, 20, 0).1.unwrap_err();
        let hint = refused.hint_text().unwrap();
        assert!(hint.contains("take-over: \"a\"") && !hint.contains("  "), "{hint}");
    }
}
