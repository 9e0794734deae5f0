//! Finds the programs of PostgreSQL and asks which version they are.
//!
//! **Rule:** what cannot filter changes by their origin (PostgreSQL 15 and before) is refused: a group of such servers would
//! send every change around for ever.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quorate_faults::{Code, Fault};

/// The first release with `origin = none`.
pub const MAJOR_MIN: u32 = 16;
/// Where Debian and its relatives put each major version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A release, such as 18.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    /// The part that decides about the format of data.
    pub major: u32,
    /// The bug-fix release.
    pub minor: u32,
}

impl std::fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// The directory with `postgres` and `initdb`.
    pub bin: PathBuf,
    /// Their version.
    pub version: ServerVersion,
}

/// Where to look.
#[derive(Debug, Clone, Default)]
pub struct Places<'a> {
    /// A directory that was named; nothing else is looked at then.
    pub named: Option<&'a Path>,
    /// The value of `PATH`.
    pub path: Option<&'a OsStr>,
    /// Directories whose `.tools` (or whose parents' `.tools`) to look into.
    pub near: Vec<PathBuf>,
}

impl Installation {
    /// Finds PostgreSQL and asks its version.
    pub fn find(places: &Places<'_>) -> Result<Installation, Fault> {
        if let Some(named) = places.named {
            return Installation::at(named);
        }
        let on_path = places.path.into_iter().flat_map(std::env::split_paths).map(|dir| real_dir(&dir));
        let near = places.near.iter().flat_map(|dir| dir.ancestors()).map(|dir| dir.join(".tools"));
        let debian = by_version(Path::new(DEBIAN), "");
        let found = on_path.chain(debian).chain(near.flat_map(|dir| by_version(&dir, "postgres-")));
        match found.into_iter().find(|bin| ["postgres", "initdb"].iter().all(|name| bin.join(name).is_file())) {
            Some(bin) => Installation::at(&bin),
            None => Err(Fault::new(Code::ProgramMissing, "cannot find the programs `postgres` and `initdb`")
                .hint("install PostgreSQL 16 or newer, or name its directory of programs with `postgres.bin-dir`")),
        }
    }

    /// Asks the programs in a directory.
    pub fn at(bin: &Path) -> Result<Installation, Fault> {
        let program = bin.join("postgres");
        let shown = program.display();
        let asked = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
        let answer = asked.map_err(|error| {
            Fault::new(Code::ProgramMissing, format!("cannot run `{shown} --version`"))
                .hint("name the directory that holds `postgres` and `initdb`")
                .caused_by(error)
        })?;
        let text = String::from_utf8_lossy(&answer.stdout);
        let Some(version) = version_in(&text) else {
            return Err(Fault::new(Code::ProgramMissing, format!("`{shown}` does not seem to be PostgreSQL"))
                .hint("`postgres --version` prints `postgres (PostgreSQL) …`; this program does not"));
        };
        if version.major < MAJOR_MIN {
            return Err(Fault::new(Code::PgTooOld, format!("PostgreSQL {version} in `{}` is too old", bin.display()))
                .hint(format!("install PostgreSQL {MAJOR_MIN} or newer: older ones cannot tell whose change it was")));
        }
        Ok(Installation { bin: bin.to_owned(), version })
    }

    /// One of its programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

/// The directory of the program itself where the PATH only has a link to it: the other programs and files lie beside it.
fn real_dir(dir: &Path) -> PathBuf {
    let real = dir.join("postgres").canonicalize().ok();
    real.and_then(|real| real.parent().map(Path::to_owned)).unwrap_or_else(|| dir.to_owned())
}

/// `<dir>/<prefix><number>/bin`, the highest number first.
fn by_version(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name.strip_prefix(prefix)?.parse().ok()?, entry.path().join("bin")))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// `postgres (PostgreSQL) 17.11 (Debian 17.11-0+deb13u1)`; a beta has no minor number.
fn version_in(text: &str) -> Option<ServerVersion> {
    let rest = text.lines().next()?.strip_prefix("postgres (PostgreSQL) ")?;
    let number = |text: &str| -> Option<u32> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text.get(..digits)?.parse().ok()
    };
    let major = number(rest)?;
    let minor = rest.split_once('.').and_then(|(_, rest)| number(rest)).unwrap_or_default();
    Some(ServerVersion { major, minor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_its_own_words() {
        let version = |text: &str| version_in(text).map(|version| version.to_string());
        assert_eq!(version("postgres (PostgreSQL) 18.4\n").as_deref(), Some("18.4"));
        assert_eq!(version("postgres (PostgreSQL) 17.11 (Debian 17.11-0+deb13u1)\n").as_deref(), Some("17.11"));
        assert_eq!(version("postgres (PostgreSQL) 19beta1\n").as_deref(), Some("19.0"));
        assert_eq!(version("psql (PostgreSQL) 18.4\n"), None);
    }

    #[test]
    fn the_newest_of_several_is_found() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["9", "17", "18", "other"] {
            std::fs::create_dir_all(dir.path().join(name).join("bin")).unwrap();
        }
        assert!(by_version(dir.path(), "")[0].ends_with("18/bin"));
    }

    #[test]
    fn without_postgres_the_fault_says_how_to_get_it() {
        let nowhere = tempfile::tempdir().unwrap();
        assert_eq!(Installation::at(nowhere.path()).unwrap_err().code(), Code::ProgramMissing);
    }
}
