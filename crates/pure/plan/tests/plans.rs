//! Golden tests of the start decision: short texts in, plans out. Each file of `plans/` holds what is declared and seen, a line of
//! dashes, and what is done. `plans/README.md` is the language.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read their fixtures, and fail where those are wrong"
)]

#[path = "plans/fixture.rs"]
mod fixture;

use std::path::Path;

use quorate_plan::check::check;
use quorate_plan::quorum::proofs;
use quorate_plan::start::plan_start;

use fixture::Fixture;

fn plan_of(text: &str) -> (String, quorate_plan::start::Row) {
    let fixture = Fixture::parse(text);
    let plan = plan_start(&fixture.spec, &fixture.name, &fixture.seen);
    let mut said = plan.render();
    for (step, proof) in proofs(&fixture.name, &fixture.seen, &plan) {
        said += &format!("proof of {}: {proof}\n", step + 1);
    }
    if let Err(broken) = check(&fixture.spec, &fixture.name, &fixture.seen, &plan) {
        said += &format!("THE CHECK OBJECTS: {}\n", broken.join("; "));
    }
    (fixture.with_names(&said), plan.row)
}

#[test]
fn every_fixture_leads_to_its_plan() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "txt"));
    files.sort();
    let (mut wrong, mut rows) = (Vec::new(), std::collections::BTreeSet::new());
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        let (given, expected) = text.split_once("---\n").unwrap();
        let (said, row) = plan_of(given);
        rows.insert(row);
        if said != expected {
            wrong.push(format!("=== {}\n{said}", path.file_name().unwrap().to_str().unwrap()));
        }
    }
    assert!(wrong.is_empty(), "these plans are not the expected ones:\n{}", wrong.join("\n"));
    assert_eq!(rows.len(), 30, "rows without a fixture: only {rows:?} have one");
}
