//! PostgreSQL, pgbouncer and haproxy for tests.
//!
//! **Rule:** PostgreSQL does not run as root; a test that does runs it as `nobody`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::process::Running;
use crate::programs::{program, tool};

/// The releases that tests run; 15 is there to be refused.
pub const POSTGRES_MAJORS: [u32; 3] = [18, 17, 16];

/// The directory with the programs of a release.
pub fn postgres(major: u32) -> PathBuf {
    let postgres = tool(&format!("postgres-{major}"), "postgres");
    let bin = postgres.parent().expect("a program lies in a directory");
    let is_open = |dir: &Path| std::fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0);
    if unprivileged().is_none() || bin.ancestors().all(is_open) {
        return bin.to_owned();
    }
    shared_copy(bin.parent().expect("programs lie in a release")).join("bin")
}

/// A copy where everyone may execute it: the checkout may lie where `nobody` cannot go.
fn shared_copy(release: &Path) -> PathBuf {
    let name = release.file_name().expect("a release has a name").to_string_lossy().into_owned();
    let to = std::env::temp_dir().join(format!("quorate-tests-{name}"));
    if !to.exists() {
        let new = to.with_extension(std::process::id().to_string());
        crate::run(std::process::Command::new("cp").args(["-rL", "--no-preserve=ownership"]).arg(release).arg(&new));
        crate::run(std::process::Command::new("chmod").args(["-R", "a+rX"]).arg(&new));
        // Whoever was first has made the same.
        #[expect(clippy::disallowed_methods, reason = "a test's own files")]
        let _ = std::fs::rename(&new, &to);
    }
    to
}

/// pgbouncer.
pub fn pgbouncer() -> PathBuf {
    program("pgbouncer")
}

/// haproxy.
pub fn haproxy() -> PathBuf {
    program("haproxy")
}

/// Who runs servers that do not run as root: `None` where we are not root ourselves.
pub fn unprivileged() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("every machine has a list of users");
    let line = users.lines().find(|line| line.starts_with("nobody:")).expect("every machine has a user `nobody`");
    let mut parts = line.split(':').skip(2).map(|part| part.parse().expect("users have numbers"));
    Some((parts.next().expect("a user"), parts.next().expect("a group")))
}

/// Starts a program as [`unprivileged`].
pub fn start_unprivileged(path: &Path, args: &[String]) -> Running {
    let Some((uid, gid)) = unprivileged() else { return Running::start(path, args, &[]) };
    let mut all = vec!["--pdeathsig".to_owned(), "KILL".to_owned()];
    all.extend([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".to_owned()]);
    all.push(path.display().to_string());
    all.extend_from_slice(args);
    Running::start(&program("setpriv"), &all, &[])
}
