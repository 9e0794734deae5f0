//! A cluster that has lost its quorum is recovered: from the data that is left, from a backup, killed at every step, and kept
//! apart from the dead who return.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use change_support::Net;
use cluster_support::{Declared, LIMIT, Wire};
use quorate_etcd_formats::membership::ClusterId;
use quorate_plan::ledger::Ledger;
use quorate_testkit::{VERSIONS, project_root, quorate, wait_until};
use serde_json::Value;

/// An operator waits for no refusal longer than this.
const REFUSED_WITHIN: Duration = Duration::from_secs(15);

/// A cluster that serves, with some keys.
fn serving(version: &str, wire: Wire, more: &str) -> Declared {
    let mut cluster = Declared::new(version, 3, wire);
    cluster.more = more.to_owned();
    // A quorum that is lost is noticed by reads that fail.
    cluster.file_as("cluster.yaml", &cluster.text().replace("agent:\n", "agent:\n  ready-timeout: 2s\n"));
    cluster.start_all();
    cluster.wait_serving();
    for at in 0..20 {
        cluster.put(at % 3, &format!("k{at}"), &format!("v{at}"));
    }
    cluster
}

/// Without a terminal, so that nobody is asked.
fn recover(cluster: &Declared, more: &[&str]) -> Output {
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(quorate()).args(["cluster", "recover", "--wait", "90s", "--config"]);
    let began = Instant::now();
    let output = command.arg(cluster.path("cluster.yaml")).args(more).output().unwrap();
    let refused = output.status.code() == Some(5);
    assert!(!refused || began.elapsed() < REFUSED_WITHIN, "refused after {:?}: {output:?}", began.elapsed());
    output
}

#[track_caller]
fn fails(output: &Output, exit: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(exit), "{text}");
    for word in words {
        assert!(text.contains(word), "no `{word}`: {text}");
    }
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {text}", output.status);
    text
}

/// What lies beside the data dir of a member under a name that says that it was set aside.
fn replaced(cluster: &Declared, at: usize) -> Vec<PathBuf> {
    let begin = format!("data-{}.replaced-", cluster.members[at].name);
    let entries = std::fs::read_dir(cluster.root.path()).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&begin)).map(|entry| entry.path()).collect()
}

fn holds(cluster: &Declared, at: usize, count: usize) {
    for number in 0..count {
        let (key, value) = (format!("k{number}"), format!("v{number}"));
        wait_until("the key", LIMIT, || {
            cluster.try_ctl(at, &["get", "--print-value-only", &key]).is_ok_and(|text| text.trim() == value)
        });
    }
}

/// The `sh` blocks of the guide, in their order.
fn guide() -> Vec<String> {
    let text = std::fs::read_to_string(project_root().join("docs/guide/recover.md")).unwrap();
    let mut blocks = Vec::new();
    let mut rest = text.as_str();
    while let Some((_, after)) = rest.split_once("```sh\n") {
        let (block, after) = after.split_once("```").unwrap();
        blocks.push(block.to_owned());
        rest = after;
    }
    blocks
}

/// Runs a block of the guide beside the cluster file.
fn run_block(cluster: &Declared, block: &str) -> String {
    let bin = cluster.path("bin");
    if !bin.exists() {
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(quorate(), bin.join("quorate")).unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", block])
        .current_dir(cluster.root.path())
        .env("PATH", path)
        .output()
        .unwrap();
    succeeds(&output)
}

#[test]
fn the_guide_brings_a_cluster_back_and_keeps_the_dead_away() {
    for version in VERSIONS {
        // With certificates beside the state; what boxes let through is shown elsewhere.
        let mut cluster = serving(version, Wire::Tls, "box: {level: off}\n");
        let old = cluster.assert_one_cluster();
        let commands = guide();
        // A quorum is there: nothing is recovered, whatever is said.
        fails(&recover(&cluster, &["--yes"]), 5, &["Q1060"]);
        fails(&recover(&cluster, &["--fenced", "n3", "--yes"]), 5, &["Q106"]);
        cluster.power_off(1);
        cluster.power_off(2);
        cluster.wait_status(0, "loss of the quorum", |status| status["phase"] == "waiting");
        // Nobody is dead until someone says so, and a machine that may be on is not dead.
        fails(&recover(&cluster, &["--yes"]), 5, &["Q1061", "--fenced n2", "--fenced n3"]);
        let called_dead = ["--confirm-dead", "n2", "--confirm-dead", "n3", "--yes"];
        fails(&recover(&cluster, &called_dead), 5, &["Q1421", "--fenced n2", "--fenced n3"]);
        fails(&recover(&cluster, &["--fenced", "n2", "--fenced", "n3", "--fenced", "n1", "--yes"]), 5, &["Q1062"]);
        fails(&recover(&cluster, &["--fenced", "n2", "--fenced", "n3"]), 64, &["Q1065"]);
        assert!(replaced(&cluster, 0).is_empty());
        let seen = run_block(&cluster, &commands[0]);
        assert!(seen.contains("no quorum") && seen.contains("silent"), "{seen}");
        let said = run_block(&cluster, &commands[1]);
        assert!(said.contains("recovered: generation 1, begun by `n1`"), "{said}");
        cluster.wait_phase(0, "serving");
        holds(&cluster, 0, 20);
        assert_ne!(cluster.ids(0).0, old);
        assert_eq!(replaced(&cluster, 0).len(), 1, "the data is kept");
        let audit = std::fs::read_to_string(cluster.state(0).join("audit.log")).unwrap();
        assert!(audit.contains("--fenced n2") && audit.contains("--fenced n3"), "{audit}");
        let revision: Value = serde_json::from_str(&cluster.ctl(0, &["get", "k0", "--write-out=json"])).unwrap();
        assert!(revision["header"]["revision"].as_u64().unwrap() > 1_000_000_000, "{revision}");
        // Run again, it finds nothing to do.
        fails(&recover(&cluster, &["--fenced", "n2", "--fenced", "n3", "--yes"]), 5, &["Q1060"]);
        // The dead return, and are a quorum of the old cluster.
        cluster.start(1);
        cluster.start(2);
        for at in [1, 2] {
            let status = cluster.wait_phase(at, "refused");
            assert_eq!(status["code"], "Q0943", "{status}");
            assert!(status["etcd"].is_null(), "{status}");
            assert!(cluster.log(at).contains("data reset --yes"), "{}", cluster.log(at));
        }
        // Back they come as new members, one after the other.
        run_block(&cluster, &commands[2]);
        cluster.members[1].agent = None;
        run_block(&cluster, &commands[2].replace("n2", "n3"));
        cluster.members[2].agent = None;
        cluster.start(1);
        cluster.wait_phase(1, "serving");
        cluster.start(2);
        cluster.wait_serving();
        cluster.put(2, "after", version);
        cluster.assert_all_hold("after", version);
        cluster.assert_one_cluster();
        holds(&cluster, 1, 20);
        assert_eq!(replaced(&cluster, 1).len(), 1);
        run_block(&cluster, &commands[3]);
    }
}

/// Only the agents of n2 and n3 are dead, and n1's etcd hangs: the other two are a quorum that takes writes.
#[test]
fn refuses_while_the_etcd_of_a_silent_node_answers() {
    let mut cluster = serving("3.5.30", Wire::Tls, "box: {level: off}\n");
    let old = cluster.assert_one_cluster();
    cluster.kill_agent(1);
    cluster.kill_agent(2);
    let etcd = cluster.status(0)["etcd"]["pid"].as_i64().unwrap().to_string();
    quorate_testkit::run(Command::new("kill").args(["-STOP", &etcd]));
    cluster.wait_status(0, "loss of the quorum", |status| status["phase"] == "waiting");
    wait_until("the others take writes", LIMIT, || cluster.try_ctl(1, &["put", "later", "v"]).is_ok());
    for flag in ["--confirm-dead", "--fenced"] {
        let output = recover(&cluster, &[flag, "n2", flag, "n3", "--yes"]);
        fails(&output, 5, &["Q1420", "etcd is not", "`n1`"]);
    }
    assert!(!cluster.state(0).join("recovery.json").exists(), "no order was taken");
    quorate_testkit::run(Command::new("kill").args(["-CONT", &etcd]));
    cluster.start(1);
    cluster.start(2);
    cluster.wait_serving();
    assert_eq!(cluster.assert_one_cluster(), old);
    cluster.assert_all_hold("later", "v");
}

#[test]
fn killed_at_every_step_it_goes_on() {
    // Right after the order, with what it is made from whole, and with everything in place.
    let states = ["ordered", "built", "done"];
    for (round, state) in states.into_iter().enumerate() {
        let version = VERSIONS[round % VERSIONS.len()];
        let mut cluster = serving(version, Wire::Clear, "");
        cluster.power_off(1);
        cluster.power_off(2);
        cluster.wait_status(0, "loss of the quorum", |status| status["phase"] == "waiting");
        let file = cluster.path("cluster.yaml").display().to_string();
        let journal = cluster.state(0).join("recovery.json");
        let mut command = Command::new(quorate())
            .args(["cluster", "recover", "--config", &file, "--fenced", "n2", "--fenced", "n3", "--yes"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Each may be gone a few milliseconds later; then it is killed in what follows.
        let reached = |text: String| states[round..].iter().any(|state| text.contains(state));
        let began = std::time::Instant::now();
        while !std::fs::read_to_string(&journal).is_ok_and(reached) {
            assert!(began.elapsed() < LIMIT, "never {state}: {}", cluster.log(0));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // The machine is off, and the operator's terminal is gone.
        cluster.power_off(0);
        command.kill().unwrap();
        command.wait().unwrap();
        cluster.start(0);
        let said = succeeds(&recover_again(&cluster));
        assert!(said.contains("generation 1"), "{state}: {said}");
        cluster.wait_phase(0, "serving");
        holds(&cluster, 0, 20);
        assert_eq!(replaced(&cluster, 0).len(), 1, "{state}");
        assert_eq!(leftovers(&cluster), Vec::<PathBuf>::new(), "{state}");
    }
}

/// What the same command comes to, once the agent answers.
fn recover_again(cluster: &Declared) -> Output {
    let mut last = None;
    wait_until("the recovery", LIMIT, || {
        let output = recover(cluster, &["--fenced", "n2", "--fenced", "n3", "--yes"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        // It serves already, or the agent is not up yet.
        let done = output.status.success() || text.contains("Q1060");
        last = Some(match text.contains("Q1060") {
            true => Command::new("echo").arg("generation 1").output().unwrap(),
            false => output,
        });
        done
    });
    last.unwrap()
}

fn leftovers(cluster: &Declared) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cluster.root.path()).unwrap().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.display().to_string().contains(".partial-")).collect()
}

#[test]
fn what_answers_and_cannot_be_used_joins_anew() {
    let mut cluster = serving("3.5.16", Wire::Clear, "");
    for at in [1, 2] {
        cluster.power_off(at);
    }
    cluster.wait_status(0, "loss of the quorum", |status| status["phase"] == "waiting");
    // n2 answers, and its database is gone.
    let spoilt = cluster.data(1).join("member/snap/db");
    std::fs::File::options().write(true).open(&spoilt).unwrap().set_len(100).unwrap();
    cluster.start(1);
    wait_until("n2 to answer", LIMIT, || {
        let shown = cluster.json(&["cluster", "recover", "--config", &path(&cluster), "--dry-run"]);
        shown["nodes"][1]["state"].as_str().is_some_and(|state| state.starts_with("damaged"))
    });
    // What cannot be looked at is not the same: it may be whole, and reach furthest.
    let (ledger, hidden) = (cluster.state(1).join("ledger"), cluster.path("ledger-of-n2"));
    mv(&ledger, &hidden);
    std::fs::create_dir(&ledger).unwrap();
    fails(&recover(&cluster, &["--fenced", "n3", "--yes"]), 5, &["Q1071", "its ledger", "--pass-over n2"]);
    fails(&recover(&cluster, &["--fenced", "n3", "--pass-over", "n1", "--yes"]), 5, &["Q1071"]);
    let shown = recover(&cluster, &["--fenced", "n3", "--pass-over", "n2", "--dry-run"]);
    assert!(succeeds(&shown).contains("may be lost: what only `n2` holds: it could not be looked at"), "{shown:?}");
    std::fs::remove_dir(&ledger).unwrap();
    mv(&hidden, &ledger);
    let said = succeeds(&recover(&cluster, &["--fenced", "n3", "--yes"]));
    assert!(said.contains("begun by `n1`") && said.contains("joined: n2"), "{said}");
    assert!(said.contains("may be lost: what only `n2` holds: its data is damaged"), "{said}");
    cluster.wait_phase(1, "serving");
    holds(&cluster, 1, 20);
    assert_eq!(replaced(&cluster, 1).len(), 1);
    // The etcd that applied the log on the copy was in a box, as etcd always is.
    let note = std::fs::read_to_string(cluster.state(0).join("recovery/running")).unwrap();
    assert!(note.contains("\"held\":"), "{note}");
}

fn path(cluster: &Declared) -> String {
    cluster.path("cluster.yaml").display().to_string()
}

#[test]
fn with_no_data_left_the_backup_is_taken_and_a_silent_store_is_not_passed_over() {
    let places = tempfile::tempdir().unwrap();
    let (store, hidden) = (places.path().join("store"), places.path().join("hidden"));
    std::fs::create_dir(&store).unwrap();
    let more = format!("backup: {{store: \"file://{}\", delta-period: 200ms}}\n", store.display());
    let mut cluster = serving("3.5.16", Wire::Clear, &more);
    cluster.wait_backed_up();
    for at in 0..3 {
        cluster.power_off(at);
    }
    mv(&cluster.data(0), &cluster.path("a-lost-disk"));
    cluster.start(0);
    wait_until("n1 to answer", LIMIT, || {
        let shown = cluster.json(&["cluster", "recover", "--config", &path(&cluster), "--dry-run"]);
        shown["nodes"][0]["state"] == "no data"
    });
    mv(&store, &hidden);
    let dead = ["--fenced", "n2", "--fenced", "n3", "--yes"];
    let silent = recover(&cluster, &dead);
    assert!(!silent.status.success(), "{}", String::from_utf8_lossy(&silent.stdout));
    mv(&hidden, &store);
    // Once it is restored beside the place of the data, the store is needed no more, whoever is killed meanwhile.
    let journal = cluster.state(0).join("recovery.json");
    let mut command = Command::new(quorate())
        .args(["cluster", "recover", "--config", &path(&cluster)])
        .args(dead)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let began = std::time::Instant::now();
    while !std::fs::read_to_string(&journal).is_ok_and(|text| text.contains("built") || text.contains("done")) {
        assert!(began.elapsed() < LIMIT, "never built: {}", cluster.log(0));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    cluster.power_off(0);
    command.kill().unwrap();
    command.wait().unwrap();
    mv(&store, &hidden);
    cluster.start(0);
    let said = succeeds(&recover_again(&cluster));
    assert!(said.contains("generation 1"), "{said}");
    cluster.wait_phase(0, "serving");
    holds(&cluster, 0, 20);
    assert_eq!(leftovers(&cluster), Vec::<PathBuf>::new());
}

/// The bytes of the segment that is being written in the spool of a member.
fn spooled(cluster: &Declared, at: usize) -> u64 {
    let entries = std::fs::read_dir(cluster.state(at).join("spool")).map(|entries| entries.flatten().collect());
    let entries: Vec<std::fs::DirEntry> = entries.unwrap_or_default();
    let open = entries.iter().filter(|entry| entry.file_name().to_string_lossy().ends_with(".open"));
    open.map(|entry| entry.metadata().map_or(0, |meta| meta.len())).sum()
}

#[test]
fn a_recovery_from_the_backup_has_what_waited_in_the_spool_of_a_survivor() {
    let store = tempfile::tempdir().unwrap();
    // No delta is uploaded before the quorum is lost.
    let more = format!("backup: {{store: \"file://{}\", delta-period: 1h}}\n", store.path().display());
    let mut cluster = serving("3.5.30", Wire::Clear, &more);
    let mut writer = None;
    wait_until("the first full", LIMIT, || {
        writer = (0..3).find(|at| cluster.status(*at)["backup"]["stored_revision"].as_u64() > Some(0));
        writer.is_some()
    });
    let writer = writer.unwrap();
    for at in 20..26 {
        let before = spooled(&cluster, writer);
        cluster.put(0, &format!("k{at}"), &format!("v{at}"));
        wait_until("the spool", LIMIT, || spooled(&cluster, writer) > before);
    }
    for at in 0..3 {
        cluster.power_off(at);
    }
    mv(&cluster.data(writer), &cluster.path("a-lost-disk"));
    cluster.start(writer);
    let dead: Vec<String> = (0..3).filter(|at| *at != writer).map(|at| format!("n{}", at + 1)).collect();
    let flags = ["--fenced", &dead[0], "--fenced", &dead[1], "--yes"];
    let mut shown = Value::Null;
    wait_until("the agent to answer", LIMIT, || {
        shown = cluster.json(&["cluster", "recover", "--config", &path(&cluster), "--dry-run"]);
        shown["nodes"][writer]["state"] == "no data"
    });
    assert!(
        shown["backup"].as_str().is_some_and(|line| line.contains("token `") && line.contains("cluster ")),
        "{shown:#}"
    );
    // The spool is uploaded, and then the node cannot write the order down.
    let journal = cluster.state(writer).join("recovery.json");
    std::fs::create_dir(&journal).unwrap();
    let failed = recover(&cluster, &flags);
    let said = String::from_utf8_lossy(&failed.stdout).into_owned() + &String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && said.contains("which wait in its spool"), "{said}");
    assert_eq!(spooled(&cluster, writer), 0, "it was uploaded");
    std::fs::remove_dir(&journal).unwrap();
    // The store grew by that alone, which is no sign of another quorum: the same command is repeated at once.
    let said = succeeds(&recover(&cluster, &flags));
    assert!(!said.contains("which wait in its spool") && said.contains("recovered: generation"), "{said}");
    cluster.wait_phase(writer, "serving");
    holds(&cluster, writer, 26);
}

/// The operator names a node that was off for a while. What only the backup has is lost, and no client sees a revision twice.
#[test]
fn a_recovery_from_a_named_node_goes_on_above_what_the_store_has_seen() {
    let store = tempfile::tempdir().unwrap();
    let more = format!("backup: {{store: \"file://{}\", delta-period: 200ms}}\n", store.path().display());
    let mut cluster = serving("3.5.30", Wire::Clear, &more);
    cluster.power_off(0);
    for at in 0..60 {
        wait_until("a write", LIMIT, || cluster.try_ctl(1, &["put", "later", &format!("v{at}")]).is_ok());
    }
    let stored = cluster.revision(1);
    wait_until("the backup", LIMIT, || {
        (1..3).any(|at| cluster.status(at)["backup"]["stored_revision"].as_u64() >= Some(stored))
    });
    cluster.power_off(1);
    cluster.power_off(2);
    cluster.start(0);
    let config = path(&cluster);
    let words =
        ["cluster", "recover", "--config", &config, "--from", "n1", "--fenced", "n2", "--fenced", "n3", "--dry-run"];
    let mut shown = Value::Null;
    wait_until("n1 to answer", LIMIT, || {
        shown = cluster.json(&words);
        shown["nodes"][0]["state"] == "no quorum"
    });
    let lost = shown["loses"].as_array().unwrap();
    assert!(lost.iter().any(|line| line.as_str().unwrap().contains("what was not chosen: the backup")), "{shown:#}");
    assert!(shown["backup"].as_str().unwrap().contains("reaches revision"), "{shown:#}");
    let flags = ["--from", "n1", "--fenced", "n2", "--fenced", "n3", "--yes"];
    succeeds(&recover(&cluster, &flags));
    cluster.wait_phase(0, "serving");
    holds(&cluster, 0, 20);
    let ledger = Ledger::decode(&std::fs::read(cluster.state(0).join("ledger")).unwrap()).unwrap();
    let began = ledger.recovered.unwrap().revision;
    assert!(began >= stored + 1_000_000_000, "it begins at {began}, and the store has {stored}");
}

#[test]
fn an_etcd_that_answers_nothing_is_not_taken_for_less_than_an_older_backup() {
    for version in ["3.4.23", "3.5.30"] {
        let places = tempfile::tempdir().unwrap();
        let (store, older) = (places.path().join("store"), places.path().join("older"));
        std::fs::create_dir(&store).unwrap();
        let more = format!("backup: {{store: \"file://{}\", delta-period: 200ms}}\n", store.display());
        let mut cluster = serving(version, Wire::Clear, &more);
        cluster.wait_backed_up();
        quorate_testkit::run(Command::new("cp").arg("-r").arg(&store).arg(&older));
        for at in 20..26 {
            cluster.put(0, &format!("k{at}"), &format!("v{at}"));
        }
        for at in 0..3 {
            cluster.power_off(at);
        }
        mv(&store, &places.path().join("newer"));
        mv(&older, &store);
        // Alone since its start, its etcd answers no question at all.
        cluster.start(0);
        let mut shown = Value::Null;
        wait_until("n1's etcd to run", LIMIT, || {
            shown = cluster.json(&["cluster", "recover", "--config", &path(&cluster), "--dry-run"]);
            shown["nodes"][0]["state"] == "no quorum"
        });
        assert!(shown["nodes"][0]["revision"].as_u64() > Some(1), "{version}: read from its files: {shown:#}");
        assert!(shown["source"].as_str().is_some_and(|source| source.contains("what `n1` holds")), "{shown:#}");
        let said = succeeds(&recover(&cluster, &["--fenced", "n2", "--fenced", "n3", "--yes"]));
        assert!(said.contains("recovered: generation 1, begun by `n1`"), "{said}");
        cluster.wait_phase(0, "serving");
        holds(&cluster, 0, 26);
    }
}

fn mv(from: &Path, to: &Path) {
    quorate_testkit::run(Command::new("mv").arg(from).arg(to));
}

#[test]
fn a_recovery_goes_on_after_a_partition_in_the_midst_of_it() {
    let mut net = Net::new("3.5.30", 3);
    net.found(&[0, 1, 2]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    net.power_off(1);
    net.power_off(2);
    mv(&net.data(1), &net.path("a-lost-disk"));
    net.start(1);
    net.wait(0, "loss of the quorum", |status| status["phase"] == "waiting");
    let file = net.shown("n1.yaml");
    let words = ["cluster", "recover", "--config", &file, "--name", "n1", "--fenced", "n3", "--yes"];
    wait_until("n2 to answer", LIMIT, || {
        let text = net.quorate(0, &[&words[..], &["--dry-run"]].concat());
        String::from_utf8_lossy(&text.stdout).contains("no data")
    });
    let mut command = net.hosts[0].command(quorate());
    command.args(words).args(["--wait", "3s"]).stdin(std::process::Stdio::null());
    let command = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_until("the order", LIMIT, || net.state(0).join("recovery.json").exists());
    // Who is to join is cut off while the cluster is begun anew, which goes on without it.
    net.hosts.partition(1, &[0]);
    fails(&command.wait_with_output().unwrap(), 3, &["Q1069"]);
    net.wait(0, "serving", |status| status["phase"] == "serving");
    net.try_ctl(0, &["put", "k2", "v"]).unwrap();
    net.hosts.heal();
    let said = net.done(0, &[&words[..], &["--wait", "90s"]].concat());
    assert!(said.contains("joined: n2"), "{said}");
    net.wait(1, "serving", |status| status["phase"] == "serving");
    assert!(net.try_ctl(1, &["get", "k2"]).unwrap().contains('v'));
}

#[test]
fn an_old_quorum_that_ran_on_behind_a_partition_stops_when_it_hears_of_the_recovery() {
    let mut net = Net::new("3.5.16", 3);
    net.found(&[0, 1, 2]);
    net.try_ctl(2, &["put", "k", "v"]).unwrap();
    net.hosts.partition(2, &[0, 1]);
    net.wait(2, "loss of the quorum", |status| status["phase"] == "waiting");
    // The two are a quorum, and take writes that the third will never hear of.
    wait_until("the two take writes", LIMIT, || net.try_ctl(0, &["put", "behind", "v"]).is_ok());
    let file = net.shown("n3.yaml");
    let words = ["cluster", "recover", "--config", &file, "--name", "n3", "--yes", "--wait", "90s"];
    let said = net.done(2, &[&words[..], &["--fenced", "n1", "--fenced", "n2"]].concat());
    assert!(said.contains("recovered: generation 1, begun by `n3`"), "{said}");
    net.wait(2, "serving", |status| status["phase"] == "serving");
    assert!(net.try_ctl(2, &["get", "k"]).unwrap().contains('v'));
    assert_eq!(net.try_ctl(2, &["get", "behind"]).unwrap(), "");
    net.try_ctl(0, &["get", "behind"]).unwrap();
    net.hosts.heal();
    for at in [0, 1] {
        let status = net.wait(at, "refusal", |status| status["phase"] == "refused" && status["etcd"].is_null());
        assert_eq!(status["code"], "Q0943", "{status:#}");
        // All of theirs is where it was.
        assert!(net.data(at).join("member/snap/db").exists());
    }
    let names = std::fs::read_dir(net.root.path()).unwrap().flatten().map(|entry| entry.file_name());
    let renamed: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    let of = |at: usize| renamed.iter().filter(|name| name.starts_with(&format!("data-{at}."))).count();
    assert_eq!((of(1), of(2), of(3)), (0, 0, 1), "{renamed:?}");
    net.assert_voters(&[2]);
    net.try_ctl(2, &["put", "k", "w"]).unwrap();
    // Nobody of the new cluster is left to tell: they have written it down, and do not become the old one again.
    net.power_off(2);
    for at in [0, 1] {
        net.kill_agent(at);
        net.start(at);
    }
    for at in [0, 1] {
        let status = net.wait(at, "refusal", |status| status["phase"] == "refused");
        assert!(status["code"] == "Q0943" && status["etcd"].is_null(), "{status:#}");
    }
    // A person may go on with what they hold, and hears what is given up by it.
    let file = net.shown("n1.yaml");
    let words = ["cluster", "recover", "--config", &file, "--name", "n1", "--yes", "--wait", "90s", "--fenced", "n3"];
    let said = net.done(0, &words);
    assert!(said.contains("recovered: generation 2"), "{said}");
    assert!(said.contains("what was written to generation 1, whose data nobody here holds"), "{said}");
    net.assert_voters(&[0, 1]);
    assert!(net.try_ctl(0, &["get", "behind"]).unwrap().contains('v'));
    net.start(2);
    let status = net.wait(2, "refusal", |status| status["phase"] == "refused");
    assert!(status["code"] == "Q0943" && status["etcd"].is_null(), "{status:#}");
}

#[test]
fn who_joins_while_no_agent_can_tell_the_generation_keeps_its_vote() {
    let mut cluster = serving("3.5.30", Wire::Tls, "box: {level: off}\n");
    cluster.power_off(1);
    cluster.power_off(2);
    cluster.wait_status(0, "loss of the quorum", |status| status["phase"] == "waiting");
    succeeds(&recover(&cluster, &["--fenced", "n2", "--fenced", "n3", "--yes"]));
    cluster.wait_phase(0, "serving");
    let file = path(&cluster);
    succeeds(&cluster.quorate(&["data", "reset", "--config", &file, "--name", "n2", "--yes"]));
    // The cluster serves, and the only agent of it is away.
    cluster.kill_agent(0);
    cluster.start(1);
    let joined = cluster.wait_phase(1, "serving");
    cluster.start(0);
    let ledger = cluster.state(1).join("ledger");
    wait_until("its generation", LIMIT, || {
        std::fs::read_to_string(&ledger).is_ok_and(|text| text.contains("\"generation\": 1"))
    });
    cluster.wait_phase(0, "serving");
    let now = cluster.wait_phase(1, "serving");
    assert_eq!(now["etcd"]["pid"], joined["etcd"]["pid"], "it was not stopped");
    cluster.put(1, "after", "both");
    holds(&cluster, 1, 20);
}

/// The other two are a quorum that no URL reaches from the survivor. All three can reach the store.
#[test]
fn refuses_while_members_that_no_url_reaches_write_to_the_store() {
    let mut net = Net::new("3.5.30", 3);
    let store = net.path("store");
    std::fs::create_dir(&store).unwrap();
    net.more = format!("backup: {{store: \"file://{}\", delta-period: 200ms}}\n", store.display());
    net.found(&[0, 1, 2]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    net.hosts.partition(0, &[1, 2]);
    net.wait(0, "loss of the quorum", |status| status["phase"] == "waiting");
    let file = net.shown("n1.yaml");
    let words = ["cluster", "recover", "--config", &file, "--name", "n1", "--yes"];
    let said = |flag: &'static str| [&words[..], &[flag, "n2", flag, "n3"]].concat();
    // From here on the survivor watches the store.
    fails(&net.quorate(0, &said("--confirm-dead")), 5, &["Q1421", "--fenced n2", "no URL answers"]);
    wait_until("the two take writes", LIMIT, || net.try_ctl(1, &["put", "behind", "v"]).is_ok());
    let shown: Value = serde_json::from_str(&net.try_ctl(1, &["get", "behind", "--write-out=json"]).unwrap()).unwrap();
    let written = shown["header"]["revision"].as_u64();
    wait_until("the backup", LIMIT, || {
        [1, 2].into_iter().any(|at| net.status(at)["backup"]["stored_revision"].as_u64() >= written)
    });
    fails(&net.quorate(0, &said("--fenced")), 5, &["Q1422", "find the members that still serve"]);
    assert!(!net.state(0).join("recovery.json").exists(), "no order was taken");
    net.hosts.heal();
    net.wait(0, "serving", |status| status["phase"] == "serving");
    assert!(net.try_ctl(0, &["get", "behind"]).unwrap().contains('v'));
}

/// Waits until a member runs without a quorum.
fn wait_alone(net: &Net, at: usize) {
    let (file, name) = (net.shown(&format!("n{}.yaml", at + 1)), format!("n{}", at + 1));
    wait_until("a member without a quorum", LIMIT, || {
        let shown = net.quorate(at, &["cluster", "recover", "--config", &file, "--name", &name, "--dry-run"]);
        String::from_utf8_lossy(&shown.stdout).contains("no quorum")
    });
}

/// What a node has exported of generation 1.
fn exported(net: &Net, at: usize) -> String {
    let name = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut exported = String::new();
    wait_until("the export", LIMIT, || {
        let mut entries = std::fs::read_dir(net.state(at)).unwrap().flatten();
        let found =
            entries.find(|entry| name(entry).starts_with("writes-of-generation-1-") && name(entry).ends_with(".jsonl"));
        exported = found.and_then(|entry| std::fs::read_to_string(entry.path()).ok()).unwrap_or_default();
        !exported.is_empty()
    });
    exported
}

/// Two operators recover what they see, and neither can see what the other one makes. A node joins the cluster that loses.
#[test]
fn of_two_isolated_recoveries_one_stops_and_exports_its_writes() {
    let mut net = Net::new("3.5.30", 3);
    let store = net.path("store");
    std::fs::create_dir(&store).unwrap();
    net.more = format!("backup: {{store: \"file://{}\", delta-period: 200ms}}\n", store.display());
    net.found(&[0, 1, 2]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    net.power_off(1);
    net.power_off(2);
    net.wait(0, "loss of the quorum", |status| status["phase"] == "waiting");
    let files = [net.shown("n1.yaml"), net.shown("n2.yaml"), net.shown("n3.yaml")];
    let recover = |net: &Net, at: usize, more: &[&str]| {
        let (me, other) = (["n1", "n2"][at], ["n2", "n1"][at]);
        let words = ["cluster", "recover", "--config", &files[at], "--name", me, "--yes", "--wait", "90s"];
        net.quorate(at, &[&words[..], &["--fenced", other, "--fenced", "n3"], more].concat())
    };
    assert!(succeeds(&recover(&net, 0, &[])).contains("recovered: generation 1, begun by `n1`"));
    net.wait(0, "serving", |status| status["phase"] == "serving");
    net.power_off(0);
    net.start(1);
    wait_alone(&net, 1);
    // The store knows of it; beside the store nobody does.
    fails(&recover(&net, 1, &[]), 5, &["Q1423", "`n1` claimed generation 1"]);
    assert!(succeeds(&recover(&net, 1, &["--without-store"])).contains("recovered: generation 1, begun by `n2`"));
    net.wait(1, "serving", |status| status["phase"] == "serving");
    // A claimed generation wins, although clients wrote to the other one alone.
    net.try_ctl(1, &["put", "second", "2"]).unwrap();
    net.done(2, &["data", "reset", "--config", &files[2], "--name", "n3", "--yes"]);
    net.start(2);
    net.wait(2, "serving", |status| status["phase"] == "serving");
    let ledger = net.state(2).join("ledger");
    wait_until("where the history begins", LIMIT, || {
        std::fs::read_to_string(&ledger).is_ok_and(|text| text.contains("\"recovered\""))
    });
    // The node that began it is lost before the other cluster is back.
    net.power_off(1);
    net.start(0);
    let lost = net.wait(2, "refusal", |status| status["phase"] == "refused" && status["etcd"].is_null());
    assert_eq!(lost["code"], "Q1424", "{lost:#}");
    net.start(1);
    let lost = net.wait(1, "refusal", |status| status["phase"] == "refused" && status["etcd"].is_null());
    assert_eq!(lost["code"], "Q1424", "{lost:#}");
    assert!(net.data(1).join("member/snap/db").exists(), "its data is kept");
    net.try_ctl(0, &["put", "third", "3"]).unwrap();
    for at in [1, 2] {
        let exported = exported(&net, at);
        // `second` and `2` in hexadecimal, and nothing from before the recovery.
        assert!(
            exported.contains("7365636f6e64") && exported.contains("\"32\"") && !exported.contains("\"6b\""),
            "n{}: {exported}",
            at + 1
        );
    }
    // It is written down: with nobody left to tell, it does not become the old one again.
    net.power_off(0);
    net.kill_agent(1);
    net.start(1);
    let status = net.wait(1, "refusal", |status| status["phase"] == "refused");
    assert!(status["code"] == "Q1424" && status["etcd"].is_null(), "{status:#}");
    net.start(0);
    net.wait(0, "serving", |status| status["phase"] == "serving");
    let resolve = ["cluster", "resolve", "--config", &files[0], "--name", "n1"];
    fails(
        &net.quorate(0, &resolve),
        5,
        &["Q1424", "`n2`, generation 1", "`n3`, generation 1", "writes-of-generation-1-"],
    );
    let status = |net: &Net| {
        let output = net.quorate(0, &["cluster", "status", "--config", &files[0], "--name", "n1"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text.lines().next().unwrap_or_default().to_owned(), text)
    };
    let (code, first, text) = status(&net);
    assert_eq!(code, Some(5), "{text}");
    assert!(first.contains("n2: two recoveries made generation 1"), "{text}");
    net.done(0, &[&resolve[..], &["--yes"]].concat());
    for at in [1, 2] {
        net.wait(at, "serving", |status| status["phase"] == "serving");
    }
    wait_until("a healthy cluster", LIMIT, || {
        let (code, first, _) = status(&net);
        code == Some(0) && first.ends_with(": healthy")
    });
    net.assert_voters(&[0, 1, 2]);
    assert!(net.try_ctl(1, &["get", "third"]).unwrap().contains('3'));
}

/// Two members, each of which was recovered while the other one was off. The second one serves, and nobody claimed anything.
fn two_recoveries() -> (Net, [String; 2]) {
    let mut net = Net::new("3.5.30", 2);
    net.found(&[0, 1]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    net.power_off(1);
    let files = [net.shown("n1.yaml"), net.shown("n2.yaml")];
    for at in [0, 1] {
        if at == 1 {
            net.power_off(0);
            net.start(1);
        }
        wait_alone(&net, at);
        let (me, other) = (["n1", "n2"][at], ["n2", "n1"][at]);
        let words = ["cluster", "recover", "--config", &files[at], "--name", me, "--yes", "--wait", "90s"];
        net.done(at, &[&words[..], &["--fenced", other]].concat());
        net.wait(at, "serving", |status| status["phase"] == "serving");
    }
    (net, files)
}

/// The cluster of a node, by its ledger.
fn recovered_as(net: &Net, at: usize) -> ClusterId {
    let ledger = Ledger::decode(&std::fs::read(net.state(at).join("ledger")).unwrap()).unwrap();
    ledger.cluster().unwrap()
}

/// Nobody claimed a generation in a store, and clients wrote to both clusters.
#[test]
fn of_two_isolated_recoveries_that_clients_wrote_to_the_lower_cluster_id_wins() {
    let (mut net, _) = two_recoveries();
    let (winner, loser) = if recovered_as(&net, 0) < recovered_as(&net, 1) { (0, 1) } else { (1, 0) };
    net.try_ctl(1, &["put", "second", "2"]).unwrap();
    // Neither reaches the other one yet.
    net.hosts.partition(0, &[1]);
    net.start(0);
    net.wait(0, "serving", |status| status["phase"] == "serving");
    net.try_ctl(0, &["put", "first", "1"]).unwrap();
    net.hosts.heal();
    let lost = net.wait(loser, "refusal", |status| status["phase"] == "refused" && status["etcd"].is_null());
    assert_eq!(lost["code"], "Q1424", "{lost:#}");
    assert_eq!(net.status(winner)["phase"], "serving");
    let written = ["first", "second"];
    assert!(net.try_ctl(winner, &["get", written[winner]]).unwrap().contains(written[winner]));
    // `first` or `second` in hexadecimal: what only the other one has is exported.
    assert!(exported(&net, loser).contains(["6669727374", "7365636f6e64"][loser]));
}

/// Nobody claimed a generation in a store. Clients found one of the two clusters only, whose id is the higher one.
#[test]
fn of_two_isolated_recoveries_the_one_that_clients_wrote_to_wins() {
    let (mut net, files) = two_recoveries();
    let (winner, loser) = if recovered_as(&net, 0) > recovered_as(&net, 1) { (0, 1) } else { (1, 0) };
    if winner == 0 {
        net.power_off(1);
        net.start(0);
        net.wait(0, "serving", |status| status["phase"] == "serving");
    }
    net.try_ctl(winner, &["put", "used", "1"]).unwrap();
    net.start(loser);
    let lost = net.wait(loser, "refusal", |status| status["phase"] == "refused" && status["etcd"].is_null());
    assert_eq!(lost["code"], "Q1424", "{lost:#}");
    assert!(net.try_ctl(winner, &["get", "used"]).unwrap().contains('1'));
    // A client that comes late does not turn it round, and neither does a restart.
    net.try_ctl(winner, &["put", "used", "2"]).unwrap();
    net.kill_agent(winner);
    net.start(winner);
    net.wait(winner, "serving", |status| status["phase"] == "serving");
    net.done(winner, &["cluster", "resolve", "--config", &files[winner], "--name", ["n1", "n2"][winner], "--yes"]);
    net.wait(loser, "serving", |status| status["phase"] == "serving");
    net.assert_voters(&[0, 1]);
    assert!(net.try_ctl(loser, &["get", "used"]).unwrap().contains('2'));
}
