//! What comes of surveys: the furthest survivor, the backup, or nothing.

use super::*;
use crate::change::tests::{id, spec};

fn survivor(number: u64, index: u64, revision: u64) -> Survivor {
    Survivor {
        generation: 0,
        newest: 0,
        cluster: ClusterId(0xc1),
        member: id(number),
        verdict: Verdict::Valid,
        serves: false,
        term: 3,
        index,
        revision: Some(revision),
        hash: Some((7, 90)),
        voters: (1..4).map(|number| (id(number), format!("n{number}"))).collect(),
        saw: BTreeMap::new(),
    }
}

fn row(number: u64, seen: RowSeen) -> SurveyRow {
    SurveyRow { node: format!("n{number}"), seen, serves: false }
}

fn holds(survivor: Survivor) -> RowSeen {
    RowSeen::Holds(Box::new(survivor))
}

fn silent(number: u64) -> SurveyRow {
    row(number, RowSeen::Silent("no answer".to_owned()))
}

fn recovery(rows: &[SurveyRow], store: &StoreNewest, dead: &[&str]) -> Recovery {
    recovery_over(rows, store, dead, &[])
}

fn recovery_over(rows: &[SurveyRow], store: &StoreNewest, dead: &[&str], passed_over: &[&str]) -> Recovery {
    let [dead, passed_over] =
        [dead, passed_over].map(|names| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let said = Said { fenced: &dead, passed_over: &passed_over, ..Said::default() };
    plan_recovery(&spec(&[1, 2, 3], ""), rows, store, Evidence::default(), said)
}

fn code(recovery: &Recovery) -> Option<Code> {
    recovery.halt.as_ref().map(|halt| halt.halt.code)
}

#[test]
fn a_cluster_is_recovered_from_the_furthest_survivor() {
    let rows = [silent(1), row(2, holds(survivor(2, 120, 100))), silent(3)];
    let asked = recovery(&rows, &StoreNewest::NotDeclared, &["n1"]);
    assert_eq!((code(&asked), asked.unconfirmed.as_slice()), (Some(Code::RecoverUnconfirmed), &["n3".to_owned()][..]));
    let plan = recovery(&rows, &StoreNewest::NotDeclared, &["n1", "n3"]);
    insta::assert_snapshot!(plan.render(), @"
    generation 1 is made of what `n2` holds, revision 100
      may be lost: what only dead members acknowledged after entry 120 of term 3; nobody here saw them further
      1. n2: stop etcd, and write down that generation 1 is being made here
      2. n2: start etcd alone on a copy of the data, so that the whole log is applied
      3. n2: make the data of a new cluster of it, with bumped and compacted revisions
      4. n2: write generation 1 into the ledger, rename the old data, put the new in its place
      5. n2: start etcd, as the only member
    ");
}

#[test]
fn what_the_dead_were_seen_to_have_is_said() {
    let mut best = survivor(2, 120, 100);
    best.saw.insert(id(3), 125);
    let plan = recovery(&[silent(1), row(2, holds(best)), silent(3)], &StoreNewest::Empty, &["n1", "n3"]);
    assert_eq!(plan.loses, ["up to 5 entries of the log: `n3` was seen at 125, and `n2` ends at 120"]);
}

#[test]
fn nothing_is_recovered_while_a_quorum_is_there_or_could_be() {
    let mut serves = survivor(2, 120, 100);
    serves.serves = true;
    let rows = [silent(1), row(2, holds(serves)), silent(3)];
    assert_eq!(code(&recovery(&rows, &StoreNewest::Empty, &["n1", "n3"])), Some(Code::RecoverQuorum));
    // Whatever is known of its data, and whatever the operator says of it.
    let damaged = RowSeen::Damaged { generation: 0, why: "it is spoilt".to_owned() };
    for seen in [RowSeen::Unknown("no permission".to_owned()), RowSeen::Blank { generation: 0 }, damaged] {
        let serves = SurveyRow { serves: true, ..row(3, seen) };
        let rows = [row(1, holds(survivor(1, 120, 100))), silent(2), serves];
        let passed_over = recovery_over(&rows, &StoreNewest::Empty, &["n2"], &["n3"]);
        assert_eq!(code(&passed_over), Some(Code::RecoverQuorum));
    }
    let rows = [row(1, holds(survivor(1, 119, 99))), row(2, holds(survivor(2, 120, 100))), silent(3)];
    assert_eq!(code(&recovery(&rows, &StoreNewest::Empty, &["n3"])), Some(Code::RecoverQuorum));
    // One of the two is damaged: together they are none.
    let mut damaged = survivor(1, 200, 180);
    damaged.verdict = Verdict::Corrupt("page 7".to_owned());
    let rows = [row(1, holds(damaged)), row(2, holds(survivor(2, 120, 100))), silent(3)];
    let plan = recovery(&rows, &StoreNewest::Empty, &["n3"]);
    assert_eq!(plan.source, Some(Source::Survivor { node: "n2".to_owned(), revision: Some(100) }));
    assert_eq!(plan.steps.last(), Some(&RecoverStep::Rejoin { node: "n1".to_owned() }));
}

#[test]
fn who_answers_is_not_dead_and_who_nobody_knows_is_not_named() {
    let rows = [row(1, RowSeen::Blank { generation: 0 }), row(2, holds(survivor(2, 120, 100))), silent(3)];
    assert_eq!(code(&recovery(&rows, &StoreNewest::Empty, &["n1", "n3"])), Some(Code::RecoverAlive));
    assert_eq!(code(&recovery(&rows, &StoreNewest::Empty, &["n3", "n9"])), Some(Code::RecoverAlive));
    assert_eq!(code(&recovery(&rows, &StoreNewest::Empty, &["n3"])), None);
}

#[test]
fn the_backup_is_taken_where_it_is_newer_and_ours() {
    let rows = [silent(1), row(2, holds(survivor(2, 120, 100))), silent(3)];
    let newest = |cluster, revision| StoreNewest::Newest { cluster, revision, epoch: 1 };
    let source = |store| recovery(&rows, &store, &["n1", "n3"]).source.map(|source| source.to_string());
    let backup = Some("the backup, revision 130, on `n2`".to_owned());
    assert_eq!(source(newest(Some(ClusterId(0xc1)), 130)), backup);
    assert_eq!(source(newest(None, 130)), backup);
    let survivor = Some("what `n2` holds, revision 100".to_owned());
    assert_eq!(source(newest(Some(ClusterId(0xc1)), 100)), survivor);
    assert_eq!(source(newest(Some(ClusterId(0xbad)), 130)), survivor);
    assert_eq!(source(StoreNewest::Unknown("time-out".to_owned())), None);
    let blank = [silent(1), row(2, RowSeen::Blank { generation: 4 }), silent(3)];
    let plan = recovery(&blank, &newest(None, 130), &["n1", "n3"]);
    assert_eq!((plan.generation, plan.source.map(|source| source.to_string())), (5, backup));
    assert_eq!(code(&recovery(&blank, &StoreNewest::Empty, &["n1", "n3"])), Some(Code::RecoverNothing));
}

#[test]
fn a_backup_is_never_taken_against_what_is_not_known() {
    // Its etcd runs without a quorum, and its database could not be read either.
    let mut unknown = survivor(2, 120, 0);
    (unknown.revision, unknown.hash) = (None, None);
    let rows = [silent(1), row(2, holds(unknown)), silent(3)];
    let newest = StoreNewest::Newest { cluster: Some(ClusterId(0xc1)), revision: 130, epoch: 1 };
    let plan = recovery(&rows, &newest, &["n1", "n3"]);
    assert_eq!((code(&plan), plan.source), (None, Some(Source::Survivor { node: "n2".to_owned(), revision: None })));
}

#[test]
fn what_cannot_be_looked_at_is_not_taken_for_nothing() {
    let hidden = || row(1, RowSeen::Unknown("input/output error".to_owned()));
    let rows = [hidden(), row(2, holds(survivor(2, 120, 100))), silent(3)];
    let plan = recovery(&rows, &StoreNewest::Empty, &["n3"]);
    assert_eq!((code(&plan), &plan.source), (Some(Code::RecoverUnknown), &None));
    assert!(plan.halt.unwrap().halt.way_out.contains("--pass-over n1"));
    // Neither dead, nor the place where a backup goes to, nor one that joins.
    assert_eq!(code(&recovery(&rows, &StoreNewest::Empty, &["n1", "n3"])), Some(Code::RecoverAlive));
    let plan = recovery_over(&rows, &StoreNewest::Empty, &["n3"], &["n1"]);
    assert_eq!(code(&plan), None);
    assert!(plan.loses.iter().any(|said| said.contains("`n1` holds: it could not be looked at")), "{:?}", plan.loses);
    assert!(!plan.steps.contains(&RecoverStep::Rejoin { node: "n1".to_owned() }));
    let newest = StoreNewest::Newest { cluster: None, revision: 130, epoch: 1 };
    let blank = [hidden(), row(2, RowSeen::Blank { generation: 0 }), silent(3)];
    let plan = recovery_over(&blank, &newest, &["n3"], &["n1"]);
    assert_eq!(plan.source, Some(Source::Backup { node: "n2".to_owned(), revision: 130 }));
    // Who can be looked at is not passed over.
    assert_eq!(code(&recovery_over(&rows, &StoreNewest::Empty, &["n3"], &["n1", "n2"])), Some(Code::RecoverUnknown));
}

#[test]
fn what_is_damaged_is_named_and_joins_anew() {
    let damaged = RowSeen::Damaged { generation: 3, why: "page 7 is torn".to_owned() };
    let rows = [row(1, damaged), row(2, holds(survivor(2, 120, 100))), silent(3)];
    let plan = recovery(&rows, &StoreNewest::Empty, &["n3"]);
    assert_eq!((code(&plan), plan.generation), (None, 4), "its ledger counts");
    assert!(plan.loses.iter().any(|said| said.contains("`n1` holds: its data is damaged (page 7 is torn)")));
    assert_eq!(plan.steps.last(), Some(&RecoverStep::Rejoin { node: "n1".to_owned() }));
}

/// The cluster was recovered without them, and what was recovered is lost: they start no more by themselves.
#[test]
fn those_who_have_heard_of_a_newer_generation_are_no_quorum_and_count_on_from_it() {
    let heard = |number, index| Survivor { newest: 1, ..survivor(number, index, 100) };
    let rows = [row(1, holds(heard(1, 119))), row(2, holds(heard(2, 120))), silent(3)];
    assert_eq!(code(&recovery(&rows, &StoreNewest::Empty, &[])), Some(Code::RecoverUnconfirmed));
    let plan = recovery(&rows, &StoreNewest::Empty, &["n3"]);
    assert_eq!((code(&plan), plan.generation), (None, 2));
    assert_eq!(plan.source, Some(Source::Survivor { node: "n2".to_owned(), revision: Some(100) }));
    let lost = "what was written to generation 1, whose data nobody here holds";
    assert!(plan.loses.iter().any(|said| said == lost), "{:?}", plan.loses);
}

#[test]
fn a_quorum_of_the_declared_is_one_where_nobody_knows_the_voters() {
    let blind = |number, index| Survivor { voters: BTreeMap::new(), ..survivor(number, index, 100) };
    let rows = [row(1, holds(blind(1, 119))), row(2, holds(blind(2, 120))), silent(3)];
    assert_eq!(code(&recovery(&rows, &StoreNewest::Empty, &["n3"])), Some(Code::RecoverQuorum));
}

#[test]
fn survivors_that_differ_at_one_revision_are_named() {
    let mut other = survivor(1, 110, 95);
    (other.hash, other.generation) = (Some((8, 90)), 0);
    let mut best = survivor(2, 120, 100);
    best.voters.extend([(id(4), "n4".to_owned()), (id(5), "n5".to_owned())]);
    let rows = [row(1, holds(other)), row(2, holds(best)), silent(3)];
    let plan = recovery(&rows, &StoreNewest::Empty, &["n3", "n4", "n5"]);
    assert!(plan.loses.iter().any(|said| said.contains("`n1` and `n2` differ at revision 90")), "{:?}", plan.loses);
}

#[test]
fn silence_needs_a_fence_and_an_answer_outweighs_it() {
    let rows = [silent(1), row(2, holds(survivor(2, 120, 100))), silent(3)];
    let both = ["n1".to_owned(), "n3".to_owned()];
    let plan = |said: Said<'_>, evidence: Evidence<'_>| {
        plan_recovery(&spec(&[1, 2, 3], ""), &rows, &StoreNewest::NotDeclared, evidence, said)
    };
    let called_dead = Said { dead: &both, ..Said::default() };
    let fenced = Said { fenced: &both, ..Said::default() };
    let refused = plan(called_dead, Evidence::default()).halt.unwrap().halt;
    assert_eq!(refused.code, Code::RecoverUnfenced);
    assert!(refused.way_out.contains("--fenced n1 --fenced n3"), "{}", refused.way_out);
    let half = Said { dead: &both, fenced: &both[..1], ..Said::default() };
    let refused = plan(half, Evidence::default()).halt.unwrap().halt;
    assert!(refused.code == Code::RecoverUnfenced && refused.way_out.ends_with("`--fenced n3`"), "{}", refused.way_out);
    assert_eq!(code(&plan(fenced, Evidence::default())), None);
    let probe = |reply| [Probe { from: "n2".to_owned(), member: "n3".to_owned(), reply }];
    let silence = probe(Reply::Silent);
    assert_eq!(code(&plan(fenced, Evidence { probes: &silence, ..Evidence::default() })), None);
    let answer = probe(Reply::Answered { url: "https://n3:2379".to_owned() });
    let refused = plan(fenced, Evidence { probes: &answer, ..Evidence::default() });
    assert_eq!((code(&refused), &refused.steps), (Some(Code::RecoverMemberAnswers), &Vec::new()));
    let until = || "2026-11-18T01:00:20Z".to_owned();
    let grew = [("n2".to_owned(), StoreWatch::Grew { from: 100, to: 103, until: until(), taken_over: false })];
    assert_eq!(code(&plan(fenced, Evidence { watches: &grew, ..Evidence::default() })), Some(Code::RecoverStoreGrows));
    let quiet = [("n2".to_owned(), StoreWatch::Quiet { since: until(), until: Some(until()) })];
    let refused = plan(called_dead, Evidence { watches: &quiet, ..Evidence::default() }).halt.unwrap().halt;
    assert!(refused.code == Code::RecoverUnfenced && refused.why.contains("watches the store"), "{}", refused.why);
}

#[test]
fn the_audit_wants_every_absent_member_fenced_and_silent() {
    use crate::check::{RecoveryParts, check_recovery};
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
    let (members, joins, fenced) = (list(&["n1", "n2", "n3"]), list(&["n2"]), list(&["n3"]));
    let answer = [Probe {
        from: "n1".to_owned(),
        member: "n3".to_owned(),
        reply: Reply::Answered { url: "http://n3".to_owned() },
    }];
    let parts = RecoveryParts {
        begins: "n1",
        members: &members,
        joins: &joins,
        passed_over: &[],
        fenced: &fenced,
        evidence: Evidence::default(),
    };
    assert_eq!(check_recovery(&parts), Ok(()));
    assert!(check_recovery(&RecoveryParts { fenced: &[], ..parts }).is_err());
    assert!(check_recovery(&RecoveryParts { joins: &[], ..parts }).is_err());
    let evidence = Evidence { probes: &answer, ..Evidence::default() };
    assert!(check_recovery(&RecoveryParts { evidence, ..parts }).is_err());
}

#[test]
fn what_waits_in_spools_is_uploaded_first_or_named() {
    let rows = [silent(1), row(2, RowSeen::Blank { generation: 0 }), silent(3)];
    let dead = ["n1".to_owned(), "n3".to_owned()];
    let part = |first, last, epoch| SpoolPart { first, last, epoch, cluster: 0xc1 };
    let spools = |parts: &[SpoolPart]| vec![SpoolSeen { node: "n2".to_owned(), parts: parts.to_vec(), unread: None }];
    let store = StoreNewest::Newest { cluster: None, revision: 130, epoch: 2 };
    let plan = |rows: &[SurveyRow], spools: &[SpoolSeen]| {
        let evidence = Evidence { spools, ..Evidence::default() };
        plan_recovery(&spec(&[1, 2, 3], ""), rows, &store, evidence, Said { fenced: &dead, ..Said::default() })
    };
    let whole = plan(&rows, &spools(&[part(141, 150, 2), part(125, 140, 2), part(100, 120, 2)]));
    assert_eq!(whole.source, Some(Source::Backup { node: "n2".to_owned(), revision: 150 }));
    assert_eq!(whole.steps[1], RecoverStep::Upload { node: "n2".to_owned(), first: 141, last: 150 });
    assert_eq!(whole.loses, ["everything after revision 150, the newest of the backup"]);
    // A gap, and a writer that another one took over from.
    for unused in [part(135, 150, 2), part(131, 150, 1)] {
        let short = plan(&rows, &spools(&[unused]));
        assert_eq!(short.source, Some(Source::Backup { node: "n2".to_owned(), revision: 130 }));
        assert!(short.loses.iter().any(|line| line.contains("to 150, which wait in the spool of `n2`")), "{short:?}");
    }
    // With its spool the backup reaches further than the survivor does.
    let survives = [silent(1), row(2, holds(survivor(2, 120, 140))), silent(3)];
    assert!(matches!(plan(&survives, &[]).source, Some(Source::Survivor { .. })));
    let more = plan(&survives, &spools(&[part(131, 150, 2)]));
    assert!(matches!(more.source, Some(Source::Backup { revision: 150, .. })), "{more:?}");
    let unread = [SpoolSeen { node: "n2".to_owned(), parts: Vec::new(), unread: Some("no access".to_owned()) }];
    assert!(plan(&survives, &unread).loses.iter().any(|line| line.contains("cannot be read (no access)")));
}

#[test]
fn a_point_is_recovered_from_the_backup_also_while_a_quorum_serves() {
    let mut serves = survivor(2, 120, 140);
    serves.serves = true;
    let rows = [row(1, holds(survivor(1, 120, 140))), row(2, holds(serves)), silent(3)];
    let store = StoreNewest::Newest { cluster: Some(ClusterId(0xc1)), revision: 90, epoch: 1 };
    let fenced = ["n3".to_owned()];
    let plan = |fenced: &[String]| {
        let said = Said { fenced, point: Some(Point::Revision(90)), ..Said::default() };
        plan_recovery(&spec(&[1, 2, 3], ""), &rows, &store, Evidence::default(), said)
    };
    let whole = plan(&fenced);
    assert_eq!((code(&whole), whole.generation), (None, 1));
    assert_eq!(whole.source, Some(Source::Backup { node: "n1".to_owned(), revision: 90 }));
    assert_eq!(whole.loses, ["every write after revision 90, also what nodes and newer backups hold"]);
    assert_eq!(whole.steps.last(), Some(&RecoverStep::Rejoin { node: "n2".to_owned() }));
    assert_eq!(code(&plan(&[])), Some(Code::RecoverUnconfirmed), "who is silent is fenced here too");
}

#[test]
fn a_generation_that_was_claimed_elsewhere_is_neither_made_again_nor_passed() {
    let rows = [silent(1), row(2, holds(survivor(2, 120, 100))), silent(3)];
    let fenced = ["n1".to_owned(), "n3".to_owned()];
    let claim = |node: &str| {
        let (node, at) = (node.to_owned(), "today".to_owned());
        [ClaimSeen { generation: 1, node, at, cluster: None }]
    };
    let plan = |claims: &[ClaimSeen], without_store| {
        let said = Said { fenced: &fenced, without_store, ..Said::default() };
        let evidence = Evidence { claims, ..Evidence::default() };
        plan_recovery(&spec(&[1, 2, 3], ""), &rows, &StoreNewest::Empty, evidence, said)
    };
    assert_eq!(code(&plan(&claim("n1"), false)), Some(Code::GenerationClaimed));
    // What a node that answers has claimed, and knows nothing of, was given up: the next number is taken.
    let next = plan(&claim("n2"), false);
    assert_eq!((code(&next), next.generation), (None, 2));
    let beside = plan(&claim("n1"), true);
    assert_eq!((code(&beside), beside.generation), (None, 1));
}

/// A recovery uploaded a spool, and was refused or cut off after that. The same command is run again.
#[test]
fn a_store_that_grew_by_what_survivors_hold_or_uploaded_is_no_sign_of_a_quorum() {
    let fenced = ["n1".to_owned(), "n3".to_owned()];
    let store = StoreNewest::Newest { cluster: None, revision: 150, epoch: 1 };
    let grew = |from, to, taken_over| {
        [("n2".to_owned(), StoreWatch::Grew { from, to, until: "2026-11-18T01:00:20Z".to_owned(), taken_over })]
    };
    let plan = |seen: RowSeen, watches: &[(String, StoreWatch)], evidence: Evidence<'_>| {
        let rows = [silent(1), row(2, seen), silent(3)];
        let said = Said { fenced: &fenced, ..Said::default() };
        plan_recovery(&spec(&[1, 2, 3], ""), &rows, &store, Evidence { watches, ..evidence }, said)
    };
    let blank = || RowSeen::Blank { generation: 0 };
    let none = Evidence::default();
    let uploaded = Evidence { uploaded: 150, ..none };
    let again = plan(blank(), &grew(130, 150, false), uploaded);
    assert_eq!((code(&again), again.held), (None, 150));
    // Nothing that answers has it; or it has less; or another writer took over.
    for (watch, evidence) in [
        (grew(130, 150, false), none),
        (grew(130, 151, false), uploaded),
        (grew(130, 150, true), uploaded),
        (grew(150, 150, false), uploaded),
    ] {
        assert_eq!(code(&plan(blank(), &watch, evidence)), Some(Code::RecoverStoreGrows), "{watch:?}");
    }
    let parts = vec![SpoolPart { first: 131, last: 150, epoch: 1, cluster: 0xc1 }];
    let spools = [SpoolSeen { node: "n2".to_owned(), parts, unread: None }];
    assert_eq!(code(&plan(blank(), &grew(130, 150, false), Evidence { spools: &spools, ..none })), None);
    assert_eq!(code(&plan(holds(survivor(2, 120, 150)), &grew(130, 150, false), none)), None);
    // What an earlier generation holds says nothing about a later one.
    let later = Survivor { generation: 1, newest: 1, ..survivor(2, 120, 100) };
    let rows = [row(1, holds(survivor(1, 119, 150))), row(2, holds(later)), silent(3)];
    let watches = grew(130, 150, false);
    let said = Said { fenced: &fenced[1..], ..Said::default() };
    let plan = plan_recovery(&spec(&[1, 2, 3], ""), &rows, &store, Evidence { watches: &watches, ..none }, said);
    assert_eq!((code(&plan), plan.held), (Some(Code::RecoverStoreGrows), 100));
}

/// No delta was uploaded for an hour, and what was written a minute ago is to be undone.
#[test]
fn what_waits_in_spools_is_uploaded_first_or_named_also_for_a_point() {
    let blank = row(3, RowSeen::Blank { generation: 0 });
    let rows = [row(1, holds(survivor(1, 120, 160))), row(2, holds(survivor(2, 120, 160))), blank];
    let store = |revision| StoreNewest::Newest { cluster: Some(ClusterId(0xc1)), revision, epoch: 1 };
    let part = |first, last| SpoolPart { first, last, epoch: 1, cluster: 0xc1 };
    let plan = |point, store: &StoreNewest, parts: &[SpoolPart]| {
        let spools = [SpoolSeen { node: "n2".to_owned(), parts: parts.to_vec(), unread: None }];
        let evidence = Evidence { spools: &spools, newest: Some(130), ..Evidence::default() };
        let said = Said { point: Some(point), ..Said::default() };
        plan_recovery(&spec(&[1, 2, 3], ""), &rows, store, evidence, said)
    };
    let upload = RecoverStep::Upload { node: "n2".to_owned(), first: 131, last: 150 };
    let from = |plan: &Recovery| plan.source.as_ref().map(ToString::to_string);
    let backup = |revision: u64| Some(format!("the backup, revision {revision}, on `n1`"));
    // The time is after the end of the store: what waits may be of it.
    let late = plan(Point::Time(5), &store(130), &[part(131, 150), part(155, 160)]);
    assert_eq!((code(&late), from(&late), &late.steps[0]), (None, backup(150), &upload));
    assert_eq!(late.loses.len(), 2, "{:?}", late.loses);
    assert!(late.loses[1].contains("revisions 155 to 160, which wait in the spool of `n2`"), "{:?}", late.loses);
    // It is before that.
    let early = plan(Point::Time(5), &store(90), &[part(131, 150)]);
    assert_eq!((from(&early), &early.steps[0], early.loses.len()), (backup(90), &upload, 1));
    let revision = plan(Point::Revision(140), &store(130), &[part(131, 150)]);
    assert_eq!((code(&revision), from(&revision), &revision.steps[0]), (None, backup(140), &upload));
    let gap = plan(Point::Revision(140), &store(130), &[part(133, 150)]);
    assert_eq!((code(&gap), gap.source), (Some(Code::RecoverNothing), None));
}

/// This side made generation 1 beside the store, while another one claimed it. Now this side is recovered again, with the store.
#[test]
fn a_claim_of_the_same_number_by_another_cluster_is_not_skipped() {
    let (own, other) = (ClusterId(0xc1), ClusterId(0xd1));
    let fenced = ["n1".to_owned(), "n3".to_owned()];
    let plan = |generation,
                cluster: Option<ClusterId>,
                (belongs, left): (&[ClusterId], &[ClusterId]),
                without_store| {
        let rows =
            [silent(1), row(2, holds(Survivor { generation, newest: generation, ..survivor(2, 120, 100) })), silent(3)];
        let claims = [ClaimSeen { generation: 1, node: "n1".to_owned(), at: "today".to_owned(), cluster }];
        let evidence = Evidence { claims: &claims, belongs, left, ..Evidence::default() };
        let said = Said { fenced: &fenced, without_store, ..Said::default() };
        plan_recovery(&spec(&[1, 2, 3], ""), &rows, &StoreNewest::Empty, evidence, said)
    };
    let refused = plan(1, Some(other), (&[own], &[]), false);
    assert_eq!(code(&refused), Some(Code::GenerationClaimed));
    assert!(refused.halt.unwrap().halt.why.contains("`n1` claimed generation 1"));
    // Without the store once more: no node that answers belongs to the claimed cluster.
    assert_eq!(code(&plan(2, Some(other), (&[own], &[]), false)), Some(Code::GenerationClaimed));
    // A node of it that was reset and joined here left one that may still serve.
    assert_eq!(code(&plan(1, Some(other), (&[own], &[other]), false)), Some(Code::GenerationClaimed));
    // Its own claim, one that an earlier release wrote, what it was restored from, and what a later generation came of.
    for (generation, cluster, clusters) in [
        (1, Some(own), (&[own][..], &[][..])),
        (1, None, (&[own], &[])),
        (1, Some(other), (&[own, other], &[])),
        (2, Some(other), (&[own], &[other])),
    ] {
        let next = plan(generation, cluster, clusters, false);
        assert_eq!((code(&next), next.generation), (None, generation + 1), "{cluster:?} {clusters:?}");
    }
    assert_eq!(code(&plan(1, Some(other), (&[own], &[]), true)), None, "the operator does without the store");
}
