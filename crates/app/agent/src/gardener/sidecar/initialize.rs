//! One initialization: whose volume it is, what state the data is in, what the store holds, and what follows from that.
//!
//! **Invariant:** nothing is set aside before the chain that replaces it was read to its end and held; nothing is deleted.

use std::hash::BuildHasher;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use jiff::Timestamp;
use quorate_backup::Base;
use quorate_backup::events::ChainEvents;
use quorate_backup::session::{Planned, Session, Wanted};
use quorate_backup::store::is_temporary;
use quorate_etcd::aside::ensure_set_aside;
use quorate_etcd::datadir::{self, Found, OpenDir};
use quorate_etcd::init::Target as Place;
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_etcd_formats::inspect;
use quorate_etcd_formats::verify::{self, Mode};
use quorate_faults::{Code, Fault, Result, Severity};
use quorate_host::durable::{PARTIAL_MARK, RealDisk};
use quorate_plan::chain::Target;
use quorate_plan::restore_point::RestorePoint;
use tracing::{info, warn};

use super::decide::{ClusterSeen, Data, Seen, Step, StoreSeen, decide};
use super::etcdbr::{Act, Etcdbr};
use super::{config, guard, in_words};
use crate::backups::restore::{Progress, Restore, USUAL};
use crate::backups::{size, spooled};
use crate::gardener::etcd_yaml::EtcdYaml;

/// What an initialization needs to know.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) data_dir: PathBuf,
    pub(super) store: Option<String>,
    pub(super) spool: PathBuf,
    pub(super) spool_max_bytes: u64,
    pub(super) namespace: Option<String>,
    pub(super) pod: Option<String>,
    pub(super) mode: Mode,
}

/// What is left to do with the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: etcd may start.
    Start,
    /// See [`Step::Join`].
    Join { former: Option<(u64, Vec<String>)>, add: bool },
}

/// Does it, blocking. `quiet` waits until nobody writes to the spool any more.
pub(super) fn initialize(
    job: &Job,
    yaml: &EtcdYaml,
    cluster: ClusterSeen,
    etcdbr: &Etcdbr,
    quiet: impl FnOnce(),
) -> Result<Next> {
    let place = Place::new(&job.data_dir, None)?;
    let volume = place.data_dir().parent().unwrap_or(place.data_dir());
    guard::check(volume, job.namespace.as_deref(), job.pod.as_deref())?;
    if let Some(other) = yaml.data_dir().filter(|dir| dir != &job.data_dir) {
        warn!("etcd is told to use `{}`, and `{}` is validated", other.display(), job.data_dir.display());
    }
    let began = Instant::now();
    let data = observe_data(&place, job.mode);
    let good = matches!(data, Data::Absent | Data::Valid { .. });
    etcdbr.did(Act::Validate, began.elapsed(), good);
    let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    info!(mode = mode_word(job.mode), ms, "looked at the data: {}", data_words(&data));
    let store = observe_store(job, volume);
    let seen = Seen { data, store, members: config::declared(yaml).len().max(1), cluster };
    match decide(&seen) {
        Step::Start(why) => {
            info!("etcd may start: {why}");
            Ok(Next::Start)
        }
        Step::Refuse(why, hint) => Err(Fault::new(Code::InitRefused, format!("etcd is not started: {why}")).hint(hint)),
        Step::Restore(why) => {
            warn!("restoring: {why}");
            quiet();
            flush(job)?;
            let began = Instant::now();
            let restored = restore(job, yaml, &place, volume);
            etcdbr.did(Act::RestoreFromStore, began.elapsed(), restored.is_ok());
            restored.map(|()| Next::Start)
        }
        Step::Join { former, add, why } => {
            warn!("{why}");
            Ok(Next::Join { former, add })
        }
    }
}

/// Renames what is in the data dir, if anything is.
pub(super) fn set_aside(data_dir: &Path) -> Result<()> {
    let place = Place::new(data_dir, None)?;
    if let Some(kept) = ensure_set_aside(&RealDisk, place.data_dir(), &stamp())? {
        warn!("the data that was there is kept as `{}`", kept.display());
    }
    Ok(())
}

fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Sanity => "sanity",
        Mode::Full => "full",
    }
}

fn data_words(data: &Data) -> String {
    match data {
        Data::Absent => "there is none".to_owned(),
        Data::Valid { reach: Some(reach) } => format!("valid, up to revision {reach}"),
        Data::Valid { reach: None } => "valid".to_owned(),
        Data::Broken(why) => format!("damaged: {why}"),
        Data::Unknown(why) => format!("unknown: {why}"),
    }
}

fn observe_data(place: &Place, mode: Mode) -> Data {
    let dir = place.data_dir();
    match is_empty(dir) {
        Ok(true) => return Data::Absent,
        Ok(false) => {}
        Err(error) => return Data::Unknown(format!("`{}`: {error}", dir.display())),
    }
    let open = match datadir::open(dir, None) {
        Ok(Found::DataDir(open)) => open,
        Ok(Found::File(_)) => return Data::Unknown(format!("`{}` is a file", dir.display())),
        // Something is there, and it is not what etcd writes.
        Err(fault) if fault.code() == Code::NotEtcdData => return Data::Broken(in_words(&fault)),
        Err(fault) => return Data::Unknown(in_words(&fault)),
    };
    let (progress, workers) = (AtomicU64::new(0), workers());
    let report = verify::data_dir(&open.view(), &verify::Settings { mode, workers, progress: &progress });
    let errors = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
    let words = |finding: &quorate_faults::Finding| format!("{} at {} [{}]", finding.what, finding.place, finding.code);
    let unsure = |code: Code| matches!(code, Code::Io | Code::DataInUse);
    if let Some(finding) = errors.clone().find(|finding| unsure(finding.code)) {
        return Data::Unknown(words(finding));
    }
    match errors.into_iter().next() {
        Some(finding) => Data::Broken(words(finding)),
        None => Data::Valid { reach: reach(&open) },
    }
}

/// The revision of the database, and at most one more for each entry of the log behind it.
fn reach(open: &OpenDir) -> Option<u64> {
    let (progress, workers) = (AtomicU64::new(0), workers());
    let settings = inspect::Settings { hash: Some(false), count: false, workers, progress: &progress };
    let found = inspect::data_dir(&open.view(), settings);
    let behind = found.wal?.last_index?.saturating_sub(found.database.consistent_index?);
    Some(found.database.revision?.saturating_add(behind))
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8))
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
        if name != "lost+found" && !name.to_string_lossy().contains(PARTIAL_MARK) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn observe_store(job: &Job, scratch: &Path) -> StoreSeen {
    let Some(url) = &job.store else { return StoreSeen::NotConfigured };
    match Session::open(url, scratch) {
        Ok(session) => {
            let decision = session.catalog.decide(Target::Newest);
            match decision.newest_provable() {
                Some(reach) => StoreSeen::Reaches(reach),
                // A folder that is not mounted and a bucket that was emptied look like a new one.
                None if session.catalog.objects.is_empty() && job.spool.is_dir() => {
                    let spool = job.spool.display();
                    StoreSeen::Unreachable(format!(
                        "it is empty, and this volume was backed up before, as `{spool}` shows"
                    ))
                }
                None if session.catalog.objects.is_empty() => StoreSeen::Empty,
                None => StoreSeen::Unreachable("what it holds leads nowhere".to_owned()),
            }
        }
        Err(fault) => StoreSeen::Unreachable(in_words(&fault)),
    }
}

/// Brings writes that wait in the spool into the store, so that a restore has them.
fn flush(job: &Job) -> Result<()> {
    let Some(url) = &job.store else { return Ok(()) };
    match spooled::flush(&job.spool, job.spool_max_bytes, url)?.refused {
        Some(fault) if is_temporary(&fault) => Err(fault),
        Some(fault) => {
            warn!(code = %fault.code(), "the spool is not uploaded before the restore: {}", in_words(&fault));
            Ok(())
        }
        None => Ok(()),
    }
}

/// Proves the newest chain, sets aside what is there, and makes the data dir.
fn restore(job: &Job, yaml: &EtcdYaml, place: &Place, scratch: &Path) -> Result<()> {
    let url = job.store.as_deref().unwrap_or_default();
    let name = config::name(yaml, job.pod.as_deref())?;
    let peer_urls = config::peer_urls(yaml, job.pod.as_deref())?;
    if peer_urls.is_empty() {
        let what = "cannot restore: etcd's configuration has no `initial-advertise-peer-urls`";
        return Err(Fault::new(Code::GardenerConfig, what).hint("a member is known by its peer URLs"));
    }
    let began = Instant::now();
    let mut session = Session::open(url, scratch)?;
    let wanted = Wanted::Target(Target::Newest);
    session.run(&wanted, |_, events, _| {
        // What goes wrong here is looked at by the session.
        let _ = events.drain();
        Ok(())
    })?;
    set_aside(place.data_dir())?;
    // Seeded by the system for each process: no two restores make the same cluster.
    let nonce = std::hash::RandomState::new().hash_one(std::process::id());
    let build = |base: &Base, events: &mut ChainEvents, planned: &Planned| {
        let digest = planned.digest.clone();
        let point = RestorePoint { revision: planned.revision, digest, nonce: Some(nonce), content: USUAL };
        let founding = Founding::new(vec![(name.clone(), peer_urls.clone())], &point.token())
            .map_err(|error| Fault::new(Code::RosterBadId, error.to_string()).hint("try again: ids are drawn anew"))?;
        let restore = Restore { place, founding: &founding, name: &name, form: Form::Any, content: USUAL };
        let tell = |progress: &Progress| info!("restoring: {} % of {}", progress.percent(), size(progress.total));
        restore.run_and_tell(base, events, &tell)
    };
    let proven = session.run(&wanted, build)?;
    for (code, what) in &session.learned {
        warn!(%code, "{what}");
    }
    if let Some(short) = &proven.decision.short {
        warn!("newer writes are mentioned in the store and cannot be restored: {short}");
    }
    let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    info!(revision = proven.revision, writes = proven.events, ms, "restored from the store");
    Ok(())
}

fn stamp() -> String {
    Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string()
}
