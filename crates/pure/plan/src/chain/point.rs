//! Restore points: what several members are given so that they restore the same thing and meet nobody else.

use sha2::{Digest, Sha256};

/// Options that change what is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// How far the revision is moved on.
    pub bump: Option<u64>,
    /// Whether everything before is marked as compacted.
    pub mark_compacted: bool,
}

/// `REVISION:DIGEST:NONCE:OPTIONS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestorePoint {
    /// The revision.
    pub revision: u64,
    /// A digest of the objects that lead to it: 32 hex digits.
    pub digest: String,
    /// Fresh for each printed point, so that two restores of one state are two clusters.
    pub nonce: u64,
    /// What is changed on the way.
    pub content: Content,
}

/// A text that is not a restore point.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a restore point is REVISION:DIGEST:NONCE:OPTIONS, as `backup list` prints it; {what}")]
pub struct PointError {
    what: &'static str,
}

impl RestorePoint {
    /// The digest over a chain: its revision, and each object's SHA-256 as stored with the last revision taken from it.
    pub fn digest(revision: u64, objects: impl IntoIterator<Item = (u64, [u8; 32])>) -> String {
        let mut hasher = Sha256::new();
        hasher.update(b"quorate restore point 1");
        hasher.update(revision.to_be_bytes());
        for (to, sha256) in objects {
            hasher.update(to.to_be_bytes());
            hasher.update(sha256);
        }
        hex(hasher.finalize().iter().take(16).copied())
    }

    /// The token of the cluster that is restored from it.
    pub fn token(&self) -> String {
        let hash = Sha256::digest(self.to_string());
        format!("quorate-{}", hex(hash.iter().take(16).copied()))
    }
}

fn hex(bytes: impl Iterator<Item = u8>) -> String {
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

impl std::fmt::Display for RestorePoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{:016x}:", self.revision, self.digest, self.nonce)?;
        match (self.content.bump, self.content.mark_compacted) {
            (None, false) => f.write_str("exact"),
            (None, true) => f.write_str("mark"),
            (Some(bump), false) => write!(f, "bump{bump}"),
            (Some(bump), true) => write!(f, "bump{bump}+mark"),
        }
    }
}

impl std::str::FromStr for RestorePoint {
    type Err = PointError;

    fn from_str(text: &str) -> Result<RestorePoint, PointError> {
        let wrong = |what| PointError { what };
        let parts: Vec<&str> = text.split(':').collect();
        let [revision, digest, nonce, options] = parts.as_slice() else {
            return Err(wrong("this one does not have four parts"));
        };
        let is_hex = |text: &str, length| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !is_hex(digest, 32) || !is_hex(nonce, 16) {
            return Err(wrong("its digest has 32 and its nonce 16 hex digits"));
        }
        let (bump, mark_compacted) = match *options {
            "exact" => (None, false),
            "mark" => (None, true),
            other => {
                let (bump, mark) = other.strip_suffix("+mark").map_or((other, false), |bump| (bump, true));
                let number = bump.strip_prefix("bump").and_then(|number| number.parse().ok());
                (Some(number.ok_or_else(|| wrong("its options are unknown"))?), mark)
            }
        };
        let point = RestorePoint {
            revision: revision.parse().map_err(|_| wrong("its revision is not a number"))?,
            digest: (*digest).to_owned(),
            nonce: u64::from_str_radix(nonce, 16).map_err(|_| wrong("its nonce is not a number"))?,
            content: Content { bump, mark_compacted },
        };
        // One point has one spelling, since the token is derived from it.
        if point.to_string() == text { Ok(point) } else { Err(wrong("a number in it is not in its shortest form")) }
    }
}
