//! What several members must agree on to restore the same thing.
//!
//! **Rule:** the new cluster's token is derived from all of it, so members that were given the same point find each other, and
//! no one else finds them: not the old cluster, and not an earlier restore with another nonce.

use sha2::{Digest, Sha256};

/// A snapshot, what becomes of its content, and a number that is used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestorePoint {
    /// SHA-256 of the database in the snapshot.
    pub sha256: [u8; 32],
    /// By how much the revision is raised.
    pub bump: Option<u64>,
    /// Whether all history is called compacted.
    pub mark_compacted: bool,
    /// Sets this restore apart from others of the same snapshot. `None`: it is the only one.
    pub nonce: Option<u64>,
}

impl RestorePoint {
    /// Reads what [`RestorePoint`]'s `Display` writes.
    pub fn parse(text: &str) -> Option<RestorePoint> {
        let mut parts = text.trim().split(':');
        let sha256 = parse_sha256(parts.next()?)?;
        let content = parts.next()?;
        let nonce = match parts.next() {
            Some(hex) if hex.len() == 16 => Some(u64::from_str_radix(hex, 16).ok()?),
            Some(_) => return None,
            None => None,
        };
        let (bump, mark_compacted) = if content == "exact" {
            (None, false)
        } else {
            let unmarked = content.strip_suffix("-marked");
            let number = unmarked.unwrap_or(content).strip_prefix('+')?;
            (Some(number.parse().ok()?), unmarked.is_some())
        };
        let point = RestorePoint { sha256, bump, mark_compacted, nonce };
        // One spelling each, so that equal points are equal words.
        (parts.next().is_none() && point.to_string() == text.trim()).then_some(point)
    }

    /// The token of the cluster that is restored from it.
    pub fn token(&self) -> String {
        let digest = Sha256::digest(format!("quorate restore point {self}"));
        format!("restore-{}", hex(digest.get(..16).unwrap_or_default()))
    }
}

impl std::fmt::Display for RestorePoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", hex(&self.sha256))?;
        match self.bump {
            Some(bump) => write!(f, "+{bump}{}", if self.mark_compacted { "-marked" } else { "" })?,
            None => f.write_str("exact")?,
        }
        match self.nonce {
            Some(nonce) => write!(f, ":{nonce:016x}"),
            None => Ok(()),
        }
    }
}

fn parse_sha256(hex: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = hex.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    bytes.try_into().ok().filter(|_| rest.is_empty())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Vec<RestorePoint> {
        let mut points = Vec::new();
        for sha256 in [[7; 32], [8; 32]] {
            for nonce in [None, Some(0), Some(u64::MAX)] {
                let with = |bump, mark_compacted| RestorePoint { sha256, bump, mark_compacted, nonce };
                points.extend([with(None, false), with(Some(1), true), with(Some(1), false), with(Some(2), true)]);
            }
        }
        points
    }

    #[test]
    fn a_point_is_one_word_that_is_read_back() {
        for point in points() {
            let text = point.to_string();
            assert!(!text.contains(char::is_whitespace));
            assert_eq!(RestorePoint::parse(&format!(" {text}\n")), Some(point));
            for cut in 0..text.len() {
                assert_ne!(RestorePoint::parse(&text[..cut]), Some(point), "{text} cut at {cut}");
            }
        }
        for bad in ["", "x", "00:exact", &format!("{}:+01", "0".repeat(64)), &format!("{}:exact:1", "0".repeat(64))] {
            assert_eq!(RestorePoint::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn everything_that_differs_gives_another_token() {
        let mut tokens: Vec<_> = points().iter().map(RestorePoint::token).collect();
        let all = tokens.len();
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), all);
    }
}
