//! Takes keys out of maps one by one and writes down what is wrong with them; reading goes on, so that all mistakes are found.

use std::time::Duration;

use quorate_faults::Code;

use super::tree::{Key, Kind, Node};
use super::{At, Mistake, Mistakes, parse_duration, parse_size};
use crate::roster::{names, nearest, quoted};

/// Mistakes that are reported; a file with more is another file.
const MISTAKES_MAX: usize = 50;

/// Collects mistakes while a file is read.
pub(super) struct Reader<'a> {
    lines: Vec<&'a str>,
    mistakes: Vec<Mistake>,
    /// Every key that was asked for, so that a test can compare them with the schema.
    #[cfg(test)]
    pub(super) asked: std::collections::BTreeSet<String>,
}

/// How much of a line may be shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    /// All of it.
    Line,
    /// Up to the first `:`, since nobody knows what the value is.
    Key,
    /// What stands before the place, since the value may be a secret.
    Before,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Reader<'a> {
        Reader {
            lines: text.lines().collect(),
            mistakes: Vec::new(),
            #[cfg(test)]
            asked: Default::default(),
        }
    }

    pub(super) fn wrong(&mut self, at: At, path: &str, what: impl Into<String>, hint: Option<String>) {
        self.note(Code::SpecMistake, at, path, what.into(), hint, Show::Line);
    }

    pub(super) fn note(&mut self, code: Code, at: At, path: &str, what: String, hint: Option<String>, show: Show) {
        if self.mistakes.len() >= MISTAKES_MAX {
            return;
        }
        let excerpt = self.excerpt(at, show);
        self.mistakes.push(Mistake { at, path: path.to_owned(), what, hint, excerpt, code });
    }

    pub(super) fn has_mistakes(&self) -> bool {
        !self.mistakes.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.mistakes.len()
    }

    pub(super) fn finish(mut self, provenance: &str) -> Mistakes {
        self.mistakes.sort_by_key(|mistake| mistake.at);
        Mistakes { provenance: provenance.to_owned(), mistakes: self.mistakes }
    }

    fn excerpt(&self, at: At, show: Show) -> String {
        const SHOWN_MAX: usize = 120;
        let line = usize::try_from(at.line).ok().and_then(|line| self.lines.get(line.checked_sub(1)?));
        let Some(line) = line else { return String::new() };
        let key = at.column.try_into().unwrap_or(usize::MAX);
        let cut = match show {
            Show::Key => {
                line.char_indices().skip(key).find(|(_, c)| *c == ':').map_or(line.len(), |(byte, _)| byte + 1)
            }
            Show::Before => line.char_indices().nth(key.saturating_sub(1)).map_or(line.len(), |(byte, _)| byte),
            Show::Line => line.len(),
        };
        // User info of URLs may be a password; a line with one is not shown at all.
        let text = line.get(..cut).unwrap_or(line);
        if text.contains('@') && text.contains("://") {
            return String::new();
        }
        let shown = text.trim_end().chars().take(SHOWN_MAX);
        shown.map(|c| if c.is_control() { ' ' } else { c }).collect::<String>()
            + if cut < line.len() { " …" } else { "" }
    }
}

/// A map that is being read. Whatever was not taken when it ends is unknown.
pub(super) struct Section {
    pub(super) at: At,
    pub(super) path: String,
    entries: Vec<(Key, Node)>,
    known: Vec<&'static str>,
}

impl Section {
    /// Opens a map; anything else is a mistake.
    pub(super) fn open(reader: &mut Reader<'_>, node: Node, path: &str) -> Option<Section> {
        let at = node.at;
        let what = node.kind();
        let Kind::Map(entries) = node.kind else {
            let name = if path.is_empty() { "the file".to_owned() } else { quoted(path) };
            reader.wrong(at, path, format!("{name} is {what}, not a map of keys and values"), None);
            return None;
        };
        let mut section = Section { at, path: path.to_owned(), entries: Vec::new(), known: Vec::new() };
        for (key, node) in entries {
            if section.entries.iter().any(|(earlier, _)| earlier.text == key.text) {
                let what = format!("{} is given twice", quoted(&key.text));
                reader.note(Code::SpecMistake, key.at, path, what, Some("keep one of the two".into()), Show::Key);
            } else {
                section.entries.push((key, node));
            }
        }
        Some(section)
    }

    pub(super) fn below(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Takes a key's value. `key: ` with nothing behind it counts as not given.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Node> {
        self.known.push(key);
        let position = self.entries.iter().position(|(there, _)| there.text == key)?;
        let (_, node) = self.entries.remove(position);
        (!matches!(node.kind, Kind::Nothing)).then_some(node)
    }

    /// Whether a key is given; it is left there.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(there, node)| there.text == key && !matches!(node.kind, Kind::Nothing))
    }

    /// Whether a map stands behind a key; it is left there.
    pub(super) fn has_map(&self, key: &str) -> bool {
        self.entries.iter().any(|(there, node)| there.text == key && matches!(node.kind, Kind::Map(_)))
    }

    /// Takes a key that says `off`, as YAML understands it; anything else is left there.
    pub(super) fn takes_off(&mut self, key: &'static str) -> bool {
        let is = |(there, node): &(Key, Node)| there.text == key && matches!(node.kind, Kind::Flag(false));
        self.entries.iter().any(is) && self.take(key).is_some()
    }

    /// All that is left, for maps whose keys are not ours.
    pub(super) fn rest(self) -> Vec<(Key, Node)> {
        self.entries
    }

    pub(super) fn section(&mut self, reader: &mut Reader<'_>, key: &'static str) -> Option<Section> {
        let node = self.take(key)?;
        Section::open(reader, node, &self.below(key))
    }

    /// Whatever is left means nothing here.
    pub(super) fn close(self, reader: &mut Reader<'_>) {
        #[cfg(test)]
        reader.asked.extend(self.known.iter().map(|key| without_numbers(&self.below(key))));
        for (key, _) in self.entries {
            let place = if self.path.is_empty() { "here".to_owned() } else { format!("in {}", quoted(&self.path)) };
            let hint = match nearest(&key.text, self.known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("{place} stand {}", names(self.known.iter().copied())),
            };
            let what = format!("{} means nothing {place}", quoted(&key.text));
            reader.note(Code::SpecUnknownKey, key.at, &self.path, what, Some(hint), Show::Key);
        }
    }

    pub(super) fn text(&mut self, reader: &mut Reader<'_>, key: &'static str) -> Option<(String, At)> {
        let node = self.take(key)?;
        let what = node.kind();
        match node.kind {
            Kind::Text(text) if !text.is_empty() => Some((text, node.at)),
            Kind::Text(_) => {
                reader.wrong(node.at, &self.below(key), format!("`{key}` is empty"), None);
                None
            }
            Kind::Number(_) | Kind::OddNumber | Kind::Flag(_) => {
                let hint = "put it in quotes: `\"…\"`".to_owned();
                reader.wrong(node.at, &self.below(key), format!("`{key}` is {what}, not text"), Some(hint));
                None
            }
            Kind::Nothing | Kind::List(_) | Kind::Map(_) => {
                reader.wrong(node.at, &self.below(key), format!("`{key}` is {what}, not text"), None);
                None
            }
        }
    }

    /// A text, or a list of texts.
    pub(super) fn texts(&mut self, reader: &mut Reader<'_>, key: &'static str) -> Option<Vec<(String, At)>> {
        let node = self.take(key)?;
        let (what, at) = (node.kind(), node.at);
        let items = match node.kind {
            Kind::List(items) => items,
            Kind::Text(text) => return Some(vec![(text, at)]),
            Kind::Nothing | Kind::Flag(_) | Kind::Number(_) | Kind::OddNumber | Kind::Map(_) => {
                reader.wrong(at, &self.below(key), format!("`{key}` is {what}, not a list"), None);
                return None;
            }
        };
        let mut texts = Vec::new();
        for item in items {
            let what = item.kind();
            match item.kind {
                Kind::Text(text) => texts.push((text, item.at)),
                Kind::Nothing | Kind::Flag(_) | Kind::Number(_) | Kind::OddNumber | Kind::List(_) | Kind::Map(_) => {
                    reader.wrong(item.at, &self.below(key), format!("`{key}` holds {what}, not text"), None);
                }
            }
        }
        Some(texts)
    }

    pub(super) fn number(&mut self, reader: &mut Reader<'_>, key: &'static str, max: u64) -> Option<u64> {
        let node = self.take(key)?;
        if let Kind::Number(number) = node.kind
            && let Some(number) = u64::try_from(number).ok().filter(|number| *number <= max)
        {
            return Some(number);
        }
        reader.wrong(node.at, &self.below(key), format!("`{key}` is no whole number from 0 to {max}"), None);
        None
    }

    /// A number that may be below zero.
    pub(super) fn integer(&mut self, reader: &mut Reader<'_>, key: &'static str, min: i64, max: i64) -> Option<i64> {
        let node = self.take(key)?;
        if let Kind::Number(number) = node.kind
            && (min..=max).contains(&number)
        {
            return Some(number);
        }
        reader.wrong(node.at, &self.below(key), format!("`{key}` is no whole number from {min} to {max}"), None);
        None
    }

    /// A port, or a list of ports.
    pub(super) fn ports(&mut self, reader: &mut Reader<'_>, key: &'static str) -> Vec<u16> {
        let Some(node) = self.take(key) else { return Vec::new() };
        let items = match node.kind {
            Kind::List(items) => items,
            Kind::Nothing | Kind::Flag(_) | Kind::Number(_) | Kind::OddNumber | Kind::Text(_) | Kind::Map(_) => {
                vec![node]
            }
        };
        let mut ports = Vec::new();
        for item in items {
            let number = if let Kind::Number(number) = item.kind { u16::try_from(number).ok() } else { None };
            match number.filter(|port| *port > 0) {
                Some(port) => ports.push(port),
                None => {
                    let what = format!("`{key}` holds {}, which is no port", item.kind());
                    reader.wrong(item.at, &self.below(key), what, Some("ports are numbers from 1 to 65535".into()));
                }
            }
        }
        ports
    }

    /// Names and texts, as they stand.
    pub(super) fn pairs(&mut self, reader: &mut Reader<'_>, key: &'static str) -> Vec<(String, String)> {
        let Some(section) = self.section(reader, key) else { return Vec::new() };
        let path = section.path.clone();
        let mut pairs = Vec::new();
        for (name, node) in section.rest() {
            let what = node.kind();
            match node.kind {
                Kind::Text(text) => pairs.push((name.text, text)),
                Kind::Nothing | Kind::Flag(_) | Kind::Number(_) | Kind::OddNumber | Kind::List(_) | Kind::Map(_) => {
                    let hint = Some("put it in quotes: `\"…\"`".to_owned());
                    let what = format!("{} is {what}, not text", quoted(&name.text));
                    reader.note(Code::SpecMistake, name.at, &path, what, hint, Show::Key);
                }
            }
        }
        pairs
    }

    pub(super) fn flag(&mut self, reader: &mut Reader<'_>, key: &'static str) -> Option<(bool, At)> {
        let node = self.take(key)?;
        if let Kind::Flag(flag) = node.kind {
            return Some((flag, node.at));
        }
        reader.wrong(node.at, &self.below(key), format!("`{key}` is {}, not `true` or `false`", node.kind()), None);
        None
    }

    pub(super) fn span(&mut self, reader: &mut Reader<'_>, key: &'static str, into: &mut Duration) {
        self.parsed(reader, key, into, parse_duration, "a time span", "write it as `90s`, `5m`, `1h30m` or `7d`");
    }

    pub(super) fn size(&mut self, reader: &mut Reader<'_>, key: &'static str, into: &mut u64) {
        self.parsed(reader, key, into, parse_size, "a size", "write it as `16MiB` or `2GiB`");
    }

    /// One of several words.
    pub(super) fn word<T: Copy>(
        &mut self,
        reader: &mut Reader<'_>,
        key: &'static str,
        words: &[(&'static str, T)],
        into: &mut T,
    ) {
        let Some((text, at)) = self.text(reader, key) else { return };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            *into = *value;
            return;
        }
        let hint = match nearest(&text, words.iter().map(|(word, _)| *word)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it is one of {}", names(words.iter().map(|(word, _)| *word))),
        };
        reader.wrong(at, &self.below(key), format!("{} is no `{key}`", quoted(&text)), Some(hint));
    }

    fn parsed<T>(
        &mut self,
        reader: &mut Reader<'_>,
        key: &'static str,
        into: &mut T,
        parse: fn(&str) -> Option<T>,
        what: &str,
        how: &str,
    ) {
        let Some(node) = self.take(key) else { return };
        let text = match &node.kind {
            Kind::Text(text) => text.clone(),
            Kind::Number(number) => number.to_string(),
            Kind::Nothing | Kind::Flag(_) | Kind::OddNumber | Kind::List(_) | Kind::Map(_) => String::new(),
        };
        match parse(&text) {
            Some(value) => *into = value,
            None => reader.wrong(node.at, &self.below(key), format!("`{key}` is not {what}"), Some(how.to_owned())),
        }
    }
}

/// `members[2].name` as `members[].name`.
#[cfg(test)]
fn without_numbers(path: &str) -> String {
    let mut inside = false;
    let keep = |c: &char| {
        let keep = !inside || *c == ']';
        inside = (inside || *c == '[') && *c != ']';
        keep
    };
    path.chars().filter(keep).collect()
}
