//! A declared cluster that lives: deploys, lost disks, moved addresses, backups and what differs from the file.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use std::process::Command;
use std::time::{Duration, Instant};

use cluster_support::{Declared, LIMIT, Wire};
use quorate_testkit::{VERSIONS, free_port, kill_hard, wait_until};
use serde_json::Value;

/// A cluster that serves.
fn serving(version: &str, wire: Wire, more: &str) -> Declared {
    let mut cluster = Declared::new(version, 3, wire);
    cluster.more = more.to_owned();
    cluster.file();
    cluster.start_all();
    cluster.wait_serving();
    cluster
}

/// Who leads, by `cluster status`.
fn leader(cluster: &Declared) -> usize {
    let file = cluster.path("cluster.yaml").display().to_string();
    let mut found = None;
    wait_until("a leader", LIMIT, || {
        let shown = cluster.json(&["cluster", "status", "--config", &file]);
        let members: Vec<Value> = shown["members"].as_array().cloned().unwrap_or_default();
        let name = members.iter().find(|member| member["role"] == "leader").map(|member| member["name"].clone());
        found = name.and_then(|name| cluster.members.iter().position(|member| name == member.name.as_str()));
        found.is_some()
    });
    found.unwrap()
}

/// Whom etcd itself takes for the leader, asked through member `at`.
fn leader_id(cluster: &Declared, at: usize) -> u64 {
    let text = cluster.ctl(at, &["endpoint", "status", "--write-out=json"]);
    let status: Value = serde_json::from_str(&text).unwrap();
    status[0]["Status"]["leader"].as_u64().unwrap()
}

/// Stops each in turn, lets `meanwhile` happen to its machine, and starts it again: writes through the others never fail for long,
/// and the same members come back.
fn deploy(cluster: &mut Declared, meanwhile: impl Fn(&Declared, usize)) {
    let before: Vec<_> = (0..3).map(|at| cluster.ids(at)).collect();
    for at in 0..3 {
        let other = (at + 1) % 3;
        cluster.stop(at);
        cluster.put(other, &format!("while-{at}"), "written");
        meanwhile(cluster, at);
        cluster.start(at);
        cluster.wait_phase(at, "serving");
    }
    assert_eq!((0..3).map(|at| cluster.ids(at)).collect::<Vec<_>>(), before, "the same members come back");
    for at in 0..3 {
        cluster.assert_all_hold(&format!("while-{at}"), "written");
    }
    cluster.assert_one_cluster();
}

#[test]
fn normal_deploy() {
    let mut cluster = serving("3.5.16", Wire::Tls, "");
    cluster.put(0, "k", "v");
    deploy(&mut cluster, |_, _| {});
    cluster.assert_all_hold("k", "v");
}

#[test]
fn stemcell_deploy() {
    let mut cluster = serving("3.4.23", Wire::Clear, "");
    cluster.put(0, "k", "v");
    // A new machine: nothing but the persistent disk with data and state is left.
    deploy(&mut cluster, |cluster, at| {
        for name in ["logs", "etcd.yaml", "agent.sock", "shim.json", "exit-record"] {
            let path = cluster.state(at).join(name);
            let to = cluster.path(&format!("gone-{at}-{name}"));
            let _ = std::process::Command::new("mv").arg(path).arg(to).output().unwrap();
        }
    });
    cluster.assert_all_hold("k", "v");
}

#[test]
fn persistent_disk_size_change() {
    let mut cluster = serving("sid", Wire::Clear, "");
    cluster.put(0, "k", "v");
    // The contents are copied to another disk.
    deploy(&mut cluster, |cluster, at| {
        let (data, old) = (cluster.data(at), cluster.path(&format!("old-{at}")));
        quorate_testkit::run(std::process::Command::new("mv").arg(&data).arg(&old));
        quorate_testkit::run(std::process::Command::new("cp").arg("-a").arg(&old).arg(&data));
    });
    cluster.assert_all_hold("k", "v");
}

#[test]
fn databases_are_defragmented_in_turns_and_the_leaders_last() {
    let more = "maintenance: {defrag: {free-percent: 30, free-min: 4MiB}}\n";
    let cluster = serving("3.5.16", Wire::Clear, more);
    let lead = leader(&cluster);
    let value = "x".repeat(100_000);
    for number in 0..120 {
        cluster.put(0, &format!("fill/{number}"), &value);
    }
    cluster.ctl(0, &["del", "--prefix", "fill/"]);
    let answer: Value = serde_json::from_str(&cluster.ctl(0, &["get", "k", "--write-out=json"])).unwrap();
    cluster.ctl(0, &["compact", "--physical", &answer["header"]["revision"].to_string()]);
    // Times of the log sort as text does.
    let when = |at: usize, what: &str| {
        let log = cluster.log(at);
        let line = log.lines().find(|line| line.contains(what))?;
        Some(line.split_whitespace().next().unwrap_or_default().to_owned())
    };
    wait_until("all three are defragmented", LIMIT, || {
        // etcd frees the pages of what it has compacted when it next writes.
        cluster.put(0, "k", "v");
        (0..3).all(|at| when(at, " defragmented").is_some())
    });
    let mut turns: Vec<_> =
        (0..3).map(|at| (when(at, " defragmenting:").unwrap(), when(at, " defragmented").unwrap(), at)).collect();
    turns.sort();
    assert_eq!(turns[2].2, lead, "the leader comes last: {turns:?}");
    assert!(turns.windows(2).all(|two| two[0].1 <= two[1].0), "one at a time: {turns:?}");
}

#[test]
fn a_stop_hands_leadership_over_first() {
    let mut cluster = serving("3.5.16", Wire::Clear, "");
    let at = leader(&cluster);
    let other = (at + 1) % 3;
    let before = leader_id(&cluster, other);
    let agent = cluster.members[at].agent.take().unwrap();
    let mut agent = agent;
    assert!(agent.stop().success());
    assert!(agent.log().contains("handed leadership to member"), "{}", agent.log());
    assert_ne!(leader_id(&cluster, other), before);
}

#[test]
fn a_node_that_lost_its_disk_joins_again_as_a_learner_and_is_promoted() {
    for version in VERSIONS {
        let mut cluster = serving(version, Wire::Tls, "");
        cluster.put(0, "k", version);
        let (before, others) = (cluster.ids(2), [cluster.ids(0), cluster.ids(1)]);
        cluster.power_off(2);
        // Data and state: nothing on this machine remembers.
        for dir in [cluster.data(2), cluster.state(2)] {
            let to = dir.with_extension("lost");
            quorate_testkit::run(std::process::Command::new("mv").arg(&dir).arg(to));
        }
        cluster.start(2);
        cluster.wait_phase(2, "serving");
        let after = cluster.ids(2);
        assert_eq!(
            (after.0 == before.0, after.1 == before.1),
            (true, false),
            "{version}: same cluster, another member"
        );
        assert_eq!([cluster.ids(0), cluster.ids(1)], others);
        cluster.assert_all_hold("k", version);
        let list = cluster.ctl(0, &["member", "list"]);
        assert_eq!(list.lines().count(), 3, "{list}");
        assert!(list.lines().all(|line| line.ends_with("false")), "{version}: no learner is left: {list}");
        cluster.wait_status(2, "it has joined", |status| status["ledger"] == "started");
    }
}

#[test]
fn peer_urls_that_change_in_the_file_are_followed() {
    let mut cluster = serving("3.5.16", Wire::Clear, "");
    cluster.put(0, "k", "v");
    let before = cluster.peer_url(1);
    let port = free_port();
    let moved = before.rsplit_once(':').unwrap().0.to_owned() + &format!(":{port}");
    let text = cluster.text().replace(&before, &moved);
    cluster.file_as("cluster.yaml", &text);
    let ids = cluster.ids(1);
    cluster.stop(1);
    cluster.start(1);
    cluster.wait_phase(1, "serving");
    wait_until("the list has the new address", LIMIT, || {
        let list = cluster.ctl(0, &["member", "list"]);
        list.contains(&moved) && !list.contains(&before)
    });
    assert_eq!(cluster.ids(1), ids);
    // The others still run with the old file, and that is said.
    let drift = |status: &Value| {
        let warnings = status["warnings"].as_array().cloned().unwrap_or_default();
        warnings.iter().any(|warning| warning["code"] == "Q0982")
    };
    cluster.wait_status(0, "drift is shown", drift);
    for at in [0, 2] {
        cluster.stop(at);
        cluster.start(at);
        cluster.wait_phase(at, "serving");
    }
    cluster.wait_status(0, "nothing drifts", |status| status["phase"] == "serving" && !drift(status));
    cluster.assert_all_hold("k", "v");
}

#[test]
fn the_agent_of_the_leader_alone_backs_up_and_another_goes_on_after_it() {
    let store = tempfile::tempdir().unwrap();
    let more = format!("backup: {{store: \"file://{}\", delta-period: 200ms}}\n", store.path().display());
    let mut cluster = serving("3.5.16", Wire::Clear, &more);
    let stored = |cluster: &mut Declared, at: usize, least: u64| {
        cluster.wait_status(at, "stored", |status| status["backup"]["stored_revision"].as_u64() >= Some(least))
    };
    cluster.put(0, "a", "1");
    let first = leader(&cluster);
    let written = cluster.revision(0);
    let status = stored(&mut cluster, first, written);
    assert_eq!(status["backup"]["state"], "following", "{status}");
    for at in (0..3).filter(|at| *at != first) {
        let name = cluster.members[first].name.clone();
        cluster.wait_status(at, "another backs up", |status| {
            status["backup"]["state"] == format!("`{name}` leads, and its agent backs up")
        });
    }
    cluster.stop(first);
    let other = (first + 1) % 3;
    cluster.put(other, "b", "2");
    let written = cluster.revision(other);
    let next = (0..3).filter(|at| *at != first);
    wait_until("another agent goes on", LIMIT, || {
        next.clone().any(|at| cluster.status(at)["backup"]["stored_revision"].as_u64() >= Some(written))
    });
    cluster.start(first);
    cluster.wait_phase(first, "serving");
}

#[test]
fn a_disk_that_was_rolled_back_is_not_run_but_replaced() {
    let mut cluster = serving("3.5.16", Wire::Clear, "");
    cluster.put(0, "k", "old");
    cluster.assert_all_hold("k", "old");
    cluster.stop(2);
    let (data, copy) = (cluster.data(2), cluster.path("copy"));
    quorate_testkit::run(std::process::Command::new("cp").arg("-a").arg(&data).arg(&copy));
    cluster.start(2);
    cluster.wait_phase(2, "serving");
    let before = cluster.ids(2);
    cluster.put(0, "k", "new");
    cluster.assert_all_hold("k", "new");
    // The others have seen it acknowledge that.
    let (_, member) = before.clone();
    let written = applied(&cluster, 2);
    wait_until("they know how far it was", LIMIT, || {
        let node = node(&cluster, 0);
        let seen = node["acknowledged"].as_array().cloned().unwrap_or_default();
        seen.iter().any(|seen| seen["member"] == member.as_str() && seen["index"].as_u64() >= Some(written))
    });
    cluster.stop(2);
    quorate_testkit::run(std::process::Command::new("mv").arg(&data).arg(cluster.path("newer")));
    quorate_testkit::run(std::process::Command::new("mv").arg(&copy).arg(&data));
    cluster.start(2);
    cluster.wait_phase(2, "serving");
    let after = cluster.ids(2);
    assert_eq!((after.0 == before.0, after.1 == before.1), (true, false), "another member of the same cluster");
    cluster.assert_all_hold("k", "new");
    let kept = std::fs::read_dir(cluster.root.path()).unwrap().flatten();
    assert!(kept.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("data-n3.replaced-")));
}

/// The raft index that a member has applied.
fn applied(cluster: &Declared, at: usize) -> u64 {
    let text = cluster.ctl(at, &["endpoint", "status", "--write-out=json"]);
    let status: Value = serde_json::from_str(&text).unwrap();
    status[0]["Status"]["raftIndex"].as_u64().unwrap()
}

/// What the agent of a member tells others, in the clear: with the token of that agent.
fn node(cluster: &Declared, at: usize) -> Value {
    let (spec, _) = quorate_agent::cluster_file::read(&cluster.path("cluster.yaml")).unwrap();
    let peers = quorate_agent::peers::Peers::for_operator(&spec, None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(peers.node(&cluster.members[at].name, None));
    serde_json::to_value(answer.unwrap()).unwrap()
}

#[test]
fn members_that_hold_other_data_are_shown_and_left_alone() {
    // etcd's own comparison would end the member at its start; see `corruption_checks.rs`.
    let etcd = "etcd: {heartbeat-interval: 50, election-timeout: 500, experimental-initial-corrupt-check: false}\n";
    let mut cluster = serving("3.5.16", Wire::Clear, etcd);
    cluster.put(0, "k", "v");
    cluster.assert_all_hold("k", "v");
    for at in 0..3 {
        cluster.stop(at);
    }
    // One more key in the database of one member, behind etcd's back.
    let database = cluster.data(1).join("member/snap/db");
    cluster_support::forge(&database);
    cluster.start_all();
    cluster.wait_serving();
    wait_until("it is shown", LIMIT, || {
        (0..3).any(|at| {
            let warnings = cluster.status(at)["warnings"].as_array().cloned().unwrap_or_default();
            warnings.iter().any(|warning| warning["code"] == "Q0981")
        })
    });
    assert!((0..3).all(|at| cluster.status(at)["phase"] == "serving"), "nothing is repaired by guessing");
    // Nothing shows whose data is wrong: a majority does not, and no member leaves meanwhile.
    let without = |at: usize| {
        let name = format!("name: {},", cluster.members[at].name);
        let kept: Vec<String> =
            cluster.text().lines().filter(|line| !line.contains(&name)).map(str::to_owned).collect();
        assert_eq!(kept.len() + 1, cluster.text().lines().count(), "{}", cluster.text());
        cluster.file_as(&format!("without-{at}.yaml"), &(kept.join("\n") + "\n")).display().to_string()
    };
    let planned = |at: usize| cluster_support::said(&cluster.quorate(&["cluster", "plan", &without(at)]));
    for at in 0..3 {
        let (said, own) = (planned(at), &cluster.members[at].name);
        assert!(said.contains("is not well: members hold different data at one revision"), "{said}");
        assert!(!said.contains(&format!("remove `{own}`")), "{said}");
    }
    let warned = (0..3).flat_map(|at| cluster.status(at)["warnings"].as_array().cloned().unwrap_or_default());
    let told: Vec<String> = warned.filter(|it| it["code"] == "Q0981").map(|it| it["text"].to_string()).collect();
    let both = |text: &String| text.contains("2 members (") && text.contains("1 member (`n2`)");
    assert!(!told.is_empty() && told.iter().all(|text| both(text) && text.contains("nothing shows which")), "{told:?}");
}

#[test]
fn a_second_cluster_under_the_same_name_is_shown_and_left_alone() {
    use quorate_etcd_formats::membership::{ClusterId, MemberId};
    use quorate_plan::ledger::{Identity, Ledger, Origin, State};
    let mut cluster = serving("3.5.16", Wire::Clear, "");
    cluster.put(0, "k", "v");
    cluster.power_off(2);
    // What the node remembers is of another cluster: someone mixed up machines.
    quorate_testkit::run(std::process::Command::new("mv").arg(cluster.data(2)).arg(cluster.path("elsewhere")));
    let other = Identity { cluster: ClusterId(0xabc), member: MemberId(7), origin: Origin::Founded };
    let ledger = Ledger { state: State::Started(other), ..Ledger::default() };
    let text = String::from_utf8(ledger.encode()).unwrap();
    let made = cluster.file_as("a-ledger", &text);
    std::fs::copy(made, cluster.state(2).join("ledger")).unwrap();
    cluster.start(2);
    let says = |status: &Value| {
        let warnings = status["warnings"].as_array().cloned().unwrap_or_default();
        warnings.iter().any(|warning| {
            warning["code"] == "Q0980" && warning["text"].as_str().unwrap().contains("and `n3` in `abc`")
        })
    };
    cluster.wait_status(0, "a warning", says);
    assert_ne!(cluster.status(2)["phase"], "serving");
    assert_eq!(cluster.ctl(0, &["member", "list"]).lines().count(), 3, "nobody was removed");
    cluster.put(1, "k", "w");
}

/// Where its log should be is a file: the shim cannot begin, and etcd is never executed.
#[test]
fn a_start_that_fails_is_tried_again_slower_and_goes_on_when_its_cause_is_gone() {
    let mut cluster = serving("3.5.16", Wire::Clear, "");
    let (logs, kept) = (cluster.state(0).join("logs"), cluster.state(0).join("logs.kept"));
    let attempts = |cluster: &Declared| cluster.log(0).matches("etcd 3.5.16 starts").count();
    let times = |status: &Value, times: usize| {
        let words = format!("etcd could not be started, {times} times in a row (");
        status["cause"].as_str().unwrap().starts_with(&words)
    };
    for (count, reread) in [(4, true), (4, false)] {
        quorate_testkit::run(Command::new("mv").args([&logs, &kept]));
        std::fs::File::create(&logs).unwrap();
        let (begun, before) = (Instant::now(), attempts(&cluster));
        kill_hard(u32::try_from(cluster.status(0)["etcd"]["pid"].as_u64().unwrap()).unwrap());
        let status = cluster.wait_status(0, "word of all attempts", |status| times(status, count));
        // Each wait is at least half of one, two, four seconds and so on; the first failure is met at once.
        // The same line is logged once a minute.
        assert!((1..=count).contains(&(attempts(&cluster) - before)), "{}", cluster.log(0));
        let least = Duration::from_millis(500 * ((1 << (count - 1)) - 1));
        assert!(begun.elapsed() >= least, "{count} attempts in {:?}: {status:#}", begun.elapsed());
        assert!(status["phase"] == "waiting" && status["code"] == "Q0002", "{status:#}");
        assert!(status["cause"].as_str().unwrap().contains("; it is tried again in "), "{status:#}");
        let (since, next) = (status["since_ms"].as_u64().unwrap(), status["next_try_ms"].as_u64().unwrap());
        assert!(next - since >= u64::try_from(least.as_millis()).unwrap(), "{status:#}");
        // What the dead etcd had last reported is not shown as current.
        let etcd = &status["etcd"];
        assert!(etcd["version"].is_null() && etcd["db_bytes"].is_null(), "{status:#}");
        let file = cluster.path("cluster.yaml").display().to_string();
        wait_until("no version, lag and size of it", LIMIT, || {
            let table = cluster.quorate(&["cluster", "status", "--config", &file]).stdout;
            let table = String::from_utf8_lossy(&table).into_owned();
            let row = table.lines().find(|line| line.starts_with("n1 ")).unwrap_or_default();
            row.split_whitespace().skip(3).take(3).eq(["–"; 3])
        });
        // The others go on.
        cluster.put(1, &format!("k{reread}"), "v");
        std::fs::remove_file(&logs).unwrap();
        quorate_testkit::run(Command::new("mv").args([&kept, &logs]));
        let agent = cluster.members[0].agent.as_ref().unwrap().pid().to_string();
        if reread {
            assert!(Command::new("kill").args(["-HUP", &agent]).status().unwrap().success());
        }
        let status = cluster.wait_phase(0, "serving");
        let started = status["etcd"]["started_ms"].as_u64().unwrap();
        assert_eq!(started < next, reread, "at once where it is asked to, else when it said: {status:#}");
        assert_eq!(status["next_try_ms"], Value::Null, "{status:#}");
        cluster.assert_all_hold(&format!("k{reread}"), "v");
    }
}
