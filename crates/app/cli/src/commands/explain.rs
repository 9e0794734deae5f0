//! `quorate explain`: the page of a fault code, or the list of all codes.

use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;

use crate::markdown;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate explain Q0203       what it means and what to do
  quorate explain 203         the same
  quorate explain --list      every code with its title")]
pub(crate) struct Args {
    /// The code, as printed in brackets after a message
    #[arg(value_name = "CODE", required_unless_present = "list")]
    code: Option<String>,

    /// List every code with its title
    #[arg(long, conflicts_with = "code")]
    list: bool,
}

#[derive(Serialize)]
struct Entry {
    code: Code,
    title: &'static str,
    exit: u8,
}

impl Entry {
    fn of(code: Code) -> Entry {
        Entry { code, title: code.title(), exit: code.exit() as u8 }
    }
}

#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    entry: Entry,
    page: &'static str,
}

#[derive(Serialize)]
struct List {
    codes: Vec<Entry>,
}

impl Report for Explained {
    fn render(&self, page: &mut Page) {
        let text = markdown::to_text(self.page, page.prose_columns());
        page.line(text.trim_end());
    }
}

impl Report for List {
    fn render(&self, page: &mut Page) {
        let rows =
            self.codes.iter().map(|entry| [entry.code.to_string(), entry.exit.to_string(), entry.title.to_owned()]);
        page.table(["CODE", "EXIT", "TITLE"], rows);
    }
}

/// Prints the page or the list.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    match args.code.as_deref() {
        Some(text) => {
            let code = find(text)?;
            printer.report(&Explained { entry: Entry::of(code), page: code.page() });
        }
        None => printer.report(&List { codes: Code::ALL.iter().copied().map(Entry::of).collect() }),
    }
    Ok(Exit::Done)
}

/// Finds a code as people type it: any case, with or without the `Q`, brackets and leading zeros.
fn find(text: &str) -> Result<Code, Fault> {
    let bare = text.trim().trim_matches(['[', ']']).trim_start_matches(['Q', 'q']);
    Code::parse(&format!("{bare:0>4}")).ok_or_else(|| {
        Fault::new(Code::UnknownCode, format!("there is no fault code `{text}`"))
            .hint("`quorate explain --list` shows every code")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_as_people_copy_and_type_them() {
        for text in ["Q0002", "q0002", "0002", "2", "[Q0002]"] {
            assert_eq!(find(text).ok(), Some(Code::Io), "{text}");
        }
        assert!(find("Q9999").is_err());
        assert!(find("").is_err());
    }
}
