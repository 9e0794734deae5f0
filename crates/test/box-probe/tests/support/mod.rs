//! What the tests of the box share: something to attack, and ways to be boxed.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs::{File, Permissions};
use std::io::Write;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use quorate_host::sandbox::observe_machine;
use quorate_plan::boxes::{BoxSpec, Level, plan_box};
use quorate_testkit::{Port, free_port, run, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROBE: &str = env!("CARGO_BIN_EXE_quorate-box-probe");
/// The user of boxes, and the normal user that tests become.
pub(crate) const NOBODY: u32 = 65534;

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether strict can be had by whoever runs the tests.
pub(crate) fn machine_gives_strict() -> bool {
    let mut spec = BoxSpec::new(Level::Strict);
    spec.limits.memory_bytes = Some(1);
    plan_box(&spec, &observe_machine()).is_ok()
}

pub(crate) fn write(path: &Path, text: &str) {
    File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// A place where a tenant lives beside another.
pub(crate) struct Arena {
    dir: TempDir,
    bystander: Child,
    own: Port,
    other: Port,
    listener: TcpListener,
    _socket: UnixListener,
}

/// In a container that has just begun, numbers of processes are so small that a box has a process of its own with the number of
/// the bystander; so numbers are used up until that is out of the question.
fn pass_small_numbers() {
    for _ in 0..400 {
        let mut child = Command::new("/bin/true").spawn().unwrap();
        let number = child.id();
        child.wait().unwrap();
        if number > 400 {
            return;
        }
    }
}

impl Arena {
    pub(crate) fn new() -> Arena {
        let dir = TempDir::with_prefix("quorate-arena-").unwrap();
        open(dir.path(), 0o755);
        for name in ["data", "foreign"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            // What lets everyone in is not what holds the attacker back.
            open(&dir.path().join(name), 0o777);
        }
        write(&dir.path().join("foreign/data"), "data");
        write(&dir.path().join("foreign/key"), "key");
        open(&dir.path().join("foreign/key"), 0o600);
        // The keys of a node, and the copies of its own ones that etcd's box has.
        for (folder, keys) in
            [("pki", &["peer-ca.key", "agent.key", "admin.key", "peer.key"][..]), ("copies", &["peer.key"])]
        {
            let folder = dir.path().join(folder);
            std::fs::create_dir(&folder).unwrap();
            for key in keys {
                write(&folder.join(key), "key");
                open(&folder.join(key), 0o600);
            }
            open(&folder, 0o700);
        }
        // The checkout may lie where only its owner gets to. Another process copies: a file that this one writes could be
        // held open for a moment by what another thread is just starting, and could not be executed then.
        run(Command::new("cp").arg(PROBE).arg(dir.path().join("probe")));
        open(&dir.path().join("probe"), 0o755);
        if is_root() {
            // The other tenant is the same user.
            let owner = Some(rustix::fs::Uid::from_raw(NOBODY));
            for name in ["data", "foreign", "foreign/data", "foreign/key", "pki", "copies"] {
                rustix::fs::chown(dir.path().join(name), owner, None).unwrap();
            }
            for folder in ["pki", "copies"] {
                for entry in std::fs::read_dir(dir.path().join(folder)).unwrap() {
                    rustix::fs::chown(entry.unwrap().path(), owner, None).unwrap();
                }
            }
        }
        pass_small_numbers();
        let mut command = as_user(dir.path().join("probe"), false);
        let bystander = command.arg("idle").env("SECRET", "s").stdin(Stdio::null()).spawn().unwrap();
        let name = format!("/proc/{}/comm", bystander.id());
        wait_until("the bystander to run", Duration::from_secs(60), || {
            std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "probe")
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = format!("quorate-arena-{}", listener.local_addr().unwrap().port());
        let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        Arena { dir, bystander, own: free_port(), other: free_port(), listener, _socket: socket }
    }

    pub(crate) fn probe(&self) -> PathBuf {
        self.dir.path().join("probe")
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn data(&self) -> String {
        self.dir.path().join("data").display().to_string()
    }

    pub(crate) fn foreign(&self) -> String {
        self.dir.path().join("foreign").display().to_string()
    }

    /// What a box of etcd has of the certificates.
    pub(crate) fn copies(&self) -> String {
        self.dir.path().join("copies").display().to_string()
    }

    pub(crate) fn own_port(&self) -> u16 {
        self.own.number()
    }

    pub(crate) fn other_port(&self) -> u16 {
        self.other.number()
    }

    pub(crate) fn listening_port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    pub(crate) fn surroundings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("PROBE_DATA", self.data()),
            ("PROBE_FOREIGN", self.foreign()),
            ("PROBE_PKI", self.dir.path().join("pki").display().to_string()),
            ("PROBE_PID", self.bystander.id().to_string()),
            ("PROBE_BIND", self.other_port().to_string()),
            ("PROBE_CONNECT", self.listening_port().to_string()),
            ("PROBE_SOCKET", format!("quorate-arena-{}", self.listening_port())),
        ]
    }

    /// The attempts without any box, as whoever runs the tests.
    pub(crate) fn attack_bare(&self) -> String {
        let mut command = Command::new(self.probe());
        let output = command.arg("attack").envs(self.surroundings()).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The attempts in a box; the exit code, and all that was said.
    pub(crate) fn attack_boxed(&self, spec: &BoxSpec, as_root: bool) -> (i32, String) {
        let output = self.keep(spec, as_root, &[self.probe().to_str().unwrap(), "attack"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap_or(-1), String::from_utf8(output.stdout).unwrap() + &said)
    }

    /// A command that runs another in a box.
    pub(crate) fn keep(&self, spec: &BoxSpec, as_root: bool, words: &[&str]) -> Command {
        let file = self.dir.path().join(format!("{}-{}.json", spec.level.name(), words.len()));
        write(&file, &serde_json::to_string(spec).unwrap());
        let mut command = as_user(self.probe(), as_root);
        command.arg("keep").arg(&file).args(words).envs(self.surroundings()).stdin(Stdio::null());
        command
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = self.bystander.kill();
        let _ = self.bystander.wait();
    }
}

pub(crate) fn open(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A command as root, or as a normal user; it dies with the test.
pub(crate) fn as_user(program: PathBuf, as_root: bool) -> Command {
    let mut command = Command::new("/usr/bin/setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if is_root() && !as_root {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    command.arg(program);
    command
}

/// The attempts in a container as `runc spec` describes it: only the program, its libraries and its data are added.
pub(crate) fn runc(arena: &Arena) -> String {
    let bundle = arena.path().join("bundle");
    std::fs::create_dir_all(bundle.join("rootfs")).unwrap();
    let runc = |args: &[&str]| {
        let mut command = Command::new("runc");
        command.current_dir(&bundle).args(args).stdin(Stdio::null());
        command.output().unwrap_or_else(|error| panic!("runc: {error}; run `make tools`"))
    };
    let made = runc(&["spec"]);
    assert!(made.status.success(), "{made:?}");
    let path = bundle.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let process = &mut config["process"];
    process["terminal"] = json!(false);
    process["args"] = json!([arena.probe(), "attack"]);
    for (name, value) in arena.surroundings() {
        process["env"].as_array_mut().unwrap().push(json!(format!("{name}={value}")));
    }
    let mut bind = |path: &str, more: &str| {
        let entry = json!({"destination": path, "source": path, "type": "bind", "options": ["rbind", more]});
        config["mounts"].as_array_mut().unwrap().push(entry);
    };
    for dir in ["/usr/lib", "/lib", "/lib64"].iter().filter(|dir| Path::new(dir).exists()) {
        bind(dir, "ro");
    }
    bind(arena.probe().to_str().unwrap(), "ro");
    bind(&arena.data(), "rw");
    write(&path, &config.to_string());
    let name = format!("quorate-test-{}-{}", std::process::id(), arena.listening_port());
    let output = runc(&["run", &name]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The kernel's release.
pub(crate) fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim().to_owned()
}

pub(crate) fn runc_version() -> String {
    let output = Command::new("runc").arg("--version").output();
    let output = output.unwrap_or_else(|error| panic!("runc: {error}; run `make tools`"));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().next().unwrap_or_default().replace("runc version ", "")
}

/// The groups that a maker of boxes has made and not removed.
pub(crate) fn groups_of(maker: u32) -> Vec<PathBuf> {
    let name = format!("quorate-box-{maker}-*");
    let output = Command::new("find").args(["/sys/fs/cgroup", "-maxdepth", "6", "-name", &name]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(PathBuf::from).collect()
}

/// The directory of the group that holds a process back in one respect: of version 1, or of 2.
pub(crate) fn group_of(pid: u32, controller: &str) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let named = |list: &str| list.split(',').any(|name| name == controller);
    let dirs = mounts.lines().filter_map(|mount| {
        let words: Vec<&str> = mount.split(' ').collect();
        let fits = |line: &str| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let of_first = *words.get(2)? == "cgroup" && named(controllers) && named(words.get(3)?);
            let of_second = *words.get(2)? == "cgroup2" && controllers.is_empty();
            (of_first || of_second).then(|| Path::new(words[1]).join(path.trim_start_matches('/')))
        };
        groups.lines().find_map(fits)
    });
    dirs.into_iter().find(|dir| dir.to_string_lossy().contains("quorate-box-") && dir.is_dir())
}
