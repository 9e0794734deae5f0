//! Declared clusters of several members on this machine: one file, an agent for each, and questions to all of them.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

pub(crate) mod disk;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use quorate_testkit::{Port, Running, Seat, Tools, etcd, free_port, quorate, release_or, wait_until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use serde_json::Value;

/// Two slow cores are what there may be.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// How members are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Tls,
    Clear,
}

/// One declared member.
pub(crate) struct Seated {
    pub(crate) name: String,
    pub(crate) seat: Seat,
    pub(crate) health: Port,
    pub(crate) api: Port,
    pub(crate) agent: Option<Running>,
}

/// A declared cluster. Dropped, its agents and members are ended.
pub(crate) struct Declared {
    pub(crate) root: tempfile::TempDir,
    pub(crate) tools: Tools,
    pub(crate) wire: Wire,
    pub(crate) members: Vec<Seated>,
    pub(crate) bootstrap: u64,
    /// Added to the cluster file.
    pub(crate) more: String,
    /// What agents are started with.
    pub(crate) env: Vec<(String, String)>,
}

impl Declared {
    pub(crate) fn new(version: &str, count: usize, wire: Wire) -> Declared {
        let members = (1..=count).map(|number| {
            let name = format!("n{number}");
            Seated { seat: Seat::new(&name), name, health: free_port(), api: free_port(), agent: None }
        });
        let cluster = Declared {
            root: tempfile::tempdir().unwrap(),
            tools: etcd(&release_or(version)),
            wire,
            members: members.collect(),
            bootstrap: 1,
            more: String::new(),
            env: Vec::new(),
        };
        if wire == Wire::Tls {
            certificates(cluster.root.path(), count);
        }
        cluster.file();
        cluster
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn data(&self, at: usize) -> PathBuf {
        self.path(&format!("data-{}", self.members[at].name))
    }

    pub(crate) fn state(&self, at: usize) -> PathBuf {
        self.path(&format!("state/{}", self.members[at].name))
    }

    fn url(&self, url: String) -> String {
        match self.wire {
            Wire::Tls => url.replace("http://", "https://"),
            Wire::Clear => url,
        }
    }

    pub(crate) fn client_url(&self, at: usize) -> String {
        self.url(self.members[at].seat.client_url())
    }

    pub(crate) fn peer_url(&self, at: usize) -> String {
        self.url(self.members[at].seat.peer_url())
    }

    pub(crate) fn api_url(&self, at: usize) -> String {
        self.url(format!("http://127.0.0.1:{}", self.members[at].api))
    }

    /// The cluster file's text.
    pub(crate) fn text(&self) -> String {
        let dir = self.root.path().display();
        let security = match self.wire {
            Wire::Clear => "plaintext: true\n".to_owned(),
            Wire::Tls => {
                let files = format!(
                    "{{cert-file: \"{dir}/{{name}}.pem\", key-file: \"{dir}/{{name}}.key\", trusted-ca-file: {dir}/ca.pem}}"
                );
                format!("tls: {{peer: {files}, client: {files}, operators: {dir}/operators.crt}}\n")
            }
        };
        let mut members = String::new();
        for (at, member) in self.members.iter().enumerate() {
            members += &format!(
                "  - {{name: {}, peer-urls: [\"{}\"], client-urls: [\"{}\"], data-dir: {}, listen-agent-url: \"{}\", \
                 listen-health-url: \"http://127.0.0.1:{}\", agent-url: \"{}\"}}\n",
                member.name,
                self.peer_url(at),
                self.client_url(at),
                self.data(at).display(),
                self.api_url(at),
                member.health,
                self.api_url(at),
            );
        }
        let bootstrap =
            if self.bootstrap > 0 { format!("bootstrap: {{id: {}}}\n", self.bootstrap) } else { String::new() };
        // Quick elections, but not so quick that a busy machine loses its leader.
        let etcd =
            if self.more.contains("etcd:") { "" } else { "etcd: {heartbeat-interval: 50, election-timeout: 500}\n" };
        format!(
            "token: t\n{bootstrap}{security}members:\n{members}agent:\n  state-dir: {dir}/state\n  etcd-binary: {}\n{etcd}{}",
            self.tools.etcd.display(),
            self.more
        )
    }

    /// Writes the cluster file as it is to be now.
    pub(crate) fn file(&self) -> PathBuf {
        self.file_as("cluster.yaml", &self.text())
    }

    pub(crate) fn file_as(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        path
    }

    /// Starts the agent of a member, and does not wait.
    pub(crate) fn start(&mut self, at: usize) {
        self.start_with(at, &["--config", "cluster.yaml"]);
    }

    pub(crate) fn start_with(&mut self, at: usize, args: &[&str]) {
        let mut words = vec!["run".to_owned()];
        for arg in args {
            words.push(if arg.ends_with(".yaml") { self.path(arg).display().to_string() } else { (*arg).to_owned() });
        }
        words.extend(["--name".to_owned(), self.members[at].name.clone()]);
        self.members[at].agent = Some(Running::start(&quorate(), &words, &self.env));
    }

    pub(crate) fn start_all(&mut self) {
        for at in 0..self.members.len() {
            self.start(at);
        }
    }

    /// SIGTERM, and the end of it.
    pub(crate) fn stop(&mut self, at: usize) {
        let mut agent = self.members[at].agent.take().unwrap();
        let status = agent.stop();
        assert!(status.success(), "{}: {status}\n{}", self.members[at].name, agent.log());
    }

    /// SIGKILL to the agent alone.
    pub(crate) fn kill_agent(&mut self, at: usize) {
        if let Some(mut agent) = self.members[at].agent.take() {
            agent.kill();
        }
    }

    /// SIGKILL to agent, shim and etcd: the machine is off.
    pub(crate) fn power_off(&mut self, at: usize) {
        self.kill_agent(at);
        end_all_below(&self.state(at));
    }

    pub(crate) fn log(&self, at: usize) -> String {
        self.members[at].agent.as_ref().map(Running::log).unwrap_or_default()
    }

    /// `quorate` with words of its own.
    pub(crate) fn quorate(&self, args: &[&str]) -> Output {
        Command::new(quorate()).args(args).output().unwrap()
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let output = self.quorate(&[args, &["--output", "json"]].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{args:?}: {error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
    }

    pub(crate) fn status(&self, at: usize) -> Value {
        let file = self.path("cluster.yaml").display().to_string();
        self.json(&["status", "--config", &file, "--name", &self.members[at].name])
    }

    /// Waits until a status is as wanted, and returns it.
    #[track_caller]
    pub(crate) fn wait_status(&mut self, at: usize, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status(at);
            if wanted(&status) {
                return status;
            }
            let ended = self.members[at].agent.as_mut().and_then(Running::ended);
            assert!(ended.is_none(), "{} ended ({ended:?}):\n{}", self.members[at].name, self.log(at));
            assert!(begun.elapsed() < LIMIT, "no {what}: {status:#}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    #[track_caller]
    pub(crate) fn wait_phase(&mut self, at: usize, phase: &str) -> Value {
        self.wait_status(at, phase, |status| status["phase"] == phase)
    }

    #[track_caller]
    pub(crate) fn wait_serving(&mut self) {
        for at in 0..self.members.len() {
            self.wait_phase(at, "serving");
        }
    }

    fn logs(&self) -> String {
        (0..self.members.len()).map(|at| format!("--- {}\n{}\n", self.members[at].name, self.log(at))).collect()
    }

    /// etcdctl on one member.
    pub(crate) fn ctl(&self, at: usize, args: &[&str]) -> String {
        self.try_ctl(at, args).unwrap_or_else(|error| panic!("{args:?} at {}: {error}", self.members[at].name))
    }

    pub(crate) fn try_ctl(&self, at: usize, args: &[&str]) -> Result<String, String> {
        let file = |name: &str| self.path(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("n1.pem"), file("n1.key"));
        let mut words = Vec::new();
        if self.wire == Wire::Tls {
            words.extend(["--cacert", &ca, "--cert", &cert, "--key", &key]);
        }
        words.extend(args);
        self.tools.try_ctl(&self.client_url(at), &words)
    }

    /// A write through one member, as soon as there is a leader to take it.
    #[track_caller]
    /// The newest revision, as this member has it. Agents write too: their leases of nodes take revisions of their own.
    pub(crate) fn revision(&self, at: usize) -> u64 {
        let value: Value = serde_json::from_str(&self.ctl(at, &["get", "k", "--write-out=json"])).unwrap();
        value["header"]["revision"].as_u64().unwrap()
    }

    /// Waits until everything that was written so far is in the store, and returns up to which revision that is.
    pub(crate) fn wait_backed_up(&self) -> u64 {
        let written = self.revision(0);
        wait_until("the backup", LIMIT, || {
            (0..self.members.len()).any(|at| self.status(at)["backup"]["stored_revision"].as_u64() >= Some(written))
        });
        written
    }

    pub(crate) fn put(&self, at: usize, key: &str, value: &str) {
        let begun = Instant::now();
        while let Err(error) = self.try_ctl(at, &["put", key, value]) {
            assert!(begun.elapsed() < LIMIT, "{error}");
        }
    }

    #[track_caller]
    pub(crate) fn assert_all_hold(&self, key: &str, value: &str) {
        for at in 0..self.members.len() {
            let begun = Instant::now();
            loop {
                match self.try_ctl(at, &["get", "--print-value-only", key]) {
                    Ok(text) if text.trim() == value => break,
                    other => assert!(begun.elapsed() < LIMIT, "{}: {other:?}", self.members[at].name),
                }
            }
        }
    }

    /// The ids that members have, by their own ledgers.
    pub(crate) fn ids(&self, at: usize) -> (String, String) {
        let status = self.status(at);
        let text = |key: &str| status[key].as_str().unwrap_or_else(|| panic!("{status}")).to_owned();
        (text("cluster_id"), text("member_id"))
    }

    /// One cluster, and as many members as declared.
    #[track_caller]
    pub(crate) fn assert_one_cluster(&self) -> String {
        let clusters: std::collections::BTreeSet<String> = (0..self.members.len()).map(|at| self.ids(at).0).collect();
        assert_eq!(clusters.len(), 1, "{clusters:?}");
        let list = self.ctl(0, &["member", "list"]);
        assert_eq!(list.lines().count(), self.members.len(), "{list}");
        clusters.into_iter().next().unwrap()
    }
}

impl Drop for Declared {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut agent) = member.agent.take() {
                if std::thread::panicking() {
                    eprintln_log(&member.name, &agent);
                }
                agent.kill();
            }
        }
        // Shims and servers outlive their agents, as they should.
        end_all_below(self.root.path());
    }
}

#[expect(clippy::print_stderr, reason = "a failing test shows what its agents said")]
fn eprintln_log(name: &str, agent: &Running) {
    eprintln!("--- {name} ---\n{}", agent.log_tail(40));
}

/// SIGKILL to every process whose command line names a path below `dir`.
pub(crate) fn end_all_below(dir: &Path) {
    let dir = dir.display().to_string();
    let begun = Instant::now();
    loop {
        let mut found = false;
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
            let line = String::from_utf8_lossy(&line);
            if pid != std::process::id() && line.split('\0').any(|word| word.contains(&format!("{dir}/"))) {
                // A member's folder may begin another's name.
                found = true;
                quorate_testkit::kill_hard(pid);
            }
        }
        if !found || begun.elapsed() > Duration::from_secs(10) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An authority, and a certificate for each member.
pub(crate) fn certificates(dir: &Path, count: usize) {
    let put =
        |name: &str, text: &str| std::fs::File::create(dir.join(name)).unwrap().write_all(text.as_bytes()).unwrap();
    let ca = authority("ca");
    put("ca.pem", &ca.pem());
    for number in 1..=count {
        let (cert, key) = leaf(&ca, &["127.0.0.1"]);
        put(&format!("n{number}.pem"), &cert);
        let file = format!("n{number}.key");
        put(&file, &key);
        std::fs::set_permissions(dir.join(file), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    // Clients of etcd: one by its name, one by a host that is no member's; and one that claims to be an operator.
    let operator = leaf(&ca, &["mallory.admin.operator.t.quorate.internal"]);
    let others = [("alice", named(&ca, "alice")), ("nobody", leaf(&ca, &["elsewhere.example"])), ("mallory", operator)];
    for (name, (cert, key)) in others {
        put(&format!("{name}.pem"), &cert);
        put(&format!("{name}.key"), &key);
    }
}

fn named(ca: &CertifiedIssuer<'static, KeyPair>, name: &str) -> (String, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&key, ca).unwrap();
    (cert.pem(), key.serialize_pem())
}

pub(crate) fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

pub(crate) fn leaf(ca: &CertifiedIssuer<'static, KeyPair>, names: &[&str]) -> (String, String) {
    let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&key, ca).unwrap();
    (cert.pem(), key.serialize_pem())
}

/// What a command said, on both streams.
pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The names in a list of `etcdctl member list`, and who of them only learns.
pub(crate) fn members_in(text: &str) -> BTreeMap<String, bool> {
    let member = |line: &str| {
        let parts: Vec<&str> = line.split(", ").collect();
        Some(((*parts.get(2)?).to_owned(), *parts.last()? == "true"))
    };
    text.lines().filter_map(member).collect()
}

/// Whether the member that answered `etcdctl endpoint status --write-out=json` leads.
pub(crate) fn leads(text: &str) -> bool {
    let status: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let status = &status[0]["Status"];
    status["leader"].is_u64() && status["leader"] == status["header"]["member_id"]
}

/// The last lines of every agent.
pub(crate) fn logs_of(agents: &[Option<Running>], lines: usize) -> String {
    let log = |(at, agent): (usize, &Option<Running>)| {
        format!("--- n{}\n{}\n", at + 1, agent.as_ref().map(|agent| agent.log_tail(lines)).unwrap_or_default())
    };
    agents.iter().enumerate().map(log).collect()
}

/// Asks until the answer is as wanted, and returns it; `told` is said where it never is.
#[track_caller]
pub(crate) fn answered(
    limit: Duration,
    ask: impl Fn() -> Value,
    wanted: impl Fn(&Value) -> bool,
    told: impl Fn(&Value) -> String,
) -> Value {
    let begun = Instant::now();
    loop {
        let answer = ask();
        if wanted(&answer) {
            return answer;
        }
        assert!(begun.elapsed() < limit, "{}", told(&answer));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Puts another value into a database, offline: the same length, so that nothing else moves.
pub(crate) fn forge(database: &Path) {
    use std::os::unix::fs::FileExt;
    let bytes = std::fs::read(database).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(database).unwrap();
    // mvcc values are protobuf: field 5 is the value. `k` -> `v` becomes `k` -> `w` in every copy of the page.
    let needle = [0x2a, 0x01, b'v'];
    let places: Vec<usize> = (0..bytes.len() - 3).filter(|at| bytes[*at..at + 3] == needle).collect();
    assert!(!places.is_empty(), "no value `v` in `{}`", database.display());
    for place in places {
        file.write_all_at(b"w", place as u64 + 2).unwrap();
    }
}
