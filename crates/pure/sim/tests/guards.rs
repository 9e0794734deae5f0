//! Every guard of the planner is there for a reason: without it, some life breaks a rule; and the check of plans stands in for it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use quorate_plan::start::Guard;
use quorate_sim::{Life, RotationRule, Settings, live};

/// In how many lives a missing guard must show.
const LIVES: u64 = 8000;

/// What is only about coming to an end, and harms nobody.
const NEVER_ENDS: &str = "it never came to an end";

/// Where to look first for a guard that few lives need: nothing but time is saved by it.
const FEW_NEED: (Guard, std::ops::Range<u64>) = (Guard::StoreUnknown, 5800..5900);

/// Lives of the one kind, then of the other. One that is broken with all guards needs none of them.
fn first_broken(guard: Guard) -> Option<(Life, bool)> {
    let first = Some(FEW_NEED).filter(|(rare, _)| *rare == guard).map_or(0..0, |(_, seeds)| seeds);
    let kinds = if guard.is_in_start() { &[false, true][..] } else { &[true][..] };
    kinds.iter().find_map(|living| {
        let settings = Settings { without: Some(guard), living: *living, ..Settings::default() };
        let whole = Settings { living: *living, ..Settings::default() };
        let needs_it = |life: &Life| life.broken.is_some() && live(life.seed, whole).broken.is_none();
        first.clone().chain(0..LIVES).map(|seed| live(seed, settings)).find(needs_it).map(|life| (life, *living))
    })
}

/// What a guard is there for, and what the check does without it.
struct Shown {
    guard: Guard,
    need: Option<String>,
    missed: Option<String>,
}

fn show(guard: Guard) -> Shown {
    let Some((life, living)) = first_broken(guard) else { return Shown { guard, need: None, missed: None } };
    let rule: String = life.broken.unwrap_or_default().chars().take(110).collect();
    let need = format!("{guard:?} | seed {}{} | {rule}", life.seed, if living { " living" } else { "" });
    let checked = live(life.seed, Settings { without: Some(guard), checked: true, living, ..Settings::default() });
    let missed = checked.broken.filter(|rule| !rule.starts_with(NEVER_ENDS));
    Shown { guard, need: Some(need), missed }
}

#[test]
fn without_any_one_guard_some_life_breaks_a_rule_and_the_check_prevents_it() {
    let all = Guard::ALL;
    let (next, shown) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(guard) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = show(*guard);
            shown.lock().unwrap().push(one);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    let shown = shown.into_inner().unwrap();
    assert_eq!(shown.len(), all.len());
    for one in &shown {
        println!("{}", one.need.as_deref().unwrap_or("nothing needs it"));
    }
    let superfluous: Vec<Guard> = shown.iter().filter(|one| one.need.is_none()).map(|one| one.guard).collect();
    assert!(superfluous.is_empty(), "no life of {LIVES} needs these: {superfluous:?}");
    let missed: Vec<_> = shown.iter().filter_map(|one| Some((one.guard, one.missed.as_ref()?))).collect();
    assert!(missed.is_empty(), "the check lets these through: {missed:?}");
}

/// One cluster serves, and every other rule holds; but it is not the one that acknowledged writes.
#[test]
fn a_new_founding_in_the_place_of_what_was_acknowledged_is_noticed() {
    let settings = Settings { starts_over: true, ..Settings::default() };
    let lost = |seed: &u64| live(*seed, settings).broken.is_some_and(|rule| rule.contains("acknowledged, is not in"));
    assert!((0..100).filter(lost).count() > 10);
}

/// A rotation that does not wait for a node that does not answer, or goes on while there are members that its file does not declare,
/// leaves somebody behind who then talks to nobody.
#[test]
fn without_any_one_rule_of_a_rotation_some_life_parts_members() {
    for rule in RotationRule::ALL {
        let settings = Settings { living: true, without_in_rotation: Some(rule), ..Settings::default() };
        let parted = |seed: &u64| live(*seed, settings).broken.is_some_and(|rule| rule.contains("parts members"));
        assert!((0..100).filter(parted).count() > 5, "no life needs {rule:?}");
    }
}

/// A second machine with the identity of a member that runs takes its place, or runs beside it, unless the guard or the check is there.
#[test]
fn without_its_guard_a_second_machine_harms_a_member_that_is_healthy() {
    let harmed = |life: &Life| {
        life.broken.as_ref().is_some_and(|rule| rule.contains("second machine") || rule.contains("two machines"))
    };
    let without = Settings { without: Some(Guard::AnotherMachine), ..Settings::default() };
    let broken: Vec<u64> = (0..200).filter(|seed| harmed(&live(*seed, without))).collect();
    assert!(broken.len() > 10, "{broken:?}");
    for seed in broken {
        let checked = live(seed, Settings { checked: true, ..without });
        assert!(!harmed(&checked), "the check lets it through: {}", checked.tell());
    }
}

/// Every node is wiped and bootstrapped again with the same file: without nonces the second cluster has the ids of the first, and an old
/// copy of a node is taken for a member of it.
#[test]
fn without_nonces_a_wiped_cluster_serves_again() {
    let again = |life: &Life| {
        life.broken.as_ref().is_some_and(|rule| rule.contains("operator wiped") || rule.contains("two histories"))
    };
    let without = Settings { without: Some(Guard::Nonces), ..Settings::default() };
    let broken: Vec<u64> = (0..500).filter(|seed| again(&live(*seed, without))).collect();
    assert!(broken.len() > 5, "{broken:?}");
    for seed in broken {
        let checked = live(seed, Settings { checked: true, ..without });
        assert!(!again(&checked), "the check lets it through: {}", checked.tell());
    }
}

#[test]
fn an_old_copy_of_a_node_is_refused_after_a_second_bootstrap() {
    let refused = |seed: &u64| {
        let told = live(*seed, Settings::default()).story;
        let copied = told.iter().any(|line| line.contains("an old copy of it returns"));
        copied && told.iter().any(|line| line.contains("the others belong to another cluster: refuse"))
    };
    assert!((0..2000).filter(refused).count() > 2);
}

/// Operators on both sides of a partition recover the cluster: without the guard the one that loses starts again when it learns of the
/// other one.
#[test]
fn without_its_guard_a_recovery_that_lost_starts_again() {
    let without = Settings { without: Some(Guard::NewerGeneration), living: true, ..Settings::default() };
    let again = |life: &Life| {
        let forked = life.story.iter().any(|line| line.contains("the partition heals: two recoveries"));
        forked
            && life.broken.as_ref().is_some_and(|rule| rule.contains("declared dead") || rule.contains("takes writes"))
    };
    let broken: Vec<u64> = (0..300).filter(|seed| again(&live(*seed, without))).collect();
    assert!(broken.len() > 2, "{broken:?}");
    for seed in broken {
        let checked = live(seed, Settings { checked: true, ..without });
        assert!(!again(&checked), "the check lets it through: {}", checked.tell());
    }
}
