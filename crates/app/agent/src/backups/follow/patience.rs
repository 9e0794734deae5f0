//! Trying again: ever more slowly, and without filling the log.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};

/// A failure that lasts is said again after this long.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// Waits that double up to a limit, each shortened by chance so that many do not come at once.
#[derive(Debug)]
pub(super) struct Patience {
    first: Duration,
    next: Duration,
    most: Duration,
    failures: u32,
    said: Option<(Code, Instant)>,
}

impl Patience {
    pub(super) fn new(first: Duration, most: Duration) -> Patience {
        Patience { first, next: first, most, failures: 0, said: None }
    }

    /// It failed: how long to wait, and whether to say so.
    pub(super) fn failed(&mut self, fault: &Fault) -> (Duration, bool) {
        self.failures = self.failures.saturating_add(1);
        let wait = self.next;
        self.next = (self.next * 2).min(self.most);
        let again = |(code, at): (Code, Instant)| code != fault.code() || at.elapsed() >= SAY_AGAIN;
        let say = self.said.is_none_or(again);
        if say {
            self.said = Some((fault.code(), Instant::now()));
        }
        let chance = (RandomState::new().hash_one(self.failures) % 256) as u32;
        (wait - wait / 1024 * chance, say)
    }

    /// Nobody but the operator can help: wait longest.
    pub(super) fn slowly(&mut self) {
        self.next = self.most;
    }

    /// It works; says after how many failures.
    pub(super) fn worked(&mut self) -> Option<u32> {
        let failures = self.failures;
        (self.next, self.failures, self.said) = (self.first, 0, None);
        (failures > 0).then_some(failures)
    }
}

/// The whole fault in one line, for a log.
pub(super) fn in_words(fault: &Fault) -> String {
    let mut text = fault.to_string();
    let mut next = std::error::Error::source(fault);
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_limit_and_a_lasting_failure_is_said_once_a_minute() {
        let mut patience = Patience::new(Duration::from_millis(100), Duration::from_secs(1));
        let fault = |code| Fault::new(code, "cannot");
        let waits: Vec<(Duration, bool)> = (0..6).map(|_| patience.failed(&fault(Code::StoreUnreachable))).collect();
        assert!(waits[0].0 <= Duration::from_millis(100) && waits[0].0 >= Duration::from_millis(75));
        assert!(waits[5].0 <= Duration::from_secs(1) && waits[5].0 >= Duration::from_millis(750));
        assert_eq!(waits.iter().filter(|(_, say)| *say).count(), 1);
        assert!(patience.failed(&fault(Code::Io)).1, "another fault is news");
        assert_eq!(patience.worked(), Some(7));
        assert_eq!(patience.worked(), None);
    }

    #[test]
    fn a_line_has_attempt_and_cause() {
        let fault = Fault::new(Code::Io, "cannot write").caused_by("disk on fire");
        assert_eq!(in_words(&fault), "cannot write: disk on fire");
    }
}
