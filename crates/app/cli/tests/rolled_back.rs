//! Data that is put back to an older copy: a snapshot of the machine, or of the disk alone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;
mod cluster_support;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use agent_support::Place;
use cluster_support::{Declared, LIMIT, Wire};
use quorate_plan::ledger::{Ledger, State};
use quorate_testkit::{Running, VERSIONS, quorate, run, wait_until};
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

/// Forgets what this ledger recorded of how far members are. Its agent must not run.
fn clear_progress(state: &Path) {
    let cleared = Ledger { progress: Vec::new(), ..ledger(state) };
    std::fs::File::create(state.join("ledger")).unwrap().write_all(&cleared.encode()).unwrap();
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
    serving_with("3.5.16")
}

fn serving_with(version: &str) -> Declared {
    let mut cluster = Declared::new(version, 3, Wire::Clear);
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

/// Each release logs the panic in a form of its own.
#[test]
fn what_etcd_itself_finds_missing_is_recorded_and_replaced() {
    for version in VERSIONS {
        what_etcd_finds_missing(version);
    }
}

fn what_etcd_finds_missing(version: &str) {
    let mut cluster = serving_with(version);
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

/// The node that could be queried at the start had not seen how far the member was; the one that had comes later.
#[test]
fn a_member_started_while_nobody_could_tell_is_replaced_at_first_contact() {
    let mut cluster = serving();
    copy(&mut cluster, 2);
    cluster.kill_agent(0);
    cluster.start(2);
    cluster.wait_phase(2, "serving");
    let before = cluster.ids(2);
    write_and_record(&cluster, 2, &[1]);
    for at in [1, 2] {
        cluster.stop(at);
    }
    // A leader that runs on remembers how far each member was.
    cluster.power_off(0);
    put_back(&cluster, 2, true);
    for at in [0, 2] {
        cluster.start(at);
    }
    cluster.wait_phase(2, "serving");
    assert_eq!((cluster.ids(2), ledger(&cluster.state(2)).own_rollback()), (before.clone(), None), "nothing shows it");
    cluster.start(1);
    wait_until("it is reported", LIMIT, || cluster.log(2).contains("saw this member at"));
    assert_replaced(&mut cluster, 2, &before);
}

/// A leader that was elected since does not know how far the member was: etcd runs without a panic.
#[test]
fn a_member_that_another_leader_lets_serve_is_replaced_at_first_contact() {
    let mut cluster = serving();
    copy(&mut cluster, 2);
    cluster.start(2);
    cluster.wait_phase(2, "serving");
    let before = cluster.ids(2);
    write_and_record(&cluster, 2, &[0, 1]);
    cluster.stop(2);
    let leads = |cluster: &Declared, at: usize| {
        let status = cluster.try_ctl(at, &["endpoint", "status", "--write-out=json"]);
        status.is_ok_and(|text| cluster_support::leads(&text))
    };
    wait_until("a leader", LIMIT, || leads(&cluster, 0) || leads(&cluster, 1));
    let (from, to) = if leads(&cluster, 0) { (0, 1) } else { (1, 0) };
    let successor = cluster.ids(to).1;
    for other in [0, 1] {
        cluster.kill_agent(other);
    }
    cluster.ctl(from, &["move-leader", &successor]);
    put_back(&cluster, 2, true);
    cluster.start(2);
    cluster.wait_phase(2, "serving");
    assert_eq!(cluster.ids(2), before, "it serves on the older copy: no agent could tell");
    for other in [0, 1] {
        cluster.start(other);
    }
    wait_until("it is reported", LIMIT, || cluster.log(2).contains("saw this member at"));
    assert_replaced(&mut cluster, 2, &before);
    let list = cluster.ctl(0, &["member", "list"]);
    assert!(!list.contains(&before.1), "the member that was put back is the one that left: {list}");
}

/// Data and ledger are those of the time before the first start, and no ledger has recorded how far the member was: only the list of
/// members shows that it ran.
#[test]
fn data_that_never_ran_of_a_member_that_started_is_replaced() {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Clear);
    cluster.file();
    for at in [0, 1] {
        cluster.start(at);
    }
    // The third agent ends as by SIGKILL between the two steps.
    let file = cluster.path("cluster.yaml").display().to_string();
    let words = ["run", "--config", &file, "--name", "n3"];
    let ends = [("QUORATE_END_AT".to_owned(), "inited".to_owned())];
    let mut agent = Running::start(&quorate(), &words.map(str::to_owned), &ends);
    wait_until("its end", LIMIT, || agent.ended().is_some());
    assert!(matches!(ledger(&cluster.state(2)).state, State::Inited(_)), "{}", agent.log());
    cp(&cluster.data(2), &cluster.path("copy-data"));
    cp(&cluster.state(2), &cluster.path("copy-state"));
    cluster.start(2);
    cluster.wait_serving();
    let before = cluster.ids(2);
    for number in 0..KEYS {
        cluster.put(0, &format!("k{number}"), &format!("v{number}"));
    }
    for at in 0..3 {
        cluster.stop(at);
    }
    for at in [0, 1] {
        clear_progress(&cluster.state(at));
        cluster.start(at);
    }
    for at in [0, 1] {
        cluster.wait_phase(at, "serving");
    }
    put_back(&cluster, 2, true);
    cluster.start(2);
    let why = "is an older copy: etcd never ran on it, and the cluster lists this member as started";
    wait_until("the evidence is logged", LIMIT, || cluster.log(2).contains(why));
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

/// All machines are put back at once, with their ledgers: no member can tell, and the store of backups can.
#[test]
fn a_cluster_that_is_put_back_as_a_whole_is_reported_by_the_store() {
    let mut cluster = Declared::new("3.5.30", 3, Wire::Clear);
    std::fs::create_dir(cluster.path("store")).unwrap();
    cluster.more = format!("backup: {{store: \"file://{}\", delta-period: 200ms}}\n", cluster.path("store").display());
    cluster.file();
    cluster.start_all();
    cluster.wait_serving();
    cluster.put(0, "k", "old");
    cluster.wait_backed_up();
    for at in 0..3 {
        cluster.stop(at);
    }
    let copies = |cluster: &Declared, at: usize| {
        (cluster.path(&format!("copy-data-{at}")), cluster.path(&format!("copy-state-{at}")))
    };
    for at in 0..3 {
        let (data, state) = copies(&cluster, at);
        cp(&cluster.data(at), &data);
        cp(&cluster.state(at), &state);
    }
    cluster.start_all();
    cluster.wait_serving();
    // More than the leases of the nodes write after the start.
    for number in 0..2 * KEYS {
        cluster.put(0, "k", &format!("new{number}"));
    }
    cluster.wait_backed_up();
    for at in 0..3 {
        cluster.stop(at);
    }
    for at in 0..3 {
        let (data, state) = copies(&cluster, at);
        mv(&cluster.data(at), &cluster.path(&format!("newer-data-{at}")));
        mv(&cluster.state(at), &cluster.path(&format!("newer-state-{at}")));
        mv(&data, &cluster.data(at));
        mv(&state, &cluster.state(at));
    }
    cluster.start_all();
    cluster.wait_serving();
    cluster.assert_all_hold("k", "old");
    let file = cluster.path("cluster.yaml").display().to_string();
    let status = || cluster.quorate(&["cluster", "status", "--config", &file]);
    wait_until("it is reported", LIMIT, || cluster_support::said(&status()).contains("Q0844"));
    let output = status();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let first: Vec<&str> = text.lines().take(3).collect();
    assert!(first[0].contains("DEGRADED"), "{text}");
    assert!(first.iter().any(|line| line.contains("Q0844")), "{text}");
    // The newer backups are kept for the operator.
    let list = cluster.json(&["backup", "list", "--store", &format!("file://{}", cluster.path("store").display())]);
    assert!(list.to_string().len() > 2, "{list}");
}
