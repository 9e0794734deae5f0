//! An agent on a good day, and what outlives it: founding, serving, stopping, being killed and taking over.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue reports where")]

mod agent_support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_support::{LIMIT, Place};
use quorate_testkit::{Running, VERSIONS, copy_program, kill_hard, quorate, wait_until};

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
    place.assert_measured(&[
        ("quorate_etcd_starts_total", "counter", 2),
        ("quorate_etcd_ends_total{result=\"failed\"}", "counter", 1),
        ("quorate_validations_total{mode=\"full\",verdict=\"valid\"}", "counter", 1),
        ("quorate_validation_seconds_count", "histogram", 1),
        ("quorate_ready_seconds_count", "histogram", 2),
        ("quorate_phase_entered_total{phase=\"validating\"}", "counter", 1),
        ("quorate_phase{phase=\"serving\"}", "gauge", 1),
        ("quorate_db_bytes", "gauge", 1),
        ("quorate_db_used_bytes", "gauge", 1),
        ("quorate_db_quota_bytes", "gauge", 2 << 30),
    ]);
    // Nobody asked for that end, and the record knows how far etcd was all the same.
    let record = std::fs::read_to_string(place.state().join("exit-record.last")).unwrap();
    let (_, revision) = record.split_once("\"last_revision\":").unwrap();
    assert!(revision.starts_with(|c: char| c.is_ascii_digit()), "{record}");
    assert!(agent.stop().success());
}

#[test]
fn an_etcd_that_ends_again_and_again_is_started_slower_and_reported() {
    let place = Place::new("3.5.16");
    let mut agent = place.start();
    let mut status = place.status();
    wait_until("it is called a crash loop", LIMIT, || {
        if let Some(pid) = status["etcd"]["pid"].as_u64() {
            kill_hard(u32::try_from(pid).unwrap());
        }
        status = place.status();
        status["code"] == "Q0951"
    });
    assert_eq!((&status["phase"], status["restarts"].as_u64() >= Some(5)), (&"waiting".into(), true), "{status}");
    let cause = status["cause"].as_str().unwrap();
    assert!(cause.starts_with("etcd ended 5 times in a row (") && cause.contains("it is started again in"), "{cause}");
    assert!(agent.log().contains("Q0951"), "{}", agent.log());
    assert_eq!(place.health("/readyz").unwrap(), (503, r#"{"phase":"waiting"}"#.to_owned()));
    assert!(agent.stop().success());
}

#[test]
fn an_etcd_that_hangs_is_not_ready_and_outlives_an_agent_that_is_to_keep_it() {
    let mut place = Place::new("3.5.16");
    place.agent = "  ready-timeout: 1s\n".to_owned();
    let mut agent = place.run(&["--keep-running"]);
    place.wait_ready(&mut agent);
    let etcd = place.etcd_pid();
    let send = |signal: &str| {
        assert!(Command::new("kill").args([signal, &etcd.to_string()]).status().unwrap().success());
    };
    send("-STOP");
    wait_until("it is not ready", LIMIT, || {
        place.health("/readyz").unwrap() == (503, r#"{"phase":"waiting"}"#.to_owned())
    });
    assert_eq!(place.status()["code"], "Q0601", "{}", place.status());
    send("-CONT");
    place.wait_ready_again(&mut agent);
    assert_eq!(place.status()["restarts"], 0, "nobody restarts what hangs");
    assert!(agent.stop().success(), "{}", agent.log());
    let status = place.status();
    assert!(status["cause"].as_str().unwrap().contains("etcd runs, kept by its shim"), "{status}");
    assert_eq!(status["etcd"]["pid"].as_u64(), Some(etcd.into()), "{status}");
    place.put("k", "v");
}

#[test]
fn what_etcd_is_to_log_is_kept_and_its_end_is_clean_all_the_same() {
    for version in VERSIONS {
        let mut place = Place::new(version);
        place.more = "etcd: {heartbeat-interval: 10, election-timeout: 100, log-level: warn}\n".to_owned();
        let mut agent = place.start();
        place.put("k", "v");
        assert!(agent.stop().success(), "{}", agent.log());
        assert_eq!(place.status()["last_end"], "stopped as asked by SIGTERM to the agent", "{version}");
        let log = std::fs::read_to_string(place.state().join("logs/etcd.log")).unwrap_or_default();
        assert!(!log.contains(r#""level":"info""#), "{version}: {log}");
        let plan = place.json(&["plan"]);
        assert_eq!(plan["steps"][0], "check the data (sanity): etcd closed it cleanly", "{version}: {plan}");
    }
}

#[test]
fn an_etcd_whose_shim_was_slow_to_say_so_is_found_and_taken_over() {
    let place = Place::new("3.5.16");
    let program = place.path("quorate");
    copy_program(&quorate(), &program);
    let file = place.file().display().to_string();
    let words = ["run", "--config", &file, "--name", "n1"].map(str::to_owned);
    let mut agent = Running::start(&program, &words, &place.env);
    place.wait_ready(&mut agent);
    let before = place.etcd_pid();
    // From now on whoever is started as the shim takes longer than the agent waits for it.
    let slow = format!("#!/bin/sh\nsleep 10.2\nexec {} \"$@\"\n", quorate().display());
    let script = place.path("slow");
    std::fs::File::create(&script).unwrap().write_all(slow.as_bytes()).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new("mv").arg(&script).arg(&program).status().unwrap().success());
    kill_hard(before);
    wait_until("the agent has given up waiting", LIMIT, || agent.log().contains("Q0902"));
    wait_until("it is found", LIMIT, || {
        let status = place.status();
        status["phase"] == "serving" && status["etcd"]["pid"].as_u64() != Some(before.into())
    });
    let etcd = place.etcd_pid();
    assert!(agent.stop().success(), "{}", agent.log());
    assert!(!std::path::Path::new(&format!("/proc/{etcd}")).exists(), "it is stopped with the agent");
    assert_eq!(place.status()["last_end"], "stopped as asked by SIGTERM to the agent");
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
    let audited = std::fs::read_to_string(place.state().join("audit.log")).unwrap();
    let stops = audited.lines().filter(|line| line.contains(r#""command":"stop""#)).count();
    assert!(stops == 3 && audited.contains("--keep-running"), "{audited}");
    // What ended cleanly is not doubted.
    let plan = place.json(&["plan"]);
    assert_eq!(plan["steps"][0], "check the data (sanity): etcd closed it cleanly", "{plan}");
}

/// A process that dies of a signal that dumps core, in a directory of its own without a limit of such dumps.
fn abort(place: &Place, command: &str, is_time: impl Fn() -> bool) -> std::process::ExitStatus {
    let script = format!("ulimit -c unlimited; cd {}; exec {command}", place.root.path().display());
    let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let name = format!("/proc/{}/comm", child.id());
    wait_until("the shell has become the program", LIMIT, || std::fs::read_to_string(&name).unwrap().trim() != "sh");
    wait_until("the process is at work", LIMIT, &is_time);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::ABORT).unwrap();
    child.wait().unwrap()
}

#[test]
fn an_agent_leaves_no_core_dump_and_its_etcd_goes_on() {
    use std::os::unix::process::ExitStatusExt;
    let place = Place::new("3.5.16");
    let file = place.file().display().to_string();
    // Where this machine dumps nothing at all, nothing would be shown.
    assert!(abort(&place, "sleep 86396", || true).core_dumped() || !dumps_to_files(), "no process dumps core here");
    let command = format!("{} run --config {file} --name n1 2>agent.out", quorate().display());
    let ended = abort(&place, &command, || place.is_ready());
    assert!(ended.signal() == Some(6) && !ended.core_dumped(), "{ended}");
    // The shim of etcd is not concerned, and the next agent adopts etcd.
    let etcd = place.etcd_pid();
    let mut agent = place.start();
    assert_eq!(place.etcd_pid(), etcd);
    assert!(place.quorate(&["ps"]).status.success());
    assert!(agent.stop().success(), "{}", agent.log());
}

fn dumps_to_files() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    !pattern.starts_with(['|', '/', '@'])
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
    let said = listen(UnixDatagram::bind(&path).unwrap());
    let said = || said.lock().unwrap().clone();
    place.env.push(("NOTIFY_SOCKET".to_owned(), path.display().to_string()));
    let mut agent = place.start();
    let etcd = place.etcd_pid();
    // A changed file has etcd stopped and started again, which is no end of the service: systemd would kill the agent for it.
    place.more = "etcd: {heartbeat-interval: 10, election-timeout: 100, max-txn-ops: 256}\n".to_owned();
    place.file();
    assert!(Command::new("kill").args(["-HUP", &agent.pid().to_string()]).status().unwrap().success());
    place.wait_for_another_etcd(etcd);
    wait_until("it is ready again", LIMIT, || {
        let said = said();
        let again = said.split_once("STATUS=draining: etcd is being stopped, to be started again");
        again.is_some_and(|(_, later)| later.contains("READY=1"))
    });
    assert!(!said().contains("STOPPING=1"), "{}", said());
    assert!(agent.stop().success());
    wait_until("its end is told", LIMIT, || said().contains("STATUS=stopped") && said().contains("STOPPING=1"));
    assert!(said().contains("STATUS=serving: reads through this member succeed"), "{}", said());
    assert_eq!(said().matches("STOPPING=1").count(), 1, "{}", said());
}

/// Hears what systemd would, all the time: what nobody takes is lost.
fn listen(socket: UnixDatagram) -> Arc<Mutex<String>> {
    let said = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&said);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length) = socket.recv(&mut buffer) {
            if let Ok(mut heard) = heard.lock() {
                heard.push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        }
    });
    said
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
