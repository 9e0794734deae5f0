//! Golden tests of the start decision: short texts in, plans out. Each file of `plans/` holds what is declared and seen, a line of
//! dashes, and what is done. `plans/README.md` is the language.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read their fixtures, and fail where those are wrong"
)]

#[path = "plans/fixture.rs"]
mod fixture;
mod golden;

use std::collections::BTreeSet;

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
    let mut rows = BTreeSet::new();
    golden::compare("plans", |given| {
        let (said, row) = plan_of(given);
        rows.insert(row);
        said
    });
    assert_eq!(rows.len(), 37, "rows without a fixture: only {rows:?} have one");
}
