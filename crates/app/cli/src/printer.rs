//! The one place that writes: results on stdout, everything else on stderr.
//!
//! **Rule:** with `--output json`, stdout carries exactly one document: the result, or the fault. A reader that goes away is
//! not an error: the command finishes its work in silence.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anstream::{AutoStream, ColorChoice};
use quorate_faults::{Code, Exit, Fault};

use crate::args::{Color, Global, Output};
use crate::errors;
use crate::progress::Progress;
use crate::render::{Page, Report};

/// Where all output goes through.
pub(crate) struct Printer {
    output: Output,
    quiet: bool,
    out: AutoStream<io::Stdout>,
    err: AutoStream<io::Stderr>,
    /// Columns of the terminal on stdout; `None` when it is not one, so that pipes get whole lines.
    columns: Option<u16>,
    /// The same of stderr.
    err_columns: Option<u16>,
    wrote_document: bool,
    failed: Option<io::Error>,
    /// The reader of stdout went away.
    gone: bool,
    /// The exit code of a command that was run for the user.
    passed_on: Option<u8>,
}

impl Printer {
    /// A printer in the form that the flags ask for.
    pub(crate) fn new(global: &Global) -> Printer {
        let choice = match global.color {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        };
        Printer {
            output: global.output,
            quiet: global.quiet,
            out: AutoStream::new(io::stdout(), choice),
            err: AutoStream::new(io::stderr(), choice),
            columns: columns(&io::stdout()),
            err_columns: columns(&io::stderr()),
            wrote_document: false,
            failed: None,
            gone: false,
            passed_on: None,
        }
    }

    /// Prints a command's result in the form that was asked for. Call it once.
    pub(crate) fn report(&mut self, report: &impl Report) {
        match self.output {
            Output::Table => {
                let mut page = Page::new(self.columns);
                report.render(&mut page);
                self.text(page.as_str());
            }
            Output::Json => match serde_json::to_string_pretty(report) {
                Ok(document) => self.document(&document),
                Err(error) => self.failed = Some(error.into()),
            },
        }
    }

    /// Writes text to stdout as it is.
    pub(crate) fn text(&mut self, text: &str) {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        self.note_failure(written);
    }

    /// Whether results still reach anyone; for commands that would go on for ever.
    pub(crate) fn is_heard(&self) -> bool {
        !self.gone && self.failed.is_none()
    }

    /// Whether results are to be JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.output == Output::Json
    }

    /// Writes text to stderr as it is. What stderr does not take is lost: there is no other place to say so.
    pub(crate) fn aside(&mut self, text: &str) {
        let _ = self.err.write_all(text.as_bytes()).and_then(|()| self.err.flush());
    }

    /// Says what is going on; silent with `--quiet`.
    pub(crate) fn note(&mut self, what: &str) {
        if !self.quiet {
            self.aside(&format!("{what}\n"));
        }
    }

    /// Warns; the command goes on.
    pub(crate) fn warning(&mut self, code: Code, what: &str) {
        self.aside(&errors::warning(code, what, self.err_columns));
    }

    /// Prints why a command ended, and gives the exit code.
    pub(crate) fn fault(&mut self, fault: &Fault) -> Exit {
        match self.output {
            Output::Json => match errors::json(fault) {
                Ok(document) if !self.wrote_document => self.document(&document),
                Ok(document) => self.aside(&format!("{document}\n")),
                Err(_) => self.aside(&errors::text(fault, self.err_columns)),
            },
            Output::Table => self.aside(&errors::text(fault, self.err_columns)),
        }
        fault.code().exit()
    }

    /// A progress display for work that may take over a second: a bar when `total` is known, else a spinner.
    /// It shows on a terminal only.
    pub(crate) fn progress(&self, what: &str, total: Option<u64>) -> Progress {
        let shown = !self.quiet && self.output == Output::Table && io::stderr().is_terminal();
        Progress::new(what, total, shown)
    }

    /// Has us end as a command ended that was run for the user; 128 and its number if by a signal, as shells say it.
    pub(crate) fn pass_on(&mut self, ended: ExitStatus) -> Exit {
        let code = ended.code().or_else(|| ended.signal().map(|signal| 128 + signal));
        self.passed_on = Some(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(Exit::Failed as u8));
        if ended.success() { Exit::Done } else { Exit::Failed }
    }

    /// What was passed on.
    pub(crate) fn passed_on(&self) -> Option<u8> {
        self.passed_on
    }

    /// Whether all results could be written. A closed pipe counts as written: its reader had enough.
    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        match self.failed.take() {
            None => Ok(()),
            Some(error) => {
                // The document did not arrive whole, so the complaint must not follow it on the same stream.
                self.wrote_document = true;
                Err(Fault::io("cannot write the result to stdout", error))
            }
        }
    }

    fn document(&mut self, document: &str) {
        self.wrote_document = true;
        self.text(&format!("{document}\n"));
    }

    fn note_failure(&mut self, written: io::Result<()>) {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.gone = true,
            Err(error) => {
                self.failed.get_or_insert(error);
            }
            Ok(()) => {}
        }
    }
}

fn columns(stream: &(impl IsTerminal + AsFd)) -> Option<u16> {
    if !stream.is_terminal() {
        return None;
    }
    // A terminal that does not know its size reports 0.
    rustix::termios::tcgetwinsize(stream).ok().map(|size| size.ws_col).filter(|columns| *columns > 0)
}
