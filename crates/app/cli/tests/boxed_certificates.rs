//! What a program in the box of etcd gets of the certificates: etcd's own, and no key of an authority, an agent or an operator.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use agent_support::{LIMIT, Place};
use jiff::Timestamp;
use quorate_pki::{Authorities, Keys, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue};
use quorate_testkit::{Running, copy_program, quorate, wait_until};

/// A normal user.
const USER: u32 = 47_114;

/// Certificates of the node and the keys of every authority, in one folder.
fn equip(pki: &Path) {
    let (now, names) = (Timestamp::now(), NodeNames::new("t", "n1", ["127.0.0.1"]).unwrap());
    if !pki.exists() {
        ensure_authorities(pki, "t", None, now).unwrap();
    }
    let bundle = ensure_requests(pki, &names, Keys::Fresh).unwrap().bundle;
    let authorities = Authorities::open(pki, None).unwrap();
    let signed = issue(&authorities, &bundle, &Policy { days: 90, allowed: None }, now).unwrap();
    ensure_installed(pki, &names, &signed, now).unwrap();
}

fn text(place: &Place, level: &str) -> String {
    let dir = place.root.path().display();
    let https = |url: String| url.replace("http://", "https://");
    format!(
        "token: t\nbootstrap: {{id: 1}}\ntls: {{dir: \"{dir}/pki\"}}\nmembers:\n  - {{name: n1, peer-urls: [\"{}\"], client-urls: \
         [\"{}\"], data-dir: {dir}/data}}\nagent:\n  health-listen: http://127.0.0.1:{}\n  api-listen: https://127.0.0.1:{}\n  \
         state-dir: {dir}/state\n  etcd-binary: {}\netcd: {{heartbeat-interval: 10, election-timeout: 100}}\nbox: {{level: {level}}}\n",
        https(place.seat.peer_url()),
        https(place.seat.client_url()),
        place.health,
        place.api,
        place.binary.display(),
    )
}

/// Who runs the agent, and in which box etcd is.
struct Case {
    level: &'static str,
    as_user: bool,
}

/// A machine with one member.
struct Home {
    place: Place,
    /// `setpriv` and its flags, where the agent is not root.
    prefix: Vec<String>,
    program: PathBuf,
}

impl Home {
    fn new(case: &Case) -> Home {
        let mut place = Place::new("3.5.16");
        let root = place.root.path().to_owned();
        let program = root.join("quorate");
        copy_program(&quorate(), &program);
        place.binary = root.join("etcd");
        copy_program(&place.tools.etcd, &place.binary);
        equip(&root.join("pki"));
        place.raw = Some(text(&place, case.level));
        place.file();
        let mut prefix = Vec::new();
        if case.as_user {
            std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
            let pki = std::fs::read_dir(root.join("pki")).unwrap().map(|entry| entry.unwrap().path());
            for path in pki.chain([root.join("pki"), root.clone()]) {
                chown(path, Some(USER), Some(USER)).unwrap();
            }
            let id = USER.to_string();
            prefix = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"].map(str::to_owned).to_vec();
        }
        Home { place, prefix, program }
    }

    fn words(&self, args: &[&str]) -> Vec<String> {
        let program = self.program.display().to_string();
        let args = args.iter().map(|arg| (*arg).to_owned());
        self.prefix.iter().cloned().chain([program]).chain(args).collect()
    }

    fn start(&self) -> Running {
        let file = self.place.path("cluster.yaml").display().to_string();
        let words = self.words(&["run", "--config", &file, "--name", "n1"]);
        let first = if self.prefix.is_empty() { self.program.clone() } else { "/usr/bin/setpriv".into() };
        let mut agent = Running::start(&first, &words[1..], &self.place.env);
        self.place.wait_ready(&mut agent);
        agent
    }

    /// Runs a command as an attacker that has taken etcd over: as its user, in its box.
    fn attack(&self, command: &[&str]) -> Output {
        let file = self.place.path("cluster.yaml").display().to_string();
        let mut args = vec!["exec", "etcd", "--config", &file, "--name", "n1", "--tools", "--"];
        args.extend(command);
        let words = self.words(&args);
        Command::new(&words[0]).args(&words[1..]).current_dir("/").stdin(Stdio::null()).output().unwrap()
    }

    fn reads(&self, path: &Path) -> bool {
        self.attack(&["cat", &path.display().to_string()]).status.success()
    }

    /// The serial number of the certificate that etcd shows to clients.
    fn shown(&self) -> String {
        let url = self.place.seat.client_url();
        let address = url.strip_prefix("http://").unwrap();
        let script =
            format!("openssl s_client -connect {address} </dev/null 2>/dev/null | openssl x509 -noout -serial");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn installed(&self) -> String {
        let pem = self.place.path("pki/client.crt");
        let output = Command::new("openssl").args(["x509", "-noout", "-serial", "-in"]).arg(pem).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

#[test]
fn a_box_has_no_key_but_those_of_etcd_at_every_level_with_and_without_root() {
    assert!(rustix::process::geteuid().is_root(), "run the tests as root: they become another user");
    for case in [
        Case { level: "basic", as_user: true },
        Case { level: "basic", as_user: false },
        Case { level: "strict", as_user: false },
    ] {
        let name = format!("{} {}", case.level, if case.as_user { "normal user" } else { "root" });
        let home = Home::new(&case);
        let mut agent = home.start();
        assert_eq!(home.place.status()["etcd"]["box"], case.level, "{name}");
        let pki = home.place.path("pki");
        let keys: Vec<PathBuf> = std::fs::read_dir(&pki).unwrap().map(|entry| entry.unwrap().path()).collect();
        for wanted in ["peer-ca.key", "client-ca.key", "agent-ca.key", "agent.key", "admin.key"] {
            assert!(keys.contains(&pki.join(wanted)), "{wanted} is not there to attack: {keys:?}");
        }
        for path in keys.into_iter().filter(|path| path.is_file()) {
            assert!(!home.reads(&path), "{name}: etcd's box has `{}`", path.display());
        }
        assert!(!home.attack(&["ls", &pki.display().to_string()]).status.success(), "{name}: the folder is listed");
        // The attack works where something is given.
        assert!(home.reads(&home.place.path("state/n1/etcd-tls/peer.key")), "{name}");
        // Nor can what it has be changed from within.
        let copy = home.place.path("state/n1/etcd-tls/peer-ca.crt").display().to_string();
        let planted = home.place.path("state/n1/etcd-tls/planted").display().to_string();
        for path in [&copy, &planted] {
            let script = format!("echo x > {path}");
            assert!(!home.attack(&["sh", "-c", &script]).status.success(), "{name}: wrote {path}");
        }
        assert!(agent.stop().success(), "{name}: {}", agent.log());
    }
}

#[test]
fn a_renewed_certificate_reaches_an_etcd_that_runs_in_each_box() {
    assert!(rustix::process::geteuid().is_root(), "run the tests as root: they become another user");
    for case in [
        Case { level: "strict", as_user: false },
        Case { level: "basic", as_user: true },
        Case { level: "off", as_user: true },
    ] {
        let home = Home::new(&case);
        let mut agent = home.start();
        let (before, pid) = (home.shown(), home.place.etcd_pid());
        assert_eq!(before, home.installed(), "{}", case.level);
        let pki = home.place.path("pki");
        equip(&pki);
        if case.as_user {
            for entry in std::fs::read_dir(&pki).unwrap() {
                chown(entry.unwrap().path(), Some(USER), Some(USER)).unwrap();
            }
        }
        assert_ne!(home.installed(), before);
        wait_until("etcd shows the new certificate", LIMIT, || home.shown() == home.installed());
        assert_eq!(home.place.etcd_pid(), pid, "etcd was not restarted");
        // Both kinds of copies are for etcd alone.
        let dir = home.place.path("state/n1/etcd-tls");
        assert_eq!(dir.exists(), case.level != "off");
        if let Ok(entries) = std::fs::read_dir(&dir) {
            for entry in entries {
                let about = entry.unwrap().metadata().unwrap();
                assert_eq!(about.mode() & 0o377, 0, "{:o}", about.mode());
            }
        }
        assert!(agent.stop().success(), "{}", agent.log());
    }
}
