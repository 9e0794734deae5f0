//! Recognises forward steps of the wall clock by the monotonic clock, so that a step makes nothing look older than it is.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A smaller difference between the two clocks is drift, or a thread that waited for its turn.
const STEP_MIN_MS: i64 = 2_000;
/// Steps that are remembered; a clock that is set more often has no meaning anyway.
const STEPS_MAX: usize = 16;

/// The steps that were seen.
#[derive(Debug, Default)]
pub(super) struct ClockSteps {
    last: Option<(i64, Instant)>,
    steps: VecDeque<Step>,
}

#[derive(Debug)]
struct Step {
    /// The wall clock right after the step, at the earliest.
    after_ms: i64,
    by_ms: i64,
}

impl ClockSteps {
    /// Compares both clocks. Call it often: times that were recorded between two calls are taken for times before the step.
    pub(super) fn observe(&mut self, now_ms: i64, now: Instant) {
        if let Some((before_ms, before)) = self.last.replace((now_ms, now)) {
            let passed = i64::try_from(now.duration_since(before).as_millis()).unwrap_or(i64::MAX);
            let by_ms = now_ms.saturating_sub(before_ms).saturating_sub(passed);
            if by_ms > STEP_MIN_MS {
                self.steps.push_back(Step { after_ms: before_ms.saturating_add(by_ms), by_ms });
                if self.steps.len() > STEPS_MAX {
                    self.steps.pop_front();
                }
            }
        }
    }

    /// Time from `since_ms` to `now_ms`, both by the wall clock, without the steps between them.
    pub(super) fn age(&self, since_ms: i64, now_ms: i64) -> Duration {
        let between = |step: &&Step| since_ms < step.after_ms && step.after_ms <= now_ms;
        let stepped: i64 = self.steps.iter().filter(between).map(|step| step.by_ms).sum();
        let age = now_ms.saturating_sub(since_ms).saturating_sub(stepped);
        Duration::from_millis(age.max(0).unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_step_makes_only_earlier_times_younger() {
        let (mut steps, start) = (ClockSteps::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        steps.observe(100_000, at(0));
        steps.observe(101_000, at(1_000));
        assert_eq!(steps.age(90_000, 101_000), Duration::from_secs(11), "no step");
        // An hour forward, between two calls a second apart.
        steps.observe(3_702_000, at(2_000));
        assert_eq!(steps.age(90_000, 3_702_000), Duration::from_secs(12));
        assert_eq!(steps.age(101_500, 3_702_000), Duration::from_millis(500), "recorded between the calls");
        assert_eq!(steps.age(3_702_000, 3_705_000), Duration::from_secs(3), "recorded after the step");
        // And back: nothing is older than now.
        steps.observe(103_000, at(3_000));
        assert_eq!(steps.age(3_702_000, 103_000), Duration::ZERO);
        assert_eq!(steps.age(90_000, 103_000), Duration::from_secs(13), "the step is not behind this clock any more");
    }
}
