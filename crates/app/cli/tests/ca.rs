//! `quorate ca`, the real binary: from authorities to installed certificates, and killed on the way.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use quorate_pki::{Authority, Role, ensure_swaps_finished, read_certificates};
use quorate_testkit::{AtTerminal, quorate, strace};
use serde_json::Value;

const PASSPHRASE: &str = "correct horse battery";

/// Authorities, a cluster file and the folder of one node.
struct Place {
    root: tempfile::TempDir,
}

impl Place {
    /// Without a passphrase where the test is about something else: opening encrypted keys takes its time on purpose.
    fn new() -> Place {
        let place = Place { root: tempfile::tempdir().unwrap() };
        let text = format!(
            "token: prod-1\nmembers:\n  - {{name: n1, peer-urls: ['https://10.0.0.1:2380'], client-urls: \
             ['https://n1.example:2379']}}\n  - {{name: n2, peer-urls: ['https://10.0.0.2:2380'], client-urls: \
             ['https://n2.example:2379']}}\ntls: {{dir: '{}/{{name}}'}}\n",
            place.root.path().display()
        );
        put(&place.at("cluster.yaml"), &text);
        put(&place.at("pass"), &format!("{PASSPHRASE}\nsecond line\n"));
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// A command line with `@` for this place, as nobody's terminal.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("setsid");
        command.arg("--wait").arg(quorate());
        command.args(line.replace('@', &format!("{}/", self.root.path().display())).split(' '));
        for name in ["QUORATE_CA_PASSPHRASE_FILE", "CREDENTIALS_DIRECTORY", "QUORATE_CONFIG", "QUORATE_NAME", "COLUMNS"]
        {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("`setsid` of util-linux runs")
    }

    /// A command that succeeds; its stdout.
    #[track_caller]
    fn good(&self, line: &str) -> String {
        let output = self.run(line);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}: {words}");
        assert!(!words.contains(PASSPHRASE), "{words}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A command that fails; its exit code and what it said.
    #[track_caller]
    fn bad(&self, line: &str) -> (i32, String) {
        let output = self.run(line);
        assert!(!output.status.success(), "{line} succeeded");
        assert!(output.stdout.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    fn init_unencrypted(&self) {
        self.good("ca init --dir @ca --token prod-1 --unencrypted");
    }
}

fn put(path: &Path, text: &str) {
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

const CSR: &str = "ca csr --config @cluster.yaml --name n1";
const ISSUE: &str = "ca issue --dir @ca --config @cluster.yaml";
const INSTALL: &str = "ca install --config @cluster.yaml --name n1";

#[test]
fn the_whole_way_is_three_commands_and_one_pipe() {
    let place = Place::new();
    let init = "ca init --dir @ca --token prod-1";
    let (code, words) = place.bad(init);
    assert!(code == 1 && words.contains("no terminal to ask on") && words.contains("Q1002"), "{words}");
    let said = place.good(&format!("{init} --passphrase-file @pass"));
    assert!(said.contains("have been made") && said.contains("encrypted") && said.contains("secret"), "{said}");
    // Once more, and no passphrase is needed for nothing.
    assert!(place.good(init).contains("are there already"));
    let (code, words) = place.bad("ca init --dir @ca --token prod-2 --unencrypted");
    assert!(code == 5 && words.contains("Q1001"), "{words}");
    // The pipe that ssh would carry.
    let script = format!("quorate {CSR} | quorate {ISSUE} --passphrase-file @pass | quorate {INSTALL}");
    let script = script.replace("quorate ca", &format!("'{}' ca", quorate().display()));
    let script = script.replace('@', &format!("{}/", place.root.path().display()));
    let output = Command::new("bash").args(["-c", &format!("set -o pipefail; {script}")]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    assert!(words.contains("made keys in") && words.contains("asks for 90 days, for localhost, n1.example"), "{words}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("peer, client, agent, admin"));
    fits(&place.at("n1"));
    let status = place.good("ca status --config @cluster.yaml --name n1 --output json");
    let status: Value = serde_json::from_str(&status).unwrap();
    let list = status["certificates"].as_array().unwrap();
    assert_eq!(list.len(), 7);
    assert!(list.iter().all(|one| one["problems"].as_array().unwrap().is_empty()), "{status:#}");
    assert!(list[0]["names"].as_array().unwrap().iter().any(|name| name == "10.0.0.1"), "{status:#}");
    let table = place.good("ca status --dir @ca");
    assert!(table.contains("WHICH") && table.contains("agent-ca") && table.contains("days"), "{table}");
}

#[test]
fn what_does_not_fit_is_refused_with_its_code() {
    let place = Place::new();
    place.init_unencrypted();
    place.good(&format!("{CSR} --out @n1.csr"));
    let refused = |line: &str, exit: i32, code: &str| {
        let (found, words) = place.bad(line);
        assert!(found == exit && words.contains(code), "{line}: {found}: {words}");
        words
    };
    // Without a cluster file somebody is asked, and here is nobody.
    let words = refused("ca issue --dir @ca @n1.csr", 5, "Q1005");
    assert!(words.contains("asks for 90 days, for") && words.contains("--yes"), "{words}");
    place.good("ca issue --dir @ca @n1.csr --yes --out @n1.bundle");
    refused("ca issue --dir @nowhere @n1.csr --yes", 1, "Q1000");
    refused(&format!("{ISSUE} @n1.bundle"), 4, "Q1004");
    refused(&format!("{ISSUE} @cluster.yaml"), 4, "Q1004");
    refused(&format!("{INSTALL} @n1.csr"), 4, "Q1004");
    refused("ca install --config @cluster.yaml --name n2 @n1.bundle", 5, "Q1006");
    // Another address than the file declares.
    let other = std::fs::read_to_string(place.at("cluster.yaml")).unwrap().replace("10.0.0.1", "10.0.0.9");
    put(&place.at("other.yaml"), &other);
    place.good("ca csr --config @other.yaml --name n1 --out @moved.csr");
    assert!(refused(&format!("{ISSUE} @moved.csr"), 5, "Q1005").contains("`10.0.0.9`"));
    put(&place.at("plain.yaml"), "token: t\nplaintext: true\nmembers: [{name: n1, address: 127.0.0.1}]\n");
    refused("ca csr --config @plain.yaml --name n1", 4, "Q1009");
    // Missing and ended are said by `status`, with exit code 1.
    assert_eq!(place.run("ca status --config @cluster.yaml --name n2").status.code(), Some(1));
    place.good(&format!("{INSTALL} @n1.bundle"));
    assert!(place.good(&format!("{INSTALL} @n1.bundle")).contains("already"));
    assert_eq!(place.run("ca status --config @cluster.yaml --name n1").status.code(), Some(0));
    place.good(&format!("{ISSUE} @n1.csr --days 1 --out @short.bundle"));
    place.good(&format!("{INSTALL} @short.bundle"));
    assert_eq!(place.run("ca status --config @cluster.yaml --name n1").status.code(), Some(0), "a whole day is left");
}

#[test]
fn help_explains_each_verb() {
    let place = Place::new();
    let help = |line: &str| String::from_utf8(place.run(line).stdout).unwrap();
    insta::assert_snapshot!(help("ca --help"));
    insta::assert_snapshot!(help("ca init --help"));
    insta::assert_snapshot!(help("ca csr --help"));
    insta::assert_snapshot!(help("ca issue --help"));
    insta::assert_snapshot!(help("ca install --help"));
    insta::assert_snapshot!(help("ca status --help"));
}

/// Every certificate belongs to its key and to the authority beside it.
#[track_caller]
fn fits(dir: &Path) {
    for role in Role::ALL {
        let cert = read_certificates(&dir.join(role.cert_file())).unwrap().remove(0);
        let authority = read_certificates(&dir.join(role.authority().cert_file())).unwrap().remove(0);
        assert!(cert.is_signed_by(&authority), "{role:?}");
        assert_eq!(public_key(&dir.join(role.key_file())), cert.public_key, "{role:?}");
    }
}

fn public_key(path: &Path) -> Vec<u8> {
    let key = rcgen::KeyPair::from_pem(&std::fs::read_to_string(path).unwrap()).unwrap();
    rcgen::PublicKeyData::subject_public_key_info(&key)
}

/// The calls that change something in the node's folder.
const CALLS: &str = "?write,?fsync,?rename,?renameat,?renameat2,?unlink,?unlinkat";

/// Runs a command line once for some of its changing calls, killed at that call, each time after `begin`. Everything is
/// tried with `QUORATE_SWEEP=full`.
fn sweep(place: &Place, line: &str, begin: impl Fn(), check: impl Fn(&str)) {
    let line = line.replace('@', &format!("{}/", place.root.path().display()));
    let words: Vec<&str> = line.split(' ').collect();
    let traced = |options: &[&str]| {
        let mut command = Command::new(strace());
        command.args(["-f", "-qq", "-y"]).args(options).arg(quorate()).args(&words).stdout(Stdio::null());
        command.stderr(Stdio::null()).status().unwrap()
    };
    let log = place.at("trace").display().to_string();
    begin();
    assert!(traced(&["-o", &log, "-e", &format!("trace={CALLS}")]).success());
    let folder = place.at("n1/").display().to_string();
    let (mut seen, mut calls) = (std::collections::BTreeMap::<String, usize>::new(), Vec::new());
    for text in std::fs::read_to_string(&log).unwrap().lines() {
        let Some((name, _)) = text.split_whitespace().nth(1).and_then(|word| word.split_once('(')) else { continue };
        let number = seen.entry(name.to_owned()).or_default();
        *number += 1;
        if text.contains(folder.trim_end_matches('/')) {
            calls.push((name.to_owned(), *number));
        }
    }
    assert!(calls.len() >= 8, "{calls:?}");
    let step = if std::env::var("QUORATE_SWEEP").is_ok_and(|value| value == "full") { 1 } else { 5 };
    for (name, number) in calls.iter().step_by(step) {
        begin();
        let inject = format!("inject={name}:signal=KILL:when={number}");
        let ended = traced(&["-o", "/dev/null", "-e", &format!("trace={name}"), "-e", &inject]);
        assert_eq!(ended.signal(), Some(9), "not killed at {name} {number}");
        check(&format!("killed at `{name}` number {number}"));
    }
}

fn left_overs(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| [".partial-", ".spent", ".next"].iter().any(|mark| name.contains(mark))).collect()
}

#[test]
fn killed_requests_are_made_again_with_the_keys_that_are_there() {
    let place = Place::new();
    place.init_unencrypted();
    let node = place.at("n1");
    let begin = || {
        for entry in std::fs::read_dir(&node).into_iter().flatten() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    };
    sweep(&place, &format!("{CSR} --out @n1.csr"), begin, |when| {
        let keys = |role: Role| std::fs::read(node.join(role.key_file())).ok();
        let before = Role::ALL.map(keys);
        place.good(&format!("{CSR} --out @n1.csr"));
        for (role, before) in Role::ALL.into_iter().zip(before) {
            assert!(before.is_none() || before == keys(role), "{when}: {role:?} was made twice");
        }
        assert_eq!(left_overs(&node), [""; 0], "{when}");
        place.good(&format!("{ISSUE} @n1.csr --out @n1.bundle"));
        place.good(&format!("{INSTALL} @n1.bundle"));
        fits(&node);
    });
}

#[test]
fn killed_renewals_leave_pairs_that_fit() {
    let place = Place::new();
    place.init_unencrypted();
    let node = place.at("n1");
    for more in ["", " --renew"] {
        place.good(&format!("{CSR} --out @n1.csr"));
        place.good(&format!("{ISSUE} @n1.csr --out @old.bundle"));
        place.good(&format!("{INSTALL} @old.bundle"));
        place.good(&format!("{CSR}{more} --out @n1.csr"));
        place.good(&format!("{ISSUE} @n1.csr --out @new.bundle"));
        // What is there now is where every run begins.
        let kept: Vec<(PathBuf, Vec<u8>)> = std::fs::read_dir(&node)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect();
        let begin = || {
            for entry in std::fs::read_dir(&node).unwrap() {
                std::fs::remove_file(entry.unwrap().path()).unwrap();
            }
            for (path, bytes) in &kept {
                std::fs::File::create(path).unwrap().write_all(bytes).unwrap();
            }
        };
        sweep(&place, &format!("{INSTALL} @new.bundle"), begin, |when| {
            // The agent does the same before it starts etcd; with keys that stay there is nothing to be finished.
            if !more.is_empty() {
                ensure_swaps_finished(&node).unwrap();
            }
            fits(&node);
            place.good(&format!("{INSTALL} @new.bundle"));
            fits(&node);
            assert_eq!(left_overs(&node), [""; 0], "{when}");
        });
        assert!(Authority::ALL.iter().all(|authority| node.join(authority.cert_file()).exists()));
    }
}

#[test]
fn a_passphrase_is_asked_for_at_the_terminal_twice_and_never_shown() {
    let place = Place::new();
    let dir = place.at("ca").display().to_string();
    let start = || AtTerminal::start(&quorate(), &["ca", "init", "--dir", &dir, "--token", "prod-1"]);
    let mut terminal = start();
    let seen = terminal.answer(0, "passphrase for", PASSPHRASE);
    terminal.answer(seen, "once more: ", "something else");
    let (status, echoes) = terminal.wait();
    assert!(!status.success() && echoes, "{}", terminal.seen());
    assert!(terminal.seen().contains("the two passphrases differ"), "{}", terminal.seen());
    assert!(!terminal.seen().contains(PASSPHRASE), "{}", terminal.seen());
    let mut terminal = start();
    let seen = terminal.answer(0, "passphrase for", PASSPHRASE);
    terminal.answer(seen, "once more: ", PASSPHRASE);
    let (status, echoes) = terminal.wait();
    assert!(status.success() && echoes && !terminal.seen().contains(PASSPHRASE), "{}", terminal.seen());
    // What was made opens with what was typed.
    let passphrase = quorate_pki::Passphrase::new(PASSPHRASE.to_owned().into()).unwrap();
    quorate_pki::Authorities::open(&place.at("ca"), Some(&passphrase)).unwrap();
}
