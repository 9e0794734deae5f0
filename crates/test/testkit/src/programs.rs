//! Where the programs are that tests run: on the PATH, in `.tools/`, or built from this workspace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::process::run;

/// The top of this checkout.
pub fn project_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(3).expect("testkit lies three folders below the top").to_owned()
}

/// A program of `.tools/`, for example `tool("etcd-3.5.16", "etcd")`.
pub(crate) fn tool(package: &str, name: &str) -> PathBuf {
    let path = project_root().join(".tools").join(package).join("bin").join(name);
    assert!(path.exists(), "`{}` is missing: run `make tools`", path.display());
    path
}

/// A system program, also from the places that only root has on the PATH.
pub(crate) fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    let found = std::env::split_paths(&path).chain(more).map(|dir| dir.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("`{name}` is missing: run `make tools`"))
}

/// Consul; `agent -dev -bind 127.0.0.1` serves at once.
pub fn consul() -> PathBuf {
    tool("consul-1.8.7", "consul")
}

/// A small DNS server that takes SRV records as flags.
pub fn dnsmasq() -> PathBuf {
    program("dnsmasq")
}

/// Shows, and fails, system calls.
pub fn strace() -> PathBuf {
    program("strace")
}

/// Copies a program that is to be executed from there. Another process does it: a file that this one has open for writing when one of
/// its threads starts anything stays open there for a moment, and cannot be executed meanwhile.
pub fn copy_program(of: &Path, to: &Path) {
    run(Command::new("cp").arg("--").arg(of).arg(to));
}

/// The `quorate` program of the profile that this test was built with; built first when it is missing or older than its
/// sources. `QUORATE_BIN` names another one.
pub fn quorate() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(find_or_build).clone()
}

fn find_or_build() -> PathBuf {
    if let Some(path) = std::env::var_os("QUORATE_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile_dir = test.ancestors().find(|dir| !dir.ends_with("deps") && dir.is_dir());
    let profile_dir = profile_dir.expect("a test lies in target/<profile>/deps").to_owned();
    let binary = profile_dir.join("quorate");
    if !is_fresh(&binary) {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        // The whole workspace is selected so that the features, and with them the built dependencies, stay the same.
        build.current_dir(project_root()).args(["build", "--quiet", "--locked", "--workspace", "--bin", "quorate"]);
        // The folder has the name of its profile, but for that of `dev`.
        let profile = profile_dir.file_name().and_then(|name| name.to_str()).filter(|name| *name != "debug");
        build.args(profile.iter().flat_map(|profile| ["--profile", profile]));
        run(&mut build);
    }
    assert!(binary.exists(), "`{}` is missing after building it: run `cargo build`", binary.display());
    binary
}

fn is_fresh(binary: &Path) -> bool {
    let Some(built) = modified(binary) else { return false };
    let root = project_root();
    let sources = ["crates/pure", "crates/effects", "crates/app", "docs/faults", "Cargo.lock", "Cargo.toml"];
    sources.iter().all(|source| newest(&root.join(source)).is_none_or(|changed| changed <= built))
}

/// When the newest source below `path` changed; tests are no part of the program.
fn newest(path: &Path) -> Option<SystemTime> {
    if !path.is_dir() {
        return modified(path);
    }
    let entries = std::fs::read_dir(path).ok()?;
    let below = entries.flatten().filter(|entry| entry.file_name() != "tests");
    below.filter_map(|entry| newest(&entry.path())).max()
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|meta| meta.modified()).ok()
}
