//! `quorate demo` as a person runs it, with real etcd.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use quorate_testkit::{copy_program, etcd, kill_hard, wait_until};
use serde_json::Value;
use tempfile::TempDir;

/// Twelve ports in a row that no other test uses while this lives. Below those that single-port tests take.
struct Ports {
    base: u16,
    _lock: File,
}

fn twelve_ports() -> Ports {
    let dir = std::env::temp_dir().join("quorate-test-twelve-ports");
    std::fs::create_dir_all(&dir).unwrap();
    for base in (11_000..17_000).step_by(12) {
        let lock = File::options().create(true).append(true).open(dir.join(base.to_string())).unwrap();
        let free = || (base..base + 12).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
        if lock.try_lock().is_ok() && free() {
            return Ports { base, _lock: lock };
        }
    }
    panic!("no twelve free ports in a row");
}

/// A demo in a directory of its own; whatever it started is stopped with it.
struct Demo {
    dir: TempDir,
    ports: Ports,
    etcd: PathBuf,
}

impl Demo {
    fn new(version: &str) -> Demo {
        Demo { dir: TempDir::new().unwrap(), ports: twelve_ports(), etcd: etcd(version).etcd }
    }

    fn run(&self, words: &str) -> Output {
        self.quorate(&format!("demo {words}"))
    }

    fn quorate(&self, words: &str) -> Output {
        let bin = self.etcd.parent().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(words.split_whitespace()).current_dir(self.dir.path());
        command.env("PATH", bin).env("ETCD_NAME", "an environment that must not matter");
        command.output().unwrap()
    }

    /// Starts it, with the ports of this test.
    fn start(&self) -> Value {
        self.json(&format!("--base-port {}", self.ports.base))
    }

    fn json(&self, words: &str) -> Value {
        let output = self.run(&format!("{words} --output json"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str(&text).unwrap()
    }

    /// The document, however it ends.
    fn json_or_not(&self, words: &str) -> String {
        String::from_utf8(self.run(&format!("{words} --output json")).stdout).unwrap()
    }

    fn fails(&self, words: &str, exit: i32) -> String {
        let output = self.run(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(exit), "{text}");
        text
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.run("stop");
    }
}

/// The processes of etcd.
fn pids(report: &Value) -> Vec<u32> {
    numbers(report, "pid")
}

/// The processes of the agents.
fn agents(report: &Value) -> Vec<u32> {
    numbers(report, "agent_pid")
}

fn numbers(report: &Value, key: &str) -> Vec<u32> {
    let members = report["members"].as_array().unwrap();
    members.iter().filter_map(|member| member[key].as_u64()).map(|pid| u32::try_from(pid).unwrap()).collect()
}

fn runs(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

fn listed(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn it_comes_up_says_so_again_and_resumes_after_a_stop() {
    let demo = Demo::new("sid");
    let first = demo.start();
    assert_eq!((first["state"].as_str(), first["healthy"].as_u64()), (Some("founded"), Some(3)));
    assert_eq!(first["writes"].as_array().unwrap().len(), 3);
    assert_eq!((pids(&first).len(), agents(&first).len()), (3, 3));
    let leaders = first["members"].as_array().unwrap().iter().filter(|member| member["is_leader"] == true).count();
    assert_eq!(leaders, 1);

    let again = demo.run("");
    let text = String::from_utf8(again.stdout).unwrap();
    assert!(text.starts_with("The demo is already up. 3/3 members healthy\n"), "{text}");
    assert!(text.contains("quorate demo stop"), "{text}");
    let status = demo.json("status");
    assert_eq!((pids(&status), agents(&status)), (pids(&first), agents(&first)));

    let stopped = demo.json("stop");
    assert_eq!(stopped["stopped"], serde_json::json!(["n1", "n2", "n3"]));
    assert!(!pids(&first).into_iter().chain(agents(&first)).any(runs));
    assert_eq!(demo.run("status").status.code(), Some(1));
    assert_eq!(demo.json("stop")["stopped"], serde_json::json!([]), "stopping twice is stopping once");

    let resumed = demo.json("start");
    assert_eq!(
        (resumed["state"].as_str(), resumed["cluster_id"].as_str()),
        (Some("resumed"), first["cluster_id"].as_str())
    );
    let index = |report: &Value| report["members"][0]["raft_index"].as_u64();
    assert!(index(&resumed) > index(&first), "it goes on where it stopped");
}

#[test]
fn what_is_killed_hard_comes_back_on_its_data() {
    let demo = Demo::new("3.5.16");
    let first = demo.start();
    // An agent brings its etcd back by itself.
    kill_hard(pids(&first)[0]);
    let back = demo.json("start");
    assert_eq!((back["state"].as_str(), back["healthy"].as_u64()), (Some("already_up"), Some(3)));
    assert_eq!(agents(&back), agents(&first));
    assert_ne!(pids(&back)[0], pids(&first)[0]);
    // Without an agent, the next one takes the running etcd over.
    kill_hard(agents(&back)[1]);
    wait_until("word that no agent keeps it", std::time::Duration::from_secs(60), || {
        demo.json_or_not("status").contains("no agent keeps it")
    });
    let taken = demo.json("start");
    assert_eq!((taken["state"].as_str(), taken["healthy"].as_u64()), (Some("repaired"), Some(3)));
    assert_eq!(pids(&taken), pids(&back));
    // Both at once: as after a power cut.
    kill_hard(agents(&taken)[2]);
    kill_hard(pids(&taken)[2]);
    let repaired = demo.json("start");
    assert_eq!((repaired["state"].as_str(), repaired["healthy"].as_u64()), (Some("repaired"), Some(3)));
    assert_ne!(pids(&repaired)[2], pids(&taken)[2]);
    for at in 0..3 {
        assert_eq!(repaired["members"][at]["member_id"], first["members"][at]["member_id"]);
    }
}

#[test]
fn the_oldest_supported_etcd_runs_it_too() {
    let demo = Demo::new("3.4.23");
    let first = demo.start();
    assert_eq!(first["members"][0]["version"], "3.4.23");
}

#[test]
fn forgetting_sets_the_data_aside_and_the_next_start_founds_another_cluster() {
    let demo = Demo::new("sid");
    let first = demo.start();
    let forgotten = demo.json("stop --forget");
    let aside = demo.path(forgotten["data"].as_str().unwrap());
    assert!(aside.file_name().unwrap().to_str().unwrap().starts_with(".demo.replaced-20"));
    assert!(aside.join("n1/data/member/snap/db").exists());
    assert!(!demo.path(".demo").exists());
    assert!(demo.fails("status", 1).contains("[Q0504]"));
    assert!(demo.fails("stop", 1).contains("there is no demo cluster in `.demo` [Q0504]"));
    let second = demo.start();
    assert_ne!(second["cluster_id"], first["cluster_id"]);
}

#[test]
fn a_busy_port_is_named_and_nothing_is_made() {
    let demo = Demo::new("sid");
    let base = demo.ports.base;
    let taken = TcpListener::bind(("127.0.0.1", base + 5)).unwrap();
    let text = demo.fails(&format!("--base-port {base}"), 1);
    let expected = format!("error: port {}, which member `n2` needs, is taken [Q0502]", base + 5);
    assert!(text.starts_with(&expected) && text.contains("--base-port"), "{text}");
    assert_eq!(listed(demo.dir.path()), [""; 0]);
    drop(taken);

    demo.start();
    let text = demo.fails(&format!("--base-port {}", base + 1), 1);
    assert!(text.contains(&format!("lives on the ports from {base}, not from {}", base + 1)), "{text}");
    demo.run("stop");
    let _taken = TcpListener::bind(("127.0.0.1", base)).unwrap();
    let text = demo.fails("", 1);
    assert!(text.contains(&format!("port {base}, which member `n1` needs, is taken")), "{text}");
    assert!(text.contains("quorate demo stop --forget"), "{text}");
}

#[test]
fn without_etcd_it_says_how_to_get_it_and_makes_nothing() {
    let dir = TempDir::new().unwrap();
    // A copy far from this checkout, whose `.tools` would otherwise be found.
    let binary = dir.path().join("quorate");
    copy_program(Path::new(env!("CARGO_BIN_EXE_quorate")), &binary);
    let output = Command::new(&binary).arg("demo").current_dir(dir.path()).env("PATH", "/nowhere").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("[Q0501]") && text.contains("apt install etcd-server"), "{text}");
    assert_eq!(listed(dir.path()), ["quorate"]);
}

/// A program that says that it is this etcd, and cannot run.
fn broken_etcd(demo: &Demo, version: &str) -> String {
    let fake = demo.path("etcd");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'etcd Version: {version}' && exit\necho 'cannot do it' >&2\nexit 7\n"
    );
    std::io::Write::write_all(&mut File::create(&fake).unwrap(), script.as_bytes()).unwrap();
    std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    format!("--base-port {} --etcd {}", demo.ports.base, fake.display())
}

#[test]
fn an_etcd_that_does_not_start_is_reported_with_how_it_ended() {
    let demo = Demo::new("sid");
    let text = demo.fails(&format!("{} --wait 4s", broken_etcd(&demo, "3.5.30")), 3);
    assert!(text.contains("error: not healthy within 4s: ") && text.contains("[Q0503]"), "{text}");
    // Below root it would have run in a box, which takes programs and no scripts.
    let how = if rustix::process::geteuid().is_root() { "it is a script" } else { "exit code 7" };
    assert!(text.contains(how) && text.contains("agent.log`"), "{text}");
}

#[test]
fn an_etcd_that_nobody_knows_is_refused_and_another_one_can_be_given() {
    let demo = Demo::new("sid");
    let text = demo.fails(&broken_etcd(&demo, "9.9.9"), 3);
    assert!(text.contains("does not go on: refused: ") && text.contains("etcd 9.9.9"), "{text}");
    assert_eq!(demo.start()["healthy"], 3);
}

#[test]
fn killed_at_any_moment_it_can_be_run_again() {
    for delay_ms in [5, 20, 60, 150, 300, 500] {
        let demo = Demo::new("sid");
        let mut child = Command::new(env!("CARGO_BIN_EXE_quorate"))
            .args(["demo", "--base-port", &demo.ports.base.to_string(), "--quiet"])
            .current_dir(demo.dir.path())
            .env("PATH", demo.etcd.parent().unwrap())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay_ms));
        let _ = child.kill();
        child.wait().unwrap();
        let report = demo.start();
        assert_eq!((report["healthy"].as_u64(), pids(&report).len()), (Some(3), 3), "killed after {delay_ms} ms");
    }
}

#[test]
fn a_lost_disk_joins_again_as_a_new_member() {
    let demo = Demo::new("sid");
    let first = demo.start();
    demo.run("stop");
    let gone = demo.path(".demo/n2/data");
    Command::new("mv").arg(&gone).arg(demo.path("elsewhere")).status().unwrap();
    let again = demo.json("start");
    assert_eq!(again["healthy"], 3);
    assert_eq!(again["cluster_id"], first["cluster_id"], "never founded twice");
    assert_ne!(
        again["members"][1]["member_id"], first["members"][1]["member_id"],
        "it has forgotten what it voted for"
    );
    assert_eq!(again["members"][0]["member_id"], first["members"][0]["member_id"]);
}

#[test]
fn a_lost_quorum_can_be_rehearsed_on_it() {
    let demo = Demo::new("sid");
    let first = demo.start();
    for (name, at) in [("n2", 1), ("n3", 2)] {
        kill_hard(agents(&first)[at]);
        kill_hard(pids(&first)[at]);
        for lost in [format!(".demo/{name}/data"), format!(".demo/state/{name}")] {
            let aside = format!("{}-of-{name}", lost.replace('/', "-"));
            assert!(Command::new("mv").arg(demo.path(&lost)).arg(demo.path(&aside)).status().unwrap().success());
        }
    }
    let recover = "cluster recover --config .demo/cluster.yaml --fenced n2 --fenced n3 --yes";
    // Its agent has to notice first that the quorum is lost, and refuses until then.
    wait_until("the cluster is recovered", Duration::from_secs(60), || demo.quorate(recover).status.success());
    let again = demo.json("start");
    assert_eq!(again["healthy"], 3);
    assert_ne!(again["cluster_id"], first["cluster_id"], "a recovery begins another cluster");
}

#[test]
fn a_directory_with_something_else_in_it_is_left_alone() {
    let demo = Demo::new("sid");
    std::fs::create_dir(demo.path("mine")).unwrap();
    File::create(demo.path("mine/letters")).unwrap();
    let text = demo.fails(&format!("--dir mine --base-port {}", demo.ports.base), 5);
    assert!(text.contains("`mine` is not empty (it holds `letters`)"), "{text}");
    assert_eq!(listed(&demo.path("mine")), ["letters"]);
}
