//! Hours, days, weeks and months of UTC, as numbers that ascend.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::Policy;

const DAY_MS: i64 = 86_400_000;

/// A name, how many of them are kept, and the number of the one that a time is in.
type Rule = (&'static str, u32, fn(i64) -> i64);

/// The rules that go by the calendar.
pub(super) fn all(policy: &Policy) -> [Rule; 4] {
    [
        ("hourly", policy.hourly, hour),
        ("daily", policy.daily, day),
        ("weekly", policy.weekly, week),
        ("monthly", policy.monthly, month),
    ]
}

fn hour(ms: i64) -> i64 {
    ms.div_euclid(3_600_000)
}

fn day(ms: i64) -> i64 {
    ms.div_euclid(DAY_MS)
}

/// 1970 began on a Thursday; weeks begin on Mondays.
fn week(ms: i64) -> i64 {
    day(ms).saturating_add(3).div_euclid(7)
}

fn month(ms: i64) -> i64 {
    match Timestamp::from_millisecond(ms) {
        Ok(time) => {
            let date = time.to_zoned(TimeZone::UTC).date();
            i64::from(date.year()).saturating_mul(12).saturating_add(i64::from(date.month()))
        }
        // Outside of the calendar every time is a month of its own.
        Err(_) => ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    #[test]
    fn they_change_where_the_calendar_of_utc_does() {
        for (rule, before, after) in [
            (hour as fn(i64) -> i64, "2026-11-16T00:59:59.999Z", "2026-11-16T01:00:00Z"),
            (day, "2026-11-15T23:59:59.999Z", "2026-11-16T00:00:00Z"),
            // 2026-11-16 is a Monday.
            (week, "2026-11-15T23:59:59.999Z", "2026-11-16T00:00:00Z"),
            (month, "2024-02-29T23:59:59.999Z", "2024-03-01T00:00:00Z"),
            (month, "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(rule(at(before)) + 1, rule(at(after)), "{before}");
            assert_eq!(rule(at(after)), rule(at(after) + 1), "{after}");
        }
        assert_eq!(week(at("2026-11-16T00:00:00Z")), week(at("2026-11-22T23:59:59Z")));
    }
}
