//! The shim with small programs: how they end, what is recorded, what is kept of their output, who is adopted.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod shim_support;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use quorate_faults::Code;
use quorate_host::exit_record::{Reason, Recorded, last_path, read};
use quorate_host::logs::{LogReader, Reached, Rotation};
use quorate_host::shim::{Adoption, Ended, Send, adopt};
use quorate_testkit::{kill_hard, wait_until};
use rustix::process::Signal;
use shim_support::{LIMIT, Place, alive, ended, order, patient, record, signal};

#[test]
fn an_orderly_stop_is_recorded_as_one_with_who_asked() {
    let place = Place::new();
    let mut running = place.idle();
    assert!(running.is_kept());
    running.stop(&patient()).unwrap();
    let record = record(&mut running);
    assert_eq!((record.reason, record.signal, record.clean), (Reason::Stopped, Some(15), true));
    assert_eq!((record.asked_by.as_deref(), record.last_revision), (Some("the test"), Some(42)));
    assert_eq!((record.pid, record.config_hash.as_str()), (running.child().pid, "hash"));
    assert!(record.ended_at_ms >= record.started_at_ms && record.started_at_ms == running.started_at_ms());
    assert!(matches!(adopt(&place.state).unwrap(), Adoption::Gone(gone) if gone == record));
    for name in ["shim.json", "running", "exit-record"] {
        let mode = place.state.path().join(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    // Before the next start it is consumed.
    let mut next = place.idle();
    assert_eq!(read(&place.state.record()), Recorded::Absent);
    assert_eq!(read(&last_path(&place.state.record())), Recorded::Record(record));
    next.stop(&order(&[(Send::Kill, 1000)])).unwrap();
    ended(&mut next);
}

#[test]
fn an_end_that_nobody_asked_for_is_never_clean() {
    let place = Place::new();
    let mut running = place.run("sleep 0.2; exit 7");
    let crashed = record(&mut running);
    assert_eq!((crashed.reason, crashed.code, crashed.clean), (Reason::Exited, Some(7), false));
    let mut running = place.run("sleep 0.2; exit 0");
    let left = record(&mut running);
    assert_eq!((left.reason, left.code, left.clean), (Reason::Exited, Some(0), false));
    for sent in [Signal::TERM, Signal::KILL] {
        let mut running = place.idle();
        signal(running.child().pid, sent);
        let record = record(&mut running);
        assert_eq!((record.reason, record.signal), (Reason::Signalled, Some(sent.as_raw())));
        assert_eq!((record.clean, record.asked_by), (false, None));
    }
}

#[test]
fn without_the_words_of_an_orderly_end_a_stop_is_not_clean() {
    let place = Place::new();
    for (script, clean) in [("trap 'echo bye; exit 0' TERM", true), ("trap 'exit 0' TERM; echo bye", false)] {
        let mut spec = place.sh(&format!("{script}; echo ready; while :; do sleep 0.01; done"));
        spec.stopping_words = vec!["bye".to_owned()];
        let mut running = place.start(&spec);
        wait_until("ready", LIMIT, || place.log().lines().last() == Some("ready"));
        running.stop(&patient()).unwrap();
        assert_eq!(record(&mut running).clean, clean, "{script}");
    }
}

#[test]
fn one_that_does_not_listen_gets_sigquit_and_then_sigkill() {
    let place = Place::new();
    // Whoever runs the tests in the background hands an ignored SIGQUIT down, and a shell cannot trap that.
    let mut running = place.run(
        "exec env --default-signal=QUIT sh -c 'trap \"echo goroutine 1\" QUIT; trap \"\" TERM; echo ready; \
         while :; do sleep 0.01; done'",
    );
    place.wait_log("ready");
    running.stop(&order(&[(Send::Term, 100), (Send::Quit, 3000), (Send::Kill, 5000)])).unwrap();
    // The agent may die meanwhile: the ladder is the shim's.
    let record = record(&mut running);
    assert_eq!((record.reason, record.signal, record.clean), (Reason::Killed, Some(9), false));
    let names = std::fs::read_dir(place.log_dir()).unwrap().map(|entry| entry.unwrap().path());
    let dump = names.into_iter().find(|path| path.to_string_lossy().contains("etcd-dump-")).unwrap();
    assert_eq!(std::fs::read_to_string(dump).unwrap(), "goroutine 1\n");
}

#[test]
fn what_the_program_leaves_behind_ends_with_it() {
    let place = Place::new();
    let script = "sleep 300 & echo one $!; setsid sleep 301 & sleep 0.1; pidof_me=$!; echo two $pidof_me; \
                  (sleep 0.01 &) ; echo ready; while :; do sleep 0.01; done";
    let mut running = place.run(script);
    place.wait_log("ready");
    let pid = |word: &str| -> u32 {
        let log = place.log();
        log.lines().find_map(|line| line.strip_prefix(word)).unwrap().trim().parse().unwrap()
    };
    let (one, two) = (pid("one "), pid("two "));
    assert!(alive(one) && alive(two));
    running.stop(&patient()).unwrap();
    assert!(record(&mut running).clean);
    assert!(!alive(one) && !alive(two), "{one} {two}");
}

#[test]
fn what_it_leaves_behind_ends_with_it_though_its_shim_was_killed() {
    let place = Place::new();
    for adopted in [false, true] {
        let ready = format!("ready {adopted}");
        let script = format!("sleep 300 & echo left $!; echo {ready}; while :; do sleep 0.01; done");
        let mut running = place.run(&script);
        wait_until("ready", LIMIT, || place.log().lines().last() == Some(ready.as_str()));
        let log = place.log();
        let left: u32 = log.lines().rev().find_map(|line| line.strip_prefix("left ")).unwrap().parse().unwrap();
        assert!(alive(left));
        kill_hard(running.shim().pid);
        wait_until("the shim is gone", LIMIT, || !alive(running.shim().pid));
        signal(running.child().pid, Signal::KILL);
        if adopted {
            // Nobody waited for it, and who only looks ends nothing.
            wait_until("it is lost", LIMIT, || matches!(adopt(&place.state).unwrap(), Adoption::Lost(_)));
            assert!(alive(left));
            let mut next = place.idle();
            next.stop(&order(&[(Send::Kill, 1000)])).unwrap();
            record(&mut next);
        } else {
            assert!(matches!(ended(&mut running), Ended::NoRecord(_)));
        }
        assert!(!alive(left), "{left} lives on");
    }
}

/// The reader loses a line only when it is not let run for a quarter of a second while the socket is full; the writer, which
/// is told so, says here how many of its lines that cost.
#[test]
fn lines_arrive_in_order_through_rotated_files_and_lost_ones_are_known() {
    let lines: u32 =
        if std::env::var("QUORATE_SWEEP").is_ok_and(|sweep| sweep == "full") { 1_000_000 } else { 100_000 };
    let place = Place::new();
    let lost = place.dir.path().join("lost");
    // The shell writes each line by itself, and is told when one was refused.
    let script = format!(
        "lost=0; block=$(seq 1 100); i=0; while [ $i -lt {} ]; do i=$((i+1)); \
         for n in $block; do echo \"$i $n\" 2>/dev/null || lost=$((lost+1)); done; done; echo $lost > {}; echo done",
        lines / 100,
        lost.display()
    );
    let mut spec = place.sh(&script);
    spec.rotation = Rotation { bytes_max: 1 << 18, age_max_s: 3600, keep: 200 };
    let started = place.try_start(&spec);
    if let Ok(mut running) = started {
        let limit = Duration::from_secs(if lines > 100_000 { 600 } else { 120 });
        let ended = running.wait(limit).unwrap().expect("it ends in time");
        assert!(matches!(ended, Ended::Record(record) if record.code == Some(0)));
    }
    let mut all = String::new();
    let mut reader = LogReader::open(&place.log_dir().join("etcd.log"), None).unwrap();
    while reader.read(|line| all.push_str(std::str::from_utf8(line).unwrap())).unwrap() == Reached::More {}
    assert!(place.log_dir().join("etcd.log.1").metadata().unwrap().len() <= 1 << 18);
    let lost: usize = std::fs::read_to_string(lost).unwrap().trim().parse().unwrap();
    let mut numbers: Vec<(u32, u32)> = Vec::new();
    for line in all.lines().filter(|line| *line != "done") {
        let (block, number) = line.split_once(' ').unwrap();
        numbers.push((block.parse().unwrap(), number.parse().unwrap()));
    }
    assert!(numbers.is_sorted_by(|one, next| one < next), "in order, each once");
    assert_eq!(numbers.len() + lost, lines as usize, "{lost} lines were refused to the program");
    // On a machine that lets the reader run at all, it is a few at most.
    assert!(lost < lines as usize / 100, "{lost} lines lost");
}

#[test]
fn a_log_that_cannot_be_written_costs_lines_and_not_the_program() {
    let place = Place::new();
    std::fs::create_dir(place.log_dir()).unwrap();
    // A file in which nothing can be written, as on a full disk; the way to it is not followed as a link, so it is made.
    let node = place.log_dir().join("etcd.log");
    let full = rustix::fs::makedev(1, 7);
    rustix::fs::mknodat(rustix::fs::CWD, &node, rustix::fs::FileType::CharacterDevice, 0o666.into(), full).unwrap();
    let done = place.dir.path().join("done");
    let mut running = place.run(&format!("seq 1 5000; echo x > {}; while :; do sleep 0.01; done", done.display()));
    wait_until("the program to get on", LIMIT, || done.exists());
    wait_until("5000 lines dropped", LIMIT, || running.status().unwrap().log.dropped_lines == 5000);
    assert!(running.status().unwrap().log.last_error.is_some());
    running.stop(&patient()).unwrap();
    assert!(record(&mut running).clean);
}

#[test]
fn a_sleeping_shim_does_not_block_the_program() {
    let place = Place::new();
    let done = place.dir.path().join("done");
    let go = place.dir.path().join("go");
    let script = "while [ ! -e GO ]; do sleep 0.01; done; i=0; while [ $i -lt 20 ]; do echo $i; i=$((i+1)); done 2>/dev/null; \
                  echo x > DONE; while :; do sleep 0.01; done";
    let script = script.replace("GO", &go.display().to_string()).replace("DONE", &done.display().to_string());
    let mut running = place.run(&script);
    signal(running.shim().pid, Signal::STOP);
    std::fs::File::create(&go).unwrap();
    wait_until("the program to get on", LIMIT, || done.exists());
    signal(running.shim().pid, Signal::CONT);
    running.stop(&patient()).unwrap();
    assert!(record(&mut running).clean);
}

#[test]
fn a_program_whose_shim_was_killed_goes_on_and_is_adopted() {
    let place = Place::new();
    let running = place.run("while :; do echo line; sleep 0.01; done");
    place.wait_log("line");
    kill_hard(running.shim().pid);
    wait_until("the shim to be gone", LIMIT, || !alive(running.shim().pid));
    let mut orphan = place.adopted();
    assert!(!orphan.is_kept());
    assert_eq!(orphan.child(), running.child());
    // It is not started a second time.
    let refused = place.try_start(&place.sh("exit 0")).unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyRunning);
    assert!(alive(orphan.child().pid));
    orphan.stop(&patient()).unwrap();
    assert!(matches!(ended(&mut orphan), Ended::NoRecord(_)));
    assert!(matches!(adopt(&place.state).unwrap(), Adoption::Lost(_)));
}

#[test]
fn a_running_program_is_not_started_twice() {
    let place = Place::new();
    let running = place.idle();
    let refused = place.try_start(&place.sh("exit 0")).unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyRunning);
    assert!(refused.to_string().contains(&running.shim().pid.to_string()), "{refused}");
    // The refused start has left the running one alone.
    assert_eq!(place.adopted().child(), running.child());
}

#[test]
fn an_untold_or_changed_process_is_not_adopted() {
    let place = Place::new();
    assert!(matches!(adopt(&place.state).unwrap(), Adoption::None));
    // It turns into another program, which is not the one that was started.
    let running = place.run("sleep 0.3; exec sleep 100");
    let pid = running.child().pid;
    drop(running);
    let shell = std::fs::canonicalize("/bin/sh").unwrap();
    let executable = || std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    wait_until("another executable", LIMIT, || executable() != shell);
    match adopt(&place.state).unwrap() {
        Adoption::Stranger(why) => assert!(why.contains("another executable"), "{why}"),
        other => panic!("{other:?}"),
    }
    kill_hard(pid);
    wait_until("a record", LIMIT, || matches!(read(&place.state.record()), Recorded::Record(_)));
}

#[test]
fn what_cannot_be_executed_is_a_fault_and_a_record() {
    let place = Place::new();
    let mut spec = place.sh("");
    spec.program = "/nowhere/etcd".into();
    let fault = place.try_start(&spec).unwrap_err();
    assert_eq!(fault.code(), Code::NotExecuted);
    assert!(matches!(read(&place.state.record()), Recorded::Record(record) if record.reason == Reason::NotStarted));
}

#[test]
fn sigterm_to_the_shim_stops_the_program_in_its_orderly_way() {
    let place = Place::new();
    let mut running = place.idle();
    signal(running.shim().pid, Signal::TERM);
    let record = record(&mut running);
    assert_eq!((record.clean, record.asked_by.as_deref()), (true, Some("SIGTERM sent to the shim")));
}

#[test]
fn the_shim_is_small_and_quick() {
    let place = Place::new();
    let began = Instant::now();
    let running = place.idle();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.shim().pid)).unwrap();
    let line = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    // What is its own, without the pages of the program file, which are shared and can be dropped.
    assert!(line("RssAnon:") < 4096, "{} KiB", line("RssAnon:"));
    assert_eq!(std::fs::read_link(format!("/proc/{}/fd/1", running.shim().pid)).unwrap().to_str(), Some("/dev/null"));
}
