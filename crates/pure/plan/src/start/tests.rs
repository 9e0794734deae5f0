//! Every row with the words that the operator reads, and the rules that hold for all of them.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::membership::{ClusterId, MemberId};

use super::*;
use crate::ledger::{
    Confirmed, ConfirmedMember, Identity, Ledger, LedgerSeen, Origin, PendingAdd, Progress, Promise, RolledBack,
    StartMark, State, Tombstone,
};

pub(super) fn spec(members: usize, extra: &str) -> Spec {
    let mut text = format!("token: t\nplaintext: true\n{extra}\nmembers:\n");
    for number in 1..=members {
        text += &format!("  - {{name: n{number}, address: 10.0.0.{number}}}\n");
    }
    Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap().0
}

pub(super) const FOUND: &str = "bootstrap: {id: 1}";

pub(super) fn ids(spec: &Spec) -> (ClusterId, MemberId) {
    spec.founding_ids().map_or((ClusterId(0xc1), MemberId(0xa1)), |ids| (ids.cluster, ids.members["n1"]))
}

pub(super) fn promise(spec: &Spec) -> Promise {
    let (cluster, member) = ids(spec);
    Promise {
        bootstrap: 1,
        declaration: spec.declaration_hash(),
        cluster,
        member,
        members: names(spec),
        over: false,
        nonce: None,
        nonces: BTreeMap::new(),
    }
}

fn held(cluster: Option<ClusterId>) -> Vec<Held> {
    vec![Held { cluster, declared: None }]
}

fn names(spec: &Spec) -> Vec<String> {
    spec.members.iter().map(|member| member.name.clone()).collect()
}

pub(super) fn started(spec: &Spec) -> State {
    let (cluster, member) = ids(spec);
    State::Started(Identity { cluster, member, origin: Origin::Founded })
}

pub(super) fn there(spec: &Spec, verdict: Verdict) -> DataSeen {
    let ids = Some(ids(spec));
    DataSeen::There(DataFacts { ids, last_index: Some(50), last_term: Some(2), verdict, readable: None, reach: None })
}

pub(super) fn seen(data: DataSeen, state: State) -> Observed {
    Observed {
        data,
        place: PlaceState::NotCompared,
        ledger: LedgerSeen::There(Box::new(Ledger { state, ..Ledger::default() })),
        end: EndSeen::Clean,
        cluster: ClusterSeen::Unreachable("nobody answered".into()),
        peers: BTreeMap::new(),
        store: StoreSeen::NotDeclared,
        // Everyone was asked, and none has this node.
        sightings: Sightings {
            leases: LeasesSeen::Held(BTreeMap::new()),
            agent: AgentSeen::ThisMachine,
            answering: Vec::new(),
            views: (2..6).map(|number| (MemberId(0xb0 + number), BTreeSet::new())).collect(),
        },
        nonce: "f00d".to_owned(),
        rotates: false,
    }
}

fn answer(founding: PeerFounding) -> PeerAnswer {
    PeerAnswer {
        founding,
        remembers_me_started: false,
        remembers_me_in: None,
        my_tombstone: false,
        generation: 0,
        generation_of: None,
        forks: None,
        acknowledged: None,
        acknowledged_term: None,
        my_start: None,
        rolled_back: None,
        consumed: Vec::new(),
        dropped: Vec::new(),
        started: Vec::new(),
        seal: None,
    }
}

pub(super) fn listed(spec: &Spec, mine: Option<(MemberId, bool)>) -> ClusterSeen {
    let other = |number: u64| ListedMember {
        id: MemberId(0xb0 + number),
        name: format!("n{number}"),
        peer_urls: vec![format!("http://10.0.0.{number}:2380")],
        started: true,
        learner: false,
        health: Health::Healthy,
    };
    let mut members = vec![other(2), other(3)];
    if let Some((id, started)) = mine {
        let name = if started { "n1" } else { "" };
        let peer_urls = vec!["http://10.0.0.1:2380".into()];
        members.push(ListedMember {
            id,
            name: name.into(),
            peer_urls,
            started,
            learner: !started,
            health: Health::Unhealthy("down".into()),
        });
    }
    ClusterSeen::Confirmed { cluster: ids(spec).0, members }
}

#[track_caller]
fn row(spec: &Spec, seen: &Observed, expected: Row) -> String {
    let plan = plan_start(spec, "n1", seen);
    assert_eq!(plan.row, expected, "{}", plan.render());
    plan.render()
}

fn steps(spec: &Spec, seen: &Observed, expected: Row) -> String {
    row(spec, seen, expected).lines().skip(1).map(str::trim).collect::<Vec<_>>().join(" | ")
}

#[test]
fn what_cannot_be_seen_is_waited_for() {
    let (one, unknown) = (spec(1, FOUND), DataSeen::Unknown("permission denied".into()));
    insta::assert_snapshot!(row(&one, &seen(unknown, State::Empty), Row::DataUnknown), @"
    because the data cannot be seen:
      1. wait: cannot tell what the data dir holds: permission denied [Q0940]
         what cannot be seen is not taken for empty
    ");
    let mut damaged = seen(DataSeen::Absent, State::Empty);
    damaged.ledger = LedgerSeen::Unreadable("its checksum does not match".into());
    insta::assert_snapshot!(row(&one, &damaged, Row::LedgerUnknown), @"
    because the ledger cannot be read:
      1. refuse: the ledger cannot be read: its checksum does not match [Q0935]
         bring it back, or see `quorate explain Q0935`; it is not taken for empty
    ");
}

#[test]
fn a_removed_node_stays_away() {
    let one = spec(1, FOUND);
    let (cluster, member) = ids(&one);
    let stone =
        State::Tombstone(Tombstone { cluster, member, why: "drained by ops".into(), at_ms: 1, undeclared: false });
    insta::assert_snapshot!(row(&one, &seen(there(&one, Verdict::Valid), stone), Row::Tombstone), @"
    because this node was removed for good:
      1. rename the data dir to `….replaced-<time>`; nothing is deleted
      2. refuse: this member was removed for good: drained by ops [Q0941]
         `quorate data reset --yes` renames the data dir and clears the ledger, so that the node can join anew
    ");
    let three = spec(3, FOUND);
    let mut peer = answer(PeerFounding::Nothing);
    peer.my_tombstone = true;
    let mut at_peer = seen(DataSeen::Absent, State::Empty);
    at_peer.peers.insert("n2".into(), PeerSeen::Answered(peer));
    row(&three, &at_peer, Row::Tombstone);
    let mut removed = seen(there(&three, Verdict::Valid), started(&three));
    removed.cluster = listed(&three, None);
    assert!(row(&three, &removed, Row::Removed).contains("does not list member"));
}

#[test]
fn data_of_others_is_never_started() {
    let one = spec(1, FOUND);
    let mut foreign = seen(there(&one, Verdict::Valid), started(&one));
    foreign.data = DataSeen::There(DataFacts {
        ids: Some((ClusterId(0xdead), MemberId(1))),
        last_index: None,
        last_term: None,
        verdict: Verdict::Valid,
        readable: None,
        reach: None,
    });
    assert!(row(&one, &foreign, Row::Foreign).contains("member `1` of cluster `dead`"));
    for verdict in [Verdict::Valid, Verdict::Unchecked, Verdict::Corrupt("x".into())] {
        assert!(
            row(&one, &seen(there(&one, verdict), State::Empty), Row::NotOursYet).contains("quorate cluster adopt")
        );
    }
    let mut newer = answer(PeerFounding::Nothing);
    newer.generation = 2;
    let three = spec(3, FOUND);
    let mut behind = seen(there(&three, Verdict::Valid), started(&three));
    behind.peers.insert("n2".into(), PeerSeen::Answered(newer));
    assert!(row(&three, &behind, Row::NewerGeneration).contains("quorate data reset"));
}

#[test]
fn good_data_starts_without_anyones_help() {
    for members in [1, 3] {
        let spec = spec(members, FOUND);
        let mut good = seen(there(&spec, Verdict::Valid), started(&spec));
        good.store = StoreSeen::Unknown("no route".into());
        assert_eq!(steps(&spec, &good, Row::Run), "1. start etcd on its data");
        good.data = there(&spec, Verdict::RepairableTail("torn".into()));
        let repair = "1. cut the torn end off a copy of the WAL and keep the original | 2. start etcd on its data";
        assert_eq!(steps(&spec, &good, Row::Run), repair);
        good.data = there(&spec, Verdict::Unchecked);
        assert_eq!(steps(&spec, &good, Row::Check), "1. check the data (sanity): etcd closed it cleanly");
    }
}

#[test]
fn an_interrupted_founding_is_finished() {
    let three = spec(3, FOUND);
    for state in [State::Promised(promise(&three)), State::Inited(promise(&three))] {
        assert_eq!(
            steps(&three, &seen(there(&three, Verdict::Valid), state.clone()), Row::FinishFounding),
            "1. have every peer write down that this node started | 2. write `started` into the ledger | 3. start etcd on its data"
        );
        let broken = seen(there(&three, Verdict::Corrupt("x".into())), state);
        assert!(steps(&three, &broken, Row::RedoInit).starts_with("1. rename the data dir"));
    }
}

#[test]
fn a_damaged_member_is_replaced_only_by_those_who_have_a_quorum() {
    let three = spec(3, FOUND);
    let mut damaged = seen(there(&three, Verdict::Corrupt("page 7".into())), started(&three));
    assert!(row(&three, &damaged, Row::CorruptAlone).contains("wait: the data is damaged (page 7)"));
    damaged.cluster = listed(&three, Some((ids(&three).1, true)));
    insta::assert_snapshot!(row(&three, &damaged, Row::ReplaceCorrupt).replace(&ids(&three).1.to_string(), "ID"), @"
    because the data is damaged, and the others have a quorum:
      1. rename the data dir to `….replaced-<time>`; nothing is deleted
      2. write `pending add` into the ledger
      3. remove member `ID` from the cluster
      4. add this node to the cluster as a learner
      5. start etcd without data; it joins the cluster
      6. promote it to a voter once it has caught up
    ");
}

#[test]
fn data_that_was_put_back_is_replaced_or_waits() {
    let three = spec(3, FOUND);
    let (cluster, member) = ids(&three);
    let good = || seen(there(&three, Verdict::Valid), started(&three));
    let with_ledger = |change: &dyn Fn(&mut Ledger)| {
        let mut ledger = Ledger { state: started(&three), ..Ledger::default() };
        change(&mut ledger);
        Observed { ledger: LedgerSeen::There(Box::new(ledger)), ..good() }
    };
    let told = |mut observed: Observed, change: &dyn Fn(&mut PeerAnswer)| {
        let mut peer = answer(PeerFounding::Founded(cluster));
        change(&mut peer);
        observed.peers.insert("n2".into(), PeerSeen::Answered(peer));
        observed
    };
    let progress = |index| vec![Progress { member, index, term: 2, revision: 7, start: None, rolled_back: None }];
    let mark = |number, nonce| StartMark { number, nonce, series: 1, from: None };
    let known = with_ledger(&|ledger| ledger.last_start = Some(mark(3, 1)));
    let put_back = [
        (told(good(), &|peer| peer.acknowledged = Some(51)), "its log ends at 50, and `n2` saw this member at 51"),
        (
            with_ledger(&|ledger| ledger.progress = progress(51)),
            "its log ends at 50, and this node saw this member at 51",
        ),
        (
            told(good(), &|peer| peer.acknowledged_term = Some(3)),
            "its log ends in term 2, and `n2` saw this member in term 3",
        ),
        (
            with_ledger(&|ledger| ledger.progress = vec![Progress { term: 3, ..progress(40)[0] }]),
            "its log ends in term 2, and this node saw this member in term 3",
        ),
        (told(known.clone(), &|peer| peer.my_start = Some(mark(4, 2))), "`n2` knows of start 4"),
        (told(known.clone(), &|peer| peer.my_start = Some(mark(3, 2))), "`n2` knows of start 3"),
        (
            with_ledger(&|ledger| ledger.rolled_back = Some(RolledBack { member, seen: 9, last: 5, by_store: false })),
            "its log ended at 5, and this member was seen at 9",
        ),
    ];
    for (mut observed, why) in put_back {
        let alone = row(&three, &observed, Row::RolledBackAlone);
        assert!(alone.contains(why) && alone.contains("[Q1410]"), "{alone}");
        observed.cluster = listed(&three, Some((member, true)));
        let replaced = row(&three, &observed, Row::ReplaceRolledBack);
        assert!(replaced.contains(&format!("remove member `{member}`")), "{replaced}");
    }
    for fine in [
        told(good(), &|peer| (peer.acknowledged, peer.acknowledged_term) = (Some(50), Some(2))),
        // Agents of earlier releases recorded no term.
        told(good(), &|peer| peer.acknowledged_term = Some(0)),
        with_ledger(&|ledger| ledger.progress = progress(50)),
        told(known.clone(), &|peer| peer.my_start = Some(mark(3, 1))),
        told(known.clone(), &|peer| peer.my_start = Some(mark(2, 9))),
        with_ledger(&|ledger| {
            ledger.rolled_back = Some(RolledBack { member: MemberId(1), seen: 9, last: 5, by_store: false })
        }),
    ] {
        row(&three, &fine, Row::Run);
    }
    // etcd never ran on it, and the cluster lists the member as started.
    let mut fresh = seen(there(&three, Verdict::Valid), State::Inited(promise(&three)));
    fresh.cluster = listed(&three, Some((member, true)));
    assert!(row(&three, &fresh, Row::ReplaceRolledBack).contains(&format!("remove member `{member}`")));

    let one = spec(1, FOUND);
    let progress =
        vec![Progress { member: ids(&one).1, index: 51, term: 2, revision: 7, start: None, rolled_back: None }];
    let ledger = Ledger { state: started(&one), progress, ..Ledger::default() };
    let only =
        Observed { ledger: LedgerSeen::There(Box::new(ledger)), ..seen(there(&one, Verdict::Valid), started(&one)) };
    assert!(row(&one, &only, Row::RolledBackAlone).contains("[Q1411]"));
}

#[test]
fn the_only_member_is_restored_or_kept_as_it_is() {
    let one = spec(1, FOUND);
    let chain = |cluster, revision| StoreSeen::Chain { cluster, revision, held: held(cluster) };
    let mut lost = seen(DataSeen::Absent, started(&one));
    assert!(row(&one, &lost, Row::RestoreOnly).contains("going on would lose: everything that this cluster held"));
    lost.store = chain(Some(ids(&one).0), Some(120));
    assert_eq!(
        steps(&one, &lost, Row::RestoreOnly),
        format!("1. restore revision 120 of cluster `{}` from the newest provable backup", ids(&one).0)
    );
    lost.data = there(&one, Verdict::Corrupt("x".into()));
    assert!(steps(&one, &lost, Row::RestoreOnly).starts_with("1. rename the data dir"));
    // What can be read of it is more than the backup holds, or is not.
    for (readable, refused) in [(120, false), (121, true)] {
        let DataSeen::There(facts) = &mut lost.data else { panic!("it is there") };
        facts.readable = Some(readable);
        let text = row(&one, &lost, Row::RestoreOnly);
        assert_eq!(text.contains("[Q1435]"), refused, "{text}");
        assert_eq!(text.contains("going on would lose: the writes of revisions 121 to 121"), refused, "{text}");
    }
    lost.store = chain(Some(ClusterId(9)), Some(120));
    assert!(row(&one, &lost, Row::RestoreOnly).contains("which is another one [Q0945]"));
    lost.store = chain(None, None);
    assert!(row(&one, &lost, Row::RestoreOnly).contains("no backup can be proven whole"));
    lost.store = StoreSeen::Unknown("time-out".into());
    assert!(row(&one, &lost, Row::RestoreOnly).contains("wait: "));
    // The file names one member, but a quorum once confirmed three: it is not the only one.
    let member = |id| ConfirmedMember { id: MemberId(id), name: "x".into(), peer_urls: vec![], learner: false };
    let confirmed = Some(Confirmed { at_ms: 1, members: vec![member(1), member(2), member(3)] });
    lost.ledger = LedgerSeen::There(Box::new(Ledger { state: started(&one), confirmed, ..Ledger::default() }));
    row(&one, &lost, Row::CorruptAlone);
}

#[test]
fn a_lost_disk_is_never_a_new_member() {
    let three = spec(3, FOUND);
    let mut lost = seen(DataSeen::Absent, started(&three));
    row(&three, &lost, Row::LostAlone);
    lost.cluster = listed(&three, Some((ids(&three).1, true)));
    row(&three, &lost, Row::DiskLost);
    let mut remembered = answer(PeerFounding::Promised(promise(&three)));
    remembered.remembers_me_started = true;
    let mut forgot = seen(DataSeen::Absent, State::Empty);
    forgot.peers.insert("n2".into(), PeerSeen::Answered(remembered.clone()));
    forgot.peers.insert("n3".into(), PeerSeen::Answered(remembered));
    row(&three, &forgot, Row::LostAlone);
    forgot.cluster = listed(&three, Some((ids(&three).1, true)));
    row(&three, &forgot, Row::DiskLost);
}

#[test]
fn a_cluster_is_founded_when_everyone_promised_the_same() {
    let one = spec(1, FOUND);
    let sealed = one.founding_ids_of(&[("n1".to_owned(), "f00d".to_owned())].into()).unwrap();
    assert_ne!(sealed.cluster, ids(&one).0, "the nonce is part of the ids");
    assert_eq!(
        steps(&one, &seen(DataSeen::Absent, State::Empty), Row::Found)
            .replace(&sealed.members["n1"].to_string(), "M")
            .replace(&sealed.cluster.to_string(), "C"),
        "1. write `promised` with the nonces of all members into the ledger | 2. make the data dir of member `M` of cluster `C` | 3. write `inited` into the ledger | 4. write `started` into the ledger | 5. start etcd on its data"
    );
    let three = spec(3, FOUND);
    let mut all = seen(DataSeen::Absent, State::Promised(promise(&three)));
    all.peers.insert("n2".into(), PeerSeen::Answered(answer(PeerFounding::Promised(promise(&three)))));
    assert!(row(&three, &all, Row::WaitForCluster).contains("waiting for `n3` to promise"));
    all.peers.insert("n3".into(), PeerSeen::Unknown("time-out".into()));
    row(&three, &all, Row::WaitForCluster);
    all.peers.insert("n3".into(), PeerSeen::Answered(answer(PeerFounding::Founded(ids(&three).0))));
    row(&three, &all, Row::Found);
    // Someone founded it already, and may have backed it up.
    all.store = StoreSeen::Unknown("time-out".into());
    row(&three, &all, Row::Found);
    all.peers.insert("n3".into(), PeerSeen::Answered(answer(PeerFounding::Promised(promise(&three)))));
    row(&three, &all, Row::WaitForCluster);
    all.store = StoreSeen::Chain { cluster: Some(ids(&three).0), revision: None, held: held(Some(ids(&three).0)) };
    row(&three, &all, Row::BackupExists);
    all.store = StoreSeen::Empty;
    all.peers.insert("n3".into(), PeerSeen::Answered(answer(PeerFounding::Founded(ClusterId(9)))));
    assert!(row(&three, &all, Row::Disagree).contains("`n3` belongs to cluster `9`"));
    let mut other = promise(&three);
    other.declaration = "another".into();
    row(&three, &seen(DataSeen::Absent, State::Promised(other)), Row::Disagree);
}

/// What the node with this number has promised: its nonce alone, or sealed with those of all.
fn promised(spec: &Spec, number: u64, nonces: &[&str]) -> Promise {
    let names = names(spec).into_iter().zip(nonces.iter().map(|nonce| (*nonce).to_owned()));
    let nonces: BTreeMap<String, String> = names.collect();
    let ids = spec.founding_ids_of(&nonces).unwrap();
    let nonce = nonces.get(&format!("n{number}")).cloned().or(Some(number.to_string()));
    Promise { nonce, nonces, cluster: ids.cluster, member: ids.members["n1"], ..promise(spec) }
}

fn with_peers(state: State, peers: [PeerAnswer; 2]) -> Observed {
    let mut seen = seen(DataSeen::Absent, state);
    seen.peers = ["n2".to_owned(), "n3".to_owned()].into_iter().zip(peers.map(PeerSeen::Answered)).collect();
    seen
}

fn written(spec: &Spec, seen: &Observed) -> Option<Promise> {
    let plan = plan_start(spec, "n1", seen);
    assert_eq!(crate::check::check(spec, "n1", seen, &plan), Ok(()), "{}", plan.render());
    plan.steps.iter().find_map(|step| match step {
        Step::Write(State::Promised(promise)) => Some(promise.clone()),
        _ => None,
    })
}

#[test]
fn a_promise_is_sealed_with_the_nonces_of_all_and_kept_while_a_member_may_have_begun() {
    let three = spec(3, FOUND);
    let of = |number, nonces: &[&str]| answer(PeerFounding::Promised(promised(&three, number, nonces)));
    let (open, all) = (|number| of(number, &[]), ["1", "2", "3"]);
    let mine = |nonces: &[&str]| State::Promised(promised(&three, 1, nonces));
    // All are known: sealed, and data is made once every peer has sealed the same.
    let seen = with_peers(mine(&[]), [open(2), open(3)]);
    assert_eq!(written(&three, &seen), Some(promised(&three, 1, &all)));
    row(&three, &seen, Row::WaitForCluster);
    assert_eq!(written(&three, &with_peers(mine(&[]), [open(2), answer(PeerFounding::Nothing)])), None);
    row(&three, &with_peers(mine(&all), [of(2, &all), open(3)]), Row::WaitForCluster);
    row(&three, &with_peers(mine(&all), [of(2, &all), of(3, &all)]), Row::Found);
    // A peer that lost its promise has another nonce: what was sealed is replaced, unless a member began.
    let lost = ["1", "2", "4"];
    let conflict = with_peers(mine(&all), [of(2, &all), of(3, &lost)]);
    let fresh = Promise { nonce: Some("f00d".to_owned()), ..promised(&three, 1, &[]) };
    assert_eq!(written(&three, &conflict), Some(fresh));
    let begun = PeerAnswer { started: vec!["n1".to_owned(), "n2".to_owned()], ..of(2, &all) };
    assert_eq!(written(&three, &with_peers(mine(&all), [begun.clone(), open(4)])), None);
    // The one that lost it takes over what was begun, and nothing else.
    let other = State::Promised(Promise { nonce: Some("9".to_owned()), ..promised(&three, 1, &[]) });
    assert_eq!(written(&three, &with_peers(other.clone(), [of(2, &all), of(3, &all)])), None);
    let adopted = with_peers(other, [begun.clone(), of(3, &all)]);
    assert_eq!(written(&three, &adopted), Some(promised(&three, 1, &all)));
    let forgot = with_peers(State::Empty, [begun, of(3, &all)]);
    assert_eq!(written(&three, &forgot), Some(promised(&three, 1, &all)));
}

#[test]
fn a_promise_of_an_earlier_release_goes_on_with_its_own_and_is_replaced_otherwise() {
    let three = spec(3, FOUND);
    let old = || answer(PeerFounding::Promised(promise(&three)));
    let new = |number| answer(PeerFounding::Promised(promised(&three, number, &[])));
    row(&three, &with_peers(State::Promised(promise(&three)), [old(), old()]), Row::Found);
    let mixed = with_peers(State::Inited(promise(&three)), [new(2), new(3)]);
    assert_eq!(written(&three, &mixed).and_then(|promise| promise.nonce), Some("f00d".to_owned()));
    let told = PeerAnswer { remembers_me_started: true, ..new(2) };
    assert_eq!(written(&three, &with_peers(State::Inited(promise(&three)), [told, new(3)])), None);
    // A node of this release waits for those of an earlier one, until they have begun without it.
    assert_eq!(written(&three, &with_peers(State::Promised(promised(&three, 1, &[])), [old(), old()])), None);
    let begun = PeerAnswer { started: vec!["n3".to_owned()], ..old() };
    let taken = written(&three, &with_peers(State::Promised(promised(&three, 1, &[])), [begun, old()]));
    assert_eq!(taken, Some(promise(&three)));
}

#[test]
fn a_used_or_missing_declaration_founds_nothing() {
    let one = spec(1, FOUND);
    let mut used = seen(DataSeen::Absent, State::Empty);
    used.ledger = LedgerSeen::There(Box::new(Ledger { consumed: vec![1], ..Ledger::default() }));
    assert!(row(&one, &used, Row::WaitForCluster).contains("founding 1 has been used here"));
    let undeclared = spec(1, "");
    let mut nothing = seen(DataSeen::Absent, State::Empty);
    assert!(row(&undeclared, &nothing, Row::WaitForCluster).contains("bootstrap: {id: 1}"));
    nothing.store = StoreSeen::Chain { cluster: None, revision: Some(5), held: held(None) };
    row(&undeclared, &nothing, Row::BackupExists);
}

#[test]
fn a_new_node_joins_and_an_interrupted_join_is_resumed() {
    let three = spec(3, "");
    let mut new = seen(DataSeen::Absent, State::Empty);
    new.cluster = listed(&three, None);
    assert_eq!(
        steps(&three, &new, Row::Join),
        "1. write `pending add` into the ledger | 2. add this node to the cluster as a learner | 3. start etcd without data; it joins the cluster | 4. promote it to a voter once it has caught up"
    );
    let pending =
        PendingAdd { cluster: ClusterId(0xc1), member: None, peer_urls: vec![], replaces: None, generation: 0 };
    let mut asked = seen(DataSeen::Absent, State::PendingAdd(pending));
    row(&three, &asked, Row::WaitForCluster);
    asked.cluster = listed(&three, Some((MemberId(0xa1), false)));
    assert!(!steps(&three, &asked, Row::ResumeAdd).contains("add this node"));
}

#[test]
fn the_depth_of_the_check_follows_the_last_end() {
    let one = spec(1, FOUND);
    let mut case = seen(there(&one, Verdict::Unchecked), started(&one));
    let mut depth = |end: EndSeen| {
        case.end = end;
        let depth = plan_validation(&one, &case);
        format!("{}: {}", depth.mode, depth.why)
    };
    assert_eq!(depth(EndSeen::Clean), "sanity: etcd closed it cleanly");
    assert_eq!(depth(EndSeen::NeverRan), "sanity: etcd never ran on it");
    // Whatever the machine: the time that a start may take for it is bounded, unless the file asks for all of it.
    assert_eq!(depth(EndSeen::Absent), "full, for at most 30s: nothing says how etcd ended");
    let unclean = EndSeen::Unclean("signal 9".into());
    assert_eq!(depth(unclean.clone()), "full, for at most 30s: etcd did not end cleanly (signal 9)");
    let whole = spec(1, &format!("{FOUND}\nmaintenance: {{validation: full}}"));
    let depth = plan_validation(&whole, &Observed { end: unclean, ..seen(DataSeen::Absent, State::Empty) });
    assert_eq!(depth.mode, Mode::Full);
}
