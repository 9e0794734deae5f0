//! A follower as a process, and the comparison of what it stored with what etcd has.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use quorate_testkit::{Launch, Running, Seat, Server, quorate, wait_until};
use serde_json::Value;

pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// Where one test has its things.
pub(crate) struct Place {
    pub(crate) root: tempfile::TempDir,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) store: String,
}

impl Place {
    pub(crate) fn new() -> Place {
        let root = tempfile::tempdir().unwrap();
        let store = format!("file://{}", root.path().join("store").display());
        Place { root, env: Vec::new(), store }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// An etcd of this release.
    pub(crate) fn etcd(&self, version: &str) -> Server {
        Server::start(&quorate_testkit::etcd(version), &Seat::new("n1"), &self.path("data"))
    }

    /// A follower with a spool of its own name.
    pub(crate) fn follow(&self, endpoints: &str, spool: &str, more: &[&str]) -> Running {
        let spool = self.path(spool).display().to_string();
        let base = ["backup", "follow", "--store", &self.store, "--endpoints", endpoints, "--spool", &spool];
        let quick: &[&str] = if more.contains(&"--delta-period") { &[] } else { &["--delta-period", "300ms"] };
        let args: Vec<String> = [&base[..], quick, more].concat().into_iter().map(str::to_owned).collect();
        Running::start(&quorate(), &args, &self.env)
    }

    /// `quorate backup …` as machines see it.
    pub(crate) fn backup(&self, args: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(quorate());
        command.current_dir(self.root.path()).envs(self.env.iter().map(|(name, value)| (name, value)));
        let output = command.arg("backup").args(args).args(["--output", "json"]).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        match output.status.success() {
            true => Ok(serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))),
            false => Err(format!("{out}{err}")),
        }
    }

    pub(crate) fn list(&self) -> Value {
        self.backup(&["list", "--store", &self.store]).unwrap()
    }

    /// The newest revision that can be restored.
    pub(crate) fn reach(&self) -> u64 {
        let listed = self.backup(&["list", "--store", &self.store]);
        listed.ok().and_then(|listed| listed["newest_revision"].as_u64()).unwrap_or(0)
    }

    /// Waits until the store leads to that revision.
    #[track_caller]
    pub(crate) fn wait_stored(&self, revision: u64) {
        wait_until(&format!("revision {revision} is stored"), LIMIT, || self.reach() >= revision);
    }

    /// Every object holds, none overlaps another or leaves a gap, and the newest state is the same as etcd's, with all of its history.
    #[track_caller]
    pub(crate) fn assert_equals(&self, server: &Server, name: &str) {
        self.backup(&["verify", "--store", &self.store]).unwrap();
        let revision = revision(server);
        let dir = self.path(name).display().to_string();
        let seat = Seat::new(name);
        let member = format!("{name}={}", seat.peer_url());
        let args =
            ["restore", "--store", &self.store, "--data-dir", &dir, "--exact", "--name", name, "--member", &member];
        let said = self.backup(&args).unwrap();
        assert_eq!(said["last_write_revision"].as_u64(), Some(revision), "{said}");
        let restored = Launch::new(&server.tools, &seat, &self.path(name)).start();
        assert_eq!(hash(&restored, revision), hash(server, revision));
    }

    /// First and last revision of each delta, in order.
    pub(crate) fn deltas(&self) -> Vec<(u64, u64)> {
        let listed = self.list();
        let objects = listed["objects"].as_array().unwrap().iter();
        let deltas = objects.filter(|object| object["kind"] == "delta");
        deltas.map(|delta| (delta["first"].as_u64().unwrap(), delta["last"].as_u64().unwrap())).collect()
    }

    /// Deltas of one writer follow each other without a gap or an overlap.
    #[track_caller]
    pub(crate) fn assert_seamless(&self) {
        let deltas = self.deltas();
        for pair in deltas.windows(2) {
            assert_eq!(pair[0].1 + 1, pair[1].0, "{deltas:?}");
        }
    }

    pub(crate) fn fulls(&self) -> usize {
        self.list()["objects"].as_array().unwrap().iter().filter(|object| object["kind"] == "full").count()
    }
}

pub(crate) fn revision(server: &Server) -> u64 {
    let status = server.ctl_json(&["endpoint", "status"]);
    status[0]["Status"]["header"]["revision"].as_u64().unwrap()
}

/// etcd's own hash of all keys and their history up to a revision.
pub(crate) fn hash(server: &Server, revision: u64) -> u64 {
    let said = server.ctl_json(&["endpoint", "hashkv", "--rev", &revision.to_string()]);
    said[0]["HashKV"]["hash"].as_u64().unwrap()
}

/// Puts, an overwrite, a deletion, and a transaction of several keys.
pub(crate) fn write_some(server: &Server, round: &str) {
    let round = round.replace(' ', "-");
    for at in 0..5 {
        server.ctl(&["put", &format!("{round}/{at}"), &format!("value {at}")]);
    }
    server.ctl(&["put", &format!("{round}/0"), "again"]);
    server.ctl(&["del", &format!("{round}/1")]);
    transaction(server, &[&format!("{round}/a"), &format!("{round}/b"), &format!("{round}/c")]);
}

/// One transaction that writes all of these keys.
pub(crate) fn transaction(server: &Server, keys: &[&str]) {
    use std::io::Write;
    let mut child = server.tools.ctl_command(&server.seat.client_url(), &["txn"]);
    let mut child = child.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap();
    let puts: String = keys.iter().map(|key| format!("put {key} x\n")).collect();
    child.stdin.take().unwrap().write_all(format!("\n{puts}\n\n").as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// How it ended.
#[track_caller]
pub(crate) fn wait_end(follower: &mut Running) -> i32 {
    wait_until("the follower ends", LIMIT, || follower.ended().is_some());
    follower.ended().unwrap().code().unwrap_or(-1)
}

pub(crate) fn remove_dir(path: &Path) {
    #[expect(clippy::disallowed_methods, reason = "a test's own folder")]
    std::fs::remove_dir_all(path).unwrap();
}
