//! An agent on a good day, and what outlives it: founding, serving, stopping, being killed and taking over.

mod agent_support;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use agent_support::{LIMIT, Place};
use quorate_testkit::{VERSIONS, kill_hard, wait_until};

#[test]
fn founds_serves_and_stops_on_every_release() {
    for version in VERSIONS {
        let place = Place::new(version);
        place.file();
        let plan = place.json(&["plan"]);
        assert_eq!(plan["because"], "a founding is declared, and everyone agrees", "{version}");
        assert!(!place.path("state").exists(), "a plan makes nothing");
        let mut agent = place.start();
        place.put("k", version);
        let status = place.status();
        assert_eq!((&status["phase"], &status["ledger"]), (&"serving".into(), &"started".into()), "{status}");
        assert_eq!(place.health("/readyz").unwrap(), (200, r#"{"phase":"serving"}"#.to_owned()));
        assert_eq!(place.health("/livez").unwrap().0, 200);
        let metrics = place.health("/metrics").unwrap().1;
        assert!(metrics.contains("quorate_phase{phase=\"serving\"} 1"), "{metrics}");
        assert!(agent.stop().success(), "{}", agent.log());
        let status = place.status();
        assert_eq!(status["last_end"], "stopped as asked by SIGTERM to the agent", "{version}: {status}");
        // A clean end needs no more than a quick look, and the founding is not repeated.
        let mut agent = place.start();
        place.assert_holds("k", version);
        assert_eq!(place.status()["checked"]["mode"], "sanity", "{version}");
        assert!(agent.stop().success());
    }
}

#[test]
fn an_etcd_that_is_killed_is_checked_in_full_and_started_again() {
    let place = Place::new("3.5.16");
    let mut agent = place.start();
    place.put("k", "v");
    let before = place.etcd_pid();
    kill_hard(before);
    wait_until("another etcd", LIMIT, || {
        let status = place.status();
        status["restarts"] == 1 && status["phase"] == "serving"
    });
    assert_ne!(place.etcd_pid(), before);
    place.assert_holds("k", "v");
    let status = place.status();
    assert_eq!((&status["checked"]["mode"], &status["restarts"]), (&"full".into(), &1.into()), "{status}");
    assert_eq!(status["last_end"], "ended by itself, with signal 9");
    assert!(agent.stop().success());
}

#[test]
fn etcd_outlives_an_agent_that_is_killed_and_the_next_one_takes_it_over() {
    let place = Place::new("3.5.16");
    let mut agent = place.start();
    place.put("k", "v");
    let etcd = place.etcd_pid();
    agent.kill();
    place.assert_holds("k", "v");
    let status = place.status();
    assert!(status["cause"].as_str().unwrap().contains("etcd runs, kept by its shim"), "{status}");
    let mut agent = place.start();
    let status = place.status();
    assert_eq!((&status["etcd"]["pid"], &status["etcd"]["adopted"]), (&etcd.into(), &true.into()), "{status}");
    // Both at once, as when a machine loses its power.
    agent.kill();
    kill_hard(etcd);
    let mut agent = place.start();
    place.assert_holds("k", "v");
    assert_eq!(place.status()["checked"]["mode"], "full");
    assert!(agent.stop().success());
}

#[test]
fn a_second_agent_is_refused_and_told_who_the_first_is() {
    let place = Place::new("3.5.16");
    let agent = place.start();
    let mut second = place.run(&[]);
    wait_until("the second agent has ended", LIMIT, || second.ended().is_some());
    assert_eq!(second.ended().unwrap().code(), Some(5));
    assert!(second.log().contains(&format!("in use by process {}", agent.pid())), "{}", second.log());
    assert!(place.is_ready());
}

#[test]
fn an_agent_may_end_alone_and_stop_works_without_one() {
    let place = Place::new("3.5.16");
    let mut agent = place.start();
    let etcd = place.etcd_pid();
    let stopped = place.quorate(&["stop", "--keep-running"]);
    assert!(stopped.status.success(), "{stopped:?}");
    wait_until("the agent has ended", LIMIT, || agent.ended().is_some());
    assert_eq!(place.etcd_pid(), etcd);
    let said = place.json(&["stop"])["what"].as_str().unwrap().to_owned();
    assert!(said.starts_with("no agent runs; etcd stopped as asked by `quorate stop`"), "{said}");
    assert_eq!(place.phase(), "stopped");
    assert_eq!(place.json(&["stop"])["what"], "no agent runs");
    // What ended cleanly is not doubted.
    let plan = place.json(&["plan"]);
    assert_eq!(plan["steps"][0], "check the data (sanity): etcd closed it cleanly", "{plan}");
}

#[test]
fn one_turn_leaves_etcd_running() {
    let place = Place::new("3.5.16");
    let mut agent = place.run(&["--once"]);
    wait_until("the turn is over", LIMIT, || agent.ended().is_some());
    assert!(agent.ended().unwrap().success(), "{}", agent.log());
    place.put("k", "v");
    let plan = place.json(&["plan"]);
    assert!(plan["because"].as_str().unwrap().starts_with("etcd runs as process"), "{plan}");
}

#[test]
fn changed_settings_are_reported_and_etcd_is_started_again_with_them() {
    let mut place = Place::new("3.5.16");
    let mut agent = place.start();
    let etcd = place.etcd_pid();
    agent.kill();
    place.more = "etcd: {heartbeat-interval: 10, election-timeout: 100, max-txn-ops: 256}\n".to_owned();
    let mut agent = place.start();
    place.wait_for_another_etcd(etcd);
    assert!(agent.log().contains("Q0966"), "{}", agent.log());
    let config = std::fs::read_to_string(place.state().join("etcd.yaml")).unwrap();
    assert!(config.contains("max-txn-ops: 256"), "{config}");
    // A file that cannot be used harms nobody who runs.
    agent.kill();
    place.more = "etcd: {max-txn-opts: 256}\n".to_owned();
    let mut agent = place.run(&[]);
    wait_until("the agent has ended", LIMIT, || agent.ended().is_some());
    assert_eq!(agent.ended().unwrap().code(), Some(4), "{}", agent.log());
    place.put("k", "v");
    place.more = String::new();
    place.file();
}

#[test]
fn what_lies_in_the_state_dir_is_for_its_user_alone() {
    let place = Place::new("3.5.16");
    let _agent = place.start();
    for name in ["agent.sock", "etcd.yaml", "ledger", "shim.json", "running", "shim.sock"] {
        let mode = std::fs::symlink_metadata(place.state().join(name)).unwrap().permissions().mode();
        // The group of the user that etcd runs as reads its settings.
        let closed = if name == "etcd.yaml" { 0o037 } else { 0o077 };
        assert_eq!(mode & closed, 0, "{name}: {mode:o}");
    }
    assert_eq!(place.state().metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn systemd_is_told() {
    let mut place = Place::new("3.5.16");
    let path = place.path("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    place.env.push(("NOTIFY_SOCKET".to_owned(), path.display().to_string()));
    let mut agent = place.start();
    assert!(agent.stop().success());
    let mut said = String::new();
    let mut buffer = [0; 4096];
    while !said.contains("STATUS=stopped") {
        let length = socket.recv(&mut buffer).unwrap();
        said.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    let (ready, stopping) = (said.find("READY=1").unwrap(), said.find("STOPPING=1").unwrap());
    assert!(said.contains("STATUS=serving: reads through this member succeed") && ready < stopping, "{said}");
}

#[test]
fn etcd_outlives_its_shim_and_its_end_is_then_doubted() {
    let place = Place::new("3.5.16");
    let mut agent = place.start();
    place.put("k", "v");
    let etcd = place.etcd_pid();
    let stat = std::fs::read_to_string(format!("/proc/{etcd}/stat")).unwrap();
    // Between the two stands the first process of the box; the shim leads the session.
    let shim = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap().parse().unwrap();
    kill_hard(shim);
    wait_until("it is reported", LIMIT, || place.status()["warnings"][0]["code"] == "Q0904");
    assert_eq!(place.etcd_pid(), etcd);
    place.assert_holds("k", "v");
    kill_hard(etcd);
    wait_until("another etcd", LIMIT, || {
        let status = place.status();
        status["restarts"] == 1 && status["phase"] == "serving"
    });
    let status = place.status();
    assert_eq!(status["checked"]["why"], "nothing says how etcd ended", "{status}");
    assert_eq!(status["warnings"], serde_json::Value::Null, "{status}");
    place.assert_holds("k", "v");
    assert!(agent.stop().success());
}

#[test]
fn a_stop_does_not_wait_for_backups_that_are_over() {
    // Releases of this age wait up to seven seconds for whoever is still connected.
    let mut place = Place::with_store("sid");
    place.more += "etcd: {heartbeat-interval: 100, election-timeout: 1000}\n";
    let mut agent = place.start();
    place.put("k", "v");
    wait_until("stored", LIMIT, || place.status()["backup"]["stored_revision"].as_u64().unwrap_or(0) >= 2);
    let begun = std::time::Instant::now();
    assert!(agent.stop().success(), "{}", agent.log());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}:\n{}", begun.elapsed(), agent.log());
    assert_eq!(place.status()["last_end"], "stopped as asked by SIGTERM to the agent");
}
