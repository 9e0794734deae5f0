//! Decodes deltas on several threads, each object on one, and hands the writes over in order.
//!
//! **Invariant:** memory is bounded by threads × batches in flight × the size of a batch (or of the largest write).

use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use quorate_etcd_formats::delta::gardener::GardenerDecoder;
use quorate_etcd_formats::delta::quorate::QuorateDecoder;
use quorate_etcd_formats::delta::{Batch, Decoder, Summary};
use quorate_faults::Fault;
use quorate_plan::chain::Layout;

use crate::body::Body;
use crate::catalog::Handle;
use crate::store::Store;

/// Bytes of keys and values in a batch.
const BATCH_BYTES: usize = 512 << 10;

/// Batches of one object that wait for the reader.
const IN_FLIGHT: usize = 4;

/// Decompressed bytes that are decoded at once.
const PIECE_BYTES: usize = 256 << 10;

/// Why an object gave no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Its bytes are wrong.
    Damaged(String),
    /// The store did not give its bytes.
    Store(Fault),
}

/// What an object proved to be, once it was read to its last byte.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole {
    pub(crate) summary: Option<Summary>,
    pub(crate) stored_sha256: [u8; 32],
    /// Bytes after decompression.
    pub(crate) content_bytes: u64,
}

/// What a thread has to say about an object.
pub(crate) enum Message {
    /// Some writes, and how many stored bytes were read for all that came so far.
    Batch(Batch, u64),
    End(Result<Whole, Failure>),
}

/// One object to decode.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) handle: Handle,
}

/// A job that waits for a thread, and where its answers go.
type Slot = Mutex<Option<(Job, SyncSender<Message>)>>;

/// Starts decoding. The answers of each job come from its own receiver; dropping the receivers ends the threads.
pub(crate) fn start(store: &Arc<Store>, jobs: Vec<Job>, threads: usize) -> Vec<Receiver<Message>> {
    let (senders, receivers): (Vec<_>, Vec<_>) = jobs.iter().map(|_| sync_channel(IN_FLIGHT)).unzip();
    let work: Vec<Slot> = jobs.into_iter().zip(senders).map(|pair| Mutex::new(Some(pair))).collect();
    let work = Arc::new(work);
    let next = Arc::new(AtomicUsize::new(0));
    for _ in 0..threads.max(1).min(work.len()) {
        let (store, work, next) = (Arc::clone(store), Arc::clone(&work), Arc::clone(&next));
        std::thread::spawn(move || {
            // Jobs are begun in order, so the one that the reader waits for is always at work.
            while let Some(slot) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                let job = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some((job, sender)) = job
                    && !run(&store, &job, &sender)
                {
                    return;
                }
            }
        });
    }
    receivers
}

/// Decodes one object; `false` if nobody listens any more.
fn run(store: &Store, job: &Job, sender: &SyncSender<Message>) -> bool {
    let mut listening = true;
    let end = decode(store, job, |batch, stored_bytes| {
        listening = sender.send(Message::Batch(batch, stored_bytes)).is_ok();
        listening
    });
    listening && sender.send(Message::End(end)).is_ok()
}

/// Decodes one object to its last byte, and checks all that it says about itself. With each batch comes how many stored
/// bytes were read so far.
pub(crate) fn decode(store: &Store, job: &Job, mut batch: impl FnMut(Batch, u64) -> bool) -> Result<Whole, Failure> {
    let mut body = Body::open(store, &job.handle).map_err(Failure::Store)?;
    let mut decoder: Box<dyn Decoder> = match job.layout {
        Layout::Gardener => Box::new(GardenerDecoder::default()),
        Layout::Quorate => Box::new(QuorateDecoder::default()),
    };
    let damaged = |error: &dyn std::fmt::Display| Failure::Damaged(error.to_string());
    let mut piece = vec![0; PIECE_BYTES];
    let mut content_bytes = 0;
    loop {
        let length = match body.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(read_failure(&job.name, error)),
        };
        content_bytes += length as u64;
        decoder.feed(&piece[..length]).map_err(|error| damaged(&error))?;
        while let Some(decoded) = decoder.take(BATCH_BYTES) {
            if !batch(decoded, body.stored_bytes()) {
                return Err(Failure::Damaged("nobody wanted to know".to_owned()));
            }
        }
    }
    let (rest, summary) = decoder.finish().map_err(|error| damaged(&error))?;
    let stored_bytes = body.stored_bytes();
    let stored_sha256 = body.stored_sha256().map_err(|error| read_failure(&job.name, error))?;
    if job.handle.stored_sha256.is_some_and(|said| said != stored_sha256) {
        return Err(Failure::Damaged("its bytes are not those that its manifest was made for".to_owned()));
    }
    batch(rest, stored_bytes);
    Ok(Whole { summary, stored_sha256, content_bytes })
}

/// A number from the system means that the store failed; anything else, that the bytes are wrong.
pub(crate) fn read_failure(name: &str, error: io::Error) -> Failure {
    let from_store = error.get_ref().is_some_and(|cause| cause.is::<Fault>());
    if error.raw_os_error().is_some() || from_store {
        return Failure::Store(Fault::io(format!("cannot read `{name}`"), error));
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Failure::Damaged("it ends in the middle".to_owned()),
        _ => Failure::Damaged(format!("it cannot be decompressed: {error}")),
    }
}
