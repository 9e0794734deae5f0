//! Copies a data dir, with its whole log marked as committed.
//!
//! A member that was no leader learns with the next message what a quorum has; so the last entries of its log may have been
//! acknowledged to clients though it does not know that. etcd drops such entries when it is told to go on alone. In the copy
//! they are marked as committed instead: what was acknowledged and is here is kept, and what was still on its way may be too.
//!
//! **Invariant:** the original is read, and nothing else; the copy is durable when it is said to be there.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use quorate_etcd::datadir::{self, FileSource, Found};
use quorate_etcd::init::{DIR_MODE, FILE_MODE, Target};
use quorate_etcd_formats::dir::{DataDir, InUse};
use quorate_etcd_formats::messages::HardState;
use quorate_etcd_formats::wal::{
    self, ScanOptions, SegmentReader, Step, Tail, WalFile, WalReadError, WalSummary, WalWriter,
};
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, RealDisk};

/// How much is copied at a time.
const PIECE_BYTES: usize = 1 << 20;

/// How a log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// The term of its last entry.
    pub(super) term: u64,
    /// Its index.
    pub(super) index: u64,
    /// Up to where it is known to be committed.
    pub(super) commit: u64,
}

/// Why a log leads to nothing.
#[derive(Debug)]
pub(super) enum NoLog {
    /// There is none.
    Missing,
    /// It cannot be read now.
    Unread(WalReadError),
    /// It was read, and is damaged.
    Damaged {
        /// The segment.
        file: String,
        /// The place in it.
        offset: u64,
    },
}

impl fmt::Display for NoLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoLog::Missing => write!(f, "there is no WAL"),
            NoLog::Unread(error) => write!(f, "the WAL cannot be read: {error}"),
            NoLog::Damaged { file, offset } => write!(f, "the WAL is damaged in `{file}` at byte {offset}"),
        }
    }
}

impl NoLog {
    /// Whether it is the data that is at fault, and not the look at it.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            NoLog::Missing | NoLog::Damaged { .. } => true,
            NoLog::Unread(_) => false,
        }
    }
}

/// Reads the log of a data dir, also of one that an etcd without a leader works on.
pub(super) fn scan(view: &DataDir<'_>) -> Result<(WalSummary, End), NoLog> {
    let named = view.wal_files();
    let files: Vec<WalFile<'_>> = named.iter().map(|file| WalFile { name: file.name, source: file.source }).collect();
    if files.is_empty() {
        return Err(NoLog::Missing);
    }
    let summary = wal::scan(&files, &ScanOptions::default()).map_err(NoLog::Unread)?;
    if let Tail::Corrupt(damage) = &summary.tail {
        return Err(NoLog::Damaged { file: damage.file.clone(), offset: damage.offset });
    }
    let index = summary.last_index();
    let term = summary.term_at(index).or(summary.last_entry.map(|(_, term)| term)).unwrap_or(0);
    let commit = summary.commit();
    Ok((summary, End { term, index, commit }))
}

/// Copies the data of `target` into the new directory `copy`, which holds the data dir `data`. Returns how its log ends.
pub(super) fn copy_data(target: &Target, copy: &Path, wanted: (u64, u64)) -> Result<End, Fault> {
    let dir = target.data_dir();
    let attempt = || format!("cannot copy `{}`", dir.display());
    let Found::DataDir(open) = datadir::open(dir, target.wal_dir())? else {
        return Err(datadir::not_etcd(attempt(), "it is a file"));
    };
    let view = open.view();
    if view.in_use != InUse::No {
        return Err(
            Fault::new(Code::DataInUse, format!("{}: an etcd works on it", attempt())).hint("it is stopped first")
        );
    }
    let (summary, end) = scan(&view).map_err(|why| {
        Fault::new(Code::RecoverBoot, format!("{}: {why}", attempt())).hint("recover from another node, or the backup")
    })?;
    if (end.term, end.index) != wanted {
        let why =
            format!("its log ends with entry {} of term {}, and not {} of {}", end.index, end.term, wanted.1, wanted.0);
        return Err(Fault::new(Code::RecoverChanged, format!("`{}` is not what the survey saw: {why}", dir.display()))
            .hint("run `quorate cluster recover` again"));
    }
    RealDisk.remove_partial(copy)?;
    let (data, member) = (copy.join("data"), copy.join("data/member"));
    let (snap, log) = (member.join("snap"), member.join("wal"));
    for new in [copy, &data, &member, &snap, &log] {
        RealDisk.create_dir(new, Access::mode(DIR_MODE))?;
    }
    for file in view.snap_files().into_iter().chain(view.db()) {
        copy_file(&dir.join(file.path), &snap.join(file.name), u64::MAX, &[])?;
    }
    copy_log(target, &view, &summary, end, &log)?;
    for new in [&log, &snap, &member, &data, copy] {
        RealDisk.sync_dir(new)?;
    }
    Ok(RealDisk.sync_dir(&parent(copy)).map(|()| end)?)
}

/// Every segment, the last one up to its end and with the mark behind it.
fn copy_log(target: &Target, view: &DataDir<'_>, summary: &WalSummary, end: End, to: &Path) -> Result<(), Fault> {
    let from = target.wal_dir().map_or_else(|| target.data_dir().join("member/wal"), Path::to_owned);
    let files = view.wal_files();
    let mut names: Vec<&str> = files.iter().map(|file| file.name).filter(|name| name.ends_with(".wal")).collect();
    names.sort_unstable();
    let Some((last, before)) = names.split_last() else { return Ok(()) };
    for name in before {
        copy_file(&from.join(name), &to.join(name), u64::MAX, &[])?;
    }
    let path = from.join(last);
    let (length, crc) = good_part(&path)?;
    let state = summary.hard_state;
    let mut writer = WalWriter::new(crc);
    writer.state(&HardState {
        term: Some(state.map_or(end.term, |state| state.term()).max(end.term)),
        vote: Some(state.map_or(0, |state| state.vote())),
        commit: Some(end.index.max(end.commit)),
    });
    copy_file(&path, &to.join(last), length, &writer.finish())
}

/// Where the records of the last segment end, and the CRC that the next one goes on with.
fn good_part(path: &Path) -> Result<(u64, u32), Fault> {
    let fail = |error| Fault::io(format!("cannot read `{}`", path.display()), error);
    let source = FileSource::open(path).map_err(fail)?;
    let mut reader = SegmentReader::new(&source, None, true);
    let damaged = |offset, why: String| {
        Fault::new(Code::RecoverBoot, format!("`{}` is damaged at byte {offset}: {why}", path.display()))
            .hint("recover from another node, or the backup")
    };
    loop {
        let step = reader.step().map_err(|error| fail(std::io::Error::other(error)))?;
        let offset = match step {
            Step::Record { .. } => continue,
            Step::End { offset } | Step::Torn { offset, .. } => offset,
            Step::Damaged { offset, damage } => return Err(damaged(offset, damage.to_string())),
        };
        let hole = wal::find_hole(&source, offset, reader.crc());
        if let Some(hole) = hole.map_err(|error| fail(std::io::Error::other(error)))? {
            return Err(damaged(offset, hole.to_string()));
        }
        return Ok((offset, reader.crc().unwrap_or(0)));
    }
}

/// Copies the first `length` bytes, and writes `more` behind them.
fn copy_file(from: &Path, to: &Path, length: u64, more: &[u8]) -> Result<(), Fault> {
    let fail = |error| Fault::io(format!("cannot copy `{}`", from.display()), error);
    let mut source = File::open(from).map_err(fail)?.take(length);
    let mut file = RealDisk.create_file(to, Access::mode(FILE_MODE))?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = source.read(&mut piece).map_err(fail)?;
        if read == 0 {
            break;
        }
        file.write_all(piece.get(..read).unwrap_or_default())?;
    }
    file.write_all(more)?;
    Ok(file.sync()?)
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from("."), Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use quorate_etcd::init::{Request, ensure_member};
    use quorate_etcd_formats::founding::{Form, Founding};
    use quorate_etcd_formats::messages::Entry;

    use super::*;

    fn end_of(target: &Target) -> End {
        let Found::DataDir(open) = datadir::open(target.data_dir(), target.wal_dir()).unwrap() else {
            panic!("a file")
        };
        scan(&open.view()).unwrap().1
    }

    /// Writes an entry, or a part of one, behind the log, without a word that it is committed.
    fn append(wal: &Path, end: End, bytes_less: usize) {
        let (length, crc) = good_part(wal).unwrap();
        let mut writer = WalWriter::new(crc);
        writer.entry(&Entry { term: Some(end.term), index: Some(end.index + 1), ..Entry::default() });
        let bytes = writer.finish();
        let mut file = File::options().write(true).open(wal).unwrap();
        file.seek(SeekFrom::Start(length)).unwrap();
        file.write_all(&bytes[..bytes.len() - bytes_less]).unwrap();
    }

    #[test]
    fn an_entry_that_nobody_called_committed_is_kept_and_half_of_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::new(&dir.path().join("data"), None).unwrap();
        let founding = Founding::new(vec![("n1".into(), vec!["http://127.0.0.1:2380".into()])], "t").unwrap();
        let local = founding.member("n1").unwrap();
        ensure_member(&RealDisk, &target, Request { founding: &founding, local, form: Form::Any }).unwrap();
        let first = end_of(&target);
        let wal = std::fs::read_dir(target.data_dir().join("member/wal")).unwrap().next().unwrap().unwrap().path();
        append(&wal, first, 0);
        let second = end_of(&target);
        assert_eq!((second.index, second.commit), (first.index + 1, first.commit));
        append(&wal, second, 8);
        assert_eq!(end_of(&target), second, "half an entry is none");
        let before = std::fs::read(&wal).unwrap();
        let copy = dir.path().join("data.recovery-1.partial-0");
        let fault = copy_data(&target, &copy, (second.term, second.index + 1)).unwrap_err();
        assert_eq!(fault.code(), Code::RecoverChanged);
        // The second time over what a killed run has left.
        for _ in 0..2 {
            assert_eq!(copy_data(&target, &copy, (second.term, second.index)).unwrap(), second);
        }
        let copied = end_of(&Target::new(&copy.join("data"), None).unwrap());
        assert_eq!((copied.index, copied.commit), (second.index, second.index), "all of it counts as committed");
        assert_eq!(std::fs::read(&wal).unwrap(), before, "the original is not touched");
    }
}
