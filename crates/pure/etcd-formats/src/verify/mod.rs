//! Everything that can be proven about a data dir or a snapshot file without starting etcd on it.
//!
//! `sanity` looks at what every start depends on and takes milliseconds; `full` reads every page and record. Neither
//! changes a byte. What is found is a list of findings, each with a code, a place and a way out.
//!
//! **Invariant:** memory is bounded by constants, whatever the files say; no bytes make it panic.

mod agreement;
mod content;
mod database;
mod layout;
mod log;
mod members;
mod release;
mod remedy;

use std::sync::atomic::AtomicU64;

use quorate_faults::{Code, Finding, Place, Severity};
use serde::Serialize;

use remedy::Subject;

pub use release::{V2Entries, WITHOUT_V2, check_release, v2_entries};

pub use crate::bolt::check::GoOn;
use crate::dir::{DataDir, InUse};
use crate::snapshot_file::Body;
use crate::{ReadAt, dir};

/// How much is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// What every start depends on.
    Sanity,
    /// Every page and every record.
    Full,
}

/// How to go about it.
pub struct Settings<'a> {
    /// How much is looked at.
    pub mode: Mode,
    /// Threads to use.
    pub workers: usize,
    /// Counts bytes examined, for whoever shows progress.
    pub progress: &'a AtomicU64,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Findings, the gravest first.
    pub findings: Vec<Finding>,
    /// How many more findings there were.
    pub findings_more: u64,
    /// Items in all buckets (full only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<u64>,
    /// The hash that `etcdutl snapshot status` prints (full only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<u32>,
    /// Entries in the WAL that were checked (full only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wal_entries: Option<u64>,
    /// What a full check that was told to end early has left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<Unfinished>,
    #[serde(skip)]
    db_file: String,
    #[serde(skip)]
    subject: Subject,
}

/// How far a full check came that was told to end early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// Bytes of the database whose pages were checked.
    pub db_bytes_checked: u64,
    /// Bytes of the database at most: unused pages are among them, and nothing in those needs a check.
    pub db_bytes: u64,
    /// Whether the whole WAL was read, and not its newest segment alone.
    pub wal_whole: bool,
}

impl std::fmt::Display for Unfinished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = u128::from(self.db_bytes_checked).saturating_mul(100) / u128::from(self.db_bytes.max(1));
        let wal = if self.wal_whole { "the whole WAL" } else { "the newest segment of the WAL" };
        write!(f, "checked {percent} % of the database and {wal}")
    }
}

/// Findings kept in a report; more are counted.
const FINDINGS_MAX: usize = 1000;

impl Report {
    fn new(subject: Subject, db_file: &str) -> Report {
        Report { subject, db_file: db_file.to_owned(), ..Report::default() }
    }

    fn add(&mut self, code: Code, severity: Severity, place: Place, what: impl Into<String>) {
        if self.findings.len() < FINDINGS_MAX {
            let remedy = remedy::of(code, severity, self.subject).to_owned();
            self.findings.push(Finding { code, severity, place, what: what.into(), remedy });
        } else {
            self.findings_more += 1;
        }
    }

    fn db_place(&self) -> Place {
        Place::file(self.db_file.clone())
    }

    /// Whether anything found matters.
    pub fn has_errors(&self) -> bool {
        self.findings_more > 0 || self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    fn absorb(&mut self, later: Report) {
        let room = FINDINGS_MAX.saturating_sub(self.findings.len());
        self.findings_more += later.findings_more + later.findings.len().saturating_sub(room) as u64;
        self.findings.extend(later.findings.into_iter().take(room));
        self.wal_entries = self.wal_entries.or(later.wal_entries);
    }

    fn sorted(mut self) -> Report {
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self
    }
}

/// Examines a data dir.
pub fn data_dir(dir: &DataDir<'_>, settings: &Settings<'_>) -> Report {
    examine(dir, settings, None)
}

/// Examines a data dir for as long as `go_on` says so: what every start depends on in any case, then the whole WAL (asked
/// before each segment; its newest one is read to its end in any case), then the database (asked before each page). What
/// was left out stands in [`Report::unfinished`]; what was found in the rest counts as ever.
pub fn data_dir_while(dir: &DataDir<'_>, settings: &Settings<'_>, go_on: &GoOn<'_>) -> Report {
    examine(dir, settings, Some(go_on))
}

/// Examines a data dir that etcd is about to start on. As [`data_dir`] (or, with `go_on`, [`data_dir_while`]), but the
/// newest segment of the WAL is read to its end in every mode: etcd reads it, too, and where it finds a hole, it cuts off
/// all that follows.
pub fn before_start(dir: &DataDir<'_>, settings: &Settings<'_>, go_on: Option<&GoOn<'_>>) -> Report {
    examine(dir, settings, Some(go_on.unwrap_or(&|| true)))
}

fn examine(dir: &DataDir<'_>, settings: &Settings<'_>, go_on: Option<&GoOn<'_>>) -> Report {
    let mut report = Report::new(Subject::Member, dir::DB);
    layout::check(dir, &mut report);
    if dir.in_use != InUse::No {
        // Whatever is read now may be half-written in a moment.
        return report.sorted();
    }
    let opened = dir.db().and_then(|db| database::open(db.source, &mut report));
    // The WAL is read before the bulk of the database, so that it has its share of the time, and reported after it.
    let mut of_log = Report::new(Subject::Member, dir::DB);
    let log = log::check(dir, opened.as_ref().and_then(|db| db.facts.as_ref()), settings, go_on, &mut of_log);
    let facts = opened.and_then(|opened| database::check(opened, settings, go_on, &mut report));
    report.absorb(of_log);
    if log.mode != settings.mode {
        let unfinished =
            report.unfinished.get_or_insert(Unfinished { db_bytes_checked: 0, db_bytes: 0, wal_whole: false });
        unfinished.wal_whole = false;
    }
    agreement::check(facts.as_ref(), &log, &mut report);
    report.sorted()
}

/// Examines a snapshot file, or a database that was copied out of a data dir.
pub fn snapshot(name: &str, source: &dyn ReadAt, settings: &Settings<'_>) -> Report {
    let mut report = Report::new(Subject::Snapshot, name);
    let body = Body::new(source);
    let mut hash = Ok(None);
    let facts = std::thread::scope(|scope| {
        // The hash keeps one core busy for as long as everything else keeps the other.
        let hashing = (settings.mode == Mode::Full).then(|| scope.spawn(|| body.check_hash(|_| ())));
        let opened = database::open(&body, &mut report);
        let facts = opened.and_then(|opened| database::check(opened, settings, None, &mut report));
        if let Some(hashing) = hashing {
            hash = hashing.join().unwrap_or(Ok(None));
        }
        facts
    });
    match hash {
        Ok(Some(hash)) if !hash.agrees() => {
            report.add(Code::SnapshotHash, Severity::Error, Place::file(name), "the file does not match its SHA-256");
        }
        Err(error) => report.add(Code::Io, Severity::Error, Place::file(name).at(error.offset), error.to_string()),
        Ok(None) if !crate::snapshot_file::has_hash(source.len()) => {
            let what = "the file carries no SHA-256, so bit rot in values cannot be noticed";
            report.add(Code::SnapshotNoHash, Severity::Warning, Place::file(name), what);
        }
        Ok(_) => {}
    }
    agreement::check_database_alone(facts.as_ref(), &mut report);
    report.sorted()
}
