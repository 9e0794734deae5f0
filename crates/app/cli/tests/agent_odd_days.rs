//! Odd days: the cluster file changes under a running agent, and what lies on disk is of another hour than the clock.

mod agent_support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use agent_support::{LIMIT, Place};
use quorate_host::durable::RealDisk;
use quorate_host::exit_record::{self, Recorded};
use quorate_testkit::{kill_hard, run, wait_until};

const HOUR_MS: u64 = 3_600_000;

#[test]
fn a_file_that_changes_under_an_agent_counts_when_the_next_one_reads_it() {
    let mut place = Place::new("sid");
    let mut agent = place.start();
    place.put("k", "v");
    let etcd = place.etcd_pid();
    let file = place.path("cluster.yaml");
    std::fs::File::create(&file).unwrap().write_all(b"members: [\n").unwrap();
    // What runs goes on, and is also started again, by what was read.
    kill_hard(etcd);
    wait_until("its end is seen", LIMIT, || !place.is_ready());
    place.wait_ready_again(&mut agent);
    place.assert_holds("k", "v");
    assert!(agent.ended().is_none(), "{}", agent.log());
    place.file();
    let status = place.status();
    assert_eq!((&status["restarts"], &status["warnings"]), (&1.into(), &serde_json::Value::Null), "{status}");
    assert_ne!(place.etcd_pid(), etcd);
    // Settings of another file are told by the next agent, which starts etcd anew with them in its turn.
    let etcd = place.etcd_pid();
    place.more = "etcd: {heartbeat-interval: 10, election-timeout: 100, max-txn-ops: 256}\n".to_owned();
    place.file();
    assert_eq!(place.status()["warnings"], serde_json::Value::Null);
    assert!(place.quorate(&["stop", "--keep-running"]).status.success());
    wait_until("the agent has ended", LIMIT, || agent.ended().is_some());
    let mut agent = place.start();
    place.wait_for_another_etcd(etcd);
    assert!(agent.log().contains("Q0966"), "{}", agent.log());
    place.assert_holds("k", "v");
    assert!(agent.stop().success());
}

/// The clock of a test machine is not ours to set; so it is the files that are moved, as a clock that was stepped leaves them.
#[test]
fn records_and_logs_of_another_hour_are_no_reason_to_doubt() {
    let place = Place::new("sid");
    let mut agent = place.start();
    place.put("k", "v");
    assert!(agent.stop().success(), "{}", agent.log());
    for (later, touched) in [(true, "+1 hour"), (false, "-1 hour")] {
        let path = place.state().join("exit-record");
        let Recorded::Record(mut record) = exit_record::read(&path) else { panic!("no record") };
        for time in [&mut record.started_at_ms, &mut record.ended_at_ms] {
            *time = if later { *time + HOUR_MS } else { *time - 2 * HOUR_MS };
        }
        exit_record::write(&RealDisk, &path, &record).unwrap();
        run(Command::new("touch").arg("-d").arg(touched).arg(place.state().join("logs/etcd.log")));
        let before = std::fs::metadata(place.state().join("logs/etcd.log")).unwrap().len();
        let mut agent = place.start();
        let status = place.status();
        assert_eq!(status["checked"]["mode"], "sanity", "{touched}: {status}");
        assert_eq!(status["restarts"], 0, "{touched}: {status}");
        place.assert_holds("k", "v");
        let after = std::fs::metadata(place.state().join("logs/etcd.log")).unwrap().len();
        assert!(after != before, "{touched}: etcd's log goes on");
        assert!(agent.stop().success(), "{}", agent.log());
        assert_eq!(place.status()["last_end"], "stopped as asked by SIGTERM to the agent", "{touched}");
    }
}

/// Whatever ends at once is shown with its last words, however soon that is noticed.
#[test]
fn an_etcd_that_ends_at_once_is_shown_with_its_last_words() {
    let mut place = Place::new("3.5.16");
    place.binary = place.path("etcd.sh");
    // A script has no place in a box.
    place.more = "box: {level: off}\n".to_owned();
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'etcd Version: 3.5.16' && exit\n\
                  echo 'one line'; printf 'libodd.so.7: cannot \\033[31mopen\\n\\n' >&2; exit 127\n";
    std::fs::File::create(&place.binary).unwrap().write_all(script.as_bytes()).unwrap();
    std::fs::set_permissions(&place.binary, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut agent = place.run(&[]);
    let mut status = serde_json::Value::Null;
    wait_until("it has ended three times", LIMIT, || {
        status = place.status();
        status["restarts"].as_u64() >= Some(3) && status["phase"] == "waiting"
    });
    let words = "libodd.so.7: cannot  [31mopen";
    for place in ["cause", "last_end"] {
        assert!(status[place].as_str().unwrap().contains(words), "{place}: {status}");
    }
    assert!(status["cause"].as_str().unwrap().contains("exit code 127"), "{status}");
    let log = agent.log();
    let ends: Vec<&str> = log.lines().filter(|line| line.contains("Q0964")).collect();
    assert!(ends.len() >= 3 && ends.iter().all(|line| line.contains("libodd.so.7")), "{log}");
    let shown = place.quorate(&["status"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains(words), "{shown:?}");
    assert!(agent.stop().success());
}

#[test]
fn what_etcd_does_not_accept_is_shown_in_its_own_words() {
    let mut place = Place::new("3.5.16");
    place.more = "etcd: {auto-compaction-mode: revision, auto-compaction-retention: \"nonsense\"}\n".to_owned();
    let mut agent = place.run(&[]);
    let status = place.wait_phase("refused");
    assert_eq!(status["code"], "Q0919", "{status}");
    for place in ["cause", "last_end"] {
        assert!(status[place].as_str().unwrap().contains("error parsing CompactionRetention"), "{place}: {status}");
    }
    assert!(agent.stop().success());
}
