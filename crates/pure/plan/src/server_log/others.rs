//! One line of any other program's log, as far as its level and its time can be told: PostgreSQL, pgbouncer, haproxy, a priority
//! of syslog, or a time and a level at the beginning, as most programs write them.
//!
//! **Rule:** what cannot be told is `None`, never a guess; nothing makes the reader panic.

use jiff::{Timestamp, civil};

use super::{Level, When, exact};

/// A line that was understood in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// How grave it is.
    pub level: Option<Level>,
    /// When it was written.
    pub at: Option<When>,
}

/// How many words of a line may stand before its level: a process, a user, a database, a thread.
const WORDS_BEFORE: usize = 6;

/// What PostgreSQL adds to the line before.
const MORE: [&str; 6] = ["DETAIL:", "HINT:", "STATEMENT:", "CONTEXT:", "QUERY:", "LOCATION:"];

/// Reads one line, without its newline. `None`: neither level nor time can be told, or it belongs to the line before.
pub fn parse_other(line: &str) -> Option<Other> {
    let (level, rest) = match priority(line) {
        Some((level, rest)) => (Some(level), rest),
        None => (None, line),
    };
    let (at, rest) = match stamp(rest) {
        Some((at, rest)) => (Some(at), rest),
        None => (None, rest),
    };
    if rest.split_whitespace().take(WORDS_BEFORE).any(|word| MORE.contains(&word)) && at.is_some() {
        return None;
    }
    let level = level.or_else(|| level_of(rest, at.is_some()));
    (level.is_some() || at.is_some()).then_some(Other { level, at })
}

/// `<134>` of syslog, and of programs below systemd.
fn priority(line: &str) -> Option<(Level, &str)> {
    let (number, rest) = line.strip_prefix('<')?.split_once('>')?;
    let level = match number.parse::<u8>().ok().filter(|number| *number < 192)? % 8 {
        0..=2 => Level::Fatal,
        3 => Level::Error,
        4 => Level::Warn,
        5 | 6 => Level::Info,
        _ => Level::Debug,
    };
    // The number of the newer form.
    Some((level, rest.strip_prefix("1 ").unwrap_or(rest)))
}

/// The time at the beginning: `2026-11-16T02:14:36.089Z`, or a clock with or without its zone, such as
/// `2026-11-16 02:14:36.089 UTC`. Some put it into brackets, or behind `time=`.
fn stamp(line: &str) -> Option<(When, &str)> {
    let line = line.strip_prefix("time=").unwrap_or(line);
    let line = line.trim_start_matches(['[', '"']);
    let (first, rest) = word(line);
    let plain = first.trim_end_matches([']', '"', ':']);
    if let Some(at) = exact(plain) {
        return Some((When::Exact(at), rest));
    }
    if let Some(clock) = clock(plain).filter(|_| plain.contains('T')) {
        return Some((When::Local(clock), rest));
    }
    let (second, after) = word(rest);
    let local = clock(&format!("{first} {}", second.trim_end_matches([']', '"', ':'])))?;
    let (zone, behind) = word(after);
    let with_offset = |offset: &str| format!("{}{offset}", local.strftime("%Y-%m-%dT%H:%M:%S%.f")).parse::<Timestamp>();
    match zone {
        "UTC" | "GMT" | "Z" => Some((with_offset("Z").map_or(When::Local(local), When::Exact), behind)),
        _ if zone.len() == 3 && zone.starts_with(['+', '-']) && zone[1..].bytes().all(|byte| byte.is_ascii_digit()) => {
            Some((with_offset(&format!("{zone}:00")).map_or(When::Local(local), When::Exact), behind))
        }
        // The name of another zone: it is the machine's.
        _ if (3..=5).contains(&zone.len())
            && zone.bytes().all(|byte| byte.is_ascii_uppercase())
            && named(zone).is_none() =>
        {
            Some((When::Local(local), behind))
        }
        _ => Some((When::Local(local), after)),
    }
}

fn clock(text: &str) -> Option<civil::DateTime> {
    // Nothing shorter is a date with a time, and a date alone is none.
    if text.len() < 19 || !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    text.replace('/', "-").replace(',', ".").parse().ok()
}

fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_once(char::is_whitespace).unwrap_or((text, ""))
}

/// The level behind a time; without one only what is plainly one, at the very beginning.
fn level_of(rest: &str, timed: bool) -> Option<Level> {
    let before = if timed { WORDS_BEFORE } else { 1 };
    for (at, word) in rest.split_whitespace().take(before).enumerate() {
        if let Some(value) = word.strip_prefix("level=") {
            return named(&value.trim_matches('"').to_ascii_uppercase());
        }
        let bare = word.trim_end_matches(':');
        if let Some(inner) = bare.strip_prefix('[').and_then(|bare| bare.strip_suffix(']')) {
            if let Some(level) = named(&inner.to_ascii_uppercase()) {
                return Some(level);
            }
            continue;
        }
        // A word in capitals: with a colon anywhere, without one only where nothing but processes stands before it.
        let says = named(bare).filter(|_| word.ends_with(':') || (timed && is_first(rest, at)));
        if says.is_some() {
            return says;
        }
    }
    None
}

/// Whether all words before this one are numbers in brackets.
fn is_first(rest: &str, at: usize) -> bool {
    rest.split_whitespace().take(at).all(|word| word.starts_with('[') && word.trim_end_matches(':').ends_with(']'))
}

/// A level by its word, in capitals.
fn named(word: &str) -> Option<Level> {
    Some(match word {
        "TRACE" | "NOISE" | "DEBUG" | "DEBUG1" | "DEBUG2" | "DEBUG3" | "DEBUG4" | "DEBUG5" => Level::Debug,
        "INFO" | "LOG" | "NOTICE" => Level::Info,
        "WARN" | "WARNING" => Level::Warn,
        "ERR" | "ERROR" | "ALERT" => Level::Error,
        "FATAL" | "PANIC" | "CRIT" | "CRITICAL" | "EMERG" => Level::Fatal,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    fn told(line: &str) -> Option<(Option<Level>, Option<String>)> {
        let other = parse_other(line)?;
        Some((other.level, other.at.and_then(|at| at.in_zone(&TimeZone::UTC)).map(|at| at.to_string())))
    }

    #[test]
    fn lines_of_many_programs_are_understood() {
        let at = || Some("2026-11-16T02:14:36.089Z".to_owned());
        let second = || Some("2026-11-16T02:14:36Z".to_owned());
        for (line, level, when) in [
            ("2026-11-16 02:14:36.089 UTC [42] LOG:  listening on IPv4 address", Level::Info, at()),
            ("2026-11-16 02:14:36.089 UTC [42] app@quorate ERROR:  relation \"x\" does not exist", Level::Error, at()),
            ("2026-11-16 02:14:36.089 UTC [42] FATAL:  the database system is starting up", Level::Fatal, at()),
            ("2026-11-16 02:14:36.089 UTC [42] WARNING DNS lookup failed: h", Level::Warn, at()),
            ("2026-11-16 02:14:36.089 UTC [42] LOG C-0x55: db/app login attempt", Level::Info, at()),
            ("2026-11-16 04:14:36.089 +02 [42] LOG:  x", Level::Info, at()),
            ("[NOTICE]   (42) : New worker (44) forked", Level::Info, None),
            ("[ALERT]    (42) : config : parsing [h.cfg:3]", Level::Error, None),
            ("<131>Nov 16 02:14:36 h haproxy[42]: x", Level::Error, None),
            ("<30>1 2026-11-16T02:14:36.089Z h app 42 - - x", Level::Info, at()),
            ("2026-11-16T02:14:36.089Z INFO app: it runs", Level::Info, at()),
            ("2026-11-16T02:14:36.089+0000 [warn] x", Level::Warn, at()),
            ("[2026-11-16 02:14:36,089] ERROR x (a.B)", Level::Error, at()),
            ("2026/11/16 02:14:36 [error] 42#42: *1 open() failed", Level::Error, second()),
            ("time=\"2026-11-16T02:14:36Z\" level=warning msg=\"x\"", Level::Warn, second()),
            ("WARNING: x", Level::Warn, None),
        ] {
            assert_eq!(told(line), Some((Some(level), when)), "{line}");
        }
    }

    #[test]
    fn what_cannot_be_told_is_not_guessed() {
        assert_eq!(told("2026-11-16T02:14:36Z an error came"), Some((None, Some("2026-11-16T02:14:36Z".to_owned()))));
        for line in [
            "",
            "an error came",
            "ERROR at the beginning of a sentence",
            "    at app.run(App.java:3)",
            "2026-11-16 is a date",
            "2026-11-16 02:14:36.089 UTC [42] STATEMENT:  select 1",
            "2026-11-16 02:14:36.089 UTC [42] app@quorate DETAIL:  x",
            "<999>x",
            "<",
            "[",
            "time=",
            "2026-13-45 99:99:99 LOG: x",
            "é2026-11-16 02:14:36 LOG: x",
        ] {
            assert_eq!(told(line), None, "{line}");
        }
    }
}
