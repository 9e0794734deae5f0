//! Renders the small Markdown of the fault pages as text for a terminal.
//!
//! **Rule:** it knows headings, paragraphs, lists, code, tables as they are, emphasis and links; no more is used there.

use owo_colors::OwoColorize;

use crate::wrap::wrap;

/// The page as text, wrapped to `columns`, coloured; the printer strips the colour where it does not belong.
pub(crate) fn to_text(markdown: &str, columns: usize) -> String {
    let mut text = String::new();
    for block in blocks(markdown) {
        if !text.is_empty() {
            text.push('\n');
        }
        render(&block, columns, &mut text);
    }
    text
}

/// One piece of a page.
#[derive(Debug, PartialEq)]
enum Block {
    Heading(String),
    Paragraph(String),
    /// Marker (`-`, `1.`) and text of each item.
    List(Vec<(String, String)>),
    /// Lines kept as they are.
    Verbatim(Vec<String>),
}

fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut fence: Option<Vec<String>> = None;
    // Whether the last line can be continued by the next.
    let mut open = false;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            match fence.take() {
                Some(lines) => blocks.push(Block::Verbatim(lines)),
                None => fence = Some(Vec::new()),
            }
            open = false;
            continue;
        }
        if let Some(lines) = &mut fence {
            lines.push(line.to_owned());
            continue;
        }
        open = take_line(line, open, &mut blocks);
    }
    if let Some(lines) = fence {
        blocks.push(Block::Verbatim(lines));
    }
    blocks
}

/// Adds a line outside of code to the blocks; says whether the next line may continue it.
fn take_line(line: &str, open: bool, blocks: &mut Vec<Block>) -> bool {
    let trimmed = line.trim();
    if trimmed.is_empty() {
        return false;
    }
    if trimmed.starts_with('#') {
        blocks.push(Block::Heading(trimmed.trim_start_matches('#').trim().to_owned()));
        return false;
    }
    if trimmed.starts_with('|') {
        match blocks.last_mut() {
            Some(Block::Verbatim(lines)) if open => lines.push(trimmed.to_owned()),
            _ => blocks.push(Block::Verbatim(vec![trimmed.to_owned()])),
        }
        return true;
    }
    if let Some((marker, item)) = list_item(trimmed) {
        let item = (marker.to_owned(), item.to_owned());
        match blocks.last_mut() {
            Some(Block::List(items)) => items.push(item),
            _ => blocks.push(Block::List(vec![item])),
        }
        return true;
    }
    match blocks.last_mut() {
        Some(Block::Paragraph(text)) if open => push_words(text, trimmed),
        Some(Block::List(items)) if open || line.starts_with(' ') => {
            if let Some((_, text)) = items.last_mut() {
                push_words(text, trimmed);
            }
        }
        _ => blocks.push(Block::Paragraph(trimmed.to_owned())),
    }
    true
}

fn push_words(text: &mut String, more: &str) {
    text.push(' ');
    text.push_str(more);
}

/// `- text`, `* text` or `1. text`.
fn list_item(line: &str) -> Option<(&str, &str)> {
    let (marker, item) = line.split_once(' ')?;
    let number =
        marker.strip_suffix('.').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()));
    (number || marker == "-" || marker == "*").then_some((marker, item.trim_start()))
}

fn render(block: &Block, columns: usize, text: &mut String) {
    match block {
        Block::Heading(heading) => {
            text.push_str(&format!("{}\n", heading.bold()));
        }
        Block::Paragraph(words) => prose(words, "", "", columns, text),
        Block::List(items) => {
            let width = items.iter().map(|(marker, _)| marker.len()).max().unwrap_or(1);
            for (marker, item) in items {
                let first = format!("  {marker:>width$} ");
                prose(item, &first, &" ".repeat(width + 3), columns, text);
            }
        }
        Block::Verbatim(lines) => {
            for line in lines {
                text.push_str(format!("    {}", line.green()).trim_end());
                text.push('\n');
            }
        }
    }
}

/// Adds `words`, broken into lines below `first`, with `code` in colour.
fn prose(words: &str, first: &str, rest: &str, columns: usize, text: &mut String) {
    let words = unemphasised(&links_spelled_out(words));
    let lines = wrap(&words, first.chars().count(), rest.chars().count(), columns);
    for (at, line) in lines.iter().enumerate() {
        let indent = if at == 0 { first } else { rest };
        text.push_str(format!("{indent}{}", coloured(line)).trim_end());
        text.push('\n');
    }
}

/// Takes the stars of `*emphasis*` away: a terminal reads well without. Stars in `code`, and those alone, stay.
fn unemphasised(text: &str) -> String {
    let mut parts: Vec<String> = text.split('`').map(str::to_owned).collect();
    for prose in parts.iter_mut().step_by(2) {
        *prose = prose.replace(" * ", "\0").replace('*', "").replace('\0', " * ");
    }
    parts.join("`")
}

fn coloured(word: &str) -> String {
    let mut parts = word.split('`');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (at, part) in parts.enumerate() {
        match at % 2 {
            0 => text.push_str(&format!("`{}`", part.cyan())),
            _ => text.push_str(part),
        }
    }
    text
}

/// `[text](place)` becomes `text (place)`.
fn links_spelled_out(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        let link = after.split_once("](").and_then(|(label, tail)| Some((label, tail.split_once(')')?)));
        out.push_str(before);
        match link {
            Some((label, (place, tail))) if !label.contains('[') && !before.ends_with('`') => {
                out.push_str(&format!("{label} ({place})"));
                rest = tail;
            }
            _ => {
                out.push('[');
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use quorate_faults::Code;

    use super::*;

    fn plain(markdown: &str, columns: usize) -> String {
        anstream::adapter::strip_str(&to_text(markdown, columns)).to_string()
    }

    #[test]
    fn a_page_reads_as_text() {
        let page = "# Q0001: short\n\nSome words\nthat go on, see [the guide](docs/guide.md).\n\n## What to do\n\n1. First run\n   this:\n2. Then `quorate data verify /x`.\n\n```\nchown etcd /x\n```\n- item\n";
        insta::assert_snapshot!(plain(page, 40), @r"
        Q0001: short

        Some words that go on, see the guide
        (docs/guide.md).

        What to do

          1. First run this:
          2. Then `quorate data verify /x`.

            chown etcd /x

          - item
        ");
    }

    #[test]
    fn every_fault_page_fits_eighty_columns_but_for_commands() {
        for code in Code::ALL {
            for line in plain(code.page(), 80).lines().filter(|line| !line.starts_with("    ") && !line.contains('`')) {
                assert!(line.chars().count() <= 80, "{code}: {line}");
            }
        }
    }

    #[test]
    fn emphasis_leaves_no_stars() {
        assert_eq!(plain("**every** node, *not* `ls *`: 2 * 3", 80), "every node, not `ls *`: 2 * 3\n");
    }
}
