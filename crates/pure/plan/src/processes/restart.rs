//! Whether a process that ended is started again, and when.

use std::time::Duration;

use crate::spec::{RestartSpec, RestartWhen};
use crate::start::{Ended, Restart, RestartPolicy, Run, plan_restart};

/// A run of this length was a good one: counting begins anew.
const GOOD_RUN: Duration = Duration::from_secs(300);
/// So many bad runs in a row are a crash loop.
const LOOP_AFTER: u32 = 5;

/// How a run of a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// With exit code 0, by itself.
    Done,
    /// In any other way, and how.
    Failed(String),
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterEnd {
    /// Start it again after this long.
    Again {
        /// The wait; zero after a single end.
        wait: Duration,
        /// How many bad runs in a row there were, where it has become a crash loop.
        crash_loop: Option<u32>,
    },
    /// Leave it.
    Rest,
}

/// Decides from the runs so far, the last one at the end. `jitter` is 0 to 1, from whoever has randomness.
pub fn plan_after_end(spec: &RestartSpec, runs: &[(Duration, RunEnd)], jitter: f64) -> AfterEnd {
    let Some((_, last)) = runs.last() else { return AfterEnd::Again { wait: Duration::ZERO, crash_loop: None } };
    match (spec.when, last) {
        (RestartWhen::Never, _) | (RestartWhen::OnFailure, RunEnd::Done) => return AfterEnd::Rest,
        (RestartWhen::Always, _) | (RestartWhen::OnFailure, RunEnd::Failed(_)) => {}
    }
    let policy =
        RestartPolicy { first: spec.first_wait, max: spec.max_wait, good_run: GOOD_RUN, loop_after: LOOP_AFTER };
    // One that ends well again and again is spaced out like one that does not.
    let run = |(lasted, end): &(Duration, RunEnd)| Run {
        lasted: *lasted,
        ended: Ended::Failed(match end {
            RunEnd::Done => "exit code 0".to_owned(),
            RunEnd::Failed(how) => how.clone(),
        }),
    };
    let all: Vec<Run> = runs.iter().map(run).collect();
    match plan_restart(&policy, &all, jitter) {
        Restart::After { wait, crash_loop } => AfterEnd::Again { wait, crash_loop },
        Restart::No | Restart::Never { .. } => AfterEnd::Rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(when: RestartWhen) -> RestartSpec {
        RestartSpec { when, first_wait: Duration::from_secs(1), max_wait: Duration::from_secs(10) }
    }

    fn failed(lasted: u64) -> (Duration, RunEnd) {
        (Duration::from_secs(lasted), RunEnd::Failed("exit code 1".to_owned()))
    }

    #[test]
    fn the_policy_says_after_which_end() {
        let done = [(Duration::from_secs(1), RunEnd::Done)];
        let again = |found| matches!(found, AfterEnd::Again { .. });
        assert!(again(plan_after_end(&spec(RestartWhen::Always), &done, 0.5)));
        assert!(!again(plan_after_end(&spec(RestartWhen::OnFailure), &done, 0.5)));
        assert!(again(plan_after_end(&spec(RestartWhen::OnFailure), &[failed(1)], 0.5)));
        assert!(!again(plan_after_end(&spec(RestartWhen::Never), &[failed(1)], 0.5)));
        assert!(again(plan_after_end(&spec(RestartWhen::Never), &[], 0.5)));
    }

    #[test]
    fn the_wait_grows_to_its_limit_and_a_good_run_ends_it() {
        let mut runs = Vec::new();
        let mut waits = Vec::new();
        for _ in 0..8 {
            runs.push(failed(1));
            let AfterEnd::Again { wait, crash_loop } = plan_after_end(&spec(RestartWhen::Always), &runs, 0.0) else {
                panic!("it rests")
            };
            assert_eq!(crash_loop.is_some(), runs.len() >= 5);
            waits.push(wait);
        }
        assert!(waits[0].is_zero() && waits.windows(2).all(|pair| pair[0] <= pair[1]), "{waits:?}");
        assert!(waits[7] <= Duration::from_secs(10), "{waits:?}");
        runs.push(failed(3600));
        let found = plan_after_end(&spec(RestartWhen::Always), &runs, 0.0);
        assert_eq!(found, AfterEnd::Again { wait: Duration::ZERO, crash_loop: None });
    }
}
