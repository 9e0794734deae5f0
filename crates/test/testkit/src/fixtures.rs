//! Files that real etcd servers wrote, kept in the checkout, and what those servers said about them.
//!
//! **Rule:** a test gets its own copy of a data dir; single files are shared and must not be changed.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{output, run};
use crate::programs::{program, project_root};

/// The versions whose data dir, snapshot and answers are kept.
pub const FIXTURE_VERSIONS: [&str; 4] = ["3.4.23", "3.5.16", "3.5.30", "3.6.14"];

/// The folder that holds all of them.
pub fn fixtures_root() -> PathBuf {
    project_root().join("crates/test/testkit/fixtures")
}

/// A fresh copy of the data dir that etcd `version` left behind; `member/` lies directly in it.
pub fn fixture_dir(version: &str) -> TempDir {
    unpack(&fixtures_root().join(format!("etcd-{version}/datadir.tar.xz")), "xz", 0)
}

/// A fresh copy of a data dir packed as `golden/NAME.tar.zst`; `member/` lies directly in it.
pub fn golden_dir(name: &str) -> TempDir {
    unpack(&fixtures_root().join(format!("golden/{name}.tar.zst")), "zstd", 1)
}

/// The bytes of the snapshot file that etcd `version` saved.
pub fn snapshot_bytes(version: &str) -> Vec<u8> {
    let packed = fixtures_root().join(format!("etcd-{version}/snapshot.db.xz"));
    let mut command = Command::new(program("xz"));
    let output = output(command.args(["--decompress", "--stdout"]).arg(&packed));
    assert!(
        output.status.success(),
        "cannot unpack `{}`: {}",
        packed.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// The same as a file in the build directory. Shared by all tests: do not change it.
pub fn snapshot(version: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let dir = test.parent().expect("a test lies in a directory").join("quorate-fixtures");
    let path = dir.join(format!("snapshot-{version}.db"));
    let bytes = snapshot_bytes(version);
    if std::fs::read(&path).is_ok_and(|there| there == bytes) {
        return path;
    }
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("cannot create `{}`: {e}", dir.display()));
    let fresh = tempfile::NamedTempFile::new_in(&dir).expect("a temporary file can be made");
    std::io::Write::write_all(&mut fresh.as_file(), &bytes).expect("a temporary file can be written");
    fresh.persist(&path).unwrap_or_else(|e| panic!("cannot place `{}`: {e}", path.display()));
    path
}

/// A file of `fixtures/golden`, for example `restored-3.5.16.wal`.
pub fn golden(name: &str) -> Vec<u8> {
    read(&fixtures_root().join("golden").join(name))
}

/// The names of all files in `fixtures/golden`, sorted.
pub fn golden_names() -> Vec<String> {
    let dir = fixtures_root().join("golden");
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("cannot read `{}`: {e}", dir.display()));
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// What etcd `version` answered about its fixture: `what` is `status`, `members`, `hashkv`, `snapshot-status` or `keys`.
pub fn expected(version: &str, what: &str) -> Value {
    let path = fixtures_root().join(format!("etcd-{version}/{what}.json"));
    serde_json::from_slice(&read(&path)).unwrap_or_else(|e| panic!("`{}` is not JSON: {e}", path.display()))
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("cannot read `{}`: {e}", path.display()))
}

fn unpack(archive: &Path, packer: &str, strip: u32) -> TempDir {
    let dir = TempDir::with_prefix("quorate-fixture-").expect("a temporary directory can be made");
    let mut tar = Command::new(program("tar"));
    tar.arg(format!("--use-compress-program={}", program(packer).display()));
    tar.arg(format!("--strip-components={strip}"))
        .arg("--no-same-owner")
        .arg("-xpf")
        .arg(archive)
        .arg("-C")
        .arg(dir.path());
    run(&mut tar);
    dir
}
