//! Checks that fault codes and their pages match one to one, and that pages have the agreed form.

use std::collections::BTreeMap;

use super::Report;
use super::tree::SourceFile;

/// The table, in the order of its codes.
const TABLES: [&str; 3] = [
    "crates/pure/faults/src/code/offline.rs",
    "crates/pure/faults/src/code/cluster.rs",
    "crates/pure/faults/src/code/systems.rs",
];
const TABLE: &str = "crates/pure/faults/src/code";
const PAGES: &str = "docs/faults/";

pub(super) fn check(files: &[SourceFile], report: &mut Report) {
    let tables = TABLES.iter().filter_map(|path| files.iter().find(|file| file.path == *path));
    let codes: Vec<&str> = tables.flat_map(|table| table.lines()).filter_map(|(_, line)| row_code(line)).collect();
    if codes.is_empty() {
        report.error(format!("{TABLE}: missing; it holds the list of fault codes"));
        return;
    }
    for pair in codes.windows(2) {
        if pair[0] >= pair[1] {
            report.error(format!("{TABLE}: `{}` must come before `{}`, once each", pair[1], pair[0]));
        }
    }
    let pages: BTreeMap<&str, &SourceFile> =
        files.iter().filter_map(|file| Some((page_code(&file.path)?, file))).collect();
    for code in codes.iter().filter(|code| !pages.contains_key(**code)) {
        report.error(format!("{TABLE}: `{code}` has no page {PAGES}{code}.md"));
    }
    for (code, page) in pages {
        if !codes.contains(&code) {
            report.error(format!("{}: no row of {TABLE} has this code", page.path));
        }
        if !page.text.starts_with(&format!("# {code}: ")) {
            report.error(format!("{}:1: open the page with `# {code}: short title`", page.path));
        }
        if !page.text.contains("\n## What to do\n") {
            report.error(format!("{}: a page says `## What to do`", page.path));
        }
    }
}

/// The code of a row such as `Io = "Q0002", Failed;`.
fn row_code(line: &str) -> Option<&str> {
    let (_, right) = line.split_once(" = \"")?;
    let code = right.get(..5)?;
    (is_code(code) && right.get(5..6) == Some("\"")).then_some(code)
}

fn page_code(path: &str) -> Option<&str> {
    path.strip_prefix(PAGES)?.strip_suffix(".md").filter(|name| is_code(name))
}

fn is_code(text: &str) -> bool {
    text.len() == 5 && text.starts_with('Q') && text[1..].bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    fn complaints(files: &[SourceFile]) -> Vec<String> {
        let mut report = Report::default();
        check(files, &mut report);
        report.errors
    }

    const PAGE: &str = "# Q0001: a bug\n\nText.\n\n## What to do\n\nTell us.\n";

    #[test]
    fn a_row_with_its_page_is_in_order() {
        let rows = "    Internal = \"Q0001\", Failed;\n";
        assert_eq!(complaints(&[file(TABLES[0], rows), file("docs/faults/Q0001.md", PAGE)]), Vec::<String>::new());
    }

    #[test]
    fn a_row_without_a_page_and_a_page_without_a_row_are_found() {
        assert_eq!(complaints(&[file(TABLES[0], "    Internal = \"Q0001\", Failed;\n")]).len(), 1);
        assert_eq!(complaints(&[file(TABLES[0], ""), file("docs/faults/Q0001.md", PAGE)]).len(), 1);
    }

    #[test]
    fn rows_ascend_and_pages_say_what_to_do() {
        let rows = "A = \"Q0002\", Failed;\nB = \"Q0001\", Failed;\n";
        let pages =
            [file(TABLES[0], rows), file("docs/faults/Q0001.md", PAGE), file("docs/faults/Q0002.md", "# Q0002: x\n")];
        assert_eq!(complaints(&pages).len(), 2);
    }
}
