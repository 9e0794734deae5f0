//! Log files that are rotated by size and by age: `etcd.log` is written, `etcd.log.1` is the newest old one.
//!
//! **Invariant:** no failure to write stops the writer: the line is dropped and counted, and the next one is tried.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// When a log file is closed and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    /// A file that would grow beyond this is rotated first.
    pub bytes_max: u64,
    /// A file older than this is rotated.
    pub age_max_s: u64,
    /// How many old files are kept.
    pub keep: u32,
}

impl Default for Rotation {
    /// 64 MiB, a day, ten files: some weeks of a quiet member, and never more than 704 MiB.
    fn default() -> Rotation {
        Rotation { bytes_max: 64 << 20, age_max_s: 86_400, keep: 10 }
    }
}

/// What became of the lines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCounts {
    /// Lines written.
    pub lines: u64,
    /// Lines that could not be written.
    pub dropped_lines: u64,
    /// Times a file was rotated.
    pub rotations: u64,
    /// What the system said last, if anything went wrong.
    pub last_error: Option<String>,
}

/// The files of one program.
#[derive(Debug)]
pub struct LogFiles {
    path: PathBuf,
    rotation: Rotation,
    open: Option<Open>,
    counts: LogCounts,
}

#[derive(Debug)]
struct Open {
    file: File,
    bytes: u64,
    since: SystemTime,
    /// Ends in the middle of a line, because the disk was full.
    torn: bool,
}

impl LogFiles {
    /// Files called `path`, `path.1` and so on. Nothing is opened yet.
    pub fn new(path: &Path, rotation: Rotation) -> LogFiles {
        LogFiles { path: path.to_owned(), rotation, open: None, counts: LogCounts::default() }
    }

    /// What became of the lines so far.
    pub fn counts(&self) -> &LogCounts {
        &self.counts
    }

    /// Writes one line (or several whole ones), or drops it.
    pub fn write(&mut self, line: &[u8]) {
        match self.try_write(line) {
            Ok(()) => self.counts.lines += 1,
            Err(error) => {
                self.counts.dropped_lines += 1;
                self.counts.last_error = Some(error.to_string());
            }
        }
    }

    fn try_write(&mut self, line: &[u8]) -> io::Result<()> {
        self.rotate_if_due(line.len() as u64)?;
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(open(&self.path)?),
        };
        if open.torn {
            open.file.write_all(b"\n")?;
            open.torn = false;
            open.bytes += 1;
        }
        // One call for a line: a full disk takes a part of it, and that part is then closed by a newline of its own.
        let written = open.file.write(line)?;
        open.bytes += written as u64;
        if written < line.len() {
            open.torn = written > 0;
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }

    fn rotate_if_due(&mut self, more: u64) -> io::Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let age = open.since.elapsed().unwrap_or_default();
        let too_large = open.bytes > 0 && open.bytes + more > self.rotation.bytes_max;
        let too_old = open.bytes > 0 && age > Duration::from_secs(self.rotation.age_max_s);
        if !too_large && !too_old {
            return Ok(());
        }
        self.open = None;
        shift(&self.path, self.rotation.keep)?;
        self.counts.rotations += 1;
        Ok(())
    }
}

/// The name of the file that was rotated so many times.
pub(super) fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// Gives each old file the next number, from the oldest on; the one beyond the last is the one that goes.
fn shift(path: &Path, keep: u32) -> io::Result<()> {
    for number in (0..=keep).rev() {
        let moved = if number == keep {
            rustix::fs::unlink(numbered(path, number))
        } else {
            rustix::fs::rename(numbered(path, number), numbered(path, number + 1))
        };
        match moved {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<Open> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let file = OpenOptions::new().create(true).append(true).mode(0o640).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    let since = if meta.len() == 0 { SystemTime::now() } else { meta.created().or_else(|_| meta.modified())? };
    Ok(Open { bytes: meta.len(), since, torn: false, file })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_rotated_by_size_and_only_so_many_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.log");
        let mut files = LogFiles::new(&path, Rotation { bytes_max: 10, age_max_s: 1000, keep: 2 });
        for number in 0..10 {
            files.write(format!("line{number}\n").as_bytes());
        }
        let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            (text("etcd.log.2"), text("etcd.log.1"), text("etcd.log")),
            ("line7\n".into(), "line8\n".into(), "line9\n".into())
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        assert_eq!((files.counts().lines, files.counts().rotations), (10, 9));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn an_old_file_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.log");
        let mut files = LogFiles::new(&path, Rotation { bytes_max: 1000, age_max_s: 60, keep: 1 });
        files.write(b"a\n");
        files.open.as_mut().unwrap().since -= Duration::from_secs(61);
        files.write(b"b\n");
        assert_eq!(std::fs::read(dir.path().join("etcd.log.1")).unwrap(), b"a\n");
    }

    #[test]
    fn a_full_disk_costs_lines_and_nothing_else() {
        let mut files = LogFiles::new(Path::new("/dev/full"), Rotation::default());
        files.write(b"a\n");
        files.write(b"b\n");
        assert_eq!((files.counts().lines, files.counts().dropped_lines), (0, 2));
        assert!(files.counts().last_error.is_some());
    }
}
