//! Reads rotated log files as one stream of lines, from the oldest to the newest, and goes on where more is written.
//!
//! **Invariant:** every line of every file that is there comes out once and in order, however often the files are rotated
//! meanwhile; where a file was rotated away before it could be read, the reader says so.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::files::numbered;
use super::lines::Lines;

/// How much is read at once.
const PIECE: usize = 64 << 10;

/// More old files than this are not looked for.
const NUMBER_MAX: u32 = 100_000;

/// Where a reader stands after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    /// There is more to read now.
    More,
    /// The end of the newest file; more may come.
    End,
    /// Files were rotated away before they could be read; it goes on with the oldest one that is there.
    Gap,
}

/// A reader of `path.N` to `path.1` and `path`.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    file: Option<File>,
    lines: Lines,
    piece: Vec<u8>,
}

impl LogReader {
    /// Begins with the oldest file, or with the oldest one that was written to after `since`; where none was, with what comes next.
    pub fn open(path: &Path, since: Option<SystemTime>) -> io::Result<LogReader> {
        let mut reader =
            LogReader { path: path.to_owned(), file: None, lines: Lines::default(), piece: vec![0; PIECE] };
        reader.file = reader.oldest(since)?;
        match reader.file {
            Some(_) => Ok(reader),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Reads the next piece and hands out each whole line, with its newline.
    pub fn read(&mut self, whole: impl FnMut(&[u8])) -> io::Result<Reached> {
        let Some(file) = &mut self.file else {
            self.file = self.oldest(None)?;
            return Ok(if self.file.is_some() { Reached::More } else { Reached::End });
        };
        let length = file.read(&mut self.piece)?;
        if length > 0 {
            self.lines.push(&self.piece[..length], whole);
            return Ok(Reached::More);
        }
        self.advance(whole)
    }

    /// Hands out what was never ended by a newline.
    pub fn finish(&mut self, whole: impl FnMut(&[u8])) {
        self.lines.finish(whole);
    }

    /// At the end of a file: stays there if it is the newest, else goes to the next newer one.
    fn advance(&mut self, mut whole: impl FnMut(&[u8])) -> io::Result<Reached> {
        let Some(ours) = &mut self.file else { return Ok(Reached::End) };
        let own = key(&ours.metadata()?);
        let number = match find(&self.path, own)? {
            Some(0) => return Ok(Reached::End),
            Some(number) => number,
            None => {
                self.lines.finish(&mut whole);
                self.file = self.oldest(None)?;
                return Ok(Reached::Gap);
            }
        };
        // Nobody writes to it any more, but something may have been written between our last read and its rotation.
        let length = ours.read(&mut self.piece)?;
        if length > 0 {
            self.lines.push(&self.piece[..length], whole);
            return Ok(Reached::More);
        }
        let Some((newer, at)) = next_newer(&self.path, number)? else { return Ok(Reached::End) };
        // Rotated once more in this moment: what was opened may be too new by one.
        let path = |number| numbered(&self.path, number);
        let mut between = (at + 1..number).map(|number| key_at(&path(number)));
        if key_at(&path(number))? != Some(own) || !between.all(|key| matches!(key, Ok(None))) {
            return Ok(Reached::More);
        }
        self.lines.finish(whole);
        self.file = Some(newer);
        Ok(Reached::More)
    }

    fn oldest(&self, since: Option<SystemTime>) -> io::Result<Option<File>> {
        let (mut oldest, mut holes) = (None, 0);
        for number in 0..=NUMBER_MAX {
            match open(&numbered(&self.path, number))? {
                Some(mut file) => {
                    let meta = file.metadata()?;
                    let too_old = |since| meta.modified().is_ok_and(|at| at < since);
                    if since.is_some_and(too_old) {
                        // The newest one is where more is to come: behind what is there.
                        if number == 0 {
                            file.seek(SeekFrom::Start(meta.len()))?;
                            oldest = Some(file);
                        }
                        break;
                    }
                    (oldest, holes) = (Some(file), 0);
                }
                None if holes == HOLES_MAX => break,
                None => holes += 1,
            }
        }
        Ok(oldest)
    }
}

/// Files are given their new numbers one after the other, the oldest first: meanwhile there is a hole among them, and one
/// at the beginning until the newest file gets its first line.
const HOLES_MAX: u32 = 2;

/// The number that a file has now. Numbers only grow, so looking upwards does not miss it.
fn find(path: &Path, own: (u64, u64)) -> io::Result<Option<u32>> {
    let mut holes = 0;
    for number in 0..=NUMBER_MAX {
        match key_at(&numbered(path, number))? {
            Some(key) if key == own => return Ok(Some(number)),
            Some(_) => holes = 0,
            None if holes == HOLES_MAX => break,
            None => holes += 1,
        }
    }
    Ok(None)
}

/// The nearest newer file that is there.
fn next_newer(path: &Path, number: u32) -> io::Result<Option<(File, u32)>> {
    for number in (0..number).rev() {
        if let Some(file) = open(&numbered(path, number))? {
            return Ok(Some((file, number)));
        }
    }
    Ok(None)
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a file is known by while it is open.
fn key(meta: &std::fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn key_at(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(Some(key(&meta))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{LogFiles, Rotation};
    use super::*;

    fn files(path: &Path, keep: u32) -> LogFiles {
        LogFiles::new(path, Rotation { bytes_max: 100, age_max_s: 1000, keep })
    }

    fn line(number: u32) -> String {
        format!("line {number:04}\n")
    }

    /// Reads until nothing more is there.
    fn drain(reader: &mut LogReader, into: &mut String) -> bool {
        let mut gap = false;
        loop {
            let reached = reader.read(|line| into.push_str(&String::from_utf8_lossy(line))).unwrap();
            match reached {
                Reached::More => {}
                Reached::Gap => gap = true,
                Reached::End => return gap,
            }
        }
    }

    #[test]
    fn rotated_files_are_read_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.log");
        assert_eq!(LogReader::open(&path, None).unwrap_err().kind(), io::ErrorKind::NotFound);
        let mut log = files(&path, 100);
        (0..95).for_each(|number| log.write(line(number).as_bytes()));
        assert!(log.counts().rotations > 8);
        let mut all = String::new();
        assert!(!drain(&mut LogReader::open(&path, None).unwrap(), &mut all));
        assert_eq!(all, (0..95).map(line).collect::<String>());
    }

    #[test]
    fn a_follower_misses_nothing_while_files_are_rotated_at_any_moment() {
        // Every rhythm of writing and reading: 1 line between looks up to more than three files full.
        for rhythm in 1..40 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("etcd.log");
            let mut log = files(&path, 100);
            log.write(line(0).as_bytes());
            let mut reader = LogReader::open(&path, None).unwrap();
            let mut all = String::new();
            for number in 1..200 {
                log.write(line(number).as_bytes());
                if number % rhythm == 0 {
                    assert!(!drain(&mut reader, &mut all));
                }
            }
            assert!(!drain(&mut reader, &mut all));
            assert_eq!(all, (0..200).map(line).collect::<String>(), "{rhythm}");
        }
    }

    #[test]
    fn a_follower_beside_a_writer_misses_nothing() {
        (0..10).for_each(|_| beside_a_writer());
    }

    fn beside_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.log");
        let mut log = LogFiles::new(&path, Rotation { bytes_max: 1000, age_max_s: 1000, keep: 60 });
        log.write(line(0).as_bytes());
        let mut reader = LogReader::open(&path, None).unwrap();
        let mut all = String::new();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (1..5000).for_each(|number| log.write(line(number).as_bytes())));
            while !writer.is_finished() {
                assert!(!drain(&mut reader, &mut all));
            }
        });
        assert!(!drain(&mut reader, &mut all));
        assert_eq!(all, (0..5000).map(line).collect::<String>());
    }

    #[test]
    fn a_file_that_someone_removed_is_stepped_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.log");
        let mut log = files(&path, 100);
        (0..60).for_each(|number| log.write(line(number).as_bytes()));
        rustix::fs::unlink(numbered(&path, 3)).unwrap();
        let mut all = String::new();
        assert!(!drain(&mut LogReader::open(&path, None).unwrap(), &mut all));
        assert!(all.starts_with(&line(0)) && all.ends_with(&line(59)) && all.lines().count() < 60, "{all}");
    }

    #[test]
    fn what_was_rotated_away_is_a_gap_and_not_silence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.log");
        let mut log = files(&path, 2);
        log.write(line(0).as_bytes());
        let mut reader = LogReader::open(&path, None).unwrap();
        let mut all = String::new();
        (1..100).for_each(|number| log.write(line(number).as_bytes()));
        assert!(drain(&mut reader, &mut all));
        assert!(all.starts_with(&line(0)) && all.ends_with(&line(99)), "{all}");
    }

    #[test]
    fn old_files_are_left_out_and_an_unended_line_is_handed_out_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.log");
        let mut log = files(&path, 5);
        (0..30).for_each(|number| log.write(line(number).as_bytes()));
        let old = File::options().append(true).open(numbered(&path, 2)).unwrap();
        old.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        let since = SystemTime::now() - Duration::from_secs(60);
        log.write(b"torn");
        let mut all = String::new();
        let mut reader = LogReader::open(&path, Some(since)).unwrap();
        drain(&mut reader, &mut all);
        assert!(!all.contains("line 0000") && all.ends_with("line 0029\n"), "{all}");
        reader.finish(|line| all.push_str(&String::from_utf8_lossy(line)));
        assert!(all.ends_with("torn\n"));
        // Nothing at all was written since, and then something is.
        let newest = File::options().append(true).open(&path).unwrap();
        newest.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        let mut reader = LogReader::open(&path, Some(since)).unwrap();
        let mut all = String::new();
        drain(&mut reader, &mut all);
        assert_eq!(all, "");
        log.write(b" and whole\n");
        drain(&mut reader, &mut all);
        assert_eq!(all, " and whole\n");
    }
}
