//! Restore points: what several members are given so that they restore the same thing and meet nobody else.
//!
//! **Rule:** the new cluster's token is derived from all of it, so members that were given the same point find each other, and
//! no one else finds them: not the old cluster, and not an earlier restore with another nonce.

use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::rebuild::BUMP_DEFAULT;
use sha2::{Digest, Sha256};

/// Options that change what is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// How far the revision is moved on.
    pub bump: Option<u64>,
    /// Whether everything before is marked as compacted.
    pub mark_compacted: bool,
}

impl Content {
    /// What a restore of `revision` does unless asked otherwise: it ends above `highest`, the highest revision that the store or
    /// the ledger has seen, whatever was recovered or restored in between, and watchers begin again.
    pub fn above(revision: u64, highest: u64) -> Content {
        let bump = highest.saturating_sub(revision).saturating_add(BUMP_DEFAULT);
        Content { bump: Some(bump), mark_compacted: true }
    }

    /// Whether a restore of `revision` ends at or below a revision that was seen before.
    pub fn goes_back(&self, revision: u64, highest: u64) -> bool {
        self.bump.is_some_and(|bump| revision.saturating_add(bump) <= highest)
    }
}

/// `REVISION:DIGEST:NONCE:OPTIONS`, or `REVISION:DIGEST:OPTIONS` where no nonce was handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestorePoint {
    /// The revision.
    pub revision: u64,
    /// A digest of the objects that lead to it (32 hex digits), or the SHA-256 of a snapshot (64).
    pub digest: String,
    /// Fresh for each point that is handed out, so that two restores of one state are two clusters. `None`: every run with
    /// the same snapshot and options means the same cluster.
    pub nonce: Option<u64>,
    /// What is changed on the way.
    pub content: Content,
}

/// A text that is not a restore point.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a restore point is REVISION:DIGEST:NONCE:OPTIONS; {what}")]
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
        hex(&hasher.finalize()[..16])
    }

    /// The token of the cluster that is restored from it.
    pub fn token(&self) -> String {
        let hash = Sha256::digest(self.to_string());
        format!("quorate-{}", hex(&hash[..16]))
    }
}

impl std::fmt::Display for RestorePoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:", self.revision, self.digest)?;
        if let Some(nonce) = self.nonce {
            write!(f, "{nonce:016x}:")?;
        }
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
        let (revision, digest, nonce, options) = match *parts.as_slice() {
            [revision, digest, nonce, options] => (revision, digest, Some(nonce), options),
            [revision, digest, options] => (revision, digest, None, options),
            _ => return Err(wrong("this one has too few or too many parts")),
        };
        let is_hex = |text: &str, length| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !(is_hex(digest, 32) || is_hex(digest, 64)) || nonce.is_some_and(|nonce| !is_hex(nonce, 16)) {
            return Err(wrong("its digest has 32 or 64 and its nonce 16 hex digits"));
        }
        let nonce = nonce.map(|nonce| u64::from_str_radix(nonce, 16)).transpose();
        let (bump, mark_compacted) = match options {
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
            digest: digest.to_owned(),
            nonce: nonce.map_err(|_| wrong("its nonce is not a number"))?,
            content: Content { bump, mark_compacted },
        };
        // One point has one spelling, since the token is derived from it.
        if point.to_string() == text { Ok(point) } else { Err(wrong("a number in it is not in its shortest form")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_of_an_old_state_ends_above_what_was_ever_seen() {
        let newest = Content::above(26, 26);
        assert_eq!(newest, Content { bump: Some(1_000_000_000), mark_compacted: true });
        let old = Content::above(26, 2_000_000_028);
        assert_eq!(26 + old.bump.unwrap(), 3_000_000_028);
        assert!(Content { bump: Some(1_000_000_000), mark_compacted: true }.goes_back(26, 2_000_000_028));
        assert!(!old.goes_back(26, 2_000_000_028));
    }

    #[test]
    fn a_point_survives_being_printed_and_read() {
        for content in [
            Content { bump: None, mark_compacted: false },
            Content { bump: None, mark_compacted: true },
            Content { bump: Some(1_000_000_000), mark_compacted: false },
            Content { bump: Some(7), mark_compacted: true },
        ] {
            for digest in [RestorePoint::digest(120, [(5, [1; 32])]), "9f".repeat(32)] {
                for nonce in [None, Some(0), Some(u64::MAX)] {
                    let point = RestorePoint { revision: 120, digest: digest.clone(), nonce, content };
                    let text = point.to_string();
                    for cut in 0..text.len() {
                        assert_ne!(text[..cut].parse(), Ok(point.clone()), "{text} cut at {cut}");
                    }
                    assert_eq!(text.parse(), Ok(point));
                }
            }
        }
        for text in ["", "1:2", "1:9f:1:exact", "1:00000000000000000000000000000000:0000000000000001:bump+mark"] {
            assert!(text.parse::<RestorePoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_digest_depends_on_everything_and_a_token_on_the_nonce() {
        let digest = RestorePoint::digest(120, [(5, [1; 32]), (120, [2; 32])]);
        assert_ne!(digest, RestorePoint::digest(121, [(5, [1; 32]), (120, [2; 32])]));
        assert_ne!(digest, RestorePoint::digest(120, [(5, [1; 32]), (119, [2; 32])]));
        assert_ne!(digest, RestorePoint::digest(120, [(5, [1; 32]), (120, [3; 32])]));
        assert_ne!(digest, RestorePoint::digest(120, [(5, [1; 32])]));
        let content = Content { bump: None, mark_compacted: false };
        let point = RestorePoint { revision: 120, digest, nonce: Some(1), content };
        assert_ne!(point.token(), RestorePoint { nonce: Some(2), ..point.clone() }.token());
        let marked = Content { mark_compacted: true, ..content };
        assert_ne!(point.token(), RestorePoint { content: marked, ..point.clone() }.token());
    }
}
