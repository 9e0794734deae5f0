//! Composes the text form of results: lines, tables and pairs.
//!
//! **Rule:** nothing is written here, and pipes get whole lines: text is only fitted to a width when there is a terminal.

use std::fmt::Display;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use owo_colors::OwoColorize;
use quorate_faults::{Finding, Severity};
use serde::Serialize;

/// What a command has to say, in both forms: serialised for machines, rendered for people.
pub(crate) trait Report: Serialize {
    /// Writes the text form.
    fn render(&self, page: &mut Page);
}

/// Text being composed.
pub(crate) struct Page {
    text: String,
    columns: Option<u16>,
}

impl Page {
    /// An empty page; `columns` is the terminal's width, where there is one.
    pub(crate) fn new(columns: Option<u16>) -> Page {
        Page { text: String::new(), columns }
    }

    /// What has been composed.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The width to fit prose into.
    pub(crate) fn prose_columns(&self) -> usize {
        self.columns.map_or(80, |columns| usize::from(columns).clamp(40, 88))
    }

    /// Whether `columns` columns fit. A pipe has no width, so everything fits.
    pub(crate) fn fits(&self, columns: u16) -> bool {
        self.columns.is_none_or(|there| there >= columns)
    }

    /// One line.
    pub(crate) fn line(&mut self, text: impl Display) {
        self.text.push_str(&text.to_string());
        self.text.push('\n');
    }

    /// An empty line.
    pub(crate) fn gap(&mut self) {
        self.text.push('\n');
    }

    /// One observation about examined data: what, where, and what to do.
    pub(crate) fn finding(&mut self, finding: &Finding) {
        let severity = match finding.severity {
            Severity::Error => "error".red().bold().to_string(),
            Severity::Warning => "warning".yellow().bold().to_string(),
            Severity::Info => "note".cyan().bold().to_string(),
        };
        self.line(format!("{severity}: {} [{}]", finding.what, finding.code));
        self.line(format!("  at: {}", finding.place));
        self.line(format!("  do: {}", finding.remedy));
        self.gap();
    }

    /// A headline.
    pub(crate) fn heading(&mut self, text: impl Display) {
        self.line(text.bold());
    }

    /// A table without lines: the headers, then the rows.
    pub(crate) fn table<const N: usize>(&mut self, headers: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
        let rendered = self.lay_out(Some(headers.to_vec()), rows.into_iter().map(Vec::from).collect());
        for (at, line) in rendered.lines().enumerate() {
            match at {
                0 => self.line(line.trim_end().bold()),
                _ => self.line(line.trim_end()),
            }
        }
    }

    /// Names and values, aligned.
    pub(crate) fn pairs<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a str, String)>) {
        let rows = pairs.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
        let rendered = self.lay_out(None, rows);
        for line in rendered.lines() {
            self.line(line.trim_end());
        }
    }

    /// What can be done next, and the command for it.
    pub(crate) fn step(&mut self, what: &str, command: impl Display) {
        self.line(format!("{} {command}", format_args!("{what:<11}").dimmed()));
    }

    fn lay_out(&self, headers: Option<Vec<&str>>, rows: Vec<Vec<String>>) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        match self.columns {
            Some(columns) => {
                table.set_content_arrangement(ContentArrangement::Dynamic);
                table.set_width(columns);
            }
            None => {
                table.set_content_arrangement(ContentArrangement::Disabled);
            }
        }
        if let Some(headers) = headers {
            table.set_header(headers);
        }
        table.add_rows(rows);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.to_string()
    }
}

/// A size as people read it: `24.0 KiB`.
pub(crate) fn bytes(size: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if size < 1024 {
        return format!("{size} B");
    }
    let mut value = size as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A word as a shell takes it.
pub(crate) fn for_shell(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%~".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A duration as people write it: `1m 30s`.
pub(crate) fn duration(time: Duration) -> String {
    match jiff::SignedDuration::try_from(time) {
        Ok(time) => format!("{time:#}"),
        Err(_) => format!("{time:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(24 * 1024), "24.0 KiB");
        assert_eq!(bytes(1024 * 1024 - 1), "1.0 MiB");
        assert_eq!(bytes(1 << 30), "1.0 GiB");
    }

    #[test]
    fn tables_have_no_trailing_blanks() {
        let mut page = Page::new(None);
        page.table(["NAME", "ID"], [["n1".to_owned(), "8e9e05c52164694d".to_owned()]]);
        page.pairs([("token", "t".to_owned())]);
        let plain = anstream::adapter::strip_str(page.as_str()).to_string();
        assert_eq!(plain, "NAME  ID\nn1    8e9e05c52164694d\ntoken  t\n");
    }

    #[test]
    fn a_narrow_terminal_gets_wrapped_cells_and_a_pipe_whole_lines() {
        let wide = "x ".repeat(60);
        let mut narrow = Page::new(Some(40));
        narrow.pairs([("urls", wide.clone())]);
        assert!(narrow.as_str().lines().all(|line| line.len() <= 40), "{}", narrow.as_str());
        let mut pipe = Page::new(None);
        pipe.pairs([("urls", wide)]);
        assert_eq!(pipe.as_str().lines().count(), 1);
    }
}
