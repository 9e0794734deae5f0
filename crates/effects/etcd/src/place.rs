//! The place of a member's directories: records where they are, and tells whether an empty one is still there.
//!
//! ```text
//!   data dir is a mount point   /data            /data/.quorate-marker
//!   any other data dir          /data/n1         /data/.n1.quorate-marker
//! ```
//!
//! What is beside a mount point belongs to another file system, and is no marker of it.
//!
//! **Invariant:** the marker is durable before the ledger names it, and one that is there is never replaced by another: cut off
//! between the two writes, the next start records the marker that it finds. What cannot be read is unknown, never another place.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, partial_path};
use quorate_host::mounts::Mounts;
use quorate_plan::ledger::{Place, Places};
use quorate_plan::start::PlaceState;

use crate::init::Target;

/// What the name of every marker ends in.
const MARKER: &str = ".quorate-marker";
/// Bytes of randomness in a marker.
const MARKER_BYTES: usize = 16;
/// Symbolic links that are followed at most, as the kernel does.
const LINKS_MAX: usize = 40;

/// Whether a file of this name in a data dir is a marker.
pub fn is_marker(name: &std::ffi::OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.ends_with(MARKER.as_bytes())
}

/// Records where the directories are now, with a marker in each place.
pub fn ensure_places<D: Disk>(disk: &D, target: &Target) -> Result<Places, Fault> {
    let mounts = Mounts::read().map_err(|error| Fault::io("cannot find out what is mounted", error))?;
    let data = ensure_place(disk, target.data_dir(), &mounts)?;
    let wal = target.wal_dir().map(|wal| ensure_place(disk, wal, &mounts)).transpose()?;
    Ok(Places { data, wal })
}

/// The marker of a directory that cannot have one is `None`: its mount point is recorded all the same.
fn ensure_place<D: Disk>(disk: &D, dir: &Path, mounts: &Mounts) -> Result<Place, Fault> {
    let path = resolve(dir);
    let mount = mounts.holder(&path);
    let mount = mount.ok_or_else(|| unknown(dir, "no file system is mounted at `/`"))?;
    let markers = markers(&path, &mount.mount_point);
    let marker = match markers.iter().find_map(|file| read_marker(file).ok().flatten()) {
        Some(marker) => Some(marker),
        None => {
            let fresh = fresh_marker()?;
            // A directory that is not there would be made by a marker in it.
            let possible = |file: &&PathBuf| **file != inside(&path) || path.is_dir();
            let written = markers.iter().filter(possible).any(|file| write_marker(disk, file, &fresh).is_ok());
            written.then_some(fresh)
        }
    };
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| unknown(dir, "its path is no text"));
    Ok(Place {
        declared: text(dir)?,
        path: text(&path)?,
        mount_point: text(&mount.mount_point)?,
        fs_type: mount.fs_type.clone(),
        marker,
    })
}

/// Whether the directories without data, of which one at least must be named, are where the data was.
pub fn observe_places(places: &Places, target: &Target, empty: Empty) -> PlaceState {
    let mounts = match Mounts::read() {
        Ok(mounts) => mounts,
        Err(error) => return PlaceState::Unknown(format!("/proc/self/mountinfo: {error}")),
    };
    let data = empty.data.then(|| observe_place(&places.data, target.data_dir(), &mounts));
    let wal = match (target.wal_dir(), &places.wal) {
        (Some(dir), Some(place)) if empty.wal => Some(observe_place(place, dir, &mounts)),
        // The file declares a separate WAL dir since then, or no more.
        _ => None,
    };
    data.into_iter().chain(wal).max_by_key(severity).unwrap_or(PlaceState::NotCompared)
}

/// Which directories hold nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Empty {
    /// The data dir.
    pub data: bool,
    /// The separate WAL dir.
    pub wal: bool,
}

/// Where the file system that holds a directory is mounted.
pub fn mount_point(dir: &Path) -> Result<String, Fault> {
    let mounts = Mounts::read().map_err(|error| Fault::io("cannot find out what is mounted", error))?;
    let mount = mounts.holder(&resolve(dir)).ok_or_else(|| unknown(dir, "no file system is mounted at `/`"))?;
    Ok(mount.mount_point.to_string_lossy().into_owned())
}

/// What says most about a member with two directories.
fn severity(state: &PlaceState) -> u8 {
    match state {
        PlaceState::NotMounted { .. } => 4,
        PlaceState::Unknown(_) => 3,
        PlaceState::OtherFileSystem { .. } => 2,
        PlaceState::Same => 1,
        PlaceState::NotCompared => 0,
    }
}

fn observe_place(place: &Place, dir: &Path, mounts: &Mounts) -> PlaceState {
    let now = resolve(dir);
    let shown = dir.display().to_string();
    let Some(holder) = mounts.holder(&now) else {
        return PlaceState::Unknown("no file system is mounted at `/`".to_owned());
    };
    let other = || PlaceState::OtherFileSystem {
        dir: shown.clone(),
        mount_point: holder.mount_point.to_string_lossy().into_owned(),
    };
    if Path::new(&place.declared) != dir {
        // The operator named another directory: what is mounted at the earlier one does not matter any more.
        return other();
    }
    if !mounts.is_mounted(Path::new(&place.mount_point)) {
        let (mount_point, fs_type) = (place.mount_point.clone(), place.fs_type.clone());
        return PlaceState::NotMounted { dir: shown, mount_point, fs_type };
    }
    if now != Path::new(&place.path) && now == dir {
        return PlaceState::Unknown(format!("`{shown}` led to `{}`, and is not there any more", place.path));
    }
    if now != Path::new(&place.path) || holder.mount_point != Path::new(&place.mount_point) {
        return other();
    }
    let markers = markers(&now, &holder.mount_point);
    let Some(marker) = &place.marker else {
        // A mount point without a marker is the same on every file system that is mounted there.
        return if now == holder.mount_point { other() } else { PlaceState::NotCompared };
    };
    for file in markers {
        match read_marker(&file) {
            Ok(Some(found)) if found == *marker => return PlaceState::Same,
            Ok(_) => {}
            Err(error) => return PlaceState::Unknown(format!("`{}`: {error}", file.display())),
        }
    }
    other()
}

/// Where the marker of a directory may be, the preferred place first. What is beside a mount point is on another file system, and
/// the same whatever is mounted there.
fn markers(path: &Path, mount_point: &Path) -> Vec<PathBuf> {
    match mount_point == path {
        true => vec![inside(path)],
        false => vec![beside(path), inside(path)],
    }
}

fn inside(path: &Path) -> PathBuf {
    path.join(MARKER)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(MARKER);
    path.with_file_name(name)
}

/// The path with symbolic links followed, also where it ends in a link that leads nowhere.
fn resolve(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let real = path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
        let Some((part, real)) = real else { return path };
        let rest = path.strip_prefix(part).unwrap_or(Path::new("")).to_owned();
        // The first name that is not there may be a link that leads nowhere.
        let mut names = rest.components();
        let Some(next) = names.next() else { return real };
        let Ok(link) = real.join(next).read_link() else { return real.join(rest) };
        let behind = names.as_path();
        path = if behind.as_os_str().is_empty() { real.join(link) } else { real.join(link).join(behind) };
    }
    path
}

/// What a marker file says. `None`: there is none, or one that says nothing.
fn read_marker(file: &Path) -> io::Result<Option<String>> {
    let opened = match std::fs::File::open(file) {
        Ok(opened) => opened,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    opened.take(256).read_to_end(&mut text)?;
    let text = String::from_utf8(text).unwrap_or_default();
    let marker = text.trim_end();
    let valid = marker.len() == 2 * MARKER_BYTES && marker.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(valid.then(|| marker.to_owned()))
}

fn fresh_marker() -> Result<String, Fault> {
    let mut bytes = [0; MARKER_BYTES];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Fault::io("cannot read /dev/urandom", error))?;
    Ok(hex(&bytes))
}

/// Durable when it returns. It is no secret, and another user may run the agent next.
fn write_marker<D: Disk>(disk: &D, path: &Path, marker: &str) -> Result<(), Fault> {
    let missing = || unknown(path, "it has no name of its own");
    let partial = partial_path(path, std::process::id()).ok_or_else(missing)?;
    let parent = path.parent().ok_or_else(missing)?;
    disk.remove_partial(&partial)?;
    let mut file = disk.create_file(&partial, Access::mode(0o644))?;
    file.write_all(format!("{marker}\n").as_bytes())?;
    file.sync()?;
    drop(file);
    match disk.rename_new(&partial, path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => disk.replace_file(&partial, path)?,
        Err(error) => return Err(error.into()),
    }
    Ok(disk.sync_dir(parent)?)
}

fn unknown(path: &Path, why: &str) -> Fault {
    Fault::new(Code::Io, format!("cannot tell where `{}` is", path.display())).caused_by(why.to_owned())
}

#[cfg(test)]
mod tests {
    use quorate_host::durable::RealDisk;

    use super::*;

    const BOTH: Empty = Empty { data: true, wal: true };

    #[test]
    fn a_marker_is_written_once_and_tells_a_removed_directory_from_another_place() {
        let root = tempfile::tempdir().unwrap();
        let target = Target::new(&root.path().join("n1"), Some(&root.path().join("wal/n1"))).unwrap();
        std::fs::create_dir_all(root.path().join("wal")).unwrap();
        let places = ensure_places(&RealDisk, &target).unwrap();
        assert_eq!(ensure_places(&RealDisk, &target).unwrap(), places, "the marker that is there stays");
        assert!(root.path().join(".n1.quorate-marker").exists() && root.path().join("wal/.n1.quorate-marker").exists());
        assert_eq!(observe_places(&places, &target, BOTH), PlaceState::Same);
        std::fs::remove_file(root.path().join("wal/.n1.quorate-marker")).unwrap();
        let seen = observe_places(&places, &target, BOTH);
        assert!(matches!(&seen, PlaceState::OtherFileSystem { dir, .. } if dir.ends_with("wal/n1")), "{seen:?}");
        assert_eq!(observe_places(&places, &target, Empty { wal: false, ..BOTH }), PlaceState::Same);
        let moved = Target::new(&root.path().join("n2"), None).unwrap();
        let seen = observe_places(&places, &moved, BOTH);
        assert!(matches!(seen, PlaceState::OtherFileSystem { .. }), "the file names another directory: {seen:?}");
    }

    #[test]
    fn a_mount_point_that_is_recorded_and_not_mounted_is_named() {
        let root = tempfile::tempdir().unwrap();
        let target = Target::new(&root.path().join("n1"), None).unwrap();
        let mut places = ensure_places(&RealDisk, &target).unwrap();
        places.data.mount_point = root.path().display().to_string();
        let seen = observe_places(&places, &target, BOTH);
        assert!(matches!(&seen, PlaceState::NotMounted { mount_point, .. } if *mount_point == places.data.mount_point));
    }

    #[test]
    fn links_are_followed_also_where_they_lead_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("disk/n1", real.join("link")).unwrap();
        assert_eq!(resolve(&real.join("link")), real.join("disk/n1"));
        let target = Target::new(&real.join("link"), None).unwrap();
        std::fs::create_dir_all(real.join("disk/n1")).unwrap();
        let places = ensure_places(&RealDisk, &target).unwrap();
        assert!(real.join("disk/.n1.quorate-marker").exists());
        std::fs::remove_file(real.join("link")).unwrap();
        assert!(matches!(observe_places(&places, &target, BOTH), PlaceState::Unknown(_)), "the link is gone");
    }
}
