//! Asks whether someone else works on a file, and takes the locks that keep others away from ours.
//!
//! etcd holds an `flock` on its db and an open-file-description lock on each WAL segment; neither kind sees the other,
//! so a reader must ask for both.
//!
//! **Invariant:** a probe leaves no lock behind, and "could not find out" is never reported as free.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Whether someone else holds a lock.
#[derive(Debug)]
pub enum LockState {
    /// No one does.
    Free,
    /// Someone does; the process id where the kernel says so.
    Held { pid: Option<u32> },
    /// The question could not be answered.
    Unknown(io::Error),
}

impl LockState {
    /// Whether it is certain that no one holds it.
    pub fn is_free(&self) -> bool {
        matches!(self, LockState::Free)
    }
}

/// An `flock` that is held until this is dropped.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// The locked file or directory.
    pub fn as_file(&self) -> &File {
        &self.file
    }

    /// Whether `path` still names what is locked. Someone may have removed or renamed it before the lock was taken.
    pub fn is_still(&self, path: &Path) -> bool {
        let (Ok(ours), Ok(named)) = (self.file.metadata(), path.symlink_metadata()) else { return false };
        (ours.dev(), ours.ino()) == (named.dev(), named.ino())
    }
}

/// Asks whether someone holds an exclusive `flock`, as etcd does on its db, and who.
pub fn probe_flock(file: &File) -> LockState {
    match is_flocked(file) {
        Ok(false) => LockState::Free,
        Ok(true) => LockState::Held { pid: flock_holder(file) },
        Err(error) => LockState::Unknown(error),
    }
}

/// The same without the question who it is: the kernel makes a table of all locks of the machine for that, and whoever
/// reads it waits for milliseconds.
pub(crate) fn is_flocked(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(rustix::fs::flock(file, FlockOperation::Unlock).map(|()| false)?),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Asks whether someone holds a lock on any byte of the file, as etcd does on each WAL segment.
///
/// Reports classic process locks too, of any process but this one.
pub fn probe_ofd(file: &File) -> LockState {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the kernel reads and writes exactly one
    // `struct flock`, which `lock` is and which outlives the call. The query changes no lock.
    #[expect(unsafe_code, reason = "no safe wrapper knows F_OFD_GETLK; the plain F_GETLK one asserts on its answer")]
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if answer == -1 {
        return LockState::Unknown(io::Error::last_os_error());
    }
    if lock.l_type == libc::F_UNLCK as libc::c_short {
        return LockState::Free;
    }
    // An open-file-description lock belongs to no process; the kernel says -1.
    LockState::Held { pid: u32::try_from(lock.l_pid).ok().filter(|pid| *pid > 0) }
}

/// Takes a shared `flock` for as long as a db is read, so that no etcd starts on it meanwhile. `None`: etcd holds it.
pub fn share_lock(file: &File) -> io::Result<Option<Lock>> {
    take(file.try_clone()?, FlockOperation::NonBlockingLockShared)
}

/// Takes an exclusive `flock` on a file or directory. `None`: someone else holds one.
pub fn exclusive_lock(path: &Path) -> io::Result<Option<Lock>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    take(file, FlockOperation::NonBlockingLockExclusive)
}

fn take(file: File, operation: FlockOperation) -> io::Result<Option<Lock>> {
    match rustix::fs::flock(&file, operation) {
        Ok(()) => Ok(Some(Lock { file })),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Who holds an `flock` on this file, from the kernel's table. `None` where it does not say (another pid namespace).
fn flock_holder(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    holder_in(&table, &format!("{major:02x}:{minor:02x}:{}", meta.ino()))
}

/// Finds the process in a line such as `1: FLOCK  ADVISORY  WRITE 4711 fe:00:262 0 EOF`.
fn holder_in(table: &str, inode: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            [_, "FLOCK", _, "WRITE", pid, place, ..] if *place == inode => pid.parse().ok().filter(|pid| *pid > 0),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ofd(file: &File, command: libc::c_int, kind: libc::c_int) -> libc::c_int {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        // SAFETY: an open descriptor, and one `struct flock` that outlives the call.
        #[expect(unsafe_code, reason = "sets the lock that the probe must see")]
        unsafe {
            libc::fcntl(file.as_raw_fd(), command, &raw const lock)
        }
    }

    #[test]
    fn a_lock_on_the_db_is_seen_with_its_holder_and_leaves_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        assert!(probe_flock(&reader).is_free());
        writer.lock().unwrap();
        assert!(matches!(probe_flock(&reader), LockState::Held { pid: Some(pid) } if pid == std::process::id()));
        assert!(share_lock(&reader).unwrap().is_none());
        writer.unlock().unwrap();
        assert!(probe_flock(&reader).is_free());
        // The probe left nothing behind.
        assert!(writer.try_lock().is_ok());
    }

    #[test]
    fn a_shared_lock_keeps_writers_out_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let writer = File::create(&path).unwrap();
        let lock = share_lock(&File::open(&path).unwrap()).unwrap();
        assert!(lock.is_some());
        assert!(writer.try_lock().is_err());
        drop(lock);
        assert!(writer.try_lock().is_ok());
    }

    #[test]
    fn a_lock_on_a_segment_is_seen_and_the_two_kinds_do_not_see_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.wal");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        assert!(probe_ofd(&reader).is_free());
        assert_eq!(ofd(&writer, libc::F_OFD_SETLK, libc::F_WRLCK), 0);
        assert!(matches!(probe_ofd(&reader), LockState::Held { pid: None }));
        assert!(probe_flock(&reader).is_free());
        assert_eq!(ofd(&writer, libc::F_OFD_SETLK, libc::F_UNLCK), 0);
        writer.lock().unwrap();
        assert!(probe_ofd(&reader).is_free());
    }

    #[test]
    fn a_directory_is_locked_once_and_a_replaced_one_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.partial-1");
        std::fs::create_dir(&path).unwrap();
        let first = exclusive_lock(&path).unwrap().unwrap();
        assert!(exclusive_lock(&path).unwrap().is_none());
        assert!(first.is_still(&path));
        std::fs::remove_dir(&path).unwrap();
        assert!(!first.is_still(&path));
        std::fs::create_dir(&path).unwrap();
        assert!(!first.is_still(&path));
        assert!(exclusive_lock(&path).unwrap().is_some());
    }

    #[test]
    fn the_holder_is_read_from_the_kernels_table() {
        let table = "1: POSIX  ADVISORY  WRITE 7 fe:00:262 0 EOF\n2: OFDLCK ADVISORY  WRITE -1 fe:00:262 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 8 fe:00:262 0 EOF\n4: FLOCK  ADVISORY  WRITE 4711 fe:00:262 0 EOF\n";
        assert_eq!(holder_in(table, "fe:00:262"), Some(4711));
        assert_eq!(holder_in(table, "fe:00:263"), None);
    }
}
