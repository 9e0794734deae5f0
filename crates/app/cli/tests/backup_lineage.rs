//! Stores of backups and the clusters that they are bound to: another cluster is refused, a restored one continues, and no
//! revision that clients have seen is handed out again.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on says where")]

mod agent_support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use agent_support::{LIMIT, Place};
use jiff::Timestamp;
use quorate_agent::backups::full::{NoCuts, Order, ask_all, take};
use quorate_backup::epochs;
use quorate_backup::store::Store;
use quorate_backup::write::About;
use quorate_etcd::client::{Client, Settings};
use quorate_etcd::ledger::observe_ledger;
use quorate_plan::chain::Layout;
use quorate_plan::ledger::LedgerSeen;
use quorate_testkit::{Seat, Server, etcd, quorate, wait_until};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

fn backup(place: &Place, args: &[&str]) -> Value {
    let store = place.store();
    let output = Command::new(quorate())
        .args(["backup", args[0], "--store", &store])
        .args(&args[1..])
        .args(["--output", "json"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{args:?}: {error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

fn wait_stored(place: &Place, least: u64) {
    wait_until(&format!("revision {least} is stored"), LIMIT, || {
        place.status()["backup"]["stored_revision"].as_u64().unwrap_or(0) >= least
    });
}

fn revision(place: &Place) -> u64 {
    let status: Value = serde_json::from_str(&place.ctl(&["endpoint", "status", "-w", "json"])).unwrap();
    status[0]["Status"]["header"]["revision"].as_u64().unwrap()
}

fn warned(place: &Place, code: &str) -> bool {
    let status = place.status();
    status["warnings"].as_array().is_some_and(|all| all.iter().any(|one| one.to_string().contains(code)))
}

/// Stops, restores from the store, and adopts what was restored. Returns what the restore said.
fn restore_and_adopt(place: &Place, mut agent: quorate_testkit::Running, more: &[&str]) -> Value {
    assert!(agent.stop().success(), "{}", agent.log());
    let reset = place.quorate(&["data", "reset", "--yes"]);
    assert!(reset.status.success(), "{reset:?}");
    let (dir, member) = (place.data().display().to_string(), format!("n1={}", place.seat.peer_url()));
    let args = ["restore", "--data-dir", &dir, "--name", "n1", "--member", &member];
    let said = backup(place, &[&args[..], more].concat());
    let adopted = place.json(&["cluster", "adopt"]);
    assert_eq!(adopted["already"], false, "{adopted}");
    said
}

#[test]
fn a_restore_to_an_earlier_time_raises_the_revision_above_all_that_was_seen_and_backups_continue() {
    let place = Place::with_store("3.5.16");
    let agent = place.start();
    // The first full backup is taken; what follows is recorded as it is written, with its time.
    place.put("k", "zeroth");
    wait_stored(&place, revision(&place));
    place.put("k", "first");
    wait_stored(&place, revision(&place));
    let before_it_all = jiff::Timestamp::now().to_string();
    let point = || backup(&place, &["list"])["restore_point"].as_str().unwrap().to_owned();
    let old_point = point();
    place.put("k", "second");
    wait_stored(&place, revision(&place));
    let own_point = point();
    restore_and_adopt(&place, agent, &["--restore-point", &own_point]);
    let agent = place.start();
    place.assert_holds("k", "second");
    place.put("k", "third");
    let seen = revision(&place);
    assert!(seen > 1_000_000_000, "{seen}");
    wait_stored(&place, seen);

    // A point that was handed out before is a revision of before: what was recovered since has higher ones. The cluster that a point
    // makes is no reason to refuse it to the next member.
    let member = format!("n1={}", place.seat.peer_url());
    let by = |dir: &str, point: &str| {
        let dir = place.path(dir).display().to_string();
        backup(&place, &["restore", "--data-dir", &dir, "--name", "n1", "--member", &member, "--restore-point", point])
    };
    let refused = by("by-old-point", &old_point);
    assert_eq!(refused["error"]["code"], "Q1428", "{refused}");
    assert!(!place.path("by-old-point").exists());
    assert_eq!(by("by-own-point", &own_point)["restore_point"], own_point.as_str());

    let low = ["restore", "--data-dir", "/nowhere", "--to-time", &before_it_all, "--bump-revision", "1000"];
    let refused = backup(&place, &low);
    assert_eq!(refused["error"]["code"], "Q1428", "{before_it_all}: {refused}\n{}", backup(&place, &["list"]));
    let said = restore_and_adopt(&place, agent, &["--to-time", &before_it_all]);
    assert_eq!(said["origin"]["token"], "t", "{said}");
    assert!(said["origin"]["cluster"].as_str().is_some_and(|id| !id.is_empty()), "{said}");
    let _agent = place.start();
    place.assert_holds("k", "first");
    let now = revision(&place);
    assert!(now > seen, "revision {now} after {seen}");
    place.put("k", "fourth");
    wait_stored(&place, now + 1);
    let listed = backup(&place, &["list"]);
    assert!(listed["newest_revision"].as_u64().unwrap() > seen, "{listed}");
    assert_eq!(listed["lineage"]["clusters"].as_array().unwrap().len(), 3, "one lineage of three clusters: {listed}");
}

#[test]
fn a_store_of_another_cluster_is_refused_until_it_is_taken_over_by_name() {
    let mut place = Place::with_store("3.5.16");
    let mut agent_of_place = place.start();
    place.put("k", "ours");
    let here = revision(&place);
    wait_stored(&place, here);
    let id = place.status()["cluster_id"].as_str().unwrap().to_owned();

    let mut other = Place::new("3.5.16");
    other.more = place.more.clone();
    let text = std::fs::read_to_string(other.file()).unwrap();
    other.raw = Some(text.replace("token: t\n", "token: u\n"));
    let mut agent = other.start();
    for number in 0..20 {
        other.put("k", &format!("theirs {number}"));
    }
    wait_until("the other cluster reports that it is not backed up", LIMIT, || warned(&other, "Q1425"));
    let state = other.status()["backup"]["state"].as_str().unwrap().to_owned();
    assert!(state.contains("Q1425") && state.contains("token `t`") && state.contains(&id), "{state}");
    place.put("k", "ours, later");
    wait_stored(&place, here + 1);
    let listed = backup(&place, &["list"]);
    assert_eq!(listed["lineage"]["clusters"], serde_json::json!([id]), "{listed}");
    assert_eq!(listed["newest_revision"], here + 1, "{listed}");

    assert!(agent.stop().success(), "{}", agent.log());
    let with =
        text.replace("token: t\n", "token: u\n").replace("delta-period", &format!("take-over: \"{id}\", delta-period"));
    other.raw = Some(with);
    let _other_agent = other.start();
    other.put("k", "theirs, taken over");
    wait_stored(&other, revision(&other));
    place.put("k", "no longer backed up");
    wait_until("the first cluster reports that it was replaced", LIMIT, || warned(&place, "Q1425"));
    let restored = backup(&place, &["list"]);
    assert_eq!(restored["lineage"]["tokens"], serde_json::json!(["t", "u"]), "{restored}");
    wait_until("the take-over is reported as done", LIMIT, || warned(&other, "Q1455"));

    // The operator undoes it. The line that is still in the other file does nothing any more.
    let other_id = other.status()["cluster_id"].as_str().unwrap().to_owned();
    assert!(agent_of_place.stop().success(), "{}", agent_of_place.log());
    let text = std::fs::read_to_string(place.path("cluster.yaml")).unwrap();
    place.raw = Some(text.replace("delta-period", &format!("take-over: \"{other_id}\", delta-period")));
    let _agent = place.start();
    place.put("k", "ours, taken back");
    wait_stored(&place, revision(&place));
    other.put("k", "theirs, replaced");
    wait_until("the other cluster is refused for good", LIMIT, || {
        let state = other.status()["backup"]["state"].as_str().unwrap_or_default().to_owned();
        state.contains("Q1425")
    });
    place.put("k", "ours, for good");
    wait_stored(&place, revision(&place));
    assert!(!warned(&place, "Q1425"), "{:#}", place.status());
}

#[test]
fn a_store_that_records_no_cluster_is_bound_by_the_members_of_its_newest_full() {
    let mut place = Place::with_store("3.5.16");
    place.more = place.more.replace("backup: {", "backup: {layout: gardener, ");
    let mut agent = place.start();
    place.put("k", "ours");
    wait_stored(&place, revision(&place));

    // Another cluster has the higher revision, and the same store by mistake.
    let mut other = Place::new("3.5.16");
    let mut agent_of_other = other.start();
    for number in 0..30 {
        other.put("k", &format!("theirs {number}"));
    }
    assert!(agent_of_other.stop().success(), "{}", agent_of_other.log());
    other.more = place.more.clone();
    let text = std::fs::read_to_string(other.file()).unwrap();
    let mut agent_of_other = other.start();
    wait_until("the other cluster reports that it is not backed up", LIMIT, || warned(&other, "Q1425"));
    let state = other.status()["backup"]["state"].as_str().unwrap().to_owned();
    assert!(state.contains("Q1425") && state.contains("lists other members (`n1`)"), "{state}");

    // A node of the first cluster that has lost its spool continues.
    place.put("k", "ours, later");
    wait_stored(&place, revision(&place));
    assert!(agent.stop().success(), "{}", agent.log());
    std::fs::rename(place.state().join("spool"), place.path("lost")).unwrap();
    let mut agent = place.start();
    place.put("k", "ours, later still");
    wait_stored(&place, revision(&place));
    assert!(!warned(&place, "Q1425"), "{}", place.status());
    assert!(agent.stop().success(), "{}", agent.log());

    // What the operator orders, by the id of the cluster that takes over.
    let id = other.status()["cluster_id"].as_str().unwrap().to_owned();
    assert!(agent_of_other.stop().success(), "{}", agent_of_other.log());
    other.raw = Some(text.replace("backup: {", &format!("backup: {{take-over: \"{id}\", ")));
    let _agent = other.start();
    other.put("k", "theirs, taken over");
    wait_stored(&other, revision(&other));
}

/// Copies the fulls of etcd-backup-restore's layout from one store into another, as if both clusters wrote there.
fn copy_fulls(from: &Path, to: &Path) {
    let is_full = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().starts_with("Full-");
    for file in files(from).into_iter().filter(is_full) {
        let target = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(file, target).unwrap();
    }
}

#[test]
fn of_two_clusters_that_began_on_one_empty_store_of_no_recorded_clusters_the_later_one_stops() {
    let mut first = Place::with_store("3.5.16");
    first.more = first.more.replace("backup: {", "backup: {layout: gardener, ");
    let mut second = Place::new("3.5.16");
    std::fs::create_dir(second.path("store")).unwrap();
    second.more = first.more.replace(&first.store(), &second.store());
    let mut agent = first.start();
    for number in 0..20 {
        first.put("k", &number.to_string());
    }
    wait_stored(&first, revision(&first));
    assert!(agent.stop().success(), "{}", agent.log());

    // It has found the store empty, and its own full is not there yet.
    let mut agent = second.run(&[]);
    wait_until("the later one takes its first full", LIMIT, || agent.log().contains("taking a full backup"));
    copy_fulls(&first.path("store"), &second.path("store"));
    wait_until("the later one finds the full of the other one", LIMIT, || warned(&second, "Q1425"));
    assert!(agent.log().contains("stored a full backup"), "{}", agent.log());
    let state = second.status()["backup"]["state"].as_str().unwrap().to_owned();
    assert!(state.contains("lists other members (`n1`)"), "{state}");
    assert!(agent.stop().success(), "{}", agent.log());
    let mut agent = second.start();
    wait_until("another run of the agent finds it too", LIMIT, || warned(&second, "Q1425"));
    assert!(agent.stop().success(), "{}", agent.log());

    // The one that was there first continues, and reports the other one.
    copy_fulls(&second.path("store"), &first.path("store"));
    let mut agent = first.start();
    first.put("k", "ours, later");
    wait_stored(&first, revision(&first));
    assert!(!warned(&first, "Q1425"), "{}", first.status());
    assert!(agent.log().contains("another cluster writes to the store of this one"), "{}", agent.log());
    assert!(agent.stop().success(), "{}", agent.log());
}

/// Every object below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Two fulls of another cluster, in an epoch of its own, as earlier releases wrote them into a store of two. Returns its id.
fn add_second_lineage(store: &str, server: &Server) -> String {
    let url = server.seat.client_url();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&Settings::new([url])).await.unwrap();
        let heard = ask_all(&client).await.unwrap();
        let cluster_id = heard.origin.cluster_id;
        let about = About { origin: heard.origin, created_ms: Timestamp::now().as_millisecond(), ..About::default() };
        let store = Arc::new(Store::open(store, true).unwrap());
        let opened = Arc::clone(&store);
        let taken = tokio::task::spawn_blocking(move || epochs::take(&opened, &about, heard.revision).unwrap());
        let order = Order { cluster_id, epoch: taken.await.unwrap(), layout: Layout::Quorate, turn: 0 };
        for value in ["theirs", "theirs, later"] {
            server.ctl(&["put", "k", value]);
            take(&client, &store, &order, &NoCuts, &CancellationToken::new()).await.unwrap();
        }
        format!("{cluster_id:x}")
    })
}

#[test]
fn commands_work_on_one_lineage_of_a_store_that_holds_two() {
    let place = Place::with_store("3.5.16");
    let mut agent = place.start();
    place.put("k", "ours");
    wait_stored(&place, revision(&place));
    let ours = place.status()["cluster_id"].as_str().unwrap().to_owned();
    assert!(agent.stop().success(), "{}", agent.log());
    let before = files(&place.path("store"));
    let server = Server::start(&etcd("3.5.16"), &Seat::new("other"), &place.path("other"));
    let theirs = add_second_lineage(&place.store(), &server);
    assert_ne!(ours, theirs);

    let member = format!("n1={}", place.seat.peer_url());
    let dir = |name: &str| place.path(name).display().to_string();
    let restored = |name: &str, more: &[&str]| {
        let dir = dir(name);
        backup(&place, &[&["restore", "--data-dir", &dir, "--name", "n1", "--member", &member], more].concat())
    };
    let keep = ["last", "hourly", "daily", "weekly", "monthly", "history"].map(|what| format!("--keep-{what}=0"));
    let keep: Vec<&str> = keep.iter().map(String::as_str).collect();
    let pruned = |more: &[&str]| backup(&place, &[&["prune"], &keep[..], more].concat());

    // Which one is meant is not guessed, and one that is not there is named.
    for said in [restored("none", &[]), pruned(&[]), backup(&place, &["compact"])] {
        assert_eq!(said["error"]["code"], "Q1426", "{said}");
    }
    for said in [restored("none", &["--cluster", "abc"]), pruned(&["--cluster", "abc"])] {
        assert_eq!(said["error"]["code"], "Q1427", "{said}");
    }
    assert!(!place.path("none").exists());
    let all = files(&place.path("store"));
    for (name, cluster) in [("ours", &ours), ("theirs", &theirs)] {
        let said = restored(name, &["--cluster", cluster]);
        assert_eq!(said["origin"]["cluster"], cluster.as_str(), "{said}");
    }
    // Only the older full of the second cluster goes.
    pruned(&["--cluster", &theirs]);
    let left = files(&place.path("store"));
    assert!(before.iter().all(|file| left.contains(file)), "{left:#?}");
    assert!(left.len() < all.len() && left.len() > before.len(), "{all:#?}\n{left:#?}");
    let said = restored("again", &["--cluster", &theirs]);
    assert_eq!(said["origin"]["cluster"], theirs.as_str(), "{said}");
}

#[test]
fn an_agent_works_on_its_own_lineage_of_a_store_that_holds_two() {
    let mut place = Place::with_store("3.5.16");
    place.more = place.more.replace(
        "delta-period",
        "keep: {last: 1, hourly: 0, daily: 0, weekly: 0, monthly: 0, history: 0s}, delta-period",
    );
    let mut agent = place.start();
    place.put("k", "ours");
    wait_stored(&place, revision(&place));
    assert!(agent.stop().success(), "{}", agent.log());
    let ours = files(&place.path("store"));
    let server = Server::start(&etcd("3.5.16"), &Seat::new("other"), &place.path("other"));
    add_second_lineage(&place.store(), &server);
    let both = files(&place.path("store"));
    let theirs: Vec<&PathBuf> = both.iter().filter(|file| !ours.contains(file)).collect();
    let theirs: Vec<(&PathBuf, Vec<u8>)> =
        theirs.into_iter().map(|file| (file, std::fs::read(file).unwrap())).collect();
    assert!(theirs.len() >= 5, "an epoch, and two fulls with their manifests: {theirs:#?}");

    // The newest backup in the store is the other cluster's.
    std::fs::rename(place.data(), place.path("lost")).unwrap();
    let mut agent = place.start();
    place.assert_holds("k", "ours");
    place.put("k", "ours, later");
    wait_stored(&place, revision(&place));
    // The first full of the restored cluster lets the older ones of its own lineage go, and no other.
    let full = |file: &&PathBuf| file.display().to_string().contains("/full/");
    wait_until("the older full of the lineage is removed", LIMIT, || {
        ours.iter().filter(full).all(|file| !file.exists())
    });
    for (file, bytes) in theirs {
        assert_eq!(std::fs::read(file).ok().as_ref(), Some(&bytes), "{}", file.display());
    }
    assert!(agent.stop().success(), "{}", agent.log());
}

#[test]
fn an_agent_restores_above_every_revision_that_its_ledger_has_seen() {
    let place = Place::with_store("3.5.16");
    let agent = place.start();
    place.put("k", "first");
    wait_stored(&place, revision(&place));
    let earlier = place.path("earlier");
    quorate_testkit::run(Command::new("cp").arg("-a").arg(place.path("store")).arg(&earlier));
    restore_and_adopt(&place, agent, &[]);
    let mut agent = place.start();
    place.put("k", "second");
    let seen = revision(&place);
    assert!(seen > 1_000_000_000, "{seen}");
    wait_stored(&place, seen);
    wait_until(
        "the ledger has the revision",
        LIMIT,
        || matches!(observe_ledger(&place.state().join("ledger")), LedgerSeen::There(it) if it.highest_revision() >= seen),
    );
    assert!(agent.stop().success(), "{}", agent.log());
    // The store is an older copy of itself too: only the ledger records what clients have seen.
    std::fs::rename(place.path("store"), place.path("newer")).unwrap();
    std::fs::rename(&earlier, place.path("store")).unwrap();
    std::fs::rename(place.data(), place.path("lost")).unwrap();
    std::fs::rename(place.state().join("spool"), place.path("lost-spool")).unwrap();
    let mut agent = place.start();
    let now = revision(&place);
    assert!(now > seen, "revision {now} after {seen}");
    assert!(agent.stop().success(), "{}", agent.log());
}
