//! Real etcd in a box, with certificates, serving all of a workload; and no system call that its list does not have.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use quorate_plan::boxes::{BoxSpec, Level, List, Ports, Syscalls};
use quorate_testkit::{Port, Tools, etcd, free_port, wait_until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use support::{Arena, is_root, machine_gives_strict, open, write};

const LIMIT: Duration = Duration::from_secs(60);

/// An etcd in a box.
struct Boxed {
    arena: Arena,
    tools: Tools,
    client: Port,
    peer: Port,
    etcd: Option<Child>,
}

impl Boxed {
    fn start(version: &str, audit: bool) -> Boxed {
        let (arena, tools, client, peer) = (Arena::new(), etcd(version), free_port(), free_port());
        certificates(arena.path());
        std::fs::create_dir(arena.path().join("data/etcd")).unwrap();
        open(&arena.path().join("data/etcd"), 0o700);
        if is_root() {
            let owner = Some(rustix::fs::Uid::from_raw(support::NOBODY));
            rustix::fs::chown(arena.path().join("data/etcd"), owner, None).unwrap();
        }
        let mut boxed = Boxed { arena, tools, client, peer, etcd: None };
        boxed.run(audit);
        boxed
    }

    fn spec(&self, audit: bool) -> BoxSpec {
        let level = if machine_gives_strict() { Level::Strict } else { Level::Basic };
        let (client, peer) = (self.client.number(), self.peer.number());
        // It connects to itself: to its own API, for the gateway, and to its peer's port, which is its own here.
        let ports = Ports { bind: vec![client, peer], connect: vec![client, peer], ..Ports::default() };
        let data = [self.arena.path().join("data/etcd").display().to_string()];
        let mut spec = BoxSpec::etcd(level, &data, &[self.pki("")], ports);
        spec.limits.memory_bytes = Some(1 << 30);
        spec.limits.pids = Some(256);
        spec.syscalls = Syscalls { audit, ..Syscalls::of(List::Etcd) };
        spec
    }

    fn pki(&self, name: &str) -> String {
        self.arena.path().join("etcd-pki").join(name).display().to_string().trim_end_matches('/').to_owned()
    }

    fn run(&mut self, audit: bool) {
        let url = |port: &Port| format!("https://127.0.0.1:{}", port.number());
        let flag = |name: &str, value: &str| format!("--{name}={value}");
        let (client, peer) = (url(&self.client), url(&self.peer));
        let mut args = vec![
            self.tools.etcd.display().to_string(),
            flag("name", "n1"),
            flag("data-dir", &self.arena.path().join("data/etcd").display().to_string()),
            flag("listen-client-urls", &client),
            flag("advertise-client-urls", &client),
            flag("listen-peer-urls", &peer),
            flag("initial-advertise-peer-urls", &peer),
            flag("initial-cluster", &format!("n1={peer}")),
            flag("client-cert-auth", "true"),
            flag("peer-client-cert-auth", "true"),
        ];
        for who in ["", "peer-"] {
            args.push(flag(&format!("{who}cert-file"), &self.pki("it.pem")));
            args.push(flag(&format!("{who}key-file"), &self.pki("it.key")));
            args.push(flag(&format!("{who}trusted-ca-file"), &self.pki("ca.pem")));
        }
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        let log = std::fs::File::create(self.log()).unwrap();
        let mut command = self.arena.keep(&self.spec(audit), is_root(), &words);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.etcd = Some(command.spawn().unwrap());
        wait_until(&format!("etcd {} to serve", self.tools.version), LIMIT, || {
            let ended = self.etcd.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}\n{}", self.said());
            self.try_ctl(&["endpoint", "health"]).is_ok()
        });
    }

    fn log(&self) -> PathBuf {
        self.arena.path().join("log")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap()
    }

    fn try_ctl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.tools.etcdctl);
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints=https://127.0.0.1:{}", self.client.number()));
        command.arg(format!("--cacert={}", self.pki("ca.pem"))).arg(format!("--cert={}", self.pki("it.pem")));
        command.arg(format!("--key={}", self.pki("it.key"))).arg("--command-timeout=20s");
        let output = command.args(args).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn ctl(&self, args: &[&str]) -> String {
        self.try_ctl(args).unwrap_or_else(|error| panic!("{args:?}: {error}\n{}", self.said()))
    }

    /// Puts, transactions, leases, a watch's history, compaction, defragmentation, a snapshot, auth.
    fn work(&self) {
        for n in 0..20 {
            self.ctl(&["put", &format!("k{n}"), &"v".repeat(1000 * n + 1)]);
        }
        assert_eq!(self.ctl(&["get", "k0", "--print-value-only"]).trim(), "v");
        self.ctl(&["lease", "grant", "60"]);
        self.ctl(&["compaction", "10"]);
        self.ctl(&["defrag"]);
        let snapshot = self.arena.path().join("snapshot");
        self.ctl(&["snapshot", "save", snapshot.to_str().unwrap()]);
        assert!(snapshot.metadata().unwrap().len() > 10_000);
        self.ctl(&["alarm", "list"]);
        self.ctl(&["user", "add", "root:secret"]);
        self.ctl(&["user", "grant-role", "root", "root"]);
        self.ctl(&["auth", "enable"]);
        assert!(self.try_ctl(&["put", "k0", "w"]).is_err(), "without a name nothing is written");
        self.ctl(&["--user=root:secret", "put", "k0", "w"]);
        self.ctl(&["--user=root:secret", "auth", "disable"]);
    }

    /// Stops it; it ends in its orderly way.
    fn stop(mut self) -> String {
        let mut etcd = self.etcd.take().unwrap();
        kill_process(Pid::from_child(&etcd), Signal::TERM).unwrap();
        let code = etcd.wait().unwrap().code();
        // etcd ends itself by the signal that it was sent.
        assert_eq!(code, Some(128 + 15), "{}", self.said());
        self.said()
    }
}

impl Drop for Boxed {
    fn drop(&mut self) {
        if let Some(mut etcd) = self.etcd.take() {
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
    }
}

fn certificates(dir: &Path) {
    let dir = dir.join("etcd-pki");
    std::fs::create_dir(&dir).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&key, &issuer).unwrap();
    write(&dir.join("ca.pem"), &issuer.pem());
    write(&dir.join("it.pem"), &cert.pem());
    write(&dir.join("it.key"), &key.serialize_pem());
}

fn serves(version: &str) {
    let boxed = Boxed::start(version, false);
    boxed.work();
    let said = boxed.stop();
    for word in ["operation not permitted", "function not implemented"] {
        assert!(!said.to_lowercase().contains(word), "{said}");
    }
    // The same with nothing denied: what the list lacks is said.
    let boxed = Boxed::start(version, true);
    boxed.work();
    let said = boxed.stop();
    assert!(!said.contains("would deny"), "{said}");
}

#[test]
fn etcd_3_4_serves_in_its_box_with_no_call_denied() {
    serves("3.4.23");
}

#[test]
fn etcd_3_5_serves_in_its_box_with_no_call_denied() {
    serves("3.5.16");
}

#[test]
fn the_newest_etcd_serves_in_its_box_with_no_call_denied() {
    serves("sid");
}
