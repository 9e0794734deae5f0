//! Checks what compilers and linters do not: the shape of the source tree.
//!
//! **Rule:** every complaint is one line, `path:line: what is wrong`, and every check runs even when an earlier one
//! complained.

mod faults;
mod links;
mod rings;
mod text;
mod tree;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Result, bail};

/// What the checks found.
#[derive(Debug, Default)]
struct Report {
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Report {
    fn error(&mut self, text: impl Into<String>) {
        self.errors.push(text.into());
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

/// Runs all checks on the checkout at `root`.
pub(crate) fn run(root: &Path) -> Result<String> {
    let files = tree::read(root)?;
    let mut report = Report::default();
    for file in &files {
        text::check(file, &mut report);
        links::check(root, file, &mut report);
    }
    faults::check(&files, &mut report);
    rings::check(root, &mut report)?;

    let mut said = String::new();
    for warning in &report.warnings {
        writeln!(said, "tidy: warning: {warning}")?;
    }
    if report.errors.is_empty() {
        write!(said, "tidy: {} files are in order", files.len())?;
        return Ok(said);
    }
    for error in &report.errors {
        writeln!(said, "tidy: error: {error}")?;
    }
    bail!("{said}tidy: {} errors in {} files", report.errors.len(), files.len())
}
