//! `logs` on files that the shim wrote for real etcd servers: filtered, followed across rotation, as text and as JSON.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use quorate_host::logs::{LogFiles, Rotation};
use quorate_host::shim::{Rung, Running, Send, ShimSpec, StopOrder, spawn};
use quorate_host::state::StateDir;
use quorate_testkit::{Seat, Tools, etcd, kill_hard, wait_until};
use serde_json::Value;
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_quorate");

fn logs(args: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("logs").args(args).env_remove("QUORATE_CONFIG").env_remove("QUORATE_NAME");
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A member's state dir with a running etcd, whose log files are small.
struct Member {
    dir: TempDir,
    tools: Tools,
    seat: Seat,
    running: Running,
}

impl Member {
    fn start(version: &str, more: &[&str]) -> Member {
        let (tools, seat, dir) = (etcd(version), Seat::new("n1"), TempDir::new().unwrap());
        let state = StateDir::open(&dir.path().join("n1")).unwrap();
        let flag = |name: &str, value: &str| format!("--{name}={value}");
        let mut args = vec![
            flag("name", "n1"),
            flag("data-dir", &dir.path().join("data").display().to_string()),
            flag("listen-client-urls", &seat.client_url()),
            flag("advertise-client-urls", &seat.client_url()),
            flag("listen-peer-urls", &seat.peer_url()),
            flag("initial-advertise-peer-urls", &seat.peer_url()),
            flag("initial-cluster", &format!("n1={}", seat.peer_url())),
        ];
        args.extend(more.iter().map(ToString::to_string));
        let spec = ShimSpec {
            name: "etcd".to_owned(),
            program: tools.etcd.clone(),
            args,
            env: vec![],
            env_files: Vec::new(),
            dir: dir.path().to_owned(),
            log_dir: state.path().join("logs"),
            rotation: Rotation { bytes_max: 1024, age_max_s: 3600, keep: 100 },
            config_hash: "hash".to_owned(),
            etcd_version: tools.version.clone(),
            stopping_words: vec![],
            kept_level: None,
            ladder: Rung::usual(),
        };
        let running = spawn(Path::new(BINARY), &state, &spec).unwrap();
        let member = Member { dir, tools, seat, running };
        let url = member.seat.client_url();
        wait_until("etcd to serve", Duration::from_secs(60), || {
            member.tools.try_ctl(&url, &["endpoint", "health"]).is_ok()
        });
        member
    }

    fn state_dir(&self) -> String {
        self.dir.path().join("n1").display().to_string()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let ladder = vec![Rung { send: Send::Kill, wait_ms: 1000 }];
        let _ = self.running.stop(&StopOrder { asked_by: "the test".to_owned(), ladder, last_revision: None });
        let _ = self.running.wait(Duration::from_secs(30));
    }
}

#[test]
fn logs_of_every_form_are_filtered_by_level() {
    for (version, more) in
        [("3.4.23", &["--logger=capnslog"][..]), ("3.4.23", &["--logger=zap", "--log-outputs=stderr"]), ("sid", &[])]
    {
        let member = Member::start(version, more);
        let state = member.state_dir();
        assert!(Path::new(&state).join("logs/etcd.log.1").exists(), "it was rotated");
        let all = text(&logs(&["--state-dir", &state]));
        let count = |word: &str| all.lines().filter(|line| line.split_whitespace().nth(1) == Some(word)).count();
        assert!(count("info") > 20, "{version} {more:?}:\n{all}");
        let grave = text(&logs(&["--log-dir", &format!("{state}/logs"), "--level", "warn"]));
        assert_eq!(grave.lines().filter(|line| line.contains(" info ")).count(), 0, "{grave}");
        assert_eq!(grave.lines().filter(|line| line.contains(" warn ")).count(), count("warn"), "{grave}");
        // Everything is of the last minutes, and nothing of the future.
        assert_eq!(text(&logs(&["--state-dir", &state, "--since", "1h"])).lines().count(), all.lines().count());
        assert_eq!(text(&logs(&["--state-dir", &state, "--since", "2100-01-01T00:00:00Z"])), "");
        let json = text(&logs(&["--state-dir", &state, "--output", "json"]));
        assert_eq!(json.lines().count(), all.lines().count());
        for line in json.lines() {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert!(value["msg"].is_string(), "{line}");
        }
    }
}

/// Lines as they come, from a process that is killed in the end.
struct Follower {
    process: std::process::Child,
    lines: mpsc::Receiver<String>,
}

impl Follower {
    fn start(args: &[&str]) -> Follower {
        let mut process = Command::new(BINARY).arg("logs").args(args).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Follower { process, lines }
    }

    fn wait(&self, wanted: &str) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let line =
                self.lines.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("`{wanted}` in {seen:?}"));
            seen.push(line);
            if seen.last().is_some_and(|line| line.contains(wanted)) {
                return seen;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_follower_sees_what_etcd_says_next() {
    let member = Member::start("sid", &[]);
    let follower = Follower::start(&["--state-dir", &member.state_dir(), "-f"]);
    follower.wait("ready to serve client requests");
    let saved = member.dir.path().join("s.db").display().to_string();
    member.tools.ctl(&member.seat.client_url(), &["snapshot", "save", &saved]);
    follower.wait("sending database snapshot");
    let ladder = vec![Rung { send: Send::Term, wait_ms: 20_000 }];
    member.running.stop(&StopOrder { asked_by: "the test".to_owned(), ladder, last_revision: None }).unwrap();
    follower.wait("closed etcd server");
}

#[test]
fn a_follower_misses_nothing_across_rotation() {
    let dir = TempDir::new().unwrap();
    let mut files = LogFiles::new(&dir.path().join("etcd.log"), Rotation { bytes_max: 500, age_max_s: 3600, keep: 60 });
    let line =
        |number: u32| format!(r#"{{"level":"info","ts":"2026-11-16T02:00:00.000Z","msg":"line {number:05}"}}"#) + "\n";
    files.write(line(0).as_bytes());
    let follower = Follower::start(&["--log-dir", &dir.path().display().to_string(), "--follow"]);
    follower.wait("line 00000");
    (1..300).for_each(|number| files.write(line(number).as_bytes()));
    let seen = follower.wait("line 00299");
    let expected: Vec<String> =
        (1..300).map(|number| format!("2026-11-16T02:00:00.000Z info  line {number:05}")).collect();
    assert_eq!(seen, expected);
}

#[test]
fn a_reader_that_goes_away_ends_the_follower() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("etcd.log");
    let mut files = LogFiles::new(&path, Rotation::default());
    files.write(b"one\n");
    let mut command = Command::new(BINARY);
    command.args(["logs", "-f", "--log-dir"]).arg(dir.path()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut first = String::new();
    let mut out = BufReader::new(process.stdout.take().unwrap());
    out.read_line(&mut first).unwrap();
    assert_eq!(first, "one\n");
    drop(out);
    let mut ended = false;
    wait_until("its end", Duration::from_secs(20), || {
        files.write(b"more\n");
        ended = process.try_wait().unwrap().is_some();
        ended
    });
    if !ended {
        kill_hard(process.id());
    }
}

#[test]
fn a_member_is_found_by_its_file_and_what_is_not_there_is_said() {
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("cluster.yaml");
    let state = dir.path().join("state").display().to_string();
    let text_of = format!(
        "token: t\nplaintext: true\nmembers: [{{name: n1, address: 127.0.0.1}}]\nagent: {{state-dir: {state}}}\n"
    );
    std::fs::File::create(&config).unwrap().write_all(text_of.as_bytes()).unwrap();
    let config = config.display().to_string();
    let none = logs(&["--config", &config]);
    assert_eq!(none.status.code(), Some(2));
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(said.contains("cannot read the log") && said.contains("has not been started here yet"), "{said}");
    std::fs::create_dir_all(format!("{state}/n1/logs")).unwrap();
    let mut files = LogFiles::new(Path::new(&format!("{state}/n1/logs/etcd.log")), Rotation::default());
    files.write(b"2026-11-16 02:14:36.089125 C | etcdmain: gone\n");
    assert!(text(&logs(&["--config", &config])).contains("fatal etcdmain: gone"));
    assert!(text(&logs(&["--config", &config, "--name", "n1"])).contains("fatal etcdmain: gone"));
    assert_eq!(logs(&["--config", &config, "--name", "n9"]).status.code(), Some(4));
    // Nothing is named: etcd is meant, which nobody keeps below that root.
    let nobody =
        Command::new(BINARY).arg("logs").env_remove("QUORATE_CONFIG").env("QUORATE_ROOT", dir.path()).output().unwrap();
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("[Q1150]"));
    assert_eq!(logs(&["--log-dir", &state, "--since", "soon"]).status.code(), Some(64));
    assert_eq!(logs(&["--log-dir", &state, "--level", "loud"]).status.code(), Some(64));
}
