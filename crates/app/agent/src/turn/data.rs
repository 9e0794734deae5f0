//! The data dir before a start: whether it is there, whose it is, and whether it is whole.
//!
//! **Invariant:** nothing here changes a byte; what cannot be read is unknown, never absent and never damaged. When a
//! function returns, no lock on the data is held any more.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use quorate_etcd::aside::is_replaced_member;
use quorate_etcd::datadir::{self, FileSource, Found};
use quorate_etcd::init::Target;
use quorate_etcd::place::is_marker;
use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::dir::{DB, DataDir, InUse, Kind};
use quorate_etcd_formats::inspect;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_etcd_formats::verify::{self, Report, Settings, V2Entries};
use quorate_etcd_formats::wal::{self, ScanOptions, WalFile};
use quorate_faults::{Code, Fault, Finding, Severity};
use quorate_host::durable::PARTIAL_MARK;
use quorate_host::locks::{self, LockState};
use quorate_plan::start::{DataFacts, DataSeen, Mode, Verdict};

use super::remembered::Stamp;

/// Which data it is: what changes when the database or the end of the log is written or replaced. The rest of the log is
/// written once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Which {
    db: Option<Stamp>,
    log: Option<Stamp>,
}

impl Which {
    /// What is there now.
    pub(super) fn of(target: &Target) -> Which {
        let wal = target.wal_dir().map_or_else(|| target.data_dir().join("member/wal"), Path::to_owned);
        let names = std::fs::read_dir(wal).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
        let names: Vec<PathBuf> = names.unwrap_or_default();
        let last = names.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "wal")).max();
        Which { db: Stamp::of(&target.data_dir().join(DB)), log: last.and_then(|path| Stamp::of(&path)) }
    }
}

/// What checking the data gave.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    /// The data that was checked; it holds for no other.
    pub(super) which: Which,
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
    /// The term of the entry at that index, where known.
    pub(super) last_term: Option<u64>,
    /// The newest revision that can still be read, where it is damaged.
    pub(super) readable: Option<u64>,
    /// The highest revision that it can lead to, where it is whole.
    pub(super) reach: Option<u64>,
}

/// Looks at the data dir. `checked`: what checking it gave, if it has been checked since etcd last ran on it. What has been
/// written or replaced since then is unchecked.
pub(super) fn observe_data(target: &Target, checked: Option<&Checked>) -> DataSeen {
    let dir = target.data_dir();
    let half = match parts(target) {
        Ok(Parts::None) => return DataSeen::Absent,
        Ok(Parts::WalOnly { segments }) => return wal_alone(target, &segments),
        Ok(Parts::DataOnly(wal)) => Some(half(dir, &wal)),
        Ok(Parts::Whole) => None,
        Err(why) => return DataSeen::Unknown(why),
    };
    let open = match datadir::open(dir, target.wal_dir()) {
        Ok(Found::DataDir(open)) => open,
        Ok(Found::File(_)) => {
            return DataSeen::Unknown(format!("`{}` is a file, not a directory", dir.display()));
        }
        Err(fault) => return DataSeen::Unknown(in_words(&fault)),
    };
    let view = open.view();
    if let Some(why) = cannot_look(&view) {
        return DataSeen::Unknown(why);
    }
    let checked = checked.filter(|checked| checked.which == Which::of(target));
    let verdict = checked.map_or(Verdict::Unchecked, |checked| checked.verdict.clone());
    let last_index = checked.and_then(|checked| checked.last_index);
    let last_term = checked.and_then(|checked| checked.last_term);
    let readable = checked.and_then(|checked| checked.readable);
    let reach = checked.and_then(|checked| checked.reach);
    let verdict = half.map_or(verdict, Verdict::Half);
    DataSeen::There(DataFacts { ids: ids(&view), last_index, last_term, verdict, readable, reach })
}

/// Which of the two directories of a member hold something.
enum Parts {
    None,
    /// All that there is to see, also where the WAL has no directory of its own.
    Whole,
    /// Nothing of the WAL is in this directory.
    DataOnly(PathBuf),
    WalOnly {
        segments: Vec<PathBuf>,
    },
}

/// What there is of a member, without a look into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Presence {
    Nothing,
    /// Its data dir, with or without its WAL.
    Data,
    /// Its separate WAL alone, and where both should be.
    WalAlone(String),
}

/// Looks which of the directories hold something. An error: that cannot be told, or a process works on a WAL that is alone.
pub(crate) fn observe_presence(target: &Target) -> Result<Presence, String> {
    match parts(target)? {
        Parts::None => Ok(Presence::Nothing),
        Parts::Whole | Parts::DataOnly(_) => Ok(Presence::Data),
        Parts::WalOnly { segments } => match held_segment(&segments) {
            Some(why) => Err(why),
            None => Ok(Presence::WalAlone(half(target.wal_dir().unwrap_or(target.data_dir()), target.data_dir()))),
        },
    }
}

fn parts(target: &Target) -> Result<Parts, String> {
    let shown = |dir: &Path, error: io::Error| format!("`{}`: {error}", dir.display());
    let data_empty = is_empty_data(target).map_err(|error| shown(target.data_dir(), error))?;
    let Some(wal) = target.wal_dir() else { return Ok(if data_empty { Parts::None } else { Parts::Whole }) };
    let names = names(wal).map_err(|error| shown(wal, error))?;
    let mut segments: Vec<PathBuf> =
        names.iter().filter(|name| name.as_encoded_bytes().ends_with(b".wal")).map(|name| wal.join(name)).collect();
    segments.sort();
    match (data_empty, segments.is_empty()) {
        (true, true) if names.is_empty() => Ok(Parts::None),
        // etcd empties a directory before it makes its WAL there.
        (true, true) => Err(format!("`{}` holds files that are no WAL", wal.display())),
        (true, false) => Ok(Parts::WalOnly { segments }),
        (false, true) => Ok(Parts::DataOnly(wal.to_owned())),
        (false, false) => Ok(Parts::Whole),
    }
}

fn half(there: &Path, empty: &Path) -> String {
    format!("`{}` holds nothing, and `{}` does", empty.display(), there.display())
}

/// A WAL without its data dir: whose it is can be read, and whether someone works on it.
fn wal_alone(target: &Target, segments: &[PathBuf]) -> DataSeen {
    if let Some(why) = held_segment(segments) {
        return DataSeen::Unknown(why);
    }
    let wal = target.wal_dir().unwrap_or(target.data_dir());
    let first = segments.first().and_then(|first| FileSource::open(first).ok());
    let metadata = first.and_then(|first| wal::head(&first).ok()?.metadata);
    let ids = metadata.map(|metadata| (ClusterId(metadata.cluster_id()), MemberId(metadata.node_id())));
    let verdict = Verdict::Half(half(wal, target.data_dir()));
    DataSeen::There(DataFacts { ids, last_index: None, last_term: None, verdict, readable: None, reach: None })
}

/// Why these segments cannot be called idle.
fn held_segment(segments: &[PathBuf]) -> Option<String> {
    segments.iter().find_map(|segment| match File::open(segment).map(|file| locks::probe_ofd(&file)) {
        Ok(LockState::Free) => None,
        Ok(LockState::Held { pid: Some(pid) }) => Some(format!("process {pid} works on it")),
        Ok(LockState::Held { pid: None }) => Some("another process works on it".to_owned()),
        Ok(LockState::Unknown(error)) | Err(error) => Some(format!("`{}`: {error}", segment.display())),
    })
}

/// Checks the data. A fault: it could not be checked.
pub(super) fn validate(target: &Target, mode: Mode) -> Result<Checked, Fault> {
    let (started, which) = (Instant::now(), Which::of(target));
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
    let error = errors.next();
    let readable = error.and_then(|_| readable(&open.view()));
    let verdict = match (error, torn) {
        (Some(error), _) => Verdict::Corrupt(words(error) + &how_far(readable)),
        (None, Some(torn)) => Verdict::RepairableTail(words(torn)),
        (None, None) => Verdict::Valid,
    };
    let torn = torn.and_then(|torn| Some((place(target, &torn.place.file), torn.place.offset?)));
    let cut = report.unfinished.map(|unfinished| unfinished.to_string());
    let (last_index, last_term) = last_entry(&open.view()).unzip();
    let last_term = last_term.flatten();
    let reach = match verdict {
        Verdict::Valid | Verdict::RepairableTail(_) => last_index.and_then(|last| reach(&open.view(), last)),
        Verdict::Unchecked | Verdict::Corrupt(_) | Verdict::Half(_) => None,
    };
    Ok(Checked { which, verdict, cut, took: started.elapsed(), torn, last_index, last_term, readable, reach })
}

/// Whether the data may be renamed or cut: nobody works on it. Asked right before, whatever was found minutes ago.
pub(super) fn must_be_idle(target: &Target) -> Result<(), Fault> {
    let dir = target.data_dir();
    if is_empty_data(target).unwrap_or(false) {
        let Ok(Parts::WalOnly { segments }) = parts(target) else { return Ok(()) };
        let held = held_segment(&segments).map(|why| {
            let attempt = format!("`{}` is left as it is: {why}", target.wal_dir().unwrap_or(dir).display());
            Fault::new(Code::DataInUse, attempt).hint("nothing was changed; it is looked at again by itself")
        });
        return held.map_or(Ok(()), Err);
    }
    let attempt = || format!("`{}` is left as it is", dir.display());
    let Ok(Found::DataDir(open)) = datadir::open(dir, target.wal_dir()) else {
        // What is no data dir has no locks; that is found by whoever looks at it next.
        return Ok(());
    };
    match &open.view().in_use {
        InUse::No => Ok(()),
        InUse::Yes { pid } => {
            let who = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
            Err(Fault::new(Code::DataInUse, format!("{}: {who} works on it", attempt()))
                .hint("nothing was changed; it is looked at again by itself"))
        }
        InUse::Unknown(why) => Err(Fault::new(Code::DataInUse, attempt())
            .caused_by(format!("whether etcd runs on it cannot be found out: {why}"))
            .hint("nothing was changed; it is looked at again by itself")),
    }
}

/// The version that the members of the data's cluster agreed on, where the database tells.
pub(super) fn cluster_version(target: &Target) -> Option<String> {
    let source = FileSource::open(&target.data_dir().join(DB)).ok()?;
    let db = Db::open(&source).ok()?;
    let buckets = db.buckets().ok()?;
    Facts::read(&db, &buckets).ok()?.cluster_version
}

/// Entries of the log that etcd 3.7 cannot read. etcd may run on it.
pub(super) fn v2_entries(target: &Target) -> Result<V2Entries, Fault> {
    let dir = target.wal_dir().map_or_else(|| target.data_dir().join("member/wal"), Path::to_owned);
    let attempt = || format!("cannot read the WAL in `{}`", dir.display());
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        // A member that is about to join has no log yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(V2Entries::NONE),
        Err(error) => return Err(Fault::io(attempt(), error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Fault::io(attempt(), error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".wal") {
            let source = FileSource::open(&entry.path()).map_err(|error| Fault::io(attempt(), error))?;
            files.push((name, source));
        }
    }
    let files: Vec<WalFile<'_>> = files.iter().map(|(name, source)| WalFile { name, source }).collect();
    verify::v2_entries(&files).map_err(|error| {
        let cause = error.source.cause.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
        Fault::io(format!("cannot read `{}`", dir.join(error.file).display()), cause)
    })
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

/// How far what can still be read of damaged data reaches, for whoever has to decide what to do with it.
fn readable(view: &DataDir<'_>) -> Option<u64> {
    let progress = AtomicU64::new(0);
    let settings = inspect::Settings { hash: Some(false), count: false, workers: 1, progress: &progress };
    inspect::data_dir(view, settings).database.revision
}

/// The highest revision that whole data can lead to: each entry of the log that its database does not hold yet adds one at most.
fn reach(view: &DataDir<'_>, last_index: u64) -> Option<u64> {
    let db = Db::open(view.db()?.source).ok()?;
    let facts = Facts::read(&db, &db.buckets().ok()?).ok()?;
    let unapplied = last_index.saturating_sub(facts.consistent_index.unwrap_or(0));
    Some(facts.revision_now().saturating_add(unapplied))
}

fn how_far(readable: Option<u64>) -> String {
    readable.map(|revision| format!("; its newest readable revision is {revision}")).unwrap_or_default()
}

/// Whether the data dir holds nothing. A separate WAL dir below it is not its own.
pub(super) fn is_empty_data(target: &Target) -> io::Result<bool> {
    let wal = target.wal_name_in_data();
    let names = names(target.data_dir())?;
    Ok(names.iter().all(|name| wal.as_ref().is_some_and(|wal| name == wal.as_os_str())))
}

/// What a directory holds, but for what an unfinished run, a rename, a file system or a record of its place leaves in it.
fn names(dir: &Path) -> io::Result<Vec<OsString>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names: io::Result<Vec<OsString>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    let unfinished = |name: &OsStr| name.to_string_lossy().contains(PARTIAL_MARK);
    let counts =
        |name: &OsString| name != "lost+found" && !unfinished(name) && !is_marker(name) && !is_replaced_member(name);
    Ok(names?.into_iter().filter(counts).collect())
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

/// The last index in the WAL, of its last entry, or the one before the first that the newest segment may hold; and the term of the
/// entry there, where the log or a snapshot mark has it.
fn last_entry(view: &DataDir<'_>) -> Option<(u64, Option<u64>)> {
    let named = view.wal_files();
    let files: Vec<WalFile<'_>> = named.iter().map(|file| WalFile { name: file.name, source: file.source }).collect();
    let newest = wal::scan_newest(&files, &ScanOptions::default()).ok()?;
    let before = newest.segments.last().map_or(0, |segment| segment.name.index.saturating_sub(1));
    let last = newest.last_index().max(before);
    Some((last, newest.term_at(last)))
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
        None => verify::before_start(view, &settings, None),
        Some(until) => verify::before_start(view, &settings, Some(&|| Instant::now() < until)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn data_in_other_hands_is_left_alone_and_a_verdict_holds_for_no_other_data() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::new(&dir.path().join("data"), None).unwrap();
        must_be_idle(&target).unwrap();
        for part in ["member/snap", "member/wal"] {
            std::fs::create_dir_all(target.data_dir().join(part)).unwrap();
        }
        let db = File::create(target.data_dir().join(DB)).unwrap();
        let log = |number: u8| format!("member/wal/{number:016x}-{number:016x}.wal");
        let mut first = File::create(target.data_dir().join(log(0))).unwrap();
        must_be_idle(&target).unwrap();
        let which = Which::of(&target);
        assert_eq!(which, Which::of(&target));
        // As etcd does while it runs.
        db.lock().unwrap();
        assert_eq!(must_be_idle(&target).unwrap_err().code(), Code::DataInUse);
        db.unlock().unwrap();
        must_be_idle(&target).unwrap();
        first.write_all(b"more").unwrap();
        let written = Which::of(&target);
        assert_ne!(written, which);
        drop(File::create(target.data_dir().join(log(1))).unwrap());
        assert_ne!(Which::of(&target), written, "another segment");
        let verdict = Verdict::Corrupt("it was".to_owned());
        let mut checked = Checked {
            which: written,
            verdict,
            cut: None,
            took: Duration::ZERO,
            torn: None,
            last_index: Some(7),
            last_term: None,
            readable: None,
            reach: None,
        };
        let seen = |checked: &Checked| match observe_data(&target, Some(checked)) {
            DataSeen::There(facts) => (facts.verdict, facts.last_index),
            DataSeen::Absent | DataSeen::Unknown(_) => panic!("it is there"),
        };
        assert_eq!(seen(&checked), (Verdict::Unchecked, None));
        checked.which = Which::of(&target);
        assert_eq!(seen(&checked), (Verdict::Corrupt("it was".to_owned()), Some(7)));
    }
}
