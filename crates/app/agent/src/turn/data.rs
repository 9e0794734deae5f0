//! The data dir before a start: whether it is there, whose it is, and whether it is whole.
//!
//! **Invariant:** nothing here changes a byte; what cannot be read is unknown, never absent and never damaged. When a
//! function returns, no lock on the data is held any more.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use quorate_etcd::datadir::{self, FileSource, Found};
use quorate_etcd::init::Target;
use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::dir::{DB, DataDir, InUse, Kind};
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_etcd_formats::verify::{self, Report, Settings};
use quorate_etcd_formats::wal::{self, ScanOptions, WalFile};
use quorate_faults::{Code, Fault, Finding, Severity};
use quorate_host::durable::PARTIAL_MARK;
use quorate_plan::start::{DataFacts, DataSeen, Mode, Verdict};

/// Bytes of a full check per second, from a disk and not from memory: what is promised must hold on a bad day.
const CHECK_RATE: u64 = 500 << 20;

/// What checking the data gave.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    /// The verdict.
    pub(super) verdict: Verdict,
    /// How far it came, where time ran out before all of it was looked at.
    pub(super) cut: Option<String>,
    /// How long it took.
    pub(super) took: Duration,
    /// The segment whose end is torn, and where the good part ends.
    pub(super) torn: Option<(PathBuf, u64)>,
    /// The last index in its WAL, where known.
    pub(super) last_index: Option<u64>,
}

/// Looks at the data dir. `checked`: what checking it gave, if it has been checked since etcd last ran on it.
pub(super) fn observe_data(target: &Target, checked: Option<&Checked>) -> (DataSeen, Option<Duration>) {
    let dir = target.data_dir();
    match is_empty(dir) {
        Ok(true) => return (DataSeen::Absent, None),
        Ok(false) => {}
        Err(error) => return (DataSeen::Unknown(format!("`{}`: {error}", dir.display())), None),
    }
    let open = match datadir::open(dir, target.wal_dir()) {
        Ok(Found::DataDir(open)) => open,
        Ok(Found::File(_)) => {
            return (DataSeen::Unknown(format!("`{}` is a file, not a directory", dir.display())), None);
        }
        Err(fault) => return (DataSeen::Unknown(in_words(&fault)), None),
    };
    let view = open.view();
    if let Some(why) = cannot_look(&view) {
        return (DataSeen::Unknown(why), None);
    }
    let verdict = checked.map_or(Verdict::Unchecked, |checked| checked.verdict.clone());
    let needed = Duration::from_millis(open.bytes().saturating_mul(1000) / CHECK_RATE);
    let last_index = checked.and_then(|checked| checked.last_index);
    (DataSeen::There(DataFacts { ids: ids(&view), last_index, verdict }), Some(needed))
}

/// Checks the data. A fault: it could not be checked.
pub(super) fn validate(target: &Target, mode: Mode) -> Result<Checked, Fault> {
    let started = Instant::now();
    let dir = target.data_dir();
    let Found::DataDir(open) = datadir::open(dir, target.wal_dir())? else {
        return Err(datadir::not_etcd(format!("cannot check `{}`", dir.display()), "it is a file"));
    };
    let report = match mode {
        Mode::Sanity => examine(&open.view(), verify::Mode::Sanity, None),
        Mode::Full => examine(&open.view(), verify::Mode::Full, None),
        Mode::Within(budget) => examine(&open.view(), verify::Mode::Full, Some(started + budget)),
    };
    let mut errors = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
    if let Some(finding) = errors.clone().find(|finding| matches!(finding.code, Code::Io | Code::DataInUse)) {
        return Err(Fault::new(finding.code, format!("cannot check `{}`: {}", dir.display(), words(finding)))
            .hint(finding.remedy.clone()));
    }
    let torn = report.findings.iter().find(|finding| finding.code == Code::WalTornTail);
    let verdict = match (errors.next(), torn) {
        (Some(error), _) => Verdict::Corrupt(words(error)),
        (None, Some(torn)) => Verdict::RepairableTail(words(torn)),
        (None, None) => Verdict::Valid,
    };
    let torn = torn.and_then(|torn| Some((place(target, &torn.place.file), torn.place.offset?)));
    let cut = report.unfinished.map(|unfinished| unfinished.to_string());
    Ok(Checked { verdict, cut, took: started.elapsed(), torn, last_index: last_index(&open.view()) })
}

/// The version that the members of the data's cluster agreed on, where the database tells.
pub(super) fn cluster_version(target: &Target) -> Option<String> {
    let source = FileSource::open(&target.data_dir().join(DB)).ok()?;
    let db = Db::open(&source).ok()?;
    let buckets = db.buckets().ok()?;
    Facts::read(&db, &buckets).ok()?.cluster_version
}

/// What the small buckets of the database say.
pub(super) fn facts(target: &Target) -> Result<Facts, Fault> {
    let path = target.data_dir().join(DB);
    let attempt = format!("cannot read `{}`", path.display());
    let source = FileSource::open(&path).map_err(|error| Fault::io(attempt.clone(), error))?;
    let fail = |error| datadir::not_a_database(attempt.clone(), error);
    let db = Db::open(&source).map_err(fail)?;
    let buckets = db.buckets().map_err(fail)?;
    Facts::read(&db, &buckets).map_err(fail)
}

/// A fault and what is underneath, in one line.
pub(crate) fn in_words(fault: &Fault) -> String {
    let mut text = fault.to_string();
    let mut next = std::error::Error::source(fault);
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}

fn words(finding: &Finding) -> String {
    format!("{} at {} [{}]", finding.what, finding.place, finding.code)
}

/// Whether there is nothing: no directory, or one that holds only what an unfinished run or a file system leaves.
fn is_empty(dir: &Path) -> io::Result<bool> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name();
        let unfinished = name.to_string_lossy().contains(PARTIAL_MARK);
        if name != "lost+found" && !unfinished {
            return Ok(false);
        }
    }
    Ok(true)
}

fn cannot_look(view: &DataDir<'_>) -> Option<String> {
    match &view.in_use {
        InUse::No => {}
        InUse::Yes { pid: Some(pid) } => return Some(format!("process {pid} works on it")),
        InUse::Yes { pid: None } => return Some("another process works on it".to_owned()),
        InUse::Unknown(why) => return Some(format!("whether etcd runs on it cannot be found out: {why}")),
    }
    view.entries.iter().find_map(|entry| match &entry.kind {
        Kind::Unreadable(why) => Some(format!("`{}`: {why}", entry.path)),
        Kind::Dir | Kind::File(_) => None,
    })
}

fn ids(view: &DataDir<'_>) -> Option<(ClusterId, MemberId)> {
    let files = view.wal_files();
    let metadata = wal::head(files.first()?.source).ok()?.metadata?;
    Some((ClusterId(metadata.cluster_id()), MemberId(metadata.node_id())))
}

/// The last index in the WAL: of its last entry, or the one before the first that the newest segment may hold.
fn last_index(view: &DataDir<'_>) -> Option<u64> {
    let named = view.wal_files();
    let files: Vec<WalFile<'_>> = named.iter().map(|file| WalFile { name: file.name, source: file.source }).collect();
    let newest = wal::scan_newest(&files, &ScanOptions::default()).ok()?;
    let before = newest.segments.last().map_or(0, |segment| segment.name.index.saturating_sub(1));
    Some(newest.last_index().max(before))
}

fn place(target: &Target, file: &str) -> PathBuf {
    // A WAL elsewhere is named by its whole path, which `join` takes as it is.
    target.data_dir().join(file)
}

fn examine(view: &DataDir<'_>, mode: verify::Mode, until: Option<Instant>) -> Report {
    let progress = AtomicU64::new(0);
    let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8));
    let settings = Settings { mode, workers, progress: &progress };
    match until {
        None => verify::data_dir(view, &settings),
        Some(until) => verify::data_dir_while(view, &settings, &|| Instant::now() < until),
    }
}
