//! Thousands of lives: whatever goes wrong, one cluster comes of one declaration, nothing that was acknowledged is
//! lost, and whatever two operators change, the cluster ends as it was last declared.

use std::collections::BTreeMap;

use quorate_sim::{End, Settings, live};

const LIVING: Settings =
    Settings { without: None, checked: false, living: true, starts_over: false, without_in_rotation: None };

/// So many with every run; `cargo xtask sim --living --seeds N` lives through more.
const LIVES_OF_LIVING: u64 = 1000;

fn ends(settings: Settings, lives: u64) -> (u64, u64) {
    let (mut serve, mut wait, mut broken) = (0, 0, BTreeMap::new());
    for seed in 0..lives {
        let life = live(seed, settings);
        match &life.end {
            End::Serves => serve += 1,
            End::NeedsPerson(_) => wait += 1,
            End::Broken => {
                let rule: String = life.broken.iter().flat_map(|rule| rule.chars().take(70)).collect();
                broken.entry(rule).or_insert_with(Vec::new).push(life);
            }
        }
    }
    // One story of each kind is enough to begin with.
    let kind = if settings.living { " --living" } else { "" };
    let stories = broken.iter().filter_map(|(rule, lives)| {
        let seeds: Vec<u64> = lives.iter().map(|life| life.seed).collect();
        let first = lives.iter().min_by_key(|life| life.story.len())?;
        let command = format!("cargo xtask sim --seed {}{kind} --story", first.seed);
        Some(format!("{rule}: seeds {seeds:?}\n{command}\n{}", first.tell()))
    });
    let stories: Vec<String> = stories.collect();
    assert!(stories.is_empty(), "{}", stories.join("\n\n"));
    (serve, wait)
}

#[test]
fn two_thousand_lives_break_no_rule() {
    let (serve, wait) = ends(Settings::default(), 2000);
    println!("{serve} lives end in a cluster that serves, {wait} wait for a person");
    assert!(serve > 1700 && wait > 10, "the lives are not what they were: {serve} serve, {wait} wait");
}

#[test]
fn clusters_that_two_operators_change_break_no_rule() {
    let (serve, wait) = ends(LIVING, LIVES_OF_LIVING);
    assert!(serve == LIVES_OF_LIVING, "the lives are not what they were: {serve} serve, {wait} wait");
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    for (seed, settings) in
        [(3, Settings::default()), (17, Settings::default()), (99, Settings::default()), (7, LIVING)]
    {
        let (one, other) = (live(seed, settings), live(seed, settings));
        assert_eq!(one.tell(), other.tell());
        assert!(one.story.len() > 20, "{}", one.tell());
    }
}
