//! A data dir as its files and their names, however they were opened.

use crate::ReadAt;

/// One member's data dir.
pub struct DataDir<'a> {
    /// Every file and directory that was found.
    pub entries: Vec<Entry<'a>>,
    /// Where the WAL is: `member/wal`, or another place that was named.
    pub wal_dir: String,
    /// Whether somebody works on it.
    pub in_use: InUse,
}

/// A file or directory.
pub struct Entry<'a> {
    /// Relative to the data dir (or below `wal_dir`).
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// What it is.
    pub kind: Kind<'a>,
}

/// What an entry is.
pub enum Kind<'a> {
    /// A directory.
    Dir,
    /// A file that could be opened.
    File(&'a dyn ReadAt),
    /// A file that could not, and why.
    Unreadable(String),
}

/// Whether a running etcd holds the data dir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InUse {
    /// Nobody does.
    No,
    /// Somebody does; which process, if that is known.
    Yes {
        /// The holder.
        pid: Option<u32>,
    },
    /// It could not be found out.
    Unknown(String),
}

/// A file with its name in its directory.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    /// File name without directories.
    pub name: &'a str,
    /// Path relative to the data dir.
    pub path: &'a str,
    /// Its bytes.
    pub source: &'a dyn ReadAt,
}

/// Path of the database in a data dir.
pub const DB: &str = "member/snap/db";
/// Directory of the database and the raft snapshots.
pub const SNAP_DIR: &str = "member/snap";

impl DataDir<'_> {
    /// The database.
    pub fn db(&self) -> Option<Named<'_>> {
        self.readable().find(|file| file.path == DB)
    }

    /// WAL segments, in the order of their names.
    pub fn wal_files(&self) -> Vec<Named<'_>> {
        self.in_dir(&self.wal_dir, ".wal")
    }

    /// Raft snapshots, in the order of their names: the newest is last.
    pub fn snap_files(&self) -> Vec<Named<'_>> {
        self.in_dir(SNAP_DIR, ".snap")
    }

    /// Files directly in a directory with a given ending.
    fn in_dir(&self, dir: &str, ending: &str) -> Vec<Named<'_>> {
        let of_dir = |file: &Named<'_>| file.path.rsplit_once('/').is_some_and(|(parent, _)| parent == dir);
        let mut files: Vec<_> = self.readable().filter(of_dir).filter(|file| file.name.ends_with(ending)).collect();
        files.sort_by_key(|file| file.name);
        files
    }

    fn readable(&self) -> impl Iterator<Item = Named<'_>> {
        self.entries.iter().filter_map(|entry| match entry.kind {
            Kind::File(source) => Some(Named { name: entry.name(), path: &entry.path, source }),
            Kind::Dir | Kind::Unreadable(_) => None,
        })
    }

    /// Whether there is a directory at a path.
    pub fn has_dir(&self, path: &str) -> bool {
        self.entries.iter().any(|entry| entry.path == path && matches!(entry.kind, Kind::Dir))
    }
}

impl Entry<'_> {
    /// File name without directories.
    pub fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(self.path.as_str(), |(_, name)| name)
    }
}
