//! The language of the fixtures: one fact in a line, details after it, separated by `;`.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::change::{ClusterView, LAG_FAR, LEARNER_UP_MS, LogRead, NOBODY, NodeNow, NodeSeen, Restart, Stage};
use quorate_plan::ledger::{IntentKind, LearnerSince};
use quorate_plan::spec::Spec;
use quorate_plan::start::{ClusterSeen, Health, ListedMember};

use crate::golden;

/// Later than everything.
const NOW: u64 = 100 * LEARNER_UP_MS;
/// The revision at which agents first looked, unless told otherwise.
const SINCE: u64 = 900;

pub(crate) struct Fixture {
    pub(crate) spec: Spec,
    pub(crate) view: ClusterView,
    /// `agents`: the plan as agents see it; `upgrade 3.5.30`: of an upgrade.
    pub(crate) asked: Option<String>,
}

/// `n3` is 3; `n3b` is the machine that takes its place, elsewhere.
fn number(name: &str) -> u64 {
    name.trim_end_matches('b')[1..].parse().unwrap()
}

fn id(name: &str) -> MemberId {
    MemberId(0xb0 + number(name) + if name.ends_with('b') { 0x10 } else { 0 })
}

fn address(name: &str) -> String {
    format!("10.0.{}.{}", u64::from(name.ends_with('b')), number(name))
}

impl Fixture {
    pub(crate) fn parse(text: &str) -> Fixture {
        let facts = golden::facts(text);
        let fact = |wanted: &str| golden::fact(&facts, wanted);
        let file = fact("file").unwrap_or(&["n1 n2 n3"]);
        let spec = spec(file);
        let mut it = Fixture {
            view: ClusterView {
                cluster: ClusterSeen::Unreachable("no quorum answers".to_owned()),
                leader: None,
                indexes: BTreeMap::new(),
                applied: BTreeMap::new(),
                corrupt: BTreeSet::new(),
                differing: BTreeSet::new(),
                nodes: BTreeMap::new(),
                learner: None,
                stored: None,
                now_ms: NOW,
                learner_up_ms: LEARNER_UP_MS,
            },
            asked: fact("for").map(|parts| parts[0].to_owned()),
            spec,
        };
        if let Some(parts) = fact("members") {
            it.members(parts);
        }
        if fact("alarm").is_some() {
            it.view.corrupt.insert(NOBODY);
        }
        for (node, parts) in
            facts.iter().filter(|(what, _)| !["file", "members", "for", "backup", "alarm"].contains(what))
        {
            let seen = it.node(node, parts);
            it.view.nodes.insert((*node).to_owned(), seen);
        }
        it.view.stored = fact("backup").map(|parts| match parts[0].strip_prefix("reaches ") {
            Some(revision) => revision.parse().unwrap(),
            None => SINCE,
        });
        it
    }

    /// `n1 leader; n2; n3 down; n4 learner behind late`. Each has an agent that answers, unless another line says otherwise.
    fn members(&mut self, parts: &[&str]) {
        let mut members = Vec::new();
        for part in parts {
            let words: Vec<&str> = part.split(' ').collect();
            let has = |word: &str| words.contains(&word);
            let (name, id) = (words[0], id(words[0]));
            let health = match (has("down"), has("silent")) {
                (true, _) => Health::Unhealthy("connection refused".to_owned()),
                (_, true) => Health::Unknown("no answer".to_owned()),
                (false, false) => Health::Healthy,
            };
            if has("leader") {
                self.view.leader = Some(id);
            }
            if health == Health::Healthy {
                self.view.indexes.insert(
                    id,
                    match () {
                        () if has("behind") => 100,
                        // `at 4500`: its index.
                        () if has("at") => words[words.len() - 1].parse().unwrap(),
                        () => 5000,
                    },
                );
            }
            if has("corrupt") {
                self.view.corrupt.insert(id);
            }
            if has("differs") {
                self.view.differing.insert(id);
            }
            if has("far") {
                self.view.indexes.extend(self.view.leader.map(|leader| (leader, 10_000 + LAG_FAR)));
                self.view.applied.insert(id, 9_999);
            }
            if has("learner") {
                let since_ms = NOW - if has("late") { LEARNER_UP_MS } else { 1000 };
                self.view.learner = Some(LearnerSince { member: id, since_ms });
            }
            members.push(ListedMember {
                id,
                name: if has("unstarted") { String::new() } else { name.to_owned() },
                peer_urls: vec![format!("http://{}:2380", address(name))],
                started: !has("unstarted"),
                learner: has("learner"),
                health,
            });
        }
        let up: Vec<(&str, bool)> = parts
            .iter()
            .map(|part| (part.split(' ').next().unwrap(), !part.contains(" down") && !part.contains(" silent")))
            .collect();
        self.view.cluster = ClusterSeen::Confirmed { cluster: ClusterId(0xc1), members };
        for (name, up) in up {
            let seen = if up { self.node(name, &[]) } else { silent() };
            self.view.nodes.insert(name.to_owned(), seen);
        }
    }

    fn node(&self, name: &str, parts: &[&str]) -> NodeSeen {
        let listed = self.view.members().is_some_and(|(_, all)| all.iter().any(|one| one.id == id(name)));
        let mut now = NodeNow {
            generation: 0,
            file: self.spec.hash(),
            stage: if listed { Stage::Member } else { Stage::Blank },
            member: listed.then_some(id(name)),
            etcd: listed.then(|| "3.5.30".to_owned()),
            storage: None,
            v2_entries: Some(0),
            log: Some(LogRead { snapshot: 4000, last: 5000 }),
            restart: None,
            intent: None,
            pausing: false,
            since: listed.then_some(SINCE),
        };
        for part in parts {
            match part.split_once(' ').unwrap_or((part, "")) {
                ("silent", _) => return silent(),
                ("answers", _) => {}
                ("old", "file") => now.file = "0ld".to_owned(),
                ("asked", "to leave") => now.intent = Some(IntentKind::Leave),
                ("asked", _) => now.intent = Some(IntentKind::Teardown),
                ("etcd", "ended") => now.etcd = None,
                ("etcd", release) => now.etcd = Some(release.to_owned()),
                ("old", "entries") => now.v2_entries = Some(3),
                // `old entries; log 17 4900`: the entry of its raft snapshot, and the last one that was read.
                ("log", range) => {
                    let (snapshot, last) = range.split_once(' ').unwrap();
                    now.log = Some(LogRead { snapshot: snapshot.parse().unwrap(), last: last.parse().unwrap() });
                }
                ("unknown", "entries") => now.v2_entries = None,
                ("stores", version) => now.storage = Some(version.to_owned()),
                ("restart", why) => {
                    let (trust, moves) = (why.starts_with("trust"), why.contains("address"));
                    now.restart = Some(Restart { why: why.to_owned(), release: None, trust, moves });
                }
                ("release", to) => {
                    let (why, release) = ("another release".to_owned(), Some(to.to_owned()));
                    now.restart = Some(Restart { why, release, trust: false, moves: false });
                }
                ("pausing", _) => now.pausing = true,
                ("since", "unknown") => now.since = None,
                ("since", revision) => now.since = Some(revision.parse().unwrap()),
                ("removed", "for good") => now.stage = Stage::Removed,
                ("removed", _) => (now.stage, now.member) = (Stage::Member, Some(id(name))),
                ("runs", _) => now.etcd = Some("3.5.30".to_owned()),
                ("joining", _) => now.stage = Stage::Joining,
                ("generation", number) => now.generation = number.parse().unwrap(),
                other => panic!("no answer: {other:?}"),
            }
        }
        NodeSeen::Answered(Box::new(now))
    }
}

fn silent() -> NodeSeen {
    NodeSeen::Unknown("no answer".to_owned())
}

/// `n1 n2 n3@7; backup; etcd enable-v2: true`: names, with another address after `@`.
fn spec(parts: &[&str]) -> Spec {
    let mut text = "token: t\nplaintext: true\nmembers:\n".to_owned();
    for name in parts[0].split(' ') {
        let (name, address) = match name.split_once('@') {
            Some((name, last)) => (name, format!("10.0.0.{last}")),
            None => (name, address(name)),
        };
        text += &format!("  - {{name: {name}, address: {address}}}\n");
    }
    for part in &parts[1..] {
        match part.split_once(' ').unwrap_or((part, "")) {
            ("backup", _) => text += "backup: {store: \"file:///backups\"}\n",
            ("founding", id) => text += &format!("bootstrap: {{id: {id}}}\n"),
            ("etcd", setting) => text += &format!("etcd: {{{setting}}}\n"),
            other => panic!("no file: {other:?}"),
        }
    }
    Spec::parse(text.as_bytes(), "fixture").map_err(|mistakes| mistakes.render()).unwrap().0
}
