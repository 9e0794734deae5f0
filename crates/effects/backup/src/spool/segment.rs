//! One segment of the spool: a file whose name says what its object in the store will be called.
//!
//! **Invariant:** a sealed segment is a whole delta, from its magic number to its end, and never changes.

use std::path::PathBuf;

/// What a file that is being written ends in.
const OPEN: &str = ".open";
/// What a sealed file ends in.
const SEALED: &str = ".delta";

/// A sealed segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Where it is.
    pub path: PathBuf,
    /// First revision.
    pub first: u64,
    /// Last revision.
    pub last: u64,
    /// How many writes.
    pub events: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The epoch it was recorded in.
    pub epoch: u64,
    /// The cluster it was recorded from.
    pub cluster_id: u64,
    /// When it was sealed, in milliseconds since 1970.
    pub created_ms: i64,
    /// When its last write was recorded.
    pub last_write_ms: Option<i64>,
}

/// What the name of a file in the spool says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileName {
    /// A segment that was being written.
    Open(OpenName),
    /// A sealed one.
    Sealed(SealedName),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenName {
    pub(super) first: u64,
    pub(super) epoch: u64,
    pub(super) cluster_id: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SealedName {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) epoch: u64,
    pub(super) cluster_id: u64,
    pub(super) created_ms: i64,
}

impl std::fmt::Display for OpenName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OpenName { first, epoch, cluster_id } = self;
        write!(f, "{first:020}-e{epoch:08}-c{cluster_id:016x}{OPEN}")
    }
}

impl std::fmt::Display for SealedName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SealedName { first, last, epoch, cluster_id, created_ms } = self;
        write!(f, "{first:020}-{last:020}-e{epoch:08}-c{cluster_id:016x}-{created_ms:014}{SEALED}")
    }
}

impl FileName {
    /// Reads a name. `None`: it is none of ours; what is read is written again as it was.
    pub(super) fn parse(name: &str) -> Option<FileName> {
        let parsed = if let Some(stem) = name.strip_suffix(OPEN) {
            let [first, epoch, cluster] = stem.split('-').collect::<Vec<_>>().try_into().ok()?;
            let (first, epoch, cluster_id) = (first.parse().ok()?, numbered(epoch)?, cluster_of(cluster)?);
            FileName::Open(OpenName { first, epoch, cluster_id })
        } else {
            let stem = name.strip_suffix(SEALED)?;
            let [first, last, epoch, cluster, created] = stem.split('-').collect::<Vec<_>>().try_into().ok()?;
            FileName::Sealed(SealedName {
                first: first.parse().ok()?,
                last: last.parse().ok()?,
                epoch: numbered(epoch)?,
                cluster_id: cluster_of(cluster)?,
                created_ms: created.parse().ok()?,
            })
        };
        let again = match &parsed {
            FileName::Open(open) => open.to_string(),
            FileName::Sealed(sealed) => sealed.to_string(),
        };
        (again == name).then_some(parsed)
    }
}

fn numbered(epoch: &str) -> Option<u64> {
    epoch.strip_prefix('e')?.parse().ok()
}

fn cluster_of(cluster: &str) -> Option<u64> {
    u64::from_str_radix(cluster.strip_prefix('c')?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_others_are_not_ours() {
        let open = OpenName { first: 7, epoch: 2, cluster_id: 0xabc };
        assert_eq!(FileName::parse(&open.to_string()), Some(FileName::Open(open)));
        let sealed = SealedName { first: 7, last: 9, epoch: 2, cluster_id: u64::MAX, created_ms: 1_794_785_870_743 };
        assert_eq!(FileName::parse(&sealed.to_string()), Some(FileName::Sealed(sealed)));
        for other in
            ["", ".open", "7-e2-cabc.open", "notes.txt", "00000000000000000007-e00000002.open", "+7-e2-c1.delta"]
        {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }
}
