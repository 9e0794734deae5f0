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

    /// Bytes of segments in the spool.
    pub(crate) fn spooled(&self) -> u64 {
        let Ok(entries) = std::fs::read_dir(self.path("spool")) else { return 0 };
        let segments = entries.flatten().filter(|entry| !entry.file_name().to_string_lossy().starts_with("state"));
        segments.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
    }

    /// Deltas cannot be stored: a folder that is a file cannot be written to, not even by root.
    pub(crate) fn hide_deltas(&self) {
        let (delta, aside) = (self.path("store/quorate-v1/delta"), self.path("aside"));
        if delta.exists() {
            rename(&delta, &aside);
        }
        std::fs::File::create(&delta).unwrap();
    }

    /// They can again, and those that were there are.
    pub(crate) fn show_deltas(&self) {
        let (delta, aside) = (self.path("store/quorate-v1/delta"), self.path("aside"));
        std::fs::remove_file(&delta).unwrap();
        if aside.exists() {
            rename(&aside, &delta);
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

pub(crate) fn rename(from: &Path, to: &Path) {
    #[expect(clippy::disallowed_methods, reason = "a test's own folder")]
    std::fs::rename(from, to).unwrap();
}

#[track_caller]
pub(crate) fn wait_log(follower: &Running, text: &str) {
    wait_until(&format!("the log says `{text}`"), LIMIT, || follower.log().contains(text));
}

/// A file that only its owner can read.
pub(crate) fn put_file(path: &Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut open = std::fs::OpenOptions::new();
    let mut file = open.create(true).truncate(true).write(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// What a follower with `--metrics-listen` shows, fetched by `curl` with these arguments.
#[track_caller]
pub(crate) fn metrics(follower: &Running, args: &[&str]) -> String {
    wait_log(follower, "metrics are at ");
    let log = follower.log();
    let at = log.split("metrics are at ").nth(1).unwrap().lines().next().unwrap().trim().to_owned();
    let scheme = if args.is_empty() { "http" } else { "https" };
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", "10"]).args(args);
    let output = command.arg(format!("{scheme}://{at}/metrics")).output();
    let output = output.expect("curl is there; if not: apt-get install curl");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The value of a metric without labels.
#[track_caller]
pub(crate) fn number(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or_else(|| panic!("no `{name}` in:\n{metrics}"))
}

/// An authority, and one certificate of it for servers and clients: the files' paths.
pub(crate) fn certificates(place: &Place) -> (String, String, String) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    let put = |name: &str, text: String| {
        // Replaced as a whole, as those do who renew certificates.
        put_file(&place.path("renewed"), &text);
        rename(&place.path("renewed"), &place.path(name));
        place.path(name).display().to_string()
    };
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "an authority");
    let key = KeyPair::generate().unwrap();
    let ca = put("ca.pem", params.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(params, key);
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "a member");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let cert = put("cert.pem", params.signed_by(&key, &issuer).unwrap().pem());
    (ca, cert, put("cert.key", key.serialize_pem()))
}
