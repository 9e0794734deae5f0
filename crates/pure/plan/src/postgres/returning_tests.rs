//! What nodes do about changes of an old writer that the writer does not have.

use std::collections::BTreeMap;
use std::time::Duration;

use super::tests::{at, group, mine, noted, plan, spec, store, writer_seen};
use super::*;
use crate::check::{check_claim, check_pg};

/// n1 was the writer of epoch 3, and n2 took over when it had applied 100 of its log.
pub(super) fn records() -> Records {
    let all = noted(&["n1", "n2", "n3"]);
    let writer = || at(WriterNote { node: "n2".to_owned(), epoch: 4 });
    let cutoff = Cutoff { id: 1, epoch: 4, writer: "n2".to_owned(), applied: 100 };
    Records {
        group: at(group()),
        bound: all.clone(),
        joined: all,
        schema: at(SchemaNote { version: 1, epoch: 1 }),
        writer: writer(),
        last_writer: writer(),
        cutoffs: [("n1".to_owned(), at(cutoff).unwrap())].into(),
        ..Records::default()
    }
}

pub(super) fn cleared() -> Records {
    Records { cutoffs: BTreeMap::new(), ..records() }
}

pub(super) fn serving(links: &[(&str, bool, u64)]) -> Mine {
    let links = links.iter().map(|(name, held, applied)| {
        ((*name).to_owned(), LinkNow { held: *held, applied: *applied, unordered: false })
    });
    let bound = Some("g".to_owned());
    Mine { bound, linked: true, schema: 1, configured: true, offered: true, links: links.collect(), ..mine() }
}

fn unsent(transactions: u64) -> UnsentNow {
    let changes = if transactions == 0 { BTreeMap::new() } else { [("public.t".to_owned(), 2)].into() };
    UnsentNow::Known(Unsent { transactions, first: 120 * transactions.min(1), changes })
}

fn diverged(rows: Option<BTreeMap<String, u64>>) -> Diverged {
    let changes = [("public.t".to_owned(), 2)].into();
    Diverged { id: 1, epoch: 4, origin: "n1".to_owned(), first: 120, transactions: 1, changes, rows }
}

pub(super) fn with_divergence(rows: Option<BTreeMap<String, u64>>) -> Records {
    Records { diverged: [("n1".to_owned(), at(diverged(rows)).unwrap())].into(), ..records() }
}

#[test]
fn an_old_writer_starts_isolated_and_is_open_again_once_its_cutoff_is_gone() {
    let down = Mine { serves: false, ..serving(&[]) };
    assert!(plan("n1", down.clone(), store(records())).starts_with("start-isolated "));
    assert!(plan("n2", down.clone(), store(records())).starts_with("start-server "));
    // A node of the same name that has joined again is another member.
    let mut again = records();
    if let Some((group, _)) = &mut again.group {
        group.nodes.insert("n1".to_owned(), 4);
    }
    assert!(plan("n1", down, store(again)).starts_with("start-server "));
    let isolated = Mine { isolated: true, unsent: unsent(0), ..serving(&[("n2", false, 9), ("n3", false, 9)]) };
    assert_eq!(
        plan("n1", isolated.clone(), store(records())),
        "clear-cutoff  remove the cutoff of epoch 4: this node holds nothing beyond it\n"
    );
    assert_eq!(
        plan("n1", isolated, store(cleared())),
        "end-isolation restart the server with connections to other nodes\n"
    );
}

#[test]
fn an_old_writer_whose_server_runs_stops_its_subscriptions_before_its_log_is_read() {
    let runs = Mine { unsent: unsent(0), ..serving(&[("n2", false, 9), ("n3", true, 9)]) };
    assert_eq!(plan("n1", runs, store(records())), "hold-link     stop applying changes of n2\n");
    let held = serving(&[("n2", true, 9), ("n3", true, 9)]);
    assert_eq!(plan("n1", held.clone(), store(records())), "waiting for   the log of this node to be read\n");
    let unread = Mine { unsent: UnsentNow::Unknown("no slot".to_owned()), ..held.clone() };
    assert_eq!(
        plan("n1", unread, store(records())),
        "refused       cannot read whether this node holds changes that `n2` does not have: no slot [Q1446]\n"
    );
    assert_eq!(plan("n1", held, store(cleared())), "release-link  apply changes of n2 again\n");
}

#[test]
fn an_old_writer_with_changes_beyond_its_cutoff_stays_out() {
    let held = Mine { unsent: unsent(1), ..serving(&[("n2", true, 9), ("n3", true, 9)]) };
    assert_eq!(
        plan("n1", held.clone(), store(records())),
        "note-diverged record 1 transaction that the writer of epoch 4 does not have\n"
    );
    let said =
        "this node stays out: it holds 1 transaction that the writer of epoch 4 does not have (changes: public.t 2)";
    assert_eq!(
        plan("n1", held.clone(), store(with_divergence(None))),
        format!("compare-rows  compare rows with the writer\nrefused       {said} [Q1445]\n")
    );
    let compared = with_divergence(Some([("public.t".to_owned(), 1)].into()));
    assert_eq!(
        plan("n1", held.clone(), store(compared.clone())),
        format!("refused       {said}; rows that differ: public.t 1 [Q1445]\n")
    );
    // It stays out without its cutoff, without its agent's memory, and after its server was started again.
    let gone = Records { cutoffs: BTreeMap::new(), ..compared };
    assert!(plan("n1", held, store(gone.clone())).starts_with("refused "));
    assert!(plan("n1", Mine { serves: false, ..serving(&[]) }, store(gone)).starts_with("start-isolated "));
}

#[test]
fn other_nodes_apply_nothing_of_an_old_writer_until_its_cutoff_is_gone() {
    let follows = serving(&[("n1", false, 100), ("n2", false, 7)]);
    assert_eq!(plan("n3", follows.clone(), store(records())), "hold-link     stop applying changes of n1\n");
    let held = serving(&[("n1", true, 100), ("n2", false, 7)]);
    assert_eq!(plan("n3", held.clone(), store(records())), "nothing to do\n");
    assert_eq!(plan("n3", held.clone(), store(with_divergence(None))), "nothing to do\n");
    assert_eq!(plan("n3", held.clone(), store(cleared())), "release-link  apply changes of n1 again\n");
    // While nobody has the lease, the election holds it.
    let vacant = Records { writer: None, last_writer: at(WriterNote { node: "n1".to_owned(), epoch: 3 }), ..cleared() };
    assert_eq!(plan("n3", held, store(vacant)), "nothing to do\n");
}

#[test]
fn a_node_that_has_applied_what_the_writer_will_not_get_stays_out_too() {
    let ahead = serving(&[("n1", true, 128), ("n2", false, 7)]);
    // Whether that can be merged is not known before the old writer has read its log.
    assert_eq!(plan("n3", ahead.clone(), store(records())), "nothing to do\n");
    assert!(plan("n3", ahead.clone(), store(with_divergence(None))).starts_with("note-diverged "));
    // What the writer has is right.
    let mut writes = with_divergence(None);
    writes.writer = at(WriterNote { node: "n3".to_owned(), epoch: 5 });
    assert_eq!(plan("n3", ahead, store(writes)), "nothing to do\n");
}

#[test]
fn data_is_replaced_by_order_and_only_of_a_node_that_is_no_member() {
    let mut ordered = records();
    ordered.discards.insert("n1".to_owned(), Discard { id: 1 });
    assert!(!plan("n1", serving(&[]), store(ordered.clone())).contains("replace-data"));
    if let Some((group, _)) = &mut ordered.group {
        group.nodes.remove("n1");
    }
    let replace = "replace-data  rename the data dir to `….replaced-<time>`; nothing is deleted\n";
    assert_eq!(plan("n1", serving(&[]), store(ordered.clone())), replace);
    assert_eq!(plan("n1", Mine { isolated: true, ..serving(&[]) }, store(ordered.clone())), replace);
    // The next one is bound to nothing.
    let said = plan("n1", Mine { bound: None, ..serving(&[]) }, store(ordered));
    assert!(said.starts_with("refused       group `t` was written down without `n1`"), "{said}");
}

#[test]
fn who_takes_over_stops_applying_first_and_records_how_far_it_was() {
    let mut seen = WriterSeen {
        link_held: false,
        vacant: Vacancy::Free(Duration::from_millis(400)),
        positions: [("n1".to_owned(), 100)].into(),
        ..writer_seen()
    };
    seen.records.group = at(group());
    assert_eq!(next_writer(&spec(), "n2", &seen), WriterPlan::HoldLink("n1".to_owned()));
    seen.link_held = true;
    assert_eq!(next_writer(&spec(), "n2", &seen), WriterPlan::Stand(Candidate { epoch: 4, applied: 100 }));
    seen.records.candidates = [("n2".to_owned(), Candidate { epoch: 4, applied: 100 })].into();
    let cutoff = Cutoff { id: 1, epoch: 4, writer: "n2".to_owned(), applied: 100 };
    let claim = WriterPlan::Claim([("n1".to_owned(), cutoff)].into());
    assert_eq!(next_writer(&spec(), "n2", &seen), claim);
    assert_eq!(check_claim(&spec(), "n2", &seen, &claim), Ok(()));
    // What was recorded before is recorded anew as this node has it. A node that is out does not stand, and is not waited for.
    let mut second = WriterSeen { vacant: Vacancy::Free(Duration::ZERO), ..seen.clone() };
    second.records.last_writer = at(WriterNote { node: "n3".to_owned(), epoch: 3 });
    second.records.cutoffs = records().cutoffs;
    second.positions = [("n1".to_owned(), 110), ("n3".to_owned(), 7)].into();
    let WriterPlan::Claim(both) = next_writer(&spec(), "n2", &second) else { panic!("it waits") };
    let applied: Vec<(&str, u64)> = both.iter().map(|(node, cutoff)| (node.as_str(), cutoff.applied)).collect();
    assert_eq!(applied, [("n1", 110), ("n3", 7)]);
    assert_eq!(check_claim(&spec(), "n2", &second, &WriterPlan::Claim(both)), Ok(()));
    // One that was handed everything records nothing, and one that was the writer itself neither.
    seen.records.handover = at(Handover { to: "n2".to_owned(), epoch: 4 });
    assert_eq!(next_writer(&spec(), "n2", &seen), WriterPlan::Claim(BTreeMap::new()));
    assert_eq!(check_claim(&spec(), "n2", &seen, &WriterPlan::Claim(BTreeMap::new())), Ok(()));
}

#[test]
fn the_audit_finds_each_rule_that_is_broken() {
    let mut seen = WriterSeen { positions: [("n1".to_owned(), 100)].into(), ..writer_seen() };
    seen.records.group = at(group());
    let claim = |cutoffs: &[(&str, u64)]| {
        let cutoff = |applied| Cutoff { id: 1, epoch: 4, writer: "n2".to_owned(), applied };
        WriterPlan::Claim(cutoffs.iter().map(|(node, applied)| ((*node).to_owned(), cutoff(*applied))).collect())
    };
    let claims = |seen: &WriterSeen, cutoffs: &[(&str, u64)]| check_claim(&spec(), "n2", seen, &claim(cutoffs)).is_ok();
    assert!(claims(&seen, &[("n1", 100)]));
    assert!(!claims(&seen, &[]), "no cutoff");
    assert!(!claims(&seen, &[("n1", 101)]), "more than was applied");
    assert!(!claims(&WriterSeen { link_held: false, ..seen.clone() }, &[("n1", 100)]), "it may still be applied");
    let mut out = seen.clone();
    out.records.diverged = [("n2".to_owned(), at(Diverged { id: 2, ..diverged(None) }).unwrap())].into();
    assert!(!claims(&out, &[("n1", 100)]), "it is out");

    let seen = |mine: Mine, records: Records| Seen { mine, store: StoreNow::Known(Box::new(store(records))) };
    let steps = |step: PgStep| PgPlan { steps: vec![step], ..PgPlan::default() };
    let dirty = Mine { unsent: unsent(1), ..serving(&[]) };
    let release = PgStep::ReleaseLink { from: "n1".to_owned() };
    for step in [
        PgStep::StartServer,
        PgStep::EndIsolation,
        PgStep::ClearCutoff { epoch: 4 },
        PgStep::Offer,
        PgStep::ReplaceData,
    ] {
        assert!(check_pg("n1", &seen(dirty.clone(), records()), &steps(step.clone())).is_err(), "{step}");
    }
    assert!(check_pg("n3", &seen(serving(&[]), records()), &steps(release.clone())).is_err());
    assert!(check_pg("n3", &seen(serving(&[]), with_divergence(None)), &steps(release.clone())).is_err());
    let held = serving(&[("n1", true, 100)]);
    assert_eq!(check_pg("n3", &seen(held, cleared()), &steps(release)), Ok(()));
    let dark = Seen { mine: serving(&[]), store: StoreNow::Unknown("silent".to_owned()) };
    assert!(check_pg("n1", &dark, &steps(PgStep::StartServer)).is_err());
    assert_eq!(check_pg("n1", &dark, &steps(PgStep::StartIsolated)), Ok(()));
}
