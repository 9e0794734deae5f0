//! Breaks text into lines.
//!
//! **Rule:** what stands between backticks stays on one line: a command broken in two cannot be copied.

/// Breaks `text` at blanks. The first line begins at column `first`, further ones at `rest`; none of the indent is in the
/// result. A word that is wider than the line stands alone.
pub(crate) fn wrap(text: &str, first: usize, rest: usize, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = first;
    for word in words_of(text) {
        let width = word.chars().count();
        let fresh = lines.last().is_none_or(String::is_empty);
        if !fresh && used + 1 + width > columns {
            lines.push(String::new());
            used = rest;
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
                used += 1;
            }
            line.push_str(&word);
            used += width;
        }
    }
    lines
}

fn words_of(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut in_code = false;
    for c in text.chars() {
        in_code ^= c == '`';
        match words.last_mut() {
            Some(word) if in_code || !c.is_whitespace() => word.push(c),
            _ => words.push(String::new()),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_filled_up_to_the_column() {
        assert_eq!(wrap("one two three", 0, 0, 7), ["one two", "three"]);
        assert_eq!(wrap("one two three", 4, 0, 7), ["one", "two", "three"]);
        assert_eq!(wrap("one two three", 0, 3, 7), ["one two", "three"]);
        assert_eq!(wrap("", 0, 0, 7), [""]);
    }

    #[test]
    fn commands_are_not_broken_over_lines() {
        assert_eq!(wrap("run `quorate data verify` now", 0, 0, 12), ["run", "`quorate data verify`", "now"]);
    }
}
