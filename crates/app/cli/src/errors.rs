//! Renders a fault for people and for machines.
//!
//! **Rule:** each cause is printed once, below the attempt, and the last line names the page.

use std::error::Error;
use std::fmt::Write;

use owo_colors::OwoColorize;
use quorate_faults::{Code, Fault};
use serde::Serialize;

use crate::wrap::wrap;

/// What went wrong underneath, outermost first.
fn causes(fault: &Fault) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    let mut next = fault.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        // Wrappers often repeat what they wrap; a reader needs it once.
        if causes.last().is_none_or(|last| !last.contains(&text)) {
            causes.push(text);
        }
        next = cause.source();
    }
    causes
}

/// The text for people, coloured; the printer strips the colour where it does not belong. On a terminal, whose width is
/// `columns`, long lines are broken.
pub(crate) fn text(fault: &Fault, columns: Option<u16>) -> String {
    let code = fault.code();
    let mut text = String::new();
    let message = format!("{fault} [{code}]");
    labelled(&mut text, &"error:".red().bold().to_string(), "error:".len(), &message, columns);
    let mut below = |label: &str, what: &str| {
        labelled(&mut text, &format!("  {}", label.cyan()), label.len() + 2, what, columns);
    };
    for cause in causes(fault) {
        below("caused by:", &cause);
    }
    if let Some(hint) = fault.hint_text() {
        below("hint:", hint);
    }
    below("more:", &format!("quorate explain {code}"));
    text
}

/// A warning.
pub(crate) fn warning(code: Code, what: &str, columns: Option<u16>) -> String {
    let mut text = String::new();
    let message = format!("{what} [{code}]");
    labelled(&mut text, &"warning:".yellow().bold().to_string(), "warning:".len(), &message, columns);
    text
}

#[derive(Serialize)]
struct Document<'a> {
    error: Body<'a>,
}

#[derive(Serialize)]
struct Body<'a> {
    code: Code,
    message: String,
    causes: Vec<String>,
    hint: Option<&'a str>,
    exit: u8,
}

/// The JSON form, as one document.
pub(crate) fn json(fault: &Fault) -> serde_json::Result<String> {
    let error = Body {
        code: fault.code(),
        message: fault.to_string(),
        causes: causes(fault),
        hint: fault.hint_text(),
        exit: fault.code().exit() as u8,
    };
    serde_json::to_string_pretty(&Document { error })
}

/// A label, `width` columns wide, and its text; whatever does not fit on the first line stands indented below.
fn labelled(text: &mut String, label: &str, width: usize, what: &str, columns: Option<u16>) {
    const INDENT: usize = 4;
    let mut start = width + 1;
    for (at, paragraph) in what.lines().enumerate() {
        let lines = match columns {
            Some(columns) => wrap(paragraph, start, INDENT, columns.into()),
            None => vec![paragraph.to_owned()],
        };
        for (below, line) in lines.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = match (at, below) {
                (0, 0) => writeln!(text, "{label} {line}"),
                _ => writeln!(text, "{:INDENT$}{line}", ""),
            };
        }
        start = INDENT;
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn sample() -> Fault {
        Fault::new(Code::Io, "cannot read snapshot `/backup/0000.db`")
            .hint("run as user `etcd`, or `chown etcd /backup`")
            .caused_by(io::Error::from_raw_os_error(13))
    }

    #[test]
    fn a_fault_names_attempt_cause_way_out_and_page() {
        let plain = anstream::adapter::strip_str(&text(&sample(), None)).to_string();
        insta::assert_snapshot!(plain, @r"
        error: cannot read snapshot `/backup/0000.db` [Q0002]
          caused by: Permission denied (os error 13)
          hint: run as user `etcd`, or `chown etcd /backup`
          more: quorate explain Q0002
        ");
    }

    #[test]
    fn a_narrow_terminal_breaks_lines_but_no_commands() {
        let plain = anstream::adapter::strip_str(&text(&sample(), Some(40))).to_string();
        insta::assert_snapshot!(plain, @r"
        error: cannot read snapshot
            `/backup/0000.db` [Q0002]
          caused by: Permission denied (os error
            13)
          hint: run as user `etcd`, or
            `chown etcd /backup`
          more: quorate explain Q0002
        ");
    }

    #[test]
    fn machines_get_the_same_in_one_object() {
        insta::assert_snapshot!(json(&sample()).unwrap(), @r#"
        {
          "error": {
            "code": "Q0002",
            "message": "cannot read snapshot `/backup/0000.db`",
            "causes": [
              "Permission denied (os error 13)"
            ],
            "hint": "run as user `etcd`, or `chown etcd /backup`",
            "exit": 2
          }
        }
        "#);
    }

    #[test]
    fn a_cause_that_repeats_what_it_wraps_is_said_once() {
        let fault = Fault::new(Code::Io, "cannot write").caused_by(io::Error::other("disk on fire"));
        assert_eq!(causes(&fault), ["disk on fire"]);
    }
}
