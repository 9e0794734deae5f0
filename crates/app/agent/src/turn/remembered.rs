//! What etcd said of its version, kept from one start to the next: to ask takes as long as all else before a quick start.
//!
//! **Rule:** it holds for the very file that was asked, unchanged since, and only for a program itself: what a script starts may
//! change without the script.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use quorate_etcd::aside::ensure_file;
use quorate_etcd::binary::Binary;
use quorate_faults::Fault;
use quorate_host::durable::RealDisk;
use serde::{Deserialize, Serialize};

/// What changes when a program is replaced or written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    path: PathBuf,
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of what is there.
    pub(super) fn of(path: &Path) -> Option<Stamp> {
        let meta = std::fs::metadata(path).ok()?;
        Some(Stamp {
            path: path.to_owned(),
            device: meta.dev(),
            inode: meta.ino(),
            length: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    stamp: Stamp,
    version: String,
}

/// The program at `path` with its version, as `kept` remembers it or as it says itself. Nothing is written.
pub(super) fn ask(kept: &Path, path: &Path) -> Result<Binary, Fault> {
    match recall(kept, path) {
        Some(version) => Ok(Binary { path: path.to_owned(), version }),
        None => Binary::at(path),
    }
}

fn recall(kept: &Path, path: &Path) -> Option<String> {
    let known: Known = serde_json::from_slice(&std::fs::read(kept).ok()?).ok()?;
    (Some(known.stamp) == Stamp::of(path)).then_some(known.version)
}

/// Keeps what a program said of its version; where that fails it is asked again.
pub(super) fn keep(kept: &Path, binary: &Binary, stamp: &Stamp) {
    if !is_program(&binary.path) || recall(kept, &binary.path).is_some() {
        return;
    }
    let known = Known { stamp: stamp.clone(), version: binary.version.clone() };
    let Ok(bytes) = serde_json::to_vec(&known) else { return };
    if let Err(fault) = ensure_file(&RealDisk, kept, &bytes) {
        tracing::debug!(code = %fault.code(), "{fault}");
    }
}

fn is_program(path: &Path) -> bool {
    let mut magic = [0; 4];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"\x7fELF"
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn script(path: &Path, version: &str) {
        let mut file = std::fs::File::create(path).unwrap();
        writeln!(file, "#!/bin/sh\necho etcd Version: {version}").unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_script_is_asked_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let (program, kept) = (dir.path().join("etcd"), dir.path().join("kept"));
        script(&program, "3.5.1");
        let binary = ask(&kept, &program).unwrap();
        assert_eq!(binary.version, "3.5.1");
        keep(&kept, &binary, &Stamp::of(&program).unwrap());
        assert!(!kept.exists());
    }

    #[test]
    fn what_is_remembered_holds_for_the_same_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (program, kept) = (dir.path().join("etcd"), dir.path().join("kept"));
        // No program that could run: whoever asks it fails.
        std::fs::File::create(&program).unwrap().write_all(b"\x7fELF of another machine").unwrap();
        let binary = Binary { path: program.clone(), version: "3.5.1".to_owned() };
        keep(&kept, &binary, &Stamp::of(&program).unwrap());
        assert_eq!(ask(&kept, &program).unwrap(), binary);
        for bad in [&b""[..], b"{", b"\xff", br#"{"version":"3.5.1"}"#] {
            std::fs::File::create(&kept).unwrap().write_all(bad).unwrap();
            assert!(ask(&kept, &program).is_err());
        }
        keep(&kept, &binary, &Stamp::of(&program).unwrap());
        assert_eq!(ask(&kept, &program).unwrap(), binary);
        std::fs::File::create(&program).unwrap().write_all(b"\x7fELF of one more machine").unwrap();
        assert!(ask(&kept, &program).is_err());
    }
}
