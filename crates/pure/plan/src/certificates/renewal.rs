//! When the certificates of a node are renewed, and when somebody should look.
//!
//! **Rule:** all certificates of a node are renewed together, early enough that a month of failing leaves time to act, and not
//! on all nodes in the same moment.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Of a life in seconds: a longer one than this warns by days and not by its quarter.
const LONG_LIFE: SignedDuration = SignedDuration::from_hours(24 * 90);
const WARNING_MAX: SignedDuration = SignedDuration::from_hours(24 * 30);

/// How often it is looked at, at most and at least.
const LOOK_MAX: SignedDuration = SignedDuration::from_hours(12);
const LOOK_MIN: SignedDuration = SignedDuration::from_secs(1);

/// From when to when a certificate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Its first second.
    pub from: Timestamp,
    /// Its last.
    pub until: Timestamp,
}

impl Life {
    /// How long it is in all; none where it ends before it begins.
    fn length(self) -> SignedDuration {
        self.until.duration_since(self.from).max(SignedDuration::ZERO)
    }

    /// What is left of it.
    pub fn left(self, now: Timestamp) -> SignedDuration {
        self.until.duration_since(now)
    }
}

/// What to do about a node's certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// Nothing yet: look again by then.
    Look {
        /// In how long.
        again: Duration,
    },
    /// Renew all of them now.
    Renew {
        /// In how long to try again if it fails.
        again: Duration,
    },
}

/// Whether somebody should look: less than a quarter is left, or less than 30 days of a long life. Renewal is due before that, so
/// who is warned has tried, or nobody renews here.
pub fn ends_soon(life: Life, now: Timestamp) -> bool {
    let quarter = life.length() / 4;
    let limit = if life.length() > LONG_LIFE { quarter.min(WARNING_MAX) } else { quarter };
    life.left(now) < limit
}

/// Decides when. A third of a life is left when renewal begins, and up to a tenth of that third later by `jitter`, a number
/// that differs from node to node, so that nodes of one age do not all come at once.
///
/// A certificate that is not there or not read is `None`, and is no reason to hurry: someone has to bring it first.
pub fn plan_renewal(lives: &[Option<Life>], now: Timestamp, jitter: u32) -> Renewal {
    let due = |life: &Life| {
        // One that does not hold yet was made by a clock that was ahead: whoever sees it refuses it.
        if life.from > now {
            return SignedDuration::ZERO;
        }
        let third = life.length() / 3;
        let share = f64::from(jitter) / f64::from(u32::MAX) / 10.0;
        // Cut, not rounded: never later than the tenth.
        let later = SignedDuration::from_secs((third.as_secs() as f64 * share) as i64);
        life.left(now) - third + later
    };
    let known = lives.iter().flatten();
    let Some(soonest) = known.clone().map(due).min() else { return Renewal::Look { again: clamp(LOOK_MAX) } };
    if soonest > SignedDuration::ZERO {
        return Renewal::Look { again: clamp(soonest) };
    }
    // A tenth of what is left: the closer the end, the more often; an ended one as often as is sensible.
    let usable = |life: &Life| if life.from > now { SignedDuration::ZERO } else { life.left(now) };
    let left = known.map(usable).min().unwrap_or(SignedDuration::ZERO);
    Renewal::Renew { again: clamp((left / 10).max(SignedDuration::from_secs(60).min(shortest(lives) / 30))) }
}

fn shortest(lives: &[Option<Life>]) -> SignedDuration {
    lives.iter().flatten().map(|life| life.length()).min().unwrap_or(LOOK_MAX)
}

fn clamp(time: SignedDuration) -> Duration {
    time.clamp(LOOK_MIN, LOOK_MAX).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn days(length: i64) -> Life {
        Life { from: at(0), until: at(length * DAY) }
    }

    #[test]
    fn a_leaf_of_90_days_is_renewed_with_30_left_and_at_most_3_days_later() {
        for (jitter, due) in [(0, 60 * DAY), (u32::MAX, 63 * DAY)] {
            let plan = |now| plan_renewal(&[Some(days(90))], at(now), jitter);
            assert!(matches!(plan(due - 1), Renewal::Look { .. }), "{jitter}");
            assert!(matches!(plan(due), Renewal::Renew { .. }), "{jitter}");
            assert_eq!(plan(due - 5), Renewal::Look { again: Duration::from_secs(5) });
            assert_eq!(plan(0), Renewal::Look { again: Duration::from_secs(43_200) });
        }
    }

    #[test]
    fn a_clock_that_walks_through_a_life_meets_the_renewal_before_the_end() {
        for length in [1, 7, 90, 365, 3650] {
            for jitter in [0, 77_777_777, u32::MAX] {
                let (mut now, end, mut tries) = (at(0), days(length).until, 0);
                while now < end {
                    now += match plan_renewal(&[Some(days(length)), None], now, jitter) {
                        Renewal::Look { again } => again,
                        Renewal::Renew { again } => {
                            tries += 1;
                            assert!(days(length).left(now) > SignedDuration::from_hours(7 * length), "{length}: late");
                            again
                        }
                    };
                    if tries > 0 {
                        break;
                    }
                }
                assert_eq!(tries, 1, "{length} days, jitter {jitter}");
            }
        }
    }

    #[test]
    fn the_closer_the_end_the_more_often_it_is_tried() {
        let again = |now| match plan_renewal(&[Some(days(90))], at(now), 0) {
            Renewal::Renew { again } => again.as_secs(),
            Renewal::Look { .. } => panic!("not due"),
        };
        assert_eq!(again(70 * DAY), 43_200);
        assert_eq!(again(90 * DAY - 36_000), 3600);
        assert_eq!(again(90 * DAY), 60);
        assert_eq!(again(100 * DAY), 60);
    }

    #[test]
    fn one_that_does_not_hold_yet_is_renewed_at_once() {
        let ahead = Life { from: at(10 * DAY), until: at(100 * DAY) };
        let renew = Renewal::Renew { again: Duration::from_secs(60) };
        assert_eq!(plan_renewal(&[Some(days(90)), Some(ahead)], at(DAY), 7), renew);
        assert!(matches!(plan_renewal(&[Some(ahead)], at(10 * DAY), 7), Renewal::Look { .. }));
    }

    #[test]
    fn the_first_to_end_decides_and_nothing_known_is_looked_at_again() {
        let lives = [Some(days(90)), Some(days(10)), None];
        assert!(matches!(plan_renewal(&lives, at(7 * DAY), 0), Renewal::Renew { .. }));
        assert_eq!(plan_renewal(&[None; 4], at(0), 9), Renewal::Look { again: Duration::from_secs(43_200) });
        // One that ends before it begins is due, and does not divide anything by nothing.
        let odd = Life { from: at(10), until: at(5) };
        assert_eq!(plan_renewal(&[Some(odd)], at(7), 1), Renewal::Renew { again: Duration::from_secs(1) });
    }

    #[test]
    fn somebody_is_warned_by_quarters_or_thirty_days_and_not_before_renewal_was_due() {
        for length in [1, 7, 30, 90, 91, 365, 3650] {
            let warned = (0..=length * 24).find(|hour| ends_soon(days(length), at(hour * 3600))).expect("in the end");
            let due = plan_renewal(&[Some(days(length))], at((warned - 1) * 3600), u32::MAX);
            assert!(matches!(due, Renewal::Renew { .. }), "{length} days");
        }
        assert!(!ends_soon(days(80), at(60 * DAY)));
        assert!(ends_soon(days(80), at(60 * DAY + 1)));
        assert!(ends_soon(days(3650), at(3621 * DAY)));
        assert!(!ends_soon(days(3650), at(3619 * DAY)));
        assert!(ends_soon(days(1), at(2 * DAY)));
    }
}
