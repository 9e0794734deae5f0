//! The same commands for a normal user on its own member, and for one who has no business there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;
mod ops_support;

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use agent_support::Place;
use ops_support::{LIMIT, audited, code, err, failed, file, good, json, put, rooted, state};
use quorate_testkit::{Running, copy_program, quorate, wait_until};

const USER: &str = "65534";
const STRANGER: &str = "65533";

/// A copy where everyone may execute it: the checkout may lie where normal users cannot go.
fn shared_copy(of: &Path, to: &Path) {
    if std::fs::hard_link(of, to).is_err() {
        copy_program(of, to);
    }
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755)).unwrap();
}

struct Home {
    place: Place,
    program: PathBuf,
    /// `setpriv` and its flags, where we are root and can be someone else.
    as_user: Vec<String>,
    as_stranger: Vec<String>,
}

fn home() -> Home {
    let mut place = rooted("3.5.16");
    let root = place.root.path().to_owned();
    let program = root.join("quorate");
    shared_copy(&quorate(), &program);
    for name in ["etcd", "etcdctl"] {
        shared_copy(&place.tools.etcd.with_file_name(name), &root.join(name));
    }
    place.binary = root.join("etcd");
    put(&root.join("etc/quorate/cluster.yaml"), &file(&place, ""));
    put(&root.join("cluster.yaml"), &file(&place, ""));
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
    let setpriv = |uid: &str| ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"].map(str::to_owned).to_vec();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        for dir in ["", "var", "var/lib"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
            chown(root.join(dir), USER.parse().ok(), USER.parse().ok()).unwrap();
        }
    }
    let (as_user, as_stranger) = if is_root { (setpriv(USER), setpriv(STRANGER)) } else { (Vec::new(), Vec::new()) };
    Home { place, program, as_user, as_stranger }
}

impl Home {
    fn command(&self, prefix: &[String], args: &[&str]) -> Command {
        let program = self.program.display().to_string();
        let words: Vec<String> =
            prefix.iter().cloned().chain([program]).chain(args.iter().map(|a| (*a).to_owned())).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).current_dir("/");
        command.envs(self.place.env.iter().map(|(name, value)| (name, value)));
        command
    }

    fn user(&self, args: &[&str]) -> Output {
        self.command(&self.as_user, args).output().unwrap()
    }

    fn agent(&self) -> Running {
        let config = self.place.path("cluster.yaml").display().to_string();
        let program = self.program.display().to_string();
        let words: Vec<String> = self
            .as_user
            .iter()
            .cloned()
            .chain([program])
            .chain(["run", "--config", &config].map(str::to_owned))
            .collect();
        let first = if self.as_user.is_empty() { PathBuf::from(&words[0]) } else { "/usr/bin/setpriv".into() };
        let mut agent = Running::start(&first, &words[1..], &self.place.env);
        self.place.wait_ready(&mut agent);
        agent
    }
}

#[test]
fn a_normal_user_operates_its_own_member() {
    let home = home();
    let mut agent = home.agent();
    let uid = if home.as_user.is_empty() { rustix::process::geteuid().as_raw().to_string() } else { USER.to_owned() };
    let list = json(&home.user(&["ps", "--output", "json"]));
    let pid = list["processes"][0]["pid"].as_u64().unwrap();
    assert_eq!(list["processes"][0]["confinement"]["uid"].to_string(), uid, "{list}");
    assert_eq!(good(&home.user(&["pid", "etcd"])), format!("{pid}\n"));
    assert!(good(&home.user(&["logs", "etcd"])).contains("ready to serve"));
    assert_eq!(good(&home.user(&["exec", "etcd", "--tools", "--", "id", "-u"])), format!("{uid}\n"));
    assert_eq!(code(&home.user(&["exec", "etcd", "--tools", "--", "/bin/sh", "-c", "exit 7"])), 7);
    assert!(good(&home.user(&["ctl", "member", "list"])).contains(&home.place.seat.client_url()));
    good(&home.user(&["ctl", "put", "a", "b"]));
    let trace = || home.user(&["trace", "etcd", "--duration", "1s"]);
    // Some kernels keep all normal users from tracing; then that is said, and nothing else happens.
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(scope) if scope.trim() != "0" && uid != "0" => drop(failed(&trace(), 1, "Q1154")),
        _ => wait_until("system calls", LIMIT, || good(&trace()).contains('(')),
    }
    let commands: Vec<String> = audited(&state(&home.place)).iter().map(|line| line["command"].to_string()).collect();
    assert!(
        commands.starts_with(&["\"exec\"".to_owned(), "\"exec\"".to_owned(), "\"ctl\"".to_owned()]),
        "{commands:?}"
    );

    if !home.as_user.is_empty() {
        others(&home, &uid);
    }
    agent.stop();
    wait_until("the end", LIMIT, || code(&home.user(&["pid", "etcd"])) == 1);
}

/// Root on the member of another user, and a user who is neither.
fn others(home: &Home, uid: &str) {
    let root = |args: &[&str]| home.command(&[], args).output().unwrap();
    assert_eq!(good(&root(&["exec", "etcd", "--tools", "--", "id", "-u"])), format!("{uid}\n"));
    assert_eq!(good(&root(&["exec", "etcd", "--tools", "--", "id", "-G"])), format!("{uid}\n"));
    let rights = good(&root(&["exec", "etcd", "--tools", "--", "cat", "/proc/self/status"]));
    assert!(rights.contains("CapEff:\t0000000000000000"), "{rights}");
    // Root wrote to the log, and the user still can.
    good(&home.user(&["exec", "etcd", "--tools", "--", "true"]));
    let stranger = |args: &[&str]| home.command(&home.as_stranger, args).output().unwrap();
    for args in
        [vec!["ps"], vec!["pid", "etcd"], vec!["exec", "etcd", "--", "true"], vec!["trace", "etcd"], vec!["audit"]]
    {
        let refused = failed(&stranger(&args), 2, "Q0006");
        let way_out = "run it as root, or as the user that the agent runs as";
        assert!(refused.contains("state dir") && refused.contains(way_out), "{args:?}: {refused}");
    }
    // What cannot be looked at is not said to be missing.
    let explained = stranger(&["box", "explain", "etcd"]);
    assert_eq!(code(&explained), 0, "{}", err(&explained));
    assert!(err(&explained).contains("state dir") && !err(&explained).contains("cluster file"), "{}", err(&explained));
    assert!(!err(&stranger(&["ctl", "member", "list"])).contains("panic"));
}
