//! Reads a cluster file, for whoever acts on one, and puts another in its place.
//!
//! **Rule:** all dirs of it lie below `QUORATE_ROOT` where that is set, so that no command acts on another place than the
//! agent. A file that is replaced is kept beside the new one.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, Owner, RealDisk, partial_path};
use quorate_host::root::root;
use quorate_plan::Warning;
use quorate_plan::spec::{Spec, below_root, without_root};

/// Where the cluster file is when nobody says.
pub const DEFAULT_FILE: &str = "/etc/quorate/cluster.yaml";
/// Where state is kept when nobody says.
pub const DEFAULT_STATE: &str = "/var/lib/quorate";

/// Far more than the file of a large cluster has, and than agents take from each other.
const BYTES_MAX: u64 = 1 << 20;

/// Reads and checks it.
pub fn read(file: &Path) -> Result<(Spec, Vec<Warning>), Fault> {
    parse(text(file)?.as_bytes(), &file.display().to_string())
}

/// Its text.
pub fn text(file: &Path) -> Result<String, Fault> {
    String::from_utf8(bytes(file)?).map_err(|error| unreadable(file, "it is no text", error))
}

/// Its bytes, which may be no text.
pub fn bytes(file: &Path) -> Result<Vec<u8>, Fault> {
    let fail = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => unreadable(file, "check the path: `--config FILE` names another one", error),
        // A disk that fails is no mistake of the file.
        _ => Fault::io(format!("cannot read `{}`", file.display()), error),
    };
    let mut bytes = Vec::new();
    // The length is no help: devices and pipes have none.
    std::fs::File::open(file).map_err(fail)?.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    match bytes.len() as u64 > BYTES_MAX {
        true => Err(unreadable(file, "no cluster file is that large", format!("it has more than {BYTES_MAX} bytes"))),
        false => Ok(bytes),
    }
}

fn unreadable(file: &Path, hint: &'static str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    let attempt = format!("cannot read the cluster file `{}`", file.display());
    Fault::new(Code::ClusterFileUnreadable, attempt).hint(hint).caused_by(cause)
}

/// Checks the text of one. `shown`: where it comes from, for messages.
pub fn parse(bytes: &[u8], shown: &str) -> Result<(Spec, Vec<Warning>), Fault> {
    let (spec, warnings) = Spec::parse(bytes, shown).map_err(|mistakes| mistakes.fault())?;
    Ok(match root()? {
        Some(root) => (spec.below(&root), warnings),
        None => (spec, warnings),
    })
}

/// Puts a text in the place of the file, durably; the file as it was is kept beside it, under the name that is returned.
pub fn ensure_replaced(file: &Path, text: &[u8], stamp: &str) -> Result<PathBuf, Fault> {
    let fail = |error| Fault::io(format!("cannot read `{}`", file.display()), error);
    // What it stands for may be a link: the file itself is replaced, not the link.
    let file = &std::fs::canonicalize(file).map_err(fail)?;
    let before = std::fs::read(file).map_err(fail)?;
    let meta = std::fs::metadata(file).map_err(fail)?;
    let owner = Owner { uid: meta.uid(), gid: meta.gid() };
    let own = Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
    // Who may not give files away keeps them.
    let owner = (owner != own && own.uid == 0).then_some(owner);
    let access = Access { mode: meta.mode() & 0o7777, owner };
    let kept = keep(file, &before, access, stamp)?;
    let partial = partial(file)?;
    write(&partial, text, access)?;
    RealDisk.replace_file(&partial, file)?;
    RealDisk.sync_dir(parent(file))?;
    Ok(kept)
}

fn keep(file: &Path, text: &[u8], access: Access, stamp: &str) -> Result<PathBuf, Fault> {
    let partial = partial(file)?;
    write(&partial, text, access)?;
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".replaced-{stamp}"));
    for number in 0..100 {
        let mut name = name.clone();
        if number > 0 {
            name.push(format!("-{number}"));
        }
        match RealDisk.rename_new(&partial, Path::new(&name)) {
            Ok(()) => {
                RealDisk.sync_dir(parent(file))?;
                return Ok(PathBuf::from(name));
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Fault::new(Code::Internal, format!("cannot keep `{}`: too many copies of it are there", file.display())))
}

fn write(path: &Path, text: &[u8], access: Access) -> Result<(), Fault> {
    RealDisk.remove_partial(path)?;
    let mut file = RealDisk.create_file(path, access)?;
    file.write_all(text)?;
    Ok(file.sync()?)
}

fn partial(path: &Path) -> Result<PathBuf, Fault> {
    partial_path(path, std::process::id())
        .ok_or_else(|| Fault::io(format!("cannot write `{}`", path.display()), std::io::ErrorKind::InvalidInput.into()))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// A path of ours, below the root where one is set.
pub fn place(path: &str) -> Result<PathBuf, Fault> {
    Ok(match root()? {
        Some(root) => PathBuf::from(below_root(path, &root)),
        None => PathBuf::from(path),
    })
}

/// The same path as a cluster file declares it, so that nodes with another root, or none, share the file.
pub fn declared_path(path: &Path) -> Result<String, Fault> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    Ok(match root()? {
        Some(root) => without_root(&absolute, &root),
        None => absolute,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_endless_file_is_an_invalid_configuration() {
        let dir = tempfile::tempdir().unwrap();
        for file in [dir.path().join("none"), PathBuf::from("/dev/zero")] {
            let fault = read(&file).unwrap_err();
            assert_eq!(fault.code(), Code::ClusterFileUnreadable);
            assert_eq!(fault.code().exit(), quorate_faults::Exit::ConfigInvalid);
        }
    }

    #[test]
    fn a_file_is_replaced_and_kept_with_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cluster.yaml");
        quorate_etcd::aside::ensure_file(&RealDisk, &file, b"one").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let first = ensure_replaced(&link, b"two", "T").unwrap();
        let second = ensure_replaced(&file, b"three", "T").unwrap();
        assert_ne!(first, second);
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!((read(&first), read(&second), read(&file)), ("one".into(), "two".into(), "three".into()));
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o644);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}
