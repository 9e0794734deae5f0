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

#[test]
fn a_normal_user_is_refused_strict_and_told_why() {
    let mut command = if root() {
        let mut command = Command::new("/usr/bin/setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", BINARY]);
        command
    } else {
        Command::new(BINARY)
    };
    let output = command.args(["box", "run", "--level", "strict", "--", "/bin/true"]).output().unwrap();
    let said = said(&output);
    assert!(output.status.code() == Some(1) && said.contains("Q1100"), "{output:?}");
    assert!(said.contains("lacks: user") && said.contains("--level basic"), "{said}");
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
