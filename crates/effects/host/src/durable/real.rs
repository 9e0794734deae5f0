//! [`Disk`] as the kernel does it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use super::{Access, Disk, DiskError, DiskFile, PARTIAL_MARK, removal_order};

/// The machine's own file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

/// A file on the machine's own file system.
#[derive(Debug)]
pub struct RealFile {
    file: File,
    path: PathBuf,
}

impl RealFile {
    /// The open file, for a lock or a look.
    pub fn as_file(&self) -> &File {
        &self.file
    }
}

impl RealDisk {
    /// Makes all that was ever written to the file system of a directory durable: one call for a tree of many files that
    /// another program made.
    pub fn sync_filesystem(&self, dir: &Path) -> Result<(), DiskError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let synced = rustix::fs::open(dir, flags, Mode::empty()).and_then(rustix::fs::syncfs);
        synced.map_err(|errno| DiskError::new("sync the file system of", dir, errno))
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn create_dir(&self, path: &Path, access: Access) -> Result<(), DiskError> {
        let fail = |errno: Errno| DiskError::new("create the directory", path, errno);
        rustix::fs::mkdir(path, Mode::from_raw_mode(access.mode | 0o700)).map_err(fail)?;
        // Through a descriptor: in a directory that belongs to someone else, the name may lead elsewhere by now.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(fail)?;
        give(&dir, access).map_err(fail)
    }

    fn create_file(&self, path: &Path, access: Access) -> Result<RealFile, DiskError> {
        let fail = |errno: Errno| DiskError::new("create the file", path, errno);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(access.mode)).map_err(fail)?;
        give(&file, access).map_err(fail)?;
        Ok(RealFile { file: File::from(file), path: path.to_owned() })
    }

    fn sync_dir(&self, path: &Path) -> Result<(), DiskError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let synced = rustix::fs::open(path, flags, Mode::empty()).and_then(rustix::fs::fsync);
        match synced {
            // Some network and user-space file systems cannot sync a directory at all; there is no stronger call to make.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(DiskError::new("sync the directory", path, errno)),
        }
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        let fail = |errno: Errno| DiskError::new("rename into place", to, errno);
        match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Not every file system (or kernel) knows the flag.
            Err(Errno::INVAL | Errno::NOSYS) => rename_without_flag(from, to).map_err(fail),
            other => other.map_err(fail),
        }
    }

    fn replace_file(&self, partial: &Path, to: &Path) -> Result<(), DiskError> {
        let fail = |errno: Errno| DiskError::new("put a new file in the place of", to, errno);
        let marked = partial.file_name().is_some_and(|name| name.to_string_lossy().contains(PARTIAL_MARK));
        if !marked || !to.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
            return Err(fail(Errno::INVAL));
        }
        rustix::fs::rename(partial, to).map_err(fail)
    }

    fn remove_partial(&self, path: &Path) -> Result<(), DiskError> {
        for (path, is_dir) in removal_order(path)? {
            let removed = if is_dir { rustix::fs::rmdir(&path) } else { rustix::fs::unlink(&path) };
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(DiskError::new("remove the left-over", &path, errno)),
            }
        }
        Ok(())
    }
}

/// Sets the owner, and then the mode: the umask took bits, a set-group-id parent handed its bit down, or the change of
/// owner cleared some.
fn give(fd: &OwnedFd, access: Access) -> Result<(), Errno> {
    if let Some(owner) = access.owner {
        rustix::fs::fchown(fd, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
    }
    if rustix::fs::fstat(fd)?.st_mode & 0o7777 != access.mode {
        rustix::fs::fchmod(fd, Mode::from_raw_mode(access.mode))?;
    }
    Ok(())
}

/// The same promise without the kernel's flag: a hard link refuses a taken name, and a plain rename of a directory
/// refuses all but an empty directory, which loses nothing.
fn rename_without_flag(from: &Path, to: &Path) -> Result<(), Errno> {
    let is_dir = from.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    if is_dir {
        if to.symlink_metadata().is_ok() {
            return Err(Errno::EXIST);
        }
        return match rustix::fs::rename(from, to) {
            Err(Errno::NOTEMPTY | Errno::NOTDIR) => Err(Errno::EXIST),
            other => other,
        };
    }
    rustix::fs::link(from, to)?;
    rustix::fs::unlink(from)
}

impl DiskFile for RealFile {
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        self.file.write_all(bytes).map_err(|error| self.fail("write", error))
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        self.file.write_all_at(bytes, offset).map_err(|error| self.fail("write", error))
    }

    fn start_sync(&mut self) {
        // SAFETY: the call takes a descriptor, which is open for as long as `self`, and numbers.
        #[expect(unsafe_code, reason = "no safe wrapper knows sync_file_range")]
        let started = unsafe { libc::sync_file_range(self.file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
        // It is a hint: where it is not understood, the sync that follows does all the work.
        let _ = started;
    }

    fn sync(&mut self) -> Result<(), DiskError> {
        self.file.sync_all().map_err(|error| self.fail("sync", error))
    }
}

impl RealFile {
    fn fail(&self, attempt: &'static str, error: io::Error) -> DiskError {
        DiskError::new(attempt, &self.path, error)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn modes_are_exact_even_below_a_set_group_id_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o2755)).unwrap();
        RealDisk.create_dir(&dir.path().join("d"), Access::mode(0o700)).unwrap();
        RealDisk.create_file(&dir.path().join("f"), Access::mode(0o666)).unwrap();
        assert_eq!(mode(&dir.path().join("d")), 0o700);
        assert_eq!(mode(&dir.path().join("f")), 0o666);
    }

    #[test]
    fn nothing_that_exists_is_created_again_or_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        RealDisk.create_file(&a, Access::mode(0o600)).unwrap().write_all(b"a").unwrap();
        RealDisk.create_file(&b, Access::mode(0o600)).unwrap().write_all(b"b").unwrap();
        assert_eq!(RealDisk.create_file(&a, Access::mode(0o600)).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(RealDisk.create_dir(&a, Access::mode(0o700)).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let refused = RealDisk.rename_new(&a, &b).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(refused.to_string(), format!("cannot rename into place `{}`", b.display()));
        assert_eq!(std::fs::read(&b).unwrap(), b"b");
    }

    #[test]
    fn only_a_file_is_replaced_and_only_by_a_partial_one() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["f", "f.partial-1", "plain"] {
            RealDisk.create_file(&at(name), Access::mode(0o600)).unwrap().write_all(name.as_bytes()).unwrap();
        }
        RealDisk.create_dir(&at("d"), Access::mode(0o700)).unwrap();
        for (from, to) in [("plain", "f"), ("f.partial-1", "d"), ("f.partial-1", "absent")] {
            assert!(RealDisk.replace_file(&at(from), &at(to)).is_err(), "{from} to {to}");
        }
        RealDisk.replace_file(&at("f.partial-1"), &at("f")).unwrap();
        assert_eq!(std::fs::read(at("f")).unwrap(), b"f.partial-1");
        assert_eq!(names(dir.path()), ["d", "f", "plain"]);
    }

    #[test]
    fn a_rename_without_the_flag_refuses_what_the_flag_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["f", "g"] {
            RealDisk.create_file(&at(name), Access::mode(0o600)).unwrap().write_all(name.as_bytes()).unwrap();
        }
        for name in ["d", "empty", "full"] {
            RealDisk.create_dir(&at(name), Access::mode(0o700)).unwrap();
        }
        RealDisk.create_file(&at("full/x"), Access::mode(0o600)).unwrap();
        for (from, to) in [("f", "g"), ("f", "d"), ("d", "f"), ("d", "empty"), ("d", "full")] {
            assert_eq!(rename_without_flag(&at(from), &at(to)), Err(Errno::EXIST), "{from} to {to}");
        }
        rename_without_flag(&at("f"), &at("h")).unwrap();
        rename_without_flag(&at("d"), &at("e")).unwrap();
        assert_eq!(names(dir.path()), ["e", "empty", "full", "g", "h"]);
    }

    #[test]
    fn only_partial_trees_are_removed_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        RealDisk.create_dir(&at("keep"), Access::mode(0o700)).unwrap();
        RealDisk.create_file(&at("keep/f"), Access::mode(0o600)).unwrap();
        RealDisk.create_dir(&at("d.partial-1"), Access::mode(0o700)).unwrap();
        RealDisk.create_file(&at("d.partial-1/f"), Access::mode(0o600)).unwrap();
        std::os::unix::fs::symlink(at("keep"), at("d.partial-1/link")).unwrap();
        let refused = RealDisk.remove_partial(&at("keep")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        // A marked ancestor does not make its content fair game.
        assert!(RealDisk.remove_partial(&at("d.partial-1/f")).is_err());
        RealDisk.remove_partial(&at("d.partial-1")).unwrap();
        RealDisk.remove_partial(&at("d.partial-1")).unwrap();
        assert_eq!(names(dir.path()), ["keep"]);
        assert_eq!(names(&at("keep")), ["f"]);
    }

    #[test]
    fn a_spent_file_is_removed_and_no_other_thing_of_that_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        RealDisk.create_file(&at("a.spent"), Access::mode(0o600)).unwrap();
        RealDisk.create_file(&at("a.spent.bak"), Access::mode(0o600)).unwrap();
        RealDisk.create_dir(&at("d.spent"), Access::mode(0o700)).unwrap();
        std::os::unix::fs::symlink(at("d.spent"), at("l.spent")).unwrap();
        for name in ["a.spent", "absent.spent"] {
            RealDisk.remove_partial(&at(name)).unwrap();
        }
        for name in ["a.spent.bak", "d.spent", "l.spent"] {
            assert_eq!(RealDisk.remove_partial(&at(name)).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(names(dir.path()), ["a.spent.bak", "d.spent", "l.spent"]);
    }

    #[test]
    fn written_bytes_arrive_where_they_were_sent() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = RealDisk.create_file(&dir.path().join("f"), Access::mode(0o600)).unwrap();
        file.write_all(b"0123").unwrap();
        file.write_all_at(b"ab", 1).unwrap();
        file.write_all(b"45").unwrap();
        file.sync().unwrap();
        RealDisk.sync_dir(dir.path()).unwrap();
        assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"0ab345");
        assert_eq!(RealDisk.sync_dir(&dir.path().join("f")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }
}
