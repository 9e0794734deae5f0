//! `box run` and `box explain`: exit codes, refusals, words.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::process::{Command, Output, Stdio};

use quorate_testkit::project_root;
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_quorate");

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

fn quorate(args: &[&str]) -> Output {
    Command::new(BINARY).arg("box").args(args).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_exit_code_is_the_programs() {
    for (script, code) in [("exit 7", 7), ("kill -9 $$", 137), ("exit 0", 0)] {
        for level in ["basic", "off"] {
            let output = quorate(&["run", "--level", level, "--", "/bin/sh", "-c", script]);
            assert_eq!(output.status.code(), Some(code), "{script} {level}: {}", said(&output));
        }
    }
    // Our own faults end in our own codes.
    for (args, code, fault) in [
        (&["run", "--level", "basic", "--", "/no/such/program"][..], 2, "Q0903"),
        (&["run", "--level", "basic", "--read", "/no/such", "--", "/bin/true"], 4, "Q1103"),
        (&["run", "--level", "somewhat", "--", "/bin/true"], 64, "strict, basic or off"),
        (&["run", "--level", "basic", "--memory", "much", "--", "/bin/true"], 64, "512MiB"),
    ] {
        let output = quorate(args);
        assert!(output.status.code() == Some(code) && said(&output).contains(fault), "{args:?}: {output:?}");
    }
}

#[test]
fn a_script_is_told_how_to_be_boxed() {
    let script = project_root().join("scripts/tools");
    let output = quorate(&["run", "--level", "basic", "--", script.to_str().unwrap()]);
    assert!(said(&output).contains("Q1102") && said(&output).contains("--read"), "{}", said(&output));
}

#[test]
fn what_is_not_named_is_not_there() {
    let script = "cat /etc/hosts > /dev/null && echo hosts; cat /etc/passwd; echo $HOME; echo $GIVEN";
    let args = ["run", "--level", "basic", "--exec", "/usr/bin", "--env", "GIVEN=thing", "--", "sh", "-c", script];
    let output = Command::new(BINARY).arg("box").args(args).env("HOME", "/secret").output().unwrap();
    let out = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(out.contains("hosts") && out.contains("thing"), "{out} {}", said(&output));
    assert!(!out.contains("root:") && !out.contains("/secret"), "{out}");
}

/// `quorate box` as a normal user, from a copy that such a user may execute wherever the checkout lies.
fn as_normal_user(args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("quorate");
    let mut command = if root() {
        // Another process copies: a file that this one writes could be held open by what another thread just starts.
        assert!(Command::new("cp").arg(BINARY).arg(&program).status().unwrap().success());
        for path in [dir.path(), program.as_path()] {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new("/usr/bin/setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        command
    } else {
        Command::new(BINARY)
    };
    command.arg("box").args(args).stdin(Stdio::null()).current_dir("/").output().unwrap()
}

#[test]
fn a_normal_user_is_refused_strict_and_told_why() {
    let output = as_normal_user(&["run", "--level", "strict", "--", "/bin/true"]);
    let text = said(&output);
    assert!(output.status.code() == Some(1) && text.contains("Q1100"), "{output:?}");
    assert!(text.contains("lacks: user") && text.contains("--level basic"), "{text}");
    // The same for machines.
    let output = as_normal_user(&["run", "--level", "strict", "--output", "json", "--", "/bin/true"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["error"]["code"], &document["error"]["exit"]), (&"Q1100".into(), &1.into()), "{document}");
}

#[test]
fn a_strict_box_that_fails_on_the_way_is_refused_by_the_part_that_is_missing() {
    // Root by its rights, on a machine that has no more mounts to give.
    let script = "echo 0 > /proc/sys/user/max_mnt_namespaces && exec \"$0\" box run --level strict -- /bin/true";
    let mut command = Command::new("unshare");
    let output = command.args(["-Ur", "sh", "-c", script, BINARY]).stdin(Stdio::null()).output().unwrap();
    let text = said(&output);
    assert!(output.status.code() == Some(1) && text.contains("Q1100"), "{output:?}");
    assert!(text.contains("root of its own") && text.contains("No space left on device"), "{text}");
}

#[test]
fn a_normal_user_gets_what_can_be_had_and_is_told_what_cannot() {
    // Without a level it is basic; limits of all processes together take cgroups, another user takes root.
    let limits = ["--memory", "256MiB", "--cpu", "50", "--pids", "4000", "--user", "nobody"];
    let output = as_normal_user(&[&["run"][..], &limits, &["--", "/bin/true"]].concat());
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for part in
        ["user: not enforced", "memory: only in part", "processor: not enforced", "processes and threads: only in part"]
    {
        assert!(text.contains(part) && text.contains("Q1105"), "{part}: {text}");
    }
    let output = as_normal_user(&[&["explain", "--output", "json"][..], &limits].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["level"], "basic");
    let row = |part: &str| document["rows"].as_array().unwrap().iter().find(|row| row["part"] == part).unwrap().clone();
    assert_eq!((&row("user")["enforced"], &row("memory")["enforced"]), (&"no".into(), &"in part".into()));
    assert_eq!((&row("system calls")["enforced"], &row("files")["enforced"]), (&"yes".into(), &"yes".into()));
    // Limits that were not asked for are not missed.
    let output = as_normal_user(&["run", "--", "/bin/true"]);
    assert!(output.status.code() == Some(0) && !said(&output).contains("memory"), "{output:?}");
}

#[test]
fn a_name_that_is_no_process_and_has_no_list_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let explain = |args: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["box", "explain"]).args(args).env("QUORATE_ROOT", empty.path()).output().unwrap()
    };
    let output = explain(&["web"]);
    assert!(output.status.code() == Some(1) && said(&output).contains("Q1150"), "{output:?}");
    let output = explain(&["web", "--bind", "80"]);
    assert!(output.status.code() == Some(64) && said(&output).contains("list of system calls"), "{output:?}");
    // etcd has a list, and where none runs that is said.
    let output = explain(&["etcd", "--output", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["process"].is_null() && said(&output).contains("list of system calls alone"), "{output:?}");
    // With a cluster file it is the box of its next start.
    let dir = empty.path().join("etc/quorate");
    std::fs::create_dir_all(&dir).unwrap();
    let text = "token: t\nplaintext: true\nmembers: [{name: n1, address: 127.0.0.1}]\nbox: {level: basic, limits: {open-files: \
                4711}}\n";
    std::io::Write::write_all(&mut std::fs::File::create(dir.join("cluster.yaml")).unwrap(), text.as_bytes()).unwrap();
    let output = explain(&["etcd", "--output", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["level"] == "basic" && said(&output).contains("its next start by"), "{output:?}");
    for part in ["listens on 2379, 2380", "4711 open files", "/n1"] {
        assert!(document["rows"].to_string().contains(part), "{part}: {document}");
    }
}

#[test]
fn a_box_is_explained_as_it_is_enforced() {
    let args = ["explain", "etcd", "--level", "basic", "--bind", "2379", "--write", "/tmp", "--memory", "1GiB"];
    let output = quorate(&[&args[..], &["--output", "json"]].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["rows"].as_array().unwrap();
    let row = |part: &str| rows.iter().find(|row| row["part"] == part).unwrap();
    assert_eq!(rows.len(), 17);
    assert_eq!(row("ports")["may"], "listens on 2379; connects to no port");
    assert!(row("system calls")["may"].as_str().unwrap().contains("`etcd` (109)"));
    assert_eq!(row("no new privileges")["enforced"], "yes");
    assert_eq!(row("user")["enforced"], "-");
    let text = String::from_utf8(quorate(&args).stdout).unwrap();
    assert!(text.contains("A box of level basic") && text.contains("1073741824 bytes"), "{text}");
}
