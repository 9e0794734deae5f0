//! Whose files are: gives what belongs to a program to the user that it runs as.
//!
//! **Invariant:** nothing outside the given file or directory is changed: no link in it is followed, and a file with a second
//! name somewhere is refused. Cut off anywhere, the next call goes on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use quorate_faults::{Code, Fault};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::process::{Gid, Uid};

use crate::durable::Owner;

/// No data dir is deeper; a deeper tree is another thing.
const DEPTH_MAX: u32 = 16;

/// What somebody must be able to do with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum May {
    /// Read it.
    Read,
    /// Go through it, a directory.
    Enter,
}

impl May {
    fn bit(self) -> u32 {
        match self {
            May::Read => 0o4,
            May::Enter => 0o1,
        }
    }
}

/// Finds a user by name, or takes a number for one; its group has the same number then.
pub fn find_user(name: &str) -> Result<Owner, Fault> {
    let unknown = || {
        Fault::new(Code::BoxUser, format!("there is no user `{name}` for the box"))
            .hint("make it (`useradd --system NAME`), or name another")
    };
    let table = std::fs::read_to_string("/etc/passwd").map_err(|error| unknown().caused_by(error))?;
    let named = users(&table).find(|(there, _)| *there == name).map(|(_, owner)| owner);
    let number = || name.parse().ok().map(|uid: u32| Owner { uid, gid: uid });
    named.or_else(number).ok_or_else(unknown)
}

/// Who has a number, where somebody does.
pub fn user_with_number(uid: u32) -> Option<String> {
    let table = std::fs::read_to_string("/etc/passwd").ok()?;
    users(&table).find(|(_, owner)| owner.uid == uid).map(|(name, _)| name.to_owned())
}

fn users(table: &str) -> impl Iterator<Item = (&str, Owner)> {
    table.lines().filter_map(|line| {
        let mut words = line.split(':');
        let name = words.next()?;
        let mut numbers = words.skip(1);
        Some((name, Owner { uid: numbers.next()?.parse().ok()?, gid: numbers.next()?.parse().ok()? }))
    })
}

/// Gives a directory and all that is in it to a user. Returns how much had to be changed.
pub fn ensure_owner(dir: &Path, owner: Owner) -> Result<u64, Fault> {
    let fail = |error: io::Error| not_given(dir, error);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(dir, flags, Mode::empty()).map_err(|errno| fail(errno.into()))?;
    let stat = rustix::fs::fstat(&top).map_err(|errno| fail(errno.into()))?;
    let mut giving = Giving { owner, changed: 0 };
    giving.below(&top, dir, 0)?;
    // The dir last: until all of it is done, the next call sees that it is not.
    giving.one(top.as_fd(), &stat, dir)?;
    Ok(giving.changed)
}

/// Whether somebody can do that with a file, as its mode says.
pub fn may(path: &Path, owner: Owner, may: May) -> io::Result<bool> {
    Ok(is_allowed(&rustix::fs::stat(path)?, owner, may))
}

/// Lets somebody do that with a file of ours by its group, and nobody else. Returns whether it had to be changed.
pub fn ensure_may(path: &Path, owner: Owner, may: May) -> Result<bool, Fault> {
    let fail = |error: io::Error| not_given(path, error);
    let file = std::fs::File::open(path).map_err(fail)?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| fail(errno.into()))?;
    if is_allowed(&stat, owner, may) {
        return Ok(false);
    }
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    // Whoever has it by its group now would lose it.
    let taken = stat.st_gid != owner.gid && stat.st_mode & 0o070 != 0 && stat.st_gid != 0;
    if stat.st_uid != rustix::process::geteuid().as_raw() || taken || (!is_dir && stat.st_nlink > 1) {
        let why = "it is not ours alone, and its owner decides who may have it";
        return Err(not_given(path, io::Error::other(why)));
    }
    // The group first: a mode for the group before would open it to another.
    rustix::fs::fchown(&file, None, Some(Gid::from_raw(owner.gid))).map_err(|errno| fail(errno.into()))?;
    let mode = (stat.st_mode & 0o7707) | (may.bit() << 3);
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(|errno| fail(errno.into()))?;
    Ok(true)
}

fn is_allowed(stat: &Stat, owner: Owner, may: May) -> bool {
    let shift = if stat.st_uid == owner.uid {
        6
    } else if stat.st_gid == owner.gid {
        3
    } else {
        0
    };
    owner.uid == 0 || stat.st_mode & (may.bit() << shift) != 0
}

struct Giving {
    owner: Owner,
    changed: u64,
}

impl Giving {
    fn below(&mut self, dir: &OwnedFd, path: &Path, depth: u32) -> Result<(), Fault> {
        let fail = |errno: rustix::io::Errno| not_given(path, errno.into());
        if depth >= DEPTH_MAX {
            return Err(not_given(path, io::Error::other("it is deeper than any data dir")));
        }
        for entry in Dir::read_from(dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name();
            // The last is the file system's own.
            if matches!(name.to_bytes(), b"." | b".." | b"lost+found") {
                continue;
            }
            let inner = path.join(name.to_string_lossy().as_ref());
            let seen = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match rustix::fs::openat(dir, name, seen, Mode::empty()) {
                Ok(file) => file,
                // What vanished meanwhile needs no owner.
                Err(rustix::io::Errno::NOENT) => continue,
                Err(errno) => return Err(not_given(&inner, errno.into())),
            };
            let stat = rustix::fs::fstat(&file).map_err(fail)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let open = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(fail)?;
                self.below(&open, &inner, depth + 1)?;
            }
            self.one(file.as_fd(), &stat, &inner)?;
        }
        Ok(())
    }

    fn one(&mut self, file: BorrowedFd<'_>, stat: &Stat, path: &Path) -> Result<(), Fault> {
        if (stat.st_uid, stat.st_gid) == (self.owner.uid, self.owner.gid) {
            return Ok(());
        }
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_dir && stat.st_nlink > 1 {
            return Err(not_given(path, io::Error::other("it has a second name, which may be somebody else's file")));
        }
        let (uid, gid) = (Uid::from_raw(self.owner.uid), Gid::from_raw(self.owner.gid));
        rustix::fs::chownat(file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
            .map_err(|errno| not_given(path, errno.into()))?;
        self.changed += 1;
        Ok(())
    }
}

fn not_given(path: &Path, error: io::Error) -> Fault {
    Fault::new(Code::NotGiven, format!("cannot give `{}` to the user of the box", path.display()))
        .hint("change its owner or group by hand, or name another user; see `quorate explain Q1107`")
        .caused_by(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    /// As root another user, else ourselves: then nothing can be changed, and nothing needs to be.
    fn somebody() -> Owner {
        let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if me.0 == 0 { Owner { uid: 61_079, gid: 61_079 } } else { Owner { uid: me.0, gid: me.1 } }
    }

    #[test]
    fn a_tree_is_given_and_nothing_that_its_links_lead_to() {
        let root = tempfile::tempdir().unwrap();
        let (dir, outside) = (root.path().join("data"), root.path().join("outside"));
        std::fs::create_dir_all(dir.join("member/wal")).unwrap();
        std::fs::File::create(dir.join("member/wal/0.wal")).unwrap();
        std::fs::File::create(&outside).unwrap();
        symlink(&outside, dir.join("link")).unwrap();
        let (owner, before) = (somebody(), outside.metadata().unwrap().uid());
        let changed = ensure_owner(&dir, owner).unwrap();
        assert_eq!(changed, if before == owner.uid { 0 } else { 5 });
        for path in ["", "member", "member/wal", "member/wal/0.wal"] {
            let meta = dir.join(path).metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid()), (owner.uid, owner.gid), "{path}");
        }
        assert_eq!(outside.metadata().unwrap().uid(), before);
        assert_eq!(ensure_owner(&dir, owner).unwrap(), 0, "the second time nothing is left to do");
    }

    #[test]
    fn a_file_with_a_second_name_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (dir, outside) = (root.path().join("data"), root.path().join("outside"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::File::create(&outside).unwrap();
        std::fs::hard_link(&outside, dir.join("trap")).unwrap();
        let other = Owner { uid: 61_079, gid: 61_079 };
        assert_eq!(ensure_owner(&dir, other).unwrap_err().code(), Code::NotGiven);
        assert_eq!(outside.metadata().unwrap().uid(), rustix::process::geteuid().as_raw());
    }

    #[test]
    fn a_key_is_opened_to_one_group_and_stays_closed_to_the_rest() {
        let root = tempfile::tempdir().unwrap();
        let key = root.path().join("key");
        std::fs::File::create(&key).unwrap();
        let mode = |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        let owner = somebody();
        assert_eq!(ensure_may(&key, owner, May::Read).unwrap(), rustix::process::geteuid().is_root());
        assert!(may(&key, owner, May::Read).unwrap() && !ensure_may(&key, owner, May::Read).unwrap());
        if rustix::process::geteuid().is_root() {
            let meta = key.metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (0, owner.gid, 0o640));
            // A group that has it already keeps it.
            rustix::fs::chown(&key, None, Some(Gid::from_raw(7))).unwrap();
            assert_eq!(ensure_may(&key, owner, May::Read).unwrap_err().code(), Code::NotGiven);
            assert_eq!(key.metadata().unwrap().gid(), 7);
        }
    }

    #[test]
    fn users_are_found_by_name_and_by_number() {
        assert_eq!(find_user("root").unwrap(), Owner { uid: 0, gid: 0 });
        assert_eq!(find_user("4711").unwrap(), Owner { uid: 4711, gid: 4711 });
        assert_eq!(find_user("no-such-user").unwrap_err().code(), Code::BoxUser);
        assert_eq!((user_with_number(0).as_deref(), user_with_number(61_079)), (Some("root"), None));
        let table = "a:x:1:2::/:\nbad\nc:x:y:2\n";
        assert_eq!(users(table).collect::<Vec<_>>(), [("a", Owner { uid: 1, gid: 2 })]);
    }
}
