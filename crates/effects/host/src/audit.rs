//! The audit log of one member: who ran which privileged command, a JSON object per line.
//!
//! **Invariant:** a line is on disk before the command that it speaks of goes on; lines of commands that run at the same time
//! do not mix, and none is lost by rotation before its file is the oldest of all.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Uid};
use serde::{Deserialize, Serialize};

/// Its name in the state dir.
pub const FILE_NAME: &str = "audit.log";

/// A file that would grow beyond this is rotated first: some thousand lines.
const BYTES_MAX: u64 = 1 << 20;
/// So many old files are kept.
const KEEP: u32 = 9;
/// What a process started by no login has as its login.
const NO_LOGIN: u32 = u32::MAX;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in RFC 3339.
    pub at: String,
    /// The command: `exec`, `shell`, `trace`, `ctl`.
    pub command: String,
    /// What it was asked for, without what may be secret.
    pub words: Vec<String>,
    /// The member.
    pub member: String,
    /// The process that it acts on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_pid: Option<u32>,
    /// Who.
    pub who: Who,
}

/// Who ran it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// The user whose rights were used.
    pub uid: u32,
    /// The user who logged in, as the kernel knows it, also behind `sudo` and `su`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_uid: Option<u32>,
    /// Whom `sudo` says it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sudo_user: Option<String>,
    /// The process of the command.
    pub pid: u32,
}

impl Who {
    /// Us; `sudo_user` comes from the environment.
    pub fn us(sudo_user: Option<String>) -> Who {
        let login = std::fs::read_to_string("/proc/self/loginuid").ok().and_then(|text| text.trim().parse().ok());
        Who {
            uid: rustix::process::geteuid().as_raw(),
            login_uid: login.filter(|uid| *uid != NO_LOGIN),
            sudo_user,
            pid: std::process::id(),
        }
    }
}

/// Appends a line, durably.
pub fn record(dir: &Path, entry: &Entry) -> Result<(), Fault> {
    try_record(dir, entry, BYTES_MAX).map_err(|error| {
        Fault::new(Code::AuditFailed, format!("cannot write to the audit log `{}`", dir.join(FILE_NAME).display()))
            .hint("nothing was done; run it as the user of the agent or as root")
            .caused_by(error)
    })
}

/// The lines, the oldest first; what is no such line is counted.
pub fn read(dir: &Path) -> io::Result<(Vec<Entry>, usize)> {
    let (mut entries, mut foreign) = (Vec::new(), 0);
    for number in (0..=KEEP).rev() {
        let mut bytes = Vec::new();
        match File::open(numbered(dir, number)) {
            Ok(file) => file.take(BYTES_MAX * 2).read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(entry) => entries.push(entry),
                Err(_) => foreign += 1,
            }
        }
    }
    Ok((entries, foreign))
}

fn try_record(dir: &Path, entry: &Entry, bytes_max: u64) -> io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    let meta = dir.metadata()?;
    let owner = (Uid::from_raw(meta.uid()), Gid::from_raw(meta.gid()));
    let (lock, _) = open(&dir.join("audit.lock"), owner)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    let path = dir.join(FILE_NAME);
    let length = path.symlink_metadata().map_or(0, |meta| meta.len());
    let rotated = length > 0 && length + line.len() as u64 > bytes_max;
    if rotated {
        shift(dir)?;
    }
    let (mut file, made) = open(&path, owner)?;
    // A power cut may have left half a line, which must not swallow this one.
    let length = file.seek(SeekFrom::End(0))?;
    let mut last = [0];
    if length > 0 && file.read_exact_at(&mut last, length - 1).is_ok() && last != *b"\n" {
        line.insert(0, b'\n');
    }
    file.write_all(&line)?;
    file.sync_all()?;
    if made || rotated {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Opens for appending, private, and the dir's owner's: root may be the first to write, and the agent's user the next.
fn open(path: &Path, (uid, gid): (Uid, Gid)) -> io::Result<(File, bool)> {
    let made = path.symlink_metadata().is_err();
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    if meta.mode() & 0o777 != 0o600 {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600))?;
    }
    if (meta.uid(), meta.gid()) != (uid.as_raw(), gid.as_raw()) && rustix::process::geteuid().is_root() {
        rustix::fs::fchown(&file, Some(uid), Some(gid))?;
    }
    Ok((file, made))
}

fn numbered(dir: &Path, number: u32) -> PathBuf {
    dir.join(if number == 0 { FILE_NAME.to_owned() } else { format!("{FILE_NAME}.{number}") })
}

/// Gives each old file the next number; the last one goes.
fn shift(dir: &Path) -> io::Result<()> {
    for number in (0..=KEEP).rev() {
        let moved = if number == KEEP {
            rustix::fs::unlink(numbered(dir, number))
        } else {
            rustix::fs::rename(numbered(dir, number), numbered(dir, number + 1))
        };
        match moved {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn entry(word: &str) -> Entry {
        Entry {
            at: "2026-11-16T04:00:00Z".to_owned(),
            command: "exec".to_owned(),
            words: vec![word.to_owned()],
            member: "n1".to_owned(),
            process: Some("etcd".to_owned()),
            target_pid: Some(7),
            who: Who::us(None),
        }
    }

    fn words(dir: &Path) -> Vec<String> {
        read(dir).unwrap().0.into_iter().flat_map(|entry| entry.words).collect()
    }

    #[test]
    fn lines_are_private_whole_and_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        record(dir.path(), &entry("a")).unwrap();
        let path = dir.path().join(FILE_NAME);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        // Half a line, as a power cut leaves it.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"at\":").unwrap();
        record(dir.path(), &entry("b")).unwrap();
        assert_eq!(words(dir.path()), ["a", "b"]);
        assert_eq!(read(dir.path()).unwrap().1, 1);
    }

    #[test]
    fn files_are_rotated_by_size_and_only_so_many_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..15 {
            try_record(dir.path(), &entry(&format!("w{number}")), 10).unwrap();
        }
        let expected: Vec<String> = (5..15).map(|number| format!("w{number}")).collect();
        assert_eq!(words(dir.path()), expected);
    }

    #[test]
    fn commands_at_the_same_time_lose_no_line() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let dir = dir.path();
                scope.spawn(move || {
                    (0..10).for_each(|n| try_record(dir, &entry(&format!("{thread}-{n}")), 2000).unwrap());
                });
            }
        });
        assert_eq!(words(dir.path()).len(), 40);
    }

    #[test]
    fn a_link_is_not_followed_and_a_missing_dir_is_said() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join(FILE_NAME)).unwrap();
        assert_eq!(record(dir.path(), &entry("a")).unwrap_err().code(), Code::AuditFailed);
        assert_eq!(record(&dir.path().join("none"), &entry("a")).unwrap_err().code(), Code::AuditFailed);
    }
}
