//! Small files that the protocol owns: read with a limit, replaced as a whole, removed for good.
//!
//! **Invariant:** after a power cut such a file is what it was or what it was to be, and one that was removed stays so.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use quorate_faults::{Code, Fault, Result};
use quorate_host::durable::{Access, Disk, DiskFile, RealDisk, SPENT_MARK, partial_path};

/// The file's text, `None` if there is no such file. One that is longer than `max_bytes` is an error.
pub(super) fn read(path: &Path, max_bytes: u64) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    let read = file.take(max_bytes + 1).read_to_string(&mut text)?;
    if read as u64 > max_bytes {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is longer than {max_bytes} bytes")));
    }
    Ok(Some(text))
}

/// Puts these bytes there, for its owner alone to read.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = partial_path(path, std::process::id()).ok_or_else(|| nameless(path))?;
    let parent = path.parent().unwrap_or(path);
    RealDisk.remove_partial(&partial)?;
    let mut file = RealDisk.create_file(&partial, Access::mode(0o600))?;
    file.write_all(bytes)?;
    file.sync()?;
    match RealDisk.rename_new(&partial, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => RealDisk.replace_file(&partial, path)?,
        other => other?,
    }
    RealDisk.sync_dir(parent)?;
    Ok(())
}

/// Removes it. Absent is fine. Only for files that the protocol itself makes and removes.
pub(super) fn remove(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(());
    }
    let mut spent = path.file_name().ok_or_else(|| nameless(path))?.to_owned();
    spent.push(SPENT_MARK);
    let spent = path.with_file_name(spent);
    RealDisk.remove_partial(&spent)?;
    RealDisk.rename_new(path, &spent)?;
    RealDisk.remove_partial(&spent)?;
    RealDisk.sync_dir(path.parent().unwrap_or(path))?;
    Ok(())
}

fn nameless(path: &Path) -> Fault {
    Fault::new(Code::Usage, format!("cannot use `{}` as a file: it has no name of its own", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_small_file_is_replaced_and_removed_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("exit_code");
        assert_eq!(read(&path, 10).unwrap(), None);
        remove(&path).unwrap();
        for text in ["terminated", "interrupt"] {
            write(&path, text.as_bytes()).unwrap();
            assert_eq!(read(&path, 10).unwrap().as_deref(), Some(text));
        }
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(read(&path, 5).is_err());
        remove(&path).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
