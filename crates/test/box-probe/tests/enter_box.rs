//! Commands in the box of a process: `quorate exec` and `quorate shell` may what the process may, and nothing more.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use quorate_host::shim::{Adoption, Rung, Running, Send, StopOrder, adopt};
use quorate_host::state::StateDir;
use quorate_plan::boxes::{BoxSpec, Level};
use quorate_testkit::{quorate, run};
use serde_json::{Value, json};
use support::{Arena, as_user, is_root, machine_gives_strict, open, write};

const LIMIT: Duration = Duration::from_secs(60);

/// An attacker that waits in its box, below a shim; ended with all of it when dropped.
struct Boxed {
    arena: Arena,
    quorate: PathBuf,
    state: StateDir,
    /// Whether it, and the commands, are root's; else a normal user's.
    as_root: bool,
}

impl Boxed {
    fn new(level: Level, as_root: bool, change: impl FnOnce(&Arena, &mut BoxSpec)) -> Boxed {
        let arena = Arena::new();
        // The checkout may lie where only its owner gets to.
        let program = arena.path().join("quorate");
        run(Command::new("cp").arg(quorate()).arg(&program));
        open(&program, 0o755);
        let dir = arena.path().join("state");
        std::fs::create_dir(&dir).unwrap();
        if is_root() && !as_root {
            rustix::fs::chown(&dir, Some(rustix::fs::Uid::from_raw(support::NOBODY)), None).unwrap();
        }
        let mut spec = BoxSpec::new(level);
        spec.writes = vec![arena.data()];
        spec.ports.bind = vec![arena.own_port()];
        spec.limits.memory_bytes = Some(128 << 20);
        spec.limits.pids = Some(64);
        change(&arena, &mut spec);
        let order = json!({
            "shim": program,
            "state": dir,
            "boxed": spec,
            "spec": {
                "name": "it",
                "program": arena.probe(),
                "args": ["idle"],
                "env": arena.surroundings(),
                "dir": arena.data(),
                "log_dir": dir.join("logs"),
                "rotation": quorate_host::logs::Rotation::default(),
                "config_hash": "",
                "etcd_version": "",
                "stopping_words": [],
                "ladder": Rung::usual(),
            },
        });
        write(&arena.path().join("start.json"), &order.to_string());
        let started =
            as_user(arena.probe(), as_root).arg("start").arg(arena.path().join("start.json")).output().unwrap();
        assert!(started.status.success(), "{started:?}");
        let state = StateDir::open(&dir).unwrap();
        Boxed { arena, quorate: program, state, as_root }
    }

    fn running(&self) -> Running {
        let Adoption::Running(running) = adopt(&self.state).unwrap() else { panic!("it does not run") };
        running
    }

    fn pid(&self) -> u32 {
        self.running().child().pid
    }

    /// `quorate VERB it …` as whoever the box belongs to.
    fn quorate(&self, verb: &str, more: &[&str], input: &str) -> Output {
        use std::io::Write;
        let mut command = as_user(self.quorate.clone(), self.as_root);
        command.args([verb, "it", "--state-dir"]).arg(self.state.path()).args(more);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It may not read what it is told.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn attack(&self, tools: &[&str]) -> BTreeMap<String, String> {
        let probe = self.arena.probe().display().to_string();
        let output = self.quorate("exec", &[tools, &["--", &probe, "attack"]].concat(), "");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter_map(|line| {
            let mut words = line.split('\t');
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        });
        lines.collect()
    }
}

impl Drop for Boxed {
    fn drop(&mut self) {
        if let Ok(Adoption::Running(mut running)) = adopt(&self.state) {
            let ladder = vec![Rung { send: Send::Kill, wait_ms: 10_000 }];
            let _ = running.stop(&StopOrder { asked_by: "the test".to_owned(), ladder, last_revision: None });
            let _ = running.wait(LIMIT);
        }
    }
}

/// The best that whoever runs the tests can have.
fn best(change: impl FnOnce(&Arena, &mut BoxSpec)) -> Boxed {
    if machine_gives_strict() {
        Boxed::new(Level::Strict, true, change)
    } else {
        Boxed::new(Level::Basic, false, change)
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn allowed(seen: &BTreeMap<String, String>) -> Vec<&str> {
    assert!(seen.len() == 42 && seen.values().all(|came| came == "allowed" || came == "denied"), "{seen:?}");
    // The one that every program with libraries can do, in every box.
    let expected = |name: &str| name.ends_with("by the loader");
    let allowed = seen.iter().filter(|(name, came)| *came == "allowed" && !expected(name));
    allowed.map(|(name, _)| name.as_str()).collect()
}

#[test]
fn no_attempt_succeeds_through_exec_either() {
    let boxed = best(|_, _| {});
    assert_eq!(allowed(&boxed.attack(&[])), [""; 0]);
    // With programs of the machine at hand one thing more can be done, and no other.
    assert_eq!(allowed(&boxed.attack(&["--tools"])), ["execute another program"]);
}

#[test]
fn nor_in_the_box_of_a_normal_user() {
    let mut boxed = Boxed::new(Level::Basic, false, |_, _| {});
    assert_eq!(allowed(&boxed.attack(&[])), [""; 0]);
    assert_eq!(allowed(&boxed.attack(&["--tools"])), ["execute another program"]);
    // Root in there is that user, and has no right more.
    boxed.as_root = true;
    assert_eq!(allowed(&boxed.attack(&[])), [""; 0]);
    assert_eq!(allowed(&boxed.attack(&["--tools"])), ["execute another program"]);
}

#[test]
fn what_the_process_may_a_command_may_too() {
    let boxed = best(|arena, spec| {
        spec.reads = vec![arena.foreign()];
        spec.execs = vec!["/usr/bin".to_owned()];
        spec.ports.connect.push(arena.listening_port());
    });
    let seen = boxed.attack(&[]);
    let expected = [
        "connect to a port that it may not reach",
        "execute another program",
        "list another tenant's directory",
        "read another tenant's data",
    ];
    // The other tenant is the same user where we are root, or where we are the normal user ourselves.
    let may: Vec<&str> = allowed(&seen).into_iter().filter(|name| *name != "read another tenant's key").collect();
    assert_eq!(may, expected);
}

#[test]
fn rights_and_places_are_those_of_the_process() {
    let boxed = best(|_, spec| spec.execs = vec!["/usr/bin".to_owned()]);
    let script = "cat /proc/self/status; pwd; cat /proc/self/cgroup /proc/self/limits; readlink /proc/self/ns/*";
    let shown = boxed.quorate("exec", &["--", "/usr/bin/sh", "-c", script], "");
    let text = String::from_utf8(shown.stdout.clone()).unwrap();
    assert!(shown.status.success() && said(&shown).is_empty(), "{shown:?}");
    let of = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", boxed.pid())).unwrap();
    let status = of("status");
    let names = [
        "Uid",
        "Gid",
        "Groups",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
        "Seccomp",
        "Seccomp_filters",
    ];
    for name in names {
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
        assert!(text.lines().any(|there| there == line), "{line} is not in {text}");
    }
    assert!(text.contains(&format!("{}\n", boxed.arena.data())), "{text}");
    assert!(text.contains(&of("limits")) && text.contains(&of("cgroup")), "{text}");
    for space in ["user", "mnt", "pid", "ipc", "uts", "net", "cgroup"] {
        let link = std::fs::read_link(format!("/proc/{}/ns/{space}", boxed.pid())).unwrap();
        assert!(text.contains(&link.display().to_string()), "{space}: {text}");
    }
}

#[test]
fn a_shell_in_a_box_without_one_is_lent_the_machines_and_leaves_no_trace() {
    let boxed = best(|_, _| {});
    let mounts = || std::fs::read_to_string(format!("/proc/{}/mountinfo", boxed.pid())).unwrap();
    let before = mounts();
    let script =
        "id -u; ls /usr/bin/id; pwd; echo x > made && cat made; rm made; cat /etc/passwd; touch /usr/x; exit 7\n";
    let shell = boxed.quorate("shell", &[], script);
    let text = String::from_utf8(shell.stdout.clone()).unwrap();
    assert_eq!(shell.status.code(), Some(7), "{shell:?}");
    assert!(said(&shell).contains("Q1161"), "{shell:?}");
    let uid = rustix::process::geteuid().as_raw();
    let uid = if uid == 0 { support::NOBODY } else { uid };
    assert!(text.starts_with(&format!("{uid}\n")), "{text}");
    assert!(text.contains(&format!("{}\nx\n", boxed.arena.data())) && text.contains("\n/usr/bin/id\n"), "{text}");
    assert!(!text.contains("root:"), "{text}");
    assert!(said(&shell).contains("Read-only file system") || said(&shell).contains("ermission denied"), "{shell:?}");
    assert_eq!(before, mounts(), "the process sees what was lent to another");
    // Without it there is none, and the way to it is said.
    let none = boxed.quorate("shell", &["--no-tools"], "");
    assert!(none.status.code() == Some(1) && said(&none).contains("Q1156"), "{none:?}");
    let none = boxed.quorate("exec", &["--", "/usr/bin/id"], "");
    assert!(none.status.code() == Some(1) && said(&none).contains("--tools"), "{none:?}");
    // Where the box has a shell it is that one, with exactly its rights.
    let with = best(|_, spec| spec.execs = vec!["/usr/bin".to_owned()]);
    let shell = with.quorate("shell", &["--shell", "/usr/bin/sh"], "exit 8\n");
    assert!(shell.status.code() == Some(8) && said(&shell).is_empty(), "{shell:?}");
}

#[test]
fn the_box_of_a_process_is_explained_as_it_was_made() {
    let boxed = best(|_, spec| spec.limits.open_files = Some(4711));
    let mut command = as_user(boxed.quorate.clone(), boxed.as_root);
    command.args(["box", "explain", "it", "--output", "json", "--state-dir"]).arg(boxed.state.path());
    let output = command.output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let level = if boxed.as_root { "strict" } else { "basic" };
    assert_eq!((&told["level"], &told["process"]["process"]), (&level.into(), &"it".into()), "{told}");
    assert_eq!(told["process"]["pid"], boxed.pid());
    // The kernel shows the same of it.
    assert_eq!(told["process"]["lacks"], serde_json::json!([]), "{told}");
    assert!(told.to_string().contains("4711 open files"), "{told}");
    // Nobody but its owner may see what it was made of, let alone change it.
    let mode = |path: &Path| std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap()) & 0o777;
    assert_eq!((mode(boxed.state.path()), mode(&boxed.state.running())), (0o700, 0o600));
}
