//! `quorate audit`: who ran which privileged command, which remote orders came, and whether the log was changed.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_faults::{Code, Exit, Fault};
use quorate_host::audit::{self, Entry, Record, Verdict, Who};
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
  quorate audit verify --expect-head 5f0c…

`trace`, `exec`, `shell`, `stop` and, where it changes something or reads more than a key,
`ctl` leave a line each in `audit.log` of the member's state dir before they act. So do
orders from other machines, with the certificate and address that they came from. Values
and passwords are left out.")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,

    #[command(flatten)]
    place: Place,

    /// Only the newest so many
    #[arg(long, value_name = "COUNT")]
    last: Option<usize>,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Check the hash chain of the log, and print its head
    Verify(VerifyArgs),
}

/// Flags of `audit verify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate audit verify
  quorate audit verify --name n1 --expect-head 5f0c…
  quorate audit verify /archive/audit.log.3

Each record contains the hash of the record before it, so that a changed, removed or
inserted record is found. The hash of the last record is the head: note it elsewhere,
since only a noted head shows that the end of the log was cut off or that all of it was
replaced. Lines from before there was a chain are counted as unchained.")]
struct VerifyArgs {
    /// One file of a log [default: the logs of every member on this machine]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    #[command(flatten)]
    place: Place,

    /// A head that was noted earlier: report if it is not in the chain
    #[arg(long, value_name = "HASH")]
    expect_head: Option<String>,
}

/// Shows the entries, or checks their chain.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    match &args.what {
        None => show(args, printer),
        Some(What::Verify(args)) => verify(args, printer),
    }
}

fn verify(args: &VerifyArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let expected = args.expect_head.as_deref();
    let fail = |place: &Path, error| Fault::io(format!("cannot read the audit log in `{}`", place.display()), error);
    let mut logs = Vec::new();
    match &args.file {
        Some(file) => {
            let verdict = audit::verify_file(file, expected).map_err(|error| fail(file, error))?;
            logs.push(Verified { log: file.display().to_string(), verdict });
        }
        None => {
            for (member, dir) in args.place.members()? {
                let verdict = audit::verify(&dir, expected).map_err(|error| fail(&dir, error))?;
                logs.push(Verified { log: member, verdict });
            }
        }
    }
    let broken: u64 = logs.iter().map(|log| log.verdict.breaks_total).sum();
    let headless = expected.is_some() && !logs.iter().any(|log| log.verdict.since_expected.is_some());
    printer.report(&VerifiedLogs { logs });
    let hint = "compare with the copies in the journal: `journalctl -t quorate`";
    match (broken, headless) {
        (0, false) => Ok(Exit::Done),
        (0, true) => Err(Fault::new(
            Code::AuditBroken,
            "the expected head is not in the audit log: its end was cut off, or all of it was replaced",
        )
        .hint(hint)),
        (_, _) => Err(Fault::new(
            Code::AuditBroken,
            format!("the hash chain of the audit log does not hold at {broken} places"),
        )
        .hint(hint)),
    }
}

fn show(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let mut log = Log { entries: Vec::new(), unreadable_lines: 0 };
    for (_, dir) in args.place.members()? {
        let fail = |error| Fault::io(format!("cannot read the audit log in `{}`", dir.display()), error);
        let (entries, unreadable) = audit::read(&dir).map_err(fail)?;
        log.entries.extend(entries);
        log.unreadable_lines += unreadable;
    }
    log.entries.sort_by(|a, b| a.entry.at.cmp(&b.entry.at));
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
            remote: None,
            result_of: None,
        },
    )
    .map(drop)
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
    entries: Vec<Record>,
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

#[derive(Serialize)]
struct VerifiedLogs {
    logs: Vec<Verified>,
}

#[derive(Serialize)]
struct Verified {
    /// The member, or the file.
    log: String,
    #[serde(flatten)]
    verdict: Verdict,
}

impl Report for VerifiedLogs {
    fn render(&self, page: &mut Page) {
        if self.logs.is_empty() {
            page.line("no audit log is here");
        }
        for Verified { log, verdict } in &self.logs {
            let held = if verdict.breaks_total == 0 { "the chain holds" } else { "the chain does not hold" };
            page.line(format!("{log}: {held}: {} records{}", verdict.records, numbers(verdict)));
            for broken in &verdict.breaks {
                page.line(format!("  {}:{}: {}", broken.file, broken.line, broken.what));
            }
            if verdict.unchained > 0 {
                page.line(format!("  {} unchained lines of an earlier release at the beginning", verdict.unchained));
            }
            if verdict.incomplete > 0 {
                page.line(format!("  {} lines were cut off while they were written", verdict.incomplete));
            }
            if let Some(since) = verdict.since_expected {
                page.line(format!("  the expected head is in the chain, {since} records before its end"));
            }
            if let Some(head) = &verdict.head {
                page.line(format!("  head {head}"));
            }
        }
    }
}

fn numbers(verdict: &Verdict) -> String {
    match (verdict.first, verdict.last) {
        (Some(1), Some(last)) => format!(" (1 to {last})"),
        (Some(first), Some(last)) => format!(" ({first} to {last}; earlier ones are not here)"),
        _ => String::new(),
    }
}

fn who(entry: &Entry) -> String {
    if let Some(remote) = &entry.remote {
        let name = remote.name.as_deref().unwrap_or("no certificate");
        let serial = remote.serial.as_ref().map(|serial| format!(" (serial {serial})")).unwrap_or_default();
        return format!("{name}{serial} at {}", remote.address);
    }
    let Who { uid, login_uid, sudo_user, .. } = &entry.who;
    match (sudo_user, login_uid) {
        (Some(user), _) => format!("{user} as uid {uid}"),
        (None, Some(login)) if login != uid => format!("uid {login} as uid {uid}"),
        (None, _) => format!("uid {uid}"),
    }
}

fn cells(Record { entry, .. }: &Record) -> [String; 6] {
    let who = who(entry);
    let target = match (&entry.process, entry.target_pid, entry.result_of) {
        (Some(process), Some(pid), _) => format!("{process} ({pid})"),
        (_, _, Some(seq)) => format!("record {seq}"),
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
