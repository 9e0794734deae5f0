//! Kills at every step of a bootstrap, and leaders that stand still: there is one group, and it comes to be.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pg_support;

use std::time::Duration;

use pg_support::{Group, Part, WRITE, eventually, runtime};
use rustix::process::Signal;

/// The steps in the order in which a node comes to them. The lock is given back after the leader has bound its own database.
const STEPS: [&str; 14] = [
    "init-data",
    "start-server",
    "prepare",
    "register",
    "take-lock",
    "lead",
    "create-group",
    "release-lock",
    "link",
    "note-linked",
    "lay-schema",
    "claim-writer",
    "configure",
    "offer",
];
/// How long an agent may take to notice that its server is gone.
const NOTICED: Duration = Duration::from_secs(2);
const PARTS: [Part; 4] = [Part::Agent, Part::Shims, Part::Server, Part::All];

/// Whether it is the leader who is to be hit, where others come to the step as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Leader,
    Other,
}

fn is_full() -> bool {
    std::env::var("QUORATE_SWEEP").is_ok_and(|sweep| sweep == "full")
}

/// Those who stand still before a step.
fn halted(group: &Group, step: &str) -> Vec<usize> {
    let words = "halted before this step";
    let stands = |at: &usize| group.log(*at).lines().any(|line| line.contains(words) && line.contains(step));
    (0..3).filter(stands).collect()
}

/// One bootstrap in which all agents are killed before every step; one node loses more than its agent there.
fn killed_at_every_step(steps: &[&str], victim: Victim, part: impl Fn(usize) -> Part) {
    let mut group = Group::new("leader-timeout: 3s");
    for (number, step) in steps.iter().copied().enumerate() {
        for at in 0..3 {
            group.start(at, &["--halt-before", step]);
        }
        // Whoever comes to this step stands still there; those who do not come to it wait for it.
        group.wait(step, |group| !halted(group, step).is_empty());
        let leader = group.leader().map(|(at, _)| at);
        let there = halted(&group, step);
        let is_meant = |at: &usize| (victim == Victim::Leader) == (Some(*at) == leader);
        let hit = there.iter().copied().find(is_meant).unwrap_or(there[0]);
        group.kill_part(hit, part(number));
        for at in 0..3 {
            group.kill_agent(at);
        }
    }
    for at in [2, 1, 0] {
        group.start(at, &[]);
    }
    group.wait_ready();
    group.assert_one_group();
}

#[test]
fn killed_at_every_step_a_group_comes_to_be_once() {
    if !is_full() {
        return killed_at_every_step(&STEPS, Victim::Leader, |number| PARTS[number % 4]);
    }
    for part in PARTS {
        killed_at_every_step(&STEPS, Victim::Leader, |_| part);
    }
}

#[test]
fn killed_at_the_steps_of_everyone_those_who_do_not_lead_go_on() {
    // The other steps of everyone are those of a leader too, and shown there.
    let own = ["bind", "link", "note-linked", "offer"];
    if !is_full() {
        return killed_at_every_step(&own, Victim::Other, |number| PARTS[3 - number % 4]);
    }
    let everyones = ["start-server", "register", "bind", "link", "note-linked", "configure", "offer"];
    for part in PARTS {
        killed_at_every_step(&everyones, Victim::Other, |_| part);
    }
    killed_at_any_moment();
}

/// In the middle of steps: something of somebody dies at some moment.
fn killed_at_any_moment() {
    for round in 0..24_usize {
        let mut group = Group::new("leader-timeout: 3s");
        group.start_all();
        for blow in 0..3_usize {
            std::thread::sleep(Duration::from_millis(u64::try_from(round * 173 + blow * 911).unwrap() % 2500));
            let (at, part) = ((round + blow) % 3, PARTS[(round / 3 + blow) % 4]);
            group.kill_part(at, part);
            if matches!(part, Part::Agent | Part::All) {
                group.start(at, &[]);
            }
        }
        // Agents look every half second: until then one says that it is ready whose server has just been killed.
        std::thread::sleep(NOTICED);
        group.wait_ready();
        group.assert_one_group();
    }
}

#[test]
fn a_leader_that_stands_still_is_replaced_and_what_it_does_later_is_refused() {
    let mut group = Group::new("leader-timeout: 3s");
    // Before the group is written down, and before the schema is laid.
    for (step, record) in [("create-group", "group"), ("lay-schema", "schema")] {
        for at in 0..3 {
            group.kill_agent(at);
            group.start(at, &["--halt-before", step]);
        }
        let stands = |group: &Group| group.leader().filter(|(at, _)| halted(group, step).contains(at));
        group.wait(step, |group| stands(group).is_some());
        let (old, epoch) = stands(&group).unwrap();
        group.signal(old, Signal::STOP);
        for at in (0..3).filter(|at| *at != old) {
            group.kill_agent(at);
            group.start(at, &[]);
        }
        group.wait("another leads", |group| group.leader().is_some_and(|(at, now)| at != old && now > epoch));
        // Both steps need the agent of every node. Now it goes on with the very step that it stood before.
        group.signal(old, Signal::CONT);
        group.signal(old, Signal::USR2);
        group.wait("it went on", |group| group.log(old).contains("goes on with this step"));
        group.wait(record, |group| group.records().contains_key(record));
        let written = group.records()[record]["epoch"].as_u64().unwrap();
        assert!(written > epoch, "`{step}` was done by the leader of epoch {written}, not of {epoch}");
    }
    group.wait_ready();
    group.assert_one_group();
    parts_of_the_write_master_die(&mut group);
}

/// What dies below an agent that lives is brought up again, and takes writes again.
fn parts_of_the_write_master_die(group: &mut Group) {
    let write = "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'k', 'm')";
    for part in [Part::Server, Part::Shims] {
        let writer = group.writer().unwrap();
        group.kill_part(writer, part);
        for at in 0..3 {
            runtime().block_on(eventually(&group.door(at, WRITE), write));
        }
        group.wait_ready();
        group.assert_one_group();
    }
}
