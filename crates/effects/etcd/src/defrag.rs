//! Writes a database anew without the pages that nothing uses, and puts it in the place of the old one.
//!
//! **Invariant:** the old file has its name until the new one is durable and was read back with the same content. No etcd
//! works on either meanwhile, and one that waited for the old file cannot go on with it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use quorate_etcd_formats::ReadAt;
use quorate_etcd_formats::dir::DB;
use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::rebuild::{Options, Rebuilt};
use quorate_etcd_formats::snapshot_file::{has_hash, sha256};
use quorate_etcd_formats::verify::{self, Mode, Settings};
use quorate_faults::{Code, Fault, Severity};
use quorate_host::durable::{Access, Disk, DiskFile, Owner, is_partial_of, partial_path};
use quorate_host::locks::{self, LockState};

use crate::datadir::{FileSource, not_etcd};
use crate::engine::{BaseFile, Ingredients, read_fault, write_database};
use crate::init::left_overs::{self, Locked};

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defragged {
    /// The file that was written anew.
    pub file: PathBuf,
    /// Its size before.
    pub bytes_before: u64,
    /// Its size now.
    pub bytes_after: u64,
    /// etcd's hash over all buckets, the same before and after.
    pub hash: u32,
    /// The SHA-256 that the file now ends with; `None`: it is a database, which has none.
    pub sha256: Option<String>,
    /// What was written.
    pub rebuilt: Rebuilt,
}

/// Defragments a data dir's database, a snapshot file or a copied database. `progress` counts bytes of the old file.
pub fn defrag(disk: &impl Disk, path: &Path, workers: usize, progress: &AtomicU64) -> Result<Defragged, Fault> {
    let file = database_of(path)?;
    let attempt = format!("cannot defragment `{}`", file.display());
    let writable = file.ends_with(DB);
    let old = File::options().read(true).write(writable).open(&file);
    let old = old.map_err(|error| Fault::io(attempt.clone(), error))?;
    let _lock = match locks::exclusive_lock(&file) {
        // Another run may have replaced the file between the two openings.
        Ok(Some(lock)) if lock.is_still(&file) && same_file(lock.as_file(), &old) => lock,
        Ok(_) => return Err(in_use(&attempt, holder(&old))),
        Err(error) => return Err(Fault::io(attempt, error)),
    };
    refuse_used_wal(path, &attempt)?;
    let metadata = old.metadata().map_err(|error| Fault::io(attempt.clone(), error))?;
    remove_left_overs(disk, &file)?;
    let source = old.try_clone().and_then(FileSource::of).map_err(|error| Fault::io(attempt.clone(), error))?;
    let base = BaseFile { source: &source, name: &file.display().to_string(), check_hash: has_hash(source.len()) };
    let Some(partial) = partial_path(&file, std::process::id()) else {
        return Err(not_etcd(attempt, "it has no name of its own"));
    };
    let owner = Owner { uid: metadata.uid(), gid: metadata.gid() };
    let is_ours = owner.uid == rustix::process::geteuid().as_raw() && owner.gid == rustix::process::getegid().as_raw();
    let access = Access { mode: metadata.mode() & 0o7777, owner: (!is_ours).then_some(owner) };
    let work = Work { disk, file: &file, partial: &partial, attempt: &attempt, workers, progress };
    let made = work.make(base, access);
    let replaced = made.and_then(|made| work.replace(&old, made));
    if replaced.is_err() {
        let _ = disk.remove_partial(&partial);
    }
    replaced
}

struct Work<'w, D> {
    disk: &'w D,
    file: &'w Path,
    partial: &'w Path,
    attempt: &'w str,
    workers: usize,
    progress: &'w AtomicU64,
}

impl<D: Disk> Work<'_, D> {
    /// Writes the new file, durably, and reads it back.
    fn make(&self, base: BaseFile<'_>, access: Access) -> Result<Defragged, Fault> {
        let mut new = self.disk.create_file(self.partial, access)?;
        let ingredients =
            Ingredients { base: Some(base), events: None, options: Options::copy(), progress: self.progress };
        let rebuilt = write_database(&mut new, ingredients)?;
        let unreadable = |error| Fault::io(self.attempt, error);
        let written = FileSource::open(self.partial).map_err(unreadable)?;
        let (len, workers) = (written.len(), self.workers);
        let (sha256, synced, report) = std::thread::scope(|scope| {
            let hashing = base.check_hash.then(|| scope.spawn(|| sha256(&written, len, |_| ())));
            let verifying = scope.spawn(|| {
                let unseen = AtomicU64::new(0);
                verify::snapshot("db", &written, &Settings { mode: Mode::Full, workers, progress: &unseen })
            });
            // A snapshot is synced once its hash is behind it.
            let synced = if base.check_hash { Ok(()) } else { new.sync() };
            (hashing.map(|hashing| hashing.join()), synced, verifying.join())
        });
        synced?;
        let bug = || Fault::new(Code::Internal, self.attempt);
        self.compare(&rebuilt, &report.map_err(|_| bug())?)?;
        let mut bytes_after = len;
        let sha256 = match sha256 {
            Some(hash) => {
                let hash =
                    hash.map_err(|_| bug())?.map_err(|error| read_fault(&self.partial.display().to_string(), error))?;
                new.write_all(&hash)?;
                new.sync()?;
                bytes_after += hash.len() as u64;
                Some(hex(&hash))
            }
            None => None,
        };
        let (file, bytes_before) = (self.file.to_owned(), base.source.len());
        Ok(Defragged { file, bytes_before, bytes_after, hash: rebuilt.hash, sha256, rebuilt })
    }

    fn compare(&self, rebuilt: &Rebuilt, report: &verify::Report) -> Result<(), Fault> {
        let structure = |code: Code| (Code::BoltMeta..=Code::BoltTooLarge).contains(&code);
        let broken = report.findings.iter().find(|found| found.severity == Severity::Error && structure(found.code));
        let what = match (report.hash, broken) {
            (_, Some(finding)) => finding.what.clone(),
            (Some(hash), None) if hash == rebuilt.hash => return Ok(()),
            (hash, None) => {
                format!("the hash over all content was {:08x} and is {:08x}", rebuilt.hash, hash.unwrap_or(0))
            }
        };
        Err(Fault::new(Code::DefragDiffers, self.attempt).caused_by(what).hint("the old file is in place, unchanged"))
    }

    fn replace(&self, old: &File, made: Defragged) -> Result<Defragged, Fault> {
        self.disk.replace_file(self.partial, self.file)?;
        if let Some(dir) = self.file.parent() {
            self.disk.sync_dir(dir)?;
        }
        if self.file.ends_with(DB) {
            retire(old);
        }
        Ok(made)
    }
}

/// Makes the replaced file unreadable, which no longer has a name. An etcd that was started meanwhile has opened it and waits for
/// its lock; it would go on with it, and all it writes would be lost. So it stops with an error, and finds the new file when
/// it is started again.
fn retire(old: &File) {
    // Someone may keep it under another name.
    if !old.metadata().is_ok_and(|meta| meta.nlink() == 0) {
        return;
    }
    let page_bytes = |at: u64| {
        let mut size = [0; 4];
        old.read_exact_at(&mut size, at).map(|()| u64::from(u32::from_le_bytes(size)))
    };
    // The page size stands at byte 24 of the first page; the two checksums at byte 72 of the first and the second.
    let second = page_bytes(24).unwrap_or(4096);
    for page in [0, second] {
        // If this fails the file can still not be found by any name.
        let _ = old.write_all_at(&[0; 64], page + 16);
    }
}

/// The file that `path` stands for.
fn database_of(path: &Path) -> Result<PathBuf, Fault> {
    let attempt = || format!("cannot defragment `{}`", path.display());
    let metadata = path.metadata().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Fault::new(Code::NotFound, attempt()).caused_by(error).hint("check the path, and that its disk is mounted")
        }
        _ => Fault::io(attempt(), error),
    })?;
    let file = if metadata.is_dir() { path.join(DB) } else { path.to_owned() };
    // A link is followed, so that the file itself is replaced and not the link.
    match file.canonicalize() {
        Ok(file) if file.is_file() => Ok(file),
        _ if metadata.is_dir() => Err(not_etcd(attempt(), "it has no file `member/snap/db`, so it is not a data dir")),
        _ => Err(not_etcd(attempt(), "it is neither a directory nor a regular file")),
    }
}

fn refuse_used_wal(dir: &Path, attempt: &str) -> Result<(), Fault> {
    let segments = std::fs::read_dir(dir.join("member/wal")).into_iter().flatten().flatten();
    for segment in segments.filter(|entry| entry.file_name().as_encoded_bytes().ends_with(b".wal")) {
        let state = File::open(segment.path()).map_or_else(LockState::Unknown, |file| locks::probe_ofd(&file));
        match state {
            LockState::Free => {}
            LockState::Held { pid } => return Err(in_use(attempt, pid)),
            LockState::Unknown(error) => {
                return Err(Fault::new(Code::DefragInUse, format!("{attempt}: cannot tell whether etcd runs on it"))
                    .caused_by(error)
                    .hint("run as the user that owns the files, or as root"));
            }
        }
    }
    Ok(())
}

fn same_file(one: &File, other: &File) -> bool {
    let inode = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    inode(one).is_some() && inode(one) == inode(other)
}

fn holder(file: &File) -> Option<u32> {
    match locks::probe_flock(file) {
        LockState::Held { pid } => pid,
        LockState::Free | LockState::Unknown(_) => None,
    }
}

fn in_use(attempt: &str, pid: Option<u32>) -> Fault {
    let who = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
    Fault::new(Code::DefragInUse, format!("{attempt}: a running etcd{who} holds it"))
        .hint("stop it first, or have it do the work by itself: `etcdctl defrag`")
}

/// Removes what runs that were killed have left. Whoever works on the file holds its lock, so none of them is at work.
fn remove_left_overs(disk: &impl Disk, file: &Path) -> Result<(), Fault> {
    let (Some(dir), Some(name)) = (file.parent(), file.file_name()) else { return Ok(()) };
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    for left_over in names.filter(|found| is_partial_of(found, name)) {
        let path = dir.join(left_over);
        if let Locked::Ours(_lock) = left_overs::lock(&path)? {
            disk.remove_partial(&path)?;
        }
    }
    Ok(())
}
