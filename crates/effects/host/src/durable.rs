//! The one durable-file layer: everything that must survive a power cut is written through [`Disk`].
//!
//! A caller builds a tree under a *partial* name, syncs each file and then each directory from the bottom up, renames it
//! into place and syncs the parent. The steps are spelled out by the caller, so that a recorded run can be replayed
//! into every state that a crash could leave (the tests do).
//!
//! **Invariant:** nothing is removed whose name does not say that it is partial or, of a single file, spent, and nothing
//! that exists is replaced, except a single file by [`Disk::replace_file`].

mod real;

use std::io;
use std::path::{Path, PathBuf};

use quorate_faults::Fault;

pub use real::{RealDisk, RealFile};

/// What marks a file or directory as unfinished: `<name>.partial-<pid>`.
pub const PARTIAL_MARK: &str = ".partial-";

/// What marks a file that is needed no more, because all that it holds is proven to be held elsewhere: `<name>.spent`.
pub const SPENT_MARK: &str = ".spent";

/// A user and group, as the kernel numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Who may do what with a new file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Permission bits, exact whatever the umask.
    pub mode: u32,
    /// Whose it is; `None`: whoever runs this.
    pub owner: Option<Owner>,
}

impl Access {
    /// For whoever runs this, with these permission bits.
    pub fn mode(mode: u32) -> Access {
        Access { mode, owner: None }
    }
}

/// Changes to the file system, each of which is either harmless to lose or made durable by a later sync.
pub trait Disk {
    /// A file opened for writing.
    type File: DiskFile;

    /// Makes a directory. Fails if anything has that name.
    fn create_dir(&self, path: &Path, access: Access) -> Result<(), DiskError>;

    /// Makes an empty file. Fails if anything has that name.
    fn create_file(&self, path: &Path, access: Access) -> Result<Self::File, DiskError>;

    /// Makes the names inside a directory durable, with its own mode and owner.
    fn sync_dir(&self, path: &Path) -> Result<(), DiskError>;

    /// Gives a file or directory a new name in the same file system; fails with `AlreadyExists` rather than replace.
    fn rename_new(&self, from: &Path, to: &Path) -> Result<(), DiskError>;

    /// Gives a partial file the name of an existing one, which loses it in the same instant. The partial must be durable,
    /// and nothing that only the other holds may be needed any more. Refuses a partial whose name lacks [`PARTIAL_MARK`].
    fn replace_file(&self, partial: &Path, to: &Path) -> Result<(), DiskError>;

    /// Removes a partial file or tree, or a spent file. Refuses a path whose own name neither has [`PARTIAL_MARK`] nor, of a
    /// file, ends in [`SPENT_MARK`]. Absent is fine.
    fn remove_partial(&self, path: &Path) -> Result<(), DiskError>;
}

/// A file that is being written.
pub trait DiskFile {
    /// Appends at the current position.
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), DiskError>;

    /// Writes at a place, leaving the current position alone.
    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), DiskError>;

    /// Has what was written so far carried to the disk in the background, so that a later [`DiskFile::sync`] waits less.
    fn start_sync(&mut self) {}

    /// Makes content, size, mode and owner durable. The file's *name* is made so by [`Disk::sync_dir`].
    fn sync(&mut self) -> Result<(), DiskError>;
}

/// A change that failed: what was tried, where, and what the system said.
#[derive(Debug)]
pub struct DiskError {
    attempt: &'static str,
    path: PathBuf,
    cause: io::Error,
}

impl DiskError {
    pub(crate) fn new(attempt: &'static str, path: &Path, cause: impl Into<io::Error>) -> DiskError {
        DiskError { attempt, path: path.to_owned(), cause: cause.into() }
    }

    /// The kind of the system's error.
    pub fn kind(&self) -> io::ErrorKind {
        self.cause.kind()
    }

    /// The path that was worked on.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl std::fmt::Display for DiskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot {} `{}`", self.attempt, self.path.display())
    }
}

impl std::error::Error for DiskError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl From<DiskError> for Fault {
    fn from(error: DiskError) -> Fault {
        Fault::io(error.to_string(), error.cause)
    }
}

/// The unfinished form of a path: the same place, with the mark and the process id behind its name.
///
/// `None` where the path has no name of its own (`/`, `..`).
pub fn partial_path(path: &Path, pid: u32) -> Option<PathBuf> {
    let mut name = path.file_name()?.to_owned();
    name.push(format!("{PARTIAL_MARK}{pid}"));
    Some(path.with_file_name(name))
}

/// Whether `name` is an unfinished form of `of`: the mark and digits, and nothing else, behind the same name.
pub fn is_partial_of(name: &std::ffi::OsStr, of: &std::ffi::OsStr) -> bool {
    let rest = name.as_encoded_bytes().strip_prefix(of.as_encoded_bytes());
    let Some(pid) = rest.and_then(|rest| rest.strip_prefix(PARTIAL_MARK.as_bytes())) else { return false };
    !pid.is_empty() && pid.iter().all(u8::is_ascii_digit)
}

/// What [`Disk::remove_partial`] removes, in its order, with whether it is a directory: content before the directory that
/// holds it, names ascending.
pub fn removal_order(path: &Path) -> Result<Vec<(PathBuf, bool)>, DiskError> {
    const ATTEMPT: &str = "remove the left-over";
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let spent = name.ends_with(SPENT_MARK) && path.symlink_metadata().map_or(true, |meta| meta.is_file());
    if !name.contains(PARTIAL_MARK) && !spent {
        let cause = io::Error::new(io::ErrorKind::InvalidInput, "its name does not say that it is partial or spent");
        return Err(DiskError::new(ATTEMPT, path, cause));
    }
    let mut order = Vec::new();
    // A stack of (path, listed): a directory comes up twice, and is emitted after its content.
    let mut stack = vec![(path.to_owned(), false)];
    while let Some((path, listed)) = stack.pop() {
        if listed {
            order.push((path, true));
            continue;
        }
        let meta = match path.symlink_metadata() {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(DiskError::new(ATTEMPT, &path, error)),
        };
        if !meta.is_dir() {
            order.push((path, false));
            continue;
        }
        let entries = std::fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut children: Vec<_> = match entries {
            Ok(entries) => entries.into_iter().map(|entry| entry.path()).collect(),
            Err(error) => return Err(DiskError::new(ATTEMPT, &path, error)),
        };
        children.sort();
        stack.push((path, true));
        stack.extend(children.into_iter().rev().map(|child| (child, false)));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_unfinished_names_count_as_partial() {
        let is = |name: &str| is_partial_of(name.as_ref(), "etcd".as_ref());
        assert!(is("etcd.partial-17"));
        assert!(!is("etcd.partial-"));
        assert!(!is("etcd.partial-17.bak"));
        assert!(!is("etcd.partial-old"));
        assert!(!is("etcd2.partial-17"));
        assert!(!is("etcd"));
        assert_eq!(partial_path("/a/etcd".as_ref(), 9), Some("/a/etcd.partial-9".into()));
        assert_eq!(partial_path("/".as_ref(), 9), None);
    }
}
