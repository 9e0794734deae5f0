//! Decides when a link that an error has stopped goes on.
//!
//! **Invariant:** the first time at once, since a lost connection is an error too; a link that stops again and again is tried
//! less and less often, and never less than once a minute.

use std::time::Duration;

/// A link that held for so long had not met the error of before.
const HELD: Duration = Duration::from_secs(5);
/// Before the second attempt; then twice as long each time.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// What is known of one link. Moments are those of any clock that only goes forward.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revival {
    tries: u32,
    revived: Option<Duration>,
    stopped: Option<Duration>,
}

impl Revival {
    /// Looks at the link; whether it is to go on now.
    pub fn look(&mut self, enabled: bool, now: Duration) -> bool {
        if enabled {
            self.stopped = None;
            return false;
        }
        let stopped = match self.stopped {
            Some(stopped) => stopped,
            None => {
                if self.revived.is_none_or(|revived| now.saturating_sub(revived) >= HELD) {
                    self.tries = 0;
                }
                self.stopped = Some(now);
                now
            }
        };
        if now.saturating_sub(stopped) < pause(self.tries) {
            return false;
        }
        self.tries = self.tries.saturating_add(1);
        (self.revived, self.stopped) = (Some(now), None);
        true
    }

    /// How often it was let go on without holding.
    pub fn tries(&self) -> u32 {
        self.tries
    }
}

fn pause(tries: u32) -> Duration {
    match tries {
        0 => Duration::ZERO,
        tries => LONGEST.min(FIRST.saturating_mul(1 << (tries - 1).min(16))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The moments at which a link is let go on that stops again right after, looked at twice a second.
    fn moments(seconds: u64) -> Vec<u64> {
        let mut link = Revival::default();
        let looks = (0..seconds * 2).map(|half| Duration::from_millis(half * 500));
        looks.filter(|now| link.look(false, *now)).map(|now| now.as_millis() as u64).collect()
    }

    #[test]
    fn a_link_that_stops_again_and_again_is_tried_less_and_less_often() {
        let moments = moments(400);
        assert_eq!(&moments[..4], [0, 1500, 4000, 8500]);
        let last: Vec<u64> = moments.windows(2).map(|pair| pair[1] - pair[0]).rev().take(2).collect();
        assert_eq!(last, [60_500, 60_500], "{moments:?}");
    }

    #[test]
    fn a_link_that_held_goes_on_at_once_whatever_it_met_before() {
        let mut link = Revival::default();
        let at = Duration::from_secs;
        assert!(link.look(false, at(0)) && !link.look(false, Duration::from_millis(500)));
        assert!(link.look(false, at(2)));
        assert_eq!(link.tries(), 2);
        assert!(!link.look(true, at(3)) && !link.look(true, at(9)));
        assert!(link.look(false, at(10)), "it held for eight seconds");
        assert_eq!(link.tries(), 1);
    }
}
