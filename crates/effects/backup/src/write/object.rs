//! One object on its way into the store: compressed, hashed before and after, in bounded memory.
//!
//! **Invariant:** an object is created, never replaced. What is there already under its name is compared with it, and is
//! taken for it only if it holds the same content.

use std::io::{self, Read, Write};

use flate2::write::GzEncoder;
use quorate_etcd_formats::delta::gardener::Compression;
use quorate_etcd_formats::delta::quorate::Hashed;
use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault, Result};
use sha2::{Digest, Sha256};

use crate::body::Body;
use crate::catalog::Handle;
use crate::decode::{Failure, read_failure};
use crate::store::{Store, Upload};

/// Fast, and about as small as gzip.
pub(super) const LEVEL: i32 = 3;

/// Compressed bytes up to which an object goes in one request, which the store can refuse if the name is taken.
const SMALL_MAX: usize = 8 << 20;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// An object that is being written.
pub(super) struct Outgoing<'s> {
    encoder: Encoder<'s>,
    content: Sha256,
    bytes: u64,
}

/// What became of it.
pub(super) struct Arrived {
    pub(super) stored: Hashed,
    pub(super) content: Hashed,
}

/// Why it is not there.
pub(super) enum Missed {
    /// What has its name is no whole object: an attempt that was cut off, in a store that shows such a thing.
    Damaged,
    /// See the fault.
    Fault(Fault),
}

impl From<Fault> for Missed {
    fn from(fault: Fault) -> Missed {
        Missed::Fault(fault)
    }
}

enum Encoder<'s> {
    Zstd(zstd::Encoder<'static, Sink<'s>>),
    Gzip(GzEncoder<Sink<'s>>),
}

impl<'s> Outgoing<'s> {
    /// Begins one; its name says how it is compressed.
    pub(super) fn begin(store: &'s Store, name: &str) -> Result<Outgoing<'s>> {
        let sink = Sink {
            store,
            name: name.to_owned(),
            held: Vec::new(),
            upload: None,
            taken: false,
            hasher: Sha256::new(),
            bytes: 0,
        };
        let encoder = match compression(name) {
            Compression::Gzip => Encoder::Gzip(GzEncoder::new(sink, flate2::Compression::default())),
            _ => Encoder::Zstd(zstd::Encoder::new(sink, LEVEL).map_err(cannot_compress)?),
        };
        Ok(Outgoing { encoder, content: Sha256::new(), bytes: 0 })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.content.update(bytes);
        self.bytes += bytes.len() as u64;
        let written = match &mut self.encoder {
            Encoder::Zstd(encoder) => encoder.write_all(bytes),
            Encoder::Gzip(encoder) => encoder.write_all(bytes),
        };
        written.map_err(store_fault)
    }

    /// Puts it in its place, or finds it there.
    pub(super) fn finish(self) -> std::result::Result<Arrived, Missed> {
        let content = Hashed { bytes: self.bytes, sha256: hex(&self.content.finalize()) };
        let sink = match self.encoder {
            Encoder::Zstd(encoder) => encoder.finish(),
            Encoder::Gzip(encoder) => encoder.finish(),
        };
        let sink = sink.map_err(store_fault)?;
        let stored = Hashed { bytes: sink.bytes, sha256: hex(&sink.hasher.finalize()) };
        let made = match sink.upload {
            Some(upload) => upload.finish().map(|()| true)?,
            None if sink.taken => false,
            None => sink.store.create(&sink.name, sink.held)?,
        };
        if made {
            return Ok(Arrived { stored, content });
        }
        compare(sink.store, &sink.name, &stored, content)
    }

    /// Leaves nothing behind.
    pub(super) fn abandon(self) {
        let sink = match self.encoder {
            Encoder::Zstd(encoder) => encoder.finish(),
            Encoder::Gzip(encoder) => encoder.finish(),
        };
        if let Some(upload) = sink.ok().and_then(|sink| sink.upload) {
            upload.abandon();
        }
    }
}

/// What an object's name says of its compression.
pub(super) fn compression(name: &str) -> Compression {
    if name.ends_with(".gz") { Compression::Gzip } else { Compression::Zstd }
}

pub(super) fn handle(name: &str) -> Handle {
    Handle { compression: compression(name), ..Handle::own(name) }
}

/// Compares what has the name with what was to get it. Another release may compress the same content otherwise.
fn compare(store: &Store, name: &str, wanted: &Hashed, content: Hashed) -> std::result::Result<Arrived, Missed> {
    let mut body = Body::open(store, &handle(name))?;
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut piece = vec![0; PIECE_BYTES];
    let failed = |error| match read_failure(name, error) {
        Failure::Damaged(_) => Missed::Damaged,
        Failure::Store(fault) => Missed::Fault(fault),
    };
    loop {
        match body.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => {
                hasher.update(&piece[..length]);
                bytes += length as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let sha256 = hex(&body.stored_sha256().map_err(failed)?);
    if (bytes, hex(&hasher.finalize())) == (content.bytes, content.sha256.clone()) {
        let length =
            if sha256 == wanted.sha256 { Some(wanted.bytes) } else { store.head(name)?.map(|there| there.bytes) };
        return Ok(Arrived { stored: Hashed { bytes: length.unwrap_or_default(), sha256 }, content });
    }
    if bytes == 0 {
        return Err(Missed::Damaged);
    }
    let attempt = format!("cannot write `{name}` in `{}`: it is there already, with other content", store.url());
    Err(Missed::Fault(Fault::new(Code::ObjectTaken, attempt).hint("another writer is at work on this store")))
}

pub(super) fn cannot_compress(error: io::Error) -> Fault {
    Fault::io("cannot compress", error)
}

/// The store's own fault, where it is one.
fn store_fault(error: io::Error) -> Fault {
    if !error.get_ref().is_some_and(|cause| cause.is::<Fault>()) {
        return Fault::io("cannot write to the store", error);
    }
    match error.into_inner().map(|cause| cause.downcast::<Fault>()) {
        Some(Ok(fault)) => *fault,
        _ => Fault::new(Code::StoreUnreachable, "cannot write to the store"),
    }
}

/// Holds what comes until it is too much for one request; counts and hashes it.
struct Sink<'s> {
    store: &'s Store,
    name: String,
    held: Vec<u8>,
    upload: Option<Upload<'s>>,
    /// The name is taken; nothing is sent.
    taken: bool,
    hasher: Sha256,
    bytes: u64,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        match &mut self.upload {
            Some(upload) => upload.write_all(bytes)?,
            None if self.taken => {}
            None => {
                self.held.extend_from_slice(bytes);
                if self.held.len() > SMALL_MAX {
                    self.begin_upload().map_err(io::Error::other)?;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink<'_> {
    fn begin_upload(&mut self) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        // An upload in parts cannot be refused at its end everywhere; names are unique to a writer, so asking first is enough.
        self.taken = self.store.head(&self.name)?.is_some();
        if !self.taken {
            let mut upload = self.store.upload(&self.name)?;
            upload.write_all(&held).map_err(store_fault)?;
            self.upload = Some(upload);
        }
        Ok(())
    }
}
