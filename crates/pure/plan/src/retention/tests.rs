//! What stays of which stores, in the words an operator reads.

use proptest::prelude::*;

use super::*;
use crate::chain::Layout;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
/// Monday, 2026-11-16, noon.
const NOW: i64 = 1_794_830_400_000;

const NOTHING: Policy = Policy { last: 0, hourly: 0, daily: 0, weekly: 0, monthly: 0, history_ms: 0 };

fn object(kind: Kind, first: u64, last: u64, created_ms: i64) -> Object {
    Object {
        name: format!("{kind:?}-{first}-{last}"),
        kind,
        layout: Layout::Quorate,
        first,
        last,
        created_ms,
        bytes: 10,
        epoch: 1,
        cluster_id: 0xc,
        state: State::Claimed,
    }
}

/// A full every six hours with a delta each hour, revision = hours since the beginning.
fn store(days: i64) -> Vec<Object> {
    let begin = NOW - days * DAY;
    let mut objects = vec![object(Kind::Full, 1, 1, begin)];
    for hour in 1..=days * 24 {
        let (revision, time) = (hour as u64 + 1, begin + hour * HOUR);
        objects.push(object(Kind::Delta, revision, revision, time));
        if hour % 6 == 0 {
            objects.push(object(Kind::Full, revision, revision, time));
        }
    }
    objects
}

fn seen(objects: &[Object]) -> PruneSeen<'_> {
    PruneSeen { objects, finals: &[], epochs: &[], now_ms: NOW, others: &[] }
}

/// Names of what stays, with why.
fn kept(seen: &PruneSeen<'_>, policy: &Policy) -> String {
    let plan = plan_prune(seen, policy);
    let line = |(object, verdict): (&Object, &Verdict)| match verdict {
        Verdict::Keep(why) => Some(format!("{}: {why}", object.name)),
        Verdict::Remove(_) => None,
    };
    let lines: Vec<String> = seen.objects.iter().zip(&plan.verdicts).filter_map(line).collect();
    lines.join("\n")
}

#[test]
fn without_any_rule_the_newest_chain_stays() {
    let mut objects = store(2);
    objects.push(object(Kind::Delta, 50, 51, NOW));
    assert_eq!(
        kept(&seen(&objects), &NOTHING),
        "Delta-49-49: as new as the newest chain\n\
         Full-49-49: newest chain, chain of the youngest full\n\
         Delta-50-51: newest chain, chain of the youngest full"
    );
}

#[test]
fn hours_days_weeks_and_months_each_keep_their_newest_full() {
    let objects = store(40);
    let fulls = |policy: Policy| {
        let plan = plan_prune(&seen(&objects), &policy);
        let stays = |(object, verdict): (&Object, &Verdict)| match (object.kind, verdict) {
            (Kind::Full, Verdict::Keep(_)) => Some((NOW - object.created_ms) / HOUR),
            _ => None,
        };
        let mut ages: Vec<i64> = objects.iter().zip(&plan.verdicts).filter_map(stays).collect();
        ages.reverse();
        ages
    };
    assert_eq!(fulls(Policy { last: 3, ..NOTHING }), [0, 6, 12]);
    assert_eq!(fulls(Policy { hourly: 2, ..NOTHING }), [0, 6]);
    // Of each day the full at 18:00.
    assert_eq!(fulls(Policy { daily: 3, ..NOTHING }), [0, 18, 42]);
    // Of each week the full on Sunday at 18:00.
    assert_eq!(fulls(Policy { weekly: 3, ..NOTHING }), [0, 18, 18 + 168]);
    // Of October the full on the 31st at 18:00.
    assert_eq!(fulls(Policy { monthly: 2, ..NOTHING }), [0, 15 * 24 + 18]);
}

#[test]
fn the_history_keeps_all_deltas_and_the_full_before_them() {
    let objects = store(3);
    let plan = plan_prune(&seen(&objects), &Policy { history_ms: 10 * HOUR, ..NOTHING });
    let stays = |index: usize| matches!(plan.verdicts[index], Verdict::Keep(_));
    let names: Vec<&str> =
        (0..objects.len()).filter(|index| stays(*index)).map(|index| objects[index].name.as_str()).collect();
    // Ten hours ago is revision 63; the full before is at 61, and the one at 67 is not needed.
    let deltas: Vec<String> = (62..=73).map(|revision| format!("Delta-{revision}-{revision}")).collect();
    let mut expected: Vec<&str> = vec!["Full-61-61"];
    expected.extend(deltas.iter().map(String::as_str));
    expected.push("Full-73-73");
    assert_eq!(names, expected);
}

#[test]
fn a_full_behind_a_hole_stays_for_the_history() {
    let mut objects = store(1);
    objects.retain(|object| object.kind == Kind::Full || object.first != 15);
    let told = kept(&seen(&objects), &Policy { history_ms: 20 * HOUR, ..NOTHING });
    assert!(told.contains("Full-19-19: history"), "{told}");
    assert!(!told.contains("Full-13-13"), "{told}");
}

#[test]
fn what_a_cluster_ended_with_stays() {
    let objects = store(2);
    let told = kept(&PruneSeen { finals: &[0], ..seen(&objects) }, &NOTHING);
    assert!(told.starts_with("Full-1-1: final\n"), "{told}");
}

#[test]
fn a_store_that_proves_nothing_loses_nothing() {
    let objects = [object(Kind::Delta, 5, 9, 0)];
    let plan = plan_prune(&seen(&objects), &NOTHING);
    assert_eq!((plan.newest, plan.removals.len()), (None, 0));
}

#[test]
fn overruled_and_damaged_objects_go_when_they_are_old() {
    let mut objects = store(2);
    for (age, epoch) in [(40, 0), (20, 0)] {
        objects.push(Object { epoch, ..object(Kind::Full, 45, 45, NOW - age * DAY) });
    }
    objects.push(Object { state: State::Bad("cut".to_owned()), ..object(Kind::Full, 3, 3, NOW - 30 * DAY) });
    let epochs = [EpochStart { epoch: 1, begins_at: 1 }];
    let plan = plan_prune(&PruneSeen { epochs: &epochs, ..seen(&objects) }, &Policy::DEFAULT);
    let end = objects.len();
    assert_eq!(
        plan.verdicts[end - 3..],
        [
            Verdict::Remove("epoch 1 began at revision 1; epoch 0 is not believed from there on".to_owned()),
            Verdict::Keep("overruled less than 30 days ago".to_owned()),
            Verdict::Remove("cut".to_owned()),
        ]
    );
}

#[test]
fn a_stretch_goes_from_its_newest_end() {
    let plan_of = |objects: &[Object]| plan_prune(&seen(objects), &NOTHING);
    let objects = store(1);
    let plan = plan_of(&objects);
    let names: Vec<&str> = plan.removals.iter().map(|index| objects[*index].name.as_str()).collect();
    assert_eq!(
        names[..8],
        ["Delta-7-7", "Delta-6-6", "Delta-5-5", "Delta-4-4", "Delta-3-3", "Delta-2-2", "Full-1-1", "Delta-13-13"]
    );
    assert_eq!(plan.bytes_freed, 10 * plan.removals.len() as u64);
}

fn any_object() -> impl Strategy<Value = Object> {
    (any::<bool>(), 1u64..40, 0u64..8, 0u64..3, 0u64..3, 0i64..80, 0u8..8).prop_map(
        |(is_full, first, length, epoch, cluster_id, days, damage)| {
            let created = NOW - days * DAY + (first as i64) * HOUR - DAY;
            let made = match is_full {
                true => object(Kind::Full, first, first, created),
                false => object(Kind::Delta, first, first + length, created),
            };
            let state = if damage == 0 { State::Bad("cut".to_owned()) } else { State::Claimed };
            Object { epoch, cluster_id, state, ..made }
        },
    )
}

fn any_policy() -> impl Strategy<Value = Policy> {
    (0u32..3, 0u32..3, 0u32..3, 0u32..3, 0u32..3, 0i64..50).prop_map(|(last, hourly, daily, weekly, monthly, days)| {
        Policy { last, hourly, daily, weekly, monthly, history_ms: days * DAY }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    /// Wherever the removals are cut, each full that stays is restorable, the newest state is the same, and so is what
    /// each moment of the history leads to.
    #[test]
    fn no_part_of_the_removals_breaks_what_stays(
        objects in proptest::collection::vec(any_object(), 0..24),
        begins in proptest::collection::vec(1u64..50, 0..2),
        policy in any_policy(),
        final_one in proptest::option::of(0usize..24),
    ) {
        let epochs: Vec<EpochStart> = begins.iter().enumerate()
            .map(|(at, begins_at)| EpochStart { epoch: at as u64 + 1, begins_at: *begins_at }).collect();
        let finals: Vec<usize> = final_one.into_iter().filter(|index| *index < objects.len()).collect();
        let seen = PruneSeen { objects: &objects, finals: &finals, epochs: &epochs, now_ms: NOW, others: &[] };
        let plan = plan_prune(&seen, &policy);
        prop_assert_eq!(&plan, &plan_prune(&seen, &policy));
        let before = decide(&objects, &epochs, Target::Newest);
        prop_assert!(finals.iter().all(|index| !plan.removals.contains(index)));
        if let Some(chain) = &before.chain {
            prop_assert!(!plan.removals.contains(&chain.base));
            prop_assert!(chain.deltas.iter().all(|(index, _)| !plan.removals.contains(index)));
        } else {
            prop_assert!(plan.removals.is_empty());
        }
        for cut in 0..=plan.removals.len() {
            let left: Vec<Object> = (0..objects.len())
                .filter(|index| !plan.removals[..cut].contains(index)).map(|index| objects[index].clone()).collect();
            let after = decide(&left, &epochs, Target::Newest);
            prop_assert_eq!(after.newest_provable(), before.newest_provable());
            for (index, object) in objects.iter().enumerate() {
                let point = object.kind == Kind::Full && unusable(object, &epochs).is_none();
                if point && matches!(plan.verdicts[index], Verdict::Keep(_)) {
                    prop_assert!(decide(&left, &epochs, Target::Revision(object.last)).chain.is_some());
                }
            }
            for time in (0..).map(|days| NOW - days * DAY).take_while(|time| *time >= NOW - policy.history_ms) {
                if policy.history_ms > 0 {
                    let reach = |objects: &[Object]| {
                        decide(objects, &epochs, Target::Time(time)).chain.map(|chain| chain.reach)
                    };
                    prop_assert_eq!(reach(&left), reach(&objects));
                }
            }
        }
    }
}

#[test]
fn by_a_clock_that_is_ahead_nothing_goes() {
    let objects = store(3);
    let by = |others: &[OtherClock]| plan_prune(&PruneSeen { others, ..seen(&objects) }, &NOTHING);
    let early = OtherClock::At(NOW - 3 * 86_400_000);
    let free = by(&[OtherClock::At(NOW)]);
    assert!(!free.removals.is_empty() && free.clock_doubt.is_none());
    // The earliest of the others counts, and one that was read counts before one that was not.
    for others in [&[early][..], &[OtherClock::At(NOW), early], &[OtherClock::Unknown, early]] {
        let held = by(others);
        assert!(held.removals.is_empty() && held.clock_doubt == Some(ClockDoubt::Ahead(3 * 86_400_000)), "{others:?}");
    }
    let unknown = by(&[OtherClock::At(NOW), OtherClock::Unknown]);
    assert!(unknown.removals.is_empty() && unknown.clock_doubt == Some(ClockDoubt::Unknown));
    // A clock that is behind keeps more than it must, and minutes do not matter.
    for others in [NOW + 86_400_000, NOW - CLOCK_AHEAD_MAX_MS] {
        assert_eq!(by(&[OtherClock::At(others)]).removals, free.removals);
    }
}
