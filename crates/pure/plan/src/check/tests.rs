//! Whatever is seen, the check agrees to what the planner makes of it; and it objects to what a planner without one of its
//! guards would do.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::delta::quorate::Declared;
use quorate_etcd_formats::membership::{ClusterId, MemberId};

use super::check;
use crate::fork::{Fork, Sealed};
use crate::ledger::{
    AcceptedEmpty, Dropped, Generation, Identity, Intent, IntentKind, Ledger, LedgerSeen, Origin, PeerMemory,
    PendingAdd, Promise, Seal, State, Tombstone,
};
use crate::spec::Spec;
use crate::start::{
    AgentSeen, Answering, ClusterSeen, DataFacts, DataSeen, EndSeen, Guard, Health, Held, Holder, LeasesSeen,
    ListedMember, Observed, PeerAnswer, PeerFounding, PeerSeen, PlaceState, Sightings, StoreSeen, Verdict, plan_start,
    plan_start_without,
};

/// Sights that are put together at random, from a seed: most of them could not be, which is no excuse.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn of<T: Clone>(&mut self, these: &[T]) -> T {
        these[self.below(these.len() as u64) as usize].clone()
    }
}

fn spec(members: usize, bootstrap: Option<u64>) -> Spec {
    let bootstrap = bootstrap.map(|id| format!("bootstrap: {{id: {id}}}\n")).unwrap_or_default();
    let mut text = format!("token: t\nplaintext: true\n{bootstrap}members:\n");
    for number in 1..=members {
        text += &format!("  - {{name: n{number}, address: 10.0.0.{number}}}\n");
    }
    Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap().0
}

fn promise(spec: &Spec) -> Option<Promise> {
    let ids = spec.founding_ids()?;
    let members = spec.members.iter().map(|member| member.name.clone()).collect();
    let declaration = spec.declaration_hash();
    Some(Promise {
        bootstrap: spec.bootstrap?.id,
        declaration,
        cluster: ids.cluster,
        member: ids.members["n1"],
        members,
        over: false,
        nonce: None,
        nonces: BTreeMap::new(),
    })
}

/// The same with nonces: before all are known, and sealed with two sets of them.
fn with_nonces(spec: &Spec) -> Vec<Promise> {
    let Some(bare) = promise(spec) else { return Vec::new() };
    let open = Promise { nonce: Some("1".to_owned()), ..bare };
    let sealed = |last: &str| {
        let of = |(at, member): (usize, &crate::spec::Member)| {
            let nonce = if at + 1 == spec.members.len() { last.to_owned() } else { (at + 1).to_string() };
            (member.name.clone(), nonce)
        };
        let nonces: BTreeMap<String, String> = spec.members.iter().enumerate().map(of).collect();
        let ids = spec.founding_ids_of(&nonces).unwrap();
        let (cluster, member, nonce) = (ids.cluster, ids.members["n1"], nonces.get("n1").cloned());
        Promise { nonce, nonces, cluster, member, ..open.clone() }
    };
    vec![open.clone(), sealed("3"), sealed("4")]
}

/// What the peer with this number has promised, where this node would have promised that.
fn of_peer(promise: Promise, number: usize) -> Promise {
    let nonce = promise.nonce.as_ref().map(|_| number.to_string());
    Promise { nonce, ..promise }
}

fn place(random: &mut Random) -> PlaceState {
    let (dir, mount_point) = ("/d".to_owned(), random.of(&["/", "/d"]).to_owned());
    match random.below(10) {
        0 => PlaceState::NotMounted { dir, mount_point, fs_type: "xfs".to_owned() },
        1 => PlaceState::Unknown("u".to_owned()),
        2 | 3 => PlaceState::OtherFileSystem { dir, mount_point },
        4 | 5 => PlaceState::Same,
        _ => PlaceState::NotCompared,
    }
}

struct Foundings {
    promises: Vec<Promise>,
}

impl Foundings {
    fn cluster(&self, random: &mut Random) -> ClusterId {
        if random.one_in(6) { ClusterId(9) } else { random.of(&self.promises).cluster }
    }

    /// Drawn beside the others, so that these stay what they are.
    fn forks(&self, random: &Random) -> Vec<Fork> {
        let random = &mut Random(random.0.rotate_left(17) | 1);
        let one = |random: &mut Random| Fork {
            rival: self.cluster(random),
            sealed: random.of(&[Sealed::Written, Sealed::Unwritten, Sealed::ById]),
        };
        (0..random.below(3)).map(|_| one(random)).collect()
    }

    fn member(&self, random: &mut Random) -> MemberId {
        if random.one_in(4) { MemberId(9) } else { random.of(&self.promises).member }
    }

    fn state(&self, random: &mut Random) -> State {
        let (cluster, member) = (self.cluster(random), self.member(random));
        match random.below(8) {
            0 | 1 => State::Empty,
            2 => State::Promised(random.of(&self.promises)),
            3 => State::Inited(random.of(&self.promises)),
            4 | 5 => {
                State::Started(Identity { cluster, member, origin: random.of(&[Origin::Founded, Origin::Joined]) })
            }
            6 => State::PendingAdd(PendingAdd {
                cluster,
                member: random.one_in(2).then_some(member),
                peer_urls: vec![],
                replaces: random.one_in(2).then(|| self.member(random)),
                generation: random.below(2),
            }),
            _ => {
                State::Tombstone(Tombstone { cluster, member, why: "w".into(), at_ms: 1, undeclared: random.one_in(2) })
            }
        }
    }

    fn ledger(&self, random: &mut Random) -> LedgerSeen {
        match random.below(12) {
            0 => return LedgerSeen::Absent,
            1 => return LedgerSeen::Unreadable("u".into()),
            _ => {}
        }
        let mut ledger = Ledger { state: self.state(random), generation: random.below(2), ..Ledger::default() };
        ledger.outdated_by = random
            .one_in(8)
            .then(|| Generation { number: random.below(3), cluster: random.one_in(2).then(|| self.cluster(random)) });
        ledger.forks = self.forks(random);
        if random.one_in(4) {
            ledger.consumed.push(random.below(3));
        }
        if random.one_in(8) {
            let kind = random.of(&[IntentKind::Leave, IntentKind::Teardown]);
            ledger.intent = Some(Intent { kind, why: "w".into(), at_ms: 1 });
        }
        if random.one_in(6) {
            let Promise { bootstrap, cluster, members, .. } = random.of(&self.promises);
            ledger.dropped.push(Dropped { bootstrap, cluster, members, declaration: None });
        }
        if random.one_in(4) {
            let memory =
                PeerMemory { started: random.one_in(2), member: None, cluster: None, tombstone: random.one_in(8) };
            ledger.peers.insert("n2".into(), memory);
        }
        let empty = || AcceptedEmpty { mount_point: "/".to_owned(), at_ms: 1 };
        ledger.accepted_empty = random.one_in(4).then(empty);
        ledger.archiving = random.one_in(8);
        LedgerSeen::There(Box::new(ledger))
    }

    fn data(&self, random: &mut Random) -> DataSeen {
        match random.below(8) {
            0 => DataSeen::Unknown("u".into()),
            1..4 => DataSeen::Absent,
            _ => DataSeen::There(DataFacts {
                ids: (!random.one_in(6)).then(|| (self.cluster(random), self.member(random))),
                last_index: Some(5),
                // As below, without a draw of its own.
                last_term: random.0.is_multiple_of(2).then_some(random.0 >> 61),
                verdict: random.of(&[
                    Verdict::Unchecked,
                    Verdict::Valid,
                    Verdict::Valid,
                    Verdict::RepairableTail("t".into()),
                    Verdict::Corrupt("c".into()),
                    Verdict::Half("h".into()),
                ]),
                readable: random.of(&[None, Some(5), Some(5_000)]),
                reach: [None, Some(5), Some(5_000)][(random.0 >> 20) as usize % 3],
            }),
        }
    }

    fn cluster_seen(&self, random: &mut Random) -> ClusterSeen {
        if random.one_in(2) {
            return ClusterSeen::Unreachable("u".into());
        }
        let health = |random: &mut Random| {
            random.of(&[Health::Healthy, Health::Unhealthy("x".into()), Health::Unknown("y".into())])
        };
        let mut members = Vec::new();
        for number in 2..=(1 + random.below(3)) {
            members.push(ListedMember {
                id: MemberId(0xb0 + number),
                name: format!("n{number}"),
                peer_urls: vec![format!("http://10.0.0.{number}:2380")],
                started: !random.one_in(4),
                learner: random.one_in(5),
                health: health(random),
            });
        }
        if random.one_in(2) {
            members.push(ListedMember {
                id: self.member(random),
                name: random.of(&["", "n1"]).into(),
                peer_urls: vec!["http://10.0.0.1:2380".into()],
                started: random.one_in(2),
                learner: random.one_in(2),
                health: health(random),
            });
        }
        ClusterSeen::Confirmed { cluster: self.cluster(random), members }
    }

    fn peer(&self, number: usize, random: &mut Random) -> PeerSeen {
        if random.one_in(6) {
            return PeerSeen::Unknown("u".into());
        }
        let founding = match random.below(9) {
            0..2 => PeerFounding::Nothing,
            2..5 => PeerFounding::Promised(of_peer(random.of(&self.promises), number)),
            5..8 => PeerFounding::Founded(self.cluster(random)),
            _ => PeerFounding::Removed,
        };
        PeerSeen::Answered(PeerAnswer {
            founding,
            remembers_me_started: random.one_in(5),
            remembers_me_in: None,
            my_tombstone: random.one_in(20),
            generation: if random.one_in(6) { 1 } else { 0 },
            generation_of: random.one_in(2).then(|| self.cluster(random)),
            forks: Some(self.forks(random)).filter(|forks| forks.len() < 2),
            acknowledged: random.one_in(4).then(|| random.below(9)),
            acknowledged_term: random.0.count_ones().is_multiple_of(8).then_some(random.0 >> 61),
            my_start: None,
            rolled_back: None,
            consumed: if random.one_in(6) { vec![random.below(3)] } else { vec![] },
            dropped: if random.one_in(6) { vec![random.below(3)] } else { vec![] },
            started: if random.one_in(4) { vec![random.of(&["n2", "n3"]).to_owned()] } else { vec![] },
            seal: random.one_in(2).then(|| {
                let Promise { declaration, cluster, nonces, .. } = random.of(&self.promises);
                Seal { declaration, cluster, nonces }
            }),
        })
    }

    fn seen(&self, random: &mut Random) -> Observed {
        let mut peers = BTreeMap::new();
        for name in ["n2", "n3"] {
            if !random.one_in(8) {
                peers.insert(name.to_owned(), self.peer(name[1..].parse().unwrap(), random));
            }
        }
        let (mut data, ledger) = (self.data(random), self.ledger(random));
        if let (DataSeen::There(facts), LedgerSeen::There(ledger)) = (&mut data, &ledger)
            && random.one_in(3)
        {
            facts.ids = ledger.ids().or(facts.ids);
        }
        Observed {
            data,
            place: place(random),
            ledger,
            end: EndSeen::Absent,
            cluster: self.cluster_seen(random),
            peers,
            store: match random.below(6) {
                0 => StoreSeen::Unknown("u".into()),
                1 => StoreSeen::Empty,
                2 => {
                    let cluster = Some(self.cluster(random));
                    let declared = |number| Declared { token: "t".into(), bootstrap: (number > 0).then_some(number) };
                    let declared = (!random.one_in(4)).then(|| declared(random.below(4)));
                    StoreSeen::Chain { cluster, revision: Some(3), held: vec![Held { cluster, declared }] }
                }
                3 => StoreSeen::Chain {
                    cluster: None,
                    revision: None,
                    held: vec![Held { cluster: None, declared: None }],
                },
                _ => StoreSeen::NotDeclared,
            },
            sightings: self.sightings(random),
            nonce: "f".to_owned(),
            // Drawn beside the others, so that these stay what they are.
            rotates: random.0.count_ones().is_multiple_of(4),
        }
    }

    fn sightings(&self, random: &mut Random) -> Sightings {
        let leases = match random.below(12) {
            0 => LeasesSeen::Unknown("u".into()),
            1 => LeasesSeen::Held([("n1".to_owned(), Holder::Another("m".into()))].into()),
            2 => LeasesSeen::Held([("n1".to_owned(), Holder::ThisMachine)].into()),
            _ => LeasesSeen::Held(BTreeMap::new()),
        };
        let agent = match random.below(12) {
            0 => AgentSeen::Another("m".into()),
            1 => AgentSeen::ThisMachine,
            _ => AgentSeen::Silent("s".into()),
        };
        let mut answering = Vec::new();
        if random.one_in(12) {
            let (cluster, member) = (self.cluster(random), self.member(random));
            let name = random.of(&["n1", "n2"]).to_owned();
            answering.push(Answering { url: "http://10.0.0.1:2379".into(), cluster, member, name, peer_urls: vec![] });
        }
        let mut views = BTreeMap::new();
        for number in 2..=4 {
            let sees = if random.one_in(12) { BTreeSet::from([self.member(random)]) } else { BTreeSet::new() };
            if !random.one_in(12) {
                views.insert(MemberId(0xb0 + number), sees);
            }
        }
        Sightings { leases, agent, answering, views }
    }
}

fn specs() -> (Vec<Spec>, Foundings) {
    let mut specs = vec![spec(3, Some(1)), spec(3, Some(2)), spec(3, None), spec(1, Some(1)), spec(1, None)];
    let promises: Vec<Promise> = specs.iter().filter_map(promise).chain(specs.iter().flat_map(with_nonces)).collect();
    // And a file that does not declare this node.
    let mut without = spec(3, None);
    without.members.retain(|member| member.name != "n1");
    specs.push(without);
    (specs, Foundings { promises })
}

#[test]
fn whatever_is_seen_no_plan_breaks_a_rule() {
    let (specs, foundings) = specs();
    let mut random = Random(0x5eed);
    let (mut rows, mut wrong) = (std::collections::BTreeSet::new(), BTreeMap::new());
    for round in 0..60_000 {
        let (spec, seen) = (random.of(&specs), foundings.seen(&mut random));
        let plan = plan_start(&spec, "n1", &seen);
        rows.insert(plan.row);
        if let Err(broken) = check(&spec, "n1", &seen, &plan) {
            let what = || format!("round {round}: {}\n{seen:?}\nfile: {:?}", plan.render(), spec.bootstrap);
            wrong.entry(broken).or_insert_with(what);
        }
    }
    let wrong: Vec<String> = wrong.into_iter().map(|(broken, what)| format!("{broken:?} {what}")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(rows.len() >= 31, "only these rows were met: {rows:?}");
}

#[test]
fn a_planner_without_one_of_its_guards_is_objected_to() {
    let (specs, foundings) = specs();
    let mut random = Random(0x5eed);
    let mut caught = std::collections::BTreeMap::new();
    for _ in 0..60_000 {
        let (spec, seen) = (random.of(&specs), foundings.seen(&mut random));
        for guard in Guard::ALL.into_iter().filter(|guard| guard.is_in_start()) {
            if caught.contains_key(&guard) {
                continue;
            }
            let plan = plan_start_without(guard, &spec, "n1", &seen);
            if let Err(broken) = check(&spec, "n1", &seen, &plan) {
                caught.insert(guard, broken);
            }
        }
    }
    let all = Guard::ALL.into_iter().filter(|guard| guard.is_in_start());
    let missed: Vec<Guard> = all.filter(|guard| !caught.contains_key(guard)).collect();
    assert_eq!(missed, [], "{caught:#?}");
}
