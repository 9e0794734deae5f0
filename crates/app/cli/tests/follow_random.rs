//! Follows a cluster on its worst days, and restores moments of them.
//!
//! Writers write whatever they like to three real members, while followers are killed and overtake each other, the store
//! fails in every way it can, members die and leaders change. Then states at random revisions are restored and compared with
//! what etcd itself told: each is equal, or it is refused and a follower had said that this moment is lost.
//!
//! `QUORATE_SEED=7` repeats one seed, `QUORATE_SWEEP=full` runs many, and longer.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test that cannot go on says where, and what happened")]

mod backup_support;
mod random_support;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quorate_etcd::client::messages::RangeRequest;
use quorate_etcd::client::{Client, Settings};
use quorate_testkit::{VERSIONS, etcd, wait_until};
use random_support::chaos::{Chaos, Counts};
use random_support::check::{History, Verdict, check_all, same_state};
use random_support::dice::Dice;
use random_support::follower::{Orders, announced_holes, lines};
use random_support::members::Members;
use random_support::place::Place;
use random_support::truth::{State, Truth, state_at};
use random_support::writer::{Writers, write};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Revisions that are restored.
const RESTORES: usize = 50;

/// Refusals are honest, but a run that refuses most of what it is asked shows little. How many there are depends on how long
/// the follower was kept from recording before a compaction, and so on the machine.
const EQUAL_PERCENT_MIN: usize = 50;

const WRITERS: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Bucket,
    Folder,
}

/// The folder of a run; kept when the run fails, with the seed that leads there again.
struct Folder {
    dir: Option<TempDir>,
    seed: u64,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let kept = self.dir.take().map(TempDir::keep);
            eprintln!("seed {}: everything is kept in {kept:?}; QUORATE_SEED={} repeats it", self.seed, self.seed);
        }
    }
}

/// How a run ended.
#[derive(Debug)]
struct Outcome {
    equal: usize,
    refused: usize,
    holes: Vec<(u64, u64)>,
}

#[test]
fn every_moment_comes_back_from_a_bucket_or_was_said_to_be_lost() {
    sweep(Where::Bucket, 1);
}

#[test]
fn every_moment_comes_back_from_a_folder_or_was_said_to_be_lost() {
    sweep(Where::Folder, 2);
}

/// One seed, or many where time does not matter.
fn sweep(place: Where, seed: u64) {
    let full = std::env::var("QUORATE_SWEEP").is_ok_and(|sweep| sweep == "full");
    let asked: Option<u64> = std::env::var("QUORATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = match (asked, full) {
        (Some(seed), _) => vec![seed],
        (None, false) => vec![seed],
        (None, true) => (0..15).map(|turn| seed + 2 * turn).collect(),
    };
    let time = Duration::from_secs(if full { 60 } else { 22 });
    for seed in seeds {
        run(place, seed, time);
    }
}

fn run(place: Where, seed: u64, time: Duration) -> Outcome {
    let began = Instant::now();
    let folder = Folder { dir: Some(TempDir::with_prefix("quorate-random-").unwrap()), seed };
    let root = folder.dir.as_ref().map(|dir| dir.path().to_owned()).unwrap();
    let mut dice = Dice::new(seed, 0);
    let tools = etcd(VERSIONS[dice.below(3) as usize]);
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());
    let members = Members::start(&tools, &root);
    let endpoints = members.endpoints();
    let client = runtime.block_on(Client::connect(&Settings::new(endpoints.clone()))).unwrap();
    let (truth, writers) = (Arc::new(Truth::default()), Arc::new(Writers::default()));
    runtime.spawn(Arc::clone(&truth).watch(client.clone()));
    for number in 1..=WRITERS {
        runtime.spawn(write(Arc::clone(&writers), client.clone(), Dice::new(seed, number)));
    }
    let store = if place == Where::Bucket { Place::bucket(seed) } else { Place::folder(&root) };
    let orders = Orders {
        root: root.clone(),
        store: store.url(),
        endpoints: endpoints.join(","),
        env: store.env(),
        more: extras(&mut dice),
        started: 0,
    };
    let mut chaos = Chaos {
        runtime: Arc::clone(&runtime),
        client: client.clone(),
        dice,
        members,
        place: store,
        orders,
        truth: Arc::clone(&truth),
        counts: Counts::default(),
        main: None,
        spools: 1,
        retired: Vec::new(),
        by_hand: Vec::new(),
        began,
        storm_ends: began,
    };
    chaos.main = Some(chaos.orders.start(0));
    let first = chaos.first_full();
    chaos.note(&format!("seed {seed}, etcd {}, {}: first full at {first}", tools.version, chaos.orders.more.join(" ")));
    chaos.rage(time);
    chaos.heal();
    writers.ended.store(true, Ordering::SeqCst);
    let last = settle(&runtime, &client, &truth);
    chaos.finish(last);
    let history = told(&runtime, &client, &truth, &writers, last);
    let outcome = judge(&mut chaos, &history, &root, (first, last));
    let (requests, mishaps) = chaos.place.counts();
    eprintln!(
        "seed {seed} {place:?} etcd {}: {last} revisions, {} equal, {} refused, holes {:?}, {:?}, {mishaps} mishaps in \
         {requests} requests, {} unsure writes, {:.1} s",
        tools.version,
        outcome.equal,
        outcome.refused,
        outcome.holes,
        chaos.counts,
        writers.unsure.load(Ordering::SeqCst),
        began.elapsed().as_secs_f64()
    );
    outcome
}

/// Flags that only some seeds have.
fn extras(dice: &mut Dice) -> Vec<String> {
    let mut flags = Vec::new();
    if dice.chance(40) {
        // Everything of the last hour stays restorable, whatever else is removed.
        flags.extend(["--keep-last", "1", "--keep-hourly", "0", "--keep-daily", "0", "--keep-weekly", "0"]);
        flags.extend(["--keep-monthly", "0", "--keep-history", "1h"]);
    }
    if dice.chance(40) {
        flags.extend(["--spool-max", "3MiB"]);
    }
    if dice.chance(30) {
        flags.extend(["--max-restore-time", "1ms"]);
    }
    flags.into_iter().map(str::to_owned).collect()
}

/// The newest revision, after the truth has seen it.
fn settle(runtime: &Runtime, client: &Client, truth: &Truth) -> u64 {
    let mut last = 0;
    wait_until("the cluster to be quiet", Duration::from_secs(30), || {
        let one_key = RangeRequest { key: vec![0], keys_only: true, ..RangeRequest::default() };
        let Ok(answer) = runtime.block_on(client.range(one_key)) else { return false };
        // Leases end whenever they like.
        let quiet = answer.header.unwrap_or_default().revision as u64 == last;
        last = answer.header.unwrap_or_default().revision as u64;
        quiet && truth.seen() == last
    });
    last
}

/// The truth, checked against what etcd says of it now and what it acknowledged then.
fn told(runtime: &Runtime, client: &Client, truth: &Truth, writers: &Writers, last: u64) -> History {
    truth.end();
    let writes = truth.writes();
    for back in [0, 1, 7] {
        let revision = last - back;
        let request =
            RangeRequest { key: vec![0], range_end: vec![0], revision: revision as i64, ..RangeRequest::default() };
        let Ok(answer) = runtime.block_on(client.range(request)) else { continue };
        let said: State = answer
            .kvs
            .into_iter()
            .map(|kv| {
                let write = backup_support::OneWrite {
                    at: (kv.mod_revision as u64, 0),
                    tombstone: false,
                    key: kv.key.clone(),
                    value: kv.value,
                    create_revision: kv.create_revision,
                    version: kv.version,
                    lease: kv.lease,
                };
                (kv.key, write)
            })
            .collect();
        let mut state = state_at(&writes, revision);
        state.values_mut().for_each(|write| write.at.1 = 0);
        same_state(&state, &said).unwrap();
    }
    let acknowledged = writers.acknowledged.lock().unwrap();
    for put in acknowledged.iter() {
        let at = writes.partition_point(|write| write.at.0 < put.revision);
        let found = writes.get(at).is_some_and(|write| write.key == put.key && write.value.len() == put.value_bytes);
        assert!(found, "etcd acknowledged {put:?}");
    }
    assert!(acknowledged.len() > 100, "{} writes are not much", acknowledged.len());
    History { writes }
}

/// Restores and compares.
fn judge(chaos: &mut Chaos, history: &History, root: &std::path::Path, (first, last): (u64, u64)) -> Outcome {
    let store = chaos.place.mirror(&root.join("mirror"));
    let lines = lines(root);
    let holes = announced_holes(&lines);
    let mut revisions = vec![last, first];
    revisions.extend((2..RESTORES).map(|_| chaos.dice.between(first, last)));
    let scratch: PathBuf = root.join("scratch");
    std::fs::create_dir_all(&scratch).unwrap();
    let mut verdicts = check_all(history, &store, &scratch, &revisions);
    let env = chaos.orders.env.clone();
    for revision in [last, chaos.dice.between(first, last), chaos.dice.between(first, last)] {
        verdicts.push((revision, history.check_command(&chaos.orders.store, &env, root, revision)));
    }
    let mut outcome = Outcome { equal: 0, refused: 0, holes };
    for (revision, verdict) in verdicts {
        match verdict {
            Verdict::Equal => outcome.equal += 1,
            Verdict::Refused(why) => {
                outcome.refused += 1;
                let said = outcome.holes.iter().any(|(from, to)| (*from..=*to).contains(&revision));
                assert!(said, "revision {revision} is refused, and nobody said so: {why}; holes {:?}", outcome.holes);
                assert_ne!(revision, last, "the newest state is refused: {why}");
            }
            Verdict::Differs(why) => panic!("revision {revision} of {first} to {last}: {why}"),
        }
    }
    let all = outcome.equal + outcome.refused;
    assert!(outcome.equal * 100 >= all * EQUAL_PERCENT_MIN, "{} of {all} are equal: {outcome:?}", outcome.equal);
    outcome
}
