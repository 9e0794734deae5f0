//! Backups as etcd-backup-restore tells of them over HTTP, misspelt key included.

use jiff::Timestamp;
use quorate_backup::store::Store;
use quorate_etcd_formats::delta::gardener::{Compression, Name};
use quorate_faults::Result;
use serde::Serialize;

/// What an unset time is in Go.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// One backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Snapshot {
    created_on: String,
    #[serde(rename = "immutabilityExpriyTime")]
    immutability_expiry_time: &'static str,
    #[serde(rename = "versionID")]
    version_id: Option<String>,
    kind: &'static str,
    snap_dir: String,
    snap_name: String,
    prefix: String,
    compression_suffix: &'static str,
    start_revision: u64,
    last_revision: u64,
    is_chunk: bool,
    is_final: bool,
}

/// The newest full and the deltas behind it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Latest {
    full_snapshot: Option<Snapshot>,
    delta_snapshots: Option<Vec<Snapshot>>,
}

impl Snapshot {
    /// `root`: the part of the store's name before `v2`.
    pub(super) fn of(name: &Name, root: &str) -> Snapshot {
        let (folder, file) = name.object.rsplit_once('/').unwrap_or(("", &name.object));
        // v1 has a folder per full backup.
        let (folder, dir) = match folder.rsplit_once('/') {
            Some((version, dir)) if dir.starts_with("Backup-") => (version, dir),
            _ => (folder, ""),
        };
        let created = Timestamp::from_second(name.created_s).unwrap_or(Timestamp::UNIX_EPOCH);
        Snapshot {
            created_on: created.to_string(),
            immutability_expiry_time: ZERO_TIME,
            version_id: None,
            kind: if name.full { "Full" } else { "Incr" },
            snap_dir: dir.to_owned(),
            snap_name: file.to_owned(),
            prefix: [root.trim_matches('/'), folder]
                .iter()
                .filter(|part| !part.is_empty())
                .copied()
                .collect::<Vec<_>>()
                .join("/"),
            compression_suffix: match name.compression {
                Compression::Gzip => ".gz",
                Compression::Zlib => ".zlib",
                Compression::Lzw => ".Z",
                Compression::None | Compression::Zstd => "",
            },
            start_revision: name.first,
            last_revision: name.last,
            is_chunk: name.chunk.is_some(),
            is_final: name.is_final,
        }
    }
}

/// Names in the store, by their last revision.
pub(super) fn names(store: &Store) -> Result<Vec<Name>> {
    let mut names: Vec<Name> = store.list()?.iter().filter_map(|listed| Name::parse(&listed.name)).collect();
    names.retain(|name| name.chunk.is_none());
    names.sort_by_key(|name| (name.last, name.created_s, !name.full));
    Ok(names)
}

/// From the end back to the newest full.
pub(super) fn latest(names: &[Name], root: &str) -> Latest {
    let full = names.iter().rposition(|name| name.full);
    let behind = full.map_or(names, |at| &names[at + 1..]);
    let deltas: Vec<Snapshot> = behind.iter().map(|name| Snapshot::of(name, root)).collect();
    Latest {
        full_snapshot: full.map(|at| Snapshot::of(&names[at], root)),
        delta_snapshots: Some(deltas).filter(|deltas| !deltas.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_those_of_the_original() {
        let name = |path: &str| Name::parse(path).unwrap();
        let names = [
            name("v2/Full-00000000-00000012-1794773640.gz"),
            name("v2/Full-00000000-00000033-1794773646.gz"),
            name("v2/Incr-00000034-00000066-1794773650.gz"),
        ];
        let said = serde_json::to_string(&latest(&names, "prod/etcd")).unwrap();
        let snapshot = |kind: &str, file: &str, time: &str, first: u64, last: u64| {
            format!(
                "{{\"createdOn\":\"{time}\",\"immutabilityExpriyTime\":\"0001-01-01T00:00:00Z\",\"versionID\":null,\
                 \"kind\":\"{kind}\",\"snapDir\":\"\",\"snapName\":\"{file}\",\"prefix\":\"prod/etcd/v2\",\
                 \"compressionSuffix\":\".gz\",\"startRevision\":{first},\"lastRevision\":{last},\"isChunk\":false,\"isFinal\":false}}"
            )
        };
        let full = snapshot("Full", "Full-00000000-00000033-1794773646.gz", "2026-11-15T20:14:06Z", 0, 33);
        let delta = snapshot("Incr", "Incr-00000034-00000066-1794773650.gz", "2026-11-15T20:14:10Z", 34, 66);
        assert_eq!(said, format!("{{\"fullSnapshot\":{full},\"deltaSnapshots\":[{delta}]}}"));
        let nothing = serde_json::to_string(&latest(&[], "")).unwrap();
        assert_eq!(nothing, "{\"fullSnapshot\":null,\"deltaSnapshots\":null}");
        let old = Snapshot::of(&name("v1/Backup-1/Full-00000000-00000012-1.gz.final"), "");
        assert_eq!((old.snap_dir.as_str(), old.prefix.as_str(), old.is_final), ("Backup-1", "v1", true));
    }
}
