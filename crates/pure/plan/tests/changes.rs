//! Golden tests of changes: short texts in, plans out. Each file of `changes/` holds what is declared and seen, a line of dashes,
//! and what is done. `changes/README.md` is the language. `QUORATE_ACCEPT=1` writes what is said into the files.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read their fixtures, and fail where those are wrong"
)]

#[path = "changes/fixture.rs"]
mod fixture;

use std::path::Path;

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
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/changes");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "txt"));
    files.sort();
    let mut wrong = Vec::new();
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        let (given, expected) = text.split_once("---\n").unwrap();
        let said = said(given);
        if said == expected {
            continue;
        }
        if std::env::var_os("QUORATE_ACCEPT").is_some() {
            std::fs::write(path, format!("{given}---\n{said}")).unwrap();
        }
        wrong.push(format!("=== {}\n{said}", path.file_name().unwrap().to_str().unwrap()));
    }
    assert!(wrong.is_empty(), "these plans are not the expected ones:\n{}", wrong.join("\n"));
    assert!(files.len() >= 40, "only {} fixtures", files.len());
}

#[test]
fn every_text_that_the_list_of_pains_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pains = std::fs::read_to_string(root.join("../../../docs/pains.md")).unwrap();
    let named: Vec<&str> = pains.split('`').filter(|word| word.ends_with(".txt")).collect();
    let is_there = |name: &&str| ["tests/changes", "tests/plans"].iter().any(|dir| root.join(dir).join(name).exists());
    let missing: Vec<&str> = named.iter().copied().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty() && named.len() > 30, "{missing:?} of {}", named.len());
}
