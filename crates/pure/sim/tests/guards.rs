//! Every guard of the planner is there for a reason: without it, some life breaks a rule; and the check of plans stands in for it.

use quorate_plan::start::Guard;
use quorate_sim::{Life, Settings, live};

/// In how many lives a missing guard must show.
const LIVES: u64 = 4000;

/// Shown by the check alone: a member that pauses is down, so another guard keeps the same rule in every life.
const BY_THE_CHECK_ALONE: [Guard; 1] = [Guard::OnePause];

/// What is only about coming to an end, and harms nobody.
const NEVER_ENDS: &str = "it never came to an end";

/// Lives of the one kind, then of the other. One that is broken with all guards needs none of them.
fn first_broken(guard: Guard) -> Option<(Life, bool)> {
    let kinds = if guard.is_in_start() { &[false, true][..] } else { &[true][..] };
    kinds.iter().find_map(|living| {
        let settings = Settings { without: Some(guard), checked: false, living: *living };
        let whole = Settings { living: *living, ..Settings::default() };
        let needs_it = |life: &Life| life.broken.is_some() && live(life.seed, whole).broken.is_none();
        (0..LIVES).map(|seed| live(seed, settings)).find(needs_it).map(|life| (life, *living))
    })
}

#[test]
fn without_any_one_guard_some_life_breaks_a_rule_and_the_check_prevents_it() {
    let mut superfluous = Vec::new();
    let mut missed = Vec::new();
    for guard in Guard::ALL.into_iter().filter(|guard| !BY_THE_CHECK_ALONE.contains(guard)) {
        let Some((life, living)) = first_broken(guard) else {
            superfluous.push(guard);
            continue;
        };
        let rule = life.broken.clone().unwrap_or_default();
        println!(
            "{guard:?} | seed {}{} | {}",
            life.seed,
            if living { " living" } else { "" },
            rule.chars().take(110).collect::<String>()
        );
        let checked = live(life.seed, Settings { without: Some(guard), checked: true, living });
        if checked.broken.as_ref().is_some_and(|rule| !rule.starts_with(NEVER_ENDS)) {
            missed.push((guard, life.seed, checked.broken.unwrap_or_default()));
        }
    }
    assert!(superfluous.is_empty(), "no life of {LIVES} needs these: {superfluous:?}");
    assert!(missed.is_empty(), "the check lets these through: {missed:?}");
}
