//! The box's own root: an empty, read-only one, into which only what the view names is mounted.
//!
//! **Invariant:** nothing is mounted or made outside the new mount namespace, so nothing can be left behind.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, move_mount,
    open_tree, unmount,
};

use super::raw::add_mount_attributes;
use super::view::{Use, View};

const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const NO_SUID: u64 = libc::MOUNT_ATTR_NOSUID;
const NO_DEV: u64 = libc::MOUNT_ATTR_NODEV;
const NO_EXEC: u64 = libc::MOUNT_ATTR_NOEXEC;
/// The root itself: nothing is made in it, nothing of it does anything.
pub(super) const CLOSED: u64 = READ_ONLY | NO_SUID | NO_DEV | NO_EXEC;
/// Programs and libraries of the machine.
pub(super) const LENT: u64 = READ_ONLY | NO_SUID | NO_DEV;

/// Any directory will do: what is mounted there is seen by the box alone, and becomes its root.
pub(super) const BASES: [&str; 4] = ["/tmp", "/run", "/mnt", "/usr"];
/// Directories of a root are for everyone to go through.
pub(super) const OPEN: Mode = Mode::WGRP.union(Mode::WOTH);
/// Directories and links only; what programs write goes elsewhere.
pub(super) const ROOT_OPTIONS: &std::ffi::CStr = c"mode=755,size=1m";
/// It counts as the program's memory.
const TMP_OPTIONS: &std::ffi::CStr = c"mode=1777,size=64m";

/// What of a root there is.
pub(super) struct Rooms {
    pub(super) proc: bool,
}

/// Where something went wrong.
pub(super) type Step<T> = Result<T, (String, io::Error)>;

fn at<T, E: Into<io::Error>>(what: impl Into<String>, done: Result<T, E>) -> Step<T> {
    done.map_err(|error| (what.into(), error.into()))
}

/// Builds the root and moves into it.
pub(super) fn enter(view: &View, rooms: &Rooms) -> Step<()> {
    // The user of the box goes through what is made here, whatever whoever starts it keeps to itself.
    let ours = rustix::process::umask(OPEN);
    let built = build(view, rooms);
    rustix::process::umask(ours);
    built
}

fn build(view: &View, rooms: &Rooms) -> Step<()> {
    let alone = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    at("part from the machine's mounts", mount_change("/", alone))?;
    let trees = view.seen.iter().map(|seen| {
        let tree = tree(&seen.path, seen.is_dir, attributes(seen.may));
        at(format!("take `{}` along", seen.path.display()), tree)
    });
    // All are taken before the first is hidden by the new root.
    let trees = trees.collect::<Step<Vec<OwnedFd>>>()?;
    let base = BASES.iter().find(|base| Path::new(base).is_dir()).unwrap_or(&"/");
    at("make a root", mount(c"tmpfs", *base, c"tmpfs", MountFlags::NOSUID | MountFlags::NODEV, ROOT_OPTIONS))?;
    at("go to the new root", rustix::process::chdir(*base))?;
    rooms_of_its_own(rooms)?;
    for (path, says) in &view.links {
        at(format!("make the link `{}`", path.display()), link(path, says))?;
    }
    for (seen, tree) in view.seen.iter().zip(&trees) {
        at(format!("put `{}` into the root", seen.path.display()), place(&seen.path, seen.is_dir, tree))?;
    }
    drop(trees);
    at("change the root", rustix::process::pivot_root(".", "."))?;
    at("leave the old root", unmount(".", UnmountFlags::DETACH))?;
    at("go to the root", rustix::process::chdir("/"))?;
    let root = at("open the root", File::open("/"))?;
    at("close the root", add_mount_attributes(root.as_fd(), CLOSED, false))
}

fn attributes(may: Use) -> u64 {
    match may {
        Use::Execute | Use::Library => LENT,
        Use::Read => CLOSED,
        Use::Write => NO_SUID | NO_DEV | NO_EXEC,
        Use::WriteAndExecute => NO_SUID | NO_DEV,
        Use::Device => NO_SUID | NO_EXEC,
    }
}

/// A copy of what is mounted at a path and below, with fewer rights, not mounted anywhere yet.
pub(super) fn tree(path: &Path, is_dir: bool, attributes: u64) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if is_dir {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = open_tree(CWD, path, flags)?;
    add_mount_attributes(tree.as_fd(), attributes, is_dir)?;
    Ok(tree)
}

fn inside(path: &Path) -> PathBuf {
    Path::new(".").join(path.strip_prefix("/").unwrap_or(path))
}

pub(super) fn link(path: &Path, says: &Path) -> io::Result<()> {
    let path = inside(path);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::os::unix::fs::symlink(says, path)
}

pub(super) fn place(path: &Path, is_dir: bool, tree: &OwnedFd) -> io::Result<()> {
    let path = inside(path);
    // Within a directory that is mounted already it is there, and nothing can be made.
    if path.symlink_metadata().is_err() {
        if is_dir {
            std::fs::create_dir_all(&path)?;
        } else {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            File::create(&path)?;
        }
    }
    Ok(move_mount(tree, c"", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// `/proc`, `/tmp` and `/dev/shm`, which are the box's alone.
fn rooms_of_its_own(rooms: &Rooms) -> Step<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    for dir in ["proc", "tmp", "dev/shm"] {
        at(format!("make `/{dir}`"), std::fs::create_dir_all(dir))?;
    }
    if rooms.proc {
        at("mount `/proc`", mount(c"proc", "proc", c"proc", flags, c"hidepid=2,subset=pid"))?;
    }
    for dir in ["tmp", "dev/shm"] {
        at(format!("mount `/{dir}`"), mount(c"tmpfs", dir, c"tmpfs", flags, TMP_OPTIONS))?;
    }
    for (name, says) in [("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1")] {
        at("make links in `/dev`", std::os::unix::fs::symlink(says, Path::new("dev").join(name)))?;
    }
    at("make links in `/dev`", std::os::unix::fs::symlink("/proc/self/fd/2", "dev/stderr"))
}
