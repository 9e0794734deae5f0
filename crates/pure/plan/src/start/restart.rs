//! When etcd is started again after it ended, and when never.
//!
//! **Rule:** a failure that another start cannot mend is never met with another start.

use std::time::Duration;

use quorate_faults::Code;

/// How restarts are spaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartPolicy {
    /// The wait after the second end in a row; the first is met at once. Doubled each time.
    pub first: Duration,
    /// The longest wait.
    pub max: Duration,
    /// A run of this length was a good one: counting begins anew.
    pub good_run: Duration,
    /// So many bad runs in a row are a crash loop.
    pub loop_after: u32,
}

impl Default for RestartPolicy {
    fn default() -> RestartPolicy {
        RestartPolicy {
            first: Duration::from_secs(1),
            max: Duration::from_secs(60),
            good_run: Duration::from_secs(600),
            loop_after: 5,
        }
    }
}

/// One run of etcd that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// How long it lasted.
    pub lasted: Duration,
    /// Why it ended.
    pub ended: Ended,
}

/// Why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Asked,
    /// A crash, a kill, an error that may pass.
    Failed(String),
    /// It was not even executed: what hindered that may pass, or be mended by a person.
    NotStarted(String),
    /// Another start would end the same way: removed, foreign data, bad settings.
    Permanent {
        /// The page that says more.
        code: Code,
        /// Why.
        why: String,
    },
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restart {
    /// Start again after this long.
    After {
        /// The wait; zero after a single failure.
        wait: Duration,
        /// How many bad runs in a row there were, where it has become a crash loop.
        crash_loop: Option<u32>,
    },
    /// Stay down, as asked.
    No,
    /// Never by itself.
    Never {
        /// The page that says more.
        code: Code,
        /// Why.
        why: String,
    },
}

/// Decides from the runs so far, the last one at the end. `jitter` is 0 to 1, from whoever has randomness.
pub fn plan_restart(policy: &RestartPolicy, runs: &[Run], jitter: f64) -> Restart {
    let Some(last) = runs.last() else { return Restart::After { wait: Duration::ZERO, crash_loop: None } };
    match &last.ended {
        Ended::Asked => return Restart::No,
        Ended::Permanent { code, why } => return Restart::Never { code: *code, why: why.clone() },
        Ended::Failed(_) | Ended::NotStarted(_) => {}
    }
    let bad = |run: &&Run| match run.ended {
        Ended::Failed(_) | Ended::NotStarted(_) => run.lasted < policy.good_run,
        Ended::Asked | Ended::Permanent { .. } => false,
    };
    let count = u32::try_from(runs.iter().rev().take_while(bad).count()).unwrap_or(u32::MAX);
    let crash_loop = (count >= policy.loop_after).then_some(count);
    if count <= 1 {
        return Restart::After { wait: Duration::ZERO, crash_loop };
    }
    let doubled = policy.first.saturating_mul(1_u32.checked_shl((count - 2).min(20)).unwrap_or(u32::MAX));
    let longest = doubled.min(policy.max);
    // Between half and all of it, so that several nodes do not come back at the same moment.
    let share = if jitter.is_finite() { jitter.clamp(0.0, 1.0) } else { 1.0 };
    Restart::After { wait: longest.mul_f64(0.5 + share / 2.0), crash_loop }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(seconds: u64) -> Run {
        Run { lasted: Duration::from_secs(seconds), ended: Ended::Failed("signal 9".into()) }
    }

    fn wait(runs: &[Run], jitter: f64) -> (u64, Option<u32>) {
        match plan_restart(&RestartPolicy::default(), runs, jitter) {
            Restart::After { wait, crash_loop } => (u64::try_from(wait.as_millis()).unwrap(), crash_loop),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_single_failure_is_met_at_once_and_more_of_them_slower() {
        let runs: Vec<Run> = (0..12).map(|_| failed(1)).collect();
        let waits: Vec<_> = (1..=12).map(|count| wait(&runs[..count], 1.0).0).collect();
        assert_eq!(waits, [0, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000, 60000, 60000]);
        assert_eq!(wait(&runs[..3], 0.0), (1000, None));
        assert_eq!(wait(&runs[..5], 1.0).1, Some(5));
    }

    #[test]
    fn a_start_that_fails_is_tried_again_like_a_run_that_ends() {
        let unstarted = Run { lasted: Duration::ZERO, ended: Ended::NotStarted("no such file".into()) };
        let mut runs = vec![unstarted; 4];
        assert_eq!(wait(&runs[..1], 1.0), (0, None));
        assert_eq!(wait(&runs, 1.0), (4000, None));
        runs.push(failed(1));
        assert_eq!(wait(&runs, 1.0), (8000, Some(5)), "both in a row are one row");
        runs.push(failed(3600));
        assert_eq!(wait(&runs, 1.0), (0, None));
    }

    #[test]
    fn a_good_run_begins_the_count_anew() {
        let mut runs: Vec<Run> = (0..9).map(|_| failed(1)).collect();
        runs.push(failed(3600));
        assert_eq!(wait(&runs, 1.0), (0, None));
    }

    #[test]
    fn what_another_start_cannot_mend_is_not_tried_again() {
        let ended = Ended::Permanent { code: Code::StartRemoved, why: "removed".into() };
        let runs = [failed(1), Run { lasted: Duration::ZERO, ended }];
        assert_eq!(
            plan_restart(&RestartPolicy::default(), &runs, 0.5),
            Restart::Never { code: Code::StartRemoved, why: "removed".into() }
        );
        let asked = [Run { lasted: Duration::ZERO, ended: Ended::Asked }];
        assert_eq!(plan_restart(&RestartPolicy::default(), &asked, 0.5), Restart::No);
    }

    #[test]
    fn a_wait_is_never_longer_than_the_longest_whatever_the_jitter() {
        let runs: Vec<Run> = (0..100).map(|_| failed(1)).collect();
        for jitter in [f64::NAN, f64::INFINITY, -5.0, 7.0, 0.5] {
            assert!(wait(&runs, jitter).0 <= 60_000);
        }
    }
}
