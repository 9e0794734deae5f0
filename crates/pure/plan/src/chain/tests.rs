//! What chains are made of real and broken stores, in the words an operator reads.

use proptest::prelude::*;

use super::*;

fn object(kind: Kind, first: u64, last: u64) -> Object {
    Object {
        name: format!("{kind:?}-{first}-{last}"),
        kind,
        layout: Layout::Gardener,
        first,
        last,
        created_ms: last as i64 * 1000,
        bytes: 1,
        epoch: 0,
        cluster_id: 0,
        state: State::Claimed,
    }
}

fn full(last: u64) -> Object {
    object(Kind::Full, last, last)
}

fn delta(first: u64, last: u64) -> Object {
    object(Kind::Delta, first, last)
}

fn bad(object: Object) -> Object {
    Object { state: State::Bad("it ends in the middle".to_owned()), ..object }
}

/// The decision as an operator could be told it.
fn told(objects: &[Object], epochs: &[EpochStart], target: Target) -> String {
    let decision = decide(objects, epochs, target);
    let mut text = String::new();
    for (object, usage) in objects.iter().zip(&decision.uses) {
        text.push_str(&format!("{}: {usage:?}\n", object.name));
    }
    let reach = decision.chain.map(|chain| chain.reach);
    let spans: Vec<String> = decision.recoverable.iter().map(|span| format!("{}-{}", span.from, span.to)).collect();
    text.push_str(&format!("reach {reach:?}, recoverable {}, short {:?}", spans.join(" "), decision.short));
    text
}

#[test]
fn a_whole_chain_is_used_from_the_newest_full_on() {
    let objects = [full(33), delta(34, 66), full(66), delta(67, 67), delta(68, 108)];
    insta::assert_snapshot!(told(&objects, &[], Target::Newest), @r#"
    Full-33-33: NotNeeded("older than `Full-66-66`")
    Delta-34-66: NotNeeded("`Full-66-66` holds it")
    Full-66-66: Base
    Delta-67-67: Replayed { from: 67, to: 67 }
    Delta-68-108: Replayed { from: 68, to: 108 }
    reach Some(108), recoverable 33-108, short None
    "#);
}

#[test]
fn a_damaged_newest_full_is_replaced_by_an_older_one() {
    let objects = [full(33), delta(34, 66), bad(full(66)), delta(67, 80)];
    insta::assert_snapshot!(told(&objects, &[], Target::Newest), @r#"
    Full-33-33: Base
    Delta-34-66: Replayed { from: 34, to: 66 }
    Full-66-66: NotNeeded("it ends in the middle")
    Delta-67-80: Replayed { from: 67, to: 80 }
    reach Some(80), recoverable 33-80, short None
    "#);
}

#[test]
fn a_missing_delta_ends_the_chain_and_is_named() {
    let objects = [full(33), delta(34, 66), delta(70, 80)];
    insta::assert_snapshot!(told(&objects, &[], Target::Newest), @r#"
    Full-33-33: Base
    Delta-34-66: Replayed { from: 34, to: 66 }
    Delta-70-80: Unusable("it begins at revision 70, and nothing leads from 66 to there")
    reach Some(66), recoverable 33-66, short Some("no usable object holds revisions 67 to 69")
    "#);
}

#[test]
fn a_damaged_delta_ends_the_chain_with_its_reason() {
    let objects = [full(33), bad(delta(34, 66)), delta(67, 80)];
    insta::assert_snapshot!(told(&objects, &[], Target::Newest), @r#"
    Full-33-33: Base
    Delta-34-66: Unusable("it ends in the middle")
    Delta-67-80: Unusable("it begins at revision 67, and nothing leads from 33 to there")
    reach Some(33), recoverable 33-33, short Some("revision 34 is in `Delta-34-66`, which cannot be used: it ends in the middle")
    "#);
}

#[test]
fn overlapping_writers_and_duplicates_are_passed_over() {
    let objects = [full(33), delta(34, 66), delta(34, 66), delta(60, 80), delta(64, 70)];
    insta::assert_snapshot!(told(&objects, &[], Target::Newest), @r#"
    Full-33-33: Base
    Delta-34-66: Replayed { from: 34, to: 66 }
    Delta-34-66: NotNeeded("other deltas hold the same revisions")
    Delta-60-80: Replayed { from: 67, to: 80 }
    Delta-64-70: NotNeeded("other deltas hold the same revisions")
    reach Some(80), recoverable 33-80, short None
    "#);
}

#[test]
fn a_revision_in_the_past_takes_the_full_before_it() {
    let objects = [full(33), delta(34, 66), full(66), delta(67, 80)];
    insta::assert_snapshot!(told(&objects, &[], Target::Revision(50)), @r#"
    Full-33-33: Base
    Delta-34-66: Replayed { from: 34, to: 50 }
    Full-66-66: NotNeeded("it is newer than what was asked for")
    Delta-67-80: NotNeeded("it is newer than what was asked for")
    reach Some(50), recoverable 33-80, short None
    "#);
    let beyond = decide(&objects, &[], Target::Revision(90));
    assert_eq!((beyond.chain, beyond.short.as_deref()), (None, Some("no chain leads to revision 90")));
}

#[test]
fn a_time_takes_a_full_that_was_there_by_then() {
    let objects = [full(33), delta(34, 66), full(66)];
    let decision = decide(&objects, &[], Target::Time(50_000));
    assert_eq!(decision.chain, Some(Chain { base: 0, deltas: vec![(1, 66)], reach: 66 }));
    assert_eq!(decide(&objects, &[], Target::Time(10)).chain, None);
}

#[test]
fn an_older_epoch_is_cut_where_a_newer_one_begins() {
    let own = |object: Object, epoch| Object { epoch, ..object };
    let objects = [own(full(10), 1), own(delta(11, 40), 1), own(delta(31, 50), 2), own(full(45), 1)];
    let epochs = [EpochStart { epoch: 1, begins_at: 1 }, EpochStart { epoch: 2, begins_at: 31 }];
    insta::assert_snapshot!(told(&objects, &epochs, Target::Newest), @r#"
    Full-10-10: Base
    Delta-11-40: Replayed { from: 11, to: 30 }
    Delta-31-50: Replayed { from: 31, to: 50 }
    Full-45-45: NotNeeded("epoch 2 began at revision 31; epoch 1 is not believed from there on")
    reach Some(50), recoverable 10-50, short None
    "#);
}

#[test]
fn two_clusters_in_one_store_are_not_mixed() {
    let of = |object: Object, cluster_id| Object { cluster_id, ..object };
    let objects = [of(full(10), 1), of(delta(11, 20), 1), of(delta(21, 30), 2)];
    let decision = decide(&objects, &[], Target::Newest);
    assert_eq!(decision.chain.map(|chain| chain.reach), Some(20));
    assert_eq!(decision.uses[2], Use::Unusable("it is from cluster 2, the chain from cluster 1".to_owned()));
}

#[test]
fn a_store_without_a_full_says_so() {
    let decision = decide(&[delta(1, 5)], &[], Target::Newest);
    assert_eq!(decision.short.as_deref(), Some("there is no full backup in the store"));
    assert_eq!(decide(&[], &[], Target::Newest).newest_provable(), None);
}

fn any_object() -> impl Strategy<Value = Object> {
    (any::<bool>(), 1u64..30, 0u64..10, 0u64..3, 0u64..3, any::<bool>()).prop_map(
        |(is_full, first, length, epoch, cluster_id, damaged)| {
            let object = if is_full { full(first) } else { delta(first, first + length) };
            let object = Object { epoch, cluster_id, ..object };
            if damaged && first % 3 == 0 { bad(object) } else { object }
        },
    )
}

proptest! {
    /// Whatever the store holds, a chain has no hole, uses nothing bad and nothing that a newer epoch overrules.
    #[test]
    fn a_chain_never_has_a_hole(
        objects in proptest::collection::vec(any_object(), 0..12),
        begins in proptest::collection::vec(1u64..40, 0..2),
        wanted in proptest::option::of(1u64..40),
    ) {
        let epochs: Vec<_> = begins.iter().enumerate()
            .map(|(at, begins_at)| EpochStart { epoch: at as u64 + 1, begins_at: *begins_at }).collect();
        let target = wanted.map_or(Target::Newest, Target::Revision);
        let decision = decide(&objects, &epochs, target);
        let Some(chain) = decision.chain else { return Ok(()) };
        let base = &objects[chain.base];
        prop_assert!(base.kind == Kind::Full && base.state == State::Claimed);
        let mut reach = base.last;
        for (index, to) in &chain.deltas {
            let delta = &objects[*index];
            prop_assert!(delta.kind == Kind::Delta && delta.state == State::Claimed);
            prop_assert!(delta.first <= reach + 1 && *to > reach && *to <= delta.last);
            prop_assert!(delta.cluster_id == base.cluster_id || delta.cluster_id == 0 || base.cluster_id == 0);
            for start in epochs.iter().filter(|start| start.epoch > delta.epoch) {
                prop_assert!(*to < start.begins_at);
            }
            reach = *to;
        }
        prop_assert_eq!(reach, chain.reach);
        if let Some(wanted) = wanted {
            prop_assert_eq!(reach, wanted);
        }
    }
}
