//! Finds out what an earlier run left in the spool, and makes sealed segments of it.
//!
//! **Invariant:** afterwards every pending segment was read to its end and is whole, and those of the present stretch
//! follow each other without a hole. What could not be used is still there under another name, and was said.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quorate_etcd_formats::delta::Decoder;
use quorate_etcd_formats::delta::quorate::{QuorateDecoder, Salvage};
use quorate_faults::{Fault, Result};
use quorate_host::durable::{Access, Disk, DiskFile, PARTIAL_MARK, SPENT_MARK, partial_path};

use crate::own_fulls::OWN_FULLS;

use super::segment::{FileName, OpenName, SealedName};
use super::{STATE, Segment, Spool, SpoolState, now_ms};

/// What marks a file that cannot be used: `<name>.damaged-<ms>`.
pub(super) const DAMAGED_MARK: &str = ".damaged-";

/// What marks a segment that is whole and does not go into the store: `<name>.set-aside-<ms>`.
pub(super) const ASIDE_MARK: &str = ".set-aside-";

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// A frame that is looked at to tell damage from a torn end; larger ones are rare.
const FRAME_LOOK: usize = 4 << 20;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The newest whole revision of the present stretch: on disk here, or stored. The next one is to be asked for.
    pub last: Option<u64>,
    /// Bytes behind the last whole transaction that were left out.
    pub torn_bytes: u64,
    /// Whose history it is; `None` for a new spool.
    pub state: Option<SpoolState>,
    /// What was set aside, and why.
    pub damaged: Vec<String>,
    /// Names in the directory that are not the spool's. They stay.
    pub foreign: Vec<String>,
}

/// A stretch of writes that waits in a spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// First revision.
    pub first: u64,
    /// Last revision.
    pub last: u64,
    /// The epoch of its writer.
    pub epoch: u64,
    /// The cluster that it was recorded from.
    pub cluster_id: u64,
}

/// What waits in the spool in `dir`, oldest first. Changes nothing, and does not need the spool for itself.
pub fn observe_waiting(dir: &Path) -> Result<Vec<Waiting>> {
    let mut waiting = Vec::new();
    if !dir.is_dir() {
        return Ok(waiting);
    }
    for (name, _) in list(dir)?.into_iter().filter(|(_, is_file)| *is_file) {
        match FileName::parse(&name) {
            Some(FileName::Sealed(SealedName { first, last, epoch, cluster_id, .. })) => {
                waiting.push(Waiting { first, last, epoch, cluster_id });
            }
            Some(FileName::Open(OpenName { first, epoch, cluster_id })) => {
                let path = dir.join(&name);
                let decoded = match read(&path) {
                    // It was sealed meanwhile.
                    Err(_) if !path.exists() => continue,
                    decoded => decoded?,
                };
                let salvage = decoded.decoder.salvage().filter(|salvage| salvage.summary.first == first);
                waiting.extend(salvage.map(|salvage| Waiting { first, last: salvage.summary.last, epoch, cluster_id }));
            }
            None => {}
        }
    }
    waiting.sort_by_key(|part| (part.epoch, part.first, part.last));
    Ok(waiting)
}

impl<D: Disk> Spool<D> {
    /// Reads the directory again: after a fault, or when the open transaction will not be completed. The open segment is
    /// sealed behind its last whole transaction.
    pub fn recover(&mut self) -> Result<Recovered> {
        self.open = None;
        self.pending.clear();
        let mut recovered = Recovered::default();
        let (mut sealed, mut open) = (Vec::new(), Vec::new());
        for (name, is_file) in list(&self.dir)? {
            match FileName::parse(&name).filter(|_| is_file) {
                Some(FileName::Sealed(found)) => sealed.push(found),
                Some(FileName::Open(found)) => open.push(found),
                None if name == STATE && is_file => self.read_state(&mut recovered)?,
                None if name == OWN_FULLS && is_file => {}
                None if is_left_over(&name) && is_file => self.disk.remove_partial(&self.dir.join(&name))?,
                None if name.contains(DAMAGED_MARK) || name.contains(ASIDE_MARK) => {}
                None => recovered.foreign.push(name),
            }
        }
        self.state.clone_from(&recovered.state);
        for name in sealed {
            self.check(&name, &mut recovered)?;
        }
        for name in open {
            self.salvage(&name, &mut recovered)?;
        }
        self.pending.sort_by_key(|segment| (segment.epoch, segment.first, segment.last));
        self.follow_on(&mut recovered)?;
        self.disk.sync_dir(&self.dir)?;
        self.last = recovered.last;
        self.broken = false;
        Ok(recovered)
    }

    fn read_state(&mut self, recovered: &mut Recovered) -> Result<()> {
        let path = self.dir.join(STATE);
        let bytes = std::fs::read(&path).map_err(|error| cannot_read(&path, error))?;
        recovered.state = SpoolState::parse(&bytes);
        if recovered.state.is_none() {
            self.put_aside(&path, "it does not match its checksum", recovered)?;
        }
        Ok(())
    }

    fn put_aside(&self, path: &Path, why: &str, recovered: &mut Recovered) -> Result<()> {
        let to = self.rename_damaged(path)?;
        recovered.damaged.push(format!("`{}` is now `{}`: {why}", path.display(), to.display()));
        Ok(())
    }

    /// Reads a sealed segment to its end.
    fn check(&mut self, name: &SealedName, recovered: &mut Recovered) -> Result<()> {
        let path = self.dir.join(name.to_string());
        let read = read(&path)?;
        let fits = |segment: &Segment| (segment.first, segment.last) == (name.first, name.last);
        match read.whole(&path, name) {
            Ok(segment) if fits(&segment) => self.pending.push(segment),
            Ok(_) => self.put_aside(&path, "it holds other revisions than its name says", recovered)?,
            Err(why) => self.put_aside(&path, &why, recovered)?,
        }
        Ok(())
    }

    /// Makes a sealed segment of what is whole in an open one.
    fn salvage(&mut self, name: &OpenName, recovered: &mut Recovered) -> Result<()> {
        let path = self.dir.join(name.to_string());
        let same = |segment: &&Segment| {
            (segment.first, segment.epoch, segment.cluster_id) == (name.first, name.epoch, name.cluster_id)
        };
        if self.pending.iter().any(|segment| same(&segment)) {
            // A cut came after the copy got its name and before the original lost its own.
            return self.spend(&path);
        }
        let read = read(&path)?;
        let salvage = read.decoder.salvage().filter(|salvage| salvage.summary.first == name.first);
        let Some(salvage) = salvage else {
            if read.goes_on_behind_damage() {
                return self.put_aside(&path, "no whole transaction stands before the damage in it", recovered);
            }
            recovered.torn_bytes += read.bytes;
            return self.spend(&path);
        };
        let segment = self.copy(&path, name, salvage)?;
        self.pending.push(segment);
        if !read.decoder.is_ended() {
            recovered.torn_bytes += read.bytes.saturating_sub(salvage.bytes);
        }
        if read.goes_on_behind_damage() {
            let why =
                format!("it is damaged behind revision {}; what stands before that is kept", salvage.summary.last);
            return self.put_aside(&path, &why, recovered);
        }
        self.spend(&path)
    }

    /// Copies rather than renames: of a run that was killed, no one knows what is durable.
    fn copy(&self, path: &Path, name: &OpenName, salvage: &Salvage) -> Result<Segment> {
        let sealed = SealedName {
            first: name.first,
            last: salvage.summary.last,
            epoch: name.epoch,
            cluster_id: name.cluster_id,
            created_ms: now_ms(),
        };
        let to = self.dir.join(sealed.to_string());
        let partial = partial_path(&to, std::process::id()).unwrap_or_default();
        self.disk.remove_partial(&partial)?;
        let mut file = self.disk.create_file(&partial, Access::mode(0o600))?;
        let mut from = File::open(path).map_err(|error| cannot_read(path, error))?.take(salvage.bytes);
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match from.read(&mut piece).map_err(|error| cannot_read(path, error))? {
                0 => break,
                length => file.write_all(&piece[..length])?,
            }
        }
        let end = salvage.end();
        file.write_all(&end)?;
        file.sync()?;
        self.disk.rename_new(&partial, &to)?;
        self.disk.sync_dir(&self.dir)?;
        Ok(sealed.segment(to, salvage.summary.events, salvage.bytes + end.len() as u64, salvage.last_write_ms))
    }

    /// Finds how far the present stretch leads without a hole. Nothing leads to what stands behind one.
    fn follow_on(&mut self, recovered: &mut Recovered) -> Result<()> {
        let newest = self.pending.last().map(|segment| segment.epoch);
        let Some(epoch) = recovered.state.as_ref().map(|state| state.epoch).or(newest) else { return Ok(()) };
        let mut last = recovered.state.as_ref().map(|state| state.stored).filter(|stored| *stored > 0);
        let mut behind = Vec::new();
        for segment in self.pending.iter().filter(|segment| segment.epoch == epoch) {
            match last {
                Some(before) if segment.first > before.saturating_add(1) => behind.push((segment.clone(), before)),
                _ => last = last.max(Some(segment.last)),
            }
        }
        for (segment, before) in behind {
            let why = format!("revisions {} to {} before it are missing", before + 1, segment.first - 1);
            self.put_aside(&segment.path, &why, recovered)?;
            self.pending.retain(|other| *other != segment);
        }
        recovered.last = last;
        Ok(())
    }
}

impl SealedName {
    fn segment(&self, path: PathBuf, events: u64, bytes: u64, last_write_ms: Option<i64>) -> Segment {
        let SealedName { first, last, epoch, cluster_id, created_ms } = *self;
        Segment { path, first, last, events, bytes, epoch, cluster_id, created_ms, last_write_ms }
    }
}

/// A file that was decoded as far as possible.
struct Decoded {
    file: File,
    decoder: QuorateDecoder,
    bytes: u64,
    failed: Option<String>,
}

impl Decoded {
    fn whole(mut self, path: &Path, name: &SealedName) -> std::result::Result<Segment, String> {
        if let Some(why) = self.failed {
            return Err(why);
        }
        let (_, summary) = self.decoder.finish().map_err(|error| error.to_string())?;
        let summary = summary.ok_or("it holds no writes")?;
        let proved = SealedName { first: summary.first, last: summary.last, ..name.clone() };
        Ok(proved.segment(path.to_owned(), summary.events, self.bytes, self.decoder.last_write_ms()))
    }

    /// Whether a good frame follows on the bad one: then it is no torn end.
    fn goes_on_behind_damage(&self) -> bool {
        let bad = self.decoder.good_bytes();
        let next = self.frame_length(bad).and_then(|length| bad.checked_add(length + 8));
        let Some((next, length)) = next.and_then(|next| Some((next, self.frame_length(next)?))) else { return false };
        let mut frame = vec![0; usize::try_from(length).unwrap_or(0) + 8];
        if self.failed.is_none() || frame.len() > FRAME_LOOK || self.file.read_exact_at(&mut frame, next).is_err() {
            return false;
        }
        let sum = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
        length > 0 && crc32c::crc32c(&frame[8..]) == sum
    }

    fn frame_length(&self, at: u64) -> Option<u64> {
        let mut head = [0; 4];
        self.file.read_exact_at(&mut head, at).ok()?;
        let length = u64::from(u32::from_le_bytes(head));
        (length <= FRAME_LOOK as u64).then_some(length)
    }
}

fn read(path: &Path) -> Result<Decoded> {
    let mut file = File::open(path).map_err(|error| cannot_read(path, error))?;
    let mut decoder = QuorateDecoder::default();
    let mut piece = vec![0; PIECE_BYTES];
    let (mut bytes, mut failed) = (0, None);
    loop {
        let length = match file.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(cannot_read(path, error)),
        };
        bytes += length as u64;
        if failed.is_none() {
            failed = decoder.feed(&piece[..length]).err().map(|error| error.to_string());
            while decoder.take(1).is_some() {}
        }
    }
    Ok(Decoded { file, decoder, bytes, failed })
}

/// Names in the directory, in order, and whether each is a plain file.
fn list(dir: &Path) -> Result<Vec<(String, bool)>> {
    let attempt = || format!("cannot read the spool `{}`", dir.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| Fault::io(attempt(), error))? {
        let entry = entry.map_err(|error| Fault::io(attempt(), error))?;
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        names.push((entry.file_name().to_string_lossy().into_owned(), is_file));
    }
    names.sort();
    Ok(names)
}

/// Whether the name is an unfinished or a spent form of one of ours.
fn is_left_over(name: &str) -> bool {
    let of = name.strip_suffix(SPENT_MARK).or_else(|| name.split_once(PARTIAL_MARK).map(|(of, _)| of));
    of.is_some_and(|of| of == STATE || of == OWN_FULLS || FileName::parse(of).is_some())
}

fn cannot_read(path: &Path, error: std::io::Error) -> Fault {
    Fault::io(format!("cannot read `{}`", path.display()), error)
}
