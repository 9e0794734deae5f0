//! What lies in a WAL directory, by name.
//!
//! etcd reads the files whose names parse, in the order of their sequence numbers, and ignores the rest.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fmt;

/// A segment's name: `<sequence>-<index>.wal`, each as 16 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// The segment's place in the log, from 0.
    pub sequence: u64,
    /// The first entry that it may hold.
    pub index: u64,
}

impl SegmentName {
    /// Parses a name exactly as etcd writes it.
    pub fn parse(name: &str) -> Option<SegmentName> {
        let (sequence, index) = name.strip_suffix(".wal")?.split_once('-')?;
        Some(SegmentName { sequence: hex16(sequence)?, index: hex16(index)? })
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.wal", self.sequence, self.index)
    }
}

/// Sixteen lower-case hex digits.
pub(crate) fn hex16(digits: &str) -> Option<u64> {
    let well_formed = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    well_formed.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// What a file in a WAL directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalFileKind {
    /// A segment of the log.
    Segment(SegmentName),
    /// `0.tmp` or `1.tmp`: space reserved for the next segment. Normal.
    Reserved,
    /// `<name>.broken`: the copy that etcd's repair left of a torn segment.
    Broken,
    /// Ends in `.wal` and is no segment: etcd takes the directory for a WAL because of it, and does not read it.
    BadSegmentName,
    /// Anything else; etcd ignores it.
    Other,
}

impl WalFileKind {
    /// Judges a name.
    pub fn of(name: &str) -> WalFileKind {
        match SegmentName::parse(name) {
            Some(segment) => WalFileKind::Segment(segment),
            None if name.ends_with(".broken") => WalFileKind::Broken,
            None if name.ends_with(".wal") => WalFileKind::BadSegmentName,
            None if is_reserved(name) => WalFileKind::Reserved,
            None => WalFileKind::Other,
        }
    }
}

fn is_reserved(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// What can be wrong with the names of a log's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameProblem {
    /// Segments are missing before `found`. etcd overlooks a gap directly after segment 0.
    Gap { expected: u64, found: SegmentName },
    /// Two segments claim the same place.
    Twice { found: SegmentName },
    /// A later segment claims to begin earlier than the one before it.
    IndexBackwards { before: SegmentName, found: SegmentName },
}

/// Checks names that are already in order.
pub fn check_order(names: &[SegmentName]) -> Vec<NameProblem> {
    let mut problems = Vec::new();
    for (before, found) in names.iter().zip(names.iter().skip(1)) {
        let expected = before.sequence.saturating_add(1);
        if found.sequence == before.sequence {
            problems.push(NameProblem::Twice { found: *found });
        } else if found.sequence != expected {
            problems.push(NameProblem::Gap { expected, found: *found });
        }
        if found.index < before.index {
            problems.push(NameProblem::IndexBackwards { before: *before, found: *found });
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let name = SegmentName { sequence: 2, index: 0x86 };
        assert_eq!(name.to_string(), "0000000000000002-0000000000000086.wal");
        assert_eq!(SegmentName::parse(&name.to_string()), Some(name));
    }

    #[test]
    fn everything_else_is_told_apart() {
        for (name, kind) in [
            ("0.tmp", WalFileKind::Reserved),
            ("0000000000000002-0000000000000086.wal.broken", WalFileKind::Broken),
            ("2-86.wal", WalFileKind::BadSegmentName),
            ("000000000000000G-0000000000000086.wal", WalFileKind::BadSegmentName),
            ("é000000000000002-0000000000000086.wal", WalFileKind::BadSegmentName),
            (".tmp", WalFileKind::Other),
            ("notes", WalFileKind::Other),
        ] {
            assert_eq!(WalFileKind::of(name), kind, "{name}");
        }
    }

    #[test]
    fn a_gap_after_segment_0_is_found_too() {
        let names = [SegmentName { sequence: 0, index: 0 }, SegmentName { sequence: 2, index: 9 }];
        assert_eq!(check_order(&names), [NameProblem::Gap { expected: 1, found: names[1] }]);
    }
}
