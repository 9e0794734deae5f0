//! Runs `quorate data init` and reads what it made.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use quorate_testkit::{copy_program, quorate};

/// The user and group that own nothing.
pub(crate) const NOBODY: u32 = 65534;

/// How a run ended and what it said.
pub(crate) struct Run {
    pub(crate) exit: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn of(command: &mut Command) -> Run {
        let output = command.output().unwrap();
        Run {
            exit: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// `quorate data init` in `dir`, as people see it.
pub(crate) fn init(dir: &Path, args: &[&str]) -> Run {
    Run::of(Command::new(quorate()).current_dir(dir).args(["data", "init"]).args(args))
}

/// The same as machines see it; panics when it fails.
pub(crate) fn init_json(dir: &Path, args: &[&str]) -> serde_json::Value {
    let run = init(dir, &[args, &["--output", "json"]].concat());
    assert_eq!(run.exit, 0, "{args:?}: {}{}", run.stdout, run.stderr);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {}", run.stdout))
}

pub(crate) fn is_root() -> bool {
    // A file of ours tells who we are.
    tempfile::NamedTempFile::new().unwrap().as_file().metadata().unwrap().uid() == 0
}

/// Lets every user into a directory.
pub(crate) fn open_to_all(dir: &Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
}

/// `quorate data init` as a user whom permission bits hold back; as the user we are, unless that is root.
pub(crate) fn init_as_nobody(dir: &Path, args: &[&str]) -> Run {
    let place = tempfile::tempdir().unwrap();
    open_to_all(place.path());
    // The checkout may be closed to others.
    let program = place.path().join("quorate");
    copy_program(&quorate(), &program);
    let mut command = Command::new(&program);
    command.current_dir(dir).args(["data", "init"]).args(args);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Run::of(&mut command)
}

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) mode: u32,
    /// `None`: a directory, or a link.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// Everything below a directory, and the directory itself under the empty path.
pub(crate) fn read(root: &Path) -> BTreeMap<PathBuf, Node> {
    let mut tree = BTreeMap::new();
    let mut stack = vec![PathBuf::new()];
    while let Some(path) = stack.pop() {
        let at = root.join(&path);
        let meta = at.symlink_metadata().unwrap();
        if meta.is_dir() {
            stack.extend(std::fs::read_dir(&at).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
        }
        let bytes = meta.is_file().then(|| std::fs::read(&at).unwrap());
        tree.insert(path, Node { mode: meta.mode() & 0o7777, bytes });
    }
    tree
}

/// The paths below a directory.
pub(crate) fn names(root: &Path) -> Vec<String> {
    read(root).into_keys().skip(1).map(|path| path.display().to_string()).collect()
}

/// When each file and directory was last written to or changed.
pub(crate) fn times(root: &Path) -> BTreeMap<PathBuf, (i64, i64, i64, i64)> {
    let time = |path: &PathBuf| {
        let meta = root.join(path).symlink_metadata().unwrap();
        (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec())
    };
    read(root).into_keys().map(|path| (path.clone(), time(&path))).collect()
}
