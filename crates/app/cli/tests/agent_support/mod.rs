//! A cluster file of one member, agents that run it, and questions to both.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use quorate_testkit::{Port, Running, Seat, Tools, etcd, free_port, quorate, wait_until};
use serde_json::Value;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// One member on this machine. Dropped, its etcd is ended.
pub(crate) struct Place {
    pub(crate) root: tempfile::TempDir,
    pub(crate) tools: Tools,
    pub(crate) seat: Seat,
    pub(crate) health: Port,
    pub(crate) api: Port,
    /// Added to the cluster file.
    pub(crate) more: String,
    /// Added under `agent:`.
    pub(crate) agent: String,
    pub(crate) binary: PathBuf,
    /// The whole cluster file, instead of the one that is made here.
    pub(crate) raw: Option<String>,
    pub(crate) bootstrap: u64,
    pub(crate) env: Vec<(String, String)>,
}

impl Place {
    pub(crate) fn new(version: &str) -> Place {
        let tools = etcd(version);
        Place {
            root: tempfile::tempdir().unwrap(),
            binary: tools.etcd.clone(),
            tools,
            seat: Seat::new("n1"),
            health: free_port(),
            api: free_port(),
            raw: None,
            more: String::new(),
            agent: String::new(),
            bootstrap: 1,
            env: Vec::new(),
        }
    }

    /// With a store in a folder beside it.
    pub(crate) fn with_store(version: &str) -> Place {
        let mut place = Place::new(version);
        std::fs::create_dir(place.path("store")).unwrap();
        place.more = format!("backup: {{store: \"{}\", delta-period: 200ms}}\n", place.store());
        place
    }

    pub(crate) fn store(&self) -> String {
        format!("file://{}", self.path("store").display())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state/n1")
    }

    /// Writes the cluster file as it is to be now.
    pub(crate) fn file(&self) -> PathBuf {
        let bootstrap =
            if self.bootstrap > 0 { format!("bootstrap: {{id: {}}}\n", self.bootstrap) } else { String::new() };
        // A short election, so that a single member leads at once.
        let text = format!(
            "token: t\n{bootstrap}plaintext: true\nmembers:\n  - name: n1\n    peer-urls: [\"{}\"]\n    client-urls: [\"{}\"]\n    \
             data-dir: {}\nagent:\n  health-listen: http://127.0.0.1:{}\n  api-listen: http://127.0.0.1:{}\n  state-dir: {}\n  \
             etcd-binary: {}\n{}{}{}",
            self.seat.peer_url(),
            self.seat.client_url(),
            self.data().display(),
            self.health,
            self.api,
            self.path("state").display(),
            self.binary.display(),
            self.agent,
            if self.more.contains("etcd:") { "" } else { "etcd: {heartbeat-interval: 10, election-timeout: 100}\n" },
            self.more,
        );
        let text = self.raw.clone().unwrap_or(text);
        let path = self.path("cluster.yaml");
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        path
    }

    /// An agent.
    pub(crate) fn run(&self, more: &[&str]) -> Running {
        let file = self.file().display().to_string();
        let args: Vec<String> =
            [&["run", "--config", &file, "--name", "n1"], more].concat().into_iter().map(str::to_owned).collect();
        Running::start(&quorate(), &args, &self.env)
    }

    /// An agent that is ready.
    #[track_caller]
    pub(crate) fn start(&self) -> Running {
        let mut agent = self.run(&[]);
        self.wait_ready(&mut agent);
        agent
    }

    /// `quorate` with the member's flags, as machines see it.
    pub(crate) fn quorate(&self, args: &[&str]) -> Output {
        let file = self.path("cluster.yaml");
        let mut command = Command::new(quorate());
        command.args(args).arg("--config").arg(file).args(["--name", "n1"]);
        command.envs(self.env.iter().map(|(name, value)| (name, value))).output().unwrap()
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let output = self.quorate(&[args, &["--output", "json"]].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{args:?}: {error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
    }

    pub(crate) fn status(&self) -> Value {
        self.json(&["status"])
    }

    pub(crate) fn phase(&self) -> String {
        self.status()["phase"].as_str().unwrap().to_owned()
    }

    /// Waits for a phase and returns the status.
    #[track_caller]
    pub(crate) fn wait_phase(&self, phase: &str) -> Value {
        let mut last = Value::Null;
        wait_until(&format!("phase `{phase}`"), LIMIT, || {
            last = self.status();
            last["phase"] == phase
        });
        last
    }

    /// What the health listener answers.
    pub(crate) fn health(&self, path: &str) -> Option<(u16, String)> {
        get(self.health.number(), path)
    }

    /// Waits until the metrics have these values at least, and checks of what type they are.
    #[track_caller]
    pub(crate) fn assert_measured(&self, expected: &[(&str, &str, u64)]) {
        for (name, kind, least) in expected {
            let mut text = String::new();
            wait_until(name, LIMIT, || {
                text = self.health("/metrics").unwrap().1;
                let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                values.next().is_some_and(|value| value.parse::<f64>().unwrap() >= *least as f64)
            });
            let family = name.split('{').next().unwrap();
            let family = ["_total", "_count"].iter().find_map(|end| family.strip_suffix(end)).unwrap_or(family);
            assert!(text.contains(&format!("# TYPE {family} {kind}\n")), "{family}: {text}");
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.health("/readyz").is_some_and(|(code, _)| code == 200)
    }

    #[track_caller]
    pub(crate) fn wait_ready(&self, agent: &mut Running) {
        let start = std::time::Instant::now();
        while !self.is_ready() {
            assert!(agent.ended().is_none(), "the agent ended:\n{}", agent.log());
            assert!(start.elapsed() < LIMIT, "not ready: {}\n{}", self.status(), agent.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it serves, without a cluster file that could be read.
    #[track_caller]
    pub(crate) fn wait_ready_again(&self, agent: &mut Running) {
        wait_until("it is ready", LIMIT, || {
            assert!(agent.ended().is_none(), "the agent ended:\n{}", agent.log());
            self.is_ready()
        });
    }

    /// Waits until an etcd other than this one serves with the settings of the file.
    #[track_caller]
    pub(crate) fn wait_for_another_etcd(&self, than: u32) {
        wait_until("etcd runs with the settings of the file", LIMIT, || {
            let status = self.status();
            let now = &status["etcd"];
            status["phase"] == "serving" && now["settings_current"] == true && now["pid"].as_u64() != Some(than.into())
        });
    }

    pub(crate) fn etcd_pid(&self) -> u32 {
        let status = self.status();
        u32::try_from(status["etcd"]["pid"].as_u64().unwrap_or_else(|| panic!("{status}"))).unwrap()
    }

    /// etcdctl on this member.
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        self.tools.ctl(&self.seat.client_url(), args)
    }

    pub(crate) fn put(&self, key: &str, value: &str) {
        self.ctl(&["put", key, value]);
    }

    #[track_caller]
    pub(crate) fn assert_holds(&self, key: &str, value: &str) {
        assert_eq!(self.ctl(&["get", "--print-value-only", key]).trim(), value);
    }

    /// Names in a directory that hold `part`.
    pub(crate) fn names(&self, dir: &Path, part: &str) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        entries.filter(|name| name.contains(part)).collect()
    }

    /// The WAL's last segment.
    pub(crate) fn last_segment(&self) -> PathBuf {
        let dir = self.data().join("member/wal");
        let mut names: Vec<_> = self.names(&dir, ".wal").into_iter().filter(|name| name.ends_with(".wal")).collect();
        names.sort();
        dir.join(names.pop().unwrap())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // An agent that a test has killed leaves etcd running, as it should.
        let _ = self.quorate(&["stop"]);
    }
}

/// A plain HTTP request; `None`: nobody answers.
pub(crate) fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let code = text.split(' ').nth(1)?.parse().ok()?;
    Some((code, text.split_once("\r\n\r\n")?.1.to_owned()))
}
