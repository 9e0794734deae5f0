//! Texts with what is seen, a line of dashes, and what is decided: how they are read, compared and accepted.
//!
//! **Rule:** `QUORATE_ACCEPT=1` writes what is said into the files, and the test fails all the same.

use std::path::{Path, PathBuf};

/// One fact: what it is about, and its details.
pub(crate) type Fact<'a> = (&'a str, Vec<&'a str>);

/// The facts of a text: one in a line, its details separated by `;`. A line that begins with `#` is for people.
pub(crate) fn facts(text: &str) -> Vec<Fact<'_>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let fact = |line| {
        let (what, rest): (&str, &str) = str::split_once(line, ": ").unwrap_or_else(|| panic!("no fact: {line}"));
        (what, rest.split("; ").map(str::trim).collect())
    };
    lines.map(fact).collect()
}

/// The details of one of them.
pub(crate) fn fact<'a>(facts: &'a [Fact<'a>], wanted: &str) -> Option<&'a [&'a str]> {
    facts.iter().find(|(what, _)| *what == wanted).map(|(_, parts)| parts.as_slice())
}

/// Compares every text below `tests/DIR` with what is said of it. Returns how many there are.
pub(crate) fn compare(dir: &str, mut say: impl FnMut(&str) -> String) -> usize {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(dir);
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "txt"));
    files.sort();
    let mut wrong = Vec::new();
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        let (given, expected) = text.split_once("---\n").unwrap();
        let said = say(given);
        if said == expected {
            continue;
        }
        if std::env::var_os("QUORATE_ACCEPT").is_some() {
            std::fs::write(path, format!("{given}---\n{said}")).unwrap();
        }
        wrong.push(format!("=== {}\n{said}", path.file_name().unwrap().to_str().unwrap()));
    }
    assert!(wrong.is_empty(), "these plans are not the expected ones:\n{}", wrong.join("\n"));
    files.len()
}
