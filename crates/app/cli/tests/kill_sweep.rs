//! `quorate data init`, killed before each system call that touches the target.
//!
//! The system calls of an undisturbed run are listed with strace; then there is one run for each of them that is killed as
//! it enters that call. After each kill the target must be nothing that etcd would start on, or the whole; and the next
//! run must make it whole, byte for byte, and leave no partial name behind. (What a *power cut* can leave is another
//! matter, and is tested with the recorded operations in `crates/effects/etcd/tests/crash_init.rs`.)
//!
//! "Nothing that etcd would start on" is: no `member` directory, and no `*.wal` in a separate WAL dir; or that WAL dir
//! whole and no `member`, on which etcd stops with an error.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod init_support;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use quorate_testkit::{quorate, strace};

use init_support::{Node, read};

/// Every call that changes something or could come between two changes. `?`: not every machine has each of them.
const CALLS: &str = "?mkdir,?mkdirat,?open,?openat,?write,?pwrite64,?fsync,?fdatasync,?rename,?renameat,?renameat2,?link,\
                     ?linkat,?unlink,?unlinkat,?rmdir,?chmod,?fchmod,?fchmodat,?chown,?fchown,?fchownat,?ftruncate,?flock";

/// A target, and what is there before.
struct Scene {
    name: &'static str,
    wal: Option<&'static str>,
    dirs: &'static [&'static str],
}

const SCENES: [Scene; 5] = [
    Scene { name: "beside", wal: None, dirs: &[] },
    Scene { name: "inside an empty dir", wal: None, dirs: &["data"] },
    Scene { name: "separate WAL", wal: Some("wal"), dirs: &[] },
    Scene { name: "separate WAL, both inside empty dirs", wal: Some("wal"), dirs: &["data", "wal"] },
    Scene { name: "over a left-over", wal: None, dirs: &["data.partial-1", "data.partial-1/member"] },
];

type Tree = BTreeMap<PathBuf, Node>;

fn below(tree: &Tree, dir: &str) -> Tree {
    tree.iter().filter(|(path, _)| path.starts_with(dir)).map(|(path, node)| (path.clone(), node.clone())).collect()
}

fn segments(tree: &Tree) -> Tree {
    let is_segment = |path: &Path| path.starts_with("wal") && path.extension().is_some_and(|end| end == "wal");
    tree.iter().filter(|(path, _)| is_segment(path)).map(|(path, node)| (path.clone(), node.clone())).collect()
}

impl Scene {
    fn set_up(&self) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for dir in self.dirs {
            std::fs::create_dir(root.path().join(dir)).unwrap();
        }
        root
    }

    fn args(&self, root: &Path) -> Vec<String> {
        let mut args = vec!["data", "init", "--name", "n2", "--token", "sweep", "--output", "json"];
        args.extend(["--member", "n1=http://127.0.0.1:2380", "--member", "n2=http://127.0.0.1:2381"]);
        args.extend(["--member", "n3=http://127.0.0.1:2382"]);
        let mut args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        args.extend(["--data-dir".to_owned(), root.join("data").display().to_string()]);
        if let Some(wal) = self.wal {
            args.extend(["--wal-dir".to_owned(), root.join(wal).display().to_string()]);
        }
        args
    }

    fn run(&self, root: &Path) -> Output {
        Command::new(quorate()).args(self.args(root)).output().unwrap()
    }

    fn run_traced(&self, root: &Path, trace: &[&str]) -> Output {
        Command::new(strace())
            .args(["-f", "-qq", "-y"])
            .args(trace)
            .arg(quorate())
            .args(self.args(root))
            .output()
            .unwrap()
    }

    /// The calls of an undisturbed run that have to do with the target: name, and the how-manieth of that name.
    fn calls(&self) -> Vec<(String, usize)> {
        let root = self.set_up();
        let log = tempfile::NamedTempFile::new().unwrap();
        let log_path = log.path().display().to_string();
        let output = self.run_traced(root.path(), &["-o", &log_path, "-e", &format!("trace={CALLS}")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let marker = root.path().display().to_string();
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let mut calls = Vec::new();
        for line in std::fs::read_to_string(log.path()).unwrap().lines() {
            // `4711 openat(AT_FDCWD</tmp>, "/tmp/x/data.partial-1", …) = 3</tmp/x/data.partial-1>`
            let Some((name, _)) = line.split_whitespace().nth(1).and_then(|word| word.split_once('(')) else {
                continue;
            };
            let number = seen.entry(name.to_owned()).or_insert(0);
            *number += 1;
            if line.contains(&marker) {
                calls.push((name.to_owned(), *number));
            }
        }
        calls
    }

    fn assert_nothing_or_whole(&self, tree: &Tree, whole: &Tree, when: &str) {
        let member = below(tree, "data/member");
        let wal_whole = segments(tree) == segments(whole);
        let verdict = match (member.is_empty(), segments(tree).is_empty()) {
            (true, true) => true,
            (true, false) => wal_whole,
            (false, _) => member == below(whole, "data/member") && wal_whole,
        };
        assert!(verdict, "{}, killed {when}: neither nothing nor the whole: {:?}", self.name, tree.keys());
    }

    /// Says how many kills there were, and where.
    fn sweep(&self) -> String {
        let root = self.set_up();
        assert!(self.run(root.path()).status.success());
        let whole = read(root.path());
        assert!(whole.keys().all(|path| !path.to_string_lossy().contains(".partial-")));
        let calls = self.calls();
        let names: BTreeSet<&str> = calls.iter().map(|(name, _)| name.as_str()).collect();
        assert!(["fsync", "write"].iter().all(|name| names.contains(name)), "{names:?}");
        for (name, number) in &calls {
            let when = format!("before `{name}` number {number}");
            let root = self.set_up();
            let inject = format!("inject={name}:signal=KILL:when={number}");
            let killed =
                self.run_traced(root.path(), &["-o", "/dev/null", "-e", &format!("trace={name}"), "-e", &inject]);
            assert_eq!(killed.status.signal(), Some(9), "{}: not killed {when}", self.name);
            let left = read(root.path());
            self.assert_nothing_or_whole(&left, &whole, &when);
            let again = self.run(root.path());
            let words = String::from_utf8_lossy(&again.stderr).into_owned();
            assert!(again.status.success(), "{}, killed {when}: {words}", self.name);
            let partial_was_left = left.keys().any(|path| path.to_string_lossy().contains(".partial-"));
            assert_eq!(words.contains("Q0206"), partial_was_left, "{}, killed {when}: {words}", self.name);
            assert_eq!(read(root.path()), whole, "{}, killed {when}", self.name);
        }
        format!("{}: {} kills at {names:?}", self.name, calls.len())
    }
}

#[test]
fn killed_beside_an_absent_target_leaves_nothing_or_the_whole() {
    println!("{}", SCENES[0].sweep());
}

#[test]
fn killed_inside_an_empty_target_leaves_nothing_or_the_whole() {
    println!("{}", SCENES[1].sweep());
}

#[test]
fn killed_with_a_separate_wal_leaves_nothing_or_the_whole() {
    println!("{}", SCENES[2].sweep());
}

#[test]
fn killed_inside_two_empty_dirs_leaves_nothing_or_the_whole() {
    println!("{}", SCENES[3].sweep());
}

#[test]
fn killed_while_removing_a_left_over_leaves_nothing_or_the_whole() {
    println!("{}", SCENES[4].sweep());
}
