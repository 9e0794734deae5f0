//! Makes the files that the benchmarks read, once: a snapshot of 1 GiB, and a data dir that etcdutl restored from it.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use quorate_etcd_formats::bolt::build::{BoltWriter, Sink, small_db};
use quorate_etcd_formats::mvcc::{Revision, RevisionKey};
use sha2::{Digest, Sha256};

/// The files.
pub(crate) struct Dataset {
    /// A blank database.
    pub(crate) blank: PathBuf,
    /// A snapshot of 1 GiB with its hash.
    pub(crate) snapshot: PathBuf,
    /// A data dir that etcdutl restored from it.
    pub(crate) data_dir: PathBuf,
    /// The database in it.
    pub(crate) db: PathBuf,
}

/// Keys with values of a little over a kilobyte: one gibibyte in all.
const KEYS: u64 = 780_000;
const VALUE_BYTES: usize = 1024;

impl Dataset {
    pub(crate) fn make(work: &Path, etcdutl: &Path) -> Result<Dataset> {
        let data_dir = work.join("gib");
        let dataset = Dataset {
            blank: work.join("blank.db"),
            snapshot: work.join("gib.snapshot"),
            db: data_dir.join("member/snap/db"),
            data_dir,
        };
        let mut blank = File::create(&dataset.blank)?;
        blank.write_all(&small_db(&buckets(), 4096))?;
        if !dataset.snapshot.exists() {
            write_snapshot(&dataset.snapshot, KEYS)?;
        }
        if !dataset.db.exists() {
            let restored = Command::new(etcdutl)
                .args(["snapshot", "restore"])
                .arg(&dataset.snapshot)
                .arg("--data-dir")
                .arg(&dataset.data_dir)
                .stdout(Stdio::null())
                .status()?;
            if !restored.success() {
                bail!("etcdutl could not restore `{}`; remove bench/work and try again", dataset.snapshot.display());
            }
        }
        Ok(dataset)
    }

    /// A snapshot four times as large.
    pub(crate) fn large_snapshot(work: &Path) -> Result<PathBuf> {
        snapshot_of(work, "gib-4.snapshot", 4 * KEYS)
    }
}

/// A snapshot with so many keys, made once.
pub(crate) fn snapshot_of(work: &Path, name: &str, keys: u64) -> Result<PathBuf> {
    let path = work.join(name);
    if !path.exists() {
        write_snapshot(&path, keys)?;
    }
    Ok(path)
}

#[expect(clippy::type_complexity, reason = "buckets with their keys and values")]
fn buckets() -> Vec<(&'static [u8], Vec<(Vec<u8>, Vec<u8>)>)> {
    let names: [&[u8]; 10] = [
        b"alarm",
        b"auth",
        b"authRoles",
        b"authUsers",
        b"cluster",
        b"key",
        b"lease",
        b"members",
        b"members_removed",
        b"meta",
    ];
    names.into_iter().map(|name| (name, Vec::new())).collect()
}

fn write_snapshot(path: &Path, keys: u64) -> Result<()> {
    let partial = path.with_extension("partial");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&partial)?;
    let mut writer = BoltWriter::new(FileSink(BufWriter::with_capacity(1 << 20, file)), 4096)?;
    for (name, _) in buckets() {
        let mut bucket = writer.bucket(name);
        if name == b"key" {
            let mut state = 1u64;
            for n in 0..keys {
                let main = n + 2;
                let mut value = Vec::with_capacity(VALUE_BYTES);
                while value.len() < VALUE_BYTES {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    value.extend_from_slice(&state.to_le_bytes());
                }
                let key = RevisionKey { revision: Revision { main, sub: 0 }, tombstone: false }.encode();
                bucket.put(&key, &key_value(format!("/registry/pods/default/pod-{n:08}").as_bytes(), main, &value))?;
            }
        }
        bucket.finish()?;
    }
    let mut file = writer.finish()?.0.into_inner()?;
    append_hash(&mut file)?;
    file.sync_all()?;
    #[expect(clippy::disallowed_methods, reason = "a scratch file of the benchmark itself")]
    std::fs::rename(partial, path)?;
    Ok(())
}

/// A put that created its key, as etcd encodes it.
fn key_value(key: &[u8], main: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x0a];
    varint(&mut bytes, key.len() as u64);
    bytes.extend_from_slice(key);
    for (tag, number) in [(0x10, main), (0x18, main), (0x20, 1)] {
        bytes.push(tag);
        varint(&mut bytes, number);
    }
    bytes.push(0x2a);
    varint(&mut bytes, value.len() as u64);
    bytes.extend_from_slice(value);
    bytes
}

fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn append_hash(file: &mut File) -> Result<()> {
    let len = file.metadata()?.len();
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    let mut done = 0;
    let reader = file.try_clone()?;
    while done < len {
        let size = (len - done).min(chunk.len() as u64) as usize;
        reader.read_exact_at(&mut chunk[..size], done)?;
        hasher.update(&chunk[..size]);
        done += size as u64;
    }
    file.seek(SeekFrom::End(0))?;
    file.write_all(&hasher.finalize())?;
    Ok(())
}

struct FileSink(BufWriter<File>);

impl Sink for FileSink {
    type Error = std::io::Error;

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes)
    }

    fn overwrite(&mut self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.0.flush()?;
        self.0.get_ref().write_all_at(bytes, offset)
    }
}
