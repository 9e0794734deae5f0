//! A database is written in whole, aligned mebibytes: the number of calls is bounded by its size, whatever its values are.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::Write;
use std::sync::atomic::AtomicU64;

use quorate_etcd::datadir::FileSource;
use quorate_etcd::engine::{BaseFile, Ingredients, write_database};
use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::bolt::build::{Item, small_db};
use quorate_etcd_formats::mvcc::{Revision, RevisionKey};
use quorate_etcd_formats::rebuild::Options;
use quorate_host::durable::{DiskError, DiskFile};

const MEBIBYTE: usize = 1 << 20;

/// A file in memory that counts what is done to it.
#[derive(Default)]
struct CountingFile {
    bytes: Vec<u8>,
    appends: Vec<usize>,
    overwrites: usize,
    starts: usize,
    /// Bytes that were there when the last one was started.
    started: usize,
}

impl DiskFile for CountingFile {
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        self.appends.push(bytes.len());
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        self.overwrites += 1;
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn start_sync(&mut self) {
        self.starts += 1;
        self.started = self.bytes.len();
    }

    fn sync(&mut self) -> Result<(), DiskError> {
        panic!("the caller syncs");
    }
}

fn items(lengths: impl Iterator<Item = usize>) -> Vec<Item> {
    let key = |main| RevisionKey { revision: Revision { main, sub: 0 }, tombstone: false }.encode();
    (2..).zip(lengths).map(|(main, length)| (key(main), vec![7; length])).collect()
}

fn written(lengths: impl Iterator<Item = usize>) -> CountingFile {
    let items = items(lengths);
    let mut base = tempfile::NamedTempFile::new().unwrap();
    base.write_all(&small_db(&[(b"key", items.clone())], 4096)).unwrap();
    let source = FileSource::open(base.path()).unwrap();
    let mut file = CountingFile::default();
    let base = BaseFile { source: &source, name: "base", check_hash: false };
    let progress = AtomicU64::new(0);
    let ingredients = Ingredients { base: Some(base), events: None, options: Options::copy(), progress: &progress };
    write_database(&mut file, ingredients).unwrap();
    let db = Db::open(&file.bytes).unwrap();
    let (_, keys) = &db.buckets().unwrap()[0];
    let mut expected = items.into_iter();
    db.for_each(keys, |key, value| assert_eq!(expected.next(), Some((key.to_vec(), value.to_vec())))).unwrap();
    assert_eq!(expected.next(), None);
    file
}

#[test]
fn writes_whole_aligned_mebibytes() {
    let small: Box<dyn Iterator<Item = usize>> = Box::new((0..120_000).map(|at| at % 200));
    let usual = Box::new(std::iter::repeat_n(1024, 30_000));
    // Leaves of more than a buffer.
    let large = Box::new((0..20).map(|at| 1 + at * 300_000));
    for (what, lengths) in [("small", small), ("usual", usual), ("large", large)] {
        let file = written(lengths);
        let (last, before) = file.appends.split_last().unwrap();
        assert!(before.len() > 5, "{what}: {} bytes are enough for several", file.bytes.len());
        assert!(before.iter().all(|size| *size > 0 && size % MEBIBYTE == 0), "{what}: {before:?}");
        assert!(*last < MEBIBYTE, "{what}: {last} bytes at the end");
        assert_eq!(file.overwrites, 2, "{what}: the meta pages, and nothing else, are written twice");
        assert!(file.starts <= 2 + file.bytes.len() / (32 * MEBIBYTE), "{what}: {} starts", file.starts);
        assert_eq!(file.started, file.bytes.len(), "{what}: everything is on its way at the end");
    }
}

#[test]
fn writes_a_small_database_by_one_call() {
    let file = written([10, 20].into_iter());
    assert_eq!((file.appends.len(), file.overwrites), (1, 0));
}
