//! Command lines as Go programs take them: `-x`, `--x`, `--x=value`, `--x value`; a switch stands alone or has `=true`.
//!
//! **Rule:** every flag of the original is known here; one that is not is refused by name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use quorate_faults::{Code, Fault, Result};

/// One flag.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Its name without dashes.
    pub name: &'static str,
    /// Its one letter, if it has one.
    pub short: Option<char>,
    /// Whether it stands alone.
    pub switch: bool,
}

/// A flag with a value.
pub const fn value(name: &'static str) -> Flag {
    Flag { name, short: None, switch: false }
}

/// A flag that stands alone, or with `=true` and `=false`.
pub const fn switch(name: &'static str) -> Flag {
    Flag { name, short: None, switch: true }
}

/// What a command line said.
#[derive(Debug, Clone, Default)]
pub struct Given {
    values: BTreeMap<&'static str, String>,
}

/// Reads all words as flags of this table. The last of several wins.
pub fn read(table: &[Flag], words: &[String]) -> Result<Given> {
    let mut given = Given::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let bare = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).filter(|rest| !rest.is_empty());
        let Some(bare) = bare else {
            return Err(wrong(format!("cannot understand `{word}`: it is no flag")));
        };
        let (name, inline) = bare.split_once('=').map_or((bare, None), |(name, text)| (name, Some(text)));
        let named = |flag: &&Flag| flag.name == name || flag.short.is_some_and(|short| name == short.to_string());
        let Some(flag) = table.iter().find(named) else {
            return Err(wrong(format!("cannot understand `{word}`: there is no such flag")));
        };
        let text = match (inline, flag.switch) {
            (Some(text), _) => text.to_owned(),
            (None, true) => "true".to_owned(),
            (None, false) => {
                let next = words.next();
                next.cloned().ok_or_else(|| wrong(format!("cannot use `--{}` without a value", flag.name)))?
            }
        };
        given.values.insert(flag.name, text);
    }
    Ok(given)
}

impl Given {
    /// The value of a flag that was given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The same; an empty value is none.
    pub fn filled(&self, name: &str) -> Option<&str> {
        self.text(name).filter(|text| !text.is_empty())
    }

    /// A path; an empty one is none.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.filled(name).map(PathBuf::from)
    }

    /// A switch.
    pub fn switch(&self, name: &str, default: bool) -> Result<bool> {
        let Some(text) = self.text(name) else { return Ok(default) };
        parse_bool(text).ok_or_else(|| invalid(name, text, "write `true` or `false`"))
    }

    /// A number.
    pub fn number<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| invalid(name, text, "write a number that fits"))
    }

    /// A length of time.
    pub fn duration(&self, name: &str, default: Duration) -> Result<Duration> {
        let Some(text) = self.text(name) else { return Ok(default) };
        parse_duration(text).ok_or_else(|| invalid(name, text, "write it as `30s`, `8m` or `1h30m`"))
    }

    /// Names of all flags that were given.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.values.keys().copied()
    }
}

/// `true` and `false` as Go reads them.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Go's durations that are not negative: `300ms`, `1h30m`, `1.5s`, `0`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|end| *end > 0)?;
        let (number, tail) = rest.split_at(end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = next;
    }
    (total > Duration::ZERO || text.starts_with('0')).then_some(total)
}

fn invalid(name: &str, text: &str, hint: &str) -> Fault {
    Fault::new(Code::GardenerFlag, format!("cannot use `--{name}={text}`")).hint(hint.to_owned())
}

fn wrong(attempt: String) -> Fault {
    Fault::new(Code::GardenerFlag, attempt).hint("see the flags with `--help`")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [Flag; 4] =
        [value("port"), switch("tls"), value("wait"), Flag { name: "endpoints", short: Some('e'), switch: false }];

    fn given(line: &str) -> Result<Given> {
        let words: Vec<String> = line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        read(&TABLE, &words)
    }

    #[test]
    fn flags_are_read_in_every_spelling_of_go() {
        for line in ["-port 1 -tls", "--port=1 --tls=true", "-port=1 --tls", "--port 7 --port 1 -tls=T"] {
            let given = given(line).unwrap();
            assert_eq!(given.number("port", 0).unwrap(), 1, "{line}");
            assert!(given.switch("tls", false).unwrap(), "{line}");
        }
        assert_eq!(given("-e http://a:1").unwrap().text("endpoints"), Some("http://a:1"));
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        let text = |line: &str| given(line).unwrap_err().to_string();
        assert_eq!(text("--prot=1"), "cannot understand `--prot=1`: there is no such flag");
        assert_eq!(text("word"), "cannot understand `word`: it is no flag");
        assert_eq!(text("--port"), "cannot use `--port` without a value");
        assert!(given("--port=x").unwrap().number("port", 0).is_err());
        assert!(given("--tls=yes").unwrap().switch("tls", false).is_err());
    }

    #[test]
    fn durations_are_those_of_go() {
        let ms = |text: &str| parse_duration(text).map(|time| time.as_millis());
        assert_eq!(
            (ms("1h30m"), ms("1.5s"), ms("300ms"), ms("0"), ms("0s")),
            (Some(5_400_000), Some(1500), Some(300), Some(0), Some(0))
        );
        for text in ["", "5", "s", "-1s", "1x", "1s2", "..s"] {
            assert_eq!(ms(text), None, "{text}");
        }
    }
}
