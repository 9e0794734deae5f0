//! The last words of a member's log, shortened for people.

use std::path::Path;

use quorate_host::process::log_tail;
use serde_json::Value;

/// How far back to look, and how much to show.
const LOOK_BACK_LINES: usize = 300;
const SHOWN_LINES: usize = 5;
const LINE_CHARS: usize = 150;

/// The last warnings and errors; without any, the last lines of whatever kind.
pub(super) fn last_words(path: &Path) -> Vec<String> {
    let Ok(lines) = log_tail(path, LOOK_BACK_LINES) else { return Vec::new() };
    let grave: Vec<&String> = lines.iter().filter(|line| is_grave(line)).collect();
    let chosen = if grave.is_empty() { lines.iter().collect() } else { grave };
    let mut words: Vec<String> = chosen.iter().map(|line| shortened(line)).collect();
    // What etcd repeats while it waits is said once.
    words.dedup();
    words.split_off(words.len().saturating_sub(SHOWN_LINES))
}

fn level(line: &str) -> Option<(String, Value)> {
    let value: Value = serde_json::from_str(line).ok()?;
    let level = value.get("level")?.as_str()?.to_owned();
    Some((level, value))
}

fn is_grave(line: &str) -> bool {
    match level(line) {
        Some((level, _)) => !matches!(level.as_str(), "info" | "debug"),
        // Before 3.5 a line is `2026-11-15 21:58:16.000000 C | text`; anything else is a crash.
        None => !line.contains(" I | ") && !line.contains(" D | ") && !line.trim().is_empty(),
    }
}

fn shortened(line: &str) -> String {
    let text = match level(line) {
        Some((level, value)) => {
            let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let error = field("error");
            let tail = if error.is_empty() { String::new() } else { format!(": {error}") };
            format!("{level}: {}{tail}", field("msg"))
        }
        None => line.trim_end().to_owned(),
    };
    match text.char_indices().nth(LINE_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grave_lines_are_preferred_and_shortened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = r#"{"level":"info","ts":"t","msg":"fine"}
{"level":"fatal","ts":"t","msg":"discovery failed","error":"no space left"}
{"level":"fatal","ts":"u","msg":"discovery failed","error":"no space left"}
{"level":"info","ts":"t","msg":"closing"}
"#;
        std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), log.as_bytes()).unwrap();
        assert_eq!(last_words(&path), ["fatal: discovery failed: no space left"]);
    }

    #[test]
    fn lines_of_old_releases_and_of_crashes_are_shown_as_they_are() {
        assert!(!is_grave("2026-11-15 21:58:16.000000 I | etcdmain: etcd Version: 3.4.23"));
        assert!(is_grave("2026-11-15 21:58:16.000000 C | etcdmain: listen tcp: address in use"));
        assert_eq!(shortened("panic: oh no"), "panic: oh no");
        assert_eq!(shortened(&"é".repeat(200)).chars().count(), LINE_CHARS + 1);
    }
}
