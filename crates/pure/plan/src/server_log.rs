//! One line of etcd's log: how grave it is, when it was written, and what it says.
//!
//! etcd writes JSON, one object in a line. 3.4 can also write plain text (`2026-11-16 02:14:36.089125 C | etcdmain: …`), and does
//! so until it has read its settings, whatever they say. A crash is written as Go does it.
//!
//! **Rule:** a line that is none of these is kept as it is and belongs to the line before; nothing makes the reader panic.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};
use serde::{Deserialize, Serialize};

/// How grave a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// For those who look for a bug.
    Debug,
    /// What goes on; notices of 3.4 too.
    Info,
    /// What may become a problem.
    Warn,
    /// What went wrong.
    Error,
    /// What etcd ended with.
    Fatal,
}

impl Level {
    /// The words that `--level` takes, the least grave first.
    pub const WORDS: [(&'static str, Level); 5] = [
        ("debug", Level::Debug),
        ("info", Level::Info),
        ("warn", Level::Warn),
        ("error", Level::Error),
        ("fatal", Level::Fatal),
    ];

    /// Its word.
    pub fn word(self) -> &'static str {
        Level::WORDS.iter().find(|(_, level)| *level == self).map_or("fatal", |(word, _)| word)
    }

    /// Reads the words of `--level` and of JSON lines.
    pub fn parse(word: &str) -> Option<Level> {
        let word = match word {
            "warning" => "warn",
            "panic" | "dpanic" => "fatal",
            word => word,
        };
        Level::WORDS.iter().find(|(there, _)| *there == word).map(|(_, level)| *level)
    }
}

/// When a line was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// A moment.
    Exact(Timestamp),
    /// What a clock on the wall of etcd's machine showed: text lines do not name their time zone.
    Local(civil::DateTime),
}

impl When {
    /// The moment, given the time zone of the machine.
    pub fn in_zone(self, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            When::Exact(at) => Some(at),
            When::Local(clock) => zone.to_timestamp(clock).ok(),
        }
    }
}

/// A line that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// How grave it is.
    pub level: Level,
    /// When it was written; a crash does not say.
    pub at: Option<When>,
    /// The message, and the error if one is given.
    pub text: String,
    /// What else a JSON line says, by name; stack traces left out.
    pub fields: Vec<(String, String)>,
}

/// A line of JSON, as far as it concerns us.
#[derive(Deserialize)]
struct Entry {
    level: String,
    ts: Option<String>,
    msg: String,
    error: Option<serde_json::Value>,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

/// Reads one line, without its newline. `None`: it begins nothing, and belongs to the line before.
pub fn parse(line: &str) -> Option<Line> {
    if line.starts_with('{') { json(line) } else { text(line).or_else(|| raft(line)).or_else(|| crash(line)) }
}

fn json(line: &str) -> Option<Line> {
    let entry: Entry = serde_json::from_str(line).ok()?;
    let at = entry.ts.and_then(|ts| exact(&ts)).map(When::Exact);
    let plain = |value: serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let text = match entry.error {
        Some(error) => format!("{}: {}", entry.msg, plain(error)),
        None => entry.msg,
    };
    let shown = entry.rest.into_iter().filter(|(name, _)| !matches!(name.as_str(), "caller" | "stacktrace"));
    let fields = shown.map(|(name, value)| (name, plain(value))).collect();
    Some(Line { level: Level::parse(&entry.level)?, at, text, fields })
}

/// `2026-11-16T02:14:36.049Z`, or with an offset that has no colon.
fn exact(ts: &str) -> Option<Timestamp> {
    ts.parse().ok().or_else(|| {
        let (clock, offset) = ts.split_at_checked(ts.len().checked_sub(5)?)?;
        let (hours, minutes) = offset.split_at_checked(3)?;
        format!("{clock}{hours}:{minutes}").parse().ok()
    })
}

/// `2026-11-16 02:14:36.089125 C | etcdmain: text`
fn text(line: &str) -> Option<Line> {
    let (head, text) = line.split_once(" | ")?;
    let (clock, level) = head.rsplit_once(' ')?;
    let level = match level {
        "C" => Level::Fatal,
        "E" => Level::Error,
        "W" => Level::Warn,
        "N" | "I" => Level::Info,
        "D" | "T" => Level::Debug,
        _ => return None,
    };
    Some(Line { level, at: Some(local(clock)?), text: text.to_owned(), fields: Vec::new() })
}

/// `raft2026/11/16 02:14:58 INFO: text`
fn raft(line: &str) -> Option<Line> {
    let (clock, rest) = line.strip_prefix("raft")?.split_at_checked(19)?;
    let (level, text) = rest.trim_start().split_once(": ")?;
    let level = Level::parse(&level.to_ascii_lowercase())?;
    Some(Line { level, at: Some(local(&clock.replace('/', "-"))?), text: format!("raft: {text}"), fields: Vec::new() })
}

/// The first line of a crash, a line that comes before any setting is read, and what is said of old settings.
fn crash(line: &str) -> Option<Line> {
    let level = if ["panic: ", "fatal error: ", "flag provided but not defined: ", "SIGQUIT: "]
        .iter()
        .any(|start| line.starts_with(start))
    {
        Level::Fatal
    } else if line.starts_with("[WARNING] ") {
        Level::Warn
    } else {
        return None;
    };
    Some(Line { level, at: None, text: line.to_owned(), fields: Vec::new() })
}

fn local(clock: &str) -> Option<When> {
    clock.parse::<civil::DateTime>().ok().map(When::Local)
}

mod others;

pub use others::{Other, parse_other};

#[cfg(test)]
mod tests;
