//! Where the directories of a member were when etcd last started: an empty directory means nothing while its file system is not
//! mounted.
//!
//! **Rule:** a place is known by its mount point and by a random marker in it, never by numbers of devices or file systems, which
//! change with btrfs, overlays and copied disks.

use serde::{Deserialize, Serialize};

/// The places of a member's data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Places {
    /// The data dir.
    pub data: Place,
    /// The separate WAL dir, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal: Option<Place>,
}

/// Where a directory was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The directory as the cluster file names it.
    pub declared: String,
    /// The same with symbolic links followed.
    pub path: String,
    /// Where the file system that holds it was mounted.
    pub mount_point: String,
    /// The type of that file system, for messages.
    pub fs_type: String,
    /// The content of the marker file in the directory or beside it; `None` where none could be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<String>,
}

/// An operator's statement that a directory is empty because its data is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptedEmpty {
    /// Where the file system that holds the empty data dir is mounted.
    pub mount_point: String,
    /// When, in ms since 1970.
    pub at_ms: u64,
}
