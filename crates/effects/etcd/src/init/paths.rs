//! The target's paths, in one spelling: absolute, without `.` and trailing slashes.

use std::path::{Component, Path, PathBuf};

use quorate_faults::Fault;

use super::bad_path;

/// Where the member goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    data_dir: PathBuf,
    wal_dir: Option<PathBuf>,
}

impl Target {
    /// Settles the spelling, and refuses two directories that cannot both be.
    pub fn new(data_dir: &Path, wal_dir: Option<&Path>) -> Result<Target, Fault> {
        let data_dir = settle("--data-dir", data_dir)?;
        let Some(wal_dir) = wal_dir else { return Ok(Target { data_dir, wal_dir: None }) };
        let wal_dir = settle("--wal-dir", wal_dir)?;
        let (data, wal) = (resolve(&data_dir), resolve(&wal_dir));
        if wal == data.join("member/wal") {
            // Where etcd puts it anyway.
            return Ok(Target { data_dir, wal_dir: None });
        }
        if wal == data || wal.starts_with(data.join("member")) || data.starts_with(&wal) {
            let why = format!("it would mix with `{}`; give a directory of its own", data_dir.display());
            return Err(bad_path("--wal-dir", &wal_dir, &why));
        }
        Ok(Target { data_dir, wal_dir: Some(wal_dir) })
    }

    /// The data dir.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The separate WAL dir, if there is one.
    pub fn wal_dir(&self) -> Option<&Path> {
        self.wal_dir.as_deref()
    }

    /// The name in the data dir under which the WAL dir lies, where it lies there (`--wal-dir DATA/wal`).
    pub fn wal_name_in_data(&self) -> Option<PathBuf> {
        let wal = resolve(self.wal_dir.as_ref()?);
        let below = wal.strip_prefix(resolve(&self.data_dir)).ok()?;
        below.iter().next().map(PathBuf::from)
    }
}

/// The directory that holds `path`. A settled path without one is the root, which holds itself.
pub(super) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

fn settle(flag: &str, path: &Path) -> Result<PathBuf, Fault> {
    if path.as_os_str().is_empty() {
        return Err(bad_path(flag, path, "it is empty"));
    }
    let absolute = std::path::absolute(path)
        .map_err(|error| Fault::io(format!("cannot find out where `{}` is", path.display()), error))?;
    let settled: PathBuf = absolute.components().filter(|part| !matches!(part, Component::CurDir)).collect();
    if settled.file_name().is_some() {
        return Ok(settled);
    }
    // A path that ends in `..`, or the root: only its real name can have neighbours.
    let named = settled.canonicalize().ok().filter(|real| real.file_name().is_some());
    named.ok_or_else(|| bad_path(flag, path, "it has no name of its own"))
}

/// The path with symbolic links followed as far as it exists.
fn resolve(path: &Path) -> PathBuf {
    let real = path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
    real.and_then(|(part, real)| Some(real.join(path.strip_prefix(part).ok()?))).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(data: &str, wal: &str) -> Result<Target, String> {
        Target::new(data.as_ref(), Some(wal.as_ref())).map_err(|fault| fault.to_string())
    }

    #[test]
    fn every_spelling_of_a_path_is_the_same_path() {
        let here = std::env::current_dir().unwrap();
        for spelling in ["n1", "./n1", "n1/", ".//n1//./"] {
            assert_eq!(Target::new(spelling.as_ref(), None).unwrap().data_dir(), here.join("n1"));
        }
        assert_eq!(Target::new("src/..".as_ref(), None).unwrap().data_dir(), here.canonicalize().unwrap());
    }

    #[test]
    fn a_path_without_a_name_is_refused() {
        let text = |path: &str| Target::new(path.as_ref(), None).unwrap_err().to_string();
        assert_eq!(text(""), "cannot use --data-dir ``: it is empty");
        assert_eq!(text("/"), "cannot use --data-dir `/`: it has no name of its own");
        assert_eq!(text("no-such/.."), "cannot use --data-dir `no-such/..`: it has no name of its own");
    }

    #[test]
    fn two_directories_that_cannot_both_be_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        for (data, wal) in [("d", "d"), ("w/d", "w"), ("d", "d/member"), ("d", "d/member/snap"), ("d", "x/../d")] {
            let data = at(data);
            std::fs::create_dir_all(dir.path().join("x")).unwrap();
            let text = target(&data, &at(wal)).unwrap_err();
            assert!(text.ends_with(&format!("it would mix with `{data}`; give a directory of its own")), "{text}");
        }
        assert_eq!(target(&at("d"), &at("d/member/wal")).unwrap().wal_dir(), None);
        assert_eq!(target(&at("d"), &at("d/wal")).unwrap().wal_name_in_data(), Some("wal".into()));
        assert_eq!(target(&at("d"), &at("w")).unwrap().wal_name_in_data(), None);
        // A link does not hide it.
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        assert!(target(&at("real"), &at("link")).is_err());
    }
}
