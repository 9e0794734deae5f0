//! What nodes do that lack changes of a former writer, or may have applied them late.

use std::collections::BTreeMap;
use std::time::Duration;

use super::returning_tests::{cleared, records, serving, with_divergence};
use super::tests::{at, group, plan, spec, store, writer_seen};
use super::*;
use crate::check::{check_claim, check_handover, check_pg};

fn floor(waiting: &[u16]) -> Records {
    let floor = Floor { id: 1, epoch: 4, applied: 100, waiting: waiting.iter().copied().collect() };
    Records { floors: [("n1".to_owned(), at(floor).unwrap())].into(), ..cleared() }
}

fn unordered(mut mine: Mine, from: &str) -> Mine {
    if let Some(link) = mine.links.get_mut(from) {
        link.unordered = true;
    }
    mine
}

fn writer(node: &str, records: Records) -> Records {
    let note = || at(WriterNote { node: node.to_owned(), epoch: 5 });
    Records { writer: note(), last_writer: note(), ..records }
}

const TAKE: &str = "take-rows     take the rows of n2\n\
                    waiting for   the rows of n2: this node lacks changes of `n1`, or has applied them after newer ones [Q1448]\n";

#[test]
fn a_node_that_lags_behind_the_cutoff_takes_the_rows_of_the_writer() {
    let held = serving(&[("n1", true, 80), ("n2", false, 7)]);
    assert_eq!(plan("n3", held.clone(), store(records())), TAKE);
    assert_eq!(plan("n3", held.clone(), store(with_divergence(None))), TAKE);
    // Pooler and proxy come first: the proxy leads to the writer.
    let idle = Mine { configured: false, ..held.clone() };
    assert!(plan("n3", idle, store(records())).starts_with("configure "));
    let none = Records { writer: None, ..records() };
    assert!(plan("n3", held, store(none)).starts_with("waiting for   a writer whose rows it can take"));
    // It stopped the subscription late: in which order changes were applied is not known.
    let late = serving(&[("n1", true, 100), ("n2", false, 7)]);
    assert_eq!(plan("n3", late.clone(), store(records())), "nothing to do\n");
    assert_eq!(plan("n3", unordered(late, "n1"), store(records())), TAKE);
    // What it has more than the writer waits for the old writer's log.
    let ahead = unordered(serving(&[("n1", true, 128), ("n2", false, 7)]), "n1");
    assert_eq!(plan("n3", ahead.clone(), store(records())), "nothing to do\n");
    assert!(plan("n3", ahead.clone(), store(with_divergence(None))).starts_with("note-diverged "));
    assert_eq!(plan("n3", ahead, store(floor(&[3]))), TAKE);
}

#[test]
fn a_floor_is_confirmed_before_the_former_writer_is_followed_again() {
    let held = serving(&[("n1", true, 100), ("n2", false, 7)]);
    assert_eq!(
        plan("n3", held.clone(), store(floor(&[3]))),
        "confirm-floor confirm that this node holds what the writer has of n1\n"
    );
    assert_eq!(plan("n3", held, store(floor(&[2]))), "release-link  apply changes of n1 again\n");
    let lagging = serving(&[("n1", true, 80), ("n2", false, 7)]);
    assert_eq!(plan("n3", lagging.clone(), store(floor(&[3]))), TAKE);
    // One that took its rows from a node that lags is not awaited, and lags all the same.
    assert_eq!(plan("n3", lagging, store(floor(&[2]))), TAKE);
    // Its agent did not run when the writer changed.
    let follows = serving(&[("n1", false, 100), ("n2", false, 7)]);
    assert_eq!(plan("n3", follows, store(floor(&[3]))), "hold-link     stop applying changes of n1\n");
}

#[test]
fn only_a_node_that_may_lack_rows_takes_no_reads() {
    let lacks = |mine: Mine, records: Records| {
        lacks_rows("n3", &Seen { mine, store: StoreNow::Known(Box::new(store(records))) })
    };
    let held = |applied| serving(&[("n1", true, applied), ("n2", false, 7)]);
    assert!(lacks(held(80), records()) && lacks(held(80), floor(&[3])));
    assert!(lacks(unordered(held(100), "n1"), floor(&[3])));
    assert!(lacks(serving(&[("n1", false, 100)]), floor(&[3])), "its agent has not stopped it yet");
    assert!(!lacks(held(100), records()) && !lacks(held(100), floor(&[3])) && !lacks(held(128), records()));
}

#[test]
fn a_former_writer_that_writes_again_is_followed_and_rows_are_compared_afterwards() {
    let records = writer("n1", floor(&[3]));
    let lagging = serving(&[("n1", true, 80), ("n2", false, 7)]);
    assert_eq!(plan("n3", lagging.clone(), store(records.clone())), "hold-link     stop applying changes of n1\n");
    let marked = unordered(lagging, "n1");
    assert_eq!(plan("n3", marked, store(records.clone())), "release-link  apply changes of n1 again\n");
    let follows = unordered(serving(&[("n1", false, 80), ("n2", false, 7)]), "n1");
    let said = plan("n3", follows, store(records.clone()));
    assert!(said.starts_with("take-rows     take the rows of n1\n"), "{said}");
    let in_order = serving(&[("n1", true, 100), ("n2", false, 7)]);
    assert!(plan("n3", in_order, store(records)).starts_with("confirm-floor "));
}

#[test]
fn a_server_starts_isolated_until_it_applies_nothing_of_a_former_writer() {
    let down = Mine { serves: false, ..serving(&[]) };
    for records in [records(), with_divergence(None), floor(&[3])] {
        assert!(plan("n3", down.clone(), store(records.clone())).starts_with("start-isolated "));
        let isolated = Mine { isolated: true, ..serving(&[("n1", false, 80), ("n2", false, 7)]) };
        assert!(plan("n3", isolated, store(records.clone())).starts_with("hold-link "));
        let held = Mine { isolated: true, ..serving(&[("n1", true, 80), ("n2", false, 7)]) };
        assert!(plan("n3", held, store(records.clone())).starts_with("end-isolation "));
        // The writer had stopped it before it took the lease.
        assert!(plan("n2", down.clone(), store(records)).starts_with("start-server "));
    }
    assert!(plan("n3", down, store(floor(&[2]))).starts_with("start-server "));
}

#[test]
fn a_cutoff_that_is_cleared_becomes_a_floor_that_each_member_confirms_once() {
    let records = records();
    let key = b"pg/floors/n1".to_vec();
    let put = |txn: &Write| -> Option<Floor> {
        txn.then.iter().find_map(|change| match change {
            quorate_kv::Change::Put(name, value) if *name == key => serde_json::from_slice(value).ok(),
            _ => None,
        })
    };
    let waiting = put(&clear_cutoff(&records, "n1").unwrap()).unwrap();
    assert_eq!(waiting, Floor { id: 1, epoch: 4, applied: 100, waiting: [3].into() });
    assert_eq!(confirm_floor(&floor(&[3]), "n1", "n2"), None);
    let left = put(&confirm_floor(&floor(&[2, 3]), "n1", "n3").unwrap()).unwrap();
    assert_eq!(left.waiting, [2].into());
    // The last one removes it; one that has left the group is not waited for.
    for waiting in [&[3][..], &[3, 9]] {
        let last = confirm_floor(&floor(waiting), "n1", "n3").unwrap();
        assert_eq!(last.then, [quorate_kv::Change::Delete(key.clone())]);
    }
}

#[test]
fn a_node_that_lacks_changes_does_not_become_the_writer() {
    let mut seen = WriterSeen {
        vacant: Vacancy::Free(Duration::from_secs(9)),
        positions: [("n1".to_owned(), 80), ("n2".to_owned(), 7)].into(),
        ..writer_seen()
    };
    seen.records = Records { writer: None, ..writer("n2", records()) };
    let claim = WriterPlan::Claim(BTreeMap::new());
    for records in [records(), floor(&[3]), floor(&[2])] {
        seen.records = Records { writer: None, group: at(group()), ..writer("n2", records) };
        assert_eq!(next_writer(&spec(), "n3", &seen), WriterPlan::Follow);
        assert!(check_claim(&spec(), "n3", &seen, &claim).is_err());
    }
    seen.positions.insert("n1".to_owned(), 100);
    assert_ne!(next_writer(&spec(), "n3", &seen), WriterPlan::Follow);
}

#[test]
fn the_audit_refuses_late_changes() {
    let seen = |mine: Mine, records: Records| Seen { mine, store: StoreNow::Known(Box::new(store(records))) };
    let refused = |mine: &Mine, records: Records, step: PgStep| {
        let plan = PgPlan { steps: vec![step], ..PgPlan::default() };
        check_pg("n3", &seen(mine.clone(), records), &plan).is_err()
    };
    let lagging = serving(&[("n1", true, 80), ("n2", false, 7)]);
    let follows = serving(&[("n1", false, 80), ("n2", false, 7)]);
    let (n1, n2) = ("n1".to_owned(), "n2".to_owned());
    let release = || PgStep::ReleaseLink { from: n1.clone() };
    let confirm = || PgStep::ConfirmFloor { from: n1.clone() };
    let take = |writer: &String, to: u64| PgStep::TakeRows { writer: writer.clone(), skip: [(n1.clone(), to)].into() };
    assert!(refused(&lagging, floor(&[3]), release()));
    assert!(refused(&lagging, floor(&[3]), confirm()));
    assert!(refused(&serving(&[("n1", false, 100)]), floor(&[3]), confirm()), "it may still apply");
    assert!(refused(&unordered(serving(&[("n1", true, 100)]), "n1"), floor(&[3]), confirm()));
    assert!(!refused(&serving(&[("n1", true, 100)]), floor(&[3]), confirm()));
    assert!(!refused(&lagging, floor(&[3]), take(&n2, 100)));
    assert!(refused(&lagging, floor(&[3]), take(&n2, 101)), "more than the writer has");
    assert!(refused(&lagging, floor(&[3]), take(&n1, 100)), "not the writer");
    assert!(refused(&follows, floor(&[3]), take(&n2, 100)), "it may still apply");
    for step in [PgStep::StartServer, PgStep::EndIsolation] {
        assert!(refused(&follows, floor(&[3]), step.clone()), "{step}");
        assert!(!refused(&lagging, floor(&[3]), step.clone()), "{step}");
    }
}

fn unconfirmed(applied: u64, members: &[u16]) -> Unconfirmed {
    Unconfirmed { applied, members: members.iter().copied().collect() }
}

#[test]
fn a_planned_handover_records_a_floor_for_members_that_have_not_applied_everything() {
    let writes = writer("n1", Records { floors: BTreeMap::new(), ..cleared() });
    let all = Unconfirmed::default();
    assert_eq!(handover_floor(&writes, "n2", &all), None);
    assert_eq!(check_handover(&writes, "n2", &all, None), Ok(()));
    let late = unconfirmed(100, &[3]);
    let floor = handover_floor(&writes, "n2", &late).unwrap();
    assert_eq!(floor, Floor { id: 1, epoch: 6, applied: 100, waiting: [3].into() });
    assert_eq!(check_handover(&writes, "n2", &late, Some(&floor)), Ok(()));
    // The record that makes n3 take rows is written by the transaction that gives the lease away.
    let txn = hand_over(&writes, "n2", Some(&floor)).unwrap();
    let floor_key = b"pg/floors/n1".to_vec();
    let value = serde_json::to_vec(&floor).unwrap();
    assert!(txn.then.contains(&quorate_kv::Change::Put(floor_key.clone(), value)));
    assert!(txn.when.contains(&quorate_kv::Compare::Absent(floor_key)));
    let after = Records { floors: [("n1".to_owned(), at(floor.clone()).unwrap())].into(), ..writer("n2", cleared()) };
    assert_eq!(plan("n3", serving(&[("n1", true, 80), ("n2", false, 7)]), store(after.clone())), TAKE);
    let down = Mine { serves: false, ..serving(&[]) };
    assert!(plan("n3", down, store(after)).starts_with("start-isolated "));

    assert!(check_handover(&writes, "n2", &late, None).is_err(), "n3 is forgotten");
    assert!(check_handover(&writes, "n3", &late, Some(&floor)).is_err(), "n3 has not applied everything");
    let short = Floor { applied: 99, ..floor.clone() };
    assert!(check_handover(&writes, "n2", &late, Some(&short)).is_err(), "below what the next writer has");
    let vacant = Records { writer: None, ..cleared() };
    assert!(check_handover(&vacant, "n2", &all, None).is_err(), "nobody writes");
    assert!(check_handover(&writes, "n1", &all, None).is_err(), "it writes already");
}

#[test]
fn a_planned_handover_still_awaits_the_members_of_an_earlier_floor() {
    let writes = writer("n1", floor(&[2, 3]));
    let kept = handover_floor(&writes, "n2", &unconfirmed(90, &[])).unwrap();
    assert_eq!(kept, Floor { id: 1, epoch: 6, applied: 100, waiting: [3].into() });
    assert!(check_handover(&writes, "n2", &Unconfirmed::default(), None).is_err());
    assert!(check_handover(&writes, "n2", &Unconfirmed::default(), Some(&kept)).is_ok());
}
