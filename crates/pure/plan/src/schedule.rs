//! When fulls are due: a cron expression in UTC, or a plain interval.
//!
//! **Rule:** the time comes in as an argument, and every schedule has a next time.

use std::fmt;
use std::str::FromStr;

use croner::Cron;
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};
use quorate_faults::{Code, Fault};

/// Shorter intervals than a minute would take fulls without end.
const INTERVAL_MIN_MS: i64 = 60_000;

/// Longer ones than ten years are a slip of the pen.
const INTERVAL_MAX_MS: i64 = 10 * 366 * 86_400_000;

/// When something is due, again and again.
#[derive(Debug, Clone)]
pub struct Schedule {
    text: String,
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    Cron(Box<Cron>),
    EveryMs(i64),
}

impl Schedule {
    /// Reads `0 */6 * * *` (minute, hour, day, month, weekday; UTC), `@daily` and their like, or `every 6h`.
    pub fn parse(text: &str) -> Result<Schedule, Fault> {
        let text = text.trim();
        let invalid = |why: String| {
            Fault::new(Code::ScheduleInvalid, format!("cannot use the schedule `{text}`: {why}"))
                .hint("write a cron expression such as `0 */6 * * *` (UTC), or an interval such as `every 6h`")
        };
        let form = match text.strip_prefix("every ") {
            Some(interval) => {
                let ms = parse_duration_ms(interval).ok_or_else(|| invalid("no such interval".to_owned()))?;
                if !(INTERVAL_MIN_MS..=INTERVAL_MAX_MS).contains(&ms) {
                    return Err(invalid("an interval is a minute to ten years".to_owned()));
                }
                Form::EveryMs(ms)
            }
            None => {
                let cron = Cron::from_str(text).map_err(|error| invalid(error.to_string()))?;
                // A day that never comes is noticed here, not on the day.
                if cron
                    .find_next_occurrence(&civil::DateTime::new(2024, 1, 1, 0, 0, 0, 0).unwrap_or_default(), false)
                    .is_err()
                {
                    return Err(invalid("it never comes".to_owned()));
                }
                Form::Cron(Box::new(cron))
            }
        };
        Ok(Schedule { text: text.to_owned(), form })
    }

    /// The first time after `now_ms`, in milliseconds since 1970. An interval counts from `now_ms`.
    pub fn next_after(&self, now_ms: i64) -> i64 {
        let later = match &self.form {
            Form::EveryMs(ms) => now_ms.checked_add(*ms),
            Form::Cron(cron) => next_of(cron, now_ms),
        };
        // Past the end of the calendar nothing is ever due again.
        later.unwrap_or(i64::MAX)
    }

    /// Whether one is due: none was made yet, or a time has passed since the last one began.
    /// A last one that lies in the future (a clock was wrong) does not hold the next one back for longer than one turn.
    pub fn due(&self, last_ms: Option<i64>, now_ms: i64) -> bool {
        last_ms.is_none_or(|last| self.next_after(last.min(now_ms)) <= now_ms)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn next_of(cron: &Cron, now_ms: i64) -> Option<i64> {
    let now = Timestamp::from_millisecond(now_ms).ok()?.to_zoned(TimeZone::UTC).datetime();
    let next = cron.find_next_occurrence(&now, false).ok()?;
    Some(next.to_zoned(TimeZone::UTC).ok()?.timestamp().as_millisecond())
}

/// Milliseconds of `90s`, `15m`, `6h`, `7d`, `2w`, or several of them: `1h30m`. `None`: it is not one.
pub fn parse_duration_ms(text: &str) -> Option<i64> {
    let mut rest = text.trim();
    let mut total: i64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).filter(|end| *end > 0)?;
        let (digits, tail) = rest.split_at(end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == ' ').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit_ms: i64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            _ => return None,
        };
        total = total.checked_add(digits.parse::<i64>().ok()?.checked_mul(unit_ms)?)?;
        rest = tail.trim_start();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    fn next(schedule: &str, now: &str) -> String {
        let next = Schedule::parse(schedule).unwrap().next_after(at(now));
        Timestamp::from_millisecond(next).unwrap().to_string()
    }

    #[test]
    fn expressions_are_in_utc_and_never_give_the_present_moment() {
        assert_eq!(next("0 */6 * * *", "2026-11-16T05:59:59.999Z"), "2026-11-16T06:00:00Z");
        assert_eq!(next("0 */6 * * *", "2026-11-16T06:00:00Z"), "2026-11-16T12:00:00Z");
        assert_eq!(next("30 2 * * 0", "2026-11-16T00:00:00Z"), "2026-11-22T02:30:00Z");
        assert_eq!(next("0 0 29 2 *", "2026-11-16T00:00:00Z"), "2028-02-29T00:00:00Z");
        assert_eq!(next("@daily", "2026-11-16T00:00:00Z"), "2026-11-17T00:00:00Z");
        assert_eq!(next("every 1h30m", "2026-11-16T00:00:00Z"), "2026-11-16T01:30:00Z");
    }

    #[test]
    fn what_cannot_be_a_schedule_is_refused() {
        for text in ["", "now", "every", "every x", "every 5", "every 1s", "every 9999w", "61 * * * *", "0 0 30 2 *"] {
            let fault = Schedule::parse(text).unwrap_err();
            assert_eq!(fault.code(), Code::ScheduleInvalid, "{text}");
        }
    }

    #[test]
    fn a_missed_time_is_due_and_a_wrong_clock_does_not_stop_the_schedule() {
        let schedule = Schedule::parse("0 */6 * * *").unwrap();
        let now = at("2026-11-16T07:00:00Z");
        assert!(schedule.due(None, now));
        assert!(schedule.due(Some(at("2026-11-16T05:00:00Z")), now));
        assert!(!schedule.due(Some(at("2026-11-16T06:00:00Z")), now));
        assert!(!schedule.due(Some(at("2030-01-01T00:00:00Z")), now));
    }

    #[test]
    fn durations_are_read() {
        assert_eq!(parse_duration_ms("90s"), Some(90_000));
        assert_eq!(parse_duration_ms("1d 12h"), Some(129_600_000));
        for text in ["", "h", "5", "5x", "-5s", "99999999999999999999d", "9223372036854775807w"] {
            assert_eq!(parse_duration_ms(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_next_time_is_always_later(now in -4_000_000_000_000i64..250_000_000_000_000, which in 0usize..4) {
            let text = ["0 */6 * * *", "*/5 * * * *", "0 0 1 1 *", "every 90m"][which];
            let schedule = Schedule::parse(text).unwrap();
            prop_assert!(schedule.next_after(now) > now);
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = (Schedule::parse(&text), parse_duration_ms(&text));
        }
    }
}
