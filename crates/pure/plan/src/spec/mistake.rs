//! What is wrong in a cluster file, where, and how to write it instead.
//!
//! **Invariant:** nothing that may be a secret is repeated: of a key that means nothing here only the key is shown.

use std::fmt::Write as _;

use quorate_faults::{Code, Fault};
use serde::Serialize;

use crate::roster::quoted;

/// A place in the file, counted from 1. Line 0: no place in particular.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct At {
    /// The line.
    pub line: u64,
    /// The character in it.
    pub column: u64,
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// Where.
    #[serde(flatten)]
    pub at: At,
    /// The keys that lead there, such as `members[2].peer-urls`.
    pub path: String,
    /// What is wrong: lower case, no full stop.
    pub what: String,
    /// How to write it instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The line, cut where it may hold a secret.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub excerpt: String,
    /// The page that says more.
    pub code: Code,
}

impl Mistake {
    /// `cluster.yaml:3:5: what`, the line, a caret, and the hint.
    pub fn render(&self, provenance: &str) -> String {
        let mut text = provenance.to_owned();
        if self.at.line > 0 {
            // Writing to a String cannot fail.
            let _ = write!(text, ":{}:{}", self.at.line, self.at.column);
        }
        let _ = writeln!(text, ": {}", self.what);
        if !self.excerpt.is_empty() {
            let number = self.at.line.to_string();
            let gap = usize::try_from(self.at.column.saturating_sub(1)).unwrap_or(0);
            let _ = writeln!(text, "  {number} | {}", self.excerpt);
            let _ = writeln!(text, "  {:width$} | {:gap$}^", "", "", width = number.len());
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "  hint: {hint}");
        }
        text
    }
}

/// Everything that is wrong in one file, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mistakes {
    /// The file.
    pub provenance: String,
    /// At least one.
    pub mistakes: Vec<Mistake>,
}

impl Mistakes {
    /// As text for people: each mistake with its line.
    pub fn render(&self) -> String {
        self.mistakes.iter().map(|mistake| mistake.render(&self.provenance)).collect::<Vec<_>>().join("\n")
    }

    /// As a fault, each mistake on a line of its own.
    pub fn fault(&self) -> Fault {
        let file = quoted(&self.provenance);
        let place = |mistake: &Mistake| match mistake.at.line {
            0 => String::new(),
            line => format!("line {line} column {}: ", mistake.at.column),
        };
        let (attempt, hint) = match self.mistakes.as_slice() {
            [only] => (format!("cannot use {file}: {}{}", place(only), only.what), only.hint.clone()),
            several => {
                let mut text = format!("cannot use {file}: {} mistakes", several.len());
                for mistake in several {
                    let _ = write!(text, "\n{}{}", place(mistake), mistake.what);
                }
                (text, None)
            }
        };
        let code = self.mistakes.first().map_or(Code::SpecMistake, |first| first.code);
        let hint = hint.unwrap_or_else(|| "`quorate cluster check FILE` shows each line".to_owned());
        Fault::new(code, attempt).hint(hint)
    }
}
