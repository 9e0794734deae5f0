//! Sets data aside: a data dir under another name, the torn end of a WAL in a file of its own.
//!
//! **Invariant:** no byte is lost, whatever interrupts this; what was there is there under a name that says so.

use std::io::Read;
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, partial_path};

/// How much is copied at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Part of the name of everything that was renamed.
const REPLACED: &str = ".replaced-";

/// Whether this name in a data dir is that of a `member` that was renamed.
pub fn is_replaced_member(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().strip_prefix(b"member").is_some_and(|rest| rest.starts_with(REPLACED.as_bytes()))
}

/// Renames `path` to `<path>.replaced-<stamp>` and returns the new name. `None`: there is nothing. A data dir that is a mount
/// point keeps its name; its `member` is renamed.
pub fn ensure_set_aside<D: Disk>(disk: &D, path: &Path, stamp: &str) -> Result<Option<PathBuf>, Fault> {
    match path.symlink_metadata() {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::io(format!("cannot look at `{}`", path.display()), error)),
    }
    for attempt in 0..100 {
        let more = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let mut name = path.as_os_str().to_owned();
        name.push(format!("{REPLACED}{stamp}{more}"));
        let new = PathBuf::from(name);
        match disk.rename_new(path, &new) {
            Ok(()) => {
                disk.sync_dir(parent(path))?;
                return Ok(Some(new));
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && !path.ends_with(MEMBER) => {
                return if holds_wal(path) {
                    Err(busy(error))
                } else {
                    ensure_set_aside(disk, &path.join(MEMBER), stamp)
                };
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Fault::new(Code::Io, format!("cannot find a new name for `{}`", path.display()))
        .hint("there are a hundred `.replaced-` names beside it: move some of them away"))
}

/// What etcd keeps below a data dir.
const MEMBER: &str = "member";

/// etcd empties a WAL dir that it makes anew: nothing may be left in one.
fn holds_wal(dir: &Path) -> bool {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.as_encoded_bytes().ends_with(b".wal"))
}

fn busy(error: quorate_host::durable::DiskError) -> Fault {
    Fault::from(error).hint("a WAL dir that is a mount point cannot be renamed: name a directory below it as `wal-dir`")
}

/// Cuts a file to `length` bytes and keeps the whole of it as `<file>.broken`, which etcd passes over. Returns that name.
pub fn ensure_tail_cut<D: Disk>(disk: &D, file: &Path, length: u64, stamp: &str) -> Result<PathBuf, Fault> {
    let mut kept = file.as_os_str().to_owned();
    kept.push(".broken");
    let mut kept = PathBuf::from(kept);
    if kept.symlink_metadata().is_ok() {
        // An earlier repair of the same segment; both are kept.
        let mut name = kept.into_os_string();
        name.push(format!("-{stamp}"));
        kept = PathBuf::from(name);
    }
    copy(disk, file, u64::MAX, &kept)?;
    disk.sync_dir(parent(file))?;
    let partial = partial_of(file)?;
    disk.remove_partial(&partial)?;
    write_copy(disk, file, length, &partial)?;
    disk.replace_file(&partial, file)?;
    disk.sync_dir(parent(file))?;
    Ok(kept)
}

/// Writes a small file, durably, in the place of one that may be there.
pub fn ensure_file<D: Disk>(disk: &D, path: &Path, bytes: &[u8]) -> Result<(), Fault> {
    let partial = partial_of(path)?;
    disk.remove_partial(&partial)?;
    let mut file = disk.create_file(&partial, Access::mode(0o600))?;
    file.write_all(bytes)?;
    file.sync()?;
    drop(file);
    match disk.rename_new(&partial, path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => disk.replace_file(&partial, path)?,
        Err(error) => return Err(error.into()),
    }
    Ok(disk.sync_dir(parent(path))?)
}

fn copy<D: Disk>(disk: &D, from: &Path, length: u64, to: &Path) -> Result<(), Fault> {
    let partial = partial_of(to)?;
    disk.remove_partial(&partial)?;
    write_copy(disk, from, length, &partial)?;
    Ok(disk.rename_new(&partial, to)?)
}

fn write_copy<D: Disk>(disk: &D, from: &Path, length: u64, to: &Path) -> Result<(), Fault> {
    let fail = |error| Fault::io(format!("cannot read `{}`", from.display()), error);
    let mut source = std::fs::File::open(from).map_err(fail)?.take(length);
    let mut copy = disk.create_file(to, Access::mode(0o600))?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = source.read(&mut piece).map_err(fail)?;
        if read == 0 {
            break;
        }
        copy.write_all(piece.get(..read).unwrap_or_default())?;
    }
    Ok(copy.sync()?)
}

fn partial_of(path: &Path) -> Result<PathBuf, Fault> {
    partial_path(path, std::process::id())
        .ok_or_else(|| Fault::io(format!("cannot write `{}`", path.display()), std::io::ErrorKind::InvalidInput.into()))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use quorate_host::durable::RealDisk;

    use super::*;

    #[test]
    fn a_dir_is_renamed_and_an_earlier_one_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        for round in 0..2 {
            std::fs::create_dir(&data).unwrap();
            std::fs::File::create(data.join(format!("f{round}"))).unwrap();
            let new = ensure_set_aside(&RealDisk, &data, "T").unwrap().unwrap();
            assert!(new.join(format!("f{round}")).exists() && !data.exists(), "{}", new.display());
        }
        assert_eq!(ensure_set_aside(&RealDisk, &data, "T").unwrap(), None);
    }

    #[test]
    fn a_cut_keeps_all_that_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("0.wal");
        ensure_file(&RealDisk, &file, b"good records, torn").unwrap();
        let kept = ensure_tail_cut(&RealDisk, &file, 12, "T").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"good records");
        assert_eq!(std::fs::read(&kept).unwrap(), b"good records, torn");
        let again = ensure_tail_cut(&RealDisk, &file, 4, "T").unwrap();
        assert_eq!(
            (std::fs::read(&file).unwrap(), std::fs::read(&again).unwrap()),
            (b"good".into(), b"good records".into())
        );
        assert_ne!(kept, again);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
