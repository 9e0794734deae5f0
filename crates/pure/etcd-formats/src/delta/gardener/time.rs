//! RFC 3339 times, as Go writes them, without a calendar library: deltas carry one per write.

/// Milliseconds since 1970 of `2026-11-15T20:14:09.325044301Z` or `…+01:00`.
pub fn parse_ms(text: &[u8]) -> Option<i64> {
    let (date, rest) = text.split_at_checked(19)?;
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b't' | b' ', h1, h2, b':', n1, n2, b':', s1, s2] = date
    else {
        return None;
    };
    let year = number(&[*y1, *y2, *y3, *y4])?;
    let (month, day) = (number(&[*m1, *m2])?, number(&[*d1, *d2])?);
    let (hour, minute, second) = (number(&[*h1, *h2])?, number(&[*n1, *n2])?, number(&[*s1, *s2])?);
    let valid = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    if !valid {
        return None;
    }
    let (millis, zone) = fraction(rest)?;
    let offset = offset_minutes(zone)?;
    let minutes = days(year, month, day)?.checked_mul(1440)?.checked_add(hour.checked_mul(60)?)?.checked_add(minute)?;
    let seconds = minutes.checked_sub(offset)?.checked_mul(60)?.checked_add(second)?;
    seconds.checked_mul(1000)?.checked_add(millis)
}

/// The same text of a moment, in UTC; fractions end with their last digit that is not zero. Unknown is Go's zero time.
pub(super) fn format_ms(time_ms: Option<i64>) -> String {
    let Some(time_ms) = time_ms else { return "0001-01-01T00:00:00Z".to_owned() };
    let (seconds, millis) = (time_ms.div_euclid(1000), time_ms.rem_euclid(1000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) =
        (second.div_euclid(3600), second.rem_euclid(3600).div_euclid(60), second.rem_euclid(60));
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{}Z", fraction.trim_end_matches('0'))
}

/// The day of the Gregorian calendar that is so many days after the first of 1970.
#[expect(clippy::arithmetic_side_effects, reason = "days of 64-bit milliseconds are far from any limit")]
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn fraction(rest: &[u8]) -> Option<(i64, &[u8])> {
    let Some((b'.', digits)) = rest.split_first() else { return Some((0, rest)) };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, zone) = digits.split_at_checked(end)?;
    let mut millis = [b'0'; 3];
    for (to, from) in millis.iter_mut().zip(digits) {
        *to = *from;
    }
    (!digits.is_empty()).then_some((number(&millis)?, zone))
}

fn offset_minutes(zone: &[u8]) -> Option<i64> {
    match zone {
        [b'Z' | b'z'] => Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let minutes = number(&[*h1, *h2])?.checked_mul(60)?.checked_add(number(&[*m1, *m2])?)?;
            Some(if *sign == b'-' { minutes.checked_neg()? } else { minutes })
        }
        _ => None,
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0i64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte.wrapping_sub(b'0')))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Days since 1970 in the Gregorian calendar. Years begin in March here, so that the leap day comes last.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let shifted = if month > 2 { year } else { year.checked_sub(1)? };
    let month = if month > 2 { month.checked_sub(3)? } else { month.checked_add(9)? };
    let era = shifted.div_euclid(400);
    let of_era = shifted.rem_euclid(400);
    let of_year = month.checked_mul(153)?.checked_add(2)?.checked_div(5)?.checked_add(day)?.checked_sub(1)?;
    let leaps = of_era.checked_div(4)?.checked_sub(of_era.checked_div(100)?)?;
    let in_era = of_era.checked_mul(365)?.checked_add(leaps)?.checked_add(of_year)?;
    era.checked_mul(146_097)?.checked_add(in_era)?.checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_millisecond_in_any_zone() {
        assert_eq!(parse_ms(b"1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_ms(b"2026-11-15T20:14:09.325044301Z"), Some(1_794_773_649_325));
        assert_eq!(parse_ms(b"2026-11-15T21:14:09.3+01:00"), Some(1_794_773_649_300));
        assert_eq!(parse_ms(b"2024-02-29T00:00:00Z"), Some(1_709_164_800_000));
        assert_eq!(parse_ms(b"1969-12-31T23:59:59Z"), Some(-1000));
        assert_eq!(parse_ms(b"2000-03-01T00:00:00-00:30"), Some(951_870_600_000));
    }

    #[test]
    fn times_are_written_as_they_are_read() {
        assert_eq!(format_ms(Some(1_794_773_649_320)), "2026-11-15T20:14:09.32Z");
        assert_eq!(format_ms(Some(0)), "1970-01-01T00:00:00Z");
        let mut time = -2_000_000_000_000i64;
        while time < 8_000_000_000_000 {
            assert_eq!(parse_ms(format_ms(Some(time)).as_bytes()), Some(time));
            time += 7_654_321_123;
        }
    }

    #[test]
    fn what_is_not_a_time_is_none() {
        for text in ["", "now", "2026-13-01T00:00:00Z", "2026-11-15T20:14:09", "2026-11-15T20:14:09.Z"] {
            assert_eq!(parse_ms(text.as_bytes()), None, "{text}");
        }
    }
}
