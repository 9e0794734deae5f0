//! The hash chain of the audit log: every record contains the SHA-256 of the record before it, and its own.
//!
//! ```text
//!   {…,"seq":7,"prev":"HASH OF 6","hash":"SHA-256 of this line up to here, closed with }"}
//! ```
//!
//! **Invariant:** a changed, removed, inserted or moved record is reported with its file and line. Whoever may write the file can
//! compute a whole new chain: only a hash that was noted elsewhere (`--expect-head`, the journal) shows that, or a missing tail.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Entry;

/// What the first record of all contains as the hash before it.
const NONE_BEFORE: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Between the record and its hash.
const SEAL: &[u8] = b",\"hash\":\"";
/// Of a SHA-256 in hex.
const HASH_CHARS: usize = 64;
/// So many breaks are described; the others are counted.
const BREAKS_MAX: usize = 50;

/// The place of a record in the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its number, from 1.
    pub seq: u64,
    /// The hash of the record before it.
    pub prev: String,
    /// Its own.
    pub hash: String,
}

/// A record as it is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    /// What it says.
    #[serde(flatten)]
    pub entry: Entry,
    /// Its place in the chain; none: an earlier release wrote it.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

/// A record before it has its hash.
#[derive(Serialize, Deserialize)]
struct Unsealed {
    #[serde(flatten)]
    entry: Entry,
    seq: u64,
    prev: String,
}

/// One line of a file.
pub(super) enum Line {
    /// A record of the chain; `intact`: its hash is that of its bytes.
    Chained { record: Box<Record>, link: Link, intact: bool },
    /// A record from before there was a chain.
    Unchained(Box<Entry>),
    /// No record: cut off by a power failure, or written by another program.
    Unreadable,
}

/// The line of the record that follows `last`, with a line feed, and its place.
pub(super) fn seal(entry: &Entry, last: Option<&Link>) -> serde_json::Result<(Vec<u8>, Link)> {
    let (seq, prev) = last.map_or((1, NONE_BEFORE.to_owned()), |last| (last.seq + 1, last.hash.clone()));
    let mut line = serde_json::to_vec(&Unsealed { entry: entry.clone(), seq, prev: prev.clone() })?;
    let hash = hash_of(&line);
    line.pop();
    line.extend_from_slice(SEAL);
    line.extend_from_slice(hash.as_bytes());
    line.extend_from_slice(b"\"}\n");
    Ok((line, Link { seq, prev, hash }))
}

/// Reads one line, without its line feed.
pub(super) fn parse(line: &[u8]) -> Line {
    let Some((body, hash)) = split_seal(line) else {
        // A record with a number and without a hash has lost it.
        let numbered = serde_json::from_slice::<Unsealed>(line).is_ok();
        return match serde_json::from_slice::<Entry>(line) {
            Ok(entry) if !numbered => Line::Unchained(Box::new(entry)),
            Ok(_) | Err(_) => Line::Unreadable,
        };
    };
    match serde_json::from_slice::<Unsealed>(&body) {
        Ok(Unsealed { entry, seq, prev }) => {
            let link = Link { seq, prev, hash: hash.clone() };
            let record = Box::new(Record { entry, link: Some(link.clone()) });
            Line::Chained { record, link, intact: hash_of(&body) == hash }
        }
        Err(_) => Line::Unreadable,
    }
}

/// The bytes that the hash is of, and the hash that the line ends with.
fn split_seal(line: &[u8]) -> Option<(Vec<u8>, String)> {
    let rest = line.strip_suffix(b"\"}")?;
    let (rest, hash) = rest.split_at_checked(rest.len().checked_sub(HASH_CHARS)?)?;
    let body = rest.strip_suffix(SEAL)?;
    let hash = std::str::from_utf8(hash).ok().filter(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    Some(([body, b"}"].concat(), hash.to_owned()))
}

fn hash_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The place of the last record of the chain in these bytes.
pub(super) fn last_link(bytes: &[u8]) -> Option<Link> {
    bytes.rsplit(|byte| *byte == b'\n').filter(|line| !line.is_empty()).find_map(|line| match parse(line) {
        Line::Chained { link, .. } => Some(link),
        Line::Unchained(_) | Line::Unreadable => None,
    })
}

/// What a check of the chain found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Records of the chain.
    pub records: u64,
    /// The number of the first one; more than 1: earlier ones were rotated away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    /// The number of the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
    /// Its hash: noted elsewhere, it shows later whether the end was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// Records that an earlier release wrote before the chain began.
    pub unchained: u64,
    /// Lines that were cut off while they were written; the chain continues behind them.
    pub incomplete: u64,
    /// Where the chain does not hold, the first ones.
    pub breaks: Vec<Break>,
    /// How many there are.
    pub breaks_total: u64,
    /// How many records were written since the expected head; none: it is not in the chain, or none was expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_expected: Option<u64>,
}

/// Where the chain does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Break {
    /// The file.
    pub file: String,
    /// The line in it, from 1.
    pub line: u64,
    /// What does not hold.
    pub what: String,
}

/// Checks a chain, file by file, the oldest first.
pub struct Verifier<'a> {
    verdict: Verdict,
    last: Option<Link>,
    /// Of unreadable lines since the last record: they are harmless if the chain continues.
    doubtful: Vec<Break>,
    /// Records before the first one may have been rotated away.
    may_begin_late: bool,
    expected: Option<&'a str>,
}

impl<'a> Verifier<'a> {
    /// `may_begin_late`: whether files before the first one may have been removed by rotation. `expected`: a hash that must occur.
    pub fn new(may_begin_late: bool, expected: Option<&'a str>) -> Verifier<'a> {
        Verifier { verdict: Verdict::default(), last: None, doubtful: Vec::new(), may_begin_late, expected }
    }

    /// Checks the next file.
    pub fn add(&mut self, file: &str, bytes: &[u8]) {
        for (number, line) in (1_u64..).zip(bytes.split(|byte| *byte == b'\n')) {
            if line.is_empty() {
                continue;
            }
            let at = |what: String| Break { file: file.to_owned(), line: number, what };
            match parse(line) {
                Line::Chained { link, intact, .. } => self.add_link(link, intact, at),
                Line::Unchained(_) if self.last.is_none() => self.verdict.unchained += 1,
                Line::Unchained(_) => self.push(at("a line without a hash behind records with one".to_owned())),
                // A line that was cut off does not end like one.
                Line::Unreadable if line.ends_with(b"}") => self.push(at("a line that is no record".to_owned())),
                Line::Unreadable => self.doubtful.push(at("a line that is no record".to_owned())),
            }
        }
    }

    fn add_link(&mut self, link: Link, intact: bool, at: impl Fn(String) -> Break) {
        let seq = link.seq;
        let wrong = match &self.last {
            _ if !intact => Some(format!("record {seq} was changed: its hash is not that of its bytes")),
            None if self.may_begin_late => None,
            None if seq == 1 && link.prev == NONE_BEFORE => None,
            None => Some(format!("the log begins with record {seq}: the records before it are missing")),
            Some(last) if seq != last.seq + 1 => Some(format!("record {seq} follows record {}", last.seq)),
            Some(last) if link.prev != last.hash => {
                Some(format!("record {} was changed or replaced: record {seq} contains another hash of it", last.seq))
            }
            Some(_) => None,
        };
        let doubtful = std::mem::take(&mut self.doubtful);
        match wrong {
            None => self.verdict.incomplete += doubtful.len() as u64,
            Some(what) => {
                doubtful.into_iter().for_each(|one| self.push(one));
                self.push(at(what));
            }
        }
        let verdict = &mut self.verdict;
        verdict.records += 1;
        verdict.first.get_or_insert(seq);
        verdict.since_expected = match verdict.since_expected {
            Some(since) => Some(since + 1),
            None => (self.expected == Some(link.hash.as_str())).then_some(0),
        };
        self.last = Some(link);
    }

    fn push(&mut self, broken: Break) {
        self.verdict.breaks_total += 1;
        if self.verdict.breaks.len() < BREAKS_MAX {
            self.verdict.breaks.push(broken);
        }
    }

    /// What was found.
    pub fn finish(self) -> Verdict {
        let Verifier { mut verdict, last, doubtful, .. } = self;
        // The last line may have been cut off by a power failure, before what it was to record was done.
        verdict.incomplete += doubtful.len() as u64;
        verdict.last = last.as_ref().map(|last| last.seq);
        verdict.head = last.map(|last| last.hash);
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::super::Who;
    use super::*;

    fn entry(word: &str) -> Entry {
        Entry {
            at: "2026-11-16T04:00:00Z".to_owned(),
            command: "exec".to_owned(),
            words: vec![word.to_owned()],
            member: "n1".to_owned(),
            process: None,
            target_pid: None,
            who: Who { uid: 0, login_uid: None, sudo_user: None, pid: 7 },
            remote: None,
            result_of: None,
        }
    }

    fn lines(count: usize) -> Vec<Vec<u8>> {
        let (mut last, mut lines) = (None, Vec::new());
        for number in 0..count {
            let (line, link) = seal(&entry(&format!("w{number}")), last.as_ref()).unwrap();
            last = Some(link);
            lines.push(line);
        }
        lines
    }

    fn verify(bytes: &[u8]) -> Verdict {
        let mut verifier = Verifier::new(false, None);
        verifier.add("audit.log", bytes);
        verifier.finish()
    }

    #[test]
    fn an_untouched_chain_holds_and_old_lines_before_it_are_counted() {
        let old = [serde_json::to_vec(&entry("old")).unwrap(), b"\n".to_vec()].concat();
        let verdict = verify(&[old, lines(3).concat()].concat());
        assert_eq!((verdict.records, verdict.unchained, verdict.breaks_total), (3, 1, 0));
        assert_eq!((verdict.first, verdict.last), (Some(1), Some(3)));
    }

    #[test]
    fn every_changed_byte_is_reported() {
        let whole = lines(3).concat();
        let head = verify(&whole).head;
        for index in 0..whole.len() {
            let mut changed = whole.clone();
            changed[index] ^= 1;
            let mut verifier = Verifier::new(false, head.as_deref());
            verifier.add("audit.log", &changed);
            let verdict = verifier.finish();
            let missed = verdict.breaks_total == 0 && verdict.since_expected.is_some();
            assert!(!missed, "byte {index} of {:?}", String::from_utf8_lossy(&changed));
        }
    }

    #[test]
    fn a_removed_moved_or_foreign_line_is_reported_with_its_place() {
        let all = lines(4);
        let removed = verify(&[&all[0][..], &all[2], &all[3]].concat());
        assert_eq!(removed.breaks_total, 1);
        assert_eq!((removed.breaks[0].line, removed.breaks[0].what.as_str()), (2, "record 3 follows record 1"));
        assert!(verify(&[&all[0][..], &all[2], &all[1], &all[3]].concat()).breaks_total > 0);
        assert_eq!(verify(&[&all[1][..], &all[2]].concat()).breaks_total, 1, "the beginning is missing");
        let foreign = [&serde_json::to_vec(&entry("x")).unwrap()[..], b"\n"].concat();
        assert_eq!(verify(&[&all[0][..], &foreign, &all[1]].concat()).breaks[0].line, 2);
    }

    #[test]
    fn a_line_that_was_cut_off_is_no_break_and_a_cut_off_end_misses_the_expected_head() {
        let all = lines(3);
        let torn = verify(&[&all[0][..], &all[1][..20], b"\n", &all[1]].concat());
        assert_eq!((torn.breaks_total, torn.incomplete), (0, 1));
        let head = verify(&all.concat()).head.unwrap();
        let with = |bytes: &[u8]| {
            let mut verifier = Verifier::new(false, Some(&head));
            verifier.add("audit.log", bytes);
            verifier.finish().since_expected
        };
        assert_eq!(with(&all.concat()), Some(0));
        assert_eq!(with(&lines(5).concat()), Some(2));
        assert_eq!(with(&all[..2].concat()), None);
    }
}
