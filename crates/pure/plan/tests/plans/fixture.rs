//! The language of the fixtures: one fact in a line, details after it, separated by `;`.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::delta::quorate::Declared;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::fork::{Fork, Sealed};
use quorate_plan::ledger::{
    AcceptedEmpty, Dropped, Generation, Identity, Intent, IntentKind, Ledger, LedgerSeen, Origin, PeerMemory,
    PendingAdd, Promise, RolledBack, Seal, State, Tombstone,
};
use quorate_plan::spec::Spec;
use quorate_plan::start::{
    AgentSeen, Answering, ClusterSeen, DataFacts, DataSeen, EndSeen, Health, Held, Holder, LeasesSeen, ListedMember,
    Observed, PeerAnswer, PeerFounding, PeerSeen, PlaceState, Sightings, StoreSeen, Verdict,
};

use crate::golden;

/// Ids that no founding leads to.
const OTHER: ClusterId = ClusterId(0x0dd);
const EARLIER: MemberId = MemberId(0x01d);
const GIVEN: MemberId = MemberId(0x9e3);

pub(crate) struct Fixture {
    pub(crate) spec: Spec,
    pub(crate) name: String,
    pub(crate) seen: Observed,
    names: Vec<String>,
}

impl Fixture {
    pub(crate) fn parse(text: &str) -> Fixture {
        let facts = golden::facts(text);
        let fact = |wanted: &str| golden::fact(&facts, wanted);
        let file = fact("file").unwrap_or(&["n1 n2 n3", "founding 1"]);
        let names: Vec<String> = file[0].split(' ').map(str::to_owned).collect();
        let spec = spec(&names, file.iter().find_map(|part| part.strip_prefix("founding ")));
        let mut it = Fixture {
            name: "n1".to_owned(),
            seen: Observed {
                data: DataSeen::Absent,
                place: PlaceState::NotCompared,
                ledger: LedgerSeen::Absent,
                end: EndSeen::Clean,
                cluster: ClusterSeen::Unreachable("no quorum answers".to_owned()),
                peers: BTreeMap::new(),
                store: StoreSeen::NotDeclared,
                sightings: Sightings::none("nobody answers"),
                nonce: "new".to_owned(),
                rotates: fact("authorities").is_some(),
            },
            spec,
            names,
        };
        for (what, parts) in &facts {
            match *what {
                "file" | "elsewhere" | "authorities" => {}
                "data" => it.seen.data = it.data(parts),
                "place" => it.seen.place = place(parts[0]),
                "ledger" => it.seen.ledger = it.ledger(parts),
                "cluster" => it.seen.cluster = it.cluster_seen(parts),
                "store" => it.seen.store = it.store(parts[0]),
                peer => {
                    let answer = it.peer(peer, parts);
                    it.seen.peers.insert(peer.to_owned(), answer);
                }
            }
        }
        it.seen.sightings = it.sightings(fact("elsewhere").unwrap_or_default());
        it
    }

    /// Nothing but what is said: where there is a cluster, everyone was asked, and none has this node.
    fn sightings(&self, parts: &[&str]) -> Sightings {
        let ClusterSeen::Confirmed { cluster, members } = &self.seen.cluster else {
            let mut seen = Sightings::none("nobody answers");
            if parts.contains(&"answers") {
                seen.answering = vec![self.answering(self.cluster("1"))];
            }
            return seen;
        };
        let another = |member: &&ListedMember| member.peer_urls != ["http://10.0.0.1:2380"];
        let mut views: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for member in members.iter().filter(another) {
            views.insert(member.id, members.iter().filter(another).map(|other| other.id).collect());
        }
        let id_of = |name: &str| members.iter().find(|member| member.name == name).unwrap().id;
        let mut seen = Sightings {
            leases: LeasesSeen::Held(BTreeMap::new()),
            agent: AgentSeen::ThisMachine,
            answering: Vec::new(),
            views,
        };
        for part in parts {
            match part.split_once(' ').unwrap_or((part, "")) {
                ("leased", "here") => seen.leases = LeasesSeen::Held([("n1".to_owned(), Holder::ThisMachine)].into()),
                ("leased", machine) => {
                    let holder = Holder::Another(machine.trim_start_matches("to ").to_owned());
                    seen.leases = LeasesSeen::Held([("n1".to_owned(), holder)].into());
                }
                ("leases", _) => seen.leases = LeasesSeen::Unknown("no answer".to_owned()),
                ("agent", machine) => seen.agent = AgentSeen::Another(machine.to_owned()),
                ("answers", _) => seen.answering.push(self.answering(*cluster)),
                (voter, "sees it") => {
                    seen.views.entry(id_of(voter)).or_default().insert(id_of("n1"));
                }
                (voter, "does not tell") => {
                    seen.views.remove(&id_of(voter));
                }
                other => panic!("nothing elsewhere: {other:?}"),
            }
        }
        seen
    }

    fn answering(&self, cluster: ClusterId) -> Answering {
        let (url, member) = ("http://10.0.0.1:2379".to_owned(), self.promise(1).member);
        Answering { url, cluster, member, name: "n1".to_owned(), peer_urls: vec!["http://10.0.0.1:2380".to_owned()] }
    }

    /// What operators read, with names for the ids.
    pub(crate) fn with_names(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for number in 1..4 {
            let Some(ids) = self.founding(number).founding_ids_of(&self.nonces()) else { continue };
            text = text.replace(&ids.cluster.to_string(), &format!("CLUSTER-{number}"));
            for (name, id) in ids.members {
                text = text.replace(&id.to_string(), &format!("{}-of-{number}", name.to_uppercase()));
            }
        }
        text
    }

    fn founding(&self, number: u64) -> Spec {
        spec(&self.names, Some(&number.to_string()))
    }

    /// Each member has its number as its nonce.
    fn nonces(&self) -> BTreeMap<String, String> {
        self.names.iter().map(|name| (name.clone(), name[1..].to_owned())).collect()
    }

    /// What `name` has promised before it knew of every other promise.
    fn unsealed(&self, name: &str, number: u64) -> Promise {
        let (nonce, nonces) = (Some(name[1..].to_owned()), BTreeMap::new());
        let ids = self.founding(number).founding_ids().unwrap();
        let (cluster, member) = (ids.cluster, ids.members.get("n1").copied().unwrap_or(EARLIER));
        Promise { nonce, nonces, cluster, member, ..self.promise(number) }
    }

    fn promise(&self, number: u64) -> Promise {
        let spec = self.founding(number);
        let ids = spec.founding_ids_of(&self.nonces()).unwrap();
        Promise {
            bootstrap: number,
            declaration: spec.declaration_hash(),
            cluster: ids.cluster,
            // A file that does not declare it: any id will do.
            member: ids.members.get("n1").copied().unwrap_or(EARLIER),
            members: self.names.clone(),
            over: false,
            nonce: Some("1".to_owned()),
            nonces: self.nonces(),
        }
    }

    /// `of 2`: of the second founding; `of another`: of none.
    fn cluster(&self, word: &str) -> ClusterId {
        word.parse().map_or(OTHER, |number| self.promise(number).cluster)
    }

    fn data(&self, parts: &[&str]) -> DataSeen {
        let (word, last) = (parts[0], parts.iter().find_map(|part| part.strip_prefix("ends at ")));
        let verdict = match word {
            "absent" => return DataSeen::Absent,
            "unknown" => return DataSeen::Unknown("permission denied".to_owned()),
            "valid" => Verdict::Valid,
            "unchecked" => Verdict::Unchecked,
            "torn" => Verdict::RepairableTail("a torn record".to_owned()),
            "damaged" => Verdict::Corrupt("page 7".to_owned()),
            "half" => Verdict::Half("`/wal/n1` holds nothing, and `/data/n1` holds data".to_owned()),
            other => panic!("no data: {other}"),
        };
        let mut ids = self.promise(1);
        for part in parts {
            match *part {
                "of another" => (ids.cluster, ids.member) = (OTHER, MemberId(0xabc)),
                "of the earlier member" => ids.member = EARLIER,
                "of the given member" => ids.member = GIVEN,
                _ => {}
            }
        }
        let last_index = last.map(|last| last.parse().unwrap());
        let reach = parts.iter().find_map(|part| part.strip_prefix("leads to ")).map(|reach| reach.parse().unwrap());
        let last_term = parts.iter().find_map(|part| part.strip_prefix("of term ")).map(|term| term.parse().unwrap());
        let ids = Some((ids.cluster, ids.member));
        DataSeen::There(DataFacts { ids, last_index, last_term, verdict, readable: None, reach })
    }

    fn ledger(&self, parts: &[&str]) -> LedgerSeen {
        let mut words = parts[0].split(' ');
        let (state, number) = (words.next().unwrap(), words.next().and_then(|word| word.parse().ok()).unwrap_or(1));
        let promise = self.promise(number);
        let (cluster, member) = (promise.cluster, promise.member);
        let pending =
            |member| PendingAdd { cluster, member, peer_urls: vec![], replaces: Some(EARLIER), generation: 0 };
        let state = match state {
            "unreadable" => return LedgerSeen::Unreadable("its checksum does not match".to_owned()),
            "empty" => State::Empty,
            "promised" => State::Promised(self.unsealed("n1", number)),
            "lost" => {
                let nonce = Some("another".to_owned());
                State::Promised(Promise { nonce, ..self.unsealed("n1", number) })
            }
            "sealed" => State::Promised(promise),
            "inited" => State::Inited(promise),
            "started" => State::Started(Identity { cluster, member, origin: Origin::Founded }),
            "joined" => State::Started(Identity { cluster, member: GIVEN, origin: Origin::Joined }),
            "asked" => State::PendingAdd(pending(None)),
            "added" => State::PendingAdd(pending(Some(GIVEN))),
            "tombstone" | "undeclared" => State::Tombstone(Tombstone {
                cluster,
                member,
                why: "drained by ops".into(),
                at_ms: 1,
                undeclared: state == "undeclared",
            }),
            other => panic!("no ledger: {other}"),
        };
        let mut ledger = Ledger { state, ..Ledger::default() };
        for part in &parts[1..] {
            match part.rsplit_once(' ').unwrap() {
                ("asked to", what) => {
                    let kind = if what == "leave" { IntentKind::Leave } else { IntentKind::Teardown };
                    ledger.intent = Some(Intent { kind, why: "ops asked for it".to_owned(), at_ms: 1 });
                }
                ("accepted", mount_point) => {
                    ledger.accepted_empty = Some(AcceptedEmpty { mount_point: mount_point.to_owned(), at_ms: 1 });
                }
                ("being", "renamed") => ledger.archiving = true,
                ("taken", "over") => ledger.taken_over = true,
                ("left", "another") => ledger.left.push(OTHER),
                ("restored from", "another") => ledger.was.push(OTHER),
                ("recorded", word) => {
                    let sealed = if word == "written" { Sealed::Written } else { Sealed::Unwritten };
                    ledger.forks = vec![Fork { rival: OTHER, sealed }];
                }
                ("behind store", revision) => {
                    let seen = revision.parse().unwrap();
                    ledger.rolled_back = Some(RolledBack { member, seen, last: 100, by_store: true });
                }
                ("used", id) => ledger.consumed.push(id.parse().unwrap()),
                ("gave up", id) => {
                    let bootstrap = id.parse().unwrap();
                    ledger.consumed.push(bootstrap);
                    let Promise { cluster, members, declaration, .. } = self.promise(bootstrap);
                    ledger.dropped.push(Dropped { bootstrap, cluster, members, declaration: Some(declaration) });
                }
                ("remembers", peer) => {
                    let memory = PeerMemory { started: true, cluster: Some(cluster), ..PeerMemory::default() };
                    ledger.peers.insert(peer.to_owned(), memory);
                }
                ("generation", number) => ledger.generation = number.parse().unwrap(),
                ("outdated", number) => {
                    ledger.outdated_by = Some(Generation { number: number.parse().unwrap(), cluster: None });
                }
                other => panic!("no ledger: {other:?}"),
            }
        }
        LedgerSeen::There(Box::new(ledger))
    }

    fn peer(&self, name: &str, parts: &[&str]) -> PeerSeen {
        let founding = match parts[0].split_once(' ') {
            None if parts[0] == "silent" => return PeerSeen::Unknown("no answer".to_owned()),
            None if parts[0] == "nothing" => PeerFounding::Nothing,
            None => PeerFounding::Removed,
            Some(("promised", number)) => PeerFounding::Promised(self.unsealed(name, number.parse().unwrap())),
            Some(("lost", number)) => {
                let nonce = Some("another".to_owned());
                PeerFounding::Promised(Promise { nonce, ..self.unsealed(name, number.parse().unwrap()) })
            }
            Some(("sealed", number)) => {
                let nonce = Some(name[1..].to_owned());
                PeerFounding::Promised(Promise { nonce, ..self.promise(number.parse().unwrap()) })
            }
            Some((_, cluster)) => PeerFounding::Founded(self.cluster(cluster)),
        };
        let seal = match parts[0].split_once(' ') {
            Some(("founded", number)) => number.parse().ok().map(|number| {
                let Promise { declaration, cluster, nonces, .. } = self.promise(number);
                Seal { declaration, cluster, nonces }
            }),
            Some(_) | None => None,
        };
        let mut answer = PeerAnswer {
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
            consumed: vec![],
            dropped: vec![],
            started: vec![],
            seal,
        };
        for part in &parts[1..] {
            match part.rsplit_once(' ').unwrap() {
                ("remembers", "n1") => answer.remembers_me_started = true,
                ("remembers", peer) => answer.started.push(peer.to_owned()),
                ("buried", _) => answer.my_tombstone = true,
                ("generation", number) => answer.generation = number.parse().unwrap(),
                ("recorded", word) => {
                    let sealed = match word {
                        "written" => Sealed::Written,
                        "unwritten" => Sealed::Unwritten,
                        _ => Sealed::ById,
                    };
                    answer.forks = Some(vec![Fork { rival: self.cluster("1"), sealed }]);
                }
                ("recorded nothing", _) => answer.forks = Some(vec![]),
                ("of cluster", number) => answer.generation_of = Some(self.cluster(number)),
                ("acknowledged term", term) => answer.acknowledged_term = Some(term.parse().unwrap()),
                ("acknowledged", index) => answer.acknowledged = Some(index.parse().unwrap()),
                ("used", id) => answer.consumed.push(id.parse().unwrap()),
                ("gave up", id) => {
                    answer.consumed.push(id.parse().unwrap());
                    answer.dropped.push(id.parse().unwrap());
                }
                other => panic!("no answer: {other:?}"),
            }
        }
        PeerSeen::Answered(answer)
    }

    /// `1; n1 started lost; n2 started; n3 learner`: whose, then its members.
    fn cluster_seen(&self, parts: &[&str]) -> ClusterSeen {
        let member = |part: &&str| {
            let words: Vec<&str> = part.split(' ').collect();
            let has = |word: &str| words.contains(&word);
            let number: u64 = words[0][1..].parse().unwrap();
            let id = match words[0] {
                "n1" if has("earlier") => EARLIER,
                "n1" if has("given") => GIVEN,
                name => self
                    .founding(1)
                    .founding_ids_of(&self.nonces())
                    .unwrap()
                    .members
                    .get(name)
                    .copied()
                    .unwrap_or(EARLIER),
            };
            let health = match (has("lost"), has("silent")) {
                (true, _) => Health::Unhealthy("connection refused".to_owned()),
                (_, true) => Health::Unknown("no answer".to_owned()),
                (false, false) => Health::Healthy,
            };
            ListedMember {
                id,
                name: if has("started") { words[0].to_owned() } else { String::new() },
                peer_urls: vec![format!("http://10.0.0.{number}:2380")],
                started: has("started"),
                learner: has("learner"),
                health,
            }
        };
        ClusterSeen::Confirmed { cluster: self.cluster(parts[0]), members: parts[1..].iter().map(member).collect() }
    }

    fn store(&self, word: &str) -> StoreSeen {
        let chain = |cluster: ClusterId, revision: Option<u64>, number: Option<u64>| {
            let declared = number.map(|number| Declared { token: "t".to_owned(), bootstrap: Some(number) });
            StoreSeen::Chain { cluster: Some(cluster), revision, held: vec![Held { cluster: Some(cluster), declared }] }
        };
        match word {
            "empty" => StoreSeen::Empty,
            "unknown" => StoreSeen::Unknown("no answer".to_owned()),
            "unproven chain" => chain(self.cluster("1"), None, Some(1)),
            "chain of another" => chain(OTHER, Some(7), None),
            // Restored once, or founded with other members: the id is another, the declaration the same.
            "chain of another id" => chain(OTHER, Some(7), Some(1)),
            "chain" => chain(self.cluster("1"), Some(120), Some(1)),
            other => panic!("no store: {other}"),
        }
    }
}

fn place(word: &str) -> PlaceState {
    let (dir, mount_point) = ("/data/n1".to_owned(), "/data".to_owned());
    match word {
        "same" => PlaceState::Same,
        "not mounted" => PlaceState::NotMounted { dir, mount_point, fs_type: "xfs".to_owned() },
        "another file system" => PlaceState::OtherFileSystem { dir, mount_point },
        "unknown" => PlaceState::Unknown("/proc/self/mountinfo: permission denied".to_owned()),
        other => panic!("no place: {other}"),
    }
}

fn spec(names: &[String], founding: Option<&str>) -> Spec {
    let founding = founding.map(|id| format!("bootstrap: {{id: {id}}}\n")).unwrap_or_default();
    let mut text = format!("token: t\nplaintext: true\n{founding}members:\n");
    for name in names {
        text += &format!("  - {{name: {name}, address: 10.0.0.{}}}\n", &name[1..]);
    }
    Spec::parse(text.as_bytes(), "fixture").map_err(|mistakes| mistakes.render()).unwrap().0
}
