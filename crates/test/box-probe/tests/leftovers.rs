//! However a box ends, nothing of it is left: no process, no mount, no cgroup.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod support;

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use quorate_plan::boxes::{BoxSpec, Level};
use quorate_testkit::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use support::{Arena, groups_of, is_root, machine_gives_strict};

const LIMIT: Duration = Duration::from_secs(60);

fn spec(arena: &Arena) -> BoxSpec {
    let level = if machine_gives_strict() { Level::Strict } else { Level::Basic };
    let mut spec = BoxSpec::new(level);
    spec.writes = vec![arena.data()];
    spec.execs = vec!["/usr/bin".to_owned(), "/bin".to_owned()];
    spec.limits.memory_bytes = Some(64 << 20);
    spec.limits.pids = Some(40);
    spec
}

/// Runs it to its end, after `meanwhile`, and looks for what is left.
fn run(words: &[&str], meanwhile: impl FnOnce(&Arena, Pid)) -> ExitStatus {
    let arena = Arena::new();
    let mark = format!("{}/mark", arena.data());
    let words: Vec<String> = words.iter().map(|word| word.replace("MARK", &mark)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut keeper = arena.keep(&spec(&arena), is_root(), &words).spawn().unwrap();
    let pid = Pid::from_child(&keeper);
    meanwhile(&arena, pid);
    let status = keeper.wait().unwrap();
    wait_until("no process of the box to be left", LIMIT, || processes_with(&mark).is_empty());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&arena.data()), "{mounts}");
    let left = || groups_of(u32::try_from(pid.as_raw_nonzero().get()).unwrap());
    // A keeper that is killed cannot clean up; the next one does, once the kernel has buried the last process.
    wait_until("no group of the box to be left", LIMIT, || {
        if !left().is_empty() {
            let next = arena.keep(&spec(&arena), is_root(), &["/bin/true"]).status().unwrap();
            assert!(next.success());
        }
        left().is_empty()
    });
    status
}

fn processes_with(mark: &str) -> Vec<String> {
    let lines = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let line = String::from_utf8_lossy(&std::fs::read(entry.path().join("cmdline")).ok()?).into_owned();
        line.contains(mark).then_some(line)
    });
    lines.collect()
}

fn started(arena: &Arena) -> bool {
    Path::new(&arena.data()).join("mark").exists()
}

#[test]
fn an_end_by_itself_takes_everything_along() {
    let status = run(&["/bin/sh", "-c", "setsid tail -f MARK /dev/null & touch MARK; exit 3"], |_, _| {});
    assert_eq!(status.code(), Some(3));
}

#[test]
fn a_crash_is_told_as_a_shell_tells_it() {
    let status = run(&["/bin/sh", "-c", "tail -f MARK /dev/null & kill -SEGV $$"], |_, _| {});
    assert_eq!(status.code(), Some(128 + 11));
}

#[test]
fn a_signal_reaches_the_program_and_its_orderly_end_is_told() {
    let script = "trap 'exit 5' TERM; touch MARK; while :; do sleep 0.1; done";
    let status = run(&["/bin/sh", "-c", script], |arena, keeper| {
        wait_until("the trap to be set", LIMIT, || started(arena));
        kill_process(keeper, Signal::TERM).unwrap();
    });
    assert_eq!(status.code(), Some(5));
    // And one without a trap dies from it, though it is one of the first processes of its box.
    let status = run(&["/bin/sh", "-c", "touch MARK; exec tail -f MARK"], |arena, keeper| {
        wait_until("the program to run", LIMIT, || started(arena) && !processes_with("tail\0-f").is_empty());
        kill_process(keeper, Signal::TERM).unwrap();
    });
    assert_eq!(status.code(), Some(128 + 15));
}

#[test]
fn a_keeper_that_is_killed_takes_the_box_along() {
    let status = run(&["/bin/sh", "-c", "touch MARK; tail -f MARK & tail -f MARK"], |arena, keeper| {
        wait_until("the program to run", LIMIT, || started(arena));
        kill_process(keeper, Signal::KILL).unwrap();
    });
    assert_eq!(status.code(), None);
}

#[test]
fn what_eats_memory_is_ended() {
    // Doubles a string until it is too long for the box.
    let status = run(&["/bin/sh", "-c", "x=xxxxxxxx; while :; do x=$x$x$x$x; done"], |_, _| {});
    // Killed by the group's limit, or refused the memory where there is only a limit for each process.
    assert!([Some(137), Some(2)].contains(&status.code()), "{status:?}");
}

#[test]
fn a_fork_bomb_hits_its_limit_and_leaves_nothing() {
    let script = "touch MARK; n=0; while [ $n -lt 200 ]; do tail -f MARK & n=$((n + 1)); done; exit 9";
    let status = run(&["/bin/sh", "-c", script], |_, _| {});
    // The shell gives up when it cannot fork.
    assert!([Some(2), Some(254)].contains(&status.code()), "{status:?}");
}

#[test]
fn audit_lets_through_and_tells_once() {
    let arena = Arena::new();
    let mut spec = spec(&arena);
    spec.syscalls.audit = true;
    let words = ["/bin/sh", "-c", "unshare -r true; unshare -r true; exit 6"];
    let output = arena.keep(&spec, is_root(), &words).stdout(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    let said = String::from_utf8(output.stderr).unwrap();
    let lines = said.lines().filter(|line| line.contains("would deny `unshare` to unshare")).count();
    assert_eq!(lines, 1, "{said}");
    assert!(!said.contains("clone3"), "{said}");
    // What is to be written to allow it, once at the end.
    assert_eq!(said.matches("not to be allowed by name: unshare").count(), 1, "{said}");
}

#[test]
fn a_starter_that_keeps_its_files_to_itself_makes_no_box_that_its_user_cannot_enter() {
    use std::os::unix::process::CommandExt;
    let arena = Arena::new();
    let keep = arena.keep(&spec(&arena), is_root(), &["/bin/sh", "-c", "umask; ls /usr/bin/env /tmp && exit 4"]);
    let words: Vec<_> = keep.get_args().map(|word| word.to_owned()).collect();
    let mut command = std::process::Command::new("/bin/sh");
    command.arg0("sh").args(["-c", "umask 0077; exec \"$0\" \"$@\""]).arg(keep.get_program()).args(words);
    let output = command.stdin(Stdio::null()).output().unwrap();
    // It goes everywhere, and its own mask is that of its starter.
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("0077\n"), "{output:?}");
}
