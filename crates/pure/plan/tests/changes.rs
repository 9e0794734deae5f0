//! Golden tests of changes: short texts in, plans out. Each file of `changes/` holds what is declared and seen, a line of dashes,
//! and what is done. `changes/README.md` is the language. `QUORATE_ACCEPT=1` writes what is said into the files.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read their fixtures, and fail where those are wrong"
)]

#[path = "changes/fixture.rs"]
mod fixture;
mod golden;

use std::path::{Path, PathBuf};

use quorate_plan::change::upgrade::{Ask, Release, plan_upgrade};
use quorate_plan::change::{ChangePlan, plan_change, plan_for_agents};
use quorate_plan::check::check_change;

use fixture::Fixture;

fn plan_of(fixture: &Fixture) -> Result<ChangePlan, String> {
    match fixture.asked.as_deref().and_then(|asked| asked.split_once(' ')) {
        None if fixture.asked.as_deref() == Some("agents") => Ok(plan_for_agents(&fixture.view, &fixture.spec)),
        None => Ok(plan_change(&fixture.view, &fixture.spec)),
        Some((_, to)) => {
            let ask = Ask { to: Release::parse(to).unwrap(), without_backup: false };
            plan_upgrade(&fixture.view, &fixture.spec, &ask).map_err(|no| format!("  refuse: {}\n", no.halt))
        }
    }
}

fn said(text: &str) -> String {
    let fixture = Fixture::parse(text);
    let plan = match plan_of(&fixture) {
        Ok(plan) => plan,
        Err(no) => return no,
    };
    let rendered = plan.render();
    let (mut said, hash) = rendered.rsplit_once("plan ").map(|(said, hash)| (said.to_owned(), hash.trim())).unwrap();
    assert_eq!(hash, plan.hash());
    if let Err(broken) = check_change(&fixture.spec, &fixture.view, &plan) {
        said += &format!("THE CHECK OBJECTS: {}\n", broken.join("; "));
    }
    said
}

#[test]
fn every_fixture_leads_to_its_plan() {
    let count = golden::compare("changes", said);
    assert!(count >= 40, "only {count} fixtures");
}

#[test]
fn every_text_and_test_that_failure_modes_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let modes = std::fs::read_to_string(root.join("../../../docs/failure-modes.md")).unwrap();
    let named: Vec<&str> = modes.split('`').filter(|word| word.ends_with(".txt")).collect();
    let is_there = |name: &&str| ["tests/changes", "tests/plans"].iter().any(|dir| root.join(dir).join(name).exists());
    let missing: Vec<&str> = named.iter().copied().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty() && named.len() > 30, "{missing:?} of {}", named.len());
    // `FILE::TEST`: in the tests of some crate.
    let is_name = |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let pairs = modes.split('`').filter_map(|word| word.split_once("::"));
    let pairs: Vec<(&str, &str)> = pairs.filter(|(file, test)| is_name(file) && is_name(test)).collect();
    let crates: Vec<PathBuf> = ["app", "effects", "pure", "test"]
        .iter()
        .flat_map(|ring| std::fs::read_dir(root.join("../../../crates").join(ring)).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    let holds = |(file, test): &(&str, &str)| {
        crates.iter().any(|dir| {
            let text = std::fs::read_to_string(dir.join(format!("tests/{file}.rs"))).unwrap_or_default();
            text.contains(&format!("fn {test}("))
        })
    };
    let missing: Vec<&(&str, &str)> = pairs.iter().filter(|pair| !holds(pair)).collect();
    assert!(missing.is_empty() && pairs.len() > 25, "{missing:?} of {}", pairs.len());
    // Every numbered pain names a test with real programs, a text, or a test of a unit.
    let is_numbered = |line: &&str| {
        let number = line.strip_prefix("| ").and_then(|row| row.split_once(". "));
        number.is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let numbered: Vec<&str> = modes.lines().filter(is_numbered).collect();
    let names_one = |line: &&str| {
        line.split('`').skip(1).step_by(2).any(|word| {
            let pair = word.split_once("::").is_some_and(|(file, test)| is_name(file) && is_name(test));
            pair || word.ends_with(".txt") || (is_name(word) && word.matches('_').count() > 2)
        })
    };
    let without: Vec<&str> = numbered.iter().copied().filter(|line| !names_one(line)).collect();
    assert!(without.is_empty() && numbered.len() == 20, "{without:?} of {}", numbered.len());
}
