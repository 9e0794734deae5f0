//! Checks that relative links in Markdown lead somewhere.

use std::path::Path;

use super::Report;
use super::tree::SourceFile;

pub(super) fn check(root: &Path, file: &SourceFile, report: &mut Report) {
    if !file.has_extension("md") {
        return;
    }
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let mut in_code = false;
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in targets(line) {
            if !root.join(folder).join(target).exists() {
                report.error(format!("{}:{number}: the link to `{target}` leads nowhere", file.path));
            }
        }
    }
}

/// The relative link targets of a line, without their anchors.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let candidates = line.match_indices("](").filter_map(move |(at, _)| {
        // An odd number of backticks before it: the text is code, not a link.
        if line[..at].matches('`').count() % 2 == 1 {
            return None;
        }
        let rest = &line[at + 2..];
        let target = rest[..rest.find(')')?].split_whitespace().next()?;
        target.split('#').next()
    });
    candidates.filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_targets(line: &str, expected: &[&str]) {
        assert_eq!(targets(line).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn only_relative_links_outside_code_are_followed() {
        check_targets("see [a](docs/a.md#top) and [b](b.md \"title\")", &["docs/a.md", "b.md"]);
        check_targets("see [a](https://example.org) and [b](#here)", &[]);
        check_targets("write `[a](b.md)`", &[]);
    }
}
