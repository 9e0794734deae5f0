//! What the texts in `tests/changes` do not say: hashes, whose turn it is, and sights put together at random.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::membership::{ClusterId, MemberId};

use super::upgrade::{Kind, Release, allowed};
use super::*;
use crate::check::check_change;
use crate::ledger::{IntentKind, LearnerSince, Ledger};
use crate::start::{Health, ListedMember};

pub(super) fn spec(numbers: &[u64], more: &str) -> Spec {
    let mut text = format!("token: t\nplaintext: true\n{more}members:\n");
    for number in numbers {
        text += &format!("  - {{name: n{number}, address: 10.0.0.{number}}}\n");
    }
    Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap().0
}

pub(super) fn id(number: u64) -> MemberId {
    MemberId(0xb0 + number)
}

fn member(number: u64) -> ListedMember {
    ListedMember {
        id: id(number),
        name: format!("n{number}"),
        peer_urls: vec![format!("http://10.0.0.{number}:2380")],
        started: true,
        learner: false,
        health: Health::Healthy,
    }
}

fn now(spec: &Spec, number: u64) -> NodeNow {
    NodeNow {
        generation: 0,
        file: spec.hash(),
        stage: Stage::Member,
        member: Some(id(number)),
        etcd: Some("3.5.30".to_owned()),
        storage: None,
        v2_entries: Some(0),
        log: Some(LogRead { snapshot: 0, last: 5000 }),
        restart: None,
        intent: None,
        pausing: false,
        since: Some(900),
    }
}

/// Everyone is there and well; `n1` leads.
fn view(spec: &Spec, numbers: &[u64]) -> ClusterView {
    let nodes = numbers.iter().map(|one| (format!("n{one}"), NodeSeen::Answered(Box::new(now(spec, *one)))));
    ClusterView {
        cluster: ClusterSeen::Confirmed {
            cluster: ClusterId(0xc1),
            members: numbers.iter().map(|one| member(*one)).collect(),
        },
        leader: Some(id(1)),
        indexes: numbers.iter().map(|one| (id(*one), 5000)).collect(),
        applied: BTreeMap::new(),
        corrupt: BTreeSet::new(),
        differing: BTreeSet::new(),
        nodes: nodes.collect(),
        learner: None,
        stored: None,
        now_ms: 10 * LEARNER_UP_MS,
        learner_up_ms: LEARNER_UP_MS,
    }
}

#[test]
fn a_plan_that_is_half_done_was_approved_and_one_of_another_world_was_not() {
    let four = spec(&[1, 2, 3, 4], "");
    let before = view(&four, &[1, 2, 3, 5]);
    let approved = plan_change(&before, &four);
    let new = |view: &ClusterView| -> Vec<String> {
        let plan = plan_change(view, &four);
        plan.unapproved(&approved).iter().map(|step| step.act.to_string()).collect()
    };
    assert!(new(&before).is_empty());
    // `n4` listens by now, and has to be taken out again; then it votes, and `n5` is gone.
    let mut listens = view(&four, &[1, 2, 3, 4, 5]);
    let ClusterSeen::Confirmed { members, .. } = &mut listens.cluster else { unreachable!() };
    members[3].learner = true;
    assert!(new(&listens).is_empty());
    let ClusterSeen::Confirmed { members, .. } = &mut listens.cluster else { unreachable!() };
    members[3].health = Health::Unknown("it did not answer".to_owned());
    listens.learner = Some(LearnerSince { member: id(4), since_ms: 0 });
    assert!(matches!(plan_change(&listens, &four).steps[0].act, Act::UndoLearner(_)));
    assert!(new(&listens).is_empty());
    assert!(new(&view(&four, &[1, 2, 3, 4])).is_empty());
    // Somebody else took `n3` out, or one more in.
    assert_eq!(new(&view(&four, &[1, 2, 5])), ["add `n3` as a learner, and start its etcd", "promote `n3` to a voter"]);
    assert_eq!(new(&view(&four, &[1, 2, 3, 5, 6])), ["remove `n6` (member `b6`) through another member"]);
}

#[test]
fn the_same_change_of_the_same_cluster_has_one_hash() {
    let three = spec(&[1, 2, 3], "");
    let one = view(&three, &[1, 2, 3, 4]);
    let hash = plan_change(&one, &three).hash();
    let mut other = one.clone();
    // Who leads, what time it is, and in which order the members were told change nothing that was approved.
    (other.leader, other.now_ms) = (Some(id(4)), 99 * LEARNER_UP_MS);
    if let ClusterSeen::Confirmed { members, .. } = &mut other.cluster {
        members.reverse();
    }
    assert_ne!(plan_change(&one, &three).render(), plan_change(&other, &three).render());
    assert_eq!(plan_change(&other, &three).hash(), hash);
    assert_eq!(hash.len(), 64);
}

#[test]
fn another_cluster_another_file_or_another_halt_has_another_hash() {
    let three = spec(&[1, 2, 3], "");
    let seen = view(&three, &[1, 2, 3, 4]);
    let mut hashes = BTreeSet::from([plan_change(&seen, &three).hash()]);
    let mut replaced = seen.clone();
    if let ClusterSeen::Confirmed { members, .. } = &mut replaced.cluster {
        members[3].id = MemberId(0xbad);
    }
    assert!(hashes.insert(plan_change(&replaced, &three).hash()), "the member is another one");
    let other = spec(&[1, 2, 3], "etcd: {snapshot-count: 5}\n");
    assert!(hashes.insert(plan_change(&seen, &other).hash()), "the file is another one");
    let mut down = seen.clone();
    if let ClusterSeen::Confirmed { members, .. } = &mut down.cluster {
        members[1].health = Health::Unhealthy("down".to_owned());
    }
    assert!(hashes.insert(plan_change(&down, &three).hash()), "it would wait now");
}

#[test]
fn an_agent_takes_the_first_step_if_it_is_its_own() {
    let two = spec(&[1, 2], "");
    let seen = view(&two, &[1, 2, 3]);
    assert_eq!(next_for(&seen, &two, "n1").map(|step| step.act), Some(Act::Remove(Who::new("n3", Some(id(3))))));
    assert_eq!((next_for(&seen, &two, "n2"), next_for(&seen, &two, "n3")), (None, None));
}

#[test]
fn a_node_of_an_older_generation_stops_its_etcd() {
    let three = spec(&[1, 2, 3], "");
    let mut seen = view(&three, &[1, 2, 3]);
    let newer = NodeNow { generation: 1, ..now(&three, 3) };
    seen.nodes.insert("n3".to_owned(), NodeSeen::Answered(Box::new(newer)));
    for (me, stops) in [("n1", true), ("n2", true), ("n3", false)] {
        let next = next_for(&seen, &three, me);
        assert_eq!(matches!(next, Some(ChangeStep { act: Act::Stop(_), .. })), stops, "{me}: {next:?}");
    }
}

#[test]
fn releases_go_one_minor_version_at_a_time() {
    let release = |text: &str| Release::parse(text).unwrap();
    let step = |from: &[&str], to: &str| {
        let names = ["n1", "n2", "n3"];
        let from = names.iter().zip(from).map(|(name, from)| ((*name).to_owned(), release(from))).collect();
        allowed(&from, release(to)).map_err(|no| no.why)
    };
    assert_eq!(step(&["3.4.23"], "3.5.16"), Ok(Kind::Up));
    assert_eq!(step(&["3.5.16"], "3.5.30"), Ok(Kind::Patch));
    assert_eq!(step(&["3.5.30"], "3.5.16"), Ok(Kind::Patch));
    assert_eq!(step(&["3.5.30", "3.5.30"], "3.5.30"), Ok(Kind::Same));
    assert_eq!(step(&["3.6.11"], "3.7.1"), Ok(Kind::Up));
    assert_eq!(step(&["3.7.1"], "3.6.11"), Ok(Kind::Down));
    assert_eq!(step(&["3.6.11"], "3.5.30"), Ok(Kind::Down));
    assert_eq!(step(&["3.4.23", "3.5.16"], "3.5.16"), Ok(Kind::Up));
    assert_eq!(step(&["3.4.23", "3.5.16"], "3.4.23"), Ok(Kind::Back));
    for (from, to) in [
        (&["3.4.23"][..], "3.6.11"),
        (&["3.5.25"], "3.6.11"),
        (&["3.5.30", "3.5.25"], "3.6.11"),
        (&["3.5.30"], "3.4.23"),
        (&["3.7.1"], "3.5.30"),
        (&["3.4.23", "3.6.11"], "3.5.30"),
        (&["3.5.30"], "4.0.0"),
        (&[], "3.5.30"),
    ] {
        assert!(step(from, to).is_err(), "{from:?} to {to}: {:?}", step(from, to));
    }
    assert_eq!(Release::parse("v3.6.0-rc.1"), Some(Release { major: 3, minor: 6, patch: 0 }));
    assert_eq!((Release::parse("3.5"), Release::parse("3.5.x"), Release::parse("")), (None, None, None));
}

#[test]
fn a_learner_that_was_noted_by_a_clock_that_went_back_is_given_its_time_anew() {
    let learner = ListedMember { learner: true, ..member(2) };
    let list = [member(1), learner];
    let noted = note_learner(&Ledger::default(), &list, 5000);
    assert_eq!(noted.learner, Some(LearnerSince { member: id(2), since_ms: 5000 }));
    assert_eq!(note_learner(&noted, &list, 9000), noted, "the first look counts");
    let back = note_learner(&noted, &list, 1000);
    assert_eq!(back.learner, Some(LearnerSince { member: id(2), since_ms: 1000 }));
    assert_eq!(note_learner(&back, &[member(1)], 2000).learner, None);
}

#[test]
fn who_knows_no_leader_restarts_alone_only_where_that_brings_it_back() {
    use Listing::{AsDeclared, Elsewhere};
    let due = |trust, moves| Restart { why: "w".to_owned(), release: None, trust, moves };
    for (restart, listing, heals) in [
        (due(true, false), Elsewhere, true),
        (due(false, true), AsDeclared, true),
        (due(true, true), Elsewhere, false),
        (due(false, true), Elsewhere, false),
        (due(false, false), AsDeclared, false),
    ] {
        assert_eq!(heals_alone(Some(&restart), listing), heals, "{restart:?}, {listing:?}");
        let another = Restart { release: Some("3.5.31".to_owned()), ..restart };
        assert!(!heals_alone(Some(&another), listing), "{another:?}");
        assert!(!heals_alone(None, listing), "{listing:?}");
    }
}

/// It rejects every peer that would report its removal, and its address in the file is another one by now.
#[test]
fn restarts_a_member_without_a_leader_that_was_removed() {
    let due = Restart { why: "w".to_owned(), release: Some("3.5.31".to_owned()), trust: true, moves: true };
    assert!(heals_alone(Some(&due), Listing::Removed));
    assert!(heals_alone(None, Listing::Removed));
}

#[test]
fn those_that_stay_where_they_are_are_a_majority() {
    for (voters, most) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3)] {
        assert_eq!(moved_at_once_max(voters), most);
        assert!(voters < 3 || voters - most > voters / 2);
    }
}

/// Numbers from a seed.
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

    /// A cluster in some state or other: most of them could not be, which is no excuse.
    fn sight(&mut self) -> (Spec, ClusterView) {
        let declared: Vec<u64> = (1..6).filter(|_| !self.one_in(3)).collect();
        let declared = if declared.is_empty() { vec![1] } else { declared };
        let backup = if self.one_in(2) { "backup: {store: \"file:///b\"}\n" } else { "" };
        let bootstrap = if self.one_in(3) { "bootstrap: {id: 1}\n" } else { "" };
        let spec = spec(&declared, &format!("{backup}{bootstrap}"));
        let listed: Vec<u64> = (1..6).filter(|_| !self.one_in(3)).collect();
        let listed = if listed.is_empty() { vec![1] } else { listed };
        let mut view = view(&spec, &listed);
        for number in declared {
            view.nodes.entry(format!("n{number}")).or_insert_with(|| {
                let blank = NodeNow { stage: Stage::Blank, member: None, etcd: None, ..now(&spec, number) };
                NodeSeen::Answered(Box::new(blank))
            });
        }
        let leads = listed[self.below(listed.len() as u64) as usize];
        view.leader = (!self.one_in(8)).then_some(id(leads));
        view.stored = (!self.one_in(3)).then(|| 898 + self.below(4));
        for number in &listed {
            if self.one_in(12) {
                view.corrupt.insert(if self.one_in(6) { NOBODY } else { id(*number) });
            }
            if self.one_in(12) {
                view.differing.insert(id(*number));
            }
            if self.one_in(3) {
                view.applied.insert(id(*number), 5000);
                view.indexes.extend(view.leader.map(|leader| (leader, 5000 + self.below(2) * (LAG_FAR + 1))));
            }
        }
        let mut learner = None;
        if let ClusterSeen::Confirmed { members, .. } = &mut view.cluster {
            for member in members.iter_mut() {
                member.health = match self.below(8) {
                    0 => Health::Unhealthy("down".to_owned()),
                    1 => Health::Unknown("silent".to_owned()),
                    _ => Health::Healthy,
                };
                if learner.is_none() && Some(member.id) != view.leader && self.one_in(6) {
                    (member.learner, learner) = (true, Some(member.id));
                    if self.one_in(2) {
                        member.name.clear();
                    }
                }
            }
        }
        if let Some(member) = learner {
            let since_ms = if self.one_in(2) { 0 } else { view.now_ms };
            view.learner = Some(LearnerSince { member, since_ms });
            if self.one_in(2) {
                view.indexes.insert(member, 10);
            }
        }
        let upgrades = self.one_in(6);
        for seen in view.nodes.values_mut() {
            self.disturb(seen);
            if upgrades {
                self.upgrade(seen);
            }
        }
        (spec, view)
    }

    /// From 3.6 to 3.7, with logs of all kinds.
    fn upgrade(&mut self, seen: &mut NodeSeen) {
        let NodeSeen::Answered(now) = seen else { return };
        now.etcd = now.etcd.take().map(|_| if self.one_in(6) { "3.7.1" } else { "3.6.14" }.to_owned());
        let (why, release) = ("release".to_owned(), Some("3.7.1".to_owned()));
        now.restart = Some(Restart { why, release, trust: false, moves: false });
        now.v2_entries = match self.below(6) {
            0 => None,
            1 => Some(3),
            _ => Some(0),
        };
        let last = if self.one_in(4) { 4_000_000 } else { 5_000 };
        now.log = (!self.one_in(6)).then_some(LogRead { snapshot: 10, last });
    }

    fn disturb(&mut self, seen: &mut NodeSeen) {
        if self.one_in(10) {
            *seen = NodeSeen::Unknown("silent".to_owned());
            return;
        }
        let NodeSeen::Answered(now) = seen else { return };
        match self.below(16) {
            0 => now.file = "another".to_owned(),
            1 | 2 => now.intent = Some(IntentKind::Leave),
            3 => now.intent = self.one_in(4).then_some(IntentKind::Teardown),
            4 | 5 => {
                now.restart = Some(Restart {
                    why: "flags".to_owned(),
                    release: None,
                    trust: self.one_in(2),
                    moves: self.one_in(2),
                })
            }
            6 => {
                let (why, release) = ("release".to_owned(), Some("3.5.31".to_owned()));
                now.restart = Some(Restart { why, release, trust: self.one_in(2), moves: false });
            }
            7 => now.pausing = true,
            8 => now.member = Some(MemberId(0x999)),
            9 => now.since = self.one_in(2).then_some(901),
            _ => {}
        }
    }
}

#[test]
fn whatever_is_seen_no_change_breaks_a_rule() {
    let mut random = Random(0x5eed);
    let (mut wrong, mut acts) = (BTreeMap::new(), BTreeSet::new());
    for round in 0..20_000 {
        let (spec, view) = random.sight();
        for plan in [plan_change(&view, &spec), plan_for_agents(&view, &spec)] {
            acts.extend(plan.steps.iter().map(|step| format!("{:?}", std::mem::discriminant(&step.act))));
            if let Err(broken) = check_change(&spec, &view, &plan) {
                wrong.entry(broken).or_insert_with(|| format!("round {round}: {}\n{view:?}", plan.render()));
            }
        }
    }
    let wrong: Vec<String> = wrong.into_iter().map(|(broken, what)| format!("{broken:?} {what}")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(acts.len() >= 12, "only {} kinds of steps were met", acts.len());
}

#[test]
fn a_change_without_one_of_its_guards_is_objected_to() {
    let mut random = Random(0x5eed);
    let mut caught = BTreeMap::new();
    for _ in 0..20_000 {
        let (spec, view) = random.sight();
        for guard in Guard::IN_CHANGE {
            if caught.contains_key(&guard) {
                continue;
            }
            if let Err(broken) = check_change(&spec, &view, &plan_for_agents_without(guard, &view, &spec)) {
                caught.insert(guard, broken);
            }
        }
    }
    let missed: Vec<Guard> = Guard::IN_CHANGE.into_iter().filter(|guard| !caught.contains_key(guard)).collect();
    assert_eq!(missed, [], "{caught:#?}");
}

/// The one waits to leave until the other takes part, and the other takes part when the cluster looks for it where it is.
#[test]
fn a_member_that_is_looked_for_elsewhere_is_found_before_one_that_is_down_leaves() {
    let text =
        "token: t\nplaintext: true\nmembers:\n  - {name: n1, address: 10.0.0.1}\n  - {name: n2, address: 10.0.1.2}\n";
    let spec = Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap().0;
    let mut view = view(&spec, &[1, 2, 3, 4, 5]);
    if let ClusterSeen::Confirmed { members, .. } = &mut view.cluster {
        for (at, why) in [(1, "it knows no leader"), (2, "connection refused")] {
            members[at].health = Health::Unhealthy(why.to_owned());
        }
    }
    let plan = plan_for_agents(&view, &spec);
    check_change(&spec, &view, &plan).unwrap();
    let step = first(plan, "n1").unwrap();
    assert!(matches!(&step.act, Act::ChangeUrls { who, .. } if who.node == "n2"), "{step}");
}

#[test]
fn a_release_is_not_started_on_a_log_that_it_cannot_read() {
    let spec = spec(&[1, 2, 3], "");
    let sight = |entries: Option<u64>| {
        let mut view = view(&spec, &[1, 2, 3]);
        for (name, seen) in &mut view.nodes {
            let NodeSeen::Answered(now) = seen else { continue };
            let (why, release) = ("release".to_owned(), Some("3.7.1".to_owned()));
            now.restart = Some(Restart { why, release, trust: false, moves: false });
            (now.etcd, now.v2_entries) = (Some("3.6.14".to_owned()), if name == "n2" { entries } else { Some(0) });
        }
        view
    };
    let clean = plan_for_agents(&sight(Some(0)), &spec);
    assert!(matches!(&clean.steps[0].act, Act::Restart { who, .. } if who.node == "n2"), "{}", clean.render());
    check_change(&spec, &sight(Some(0)), &clean).unwrap();
    // The same plan with what else may be in the log: the audit refuses it whatever the planner decides.
    for entries in [Some(3), None] {
        let broken = check_change(&spec, &sight(entries), &clean).unwrap_err();
        assert_eq!(broken, ["a release is started only on a log that it can read"]);
    }
    let first = first(plan_for_agents(&sight(Some(3)), &spec), "n1").unwrap();
    assert_eq!(first.act, Act::SnapshotLog);
    assert!(plan_for_agents(&sight(None), &spec).steps.is_empty(), "an unknown log is no empty one");
    // Nothing is added to a log for nothing, nor while a voter is down.
    let mut plan = plan_for_agents(&sight(Some(3)), &spec);
    check_change(&spec, &sight(Some(3)), &plan).unwrap();
    assert!(check_change(&spec, &sight(Some(0)), &plan).is_err());
    let mut down = sight(Some(3));
    if let ClusterSeen::Confirmed { members, .. } = &mut down.cluster {
        members[2].health = Health::Unknown("silent".to_owned());
    }
    assert!(check_change(&spec, &down, &plan).is_err());
    plan.steps[0].doer = "n9".to_owned();
    assert!(check_change(&spec, &sight(Some(3)), &plan).is_err());
}
