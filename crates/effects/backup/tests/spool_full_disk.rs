//! A disk that becomes full in the middle of a write: a fault, and nothing lost that was synced.

#![allow(clippy::unwrap_used, reason = "tests may stop")]

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use quorate_backup::spool::{Spool, SpoolSettings, SpoolState};
use quorate_etcd_formats::delta::OwnedEvent;
use quorate_etcd_formats::mvcc::Revision;
use quorate_faults::Code;
use quorate_host::durable::{Access, Disk, DiskError, DiskFile, RealDisk, RealFile};
use quorate_plan::chain::Layout;

/// Takes so many bytes and no more.
#[derive(Clone)]
struct Small(Rc<Cell<usize>>);

struct SmallFile(RealFile, Rc<Cell<usize>>);

impl Disk for Small {
    type File = SmallFile;

    fn create_dir(&self, path: &Path, access: Access) -> Result<(), DiskError> {
        RealDisk.create_dir(path, access)
    }

    fn create_file(&self, path: &Path, access: Access) -> Result<SmallFile, DiskError> {
        Ok(SmallFile(RealDisk.create_file(path, access)?, Rc::clone(&self.0)))
    }

    fn sync_dir(&self, path: &Path) -> Result<(), DiskError> {
        RealDisk.sync_dir(path)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        RealDisk.rename_new(from, to)
    }

    fn replace_file(&self, partial: &Path, to: &Path) -> Result<(), DiskError> {
        RealDisk.replace_file(partial, to)
    }

    fn remove_partial(&self, path: &Path) -> Result<(), DiskError> {
        RealDisk.remove_partial(path)
    }
}

impl DiskFile for SmallFile {
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        let fits = self.1.get().min(bytes.len());
        self.1.set(self.1.get() - fits);
        self.0.write_all(&bytes[..fits])?;
        // The fault of a path that is not there stands for that of a full disk.
        if fits < bytes.len() { RealDisk.sync_dir("/nonexistent/full".as_ref()) } else { Ok(()) }
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> Result<(), DiskError> {
        self.0.sync()
    }
}

fn put(main: u64) -> OwnedEvent {
    OwnedEvent {
        at: Revision { main, sub: 0 },
        key: b"k".to_vec(),
        value: vec![7; 100],
        create_revision: 2,
        version: 1,
        ..OwnedEvent::default()
    }
}

#[test]
fn a_full_disk_is_a_fault_and_what_was_synced_stays() {
    for room in (300..3000).step_by(97) {
        let dir = tempfile::tempdir().unwrap();
        let left = Rc::new(Cell::new(usize::MAX));
        let settings = SpoolSettings { max_bytes: 1 << 20 };
        let (mut spool, _) = Spool::open_on(Small(Rc::clone(&left)), dir.path(), settings).unwrap();
        spool.reset(SpoolState { cluster_id: 1, epoch: 1, layout: Layout::Quorate, stored: 1 }).unwrap();
        left.set(room);
        let mut synced = 1;
        let fault = loop {
            let write = put(synced + 1);
            let done = spool.append(&[write.lend()], true).and_then(|()| spool.sync());
            match done {
                Ok(()) => synced += 1,
                Err(fault) => break fault,
            }
        };
        assert_ne!(fault.code(), Code::Internal);
        assert_eq!(spool.sync().unwrap_err().code(), Code::SpoolBroken);
        // As long as the disk is full, nothing can be copied; what is there stays as it is.
        if synced > 1 {
            assert!(spool.recover().is_err(), "{room}");
        }
        left.set(usize::MAX);
        let recovered = spool.recover().unwrap();
        assert_eq!(recovered.last, Some(synced), "{room}");
        spool.append(&[put(synced + 1).lend()], true).unwrap();
        assert_eq!(spool.cut().unwrap().map(|segment| segment.first), Some(synced + 1));
    }
}
