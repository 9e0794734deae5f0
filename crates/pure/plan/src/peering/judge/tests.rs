//! Records that are acted on, and those that are not: unsigned, of strangers, old, and with more than members.

use super::*;
use crate::peering::Step;

const HEAD: &str = "token: t\ntls: {dir: /pki}\nmembers:\n";

fn text(names: &[u8], tail: &str) -> String {
    let members: String =
        names.iter().map(|n| format!("  - {{name: n{n}, address: 10.0.0.{n}, data-dir: /d}}\n")).collect();
    format!("{HEAD}{members}{tail}")
}

fn spec(names: &[u8], tail: &str) -> Spec {
    Spec::parse(text(names, tail).as_bytes(), "c.yaml").unwrap().0
}

fn record(new: &Spec, text: String, serial: u64, earlier: &[&Spec]) -> FileRecord {
    let signatures = vec![Signature { certificate: "c".to_owned(), signature: "s".to_owned() }];
    let earlier = earlier.iter().map(|spec| spec.hash()).collect();
    FileRecord { hash: new.hash(), text, earlier, serial, pins: BTreeMap::new(), signatures }
}

fn by(names: &[&str]) -> Signers {
    Signers { names: names.iter().map(|name| (*name).to_owned()).collect(), unfit: Vec::new() }
}

const PROCESSES: &str = "processes: {x: {executable: /bin/sh}}\n";

#[test]
fn a_file_is_followed_only_if_a_declared_server_signed_it_and_members_alone_differ() {
    let (one, two) = (spec(&[1, 2], ""), spec(&[1, 2, 3], ""));
    let reader = Reader { own: &one, serial: 4 };
    let next = record(&two, text(&[1, 2, 3], ""), 5, &[&one]);
    let judged =
        |record: &FileRecord, new: &Spec, signers: &Signers| judge_file(record, Some(new), Some(signers), reader);
    assert_eq!(judged(&next, &two, &by(&["n1"])), FileState::Follow);
    for stranger in [&["n3"][..], &["n9"], &[]] {
        let state = judged(&next, &two, &by(stranger));
        assert!(matches!(state, FileState::Refused(Unfit::Stranger(_))) && !state.is_valid(), "{stranger:?}");
    }
    let unsigned = FileRecord { signatures: Vec::new(), ..next.clone() };
    assert_eq!(judged(&unsigned, &two, &by(&[])), FileState::Refused(Unfit::Unsigned));
    let same = FileRecord { signatures: Vec::new(), ..record(&one, text(&[1, 2], ""), 0, &[]) };
    assert_eq!(judged(&same, &one, &by(&[])), FileState::Unproven(Unfit::Unsigned), "a server signs what it holds");
    let runs = spec(&[1, 2, 3], PROCESSES);
    let bad = record(&runs, text(&[1, 2, 3], PROCESSES), 5, &[&one]);
    let state = judged(&bad, &runs, &by(&["n1", "n2"]));
    assert!(matches!(&state, FileState::Refused(Unfit::Other(other)) if other.keys == ["processes"]), "{state:?}");
    let lies = FileRecord { hash: two.hash(), ..bad };
    assert_eq!(judged(&lies, &runs, &by(&["n1"])), FileState::Refused(Unfit::Content));
    assert_eq!(judge_file(&next, None, Some(&by(&["n1"])), reader), FileState::Refused(Unfit::Content));
}

#[test]
fn an_old_file_that_is_put_back_is_not_followed() {
    let (one, two) = (spec(&[1, 2], ""), spec(&[1, 2, 3], ""));
    let old = record(&two, text(&[1, 2, 3], ""), 5, &[&one]);
    let state = |serial| judge_file(&old, Some(&two), Some(&by(&["n1"])), Reader { own: &one, serial });
    assert_eq!(state(4), FileState::Follow);
    assert_eq!(state(5), FileState::Other, "the same serial is not newer");
    assert_eq!(state(6), FileState::Refused(Unfit::Older(5, 6)), "n3 left since, with the file from before");
    let far = FileRecord { serial: u64::MAX, ..old.clone() };
    let reader = Reader { own: &one, serial: 4 };
    assert_eq!(
        judge_file(&far, Some(&two), Some(&by(&["n1"])), reader),
        FileState::Refused(Unfit::Serial(u64::MAX, 4))
    );
}

#[test]
fn a_fourth_server_needs_the_word_of_two() {
    let (three, four) = (spec(&[1, 2, 3], ""), spec(&[1, 2, 3, 4], ""));
    let next = record(&four, text(&[1, 2, 3, 4], ""), 1, &[&three]);
    let reader = Reader { own: &three, serial: 0 };
    let judged = |signers: &Signers| judge_file(&next, Some(&four), Some(signers), reader);
    assert_eq!(judged(&by(&["n1", "n4"])), FileState::Refused(Unfit::Uncountersigned(vec!["`n4`".to_owned()])));
    assert_eq!(judged(&by(&["n1", "n2"])), FileState::Follow);
    // Nobody is added.
    let less = spec(&[1, 2], "");
    let leaves = record(&less, text(&[1, 2], ""), 1, &[&three]);
    assert_eq!(judge_file(&leaves, Some(&less), Some(&by(&["n1"])), reader), FileState::Follow);
    let newcomer = |n: u8| Newcomer { name: format!("n{n}"), address: format!("10.0.0.{n}"), data_dir: "/d".into() };
    assert!(needs_approval(&three, &Kind::Join(newcomer(4))) && needs_approval(&three, &Kind::ToServer(newcomer(4))));
    assert!(!needs_approval(&three, &Kind::Enrol(newcomer(4))) && !needs_approval(&less, &Kind::Join(newcomer(4))));
    let signatures = next.signatures;
    let approval = Approval { operation: "x".into(), node: newcomer(4), serial: 7, signatures };
    let member = four.member("n4").unwrap();
    assert!(approves(&approval, member));
    let elsewhere = Newcomer { address: "10.0.0.44".into(), ..newcomer(4) };
    assert!(!approves(&Approval { node: elsewhere, ..approval.clone() }, member));
    assert!(!approves(&approval, four.member("n3").unwrap()));
    let judge = |signers: &[&str], held| judge_approval(&approval, &by(signers), &three, "n1", held);
    assert_eq!(judge(&["n2"], 6), Ok("n2".to_owned()));
    assert!(matches!(judge(&["n1"], 6), Err(Unfit::Stranger(_))), "the carrier is no second server");
    assert!(matches!(judge(&["n4"], 6), Err(Unfit::Stranger(_))));
    assert_eq!(judge(&["n2"], 7), Err(Unfit::Older(7, 7)), "of a change that is over");
}

#[test]
fn a_claim_is_of_the_server_that_signed_it_and_of_no_earlier_change() {
    let own = spec(&[1, 2, 3], "");
    let operation = Operation {
        id: "x".to_owned(),
        kind: Kind::Detach { name: "n3".to_owned() },
        text: text(&[1, 2], ""),
        before: own.hash(),
        earlier: Vec::new(),
        taken: false,
        also: Vec::new(),
        at_ms: 1,
        deadline_ms: 2,
        step: Step::Given,
    };
    let signatures = record(&own, String::new(), 0, &[]).signatures;
    let claimed = Claimed { by: "n1".to_owned(), from: None, operation, serial: 5, signatures };
    let reader = Reader { own: &own, serial: 4 };
    let judged = |claimed: &Claimed, signers: &[&str], file| judge_claim(claimed, Some(&by(signers)), reader, file);
    assert_eq!(judged(&claimed, &["n1"], Some(4)), Ok(()));
    assert_eq!(judged(&claimed, &["n1"], Some(5)), Err(Unfit::Older(5, 5)), "it is over");
    assert!(matches!(judged(&claimed, &["n2"], None), Err(Unfit::Stranger(_))));
    assert!(matches!(judged(&claimed, &["n9"], None), Err(Unfit::Stranger(_))));
    let unsigned = Claimed { signatures: Vec::new(), ..claimed.clone() };
    assert_eq!(judged(&unsigned, &[], None), Err(Unfit::Unsigned));
    assert_eq!(judge_claim(&unsigned, None, reader, None), Ok(()), "in clear text nothing is signed");
    let operation = &claimed.operation;
    assert_eq!(judge_operation(operation, &spec(&[1, 2], ""), &own), Ok(()));
    assert_eq!(judge_operation(operation, &own, &own), Ok(()));
    assert!(judge_operation(operation, &spec(&[1], ""), &own).is_err(), "it takes another one out as well");
    assert!(judge_operation(operation, &spec(&[1, 2], PROCESSES), &own).is_err());
    let discharge = Operation { kind: Kind::Discharge { name: "n3".to_owned() }, ..operation.clone() };
    assert!(judge_operation(&discharge, &spec(&[1, 2], ""), &own).is_err(), "a client is in no file");
}
