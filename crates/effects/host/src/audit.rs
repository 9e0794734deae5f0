//! The audit log of one member: who ran which privileged command, and which remote orders came, a JSON object per line.
//!
//! **Invariant:** a line is on disk before the command that it speaks of goes on; lines of commands that run at the same time
//! do not mix, and none is lost by rotation before its file is the oldest of all. Every line continues the hash chain
//! ([`chain`]), across files, and a copy goes to the journal ([`forward`]).

pub mod chain;
mod forward;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Uid};
use serde::{Deserialize, Serialize};

pub use chain::{Break, Link, Record, Verdict};
use chain::{Line, Verifier};

/// Its name in the state dir.
pub const FILE_NAME: &str = "audit.log";

/// Who writes holds this lock.
const LOCK_NAME: &str = "audit.lock";

/// A file that would grow beyond this is rotated first: some thousand lines.
const BYTES_MAX: u64 = 1 << 20;
/// So many old files are kept.
const KEEP: u32 = 9;
/// Of one file that is read: more than rotation lets a file grow to.
const READ_BYTES_MAX: u64 = BYTES_MAX * 2;
/// Of one file that is named to be verified.
const VERIFY_BYTES_MAX: u64 = 256 << 20;
/// What a process started by no login has as its login.
const NO_LOGIN: u32 = u32::MAX;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in RFC 3339.
    pub at: String,
    /// The command: `exec`, `shell`, `trace`, `ctl`; `order` for one that came from another machine, `result` for its result.
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
    /// Who; for an order, the agent that carries it out.
    pub who: Who,
    /// Where an order came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// The number of the record whose result this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_of: Option<u64>,
}

/// Where an order came from, as the listener observed it: nothing here is chosen by the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// The address of the other end of the connection.
    pub address: String,
    /// The node that the certificate names; none: it names none, or the connection has no certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The subject of the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Its serial number, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The SHA-256 of the certificate of the authority that signed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
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

/// Appends a line, durably, and sends a copy to the journal. Returns the place of the line in the chain.
pub fn record(dir: &Path, entry: &Entry) -> Result<Link, Fault> {
    try_record(dir, entry, BYTES_MAX).map_err(|error| {
        Fault::new(Code::AuditFailed, format!("cannot write to the audit log `{}`", dir.join(FILE_NAME).display()))
            .hint("nothing was done; run it as the user of the agent or as root")
            .caused_by(error)
    })
}

/// The lines, the oldest first; what is no such line is counted.
pub fn read(dir: &Path) -> io::Result<(Vec<Record>, usize)> {
    let (mut records, mut foreign) = (Vec::new(), 0);
    for number in (0..=KEEP).rev() {
        let Some(bytes) = read_file(&numbered(dir, number), READ_BYTES_MAX)? else { continue };
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match chain::parse(line) {
                Line::Chained { record, .. } => records.push(*record),
                Line::Unchained(entry) => records.push(Record { entry: *entry, link: None }),
                Line::Unreadable => foreign += 1,
            }
        }
    }
    Ok((records, foreign))
}

/// Checks the chain through all files of a member. `expected`: a hash that was noted earlier.
pub fn verify(dir: &Path, expected: Option<&str>) -> io::Result<Verdict> {
    // Where lines were ever written, nobody rotates meanwhile.
    let lock = File::open(dir.join(LOCK_NAME)).ok();
    if let Some(lock) = &lock {
        rustix::fs::flock(lock, FlockOperation::LockShared)?;
    }
    let oldest_may_be_gone = numbered(dir, KEEP).symlink_metadata().is_ok();
    let mut verifier = Verifier::new(oldest_may_be_gone, expected);
    for number in (0..=KEEP).rev() {
        let path = numbered(dir, number);
        if let Some(bytes) = read_file(&path, VERIFY_BYTES_MAX)? {
            verifier.add(&path.display().to_string(), &bytes);
        }
    }
    Ok(verifier.finish())
}

/// Checks the chain within one file, which others may precede.
pub fn verify_file(path: &Path, expected: Option<&str>) -> io::Result<Verdict> {
    let bytes = read_file(path, VERIFY_BYTES_MAX)?.ok_or(io::ErrorKind::NotFound)?;
    let mut verifier = Verifier::new(true, expected);
    verifier.add(&path.display().to_string(), &bytes);
    Ok(verifier.finish())
}

/// `None`: there is no such file.
fn read_file(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "no audit log is that large"));
    }
    Ok(Some(bytes))
}

/// The last record of the chain, which the next one continues.
fn last_link(dir: &Path) -> io::Result<Option<Link>> {
    for number in 0..=KEEP {
        let mut bytes = Vec::new();
        match File::open(numbered(dir, number)) {
            Ok(mut file) => {
                // Whatever others put into it, its end is enough.
                let length = file.seek(SeekFrom::End(0))?;
                file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES_MAX)))?;
                file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        }
        if let Some(link) = chain::last_link(&bytes) {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

fn try_record(dir: &Path, entry: &Entry, bytes_max: u64) -> io::Result<Link> {
    let meta = dir.metadata()?;
    let owner = (Uid::from_raw(meta.uid()), Gid::from_raw(meta.gid()));
    let (lock, _) = open(&dir.join(LOCK_NAME), owner)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    let (mut line, link) = chain::seal(entry, last_link(dir)?.as_ref())?;
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
    let torn = length > 0 && file.read_exact_at(&mut last, length - 1).is_ok() && last != *b"\n";
    if torn {
        line.insert(0, b'\n');
    }
    if let Err(error) = file.write_all(&line).and_then(|()| file.sync_all()) {
        // What a full disk took of it is no record.
        let _ = file.set_len(length);
        return Err(error);
    }
    if made || rotated {
        File::open(dir)?.sync_all()?;
    }
    forward::forward(Path::new(forward::SOCKET), &link, line.trim_ascii());
    Ok(link)
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
            remote: None,
            result_of: None,
        }
    }

    fn words(dir: &Path) -> Vec<String> {
        read(dir).unwrap().0.into_iter().flat_map(|record| record.entry.words).collect()
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
        // The chain goes through all of them.
        let verdict = verify(dir.path(), None).unwrap();
        assert_eq!((verdict.first, verdict.last, verdict.breaks_total), (Some(6), Some(15), 0));
        rustix::fs::unlink(numbered(dir.path(), 4)).unwrap();
        assert_eq!(verify(dir.path(), None).unwrap().breaks_total, 1);
        rustix::fs::unlink(numbered(dir.path(), KEEP)).unwrap();
        assert_eq!(verify(dir.path(), None).unwrap().breaks_total, 2, "the oldest file is missing");
    }

    #[test]
    fn commands_at_the_same_time_lose_no_line() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let dir = dir.path();
                scope.spawn(move || {
                    for n in 0..10 {
                        try_record(dir, &entry(&format!("{thread}-{n}")), 2000).unwrap();
                    }
                });
            }
        });
        assert_eq!(words(dir.path()).len(), 40);
        let verdict = verify(dir.path(), None).unwrap();
        assert_eq!((verdict.records, verdict.breaks_total), (40, 0));
    }

    #[test]
    fn lines_of_earlier_releases_stay_readable_and_the_chain_begins_behind_them() {
        let dir = tempfile::tempdir().unwrap();
        let old =
            r#"{"at":"2026-01-01T00:00:00Z","command":"exec","words":["a"],"member":"n1","who":{"uid":0,"pid":3}}"#;
        std::fs::File::create(dir.path().join(FILE_NAME)).unwrap().write_all(format!("{old}\n").as_bytes()).unwrap();
        assert_eq!(record(dir.path(), &entry("b")).unwrap().seq, 1);
        assert_eq!(words(dir.path()), ["a", "b"]);
        let verdict = verify(dir.path(), None).unwrap();
        assert_eq!((verdict.unchained, verdict.records, verdict.breaks_total), (1, 1, 0));
        // Without its newest file, the chain continues behind the one before.
        (0..3).for_each(|_| drop(try_record(dir.path(), &entry("c"), 10).unwrap()));
        rustix::fs::unlink(dir.path().join(FILE_NAME)).unwrap();
        assert_eq!(record(dir.path(), &entry("d")).unwrap().seq, 4);
    }

    #[test]
    fn a_link_is_not_followed_and_a_missing_dir_is_said() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join(FILE_NAME)).unwrap();
        assert_eq!(record(dir.path(), &entry("a")).unwrap_err().code(), Code::AuditFailed);
        assert_eq!(record(&dir.path().join("none"), &entry("a")).unwrap_err().code(), Code::AuditFailed);
    }
}
