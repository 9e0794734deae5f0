//! `quorate man`: a manual page for every command, made from what `--help` says.
//!
//! **Rule:** nothing stands in a page that does not stand in the help; hidden commands have none.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_mangen::Man;
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use crate::args::Cli;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate man --dir /usr/local/share/man/man1
  quorate man --dir ./man && man -l ./man/quorate-ps.1")]
pub(crate) struct Args {
    /// Where the pages go; made if missing
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Writes them.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let fail = |path: &Path, error| Fault::io(format!("cannot write `{}`", path.display()), error);
    std::fs::create_dir_all(&args.dir).map_err(|error| fail(&args.dir, error))?;
    let mut files = Vec::new();
    for (name, text) in pages() {
        let path = args.dir.join(format!("{name}.1"));
        // They can be made again at any time, so they need not outlive a power cut.
        let written = std::fs::File::create(&path).and_then(|mut file| std::io::Write::write_all(&mut file, &text));
        written.map_err(|error| fail(&path, error))?;
        files.push(path.display().to_string());
    }
    printer.report(&Written { files });
    Ok(Exit::Done)
}

/// Every page by its name.
fn pages() -> Vec<(String, Vec<u8>)> {
    let mut root = Cli::command();
    root.build();
    let mut pages = Vec::new();
    let mut left = vec![("quorate".to_owned(), root)];
    while let Some((name, command)) = left.pop() {
        let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
        left.extend(visible.map(|sub| (format!("{name}-{}", sub.get_name()), sub.clone())));
        pages.push((name.clone(), page(&name, command)));
    }
    pages.sort();
    pages
}

fn page(name: &str, command: clap::Command) -> Vec<u8> {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.get_subcommands().any(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    let man = Man::new(command.disable_help_subcommand(true)).title(name.to_uppercase()).section("1").manual("Quorate");
    let mut text = Vec::new();
    // Writing into memory does not fail.
    let _ = man.render_title(&mut text);
    let _ = man.render_name_section(&mut text);
    let _ = man.render_synopsis_section(&mut text);
    let _ = man.render_description_section(&mut text);
    let _ = man.render_options_section(&mut text);
    if has_commands {
        let _ = man.render_subcommands_section(&mut text);
    }
    text.extend(sections(&after).into_bytes());
    text
}

/// What follows the flags in the help: examples, exit codes, remarks.
fn sections(after: &str) -> String {
    let mut text = String::new();
    let mut notes = false;
    for paragraph in after.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let (head, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        match head {
            "Examples:" => text.push_str(&format!(".SH EXAMPLES\n.nf\n{}.fi\n", escaped(rest))),
            "Exit codes:" => text.push_str(&format!(".SH \"EXIT STATUS\"\n.nf\n{}.fi\n", escaped(rest))),
            _ if head.starts_with("Exit code") => {
                text.push_str(&format!(".SH \"EXIT STATUS\"\n{}", escaped(paragraph)));
            }
            _ => {
                let title = if std::mem::replace(&mut notes, true) { ".PP" } else { ".SH NOTES" };
                text.push_str(&format!("{title}\n{}", escaped(paragraph)));
            }
        }
    }
    text
}

/// Text in which nothing is taken for a request: each line on its own, backslashes and leading dots as they are.
fn escaped(text: &str) -> String {
    let line = |line: &str| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        match line.starts_with(['.', '\'']) {
            true => format!("\\&{line}\n"),
            false => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}

#[derive(Serialize)]
struct Written {
    files: Vec<String>,
}

impl Report for Written {
    fn render(&self, page: &mut Page) {
        page.line(format!("{} pages written", self.files.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_whole_page() {
        let pages = pages();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["quorate", "quorate-ps", "quorate-ctl", "quorate-data-init", "quorate-backup-follow"] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("__") || name.ends_with("-help")), "{names:?}");
        for (name, text) in &pages {
            let text = String::from_utf8_lossy(text);
            for section in [".TH", ".SH NAME", ".SH SYNOPSIS", ".SH EXAMPLES"] {
                assert!(text.lines().any(|line| line.starts_with(section)), "{name} lacks {section}:\n{text}");
            }
            assert!(text.contains(&name.replace('-', "\\-")), "{name} does not name itself");
        }
    }

    #[test]
    fn text_is_not_taken_for_requests() {
        assert_eq!(escaped(".SH x\na\\b --c\n"), "\\&.SH x\na\\eb \\-\\-c\n");
        assert_eq!(
            sections("Examples:\n  a\n\nOne.\n\nTwo.\n\nExit code 0: x."),
            ".SH EXAMPLES\n.nf\n  a\n.fi\n.SH NOTES\nOne.\n.PP\nTwo.\n.SH \"EXIT STATUS\"\nExit code 0: x.\n"
        );
    }
}
