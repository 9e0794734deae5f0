//! What the texts in `tests/changes` do not say: hashes, whose turn it is, recoveries, and sights put together at random.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::Code;

use super::recover::{RecoverStep, Recovery, RowSeen, Said, Source, StoreNewest, SurveyRow, Survivor, plan_recovery};
use super::upgrade::{Kind, Release, allowed};
use super::*;
use crate::check::check_change;
use crate::ledger::{IntentKind, LearnerSince, Ledger};
use crate::start::{Health, ListedMember, Verdict};

fn spec(numbers: &[u64], more: &str) -> Spec {
    let mut text = format!("token: t\nplaintext: true\n{more}members:\n");
    for number in numbers {
        text += &format!("  - {{name: n{number}, address: 10.0.0.{number}}}\n");
    }
    Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap().0
}

fn id(number: u64) -> MemberId {
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
fn those_that_stay_where_they_are_are_a_majority() {
    for (voters, most) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3)] {
        assert_eq!(moved_at_once_max(voters), most);
        assert!(voters < 3 || voters - most > voters / 2);
    }
}

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
    SurveyRow { node: format!("n{number}"), seen }
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
    plan_recovery(&spec(&[1, 2, 3], ""), rows, store, Said { dead: &dead, passed_over: &passed_over })
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
    let newest = |cluster, revision| StoreNewest::Newest { cluster, revision };
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
    let newest = StoreNewest::Newest { cluster: Some(ClusterId(0xc1)), revision: 130 };
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
    let newest = StoreNewest::Newest { cluster: None, revision: 130 };
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
        for seen in view.nodes.values_mut() {
            self.disturb(seen);
        }
        (spec, view)
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
