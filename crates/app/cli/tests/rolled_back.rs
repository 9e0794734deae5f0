//! Data that is put back to an older copy: a snapshot of the machine, or of the disk alone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;
mod cluster_support;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use agent_support::Place;
use cluster_support::{Declared, LIMIT, Wire};
use quorate_plan::ledger::{Ledger, Promise, State};
use quorate_testkit::{run, wait_until};
use serde_json::Value;

/// How many keys are written after the copy was taken.
const KEYS: usize = 30;

fn cp(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to));
}

fn mv(from: &Path, to: &Path) {
    run(Command::new("mv").arg(from).arg(to));
}

fn ledger(state: &Path) -> Ledger {
    Ledger::decode(&std::fs::read(state.join("ledger")).unwrap()).unwrap()
}

/// The index that etcd reports.
fn index(cluster: &Declared, at: usize) -> u64 {
    let text = cluster.ctl(at, &["endpoint", "status", "--write-out=json"]);
    let status: Value = serde_json::from_str(&text).unwrap();
    status[0]["Status"]["raftIndex"].as_u64().unwrap()
}

/// Stops a member and copies its data and its state dir.
fn copy(cluster: &mut Declared, at: usize) {
    cluster.stop(at);
    cp(&cluster.data(at), &cluster.path("copy-data"));
    cp(&cluster.state(at), &cluster.path("copy-state"));
}

/// Puts the copy of the data back, and that of the state dir where wanted.
fn put_back(cluster: &Declared, at: usize, with_state: bool) {
    mv(&cluster.data(at), &cluster.path("newer-data"));
    mv(&cluster.path("copy-data"), &cluster.data(at));
    if with_state {
        mv(&cluster.state(at), &cluster.path("newer-state"));
        mv(&cluster.path("copy-state"), &cluster.state(at));
    }
}

/// Writes, and waits until the ledgers of these nodes have recorded how far the member has come.
fn write_and_record(cluster: &Declared, of: usize, by: &[usize]) {
    for number in 0..KEYS {
        cluster.put(by[0], &format!("k{number}"), &format!("v{number}"));
    }
    let (member, written) = (ledger(&cluster.state(of)).ids().unwrap().1, index(cluster, by[0]));
    for node in by {
        wait_until("it is recorded", LIMIT, || {
            ledger(&cluster.state(*node)).progress_of(member).is_some_and(|known| known.index >= written)
        });
    }
}

fn serving() -> Declared {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Clear);
    cluster.file();
    cluster.start_all();
    cluster.wait_serving();
    cluster.put(0, "k", "v");
    cluster.assert_all_hold("k", "v");
    cluster
}

/// A member that does not lead.
fn follower(cluster: &Declared) -> usize {
    let text = cluster.ctl(0, &["endpoint", "status", "--write-out=json"]);
    let status: Value = serde_json::from_str(&text).unwrap();
    let leader = status[0]["Status"]["leader"].as_u64().unwrap();
    (0..3).rev().find(|at| ledger(&cluster.state(*at)).ids().unwrap().1.0 != leader).unwrap()
}

fn assert_replaced(cluster: &mut Declared, at: usize, before: &(String, String)) {
    wait_until("it is replaced", LIMIT, || {
        ledger(&cluster.state(at)).ids().is_some_and(|(_, member)| member.to_string() != before.1)
    });
    cluster.wait_phase(at, "serving");
    assert_eq!(cluster.ids(at).0, before.0, "the same cluster");
    for number in 0..KEYS {
        cluster.assert_all_hold(&format!("k{number}"), &format!("v{number}"));
    }
    let kept = std::fs::read_dir(cluster.root.path()).unwrap().flatten();
    let aside = format!("data-{}.replaced-", cluster.members[at].name);
    assert!(
        kept.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&aside)),
        "nothing is deleted"
    );
}

#[test]
fn a_machine_put_back_after_every_agent_was_restarted_is_replaced() {
    let mut cluster = serving();
    copy(&mut cluster, 2);
    cluster.start(2);
    cluster.wait_phase(2, "serving");
    let before = cluster.ids(2);
    write_and_record(&cluster, 2, &[0, 1]);
    cluster.stop(2);
    for at in [0, 1] {
        cluster.kill_agent(at);
        cluster.start(at);
        cluster.wait_phase(at, "serving");
    }
    put_back(&cluster, 2, true);
    cluster.start(2);
    assert_replaced(&mut cluster, 2, &before);
}

#[test]
fn a_disk_put_back_waits_by_what_its_own_node_recorded() {
    let mut cluster = serving();
    copy(&mut cluster, 2);
    cluster.start(2);
    cluster.wait_phase(2, "serving");
    let before = cluster.ids(2);
    write_and_record(&cluster, 2, &[0, 2]);
    for at in 0..3 {
        cluster.stop(at);
    }
    put_back(&cluster, 2, false);
    cluster.start(2);
    let status = cluster.wait_status(2, "it waits", |status| status["code"] == "Q1410");
    assert_eq!(status["phase"], "waiting", "{status}");
    for at in [0, 1] {
        cluster.start(at);
    }
    assert_replaced(&mut cluster, 2, &before);
}

#[test]
fn what_etcd_itself_finds_missing_is_recorded_and_replaced() {
    let mut cluster = serving();
    let at = follower(&cluster);
    let others: Vec<usize> = (0..3).filter(|other| *other != at).collect();
    copy(&mut cluster, at);
    cluster.start(at);
    cluster.wait_phase(at, "serving");
    let before = cluster.ids(at);
    write_and_record(&cluster, at, &others);
    cluster.stop(at);
    // Nobody can be asked: the agents of the others are dead, and their etcd serves.
    for other in &others {
        cluster.kill_agent(*other);
    }
    put_back(&cluster, at, true);
    cluster.start(at);
    wait_until("etcd's panic is recorded", LIMIT, || ledger(&cluster.state(at)).own_rollback().is_some());
    for other in &others {
        cluster.start(*other);
    }
    assert_replaced(&mut cluster, at, &before);
}

#[test]
fn a_member_started_while_nobody_could_tell_is_reported_at_first_contact() {
    let mut cluster = serving();
    copy(&mut cluster, 2);
    cluster.stop(0);
    cluster.start(2);
    cluster.wait_phase(2, "serving");
    write_and_record(&cluster, 2, &[1]);
    for at in [1, 2] {
        cluster.stop(at);
    }
    put_back(&cluster, 2, true);
    // The first one was away, and knows nothing of it.
    for at in [0, 2] {
        cluster.start(at);
    }
    cluster.wait_phase(2, "serving");
    cluster.start(1);
    cluster.wait_status(2, "it is reported", |status| {
        let warnings = status["warnings"].as_array().cloned().unwrap_or_default();
        let told = |warning: &Value| warning["code"] == "Q1412";
        warnings.iter().any(told) || status["phase"] != "serving"
    });
    assert!(ledger(&cluster.state(2)).own_rollback().is_some());
    let exit = cluster.quorate(&["cluster", "status", "--config", &cluster.path("cluster.yaml").display().to_string()]);
    assert!(!exit.status.success(), "{}", cluster_support::said(&exit));
}

#[test]
fn data_that_never_ran_of_a_member_that_started_is_replaced() {
    let mut cluster = serving();
    copy(&mut cluster, 2);
    cluster.start(2);
    cluster.wait_phase(2, "serving");
    let before = cluster.ids(2);
    write_and_record(&cluster, 2, &[0]);
    cluster.stop(2);
    put_back(&cluster, 2, true);
    // The ledger of the time before the first start.
    let started = ledger(&cluster.state(2));
    let (cluster_id, member) = started.ids().unwrap();
    let members = cluster.members.iter().map(|member| member.name.clone()).collect();
    let promise = Promise {
        bootstrap: 1,
        declaration: String::new(),
        cluster: cluster_id,
        member,
        members,
        over: false,
        nonce: None,
        nonces: BTreeMap::new(),
    };
    let fresh = Ledger { state: State::Inited(promise), ..Ledger::default() };
    let mut file = std::fs::File::create(cluster.state(2).join("ledger")).unwrap();
    file.write_all(&fresh.encode()).unwrap();
    cluster.start(2);
    assert_replaced(&mut cluster, 2, &before);
}

#[test]
fn the_only_member_refuses_older_data_until_it_is_taken_over() {
    let place = Place::new("3.5.16");
    let mut agent = place.start();
    place.put("k", "old");
    assert!(agent.stop().success());
    cp(&place.data(), &place.path("copy"));
    let mut agent = place.start();
    place.put("k", "new");
    let text = place.ctl(&["endpoint", "status", "-w", "json"]);
    let status: Value = serde_json::from_str(&text).unwrap();
    let written = status[0]["Status"]["raftIndex"].as_u64().unwrap();
    wait_until("it is recorded", LIMIT, || {
        let ledger = ledger(&place.state());
        let (_, member) = ledger.ids().unwrap();
        ledger.progress_of(member).is_some_and(|known| known.index >= written)
    });
    assert!(agent.stop().success());
    mv(&place.data(), &place.path("newer"));
    mv(&place.path("copy"), &place.data());
    let mut agent = place.run(&[]);
    wait_until("it refuses", LIMIT, || place.status()["code"] == "Q1411");
    assert!(agent.stop().success());
    // The way out that the page names.
    let reset = place.quorate(&["data", "reset", "--yes"]);
    assert!(reset.status.success(), "{reset:?}");
    let entries = std::fs::read_dir(place.data().parent().unwrap()).unwrap().flatten();
    let renamed = entries.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains(".replaced-")).unwrap();
    mv(&renamed, &place.data());
    assert_eq!(place.json(&["cluster", "adopt"])["already"], false);
    let _agent = place.start();
    place.assert_holds("k", "old");
}

/// The whole machine is put back, so that nothing on it tells. The store of backups does.
#[test]
fn the_only_member_refuses_data_that_the_store_is_ahead_of() {
    let place = Place::with_store("3.5.30");
    let mut agent = place.start();
    place.put("k", "old");
    let stored = |above: u64| place.status()["backup"]["stored_revision"].as_u64() > Some(above);
    wait_until("a backup", LIMIT, || stored(1));
    assert!(agent.stop().success());
    cp(&place.data(), &place.path("copy-data"));
    cp(&place.state(), &place.path("copy-state"));
    let mut agent = place.start();
    place.put("k", "newer");
    place.put("k", "new");
    let text = place.ctl(&["endpoint", "status", "-w", "json"]);
    let status: Value = serde_json::from_str(&text).unwrap();
    let written = status[0]["Status"]["header"]["revision"].as_u64().unwrap();
    wait_until("its backup", LIMIT, || stored(written - 1));
    assert!(agent.stop().success());
    let put_back = |what: &str, to: &Path| {
        run(Command::new("rm").arg("-rf").arg(to));
        cp(&place.path(what), to);
    };
    put_back("copy-data", &place.data());
    put_back("copy-state", &place.state());
    let mut agent = place.run(&[]);
    wait_until("it refuses", LIMIT, || place.status()["code"] == "Q1411");
    let cause = place.status()["cause"].to_string();
    assert!(cause.contains("the store has revision"), "{cause}");
    assert!(agent.stop().success());
    // It is recorded: a store that is silent later does not let it start.
    let store = place.path("store");
    mv(&store, &place.path("hidden"));
    std::fs::File::create(&store).unwrap().write_all(b"not a folder").unwrap();
    let mut agent = place.run(&[]);
    wait_until("it still refuses", LIMIT, || place.status()["code"] == "Q1411");
    assert!(agent.stop().success());
    // Good data starts without the store.
    put_back("copy-state", &place.state());
    let mut agent = place.start();
    place.assert_holds("k", "old");
    // The store is back, and this cluster is behind it: backups stop, and nothing of the newer history is overruled.
    std::fs::remove_file(&store).unwrap();
    mv(&place.path("hidden"), &store);
    wait_until("it is reported", LIMIT, || {
        let status = place.status();
        let warnings = status["warnings"].as_array().cloned().unwrap_or_default();
        warnings.iter().any(|warning| warning["code"] == "Q0969" && warning["text"].to_string().contains("Q0844"))
    });
    assert!(agent.stop().success());
    // The operator takes the older copy over: from here on it is backed up again.
    let reset = place.quorate(&["data", "reset", "--yes"]);
    assert!(reset.status.success(), "{reset:?}");
    let entries = std::fs::read_dir(place.data().parent().unwrap()).unwrap().flatten();
    let renamed = entries.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("data.replaced-"));
    mv(&renamed.unwrap(), &place.data());
    assert_eq!(place.json(&["cluster", "adopt"])["already"], false);
    let mut agent = place.start();
    place.assert_holds("k", "old");
    wait_until("backups go on", LIMIT, || stored(0));
    wait_until("that it was taken over is done with", LIMIT, || !ledger(&place.state()).taken_over);
    assert!(agent.stop().success());
    let _agent = place.start();
    place.assert_holds("k", "old");
}
