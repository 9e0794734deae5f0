//! Two thousand lives: whatever goes wrong, one cluster comes of one declaration, and nothing that was acknowledged is lost.

use quorate_sim::{End, Settings, live};

#[test]
fn two_thousand_lives_break_no_rule() {
    let (mut serve, mut wait) = (0, 0);
    for seed in 0..2000 {
        let life = live(seed, Settings::default());
        match &life.end {
            End::Serves => serve += 1,
            End::NeedsPerson(_) => wait += 1,
            End::Broken => panic!("cargo xtask sim --seed {seed} --story\n{}", life.tell()),
        }
    }
    println!("{serve} lives end in a cluster that serves, {wait} wait for a person");
    assert!(serve > 1700 && wait > 10, "the lives are not what they were: {serve} serve, {wait} wait");
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    for seed in [3, 17, 99] {
        let (one, other) = (live(seed, Settings::default()), live(seed, Settings::default()));
        assert_eq!(one.tell(), other.tell());
        assert!(one.story.len() > 20, "{}", one.tell());
    }
}
