//! `cluster check` as a person and a script see it: good files, every kind of mistake, several at once, and no secrets.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const GOOD: &str = "token: t\nbootstrap: {id: 1}\nplaintext: true\nmembers:\n  - {name: n1, address: 10.0.0.1}\n";

/// Checks a file with this content.
fn check(text: &str, more: &[&str]) -> Output {
    let dir = TempDir::new().expect("a temporary directory");
    let mut file = std::fs::File::create(dir.path().join("cluster.yaml")).expect("created");
    file.write_all(text.as_bytes()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    command.args(["cluster", "check", "cluster.yaml"]).args(more).current_dir(dir.path()).stdin(Stdio::null());
    command.env_remove("QUORATE_CONFIG").env_remove("COLUMNS").output().expect("the binary runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", out(output)))
}

#[test]
fn a_good_file_can_be_used_and_its_defaults_are_shown_to_scripts() {
    let said = check(GOOD, &[]);
    assert_eq!(said.status.code(), Some(0));
    assert!(
        out(&said).starts_with("cluster.yaml: can be used; 1 member, declares bootstrap 1 of a cluster"),
        "{}",
        out(&said)
    );
    assert!(said.stderr.is_empty());
    let document = json(&check(GOOD, &["--output", "json"]));
    assert_eq!((&document["valid"], &document["members"]), (&Value::from(true), &Value::from(1)));
    assert_eq!(document["spec"]["maintenance"]["validation-budget"], "30s");
    assert_eq!(document["spec"]["members"][0]["data-dir"], "/var/lib/etcd");
    // What it prints can be used as a file.
    let again = check(&document["spec"].to_string(), &["--output", "json"]);
    assert_eq!(json(&again)["spec"], document["spec"]);
}

#[test]
fn a_warning_is_no_mistake() {
    let said = check(&format!("{GOOD}  - {{name: n2, address: 10.0.0.2}}\n"), &[]);
    assert_eq!(said.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&said.stderr).starts_with("warning: "), "{said:?}");
}

#[test]
fn each_kind_of_mistake_ends_with_4_and_names_its_line() {
    let files = "{cert-file: /c, key-file: /k, trusted-ca-file: /t}";
    for (text, line, code, what) in [
        ("token: [\n".to_owned(), 0, "Q0930", "it is not YAML"),
        (String::new(), 0, "Q0930", "it is empty"),
        (format!("{GOOD}quota: 1\n"), 6, "Q0932", "`quota` means nothing here"),
        (format!("{GOOD}maintenance: {{validation: fulll}}\n"), 6, "Q0931", "`fulll` is no `validation`"),
        (format!("{GOOD}maintenance: {{validation-budget: soon}}\n"), 6, "Q0931", "is not a time span"),
        (GOOD.replace("10.0.0.1", "'10.0.0.1:99999'"), 5, "Q0931", "cannot use"),
        (GOOD.replace("plaintext: true\n", ""), 1, "Q0931", "neither `tls` nor `plaintext: true`"),
        (format!("{GOOD}tls: {{peer: {files}, client: {files}}}\n"), 3, "Q0931", "stands beside `tls`"),
        (format!("{GOOD}  - {{name: n1, address: 10.0.0.2}}\n"), 6, "Q0931", "two members are named `n1`"),
        (format!("{GOOD}etcd: {{quota-backend-byte: 1}}\n"), 6, "Q0915", "etcd has no setting"),
        (format!("{GOOD}etcd: {{initial-cluster: x}}\n"), 6, "Q0916", "is not set under `etcd`"),
        (format!("{GOOD}etcd: {{max-learners: 2}}\nagent: {{etcd-version: '3.5'}}\n"), 6, "Q0917", "etcd 3.5 has no"),
        (format!("{GOOD}etcd: {{max-wals: many}}\n"), 6, "Q0918", "takes a whole number"),
        (format!("{GOOD}backup: {{store: 'ftp://x'}}\n"), 6, "Q0931", "is no store"),
        (format!("{GOOD}backup: {{store: 'file:///b', full-schedule: now}}\n"), 6, "Q0931", "cannot use the schedule"),
        (format!("{GOOD}agent: {{etcd-version: '5'}}\n"), 6, "Q0931", "is no version of etcd"),
    ] {
        let said = check(&text, &["--output", "json"]);
        assert_eq!(said.status.code(), Some(4), "{text}");
        let document = json(&said);
        assert_eq!(document["valid"], false);
        let mistake = &document["mistakes"][0];
        let shown = mistake["what"].as_str().expect("what");
        assert!(shown.contains(what), "{text}: {shown}");
        assert_eq!(mistake["code"], code, "{text}: {shown}");
        if line > 0 {
            assert_eq!(mistake["line"], line, "{text}: {shown}");
        }
        let plain = check(&text, &[]);
        assert_eq!((plain.status.code(), out(&plain).contains(what)), (Some(4), true), "{}", out(&plain));
        assert!(out(&plain).starts_with("cluster.yaml:"), "{}", out(&plain));
    }
}

#[test]
fn all_mistakes_are_shown_at_once_with_their_lines() {
    let text = "token: t\nplaintexxt: true\nplaintext: true\nmembers:\n  - {name: n1, adress: 10.0.0.1}\nmaintenance:\n  validation: fulll\n";
    insta::assert_snapshot!(out(&check(text, &[])), @r"
    cluster.yaml:2:1: `plaintexxt` means nothing here
      2 | plaintexxt: …
        | ^
      hint: did you mean `plaintext`?

    cluster.yaml:5:5: a member has neither `address` nor `peer-urls`
      5 |   - {name: n1, adress: 10.0.0.1}
        |     ^
      hint: give its `address: 10.0.0.1`, or `peer-urls` and `client-urls`

    cluster.yaml:5:16: `adress` means nothing in `members[1]`
      5 |   - {name: n1, adress: …
        |                ^
      hint: did you mean `address`?

    cluster.yaml:7:15: `fulll` is no `validation`
      7 |   validation: fulll
        |               ^
      hint: did you mean `full`?
    ");
    let document = json(&check(text, &["--output", "json"]));
    assert_eq!(document["mistakes"].as_array().map(Vec::len), Some(4));
}

#[test]
fn what_may_be_a_secret_is_never_repeated() {
    let tls = "{cert-file: /c, key-file: /k, trusted-ca-file: /t}";
    for text in [
        format!("{GOOD}passwrod: hunter2\n"),
        format!("{GOOD}backup: {{store: 's3://AKIA:hunter2@bucket/x'}}\n"),
        format!("{GOOD}backup: {{store: 's3://bucket/x?secret=hunter2'}}\n"),
        format!("{GOOD}backup: {{store: 's3://bucket', secret-key: hunter2}}\n"),
        format!("{GOOD}agent: {{etcd-user: root, etcd-password-file: hunter2}}\n").replace("hunter2", "\"hun\\nter2\""),
        format!("{GOOD}agent: {{etcd-password: hunter2}}\n"),
        format!("{GOOD}etcd: {{auth-tokn: 'jwt,priv-key=hunter2'}}\n"),
        GOOD.replace(
            "plaintext: true",
            &format!("tls: {{peer: {tls}, client: {}}}", tls.replace("/k", "'-----BEGIN KEY hunter2'")),
        ),
    ] {
        for form in [&[][..], &["--output", "json"]] {
            let said = check(&text, form);
            assert_eq!(said.status.code(), Some(4), "{text}");
            let all = out(&said) + &String::from_utf8_lossy(&said.stderr);
            assert!(!all.contains("hunter2") && !all.contains("ter2"), "{text}\n{all}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_is_a_fault_and_help_explains() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    let said = command.args(["cluster", "check", "/no/such/file"]).output().expect("the binary runs");
    assert_eq!(said.status.code(), Some(4));
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(text.starts_with("error: cannot read the cluster file `/no/such/file` [Q1481]"), "{said:?}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    let help = out(&command.args(["cluster", "check", "--help"]).output().expect("the binary runs"));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in
        ["quorate cluster check cluster.yaml --output json", "Exit code 0: it can be used.", "nothing is changed"]
    {
        assert!(help.contains(words), "{help}");
    }
}

#[test]
fn a_missing_or_endless_cluster_file_is_refused_with_the_same_exit_code_by_every_command() {
    for file in ["/no/such/file", "/dev/zero"] {
        for command in [
            &["run", "--name", "n1", "--config"][..],
            &["status", "--name", "n1", "--config"],
            &["cluster", "status", "--config"],
            &["cluster", "check"],
            &["cluster", "plan"],
            &["audit", "--config"],
            &["ps", "--config"],
            &["ca", "status", "--config"],
        ] {
            let mut quorate = Command::new(env!("CARGO_BIN_EXE_quorate"));
            let said = quorate.args(command).arg(file).stdin(Stdio::null()).output().expect("the binary runs");
            let text = String::from_utf8_lossy(&said.stderr).into_owned();
            assert_eq!(said.status.code(), Some(4), "{command:?} {file}: {text}");
            assert!(text.contains("[Q1481]"), "{command:?} {file}: {text}");
        }
    }
}

#[test]
fn runs_no_program_that_the_file_names_unless_asked_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let mark = dir.path().join("mark");
    let file = format!(
        "token: t\nbootstrap: {{id: 1}}\nplaintext: true\n\
         source: {{uri: \"exec+shell:touch {}; echo 'n1: http://127.0.0.1:1'\", size: 1}}\n\
         agent: {{state-dir: {}}}\n",
        mark.display(),
        dir.path().join("state").display()
    );
    let said = check(&file, &[]);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert!(out(&said).contains("members were not resolved"), "{}", out(&said));
    assert!(!mark.exists(), "the source of the checked file ran");
    let json = check(&file, &["--output", "json"]);
    assert!(out(&json).contains("\"not_resolved\": true") && !mark.exists(), "{}", out(&json));
    let resolved = check(&file, &["--resolve"]);
    assert_eq!(resolved.status.code(), Some(0), "{resolved:?}");
    assert!(mark.exists() && !out(&resolved).contains("not resolved"), "{}", out(&resolved));
}

#[test]
fn the_files_of_the_guide_can_be_used() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/guide/cluster-file.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let files: Vec<&str> = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(files.len(), 8);
    for file in files {
        let said = check(file, &[]);
        assert_eq!(said.status.code(), Some(0), "{}", out(&said));
    }
}

#[test]
fn a_member_and_the_defaults_are_shown_when_asked_for() {
    let said = check(GOOD, &["--name", "n1", "--defaults"]);
    let text = out(&said);
    assert_eq!(said.status.code(), Some(0), "{text}");
    assert!(text.contains("\n  state    /var/lib/quorate/n1\n"), "{text}");
    assert!(text.contains("\n  agent    http://127.0.0.1:2382 (listens at http://127.0.0.1:2382)\n"), "{text}");
    let row = text.lines().find(|line| line.starts_with("backup.delta-period ")).unwrap_or_default();
    assert!(row.contains(" 10s ") && row.contains("How often what was written since is stored"), "{text}");
    let document = json(&check(GOOD, &["--name", "n1", "--defaults", "--output", "json"]));
    assert_eq!(document["member"]["data_dir"], "/var/lib/etcd");
    let defaults = document["defaults"].as_array().cloned().unwrap_or_default();
    let of = |path: &str| defaults.iter().find(|value| value["path"] == path).cloned().unwrap_or_default();
    assert_eq!(of("maintenance.validation")["default"], "auto");
    assert_eq!(of("token")["default"], Value::Null);
    let missing = check(GOOD, &["--name", "n2"]);
    assert_eq!(missing.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("n2"), "{missing:?}");
}
