//! What an answer about the health of a process means.
//!
//! **Rule:** one good answer is enough to be ready; only bad ones in a row end a process, and none do while it starts.

use std::time::Duration;

use crate::spec::HealthSpec;

/// What is known of the health of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HealthSeen {
    /// Whether the last answer was good.
    pub ready: bool,
    /// Bad answers in a row that count.
    pub failures: u32,
}

/// What follows from an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is well.
    Ready,
    /// It is not well now.
    NotReady,
    /// It is to be stopped and started again.
    Replace,
}

/// Judges an answer of a run that is so old.
pub fn judge(spec: &HealthSpec, before: HealthSeen, good: bool, age: Duration) -> (HealthSeen, Verdict) {
    if good {
        return (HealthSeen { ready: true, failures: 0 }, Verdict::Ready);
    }
    // One that has been well is past its start.
    let counts = age >= spec.grace || before.ready || before.failures > 0;
    let failures = if counts { before.failures.saturating_add(1) } else { 0 };
    let verdict = if failures >= spec.failures { Verdict::Replace } else { Verdict::NotReady };
    (HealthSeen { ready: false, failures }, verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Check;

    #[test]
    fn bad_answers_in_a_row_end_it_and_a_good_one_forgives() {
        let seconds = Duration::from_secs;
        let spec = HealthSpec {
            check: Check::Tcp("h:1".to_owned()),
            every: seconds(1),
            timeout: seconds(1),
            failures: 2,
            grace: seconds(30),
        };
        let mut seen = HealthSeen::default();
        let mut ask = |good, age| {
            let (next, verdict) = judge(&spec, seen, good, seconds(age));
            seen = next;
            verdict
        };
        // It starts.
        for age in 1..10 {
            assert_eq!(ask(false, age), Verdict::NotReady);
        }
        assert_eq!(ask(true, 10), Verdict::Ready);
        assert_eq!(ask(false, 11), Verdict::NotReady);
        assert_eq!(ask(true, 12), Verdict::Ready);
        assert_eq!((ask(false, 13), ask(false, 14)), (Verdict::NotReady, Verdict::Replace));
        // One that never becomes well.
        let (first, verdict) = judge(&spec, HealthSeen::default(), false, seconds(31));
        assert_eq!((first.failures, verdict), (1, Verdict::NotReady));
        assert_eq!(judge(&spec, first, false, seconds(32)).1, Verdict::Replace);
    }
}
