//! An object's content: parts joined, stored bytes hashed on the way, decompressed.
//!
//! **Invariant:** memory is one buffer per step; a decompressor's window is bounded by its format.

use std::io::{self, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use quorate_etcd_formats::delta::gardener::Compression;
use quorate_faults::Result;
use sha2::{Digest, Sha256};

use crate::catalog::Handle;
use crate::store::Store;

/// Bytes that are read from the store at once.
const READ_BYTES: usize = 256 << 10;

/// Windows above 128 MiB are refused.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// An object's content, with the hash of what is stored.
pub(crate) struct Body {
    content: Box<dyn Read + Send>,
    stored: Arc<Mutex<Sha256>>,
    rest: Arc<Mutex<Parts>>,
}

impl Body {
    /// Opens the object; its first byte has been asked for when this returns.
    pub(crate) fn open(store: &Store, handle: &Handle) -> Result<Body> {
        let mut parts = Vec::with_capacity(handle.parts.len());
        // Parts of one object are few.
        for name in handle.parts.iter().rev() {
            parts.push(store.reader(name)?);
        }
        let stored = Arc::new(Mutex::new(Sha256::new()));
        let rest = Arc::new(Mutex::new(Parts { parts, passed: 0 }));
        let tee = Tee { parts: Arc::clone(&rest), stored: Arc::clone(&stored) };
        let input = BufReader::with_capacity(READ_BYTES, tee);
        let content: Box<dyn Read + Send> = match handle.compression {
            Compression::None => Box::new(input),
            Compression::Gzip => Box::new(MultiGzDecoder::new(input)),
            Compression::Zlib => Box::new(ZlibDecoder::new(input)),
            Compression::Lzw => Box::new(Lzw::new(input)),
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(input).map_err(io_fault)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(io_fault)?;
                Box::new(decoder)
            }
        };
        Ok(Body { content, stored, rest })
    }

    /// Stored bytes that were read so far, some of them ahead of the content.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner).passed
    }

    /// SHA-256 of all stored bytes. Reads those that the content did not need, too.
    pub(crate) fn stored_sha256(self) -> io::Result<[u8; 32]> {
        drop(self.content);
        let mut tee = Tee { parts: self.rest, stored: Arc::clone(&self.stored) };
        io::copy(&mut tee, &mut io::sink())?;
        let hasher = self.stored.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(hasher.finalize().into())
    }
}

impl Read for Body {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.content.read(buf)
    }
}

fn io_fault(error: io::Error) -> quorate_faults::Fault {
    quorate_faults::Fault::io("cannot set up decompression", error)
}

/// The SHA-256 of an object's stored bytes.
pub(crate) fn stored_sha256(store: &Store, handle: &Handle) -> Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    for name in &handle.parts {
        let mut reader = store.reader(name)?;
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => hasher.update(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let attempt = format!("cannot read `{name}` in `{}`", store.url());
                    return Err(quorate_faults::Fault::io(attempt, error));
                }
            }
        }
    }
    Ok(hasher.finalize().into())
}

/// The parts that are still to be read, last one first.
struct Parts {
    parts: Vec<Box<dyn Read + Send>>,
    passed: u64,
}

/// Reads the parts and hashes what passes.
struct Tee {
    parts: Arc<Mutex<Parts>>,
    stored: Arc<Mutex<Sha256>>,
}

impl Read for Tee {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(part) = parts.parts.last_mut() {
            let length = part.read(buf)?;
            if length > 0 || buf.is_empty() {
                let passed = &buf[..length];
                self.stored.lock().unwrap_or_else(PoisonError::into_inner).update(passed);
                parts.passed += length as u64;
                return Ok(length);
            }
            parts.parts.pop();
        }
        Ok(0)
    }
}

/// LZW as Go writes it: least significant bit first, literals of 8 bits. GIF's is the same, but for when the table is cleared.
struct Lzw<R> {
    input: R,
    decoder: weezl::decode::Decoder,
    ended: bool,
}

impl<R: io::BufRead> Lzw<R> {
    fn new(input: R) -> Lzw<R> {
        Lzw { input, decoder: weezl::decode::Decoder::new(weezl::BitOrder::Lsb, 8), ended: false }
    }
}

impl<R: io::BufRead> Read for Lzw<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while !self.ended && !buf.is_empty() {
            let here = self.input.fill_buf()?;
            let at_end = here.is_empty();
            let result = self.decoder.decode_bytes(here, buf);
            self.input.consume(result.consumed_in);
            match result.status {
                Ok(weezl::LzwStatus::Done) => self.ended = true,
                Ok(weezl::LzwStatus::Ok | weezl::LzwStatus::NoProgress) => {}
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
            if result.consumed_out > 0 {
                return Ok(result.consumed_out);
            }
            if at_end && !self.ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What both streams were made from; see `tests/fixtures/lzw/README.md`.
    fn pixels() -> Vec<u8> {
        (0..160u32).flat_map(|y| (0..160u32).map(move |x| ((x * y / 16 + x) % 256) as u8)).collect()
    }

    fn read(stream: &[u8], at_once: usize) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Lzw::new(BufReader::with_capacity(at_once, stream)).read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn lzw_of_other_writers_is_read() {
        let streams: [(&str, &[u8]); 2] = [
            ("Go", include_bytes!("../tests/fixtures/lzw/go.lzw")),
            ("GIF", include_bytes!("../tests/fixtures/lzw/gif.lzw")),
        ];
        for (writer, stream) in streams {
            for at_once in [1, 7, 4096, READ_BYTES] {
                assert!(read(stream, at_once).is_ok_and(|content| content == pixels()), "{writer}, {at_once} at once");
            }
            // The end code is in the last two bytes.
            let cut = stream.get(..stream.len() - 2).unwrap_or_default();
            let kind = read(cut, READ_BYTES).map_err(|error| error.kind());
            assert_eq!(kind, Err(io::ErrorKind::UnexpectedEof), "{writer}");
        }
    }
}
