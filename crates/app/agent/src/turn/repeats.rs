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

/// The text without what differs from time to time: numbers, ids, durations.
fn cause_of(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
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
    fn remembers_a_bounded_number_of_causes() {
        let (repeats, now) = (Repeats::default(), Instant::now());
        for number in 0..1000 {
            let text: String = (0..number).map(|_| 'x').collect();
            assert!(repeats.pass_at("Q1", &text, now).is_some());
        }
        assert!(repeats.known.lock().unwrap().len() <= CAUSES_MAX);
    }
}
