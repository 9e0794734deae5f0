//! How names, URLs and times are shown to an operator.
//!
//! **Invariant:** no control character and no password reaches the screen through here.

use std::time::Duration;

/// Longest value that is shown in full; what a hostile source sends must not flood a terminal.
const SHOWN_MAX: usize = 160;

/// A value in backticks, on one line, with control characters escaped and user info of a URL hidden.
pub fn quoted(text: &str) -> String {
    let text = without_user_info(text);
    let mut shown: String = text.chars().take(SHOWN_MAX).flat_map(visible).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// Names in backticks: `` `n1`, `n2` and `n3` ``.
pub fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut shown: Vec<String> = names.into_iter().map(quoted).collect();
    match shown.pop() {
        None => "nobody".to_owned(),
        Some(last) if shown.is_empty() => last,
        Some(last) => format!("{} and {last}", shown.join(", ")),
    }
}

/// A time span as people write it: `2m`, `90s`, `1m30s`, `250ms`.
pub fn human(span: Duration) -> String {
    let (seconds, millis) = (span.as_secs(), span.subsec_millis());
    match (seconds / 60, seconds % 60) {
        (0, 0) => format!("{millis}ms"),
        (0, seconds) => format!("{seconds}s"),
        (minutes, 0) => format!("{minutes}m"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

fn visible(character: char) -> Vec<char> {
    if character.is_control() || character == '`' { character.escape_default().collect() } else { vec![character] }
}

fn without_user_info(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://…@{host}{tail}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_control_characters_are_not_shown() {
        assert_eq!(quoted("http://root:secret@h:1/p"), "`http://…@h:1/p`");
        assert_eq!(quoted("http://a@b@h:1"), "`http://…@h:1`");
        assert_eq!(quoted("n1=http://a:secret@h:1"), "`n1=http://…@h:1`");
        assert_eq!(quoted("a\u{1b}[31m\nb"), "`a\\u{1b}[31m\\nb`");
        assert_eq!(quoted(&"x".repeat(200)).chars().count(), 163);
    }

    #[test]
    fn spans_read_as_they_are_written() {
        let shown = [120_000, 90_000, 10_000, 250].map(|millis| human(Duration::from_millis(millis)));
        assert_eq!(shown, ["2m", "1m30s", "10s", "250ms"]);
    }
}
