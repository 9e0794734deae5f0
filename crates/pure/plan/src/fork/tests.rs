//! Every pair of facts, on both sides at once.

use super::*;
use crate::check::check_fork;
use crate::ledger::{Identity, Origin, PendingAdd, State};
use crate::peers::{Told, heed};
use quorate_etcd_formats::membership::MemberId;

const LOW: ClusterId = ClusterId(UNCLAIMED + 1);
const HIGH: ClusterId = ClusterId(UNCLAIMED + 2);
const CLAIMED: ClusterId = ClusterId(9);
const FACTS: [Fact; 5] = [
    Fact::EarlierRelease,
    Fact::Unknown,
    Fact::Known(Sealed::Written),
    Fact::Known(Sealed::Unwritten),
    Fact::Known(Sealed::ById),
];

fn of(cluster: ClusterId, fact: Fact) -> Recovered {
    Recovered { cluster, fact }
}

#[test]
fn claims_come_first_then_client_writes_then_the_lower_id() {
    use Verdict::{Loses, Undecided, Wins};
    let (written, unwritten, by_id) =
        (Fact::Known(Sealed::Written), Fact::Known(Sealed::Unwritten), Fact::Known(Sealed::ById));
    let table = [
        // The own cluster has the higher id of two that nobody claimed.
        (HIGH, written, LOW, unwritten, Wins),
        (HIGH, unwritten, LOW, written, Loses),
        (HIGH, written, LOW, written, Loses),
        (HIGH, unwritten, LOW, unwritten, Loses),
        (HIGH, written, LOW, Fact::Unknown, Undecided),
        (HIGH, Fact::Unknown, LOW, unwritten, Undecided),
        (HIGH, written, LOW, by_id, Loses),
        (HIGH, written, LOW, Fact::EarlierRelease, Loses),
        (HIGH, by_id, LOW, Fact::Unknown, Loses),
        (LOW, by_id, HIGH, written, Wins),
        (LOW, unwritten, HIGH, written, Loses),
        // A claim needs no facts.
        (CLAIMED, Fact::Unknown, LOW, written, Wins),
        (CLAIMED, unwritten, LOW, written, Wins),
        (LOW, written, CLAIMED, Fact::Unknown, Loses),
        // Two claims can only be of two stores, and say nothing.
        (ClusterId(5), unwritten, CLAIMED, written, Loses),
        (ClusterId(5), Fact::Unknown, CLAIMED, written, Undecided),
    ];
    for (own, mine, rival, theirs, verdict) in table {
        assert_eq!(decide_fork(of(own, mine), of(rival, theirs)), verdict, "{own} {mine:?} {rival} {theirs:?}");
    }
}

/// Each side may lack what the other one has recorded, and either may have waited for it.
#[test]
fn at_most_one_wins_whatever_each_side_has_learned() {
    for (one, other) in [(LOW, HIGH), (HIGH, LOW), (CLAIMED, LOW), (ClusterId(5), CLAIMED)] {
        for first in FACTS {
            for second in FACTS {
                let (mine, theirs) = (of(one, first), of(other, second));
                let whole = (decide_fork(mine, theirs), decide_fork(theirs, mine));
                let opposite = [
                    (Verdict::Wins, Verdict::Loses),
                    (Verdict::Loses, Verdict::Wins),
                    (Verdict::Undecided, Verdict::Undecided),
                ];
                assert!(opposite.contains(&whole), "{mine:?} {theirs:?}: {whole:?}");
                for (view, late) in [(second, true), (Fact::Unknown, false), (Fact::Unknown, true)] {
                    let decide = if late { decide_late } else { decide_fork };
                    let seen = decide(mine, of(other, view));
                    let opposing = decide_fork(theirs, mine);
                    assert!((seen, opposing) != (Verdict::Wins, Verdict::Wins), "{mine:?} {theirs:?} {view:?}");
                    assert_eq!(check_fork(mine, of(other, view), seen, late), Ok(()));
                    for wrong in [Verdict::Wins, Verdict::Loses, Verdict::Undecided] {
                        let audited = check_fork(mine, of(other, view), wrong, late);
                        assert_eq!(audited.is_ok(), wrong == seen, "{mine:?} {theirs:?} {view:?} {wrong:?}");
                    }
                }
                // One of both that waited stops, at most.
                let late = (decide_late(mine, theirs), decide_late(theirs, mine));
                assert!(late.0 != late.1 || late.0 == Verdict::Undecided, "{late:?}");
            }
        }
    }
}

fn ledger(cluster: ClusterId, forks: &[(ClusterId, Sealed)]) -> Ledger {
    let identity = Identity { cluster, member: MemberId(1), origin: Origin::Restored };
    let ledger = Ledger { generation: 1, ..Ledger::default().with(State::Started(identity)) };
    forks.iter().fold(ledger, |ledger, (rival, sealed)| ledger.with_fork(Fork { rival: *rival, sealed: *sealed }))
}

fn report(ledger: &Ledger) -> Report {
    Report { newest: ledger.newest(), cluster: ledger.cluster(), forks: Some(ledger.forks.clone()) }
}

fn lost(to: ClusterId) -> Option<Told> {
    Some(Told::Newer(Generation { number: 1, cluster: Some(to) }))
}

#[test]
fn a_ledger_stops_by_what_members_of_the_other_cluster_report() {
    let own = ledger(LOW, &[(HIGH, Sealed::Unwritten)]);
    assert_eq!(heed(&own, [report(&ledger(HIGH, &[]))]), None, "not recorded there yet");
    let written = report(&ledger(HIGH, &[(LOW, Sealed::Written)]));
    assert_eq!(heed(&own, [report(&ledger(HIGH, &[])), written.clone()]), lost(HIGH), "one of its members has it");
    assert_eq!(heed(&ledger(LOW, &[]), [written.clone()]), None, "not recorded here yet");
    assert_eq!(heed(&ledger(LOW, &[]), [written.clone(), report(&own)]), lost(HIGH), "another own member has it");
    // A third node repeats what it heard, and has no facts of that cluster.
    let third = Report { cluster: None, ..written.clone() };
    assert_eq!(heed(&own, [third]), None);
    // One that an earlier release runs on beside one of this release changes nothing; alone, it makes ids decide.
    let earlier = Report { forks: None, ..report(&ledger(HIGH, &[])) };
    assert_eq!(heed(&own, [earlier.clone(), written]), lost(HIGH));
    assert_eq!(heed(&own, [earlier]), None, "the lower id wins");
}

#[test]
fn a_member_follows_the_verdict_of_its_own_cluster() {
    let own = ledger(LOW, &[]);
    let stopped = own.outdated_by(Generation { number: 1, cluster: Some(HIGH) });
    assert!(stopped.is_outdated());
    assert_eq!(heed(&own, [report(&stopped)]), lost(HIGH));
    let earlier = Report { forks: None, ..report(&stopped) };
    assert_eq!(heed(&own, [earlier]), None, "an earlier release compares ids alone");
    // The winner hears nothing of another cluster any more.
    assert_eq!(heed(&ledger(HIGH, &[]), [report(&stopped)]), None);
}

#[test]
fn what_was_recorded_once_stays() {
    let once = ledger(LOW, &[(HIGH, Sealed::Unwritten), (HIGH, Sealed::Written), (CLAIMED, Sealed::Written)]);
    assert_eq!(sealed_against(&once.forks, HIGH), Some(Sealed::Unwritten));
    assert_eq!(Ledger::decode(&once.encode()), Ok(once.clone()));
    assert_eq!(once.reset().forks, [], "another cluster records for itself");
}

#[test]
fn a_generation_that_turns_out_to_be_its_own_is_not_lost_by_number() {
    let own = Ledger { generation: 0, ..ledger(LOW, &[]) };
    let heard = own.outdated_by(Generation { number: 1, cluster: Some(HIGH) });
    assert!(heard.is_outdated());
    assert!(!heard.of_generation(1).is_outdated(), "facts decide, once it is known which cluster it is of");
}

/// A node of the winner is reset, and joins the loser. It stops like every other member of the loser.
#[test]
fn a_cluster_that_was_left_by_a_reset_is_a_rival() {
    let winner = ledger(CLAIMED, &[]);
    let joins = |left: Ledger| {
        let add = PendingAdd { cluster: LOW, member: None, peer_urls: Vec::new(), replaces: None, generation: 1 };
        let identity = Identity { cluster: LOW, member: MemberId(2), origin: Origin::Joined };
        left.with(State::PendingAdd(add)).with(State::Started(identity))
    };
    let joined = joins(winner.reset());
    assert_eq!((joined.generation, joined.ancestors()), (1, vec![CLAIMED]), "its backups may still be its own");
    let report = report(&winner);
    assert!(joined.is_rival(report.newest));
    assert_eq!(Forks::of(&joined, std::slice::from_ref(&report)).rivals.len(), 1);
    assert_eq!(heed(&joined, [report.clone()]), lost(CLAIMED));
    assert!(joined.outdated_by(report.newest).is_outdated());
    // What the cluster that was left descends from is not the past of the joined one either.
    let restored = Ledger { was: vec![HIGH], ..winner.clone() }.reset();
    assert_eq!((restored.was.len(), restored.left), (0, vec![HIGH, CLAIMED]));
    // An automatic restore of the only member makes another cluster of the same generation, which has a past.
    let identity = Identity { cluster: LOW, member: MemberId(1), origin: Origin::Restored };
    let restored = winner.with(State::Started(identity));
    assert!(!restored.is_rival(report.newest));
    assert_eq!(heed(&restored, [report]), None);
}
