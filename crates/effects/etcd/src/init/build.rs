//! Writes the member's files under partial names, syncs them, and renames them into place.
//!
//! **Invariant:** a rename comes after everything below it is durable, and the separate WAL's rename is durable before
//! the data dir's begins. A WAL without a db makes etcd refuse to start; a db without a WAL would be adopted.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quorate_etcd_formats::founding::FoundingFiles;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, Owner, partial_path};
use quorate_host::locks::Lock;
use quorate_plan::init::{InitDecision, Spot};

use super::left_overs::{self, Locked};
use super::paths::{Target, parent};
use super::{Fill, NewPath};

/// Mode of every directory, as etcd makes them.
pub const DIR_MODE: u32 = 0o700;
/// Mode of every file.
pub const FILE_MODE: u32 = 0o600;

/// Whether everything is where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    /// All of it.
    All,
    /// Something had taken a name meanwhile. What this run built there is gone again.
    TakenMeanwhile,
}

/// What one rename puts in place: a directory with its content, or a single file.
struct Piece<'a> {
    place: PathBuf,
    /// Below the piece, parents first. The piece itself is `""`, where it is a directory.
    dirs: Vec<&'static str>,
    /// Below the piece. The piece itself is `""`, where it is a file.
    files: Vec<(PathBuf, Content<'a>)>,
}

/// What a file is to hold.
enum Content<'a> {
    Bytes(&'a [u8]),
    /// The database, which is written as it is made. Its size is known before only if it is blank.
    Database(&'a [u8]),
}

impl Content<'_> {
    fn size(&self) -> u64 {
        match self {
            Content::Bytes(bytes) | Content::Database(bytes) => bytes.len() as u64,
        }
    }
}

/// A piece that is complete and durable under its partial name, locked against cleaners.
struct Built<'a> {
    piece: Piece<'a>,
    partial: PathBuf,
    _lock: Lock,
}

/// Builds and places everything.
pub(super) fn build(
    disk: &impl Disk,
    target: &Target,
    files: &FoundingFiles,
    data: Spot,
    wal: Option<Spot>,
    fill: &mut Fill<'_>,
) -> Result<Placed, Fault> {
    let mut pieces = Vec::new();
    if let (Some(wal_dir), Some(spot)) = (target.wal_dir(), wal) {
        pieces.push(wal_piece(wal_dir, files, spot));
    }
    pieces.push(data_piece(target, files, data));
    build_and_place(disk, pieces, fill)
}

/// Places the data dir of a separate WAL that is there already.
pub(super) fn finish_after_wal(
    disk: &impl Disk,
    target: &Target,
    files: &FoundingFiles,
    data: Spot,
    fill: &mut Fill<'_>,
) -> Result<Placed, Fault> {
    if let Some(wal_dir) = target.wal_dir() {
        // The run that renamed it may have died before it was durable. Its file was synced before the rename.
        sync_all_above(disk, wal_dir)?;
    }
    build_and_place(disk, vec![data_piece(target, files, data)], fill)
}

/// Makes a rename durable whose maker may have died before it could. Nothing is changed.
pub(super) fn sync_what_is_there(disk: &impl Disk, target: &Target) -> Result<(), Fault> {
    for dir in [Some(target.data_dir()), target.wal_dir()].into_iter().flatten() {
        sync_all_above(disk, dir)?;
    }
    Ok(())
}

/// Syncs a directory and those above it that an earlier run may have made or renamed it in.
fn sync_all_above(disk: &impl Disk, dir: &Path) -> Result<(), Fault> {
    let near = [dir, parent(dir)].into_iter();
    near.chain(holders_of_what_was_made(parent(dir))).try_for_each(|dir| sync_if_allowed(disk, dir))
}

/// The directories that hold the names of `dir` and of those above it, as far up as a run that was killed may have made
/// them: one that is open to others was not made by any run.
fn holders_of_what_was_made(dir: &Path) -> impl Iterator<Item = &Path> {
    let as_made = |dir: &&Path| dir.metadata().is_ok_and(|meta| meta.mode() & 0o7777 == DIR_MODE);
    dir.ancestors().take_while(as_made).map(parent)
}

/// A directory that this user may not open is one that this user made and renamed nothing in.
fn sync_if_allowed(disk: &impl Disk, dir: &Path) -> Result<(), Fault> {
    match disk.sync_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Everything that would be made, parents first.
pub(super) fn new_paths(target: &Target, files: &FoundingFiles, decision: &InitDecision) -> Vec<NewPath> {
    let pieces = match decision {
        InitDecision::AlreadyThisMember { .. } | InitDecision::Refuse(_) => vec![],
        InitDecision::FinishAfterWal { data } => vec![data_piece(target, files, *data)],
        InitDecision::Build { data, wal } => {
            let wal = target.wal_dir().zip(*wal).map(|(dir, spot)| wal_piece(dir, files, spot));
            wal.into_iter().chain([data_piece(target, files, *data)]).collect()
        }
    };
    let mut paths = Vec::new();
    for piece in &pieces {
        paths.extend(missing_above(&piece.place).into_iter().map(|path| NewPath { path, mode: DIR_MODE, size: None }));
        let dirs = piece.dirs.iter().map(|dir| NewPath { path: below(&piece.place, dir), mode: DIR_MODE, size: None });
        paths.extend(dirs);
        paths.extend(piece.files.iter().map(|(path, content)| NewPath {
            path: below(&piece.place, path),
            mode: FILE_MODE,
            size: Some(content.size()),
        }));
    }
    // Two pieces below one missing directory name it twice.
    let mut seen = HashSet::new();
    paths.retain(|new| seen.insert(new.path.clone()));
    paths
}

fn data_piece<'a>(target: &Target, files: &'a FoundingFiles, spot: Spot) -> Piece<'a> {
    // A WAL dir inside the data dir is placed first, which makes the data dir.
    let spot = if target.wal_name_in_data().is_some() { Spot::Inside } else { spot };
    let (place, member, mut dirs) = match spot {
        Spot::Beside => (target.data_dir().to_owned(), "member/", vec!["", "member", "member/snap"]),
        Spot::Inside => (target.data_dir().join("member"), "", vec!["", "snap"]),
    };
    let mut contents = vec![
        (PathBuf::from(format!("{member}snap/{}", files.db.name)), Content::Database(&files.db.bytes)),
        (PathBuf::from(format!("{member}snap/{}", files.snap.name)), Content::Bytes(&files.snap.bytes)),
    ];
    if target.wal_dir().is_none() {
        dirs.push(if member.is_empty() { "wal" } else { "member/wal" });
        contents.push((PathBuf::from(format!("{member}wal/{}", files.wal.name)), Content::Bytes(&files.wal.bytes)));
    }
    Piece { place, dirs, files: contents }
}

fn wal_piece<'a>(wal_dir: &Path, files: &'a FoundingFiles, spot: Spot) -> Piece<'a> {
    let (place, dirs, name) = match spot {
        Spot::Beside => (wal_dir.to_owned(), vec![""], PathBuf::from(&files.wal.name)),
        Spot::Inside => (wal_dir.join(&files.wal.name), vec![], PathBuf::new()),
    };
    Piece { place, dirs, files: vec![(name, Content::Bytes(&files.wal.bytes))] }
}

fn build_and_place(disk: &impl Disk, pieces: Vec<Piece<'_>>, fill: &mut Fill<'_>) -> Result<Placed, Fault> {
    ensure_parents(disk, &pieces)?;
    let mut built = Vec::new();
    for piece in pieces {
        match build_piece(disk, piece, fill) {
            Ok(piece) => built.push(piece),
            Err(fault) => {
                discard(disk, &built);
                return Err(fault);
            }
        }
    }
    for (at, piece) in built.iter().enumerate() {
        match disk.rename_new(&piece.partial, &piece.piece.place) {
            Ok(()) => disk.sync_dir(parent(&piece.piece.place))?,
            Err(error) => {
                discard(disk, &built[at..]);
                let taken = error.kind() == io::ErrorKind::AlreadyExists;
                return if taken { Ok(Placed::TakenMeanwhile) } else { Err(error.into()) };
            }
        }
    }
    Ok(Placed::All)
}

/// Removes what this run has built and not placed. If that fails too, the next run does it.
fn discard(disk: &impl Disk, built: &[Built<'_>]) {
    for piece in built {
        let _ = disk.remove_partial(&piece.partial);
    }
}

fn build_piece<'a>(disk: &impl Disk, piece: Piece<'a>, fill: &mut Fill<'_>) -> Result<Built<'a>, Fault> {
    let owner = owner_for(&piece.place);
    let Some(partial) = partial_path(&piece.place, std::process::id()) else {
        return Err(super::bad_path("--data-dir", &piece.place, "it has no name of its own"));
    };
    let written = write_piece(disk, &piece, &partial, owner, fill);
    match written {
        Ok(lock) => Ok(Built { piece, partial, _lock: lock }),
        Err(fault) => {
            // Not ours to remove where another run has the name, or took it for a left-over.
            if fault.code() != Code::InitBusy {
                let _ = disk.remove_partial(&partial);
            }
            Err(fault)
        }
    }
}

fn write_piece(
    disk: &impl Disk,
    piece: &Piece<'_>,
    partial: &Path,
    owner: Option<Owner>,
    fill: &mut Fill<'_>,
) -> Result<Lock, Fault> {
    let dir_access = Access { mode: DIR_MODE, owner };
    let mut lock = None;
    for dir in &piece.dirs {
        disk.create_dir(&below(partial, dir), dir_access).map_err(|error| taken(error, partial, lock.as_ref()))?;
        own(partial, &mut lock)?;
    }
    for (name, content) in &piece.files {
        let path = below(partial, name);
        let mut file = disk
            .create_file(&path, Access { mode: FILE_MODE, owner })
            .map_err(|error| taken(error, partial, lock.as_ref()))?;
        own(partial, &mut lock)?;
        match content {
            Content::Bytes(bytes) => file.write_all(bytes)?,
            Content::Database(_) => fill(&mut file)?,
        }
        file.sync()?;
    }
    for dir in piece.dirs.iter().rev() {
        disk.sync_dir(&below(partial, dir))?;
    }
    lock.ok_or_else(|| Fault::new(Code::Internal, "cannot lock what was not made"))
}

/// A name with our own process id that exists already belongs to a run in another container, where ids repeat. One that is
/// gone before it could be locked was taken for a left-over by a run that looked in between.
fn taken(error: quorate_host::durable::DiskError, partial: &Path, lock: Option<&Lock>) -> Fault {
    match error.kind() {
        io::ErrorKind::AlreadyExists => left_overs::busy(partial),
        io::ErrorKind::NotFound if lock.is_none() && parent(partial).is_dir() => left_overs::busy(partial),
        _ => error.into(),
    }
}

/// Locks what this run has just made, the first time. A cleaner may have been quicker, and then the name is no longer ours.
fn own(partial: &Path, lock: &mut Option<Lock>) -> Result<(), Fault> {
    if lock.is_some() {
        return Ok(());
    }
    match left_overs::lock(partial)? {
        Locked::Ours(ours) => *lock = Some(ours),
        Locked::Gone | Locked::Busy => return Err(left_overs::busy(partial)),
    }
    Ok(())
}

/// Makes the missing directories above the pieces. They are durable when this returns, and so are those above them that a
/// run that was killed had made.
fn ensure_parents(disk: &impl Disk, pieces: &[Piece<'_>]) -> Result<(), Fault> {
    for piece in pieces {
        let access = Access { mode: DIR_MODE, owner: owner_for(&piece.place) };
        for dir in missing_above(&piece.place) {
            match disk.create_dir(&dir, access) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
                Ok(()) | Err(_) => {}
            }
        }
    }
    let holders = pieces.iter().flat_map(|piece| holders_of_what_was_made(parent(&piece.place)));
    let holders: BTreeSet<&Path> = holders.collect();
    holders.into_iter().try_for_each(|dir| sync_if_allowed(disk, dir))
}

fn missing_above(place: &Path) -> Vec<PathBuf> {
    let missing = |dir: &&Path| dir.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let mut dirs: Vec<PathBuf> = place.ancestors().skip(1).take_while(missing).map(Path::to_owned).collect();
    dirs.reverse();
    dirs
}

/// As root, what is made in someone's directory is theirs: etcd runs as its own user, and could not read root's files.
fn owner_for(place: &Path) -> Option<Owner> {
    let us = rustix::process::geteuid();
    let above = place.ancestors().skip(1).find_map(|dir| dir.metadata().ok())?;
    (us.is_root() && above.uid() != us.as_raw()).then_some(Owner { uid: above.uid(), gid: above.gid() })
}

/// `join`, without the trailing slash that joining an empty path adds.
fn below(base: &Path, path: impl AsRef<Path>) -> PathBuf {
    if path.as_ref().as_os_str().is_empty() { base.to_owned() } else { base.join(path) }
}
