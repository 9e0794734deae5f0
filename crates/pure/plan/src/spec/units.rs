//! Time spans and sizes as people write them.
//!
//! **Invariant:** what is printed here is read back as the same value.

use std::time::Duration;

/// Longest span that is accepted: ten years, so that sums never overflow.
const SPAN_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Milliseconds of each unit, the largest first.
const SPANS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Bytes of each unit, the largest first.
const SIZES: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads `90s`, `1h30m`, `250ms` or `7d`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut millis: u64 = 0;
    let mut largest = usize::MAX;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        let tail = rest.get(digits..)?;
        let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let position = SPANS.iter().position(|(unit, _)| tail.get(..end) == Some(*unit))?;
        // Larger units come first and each comes once.
        if largest != usize::MAX && position <= largest {
            return None;
        }
        largest = position;
        millis = millis.checked_add(number.checked_mul(SPANS.get(position)?.1)?)?;
        rest = tail.get(end..)?.trim_start();
    }
    let span = Duration::from_millis(millis);
    (span <= SPAN_MAX).then_some(span)
}

/// `1h30m`, without parts that are zero.
pub fn duration_text(span: Duration) -> String {
    let mut millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, length) in SPANS {
        if millis >= length {
            text.push_str(&format!("{}{unit}", millis / length));
            millis %= length;
        }
    }
    text
}

/// Reads `16MiB`, `2 GiB` or plain bytes.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text.get(..digits)?.parse().ok()?;
    let unit = text.get(digits..)?.trim_start();
    if unit.is_empty() {
        return Some(number);
    }
    let (_, length) = SIZES.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*length)
}

/// The largest unit that says it exactly.
pub fn size_text(bytes: u64) -> String {
    let unit = SIZES.iter().find(|(_, length)| bytes >= *length && bytes.is_multiple_of(*length));
    unit.map_or_else(|| "0B".to_owned(), |(name, length)| format!("{}{name}", bytes / length))
}
