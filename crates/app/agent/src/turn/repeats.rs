//! Limits how often the same warning is logged.
//!
//! **Rule:** one line a minute for the same cause. The first one is never held back, and the next one says how many were.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two lines about the same cause.
const EVERY: Duration = Duration::from_secs(60);
/// Causes that are remembered; more at a time means that nothing repeats.
const CAUSES_MAX: usize = 128;

/// What was logged, when, and how often it was held back since.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    known: Mutex<BTreeMap<(String, String), (Instant, u64)>>,
    /// Whether the last reason to do nothing was held back.
    holding: AtomicBool,
}

impl Repeats {
    /// Whether this may be logged now, and what to add: how often it was held back.
    pub(crate) fn pass(&self, code: &str, text: &str) -> Option<String> {
        self.pass_at(code, text, Instant::now())
    }

    /// The same for a reason for which nothing is done.
    pub(crate) fn halt(&self, code: &str, text: &str) -> Option<String> {
        let passed = self.pass(code, text);
        self.holding.store(passed.is_none(), Ordering::Relaxed);
        passed
    }

    /// Whether the last reason to do nothing was held back.
    pub(crate) fn is_holding(&self) -> bool {
        self.holding.load(Ordering::Relaxed)
    }

    /// Nothing fails any more.
    pub(crate) fn works(&self) {
        self.holding.store(false, Ordering::Relaxed);
    }

    fn pass_at(&self, code: &str, text: &str, now: Instant) -> Option<String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let cause = (code.to_owned(), cause_of(text));
        if let Some((at, held)) = known.get_mut(&cause)
            && now.saturating_duration_since(*at) < EVERY
        {
            *held += 1;
            return None;
        }
        if known.len() >= CAUSES_MAX {
            known.retain(|_, (at, _)| now.saturating_duration_since(*at) < EVERY);
        }
        if known.len() >= CAUSES_MAX {
            known.clear();
        }
        let held = known.insert(cause, (now, 0)).map_or(0, |(_, held)| held);
        Some(if held > 0 { format!(" ({held} more times since the last line)") } else { String::new() })
    }
}

/// The text without what differs from time to time: numbers, ids, durations. Names of nodes stay: each is a cause of its own.
fn cause_of(text: &str) -> String {
    let differs = |word: &str| word.contains(|c: char| c.is_ascii_digit()) && !is_name(word);
    text.split_whitespace().filter(|word| !differs(word)).collect::<Vec<_>>().join(" ")
}

/// Whether a word is a name in backticks: no address, path or hexadecimal id.
fn is_name(word: &str) -> bool {
    let quoted = word.split_once('`').and_then(|(_, rest)| rest.rsplit_once('`')).map(|(name, _)| name);
    let Some(name) = quoted else { return false };
    let id = name.len() >= 8 && name.chars().all(|c| c.is_ascii_hexdigit());
    let of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(of_name) && !id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_the_same_cause_once_a_minute_and_another_one_at_once() {
        let (repeats, begun) = (Repeats::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(repeats.pass_at("Q1", "etcd ended 2 times in a row, again in 3s", at(0)).as_deref(), Some(""));
        assert_eq!(repeats.pass_at("Q1", "etcd ended 3 times in a row, again in 7s", at(5)), None);
        assert_eq!(repeats.pass_at("Q1", "etcd ended 4 times in a row, again in 9s", at(59)), None);
        assert_eq!(repeats.pass_at("Q1", "another reason", at(6)).as_deref(), Some(""));
        assert_eq!(repeats.pass_at("Q2", "etcd ended 3 times in a row, again in 7s", at(6)).as_deref(), Some(""));
        let more = repeats.pass_at("Q1", "etcd ended 5 times in a row, again in 9s", at(60));
        assert_eq!(more.as_deref(), Some(" (2 more times since the last line)"));
    }

    #[test]
    fn tells_nodes_apart_and_neither_addresses_nor_ids() {
        let (repeats, now) = (Repeats::default(), Instant::now());
        let passes = |text: &str| repeats.pass_at("Q1", text, now).is_some();
        assert!(passes("no answer from the agent of `n2`, tried 3 times"));
        assert!(passes("no answer from the agent of `n3`, tried 3 times"));
        assert!(!passes("no answer from the agent of `n2`, tried 4 times"));
        assert!(passes("cannot reach member `8e9e05c52164694d` at `10.0.0.1:2379`"));
        assert!(!passes("cannot reach member `ae9e05c52164694e` at `10.0.0.2:2379`"));
    }

    #[test]
    fn remembers_a_bounded_number_of_causes() {
        let (repeats, now) = (Repeats::default(), Instant::now());
        for number in 0..1000 {
            let text: String = (0..number).map(|_| 'x').collect();
            assert!(repeats.pass_at("Q1", &text, now).is_some());
        }
        assert!(repeats.known.lock().unwrap().len() <= CAUSES_MAX);
    }
}
