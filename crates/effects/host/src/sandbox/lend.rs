//! Lends a command the machine's programs, where the box that it goes to has none.
//!
//! **Invariant:** all of it happens in a mount namespace of the command's own: the process in the box sees none of it, and
//! nothing is left of it when the command ends.

use std::fs::FileType;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

use super::held::Held;
use super::raw::{add_mount_attributes, own_mounts};
use super::root::{BASES, CLOSED, LENT, OPEN, ROOT_OPTIONS, link, place, tree};

/// Where programs and their libraries lie.
const DIRS: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/lib64"];

/// What is lent: directories, and links to them.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    dirs: Vec<(PathBuf, OwnedFd)>,
    links: Vec<(PathBuf, PathBuf)>,
}

/// The directories of what is lent that are no links, as rules name them.
pub(crate) fn lent_dirs() -> Vec<PathBuf> {
    let is_dir = |dir: &PathBuf| dir.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    DIRS.map(PathBuf::from).into_iter().filter(is_dir).collect()
}

/// Something that is mounted again in the command's root.
struct Again {
    path: PathBuf,
    is_dir: bool,
    tree: OwnedFd,
}

impl Lent {
    /// Takes the machine's programs along; to be called before its mounts are left.
    pub(crate) fn take() -> io::Result<Lent> {
        // A normal user may only copy mounts of a namespace that its user namespace owns.
        own_mounts()?;
        let alone = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", alone)?;
        let mut lent = Lent::default();
        for dir in DIRS.map(Path::new) {
            match dir.symlink_metadata() {
                Ok(meta) if meta.is_symlink() => lent.links.push((dir.to_owned(), std::fs::read_link(dir)?)),
                Ok(meta) if meta.is_dir() => lent.dirs.push((dir.to_owned(), tree(dir, true, LENT)?)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(lent)
    }

    /// Makes a root with all that the box has and what is lent, and moves into it; to be called within the box's mounts.
    pub(crate) fn give(&self, held: &Held) -> io::Result<()> {
        own_mounts()?;
        // The mask of the process is taken on after this.
        rustix::process::umask(OPEN);
        let (rest, mut links) = self.rest_of_root()?;
        links.extend(self.links.iter().cloned());
        // What the box has within a lent directory is put on top of it, so that it stays what the process sees.
        let within = held.seen().iter().filter(|seen| self.dirs.iter().any(|(dir, _)| seen.path.starts_with(dir)));
        let within = within.filter(|seen| !self.dirs.iter().any(|(dir, _)| seen.path == *dir));
        let within = within.map(|seen| again(&seen.path, seen.is_dir)).collect::<io::Result<Vec<Again>>>()?;
        let base = BASES.iter().find(|base| Path::new(base).is_dir()).unwrap_or(&"/");
        mount(c"tmpfs", *base, c"tmpfs", MountFlags::NOSUID | MountFlags::NODEV, ROOT_OPTIONS)?;
        rustix::process::chdir(*base)?;
        for (path, says) in &links {
            link(path, says)?;
        }
        for (path, tree) in &self.dirs {
            place(path, true, tree)?;
        }
        for Again { path, is_dir, tree } in rest.iter().chain(&within) {
            place(path, *is_dir, tree)?;
        }
        drop((rest, within));
        rustix::process::pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")?;
        let root = std::fs::File::open("/")?;
        add_mount_attributes(root.as_fd(), CLOSED, false)
    }

    /// What lies in the box's root and is not lent, with all that is mounted below; and its links.
    #[expect(clippy::type_complexity, reason = "two lists that are used once, side by side")]
    fn rest_of_root(&self) -> io::Result<(Vec<Again>, Vec<(PathBuf, PathBuf)>)> {
        let (mut rest, mut links) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir("/")? {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            let is_lent = DIRS.iter().any(|dir| Path::new(dir) == path);
            match FileType::is_symlink(&kind) {
                _ if is_lent => {}
                true => links.push((path.clone(), std::fs::read_link(path)?)),
                false => rest.push(again(&path, kind.is_dir())?),
            }
        }
        Ok((rest, links))
    }
}

fn again(path: &Path, is_dir: bool) -> io::Result<Again> {
    Ok(Again { path: path.to_owned(), is_dir, tree: tree(path, is_dir, 0)? })
}
