//! An operator goes where a process is, or watches its system calls: `exec`, `shell`, `trace`, and what the audit log keeps.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;
mod ops_support;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use ops_support::{
    LIMIT, audited, code, command, err, failed, good, json, operate, operate_with, out, rooted, state, status_of, until,
};
use quorate_testkit::{quorate, strace, wait_until};

#[test]
fn a_command_runs_where_etcd_does_and_its_code_is_passed_on() {
    let place = rooted("3.5.16");
    failed(&operate(&place, &["exec", "etcd", "--", "true"]), 1, "Q1150");
    let mut agent = place.start();
    let pid = place.etcd_pid();

    let seven = operate(&place, &["exec", "etcd", "--tools", "--", "/bin/sh", "-c", "echo out; echo bad >&2; exit 7"]);
    assert_eq!((code(&seven), out(&seven).as_str()), (7, "out\n"), "{}", err(&seven));
    assert!(err(&seven).contains("bad"));
    assert_eq!(code(&operate(&place, &["exec", "etcd", "--tools", "--", "/bin/sh", "-c", "kill -KILL $$"])), 137);

    // Rights, limits, dir and environment are etcd's, not ours.
    let script = "cat /proc/self/limits /proc/self/cgroup; pwd; env";
    let mut shown = command(&place, &["exec", "etcd", "--tools", "--", "/bin/sh", "-c", script]);
    let shown = shown.env("OPERATORS_SECRET", "42").output().unwrap();
    let shown = good(&shown);
    let of = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    assert!(shown.starts_with(&of("limits")), "{shown}");
    assert!(shown.contains(&of("cgroup")), "{shown}");
    let dir = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    assert!(shown.contains(&format!("{}\n", dir.display())), "{shown}");
    assert!(!shown.contains("OPERATORS_SECRET"), "{shown}");
    let rights = good(&operate(&place, &["exec", "etcd", "--tools", "--", "cat", "/proc/self/status"]));
    for name in ["Uid", "Gid", "Groups", "CapPrm", "CapBnd", "NoNewPrivs", "Umask"] {
        assert!(rights.contains(&format!("{name}:\t{}", status_of(pid, name))), "{name}: {rights}");
    }

    let missing = failed(&operate(&place, &["exec", "etcd", "--", "/no/such/thing", "--token=geheim"]), 1, "Q1156");
    assert!(missing.contains("/no/such/thing"), "{missing}");
    failed(&operate(&place, &["exec", "etc", "--", "true"]), 1, "Q1150");

    // Each left a line, those that found no process did not.
    let lines = audited(&state(&place));
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_eq!(
        (&lines[0]["command"], &lines[0]["member"], &lines[0]["process"]),
        (&"exec".into(), &"n1".into(), &"etcd".into())
    );
    assert_eq!(lines[0]["target_pid"].as_u64(), Some(pid.into()));
    assert_eq!(lines[0]["who"]["uid"].as_u64(), Some(rustix::process::geteuid().as_raw().into()));
    assert_eq!(lines[4]["words"], serde_json::json!(["/no/such/thing", "--token=***"]));
    let mode = state(&place).join("audit.log").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let table = good(&operate(&place, &["audit", "--last", "2"]));
    assert!(table.contains("cat /proc/self/status") && table.lines().count() == 3, "{table}");
    assert_eq!(json(&operate(&place, &["audit", "--output", "json"]))["entries"].as_array().unwrap().len(), 5);

    // What cannot be recorded is not done.
    let log = state(&place).join("audit.log");
    rustix::fs::rename(&log, state(&place).join("audit.old")).unwrap();
    std::fs::create_dir(&log).unwrap();
    let refused = operate(&place, &["exec", "etcd", "--", "/bin/echo", "done"]);
    failed(&refused, 2, "Q1157");
    assert_eq!(out(&refused), "");
    agent.stop();
    failed(&operate(&place, &["exec", "etcd", "--", "true"]), 1, "Q1151");
}

#[test]
fn a_shell_reads_from_a_pipe_and_from_a_terminal() {
    let place = rooted("3.5.16");
    let mut agent = place.start();
    let piped = operate_with(&place, &["shell", "etcd"], "echo $((40 + 2)); exit 3\n");
    assert_eq!((code(&piped), out(&piped).as_str()), (3, "42\n"), "{}", err(&piped));
    let named = operate_with(&place, &["shell", "etcd", "--shell", "/bin/sh"], "echo $0\n");
    assert_eq!(good(&named), "/bin/sh\n");
    failed(&operate(&place, &["shell", "etcd", "--shell", "/bin/none"]), 1, "Q1156");
    // `script` gives it a terminal, and passes its code on.
    let line = format!("{} shell etcd --shell /bin/sh", quorate().display());
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &line, "/dev/null"]).envs(place.env.iter().map(|(name, value)| (name, value)));
    let mut child = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"test -t 0 && echo is-$((20 + 1))-terminal\nexit 5\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 5, "{}{}", out(&output), err(&output));
    assert!(out(&output).contains("is-21-terminal"), "{}", out(&output));
    assert_eq!(audited(&state(&place)).len(), 4);
    agent.stop();
}

#[test]
fn system_calls_are_shown_counted_and_nothing_stays_traced() {
    let _ = strace();
    let place = rooted("3.5.16");
    let mut agent = place.start();
    let pid = place.etcd_pid();
    // strace may need longer than its time to begin on a busy machine; then it is run again.
    let calls = |text: &str| text.contains("epoll_pwait(") || text.contains("futex(");
    let shown = until(&place, &["trace", "etcd", "--duration", "1s", "--", "-tt"], calls);
    assert!(err(&shown).contains("[Q1162]") && err(&shown).contains("it ends after 1s"), "{}", err(&shown));
    let few = until(&place, &["trace", "etcd", "--calls", "epoll_pwait", "--duration", "1s"], calls);
    assert!(!out(&few).contains("futex("), "{}", out(&few));
    let counted = json(&until(&place, &["trace", "etcd", "--duration", "1s", "--output", "json"], |text| {
        let counted: serde_json::Value = serde_json::from_str(text).unwrap();
        counted["calls"].as_array().unwrap().iter().any(|call| call["calls"].as_u64() > Some(0))
    }));
    assert_eq!(counted["pid"].as_u64(), Some(pid.into()));
    until(&place, &["trace", "etcd", "--summary", "--duration", "1s"], |text| text.contains("% time"));

    // Killed in the middle, the command leaves no tracer behind.
    let mut cut = command(&place, &["trace", "etcd", "--duration", "1h"]).stdout(Stdio::null()).spawn().unwrap();
    wait_until("a tracer", LIMIT, || status_of(pid, "TracerPid") != "0");
    cut.kill().unwrap();
    cut.wait().unwrap();
    wait_until("no tracer", LIMIT, || status_of(pid, "TracerPid") == "0");
    place.wait_ready(&mut agent);

    let none = command(&place, &["trace", "etcd"]).env("PATH", "/nonexistent").output().unwrap();
    assert!(failed(&none, 1, "Q1153").contains("apt install strace"));
    // strace's own complaint and code are passed on.
    let bad = operate(&place, &["trace", "etcd", "--", "--no-such-flag"]);
    assert!(code(&bad) != 0 && out(&bad).contains("no-such-flag"), "{}{}", out(&bad), err(&bad));
    let lines = audited(&state(&place));
    assert!(lines.len() >= 6, "{lines:?}");
    assert!(lines.iter().all(|line| line["command"] == "trace"), "{lines:?}");
    agent.stop();
}

/// A process with namespaces and rights of its own, as a box makes them; with a user namespace where we are not root.
struct Boxed {
    outer: quorate_testkit::Running,
    pid: u32,
}

fn boxed() -> Boxed {
    let root = rustix::process::geteuid().is_root();
    let words: &[&str] = if root {
        &[
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65533",
            "--groups",
            "65532",
            "--inh-caps",
            "-all",
            "--bounding-set",
            "-all",
            "--no-new-privs",
        ]
    } else {
        &[
            "--map-root-user",
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "setpriv",
            "--inh-caps",
            "-all",
            "--bounding-set",
            "-all",
            "--no-new-privs",
        ]
    };
    let words: Vec<String> = words
        .iter()
        .map(|word| (*word).to_owned())
        .chain(["/bin/sh", "-c", "ulimit -n 77; exec sleep 1000"].map(str::to_owned))
        .collect();
    let program = ["/usr/bin/unshare", "/bin/unshare"].into_iter().find(|path| std::path::Path::new(path).exists());
    let outer = quorate_testkit::Running::start(program.unwrap().as_ref(), &words, &[]);
    let mut pid = 0;
    wait_until("a process in its box", LIMIT, || {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", outer.pid())).unwrap_or_default();
        pid = children.trim().parse().unwrap_or(0);
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"sleep\0")
    });
    Boxed { outer, pid }
}

fn enter(boxed: &Boxed, words: &[&str]) -> std::process::Output {
    let identity = quorate_host::process::Identity::of(boxed.pid).unwrap();
    let errand = quorate_host::enter::Errand {
        identity,
        commands: vec![words.iter().map(|word| (*word).to_owned()).collect()],
        env: Vec::new(),
        terminal: false,
        held: None,
        tools: quorate_host::enter::Tools::Never,
    };
    let text = serde_json::to_string(&errand).unwrap();
    Command::new(quorate()).args(["__enter", "--whole", &text]).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_command_in_a_box_has_its_namespaces_and_no_right_more() {
    let boxed = boxed();
    // `/proc` is that of the box, and the command is in it, beside the first process.
    let shown =
        good(&enter(&boxed, &["/bin/sh", "-c", "cat /proc/1/comm; cat /proc/self/status; readlink /proc/self/ns/*"]));
    assert!(shown.starts_with("sleep\n"), "{shown}");
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"] {
        assert!(shown.contains(&format!("{name}:\t{}\n", status_of(boxed.pid, name))), "{name}: {shown}");
    }
    if rustix::process::geteuid().is_root() {
        for line in ["Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65533\t65533\t65533\t65533\n", "Groups:\t65532 \n"] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
    }
    for name in ["user", "mnt", "pid", "ipc", "uts", "net", "cgroup"] {
        let link = std::fs::read_link(format!("/proc/{}/ns/{name}", boxed.pid)).unwrap();
        assert!(shown.contains(&link.display().to_string()), "{name}: {shown}");
    }
    assert_eq!(good(&enter(&boxed, &["/bin/sh", "-c", "ulimit -n"])), "77\n");
    assert_eq!(code(&enter(&boxed, &["/bin/sh", "-c", "exit 9"])), 9);
    // It crossed into a pid namespace, so a child did it, and a signal is told as a shell does.
    assert_eq!(enter(&boxed, &["/bin/sh", "-c", "kill -TERM $$"]).status.code(), Some(143));
    failed(&enter(&boxed, &["/no/such/thing"]), 1, "Q1156");
    // What it may not, it cannot.
    let denied = enter(&boxed, &["/bin/sh", "-c", "kill -0 1; mount -t tmpfs none /tmp; chown 0 /proc/self"]);
    assert!(code(&denied) != 0, "{}", out(&denied));
}

#[test]
fn a_command_in_a_box_dies_with_whoever_sent_it() {
    let boxed = boxed();
    let identity = quorate_host::process::Identity::of(boxed.pid).unwrap();
    let commands = vec![["/bin/sh", "-c", "echo here; exec sleep 999"].map(str::to_owned).to_vec()];
    let errand = quorate_host::enter::Errand {
        identity,
        commands,
        env: Vec::new(),
        terminal: false,
        held: None,
        tools: quorate_host::enter::Tools::Never,
    };
    let text = serde_json::to_string(&errand).unwrap();
    let mut sent = Command::new(quorate())
        .args(["__enter", "--whole", &text])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(sent.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "here\n");
    let inside = || {
        let listed = enter(&boxed, &["/bin/sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]);
        out(&listed).matches("sleep 999").count()
    };
    wait_until("the command", LIMIT, || inside() == 1);
    sent.kill().unwrap();
    sent.wait().unwrap();
    wait_until("its end", LIMIT, || inside() == 0);
    drop(boxed.outer);
}
