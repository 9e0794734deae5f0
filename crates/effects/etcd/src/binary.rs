//! Finds the etcd program and asks which version it is.
//!
//! **Rule:** the PATH comes first, because that is what the operator installed; `.tools` of a checkout is for those who
//! have none.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quorate_faults::{Code, Fault};

/// An etcd program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// Where it is.
    pub path: PathBuf,
    /// Its version, such as `3.5.16`.
    pub version: String,
}

/// Where to look.
#[derive(Debug, Clone, Default)]
pub struct Places<'a> {
    /// A program that was named; nothing else is looked at then.
    pub named: Option<&'a Path>,
    /// The value of `PATH`.
    pub path: Option<&'a OsStr>,
    /// Directories whose `.tools` (or whose parents' `.tools`) to look into.
    pub near: Vec<PathBuf>,
}

impl Binary {
    /// Finds etcd and asks its version.
    pub fn find(places: &Places<'_>) -> Result<Binary, Fault> {
        Binary::at(&Binary::locate(places)?)
    }

    /// Finds etcd, and runs nothing.
    pub fn locate(places: &Places<'_>) -> Result<PathBuf, Fault> {
        if let Some(named) = places.named {
            return Ok(named.to_owned());
        }
        let on_path = places.path.into_iter().flat_map(std::env::split_paths).map(|dir| dir.join("etcd"));
        let in_tools =
            places.near.iter().flat_map(|dir| dir.ancestors()).flat_map(|dir| installed(&dir.join(".tools")));
        let found = on_path.chain(in_tools).find(|file| is_program(file));
        found.ok_or_else(|| {
            Fault::new(Code::ProgramMissing, "cannot find the program `etcd` on the PATH or in `.tools`")
                .hint("install it (Debian and Ubuntu: `apt install etcd-server`; in a checkout: `make tools`)")
        })
    }

    /// Asks the program at `path` for its version.
    pub fn at(path: &Path) -> Result<Binary, Fault> {
        let asked = Command::new(path).arg("--version").stdin(Stdio::null()).output();
        let shown = path.display();
        let answer = asked.map_err(|error| {
            Fault::new(Code::ProgramMissing, format!("cannot run `{shown} --version`"))
                .hint("name a file that is etcd for this machine")
                .caused_by(error)
        })?;
        let text = String::from_utf8_lossy(&answer.stdout);
        match version_in(&text) {
            Some(version) => Ok(Binary { path: path.to_owned(), version }),
            None => Err(Fault::new(Code::ProgramMissing, format!("`{shown}` does not seem to be etcd"))
                .hint("`etcd --version` prints a line `etcd Version: …`; this program does not")),
        }
    }
}

/// `etcd Version: 3.5.16`.
fn version_in(text: &str) -> Option<String> {
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version:"))?.trim();
    (!version.is_empty()).then(|| version.to_owned())
}

/// The etcd programs below a `.tools` directory, newest first.
fn installed(tools: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(tools) else { return Vec::new() };
    let mut found: Vec<(Vec<u64>, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix("etcd-")?;
            let numbers = version.split('.').filter_map(|part| part.parse().ok()).collect();
            Some((numbers, entry.path().join("bin/etcd")))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_etcds_own_words() {
        let text = "etcd Version: 3.5.16\nGit SHA: f20bbad\nGo Version: go1.22.7\n";
        assert_eq!(version_in(text).as_deref(), Some("3.5.16"));
        assert_eq!(version_in("hello"), None);
    }

    #[test]
    fn without_etcd_the_fault_says_how_to_get_it() {
        let nowhere = tempfile::tempdir().expect("a temporary directory");
        let fault = Binary::find(&Places { near: vec![nowhere.path().to_owned()], ..Places::default() }).unwrap_err();
        assert_eq!(fault.code(), Code::ProgramMissing);
        assert!(fault.hint_text().is_some_and(|hint| hint.contains("make tools")));
    }

    #[test]
    fn a_program_that_is_not_etcd_is_refused() {
        let fault = Binary::at(Path::new("/bin/true")).unwrap_err();
        assert_eq!(fault.to_string(), "`/bin/true` does not seem to be etcd");
    }

    #[test]
    fn the_newest_of_several_installed_versions_is_used() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for version in ["3.5.9", "3.5.16", "3.4.23", "sid"] {
            std::fs::create_dir_all(dir.path().join(format!("etcd-{version}/bin"))).expect("a directory");
        }
        let found = installed(dir.path());
        assert!(found[0].ends_with("etcd-3.5.16/bin/etcd"), "{found:?}");
    }
}
