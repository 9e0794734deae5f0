//! The table: every situation in which following begins, and what an operator is told about it.

use proptest::prelude::*;
use quorate_faults::{Code, Result};

use super::*;
use crate::chain::{Kind, State};

/// Cluster `c`, at revision 100, with all of its history.
const ETCD: EtcdSeen = EtcdSeen { cluster_id: 0xc, revision: 100, oldest: Some(1) };

fn seen(store: StoreSeen, spool: Option<SpoolSeen>) -> FollowSeen {
    FollowSeen {
        etcd: ETCD,
        store,
        spool,
        lists: Lists::NotCompared,
        layout: Layout::Quorate,
        take_over: Order::None,
        restored: false,
        taken_over: false,
    }
}

fn holds(cluster_id: u64, reach: impl Into<Option<u64>>, newest_epoch: u64) -> StoreSeen {
    StoreSeen::Holds(StoreHolds { kin: Kin::Own, cluster_id, reach: reach.into(), newest_epoch, gap: None })
}

/// The same with a full at the reach that was ahead of the deltas.
fn ahead(reach: u64, newest_epoch: u64, gap: (u64, u64)) -> StoreSeen {
    let gap = Some(Span { from: gap.0, to: gap.1 });
    StoreSeen::Holds(StoreHolds { kin: Kin::Own, cluster_id: 0xc, reach: Some(reach), newest_epoch, gap })
}

/// A spool of cluster `c`.
fn spool(epoch: impl Into<Option<u64>>, pending: Option<(u64, u64)>, stored: Option<u64>) -> Option<SpoolSeen> {
    let pending = pending.map(|(from, to)| Span { from, to });
    Some(SpoolSeen { cluster_id: 0xc, epoch: epoch.into(), pending, stored })
}

fn compacted(seen: FollowSeen, oldest: u64) -> FollowSeen {
    FollowSeen { etcd: EtcdSeen { oldest: Some(oldest), ..seen.etcd }, ..seen }
}

fn gardener(seen: FollowSeen) -> FollowSeen {
    FollowSeen { layout: Layout::Gardener, ..seen }
}

/// The plan as an operator could be told it.
fn told(seen: FollowSeen) -> String {
    let plan = match plan_follow(&seen) {
        Ok(plan) => plan,
        Err(fault) => return format!("refused [{}]: {fault}", fault.code()),
    };
    let mut text = format!("watch from {}, epoch {:?}, spool {:?}", plan.watch_from, plan.epoch, plan.spool);
    if let Some(why) = plan.take_full {
        text.push_str(&format!("\nfull: {why}"));
    }
    if let Some(hole) = plan.hole {
        text.push_str(&format!("\nhole: {} to {}", hole.from, hole.to));
    }
    if plan.ask_again {
        text.push_str("\nask again");
    }
    for warning in plan.warnings {
        text.push_str(&format!("\n[{}] {}", warning.code, warning.text));
    }
    text
}

#[test]
fn a_first_start_with_an_empty_store_begins_with_a_full() {
    insta::assert_snapshot!(told(seen(StoreSeen::Empty, None)), @r"
    watch from 101, epoch Take { begins_at: 101 }, spool Begin
    full: the store is empty
    ");
}

#[test]
fn an_empty_store_that_was_not_empty_is_told() {
    insta::assert_snapshot!(told(seen(StoreSeen::Empty, spool(3, Some((91, 95)), Some(90)))), @r#"
    watch from 101, epoch Take { begins_at: 101 }, spool SetAside("it belongs to a store with backups up to revision 90, and this one is empty")
    full: the store is empty
    [Q0846] the spool is set aside: it belongs to a store with backups up to revision 90, and this one is empty
    "#);
}

#[test]
fn what_was_spooled_before_the_store_answered_joins_its_first_full() {
    insta::assert_snapshot!(told(seen(StoreSeen::Empty, spool(None, Some((40, 95)), None))), @r"
    watch from 96, epoch Take { begins_at: 40 }, spool Use
    full: the store is empty
    ");
    insta::assert_snapshot!(told(seen(StoreSeen::Empty, spool(None, None, None))), @r"
    watch from 101, epoch Take { begins_at: 101 }, spool Use
    full: the store is empty
    ");
}

#[test]
fn a_restart_goes_on_behind_its_own_spool() {
    insta::assert_snapshot!(told(seen(holds(0xc, 90, 3), spool(3, Some((91, 95)), Some(90)))), @"watch from 96, epoch Keep(3), spool Use");
    insta::assert_snapshot!(told(seen(holds(0xc, 90, 3), spool(3, None, Some(90)))), @"watch from 91, epoch Keep(3), spool Use");
}

#[test]
fn what_the_store_lost_behind_the_spools_back_is_recorded_anew() {
    insta::assert_snapshot!(told(seen(holds(0xc, 80, 3), spool(3, None, Some(90)))), @"watch from 81, epoch Keep(3), spool Use");
}

#[test]
fn a_spool_that_overlaps_what_is_stored_is_used() {
    insta::assert_snapshot!(told(seen(holds(0xc, 93, 3), spool(3, Some((91, 95)), Some(90)))), @"watch from 96, epoch Keep(3), spool Use");
    insta::assert_snapshot!(told(seen(holds(0xc, 99, 3), spool(3, Some((91, 95)), Some(90)))), @"watch from 100, epoch Keep(3), spool Use");
}

#[test]
fn what_a_full_was_ahead_of_is_recorded_too() {
    let own = ahead(90, 3, (81, 89));
    insta::assert_snapshot!(told(seen(own.clone(), spool(3, None, Some(80)))), @"watch from 81, epoch Keep(3), spool Use");
    insta::assert_snapshot!(told(seen(own.clone(), spool(3, Some((81, 85)), Some(80)))), @"watch from 86, epoch Keep(3), spool Use");
    insta::assert_snapshot!(told(seen(own.clone(), spool(3, Some((81, 95)), Some(80)))), @"watch from 96, epoch Keep(3), spool Use");
    // A newer writer believes the full, and records what it was ahead of.
    insta::assert_snapshot!(told(seen(own.clone(), None)), @"watch from 81, epoch Take { begins_at: 91 }, spool Begin");
    insta::assert_snapshot!(told(compacted(seen(own.clone(), spool(3, Some((81, 85)), Some(80))), 86)), @"watch from 86, epoch Keep(3), spool Use");
    insta::assert_snapshot!(told(compacted(seen(own.clone(), spool(3, Some((81, 85)), Some(80))), 88)), @r"
    watch from 91, epoch Keep(3), spool Use
    hole: 86 to 89
    [Q0845] revisions 86 to 89 are neither stored nor spooled, and cannot be recorded any more: the full backup at revision 90 covers them, moments in between cannot be restored
    ");
    insta::assert_snapshot!(told(compacted(seen(own.clone(), None), 88)), @r"
    watch from 91, epoch Take { begins_at: 91 }, spool Begin
    hole: 81 to 89
    [Q0845] revisions 81 to 89 are neither stored nor spooled, and cannot be recorded any more: the full backup at revision 90 covers them, moments in between cannot be restored
    ");
    insta::assert_snapshot!(told(compacted(seen(own.clone(), None), 96)), @r"
    watch from 101, epoch Take { begins_at: 101 }, spool Begin
    full: etcd has compacted revision 91
    hole: 81 to 100
    [Q0845] revisions 91 to 100 are neither stored nor spooled, and etcd keeps only 96 and later: a full backup is taken, moments in between cannot be restored
    [Q0845] revisions 81 to 89 are neither stored nor spooled, and cannot be recorded any more: the full backup at revision 90 covers them, moments in between cannot be restored
    ");
    insta::assert_snapshot!(told(gardener(seen(own, spool(None, None, Some(80))))), @r"
    watch from 91, epoch None, spool Use
    hole: 81 to 89
    [Q0845] revisions 81 to 89 are neither stored nor spooled, and cannot be recorded any more: the full backup at revision 90 covers them, moments in between cannot be restored
    ");
}

#[test]
fn a_spool_that_begins_after_the_stores_reach_is_recorded_anew_or_leaves_a_hole() {
    let later = seen(holds(0xc, 80, 3), spool(3, Some((91, 95)), Some(90)));
    insta::assert_snapshot!(told(later.clone()), @r#"
    watch from 81, epoch Keep(3), spool SetAside("it begins at revision 91, and 81 is recorded anew from etcd")
    [Q0846] the spool is set aside: it begins at revision 91, and 81 is recorded anew from etcd
    "#);
    insta::assert_snapshot!(told(compacted(later.clone(), 85)), @r"
    watch from 96, epoch Keep(3), spool Use
    full: etcd has compacted revision 81
    hole: 81 to 90
    [Q0845] revisions 81 to 90 are neither stored nor spooled, and etcd keeps only 85 and later: a full backup is taken, moments in between cannot be restored
    ");
    insta::assert_snapshot!(told(compacted(later, 98)), @r"
    watch from 101, epoch Keep(3), spool Use
    full: etcd has compacted revision 81
    hole: 81 to 100
    [Q0845] revisions 81 to 100 are neither stored nor spooled, and etcd keeps only 98 and later: a full backup is taken, moments in between cannot be restored
    ");
}

#[test]
fn a_restart_after_a_compaction_takes_a_full() {
    insta::assert_snapshot!(told(compacted(seen(holds(0xc, 90, 3), spool(3, Some((91, 95)), Some(90))), 98)), @r"
    watch from 101, epoch Keep(3), spool Use
    full: etcd has compacted revision 96
    hole: 96 to 100
    [Q0845] revisions 96 to 100 are neither stored nor spooled, and etcd keeps only 98 and later: a full backup is taken, moments in between cannot be restored
    ");
}

#[test]
fn an_unknown_store_is_not_an_empty_one() {
    insta::assert_snapshot!(told(seen(StoreSeen::Unknown, spool(3, Some((91, 95)), Some(90)))), @r"
    watch from 96, epoch Keep(3), spool Use
    ask again
    [Q0847] the store does not answer; writes are spooled, and it is asked again
    ");
    insta::assert_snapshot!(told(seen(StoreSeen::Unknown, None)), @r"
    watch from 1, epoch Later, spool Begin
    ask again
    [Q0847] the store does not answer; writes are spooled, and it is asked again
    ");
    let mut no_history = seen(StoreSeen::Unknown, None);
    no_history.etcd.oldest = None;
    insta::assert_snapshot!(told(no_history), @r"
    watch from 101, epoch Later, spool Begin
    ask again
    [Q0847] the store does not answer; writes are spooled, and it is asked again
    ");
    insta::assert_snapshot!(told(seen(StoreSeen::Unknown, spool(3, Some((91, 105)), Some(90)))), @r#"
    watch from 101, epoch Later, spool SetAside("etcd no longer has what it holds")
    full: etcd's revision went back
    ask again
    [Q0844] etcd is at revision 100, and revision 105 was backed up: its data was replaced by an older copy; what lies behind 100 in the store is no longer used
    [Q0846] the spool is set aside: etcd no longer has what it holds
    [Q0847] the store does not answer; writes are spooled, and it is asked again
    "#);
    insta::assert_snapshot!(told(compacted(seen(StoreSeen::Unknown, spool(3, None, Some(90))), 95)), @r"
    watch from 101, epoch Keep(3), spool Use
    full: etcd has compacted revision 91
    hole: 91 to 100
    ask again
    [Q0845] revisions 91 to 100 are neither stored nor spooled, and etcd keeps only 95 and later: a full backup is taken, moments in between cannot be restored
    [Q0847] the store does not answer; writes are spooled, and it is asked again
    ");
}

#[test]
fn an_unknown_store_does_not_make_a_long_history_be_read_from_its_beginning() {
    let mut long = seen(StoreSeen::Unknown, None);
    long.etcd.revision = 5_000_000;
    assert_eq!(plan_follow(&long).unwrap().watch_from, 4_900_001);
}

#[test]
fn an_older_epoch_of_the_same_cluster_is_taken_over_where_it_ends() {
    insta::assert_snapshot!(told(seen(holds(0xc, 90, 3), None)), @"watch from 91, epoch Take { begins_at: 91 }, spool Begin");
    insta::assert_snapshot!(told(compacted(seen(holds(0xc, 90, 3), None), 96)), @r"
    watch from 101, epoch Take { begins_at: 101 }, spool Begin
    full: etcd has compacted revision 91
    hole: 91 to 100
    [Q0845] revisions 91 to 100 are neither stored nor spooled, and etcd keeps only 96 and later: a full backup is taken, moments in between cannot be restored
    ");
}

#[test]
fn another_writer_took_over_meanwhile_and_the_spool_is_set_aside() {
    insta::assert_snapshot!(told(seen(holds(0xc, 98, 4), spool(3, Some((91, 99)), Some(90)))), @r#"
    watch from 99, epoch Take { begins_at: 99 }, spool SetAside("it is of epoch 3, and another writer took over with epoch 4")
    [Q0846] the spool is set aside: it is of epoch 3, and another writer took over with epoch 4
    "#);
}

#[test]
fn a_store_that_forgot_the_spools_epoch_is_taken_over() {
    insta::assert_snapshot!(told(seen(holds(0xc, 90, 2), spool(3, Some((91, 95)), Some(90)))), @r#"
    watch from 91, epoch Take { begins_at: 91 }, spool SetAside("it is of epoch 3, and the store knows none after 2")
    [Q0846] the spool is set aside: it is of epoch 3, and the store knows none after 2
    "#);
}

#[test]
fn a_store_in_which_nothing_can_be_restored_gets_a_full() {
    insta::assert_snapshot!(told(seen(holds(0, None, 3), None)), @r"
    watch from 101, epoch Take { begins_at: 101 }, spool Begin
    full: nothing in the store can be restored
    ");
    insta::assert_snapshot!(told(seen(holds(0, None, 3), spool(3, Some((91, 95)), Some(90)))), @r"
    watch from 96, epoch Keep(3), spool Use
    full: nothing in the store can be restored
    ");
}

#[test]
fn a_revision_that_went_back_begins_a_new_history() {
    insta::assert_snapshot!(told(seen(holds(0xc, 120, 3), None)), @"refused [Q0844]: cannot back up to this store: etcd is at revision 100, and revision 120 of this cluster was backed up: its data was put back to an older copy");
    let taken_over = FollowSeen { taken_over: true, ..seen(holds(0xc, 120, 3), None) };
    assert_eq!(told(taken_over), told(FollowSeen { take_over: Order::Due, ..seen(holds(0xc, 120, 3), None) }));
    insta::assert_snapshot!(told(FollowSeen { taken_over: true, ..seen(holds(0xc, 120, 3), None) }), @r"
    watch from 101, epoch Take { begins_at: 100 }, spool Begin
    full: etcd's revision went back
    [Q0844] etcd is at revision 100, and revision 120 was backed up: its data was replaced by an older copy; what lies behind 100 in the store is no longer used
    ");
    insta::assert_snapshot!(told(seen(holds(0xc, 90, 3), spool(3, Some((91, 105)), Some(90)))), @r#"
    watch from 101, epoch Take { begins_at: 100 }, spool SetAside("etcd's history was replaced")
    full: etcd's revision went back
    [Q0844] etcd is at revision 100, and revision 105 was backed up: its data was replaced by an older copy; what lies behind 100 in the store is no longer used
    [Q0846] the spool is set aside: etcd's history was replaced
    "#);
    insta::assert_snapshot!(told(gardener(seen(holds(0, 120, 0), spool(None, None, Some(120))))), @"refused [Q0844]: cannot go on with this store: etcd is at revision 100, and revision 120 was backed up");
}

#[test]
fn a_store_that_records_no_cluster_is_bound_by_the_members_of_its_newest_full() {
    let full = |ids: &[u64]| ids.iter().map(|id| (*id, format!("m{id}"))).collect::<Vec<_>>();
    assert_eq!(compare_members(&full(&[1, 2, 3]), &[], &[3, 4, 5]), Lists::OwnMembers);
    assert_eq!(compare_members(&full(&[1, 2, 3]), &[4], &[4, 5]), Lists::OwnMembers);
    assert_eq!(compare_members(&[], &[], &[4, 5]), Lists::OwnMembers, "it says nothing");
    let others = compare_members(&full(&[1, 2]), &[3], &[4, 5]);
    assert_eq!(others, Lists::Others("`m1` and `m2`".to_owned()));
    // Whatever the revisions are.
    for reach in [40, 100, 400] {
        let other = FollowSeen { lists: others.clone(), ..gardener(seen(holds(0, reach, 0), None)) };
        assert!(other.depends_on_members(false) && !other.depends_on_members(true));
        let refused = plan_follow(&other).unwrap_err();
        assert!(refused.code() == Code::StoreBound && refused.to_string().contains("`m1` and `m2`"), "{refused}");
    }
    let filled = gardener(seen(holds(0, 90, 0), spool(None, None, Some(90))));
    assert!(filled.depends_on_members(false), "another cluster may have written there since");
    let shared = FollowSeen { lists: others.clone(), ..filled.clone() };
    assert_eq!(
        plan_follow(&shared).unwrap_err().code(),
        Code::StoreBound,
        "whatever the spool of this machine has stored"
    );
    assert!(plan_follow(&filled).is_ok());
    let ordered = FollowSeen { lists: others, take_over: Order::Due, ..gardener(seen(holds(0, 90, 0), None)) };
    assert!(plan_follow(&ordered).is_ok());
}

#[test]
fn another_clusters_store_is_gone_on_with_only_where_nothing_is_overruled() {
    insta::assert_snapshot!(told(seen(holds(0xd, 90, 3), None)), @r"
    watch from 101, epoch Take { begins_at: 100 }, spool Begin
    full: the store's newest backups are another cluster's
    [Q0843] the store's backups up to revision 90 are of cluster d; those of cluster c begin with a full backup
    ");
    insta::assert_snapshot!(told(seen(holds(0xd, 120, 3), None)), @"refused [Q0843]: cannot go on with this store: it holds backups of cluster d up to revision 120, and etcd is at 100");
    let may = FollowSeen { take_over: Order::Due, ..seen(holds(0xd, 120, 3), None) };
    insta::assert_snapshot!(told(may.clone()), @r"
    watch from 101, epoch Take { begins_at: 100 }, spool Begin
    full: the store's newest backups are another cluster's
    [Q0843] the store's backups up to revision 120 are of cluster d; those of cluster c begin with a full backup
    ");
    insta::assert_snapshot!(told(gardener(may)), @"refused [Q0843]: cannot go on with this store: it holds backups of cluster d up to revision 120, and etcd is at 100");
}

#[test]
fn another_clusters_spool_is_set_aside() {
    let stranger = spool(3, Some((91, 95)), Some(90)).map(|spool| SpoolSeen { cluster_id: 0xd, ..spool });
    insta::assert_snapshot!(told(seen(holds(0xc, 90, 3), stranger)), @r#"
    watch from 91, epoch Take { begins_at: 91 }, spool SetAside("it is of cluster d, and etcd is of cluster c")
    [Q0846] the spool is set aside: it is of cluster d, and etcd is of cluster c
    "#);
    insta::assert_snapshot!(told(seen(StoreSeen::Unknown, stranger)), @r#"
    watch from 1, epoch Later, spool SetAside("it is of cluster d, and etcd is of cluster c")
    ask again
    [Q0847] the store does not answer; writes are spooled, and it is asked again
    [Q0846] the spool is set aside: it is of cluster d, and etcd is of cluster c
    "#);
    // A cluster was restored under a new id, and goes on in the old one's store and spool.
    insta::assert_snapshot!(told(seen(holds(0xd, 95, 3), stranger)), @r#"
    watch from 101, epoch Take { begins_at: 100 }, spool SetAside("it is of cluster d, and etcd is of cluster c")
    full: the store's newest backups are another cluster's
    [Q0843] the store's backups up to revision 95 are of cluster d; those of cluster c begin with a full backup
    [Q0846] the spool is set aside: it is of cluster d, and etcd is of cluster c
    "#);
}

#[test]
fn a_store_that_does_not_say_whose_it_is_begins_with_a_full_unless_a_spool_knows() {
    insta::assert_snapshot!(told(gardener(seen(holds(0, 90, 0), None))), @r"
    watch from 101, epoch None, spool Begin
    full: the store does not say which cluster its backups are of
    hole: 91 to 100
    [Q0845] the store does not say which cluster its backups up to revision 90 are of: a full backup is taken, moments between there and revision 100 cannot be restored
    ");
    insta::assert_snapshot!(told(seen(holds(0, 100, 0), None)), @r"
    watch from 101, epoch Take { begins_at: 100 }, spool Begin
    full: the store does not say which cluster its backups are of
    ");
    insta::assert_snapshot!(told(seen(holds(0, 120, 0), None)), @"refused [Q0843]: cannot go on with this store: it holds backups of a cluster whose id is not recorded up to revision 120, and etcd is at 100");
    insta::assert_snapshot!(told(gardener(seen(holds(0, 90, 0), spool(None, Some((91, 95)), Some(90))))), @"watch from 96, epoch None, spool Use");
}

#[test]
fn a_listing_says_what_the_store_holds() {
    let object = |kind, first, last, epoch, cluster_id| Object {
        name: String::new(),
        kind,
        layout: Layout::Quorate,
        first,
        last,
        created_ms: 0,
        bytes: 1,
        epoch,
        cluster_id,
        state: State::Claimed,
    };
    assert_eq!(StoreSeen::of(&[], &[]), StoreSeen::Empty);
    assert_eq!(StoreSeen::of(&[], &[EpochStart { epoch: 2, begins_at: 1 }]), holds(0, None, 2));
    // The full was written by a writer that died before its manifest.
    let objects = [object(Kind::Full, 10, 10, 1, 0), object(Kind::Delta, 11, 20, 1, 0xc)];
    assert_eq!(StoreSeen::of(&objects, &[]), holds(0xc, 20, 1));
    // A full that was taken ahead of the deltas, until one joins it.
    let objects = [&objects[..], &[object(Kind::Full, 30, 30, 1, 0xc)]].concat();
    assert_eq!(StoreSeen::of(&objects, &[]), ahead(30, 1, (21, 29)));
    let more = [&objects[..], &[object(Kind::Full, 40, 40, 1, 0)]].concat();
    assert_eq!(StoreSeen::of(&more, &[]), ahead(40, 1, (21, 39)), "two fulls, and whose they are the deltas say");
    let objects = [&objects[..], &[object(Kind::Delta, 31, 40, 1, 0xc)]].concat();
    assert_eq!(StoreSeen::of(&objects, &[]), holds(0xc, 40, 1));
}

fn any_store() -> impl Strategy<Value = StoreSeen> {
    let cluster = prop_oneof![Just(0u64), Just(0xc), Just(0xd)];
    prop_oneof![
        Just(StoreSeen::Unknown),
        Just(StoreSeen::Empty),
        (cluster, proptest::option::of(1u64..60), 0u64..4).prop_map(|(id, reach, epoch)| holds(id, reach, epoch)),
        (10u64..60, 0u64..4, 1u64..8).prop_map(|(reach, epoch, length)| ahead(
            reach,
            epoch,
            (reach - length, reach - 1)
        )),
    ]
}

fn any_spool() -> impl Strategy<Value = Option<SpoolSeen>> {
    let pending = proptest::option::of((1u64..60, 0u64..10));
    let spool = (any::<bool>(), proptest::option::of(0u64..5), pending, proptest::option::of(1u64..60));
    proptest::option::of(spool.prop_map(|(ours, epoch, pending, stored)| SpoolSeen {
        cluster_id: if ours { 0xc } else { 0xd },
        epoch,
        pending: pending.map(|(from, length)| Span { from, to: from + length }),
        stored,
    }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn no_revision_is_lost_in_silence(
        store in any_store(),
        spool in any_spool(),
        revision in 1u64..60,
        oldest in proptest::option::of(1u64..61),
        gardener in any::<bool>(),
        due in any::<bool>(),
    ) {
        let oldest = oldest.map(|oldest| oldest.min(revision + 1));
        let layout = if gardener { Layout::Gardener } else { Layout::Quorate };
        let etcd = EtcdSeen { cluster_id: 0xc, revision, oldest };
        let take_over = if due { Order::Due } else { Order::None };
        let seen = FollowSeen { etcd, store: store.clone(), spool, lists: Lists::NotCompared, layout, take_over, restored: false, taken_over: false };
        let Ok(plan) = plan_follow(&seen) else {
            // Only what would be overruled is a reason to refuse.
            let StoreSeen::Holds(holds) = store else { return Err(TestCaseError::fail("refused without backups")) };
            let pending = spool.and_then(|spool| spool.pending.map(|span| span.to).max(spool.stored));
            prop_assert!(holds.reach.max(pending) >= Some(revision));
            return Ok(());
        };
        // A watch can begin there, and etcd has not passed it by.
        prop_assert!(plan.watch_from <= revision + 1);
        prop_assert!(oldest.is_none_or(|oldest| oldest <= plan.watch_from));
        // A hole is said in words, and only a full covers it.
        let warned = |code| plan.warnings.iter().any(|warning| warning.code == code);
        let stored = |hole: Span| matches!(&store, StoreSeen::Holds(holds) if holds.reach > Some(hole.to));
        let covered = plan.hole.is_none_or(|hole| plan.take_full.is_some() || stored(hole));
        prop_assert!(covered && (plan.hole.is_none() || warned(Code::HistoryHole)));

        // What waits in the spool goes to the store, or is said not to.
        if spool.is_some_and(|spool| spool.pending.is_some()) && plan.spool != SpoolPlan::Use {
            prop_assert!(warned(Code::SpoolSetAside));
        }
        // A store that was not seen is neither taken over nor believed to be anything.
        if store == StoreSeen::Unknown {
            let taken = matches!(plan.epoch, EpochPlan::Take { .. });
            prop_assert!(plan.ask_again && !taken);
        } else {
            prop_assert!(!plan.ask_again);
        }
        // Another epoch than our own is never written into.
        if let (EpochPlan::Keep(epoch), StoreSeen::Holds(holds)) = (plan.epoch, &store) {
            prop_assert_eq!(epoch, holds.newest_epoch);
        }
        // Without a full, each revision behind the store's reach is spooled or watched.
        let used = spool.filter(|_| plan.spool == SpoolPlan::Use).and_then(|spool| spool.pending);
        if let StoreSeen::Holds(StoreHolds { reach: Some(reach), gap, .. }) = store {
            let gap = gap.map_or(0..0, |gap| gap.from..gap.to + 1);
            for missing in gap.chain(reach + 1..u64::MAX).take_while(|missing| *missing < plan.watch_from) {
                let spooled = used.is_some_and(|span| (span.from..=span.to).contains(&missing));
                let hole = plan.hole.is_some_and(|hole| (hole.from..=hole.to).contains(&missing));
                let anew = plan.take_full.is_some() && (warned(Code::StoreOfOther) || warned(Code::RevisionWentBack));
                prop_assert!(spooled || hole || anew, "{missing}: {plan:?}");
            }
        } else if store != StoreSeen::Unknown {
            prop_assert!(plan.take_full.is_some());
        }
        // Without a full, the watch joins the store's chain or the spool.
        if plan.take_full.is_none() && let StoreSeen::Holds(holds) = store {
            let joins = holds.reach.max(used.map(|span| span.to));
            prop_assert!(Some(plan.watch_from) <= joins.map(|joins| joins + 1), "{plan:?}");
        }
        // What must not join does not: between the old history and the first watched revision lies one that only the
        // full has.
        if let (EpochPlan::Take { begins_at }, true) = (plan.epoch, warned(Code::StoreOfOther) || warned(Code::RevisionWentBack)) {
            prop_assert!(begins_at < plan.watch_from && plan.spool != SpoolPlan::Use);
        }
    }
}

#[test]
fn a_full_right_behind_the_deltas_leaves_no_gap() {
    let spans =
        |spans: &[(u64, u64)]| -> Vec<Span> { spans.iter().map(|(from, to)| Span { from: *from, to: *to }).collect() };
    assert_eq!(gap(&spans(&[(12, 748), (749, 749)])), None);
    assert_eq!(gap(&spans(&[(12, 749), (749, 749)])), None);
    assert_eq!(gap(&spans(&[(12, 747), (749, 749)])), Some(Span { from: 748, to: 748 }));
    assert_eq!(gap(&spans(&[(0, 0), (0, 0)])), None);
    assert_eq!(gap(&spans(&[(12, u64::MAX), (u64::MAX, u64::MAX)])), None);
}

mod lineages {
    use quorate_etcd_formats::delta::quorate::{Declared, Epoch, FORMAT};

    use super::*;
    use crate::chain::{Kind, Object, State};

    fn epoch(number: u64, cluster: u64, was: &[u64], token: &str) -> Epoch {
        Epoch {
            format: FORMAT.to_owned(),
            epoch: number,
            begins_at: 1,
            cluster_id: format!("{cluster:x}"),
            member_id: "1".to_owned(),
            created_ms: 0,
            writer: String::new(),
            declared: Some(Declared { token: token.to_owned(), bootstrap: Some(1) }),
            was: was.iter().map(|id| format!("{id:x}")).collect(),
        }
    }

    fn full(epoch: u64, cluster_id: u64, last: u64) -> Object {
        let (kind, layout, state) = (Kind::Full, Layout::Quorate, State::Claimed);
        let name = format!("{epoch}-{last}");
        Object { name, kind, layout, first: last, last, created_ms: 0, bytes: 1, epoch, cluster_id, state }
    }

    fn plan(objects: &[Object], opened: &[Epoch], me: &Me, revision: u64, due: bool) -> Result<FollowPlan> {
        let starts: Vec<EpochStart> =
            opened.iter().map(|epoch| EpochStart { epoch: epoch.epoch, begins_at: epoch.begins_at }).collect();
        let (store, _) = observe_lineage(objects, &starts, opened, me);
        let etcd = EtcdSeen { cluster_id: me.cluster_id, revision, oldest: None };
        let (layout, take_over) = (Layout::Quorate, if due { Order::Due } else { Order::None });
        plan_follow(&FollowSeen {
            etcd,
            store,
            spool: None,
            lists: Lists::NotCompared,
            layout,
            take_over,
            restored: false,
            taken_over: false,
        })
    }

    fn me(cluster_id: u64, was: &[u64], token: &str) -> Me {
        Me { cluster_id, was: was.to_vec(), token: Some(token.to_owned()) }
    }

    #[test]
    fn another_cluster_is_refused_whatever_its_revision_is() {
        let (objects, opened) = ([full(1, 0xa, 10)], [epoch(1, 0xa, &[], "a")]);
        for revision in [5, 10, 5_000_000_000] {
            let refused = plan(&objects, &opened, &me(0xb, &[], "b"), revision, false).unwrap_err();
            assert_eq!(refused.code(), Code::StoreBound);
            assert!(refused.to_string().contains("token `a`, cluster a"), "{refused}");
            assert!(refused.hint_text().unwrap().contains("take-over: \"a\""));
            let taken = plan(&objects, &opened, &me(0xb, &[], "b"), revision, true).unwrap();
            assert!(matches!(taken.epoch, EpochPlan::Take { .. }) && taken.take_full.is_some());
        }
        let same_token = plan(&objects, &opened, &me(0xb, &[], "a"), 5_000_000_000, false);
        assert_eq!(same_token.unwrap_err().code(), Code::StoreBound, "a token is no ancestor");
        let renamed = plan(&objects, &opened, &me(0xb, &[0xa], "b"), 5_000_000_000, false);
        assert_eq!(renamed.unwrap_err().code(), Code::StoreBound, "nor is an ancestor under another token");
    }

    #[test]
    fn a_descendant_continues_as_a_new_epoch_and_its_ancestor_does_not_take_back() {
        let (objects, opened) = ([full(1, 0xa, 10)], [epoch(1, 0xa, &[], "a")]);
        let child = plan(&objects, &opened, &me(0xc, &[0xa], "a"), 1_000_000_011, false).unwrap();
        assert!(matches!(child.epoch, EpochPlan::Take { .. }) && child.take_full.is_some());
        let objects = [full(1, 0xa, 10), full(2, 0xc, 1_000_000_011)];
        let opened = [epoch(1, 0xa, &[], "a"), epoch(2, 0xc, &[0xa], "a")];
        let old = plan(&objects, &opened, &me(0xa, &[], "a"), 9_000_000_000, false);
        assert_eq!(old.unwrap_err().code(), Code::StoreBound);
        let sibling = plan(&objects, &opened, &me(0xd, &[0xa], "a"), 9_000_000_000, false);
        assert_eq!(sibling.unwrap_err().code(), Code::StoreBound, "of two recoveries the store has one");
        assert!(plan(&objects, &opened, &me(0xc, &[0xa], "a"), 1_000_000_020, false).unwrap().take_full.is_none());
    }

    #[test]
    fn clusters_that_share_a_store_already_stay_apart() {
        let objects = [full(1, 0xa, 10), full(2, 0xb, 900)];
        let opened = [epoch(1, 0xa, &[], "a"), epoch(2, 0xb, &[], "b")];
        let a = plan(&objects, &opened, &me(0xa, &[], "a"), 12, false).unwrap();
        assert_eq!((a.watch_from, a.take_full), (11, None), "the other one's revisions are not ours");
        let b = plan(&objects, &opened, &me(0xb, &[], "b"), 901, false).unwrap();
        assert_eq!((b.watch_from, b.take_full), (901, None));
        let first = [epoch(1, 0xa, &[], "a"), epoch(2, 0xb, &[], "b")];
        assert!(plan(&[], &first, &me(0xa, &[], "a"), 12, false).is_ok(), "who was first binds an empty store");
        assert_eq!(plan(&[], &first, &me(0xb, &[], "b"), 12, false).unwrap_err().code(), Code::StoreBound);
    }
}
