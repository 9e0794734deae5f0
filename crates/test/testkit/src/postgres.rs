//! PostgreSQL, pgbouncer and haproxy for tests.
//!
//! **Rule:** PostgreSQL does not run as root; a test that does runs it as `nobody`.

use std::path::{Path, PathBuf};

use crate::process::Running;
use crate::programs::{program, tool};

/// The releases that tests run: 18 and 17; 15 is there to be refused.
pub const POSTGRES_MAJORS: [u32; 2] = [18, 17];

/// The directory with the programs of a release.
pub fn postgres(major: u32) -> PathBuf {
    let postgres = tool(&format!("postgres-{major}"), "postgres");
    postgres.parent().expect("a program lies in a directory").to_owned()
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
