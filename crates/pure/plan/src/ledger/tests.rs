//! What is written is read back; what was changed is not.

use proptest::prelude::*;

use super::*;

fn arb_state() -> impl Strategy<Value = State> {
    let ids = (any::<u64>(), any::<u64>());
    (0..6_u8, ids, any::<u64>(), "[ -~]{0,20}").prop_map(|(kind, (cluster, member), number, text)| {
        let (cluster, member) = (ClusterId(cluster), MemberId(member));
        let promise = Promise {
            bootstrap: number,
            declaration: text.clone(),
            cluster,
            member,
            members: vec![text.clone()],
            over: false,
            nonce: (number % 2 == 1).then(|| text.clone()),
            nonces: if number % 4 == 1 { [(text.clone(), text.clone())].into() } else { BTreeMap::new() },
        };
        match kind {
            0 => State::Empty,
            1 => State::Promised(promise),
            2 => State::Inited(promise),
            3 => State::Started(Identity { cluster, member, origin: Origin::Restored }),
            4 => {
                let member = (number % 2 == 0).then_some(member);
                State::PendingAdd(PendingAdd {
                    cluster,
                    member,
                    peer_urls: vec![text],
                    replaces: Some(MemberId(number)),
                    generation: number,
                })
            }
            _ => State::Tombstone(Tombstone { cluster, member, why: text, at_ms: number, undeclared: number % 3 == 0 }),
        }
    })
}

fn arb_ledger() -> impl Strategy<Value = Ledger> {
    (arb_state(), any::<u64>(), proptest::collection::vec(any::<u64>(), 0..3), any::<bool>(), "[a-z]{1,5}").prop_map(
        |(state, generation, consumed, more, name)| {
            let mut ledger = Ledger { state, generation, consumed, ..Ledger::default() };
            if more {
                let member = ConfirmedMember {
                    id: MemberId(generation),
                    name: name.clone(),
                    peer_urls: vec!["http://a:1".into()],
                    learner: true,
                };
                let memory = PeerMemory { started: true, member: Some(MemberId(7)), cluster: None, tombstone: false };
                ledger.peers.insert(name.clone(), memory);
                ledger.confirmed = Some(Confirmed { at_ms: 1, members: vec![member] });
                ledger.spec_hash = Some(name.clone());
                ledger.intent = Some(Intent { kind: IntentKind::Leave, why: name.clone(), at_ms: generation });
                ledger.learner = Some(LearnerSince { member: MemberId(generation), since_ms: 3 });
                ledger.outdated_by = Some(Generation { number: generation, cluster: None });
                ledger.backup = Some(BackupCursor { store: name, epoch: 3, revision: generation });
            }
            ledger
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(ledger in arb_ledger()) {
        prop_assert_eq!(Ledger::decode(&ledger.encode()), Ok(ledger));
    }

    #[test]
    fn a_changed_byte_is_noticed(ledger in arb_ledger(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = ledger.encode();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        prop_assert!(Ledger::decode(&bytes).is_err());
    }

    #[test]
    fn a_ledger_cut_short_is_no_ledger(ledger in arb_ledger(), keep in any::<prop::sample::Index>()) {
        let bytes = ledger.encode();
        prop_assert!(Ledger::decode(&bytes[..keep.index(bytes.len())]).is_err());
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Ledger::decode(&bytes);
    }
}

fn promise() -> Promise {
    Promise {
        bootstrap: 1,
        declaration: "d".into(),
        cluster: ClusterId(0xc1),
        member: MemberId(0xa1),
        members: Vec::new(),
        over: false,
        nonce: None,
        nonces: BTreeMap::new(),
    }
}

#[test]
fn the_file_is_text_that_a_person_can_read() {
    let ledger = Ledger { state: State::Inited(promise()), ..Ledger::default() };
    let text = String::from_utf8(ledger.encode()).unwrap();
    let (head, body) = text.split_once('\n').unwrap();
    assert!(head.starts_with("quorate-ledger 1 sha256:"), "{head}");
    insta::assert_snapshot!(body, @r#"
    {
      "state": {
        "state": "inited",
        "bootstrap": 1,
        "declaration": "d",
        "cluster": "c1",
        "member": "a1"
      },
      "generation": 0
    }
    "#);
}

#[test]
fn a_newer_ledger_is_refused_and_not_taken_for_damage() {
    let text = String::from_utf8(Ledger::default().encode()).unwrap().replacen(" 1 ", " 7 ", 1);
    assert_eq!(Ledger::decode(text.as_bytes()), Err(LedgerError::Newer(7)));
}

#[test]
fn an_earlier_program_reads_what_it_can_understand() {
    let version = |ledger: &Ledger| String::from_utf8(ledger.encode()).unwrap()[..16].to_owned();
    assert_eq!(version(&Ledger::default()), "quorate-ledger 1");
    let intent = Some(Intent { kind: IntentKind::Leave, why: "ops".into(), at_ms: 5 });
    assert_eq!(version(&Ledger { intent, ..Ledger::default() }), "quorate-ledger 2");
    let learner = Some(LearnerSince { member: MemberId(7), since_ms: 5 });
    assert_eq!(version(&Ledger { learner, ..Ledger::default() }), "quorate-ledger 2");
    assert_eq!(version(&Ledger::default().outdated_by(Generation { number: 1, cluster: None })), "quorate-ledger 3");
    let accepted_empty = Some(AcceptedEmpty { mount_point: "/data".into(), at_ms: 5 });
    assert_eq!(version(&Ledger { accepted_empty, ..Ledger::default() }), "quorate-ledger 4");
    let recovered = Some(RecoveredAt { cluster: ClusterId(7), revision: 5 });
    assert_eq!(version(&Ledger { recovered, ..Ledger::default() }), "quorate-ledger 5");
    let left = vec![ClusterId(7)];
    assert_eq!(version(&Ledger { left: left.clone(), ..Ledger::default() }), "quorate-ledger 6");
    assert_eq!(version(&Ledger { was: left, ..Ledger::default() }), "quorate-ledger 1", "as earlier releases reset");
}

#[test]
fn a_newer_generation_is_remembered_until_a_reset() {
    let of = |number| Generation { number, cluster: Some(ClusterId(0xc2)) };
    let ours = Ledger { generation: 2, ..Ledger::default() };
    assert_eq!((ours.newest().number, ours.outdated_by(of(2))), (2, ours.clone()), "it is its own");
    let heard = ours.outdated_by(of(5));
    assert_eq!((heard.newest(), heard.generation, heard.is_outdated()), (of(5), 2, true));
    assert_eq!(heard.outdated_by(of(4)), heard);
    assert_eq!(heard.reset().newest().number, 0);
    assert_eq!(Ledger::decode(&heard.encode()), Ok(heard.clone()));
    // Once it is of that generation itself, there is nothing to be behind with.
    assert!(!Ledger { generation: 5, ..heard }.is_outdated());
}

#[test]
fn a_key_that_means_nothing_is_refused() {
    let body = "{\"state\": {\"state\": \"empty\"}, \"generatoin\": 1}\n";
    let text = format!("quorate-ledger 1 sha256:{}\n{body}", sum(body.as_bytes()));
    assert!(matches!(Ledger::decode(text.as_bytes()), Err(LedgerError::Content(_))));
}

#[test]
fn a_used_declaration_stays_used() {
    let inited = Ledger { state: State::Inited(promise()), generation: 4, ..Ledger::default() };
    let identity = Identity { cluster: ClusterId(0xc1), member: MemberId(0xa1), origin: Origin::Founded };
    let started = inited.with(State::Started(identity));
    assert_eq!(started.consumed, [1]);
    let reset = started.reset();
    // Backups are continued if restored data is adopted here next; a bootstrap descends from nothing.
    assert_eq!(reset, Ledger { consumed: vec![1], left: vec![ClusterId(0xc1)], ..Ledger::default() });
    assert_eq!(Ledger::decode(&reset.encode()), Ok(reset.clone()));
    assert_eq!(reset.ancestors(), [ClusterId(0xc1)]);
    assert_eq!(reset.with(State::Promised(promise())).ancestors(), []);
    assert_eq!(inited.reset().consumed, [1]);
}

#[test]
fn the_highest_revision_is_that_of_any_record() {
    let progress =
        |revision| Progress { member: MemberId(1), index: 9, term: 1, revision, start: None, rolled_back: None };
    let none = Ledger::default();
    assert_eq!(none.highest_revision(), 0);
    let members = Ledger { progress: vec![progress(7), progress(40), progress(8)], ..none.clone() };
    assert_eq!(members.highest_revision(), 40);
    let recovered = Some(RecoveredAt { cluster: ClusterId(3), revision: 1_000_000_040 });
    assert_eq!(Ledger { recovered, ..members.clone() }.highest_revision(), 1_000_000_040);
    let backup = Some(BackupCursor { store: "s".into(), epoch: 1, revision: 41 });
    assert_eq!(Ledger { backup, ..members }.highest_revision(), 41);
}
