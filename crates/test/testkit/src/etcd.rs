//! Real etcd servers, one or several, on a given data dir.
//!
//! **Rule:** a server is started without any `--initial-*` flag unless the test gives one, and with every check that
//! etcd can make of its own files (`ETCD_VERIFY=all`).

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ports::{Port, free_port};
use crate::process::{Running, output, run};
use crate::programs::{project_root, tool};

/// The releases that every test of compatibility runs against; `sid` is the newest 3.5 there is.
pub const VERSIONS: [&str; 3] = ["3.4.23", "3.5.16", "sid"];

const READY_LIMIT: Duration = Duration::from_secs(60);

/// The programs of one etcd release.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The release in digits, also for `sid`.
    pub version: String,
    /// The server.
    pub etcd: PathBuf,
    /// The client.
    pub etcdctl: PathBuf,
    /// The offline tool. 3.4 has none: there it is `etcdctl`, which knew `snapshot status` and `snapshot restore` then.
    pub etcdutl: PathBuf,
}

/// The release that a test of changes runs on: the one that it names, or that of `QUORATE_TEST_ETCD`, for all of them in turn.
/// That may be the directory of any release's programs, too.
pub fn release_or(version: &str) -> String {
    std::env::var("QUORATE_TEST_ETCD").unwrap_or_else(|_| version.to_owned())
}

/// The releases whose directories were given: in `QUORATE_TEST_ETCD`, or in `ETCD_DIR`, separated by blanks.
pub fn given_releases() -> Vec<Tools> {
    let named = ["QUORATE_TEST_ETCD", "ETCD_DIR"].map(|name| std::env::var(name).unwrap_or_default());
    let dirs = named.iter().flat_map(|dirs| dirs.split_whitespace()).filter(|dir| dir.contains('/'));
    dirs.map(|dir| etcd_in(&project_root().join(dir))).collect()
}

/// The release of `QUORATE_TEST_ETCD`, where it has what a test is about, and otherwise the one that the test names.
pub fn release_where(has: impl Fn(&Tools) -> bool, version: &str) -> String {
    let given = std::env::var("QUORATE_TEST_ETCD").ok().filter(|given| has(&etcd(given)));
    given.unwrap_or_else(|| version.to_owned())
}

/// The programs of release `version` (one of [`VERSIONS`]), or those in a directory.
pub fn etcd(version: &str) -> Tools {
    if version.contains('/') {
        return etcd_in(Path::new(version));
    }
    let package = format!("etcd-{version}");
    let server = tool(&package, "etcd");
    let client = tool(&package, "etcdctl");
    let offline = if version.starts_with("3.4.") { client.clone() } else { tool(&package, "etcdutl") };
    let real = std::fs::canonicalize(project_root().join(".tools").join(&package)).expect("the package was just found");
    let digits = real.file_name().unwrap_or_default().to_string_lossy().replace("etcd-", "");
    Tools { version: digits, etcd: server, etcdctl: client, etcdutl: offline }
}

/// The programs of a release that was unpacked into a directory.
fn etcd_in(dir: &Path) -> Tools {
    let [server, client, offline] = ["etcd", "etcdctl", "etcdutl"].map(|name| {
        let found = [dir.join(name), dir.join("bin").join(name)].into_iter().find(|path| path.exists());
        found.unwrap_or_else(|| panic!("`{}` has no `{name}`", dir.display()))
    });
    let said = run(Command::new(&server).arg("--version"));
    let digits = said.lines().find_map(|line| line.strip_prefix("etcd Version: ")).expect("etcd says its version");
    Tools { version: digits.trim().to_owned(), etcd: server, etcdctl: client, etcdutl: offline }
}

impl Tools {
    /// `etcdctl` with these arguments, not yet run.
    pub fn ctl_command(&self, endpoints: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.etcdctl);
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(endpoints).args(args);
        command
    }

    /// Runs `etcdctl` against `endpoints`; panics when it fails.
    pub fn ctl(&self, endpoints: &str, args: &[&str]) -> String {
        run(&mut self.ctl_command(endpoints, args))
    }

    /// The same, with the failure's words as the error.
    pub fn try_ctl(&self, endpoints: &str, args: &[&str]) -> Result<String, String> {
        let output = output(&mut self.ctl_command(endpoints, args));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(said) } else { Err(said + &String::from_utf8_lossy(&output.stderr)) }
    }

    /// Runs `etcdctl -w json`.
    pub fn ctl_json(&self, endpoints: &str, args: &[&str]) -> Value {
        let mut with_json = vec!["-w", "json"];
        with_json.extend(args);
        parse(&self.ctl(endpoints, &with_json))
    }

    /// Runs the offline tool; panics when it fails.
    pub fn utl(&self, args: &[&str]) -> String {
        run(Command::new(&self.etcdutl).env("ETCDCTL_API", "3").args(args))
    }

    /// Runs the offline tool with `-w json`.
    pub fn utl_json(&self, args: &[&str]) -> Value {
        let mut with_json = vec!["-w", "json"];
        with_json.extend(args);
        parse(&self.utl(&with_json))
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("not JSON ({e}): {text}"))
}

/// A member's name and its ports, reserved before any server runs on them and kept over restarts.
#[derive(Debug, Clone)]
pub struct Seat {
    /// The member's name.
    pub name: String,
    ports: Arc<(Port, Port)>,
}

impl Seat {
    /// Reserves a client and a peer port for `name`.
    pub fn new(name: &str) -> Seat {
        Seat { name: name.to_owned(), ports: Arc::new((free_port(), free_port())) }
    }

    /// Seats `n1` to `n<count>`.
    pub fn many(count: usize) -> Vec<Seat> {
        (1..=count).map(|i| Seat::new(&format!("n{i}"))).collect()
    }

    /// Where clients connect.
    pub fn client_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.0)
    }

    /// Where the other members connect.
    pub fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.1)
    }
}

/// How a server is to be started.
#[derive(Debug)]
pub struct Launch {
    tools: Tools,
    seat: Seat,
    data_dir: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Launch {
    /// Start the server of `tools` for the member at `seat` on `data_dir`.
    pub fn new(tools: &Tools, seat: &Seat, data_dir: &Path) -> Launch {
        let flags = [
            ("name", seat.name.clone()),
            ("data-dir", data_dir.display().to_string()),
            ("listen-client-urls", seat.client_url()),
            ("advertise-client-urls", seat.client_url()),
            ("listen-peer-urls", seat.peer_url()),
        ];
        let args = flags.map(|(flag, value)| format!("--{flag}={value}")).to_vec();
        // Unsupported architectures need the variable; elsewhere it changes nothing.
        let env = vec![("ETCD_VERIFY".to_owned(), "all".to_owned()), arch_permission()];
        Launch { tools: tools.clone(), seat: seat.clone(), data_dir: data_dir.to_owned(), args, env }
    }

    /// Adds a flag.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Launch {
        self.args.push(arg.into());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Launch {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server and does not wait.
    pub fn spawn(self) -> Server {
        let running = Running::start(&self.tools.etcd, &self.args, &self.env);
        Server { tools: self.tools, seat: self.seat, data_dir: self.data_dir, running }
    }

    /// Starts the server and waits until it answers a read that needs a leader.
    pub fn start(self) -> Server {
        let mut server = self.spawn();
        server.wait_ready();
        server
    }
}

fn arch_permission() -> (String, String) {
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { std::env::consts::ARCH };
    ("ETCD_UNSUPPORTED_ARCH".to_owned(), arch.to_owned())
}

/// A running etcd server. Dropped, it is killed.
#[derive(Debug)]
pub struct Server {
    /// Its release.
    pub tools: Tools,
    /// Its name and ports.
    pub seat: Seat,
    /// Its data dir.
    pub data_dir: PathBuf,
    /// Its process and log.
    pub running: Running,
}

impl Server {
    /// Starts a server and waits until it is ready; see [`Launch`] for more settings.
    pub fn start(tools: &Tools, seat: &Seat, data_dir: &Path) -> Server {
        Launch::new(tools, seat, data_dir).start()
    }

    /// Waits until it answers a read that needs a leader; panics with its log when it ends or takes over a minute.
    pub fn wait_ready(&mut self) {
        let start = Instant::now();
        let address = self.seat.client_url().replace("http://", "");
        loop {
            if let Some(status) = self.running.ended() {
                panic!(
                    "etcd `{}` ended ({status}) before it was ready:\n{}",
                    self.seat.name,
                    self.running.log_tail(40)
                );
            }
            // A connection costs nothing; only when one is taken is it worth to run a client.
            if TcpStream::connect(&address).is_ok() && self.try_ctl(&["endpoint", "health"]).is_ok() {
                return;
            }
            let waited = start.elapsed();
            assert!(
                waited < READY_LIMIT,
                "etcd `{}` is not ready after {waited:?}:\n{}",
                self.seat.name,
                self.running.log_tail(40)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs `etcdctl` against this server; panics when it fails.
    pub fn ctl(&self, args: &[&str]) -> String {
        self.tools.ctl(&self.seat.client_url(), args)
    }

    /// The same, with the failure's words as the error.
    pub fn try_ctl(&self, args: &[&str]) -> Result<String, String> {
        self.tools.try_ctl(&self.seat.client_url(), args)
    }

    /// Runs `etcdctl -w json` against this server.
    pub fn ctl_json(&self, args: &[&str]) -> Value {
        self.tools.ctl_json(&self.seat.client_url(), args)
    }

    /// The value of `key`, if it has one.
    pub fn get(&self, key: &str) -> Option<String> {
        let text = self.ctl(&["get", "--print-value-only", key]);
        (!text.is_empty()).then(|| text.trim_end_matches('\n').to_owned())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// SIGTERM, then waits for the end.
    pub fn stop(mut self) -> ExitStatus {
        self.running.stop()
    }

    /// SIGKILL.
    pub fn kill(mut self) -> ExitStatus {
        self.running.kill()
    }
}

/// Several servers that are members of one cluster.
#[derive(Debug)]
pub struct Cluster {
    /// The members, in the order given.
    pub servers: Vec<Server>,
}

impl Cluster {
    /// Starts a server on each founded data dir, all at once, and waits until each is ready.
    pub fn start(tools: &Tools, members: &[(Seat, PathBuf)]) -> Cluster {
        let launches = members.iter().map(|(seat, dir)| Launch::new(tools, seat, dir));
        Cluster::launch(launches.collect())
    }

    /// The same with settings of one's own.
    pub fn launch(launches: Vec<Launch>) -> Cluster {
        let mut servers: Vec<Server> = launches.into_iter().map(Launch::spawn).collect();
        for server in &mut servers {
            server.wait_ready();
        }
        Cluster { servers }
    }

    /// The client URLs, as `etcdctl --endpoints` takes them.
    pub fn endpoints(&self) -> String {
        let urls: Vec<String> = self.servers.iter().map(|server| server.seat.client_url()).collect();
        urls.join(",")
    }

    /// Runs `etcdctl` against all members; panics when it fails.
    pub fn ctl(&self, args: &[&str]) -> String {
        self.servers[0].tools.ctl(&self.endpoints(), args)
    }

    /// Runs `etcdctl -w json` against all members.
    pub fn ctl_json(&self, args: &[&str]) -> Value {
        self.servers[0].tools.ctl_json(&self.endpoints(), args)
    }

    /// SIGTERM to all, then waits for all.
    pub fn stop(mut self) {
        for server in &self.servers {
            server.running.signal(rustix::process::Signal::TERM);
        }
        for server in &mut self.servers {
            server.running.stop();
        }
    }
}
