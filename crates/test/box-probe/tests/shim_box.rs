//! A program in a box below the shim: the same contract as without one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_faults::Code;
use quorate_host::exit_record::{ExitRecord, Reason};
use quorate_host::logs::Rotation;
use quorate_host::sandbox::{Held, observe_machine};
use quorate_host::shim::{Adoption, Ended, Rung, Running, Send, ShimSpec, StopOrder, adopt, spawn_boxed};
use quorate_host::state::StateDir;
use quorate_plan::boxes::{BoxPlan, BoxSpec, Level, Limits, Part, plan_box};
use quorate_testkit::{kill_hard, wait_until};
use support::{group_of, groups_of, is_root, machine_gives_strict, open};
use tempfile::TempDir;

const SHIM: &str = env!("CARGO_BIN_EXE_quorate-box-probe");
const LIMIT: Duration = Duration::from_secs(60);

struct Place {
    dir: TempDir,
    state: StateDir,
}

impl Place {
    fn new() -> Place {
        let dir = TempDir::new().unwrap();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        open(&dir.path().join("data"), 0o777);
        Place { dir, state }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// What every process of the box has in its environment.
    fn mark(&self) -> String {
        self.dir.path().display().to_string()
    }

    fn processes(&self) -> Vec<PathBuf> {
        let word = format!("PLACE={}", self.mark());
        let has_it = |dir: &PathBuf| {
            let environ = std::fs::read(dir.join("environ")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|one| one == word.as_bytes())
        };
        std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(has_it).collect()
    }

    /// No process of the box, no mount and no cgroup. `shim`: who made it, and has ended.
    #[track_caller]
    fn assert_nothing_is_left(&self, shim: u32) {
        assert_eq!(self.processes(), Vec::<PathBuf>::new());
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(&self.mark()), "{mounts}");
        assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
    }

    fn box_spec(&self) -> BoxSpec {
        let mut spec = BoxSpec::new(if machine_gives_strict() { Level::Strict } else { Level::Basic });
        spec.execs = vec!["/usr/bin".to_owned()];
        spec.writes = vec![self.data().display().to_string()];
        spec.limits.pids = Some(50);
        spec
    }

    fn plan(&self) -> BoxPlan {
        plan_box(&self.box_spec(), &observe_machine()).unwrap()
    }

    fn spec(&self, script: &str) -> ShimSpec {
        ShimSpec {
            name: "it".to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned()), ("PLACE".to_owned(), self.mark())],
            env_files: Vec::new(),
            dir: self.data(),
            log_dir: self.dir.path().join("log"),
            rotation: Rotation::default(),
            config_hash: "hash".to_owned(),
            etcd_version: String::new(),
            stopping_words: vec![],
            kept_level: None,
            ladder: Rung::usual(),
        }
    }

    fn start(&self, script: &str) -> Running {
        spawn_boxed(Path::new(SHIM), &self.state, &self.spec(script), Some(self.plan())).unwrap()
    }

    /// The same with other limits; `None`: this user cannot have them, and the refusal names the part.
    fn start_limited(&self, script: &str, limits: Limits, part: Part) -> Option<Running> {
        let spec = BoxSpec { limits, ..self.box_spec() };
        let plan = match plan_box(&spec, &observe_machine()) {
            Ok(plan) => plan,
            Err(refused) => {
                assert!(refused.parts.iter().any(|(lacking, _)| *lacking == part), "{refused:?}");
                return None;
            }
        };
        if !plan.has_whole(part) {
            assert!(plan.warnings().iter().any(|warning| warning.starts_with(part.name())), "{plan:?}");
        }
        let started = spawn_boxed(Path::new(SHIM), &self.state, &self.spec(script), Some(plan.clone())).unwrap();
        assert_eq!(started.held().map(Held::plan), Some(&plan));
        Some(started)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log/it.log")).unwrap_or_default()
    }

    fn wait_for(&self, text: &str) {
        wait_until(text, LIMIT, || self.log().contains(text));
    }
}

fn stop(running: &Running, sends: &[Send]) {
    let ladder = sends.iter().map(|send| Rung { send: *send, wait_ms: 60_000 }).collect();
    running.stop(&StopOrder { asked_by: "the test".to_owned(), ladder, last_revision: None }).unwrap();
}

fn record(mut running: Running) -> ExitRecord {
    match running.wait(LIMIT).unwrap() {
        Some(Ended::Record(record)) => record,
        other => panic!("{other:?}"),
    }
}

fn lives(pid: u32) -> bool {
    // One that is dead and not yet buried has no memory any more.
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("VmRSS"))
}

#[test]
fn it_is_boxed_logged_stopped_and_recorded() {
    let place = Place::new();
    let script = "grep -E '^(NoNewPrivs|Seccomp|CapBnd|NSpid|Uid):' /proc/self/status; pwd; cat /etc/shadow; \
                  trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let running = place.start(script);
    place.wait_for("ready");
    let log = place.log();
    assert!(log.contains("NoNewPrivs:\t1") && log.contains("Seccomp:\t2"), "{log}");
    assert!(log.contains(&place.data().display().to_string()) && log.contains("/etc/shadow"), "{log}");
    if is_root() {
        assert!(log.contains("CapBnd:\t0000000000000000") && log.contains("Uid:\t65534"), "{log}");
    }
    // The number that is written down is the one outside.
    assert_eq!(running.child().executable, Path::new("/bin/sh").canonicalize().unwrap());
    assert!(running.child().pid != running.shim().pid && lives(running.child().pid));
    assert_eq!(running.status().unwrap().child, *running.child());
    let shim = running.shim().pid;
    if is_root() {
        assert!(!groups_of(shim).is_empty(), "there is something that could be left");
    }
    stop(&running, &[Send::Term, Send::Kill]);
    let record = record(running);
    place.assert_nothing_is_left(shim);
    assert_eq!((record.reason, record.code, record.clean), (Reason::Stopped, Some(0), true), "{record:?}");
    assert!(place.log().contains("bye"));
    assert!(matches!(adopt(&place.state).unwrap(), Adoption::Gone(_)));
}

#[test]
fn ends_of_every_kind_are_recorded() {
    let ends: [(&str, Reason, Option<i32>, Option<i32>); 3] = [
        ("sleep 0.3; exit 7", Reason::Exited, Some(7), None),
        ("sleep 0.3; kill -SEGV $$", Reason::Signalled, None, Some(11)),
        ("setsid sleep 1000 & sleep 0.3; exit 0", Reason::Exited, Some(0), None),
    ];
    for (script, reason, code, signal) in ends {
        let place = Place::new();
        let running = place.start(script);
        let shim = running.shim().pid;
        let record = record(running);
        assert_eq!((record.reason, record.code, record.signal), (reason, code, signal), "{script}: {record:?}");
        place.assert_nothing_is_left(shim);
    }
}

#[test]
fn one_that_does_not_listen_is_killed_with_all_of_its_box() {
    let place = Place::new();
    let running =
        place.start("trap '' TERM; setsid sleep 1000 & echo $! > child; echo deaf; while :; do sleep 1; done");
    place.wait_for("deaf");
    let shim = running.shim().pid;
    stop(&running, &[Send::Kill]);
    let record = record(running);
    assert_eq!((record.reason, record.signal), (Reason::Killed, Some(9)), "{record:?}");
    place.assert_nothing_is_left(shim);
}

#[test]
fn the_program_outlives_its_shim_and_is_adopted_and_stopped() {
    let place = Place::new();
    let running = place.start("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done");
    place.wait_for("ready");
    let (pid, shim) = (running.child().pid, running.shim().pid);
    drop(running);
    let Adoption::Running(again) = adopt(&place.state).unwrap() else { panic!() };
    assert!(again.is_kept() && again.child().pid == pid);
    drop(again);
    kill_hard(shim);
    wait_until("the shim to be gone", LIMIT, || !lives(shim));
    let Adoption::Running(mut alone) = adopt(&place.state).unwrap() else { panic!() };
    assert!(!alone.is_kept() && lives(pid));
    stop(&alone, &[Send::Term, Send::Kill]);
    assert!(matches!(alone.wait(LIMIT).unwrap(), Some(Ended::NoRecord(_))));
    // Nobody but the kernel ends the rest of it now.
    wait_until("the box to be gone", LIMIT, || !lives(pid) && place.processes().is_empty());
    place.assert_nothing_is_left(shim);
}

#[test]
fn a_box_that_cannot_be_made_is_a_fault_and_a_record() {
    let place = Place::new();
    let mut plan = place.plan();
    plan.spec.reads.push("/no/such/path".to_owned());
    let fault = spawn_boxed(Path::new(SHIM), &place.state, &place.spec("exit 0"), Some(plan)).unwrap_err();
    assert_eq!(fault.code(), Code::BoxPath, "{fault}");
    let Adoption::Gone(record) = adopt(&place.state).unwrap() else { panic!() };
    assert_eq!(record.reason, Reason::NotStarted);
}

#[test]
fn memory_that_runs_out_ends_it_is_recorded_and_leaves_no_group() {
    let place = Place::new();
    let limits = Limits { memory_bytes: Some(64 << 20), pids: Some(50), ..Limits::default() };
    let script = "while ! test -e go; do sleep 0.05; done; x=xxxxxxxx; while :; do x=$x$x$x$x; done";
    let running = place.start_limited(script, limits, Part::Memory).unwrap();
    let (pid, shim) = (running.child().pid, running.shim().pid);
    let whole = running.held().is_some_and(|held| held.plan().has_whole(Part::Memory));
    if whole {
        let group = group_of(pid, "memory").unwrap();
        let limit = ["memory.limit_in_bytes", "memory.max"].map(|name| std::fs::read_to_string(group.join(name)));
        assert!(limit.iter().flatten().any(|text| text.trim() == (64 << 20).to_string()), "{limit:?}");
    }
    std::fs::File::create(place.data().join("go")).unwrap();
    let record = record(running);
    // The kernel ends it; where each process has its own limit, the shell gives up by itself.
    let ends = if whole { (Reason::Signalled, None, Some(9)) } else { (Reason::Exited, Some(2), None) };
    assert_eq!((record.reason, record.code, record.signal), ends, "{record:?}");
    assert!(!lives(pid));
    place.assert_nothing_is_left(shim);
}

#[test]
fn a_fork_bomb_below_the_shim_ends_with_its_box() {
    let place = Place::new();
    let limits = Limits { pids: Some(30), ..Limits::default() };
    let wait = "while ! test -e go; do sleep 0.05; done";
    let script = format!("{wait}; n=0; while [ $n -lt 100 ]; do sleep 1000 & n=$((n + 1)); done; echo done");
    let running = place.start_limited(&script, limits, Part::Pids).unwrap();
    let (pid, shim) = (running.child().pid, running.shim().pid);
    std::fs::File::create(place.data().join("go")).unwrap();
    let record = record(running);
    // The shell gives up when it cannot fork, and what it has started goes with it.
    assert_eq!((record.reason, place.log().contains("done")), (Reason::Exited, false), "{record:?} {}", place.log());
    assert!(record.code != Some(0), "{record:?}");
    assert!(!lives(pid));
    place.assert_nothing_is_left(shim);
}

#[test]
fn a_limit_of_processor_time_holds_it_back() {
    let place = Place::new();
    let limits = Limits { cpu_percent: Some(5), pids: Some(50), ..Limits::default() };
    let Some(running) = place.start_limited("while :; do :; done", limits, Part::Cpu) else { return };
    let (pid, shim) = (running.child().pid, running.shim().pid);
    if running.held().is_some_and(|held| held.plan().has_whole(Part::Cpu)) {
        let group = group_of(pid, "cpu").unwrap();
        let throttled = || {
            let text = std::fs::read_to_string(group.join("cpu.stat")).unwrap();
            text.lines().any(|line| line.strip_prefix("nr_throttled ").is_some_and(|count| count != "0"))
        };
        wait_until("it to be held back", LIMIT, throttled);
    }
    stop(&running, &[Send::Kill]);
    assert_eq!(record(running).reason, Reason::Killed);
    assert!(!lives(pid));
    place.assert_nothing_is_left(shim);
}
