//! `quorate audit`: who ran which privileged command, and the lines that such commands leave.

use std::path::Path;

use jiff::Timestamp;
use quorate_faults::{Exit, Fault};
use quorate_host::audit::{self, Entry, Who};
use serde::Serialize;

use super::ps::scan::{Place, Process};
use crate::printer::Printer;
use crate::render::{Page, Report, for_shell};

/// A line holds so many words at most, each so long at most.
const WORDS_MAX: usize = 64;
const WORD_CHARS_MAX: usize = 256;

/// What stands for a word that may be secret.
const HIDDEN: &str = "***";

/// Flags of `audit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate audit
  quorate audit --name n1 --last 20
  quorate audit --output json | jq '.entries[] | select(.command == \"shell\")'

`trace`, `exec`, `shell`, `stop` and, where it changes something or reads more than a key,
`ctl` leave a line each in `audit.log` of the member's state dir before they act. Values
and passwords are left out.")]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,

    /// Only the newest so many
    #[arg(long, value_name = "COUNT")]
    last: Option<usize>,
}

/// Shows them.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let mut log = Log { entries: Vec::new(), unreadable_lines: 0 };
    for (_, dir) in args.place.members()? {
        let fail = |error| Fault::io(format!("cannot read the audit log in `{}`", dir.display()), error);
        let (entries, unreadable) = audit::read(&dir).map_err(fail)?;
        log.entries.extend(entries);
        log.unreadable_lines += unreadable;
    }
    log.entries.sort_by(|a, b| a.at.cmp(&b.at));
    if let Some(last) = args.last {
        log.entries.drain(..log.entries.len().saturating_sub(last));
    }
    if log.entries.is_empty() {
        printer.note("no privileged command has been recorded here");
    }
    printer.report(&log);
    Ok(Exit::Done)
}

/// Records a command on a process; if that fails, the command must not go on.
pub(super) fn note(command: &str, process: &Process, pid: u32, words: &[String]) -> Result<(), Fault> {
    let target = Some((process.name.as_str(), pid));
    note_in(&process.member_dir, command, &process.member, target, &hide_secrets(words))
}

/// The same for words that are fit to be shown.
pub(super) fn note_in(
    dir: &Path,
    command: &str,
    member: &str,
    target: Option<(&str, u32)>,
    words: &[String],
) -> Result<(), Fault> {
    let cut = |word: &String| word.chars().take(WORD_CHARS_MAX).collect();
    audit::record(
        dir,
        &Entry {
            at: Timestamp::now().to_string(),
            command: command.to_owned(),
            words: words.iter().take(WORDS_MAX).map(cut).collect(),
            member: member.to_owned(),
            process: target.map(|(name, _)| name.to_owned()),
            target_pid: target.map(|(_, pid)| pid),
            who: Who::us(std::env::var("SUDO_USER").ok()),
        },
    )
}

/// Words without what follows a name such as `--password`.
pub(super) fn hide_secrets(words: &[String]) -> Vec<String> {
    const SECRET: [&str; 5] = ["pass", "secret", "token", "credential", "apikey"];
    let is_secret = |name: &str| SECRET.iter().any(|part| name.to_ascii_lowercase().contains(part));
    let mut hide_next = false;
    words
        .iter()
        .map(|word| {
            if std::mem::take(&mut hide_next) {
                return HIDDEN.to_owned();
            }
            match word.split_once('=') {
                Some((name, _)) if is_secret(name) => format!("{name}={HIDDEN}"),
                None if word.starts_with('-') && is_secret(word) => {
                    hide_next = true;
                    word.clone()
                }
                _ => word.clone(),
            }
        })
        .collect()
}

#[derive(Serialize)]
struct Log {
    entries: Vec<Entry>,
    /// Lines that are no entries: cut off by a power failure, or written by others.
    unreadable_lines: usize,
}

impl Report for Log {
    fn render(&self, page: &mut Page) {
        if !self.entries.is_empty() {
            page.table(["AT", "WHO", "MEMBER", "COMMAND", "TARGET", "WORDS"], self.entries.iter().map(cells));
        }
        if self.unreadable_lines > 0 {
            page.line(format!("{} lines cannot be read", self.unreadable_lines));
        }
    }
}

fn cells(entry: &Entry) -> [String; 6] {
    let Who { uid, login_uid, sudo_user, .. } = &entry.who;
    let who = match (sudo_user, login_uid) {
        (Some(user), _) => format!("{user} as uid {uid}"),
        (None, Some(login)) if login != uid => format!("uid {login} as uid {uid}"),
        (None, _) => format!("uid {uid}"),
    };
    let target = match (&entry.process, entry.target_pid) {
        (Some(process), Some(pid)) => format!("{process} ({pid})"),
        _ => "-".to_owned(),
    };
    let plain = |text: &str| text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect::<String>();
    let words: Vec<String> = entry.words.iter().map(|word| for_shell(&plain(word))).collect();
    [plain(&entry.at), plain(&who), plain(&entry.member), plain(&entry.command), plain(&target), words.join(" ")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_secret_is_left_out() {
        let words: Vec<String> =
            ["curl", "--password", "pw", "--token=abc", "PGPASSWORD=x", "-v", "a=b"].map(str::to_owned).to_vec();
        assert_eq!(hide_secrets(&words), ["curl", "--password", "***", "--token=***", "PGPASSWORD=***", "-v", "a=b"]);
    }
}
