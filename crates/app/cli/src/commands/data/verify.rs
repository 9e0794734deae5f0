//! `quorate data verify`: whether a data dir or snapshot file is whole.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use clap::ValueEnum;
use owo_colors::OwoColorize;
use quorate_etcd::datadir::{self, Found};
use quorate_etcd_formats::ReadAt;
use quorate_etcd_formats::dir::InUse;
use quorate_etcd_formats::verify::{self, Settings};
use quorate_faults::{Code, Exit, Fault, Severity};
use quorate_plan::change::upgrade::Release;
use serde::Serialize;

use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `data verify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate data verify /var/lib/etcd                  all that can be proven
  quorate data verify /var/lib/etcd --mode sanity    a quick look
  quorate data verify backup.db --output json
  quorate data verify /var/lib/etcd --for 3.7.1      can etcd 3.7.1 start on it?

Exit code 0: nothing found that matters. 1: findings that matter. Warnings alone do not fail it.")]
pub(crate) struct Args {
    /// A data dir or a snapshot file
    pub(crate) path: PathBuf,

    /// The dir of the WAL, if it is a separate one
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<PathBuf>,

    /// How deep to look
    #[arg(long, value_enum, default_value_t)]
    pub(crate) mode: Mode,

    /// Also check whether this release of etcd, such as 3.7.1, can start on it
    #[arg(long = "for", value_name = "VERSION")]
    pub(crate) release: Option<String>,
}

/// How deep to look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Cheap checks that take milliseconds
    Sanity,
    /// Everything that can be proven offline
    #[default]
    Full,
}

/// Checks it.
pub(crate) fn run(args: Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let release = match args.release.as_deref().map(|text| (text, Release::parse(text))) {
        None => None,
        Some((_, Some(release))) => Some((release.major, release.minor)),
        Some((text, None)) => {
            return Err(Fault::new(Code::Usage, format!("`{text}` is not a release")).hint("write one such as 3.7.1"));
        }
    };
    let found = datadir::open(&args.path, args.wal_dir.as_deref())?;
    let total = match &found {
        Found::DataDir(dir) => dir.bytes(),
        Found::File(file) => file.len(),
    };
    let done = AtomicU64::new(0);
    let mode = match args.mode {
        Mode::Sanity => verify::Mode::Sanity,
        Mode::Full => verify::Mode::Full,
    };
    let settings = Settings { mode, workers: super::workers(), progress: &done };
    let mut report = super::watched(printer, "verifying", total, &done, || match &found {
        Found::DataDir(dir) => verify::data_dir(&dir.view(), &settings),
        Found::File(file) => verify::snapshot(&file_name(&args.path), file, &settings),
    })?;
    if let (Found::DataDir(dir), Some(release)) = (&found, release)
        && dir.view().in_use == InUse::No
    {
        verify::check_release(&dir.view(), release, &mut report);
    }
    let valid = !report.has_errors();
    printer.report(&Outcome { path: args.path.display().to_string(), mode, valid, report });
    Ok(if valid { Exit::Done } else { Exit::CannotMeet })
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// What is printed.
#[derive(Serialize)]
struct Outcome {
    path: String,
    mode: verify::Mode,
    valid: bool,
    #[serde(flatten)]
    report: verify::Report,
}

impl Report for Outcome {
    fn render(&self, page: &mut Page) {
        for finding in &self.report.findings {
            page.finding(finding);
        }
        if self.report.findings_more > 0 {
            page.line(format!("… and {} more findings", self.report.findings_more));
            page.gap();
        }
        let count = |severity| self.report.findings.iter().filter(|finding| finding.severity == severity).count();
        let counts = [(count(Severity::Error), "error"), (count(Severity::Warning), "warning")];
        let counts: Vec<_> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}{}", if *count == 1 { "" } else { "s" }))
            .collect();
        let counts = if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) };
        let depth = match self.mode {
            verify::Mode::Sanity => "sane as far as a quick look goes",
            verify::Mode::Full => "valid",
        };
        let in_use = self.report.findings.iter().any(|finding| finding.code == Code::DataInUse);
        if in_use {
            page.line(format!("{} `{}` was not examined", "✗".red(), self.path));
        } else if self.valid {
            page.line(format!("{} `{}` is {depth}{counts}", "✓".green(), self.path));
        } else {
            page.line(format!("{} `{}` is not valid{counts}", "✗".red(), self.path));
        }
        if let (Some(items), Some(hash)) = (self.report.items, self.report.hash) {
            let entries =
                self.report.wal_entries.map_or_else(String::new, |entries| format!(", {entries} WAL entries"));
            page.line(format!("  {items} items{entries}, hash {hash:08x} ({hash})"));
        }
    }
}
