//! A [`Disk`] that does what it is told and writes down each change, for replay into crash states.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use quorate_host::durable::{Access, Disk, DiskError, DiskFile, removal_order};

/// One change that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A directory was made.
    CreateDir { path: PathBuf, access: Access },
    /// An empty file was made.
    CreateFile { path: PathBuf, access: Access },
    /// Bytes were written to a file, which `path` was the name of when it was made.
    Write { path: PathBuf, offset: u64, bytes: Vec<u8> },
    /// A file was synced.
    SyncFile { path: PathBuf },
    /// A directory was synced.
    SyncDir { path: PathBuf },
    /// A file or directory was given a new name.
    Rename { from: PathBuf, to: PathBuf },
    /// A file was given a second name.
    Link { from: PathBuf, to: PathBuf },
    /// A file's name was removed.
    RemoveFile { path: PathBuf },
    /// An empty directory was removed.
    RemoveDir { path: PathBuf },
}

/// What one call wrote. A large one is not carried to the disk at once and in order, so it is several changes.
fn written(path: &Path, offset: u64, bytes: &[u8]) -> impl Iterator<Item = Op> {
    /// Most bytes that are there or not as one: few enough for the order of pieces to matter in a database of a mebibyte.
    const PIECE_BYTES: usize = 32 << 10;
    let offsets = (offset..).step_by(PIECE_BYTES);
    let pieces = bytes.chunks(PIECE_BYTES).zip(offsets);
    pieces.map(|(bytes, offset)| Op::Write { path: path.to_owned(), offset, bytes: bytes.to_vec() })
}

/// Performs every change on the inner disk and logs those that succeeded.
#[derive(Debug, Default)]
pub struct RecordingDisk<D> {
    inner: D,
    log: Rc<RefCell<Vec<Op>>>,
}

/// A file of a [`RecordingDisk`].
#[derive(Debug)]
pub struct RecordingFile<F> {
    inner: F,
    path: PathBuf,
    position: u64,
    log: Rc<RefCell<Vec<Op>>>,
}

impl<D: Disk> RecordingDisk<D> {
    /// Wraps a disk.
    pub fn new(inner: D) -> RecordingDisk<D> {
        RecordingDisk { inner, log: Rc::default() }
    }

    /// What was done so far, in order.
    pub fn log(&self) -> Vec<Op> {
        self.log.borrow().clone()
    }

    fn record(&self, op: Op) {
        self.log.borrow_mut().push(op);
    }
}

impl<D: Disk> Disk for RecordingDisk<D> {
    type File = RecordingFile<D::File>;

    fn create_dir(&self, path: &Path, access: Access) -> Result<(), DiskError> {
        self.inner.create_dir(path, access)?;
        self.record(Op::CreateDir { path: path.to_owned(), access });
        Ok(())
    }

    fn create_file(&self, path: &Path, access: Access) -> Result<Self::File, DiskError> {
        let inner = self.inner.create_file(path, access)?;
        self.record(Op::CreateFile { path: path.to_owned(), access });
        Ok(RecordingFile { inner, path: path.to_owned(), position: 0, log: Rc::clone(&self.log) })
    }

    fn sync_dir(&self, path: &Path) -> Result<(), DiskError> {
        self.inner.sync_dir(path)?;
        self.record(Op::SyncDir { path: path.to_owned() });
        Ok(())
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        self.inner.rename_new(from, to)?;
        self.record(Op::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn replace_file(&self, partial: &Path, to: &Path) -> Result<(), DiskError> {
        self.inner.replace_file(partial, to)?;
        self.record(Op::Rename { from: partial.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove_partial(&self, path: &Path) -> Result<(), DiskError> {
        let order = removal_order(path)?;
        self.inner.remove_partial(path)?;
        for (path, is_dir) in order {
            self.record(if is_dir { Op::RemoveDir { path } } else { Op::RemoveFile { path } });
        }
        Ok(())
    }
}

impl<F: DiskFile> DiskFile for RecordingFile<F> {
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        self.inner.write_all(bytes)?;
        self.log.borrow_mut().extend(written(&self.path, self.position, bytes));
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        self.inner.write_all_at(bytes, offset)?;
        self.log.borrow_mut().extend(written(&self.path, offset, bytes));
        Ok(())
    }

    fn sync(&mut self) -> Result<(), DiskError> {
        self.inner.sync()?;
        self.log.borrow_mut().push(Op::SyncFile { path: self.path.clone() });
        Ok(())
    }
}
