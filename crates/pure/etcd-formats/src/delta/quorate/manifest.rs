//! The small JSON object beside each full and delta, and the one that opens an epoch.

use serde::{Deserialize, Serialize};

/// The layout's version, in every manifest.
pub const FORMAT: &str = "quorate-backup/1";

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A snapshot of the whole database.
    Full,
    /// A stretch of history.
    Delta,
}

/// A size and a hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashed {
    /// Number of bytes.
    pub bytes: u64,
    /// SHA-256 in hex.
    pub sha256: String,
}

/// What is known about an object without opening it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always [`FORMAT`].
    pub format: String,
    /// What the object is.
    pub kind: Kind,
    /// First revision in it; of a full, the one in its name, which was there before the snapshot was asked for.
    pub first: u64,
    /// Last revision in it; of a full, the one that it holds.
    pub last: u64,
    /// Writes in a delta, key-value records in a full.
    pub events: u64,
    /// The bytes in the store.
    pub stored: Hashed,
    /// The bytes after decompression.
    pub content: Hashed,
    /// The cluster in hex, 0 if unknown.
    pub cluster_id: String,
    /// The member that was read in hex, 0 if unknown.
    pub member_id: String,
    /// Its etcd's version, empty if unknown.
    pub etcd_version: String,
    /// The writer's epoch.
    pub epoch: u64,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// When its last write was recorded, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_write_ms: Option<i64>,
}

/// The object that opens an epoch: from `begins_at` on, older epochs are not believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoch {
    /// Always [`FORMAT`].
    pub format: String,
    /// Its number.
    pub epoch: u64,
    /// The first revision that this epoch's writer records itself.
    pub begins_at: u64,
    /// The cluster in hex, 0 if unknown.
    pub cluster_id: String,
    /// The member that was read in hex, 0 if unknown.
    pub member_id: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// A random word that tells two writers apart who are alike in everything else.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub writer: String,
    /// The declaration that its cluster comes of, where its writer knew it. Ids change with every restore; this does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<Declared>,
    /// The clusters that its cluster descends from, in hex: those that it was restored or recovered from, and those whose
    /// backups it took over by an operator's word.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub was: Vec<String>,
}

/// Which declaration a cluster comes of, whatever its id has become since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declared {
    /// The token of its file.
    pub token: String,
    /// The number of its founding, where the file named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<u64>,
}

impl Manifest {
    /// Reads one. `None`: it is not one of this version.
    pub fn parse(bytes: &[u8]) -> Option<Manifest> {
        serde_json::from_slice(bytes).ok().filter(|manifest: &Manifest| manifest.format == FORMAT)
    }

    /// The JSON text.
    pub fn to_json(&self) -> Vec<u8> {
        pretty(self)
    }
}

impl Epoch {
    /// Reads one. `None`: it is not one of this version.
    pub fn parse(bytes: &[u8]) -> Option<Epoch> {
        serde_json::from_slice(bytes).ok().filter(|epoch: &Epoch| epoch.format == FORMAT)
    }

    /// The JSON text.
    pub fn to_json(&self) -> Vec<u8> {
        pretty(self)
    }
}

fn pretty(value: &impl Serialize) -> Vec<u8> {
    // Strings and numbers only: there is nothing that could fail to be written.
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}
