//! Writes on their way to the store, kept on disk: a killed process loses nothing, and memory stays small.
//!
//! The directory holds segments, each of them the content of a delta object, and one small state file. One segment is
//! open and grows; the others are sealed and wait for their upload. A file is never changed in place: what a cut left
//! torn is copied up to its last whole transaction.
//!
//! **Invariant:** what [`Spool::sync`] has returned for is found again by the next [`Spool::open`], up to its last whole
//! transaction, and a sealed segment leaves the directory only after its object is proven to be in the store.

mod recover;
mod segment;
mod state;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use quorate_etcd_formats::delta::quorate::DeltaWriter;
use quorate_etcd_formats::delta::{Event, LeaseGrant};
use quorate_faults::{Code, Fault, Result};
use quorate_host::durable::{Access, Disk, DiskFile, RealDisk, SPENT_MARK, partial_path};
use quorate_host::locks::{self, Lock};

pub use recover::{Recovered, Waiting, observe_waiting};
pub use segment::Segment;
pub use state::SpoolState;

use segment::{OpenName, SealedName};

/// Bytes that are handed to the system at once; a sync hands over the rest.
const WRITE_BYTES: usize = 256 << 10;

/// A buffer that one huge write made larger than this is given back.
const BUFFER_KEPT: usize = 4 << 20;

/// The state file's name.
const STATE: &str = "state";

/// How a spool is kept.
#[derive(Debug, Clone, Copy)]
pub struct SpoolSettings {
    /// [`Spool::is_full`] from here on.
    pub max_bytes: u64,
}

/// An open spool. Nobody else can open it meanwhile.
pub struct Spool<D: Disk = RealDisk> {
    disk: D,
    dir: PathBuf,
    settings: SpoolSettings,
    _lock: Lock,
    state: Option<SpoolState>,
    open: Option<Open<D::File>>,
    pending: Vec<Segment>,
    /// Last revision whose transaction is whole.
    last: Option<u64>,
    cut_from: u64,
    broken: bool,
}

/// The segment that is being written.
struct Open<F> {
    writer: DeltaWriter,
    /// It is made when there are bytes for it.
    file: Option<(F, PathBuf)>,
    /// Bytes in the file.
    written: u64,
    /// The file has what no sync has covered.
    dirty: bool,
    /// The file's name is durable.
    named: bool,
    /// The last transaction may go on.
    in_transaction: bool,
}

impl Spool {
    /// Opens the spool in `dir`, which is made if it is not there, and recovers what an earlier run left.
    pub fn open(dir: &Path, settings: SpoolSettings) -> Result<(Spool, Recovered)> {
        Spool::open_on(RealDisk, dir, settings)
    }
}

impl<D: Disk> Spool<D> {
    /// The same on any disk.
    pub fn open_on(disk: D, dir: &Path, settings: SpoolSettings) -> Result<(Spool<D>, Recovered)> {
        make_dir(&disk, dir)?;
        let attempt = || format!("cannot lock the spool `{}`", dir.display());
        let lock = locks::exclusive_lock(dir).map_err(|error| Fault::io(attempt(), error))?;
        let lock = lock.ok_or_else(|| {
            Fault::new(Code::SpoolLocked, format!("cannot use the spool `{}`: someone else does", dir.display()))
                .hint("stop the other `quorate backup follow`, or give this one a `--spool` of its own")
        })?;
        let mut spool = Spool {
            disk,
            dir: dir.to_owned(),
            settings,
            _lock: lock,
            state: None,
            open: None,
            pending: Vec::new(),
            last: None,
            cut_from: 0,
            broken: false,
        };
        let recovered = spool.recover()?;
        Ok((spool, recovered))
    }

    /// Whose history this is; `None` before the first [`Spool::reset`].
    pub fn state(&self) -> Option<&SpoolState> {
        self.state.as_ref()
    }

    /// The newest whole revision, synced or not.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// Takes writes as they come, in order and without a hole. `whole`: the last transaction among them is complete;
    /// otherwise it may go on in the next call. After a fault call [`Spool::recover`].
    pub fn append(&mut self, events: &[Event<'_>], whole: bool) -> Result<()> {
        self.usable()?;
        let taken = self.take(events, whole);
        self.broken |= taken.is_err();
        taken
    }

    /// Records a lease, best before or soon after the first write that refers to it. It is kept with the next writes.
    pub fn grant(&mut self, grant: LeaseGrant) -> Result<()> {
        self.usable()?;
        self.open.get_or_insert_with(Open::begin).writer.grant(grant);
        Ok(())
    }

    /// Makes durable what was appended so far.
    pub fn sync(&mut self) -> Result<()> {
        self.usable()?;
        let Some(open) = self.open.as_mut().filter(|open| open.writer.summary().is_some()) else { return Ok(()) };
        open.writer.flush(open.in_transaction);
        let synced = self.write_out().and_then(|()| self.sync_file());
        self.broken |= synced.is_err();
        synced
    }

    /// Seals the open segment. `None`: it has no writes, or its last transaction may go on, or it has not come as far as
    /// [`Spool::cut_not_before`] asks.
    pub fn cut(&mut self) -> Result<Option<Segment>> {
        self.usable()?;
        let Some(open) = &self.open else { return Ok(None) };
        let Some(summary) = open.writer.summary() else { return Ok(None) };
        if open.in_transaction || summary.last < self.cut_from {
            return Ok(None);
        }
        let sealed = self.seal();
        self.broken |= sealed.is_err();
        sealed.map(Some)
    }

    /// No segment is cut before this revision is in it. What [`Spool::recover`] seals may end earlier.
    pub fn cut_not_before(&mut self, revision: u64) {
        self.cut_from = revision;
    }

    /// The sealed segments, oldest first. They are to be uploaded in this order.
    pub fn pending(&self) -> Vec<Segment> {
        self.pending.clone()
    }

    /// Bytes of the open segment.
    pub fn open_bytes(&self) -> u64 {
        let length = |open: &Open<D::File>| open.writer.bytes().saturating_add(open.writer.waiting() as u64);
        self.open.as_ref().filter(|open| open.writer.summary().is_some()).map_or(0, length)
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.pending.iter().map(|segment| segment.bytes).sum::<u64>().saturating_add(self.open_bytes())
    }

    /// Whether no more should be appended before segments have gone. What is on its way is taken nevertheless.
    pub fn is_full(&self) -> bool {
        self.bytes() >= self.settings.max_bytes
    }

    /// Takes out the oldest pending segment, whose object is proven to be in the store.
    pub fn stored(&mut self, segment: &Segment) -> Result<()> {
        if self.pending.first() != Some(segment) {
            let attempt = format!("cannot take `{}` out of the spool: it is not the oldest", segment.path.display());
            return Err(Fault::new(Code::Internal, attempt));
        }
        if let Some(state) = self.state.clone().filter(|state| state.epoch == segment.epoch) {
            self.put_state(SpoolState { stored: state.stored.max(segment.last), ..state })?;
        }
        self.spend(&segment.path)?;
        self.pending.remove(0);
        Ok(())
    }

    /// Takes a pending segment out that is not to be stored, whole as it is: it is renamed. Says its new path.
    pub fn set_aside(&mut self, segment: &Segment) -> Result<PathBuf> {
        let to = self.rename(&segment.path, recover::ASIDE_MARK)?;
        self.disk.sync_dir(&self.dir)?;
        self.pending.retain(|other| other != segment);
        Ok(to)
    }

    /// Begins a new stretch: the next write has the revision after `state.stored`. What is recorded stays pending, with
    /// the epoch and cluster that it was recorded under.
    pub fn reset(&mut self, state: SpoolState) -> Result<()> {
        self.cut_from = 0;
        if self.broken || (self.open.is_some() && self.cut()?.is_none()) {
            // A transaction that will not be completed goes, and so do grants that nothing refers to.
            self.recover()?;
        }
        self.last = (state.stored > 0).then_some(state.stored);
        self.put_state(state)
    }

    fn usable(&self) -> Result<()> {
        if !self.broken {
            return Ok(());
        }
        let attempt = format!("cannot use the spool `{}` before it has been recovered", self.dir.display());
        Err(Fault::new(Code::SpoolBroken, attempt).hint("see the fault before this one"))
    }

    fn take(&mut self, events: &[Event<'_>], whole: bool) -> Result<()> {
        let newest = events.last().map(|event| event.kv.mod_revision);
        self.joins(events.first())?;
        let open = self.open.get_or_insert_with(Open::begin);
        let mut before = open.writer.last();
        for event in events {
            let revision = u64::try_from(event.kv.mod_revision).ok();
            if !whole && Some(event.kv.mod_revision) == newest && before != revision {
                // What may be torn gets frames of its own, so that cutting it off takes nothing else along.
                open.writer.flush(false);
            }
            open.writer.push(event).map_err(|disorder| disordered(&self.dir).caused_by(disorder))?;
            before = revision;
        }
        open.in_transaction = !whole;
        let newest = open.writer.last();
        if whole {
            self.last = newest.or(self.last);
        } else {
            // Everything before the transaction that may go on is whole.
            self.last = newest.map(|newest| newest.saturating_sub(1)).filter(|last| *last > 0).or(self.last);
        }
        if open.writer.out.len() >= WRITE_BYTES { self.write_out() } else { Ok(()) }
    }

    /// Whether the first write of a segment follows on what was there before. Within one, the writer sees to it.
    fn joins(&self, first: Option<&Event<'_>>) -> Result<()> {
        let begun = self.open.as_ref().is_some_and(|open| open.writer.summary().is_some());
        let (Some(first), false) = (first, begun) else { return Ok(()) };
        let revision = u64::try_from(first.kv.mod_revision).ok();
        match (self.state.is_some(), self.last) {
            (true, None) => Ok(()),
            (true, Some(last)) if revision == last.checked_add(1) => Ok(()),
            (true, Some(last)) => {
                let why = format!("revision {} follows revision {last}", first.kv.mod_revision);
                Err(disordered(&self.dir).caused_by(why))
            }
            (false, _) => Err(Fault::new(Code::Internal, "cannot record into a spool that was not begun")),
        }
    }

    /// Hands finished frames to the system.
    fn write_out(&mut self) -> Result<()> {
        let (Some(open), Some(state)) = (&mut self.open, &self.state) else { return Ok(()) };
        let Some(summary) = open.writer.summary().filter(|_| !open.writer.out.is_empty()) else { return Ok(()) };
        let (file, _) = match &mut open.file {
            Some(file) => file,
            None => {
                let name = OpenName { first: summary.first, epoch: state.epoch, cluster_id: state.cluster_id };
                let path = self.dir.join(name.to_string());
                open.file.insert((self.disk.create_file(&path, Access::mode(0o600))?, path))
            }
        };
        file.write_all(&open.writer.out)?;
        open.written = open.written.saturating_add(open.writer.out.len() as u64);
        open.dirty = true;
        open.writer.out.clear();
        open.writer.out.shrink_to(BUFFER_KEPT);
        Ok(())
    }

    fn sync_file(&mut self) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let Some((file, _)) = open.file.as_mut().filter(|_| open.dirty) else { return Ok(()) };
        file.sync()?;
        open.dirty = false;
        if !open.named {
            self.disk.sync_dir(&self.dir)?;
            open.named = true;
        }
        Ok(())
    }

    fn seal(&mut self) -> Result<Segment> {
        let Some(open) = &mut self.open else { return Err(Fault::new(Code::Internal, "cannot seal what is not open")) };
        // A name is durable together with the rename below.
        open.named = true;
        let written = open.writer.finish();
        self.write_out()?;
        self.sync_file()?;
        let taken = self.open.take().and_then(|open| Some((open.file?.1, written.summary?)));
        let (Some((from, summary)), Some(state)) = (taken, &self.state) else {
            return Err(Fault::new(Code::Internal, "cannot seal a segment without writes"));
        };
        let name = SealedName {
            first: summary.first,
            last: summary.last,
            epoch: state.epoch,
            cluster_id: state.cluster_id,
            created_ms: now_ms(),
        };
        let path = self.dir.join(name.to_string());
        self.disk.rename_new(&from, &path)?;
        self.disk.sync_dir(&self.dir)?;
        let segment = Segment {
            path,
            first: name.first,
            last: name.last,
            events: summary.events,
            bytes: written.bytes,
            epoch: name.epoch,
            cluster_id: name.cluster_id,
            created_ms: name.created_ms,
            last_write_ms: written.last_write_ms,
        };
        self.pending.push(segment.clone());
        Ok(segment)
    }

    fn put_state(&mut self, state: SpoolState) -> Result<()> {
        let path = self.dir.join(STATE);
        let partial = partial_path(&path, std::process::id()).unwrap_or_default();
        self.disk.remove_partial(&partial)?;
        let mut file = self.disk.create_file(&partial, Access::mode(0o600))?;
        file.write_all(state.to_text().as_bytes())?;
        file.sync()?;
        if path.symlink_metadata().is_ok() {
            self.disk.replace_file(&partial, &path)?;
        } else {
            self.disk.rename_new(&partial, &path)?;
        }
        self.disk.sync_dir(&self.dir)?;
        self.state = Some(state);
        Ok(())
    }

    /// Removes a file that holds nothing that is not held elsewhere. If a cut brings it back, nothing is wrong.
    fn spend(&self, path: &Path) -> Result<()> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(SPENT_MARK);
        let spent = path.with_file_name(name);
        self.disk.remove_partial(&spent)?;
        self.disk.rename_new(path, &spent)?;
        Ok(self.disk.remove_partial(&spent)?)
    }

    fn rename_damaged(&self, path: &Path) -> Result<PathBuf> {
        self.rename(path, recover::DAMAGED_MARK)
    }

    fn rename(&self, path: &Path, mark: &str) -> Result<PathBuf> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!("{mark}{}", now_ms()));
        let to = path.with_file_name(name);
        self.disk.rename_new(path, &to)?;
        Ok(to)
    }
}

impl<F> Open<F> {
    fn begin() -> Open<F> {
        let writer = DeltaWriter::default();
        Open { writer, file: None, written: 0, dirty: false, named: false, in_transaction: false }
    }
}

fn disordered(dir: &Path) -> Fault {
    let attempt = format!("cannot record into the spool `{}`: writes do not follow each other", dir.display());
    Fault::new(Code::SpoolBroken, attempt).hint("the spool is recovered, and etcd asked again from there")
}

/// Makes the directory and those above it that are missing, for its owner alone.
fn make_dir(disk: &impl Disk, dir: &Path) -> Result<()> {
    let missing: Vec<&Path> = dir.ancestors().take_while(|dir| dir.symlink_metadata().is_err()).collect();
    for dir in missing.into_iter().rev().filter(|dir| !dir.as_os_str().is_empty()) {
        disk.create_dir(dir, Access::mode(0o700))?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            disk.sync_dir(parent)?;
        }
    }
    Ok(())
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
