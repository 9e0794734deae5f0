//! The writes of a chain, in order, each revision once: what the engine that builds a database reads.
//!
//! **Invariant:** after the last write has been given, every object that one came from has been read to its end and
//! found whole. Where two objects hold the same revision, they must agree about it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use quorate_etcd_formats::delta::{Batch, Event, Events, EventsError, LeaseGrant};
use quorate_faults::Fault;
use quorate_plan::chain::Chain;

use crate::base::{Base, Lookup};
use crate::catalog::Catalog;
use crate::decode::{Failure, Job, Message, Whole, start};
use crate::store::Store;

/// Transactions whose fingerprints are kept, to compare objects that overlap.
const COMPARED: usize = 1 << 20;

/// Writes that are compared with the full: what a full taken during a busy minute has in common with the next delta.
const LOOKED_UP: u32 = 20_000;

/// What reading proved to be other than decided.
#[derive(Debug)]
pub enum Surprise {
    /// This object cannot be used, because.
    Unusable {
        /// Its index in the catalog.
        object: usize,
        /// Why.
        why: String,
    },
    /// This object holds other revisions than it says.
    OtherRange {
        /// Its index in the catalog.
        object: usize,
        /// First revision in it.
        first: u64,
        /// Last revision in it.
        last: u64,
    },
    /// Two objects disagree about a revision.
    Conflict {
        /// Their indexes in the catalog.
        objects: [usize; 2],
        /// The first revision that they disagree about.
        revision: u64,
    },
    /// The full holds writes that are younger than the wanted time.
    BaseTooNew,
    /// The store did not answer.
    Store(Fault),
}

/// One object that was read to its end.
#[derive(Debug, Clone, Copy)]
pub struct Used {
    /// Its index in the catalog.
    pub object: usize,
    /// Last revision that was taken from it.
    pub to: u64,
    /// SHA-256 of its stored bytes.
    pub stored_sha256: [u8; 32],
}

/// The writes of a chain's deltas.
pub struct ChainEvents {
    chain: Chain,
    claims: Vec<(u64, u64, String)>,
    receivers: Vec<Option<Receiver<Message>>>,
    until_ms: Option<i64>,
    /// Which delta is being read.
    current: usize,
    batch: Batch,
    index: usize,
    base_revision: u64,
    lookup: Lookup,
    /// Last revision that was given.
    done: u64,
    /// Revisions up to here were given before the present object began.
    known: u64,
    /// Nothing more is given, but the present object is read to its end.
    closed: bool,
    /// The present object does not join what was given.
    gap: bool,
    finished: bool,
    prints: Prints,
    grants: Vec<LeaseGrant>,
    used: Vec<Used>,
    last_time_ms: Option<i64>,
    given: u64,
    surprise: Option<Surprise>,
    /// Stored bytes of each delta, and those of the present one that are counted.
    sizes: Vec<u64>,
    counted: u64,
    progress: Arc<AtomicU64>,
}

impl ChainEvents {
    /// Starts reading what follows on the full; `until_ms` leaves out what was written later.
    pub fn start(
        store: &Arc<Store>,
        catalog: &Catalog,
        chain: &Chain,
        base: &Base,
        until_ms: Option<i64>,
        threads: usize,
    ) -> ChainEvents {
        let base_revision = base.revision();
        let job = |(index, _): &(usize, u64)| {
            let object = &catalog.objects[*index];
            Job { name: object.name.clone(), layout: object.layout, handle: catalog.handles[*index].clone() }
        };
        let jobs: Vec<Job> = chain.deltas.iter().map(job).collect();
        let claim = |(index, _): &(usize, u64)| {
            let object = &catalog.objects[*index];
            (object.first, object.last, object.name.clone())
        };
        ChainEvents {
            claims: chain.deltas.iter().map(claim).collect(),
            receivers: start(store, jobs, threads).into_iter().map(Some).collect(),
            chain: chain.clone(),
            until_ms,
            current: 0,
            batch: Batch::default(),
            index: 0,
            base_revision,
            lookup: Lookup::of(base, LOOKED_UP),
            done: base_revision,
            known: base_revision,
            closed: false,
            gap: false,
            finished: false,
            prints: Prints::default(),
            grants: Vec::new(),
            used: Vec::new(),
            last_time_ms: None,
            given: 0,
            surprise: None,
            sizes: chain.deltas.iter().map(|(index, _)| catalog.objects[*index].bytes).collect(),
            counted: 0,
            progress: Arc::default(),
        }
    }

    /// The last revision that was given.
    pub fn revision(&self) -> u64 {
        self.done
    }

    /// How many writes were given.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// When the last given write was recorded.
    pub fn last_time_ms(&self) -> Option<i64> {
        self.last_time_ms
    }

    /// The deltas that writes came from.
    pub fn used(&self) -> &[Used] {
        &self.used
    }

    /// Bytes of all deltas, as stored.
    pub fn stored_bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Counts the stored bytes whose writes were taken; all of them in the end. Who does other work beside may count that
    /// in as well.
    pub fn progress(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.progress)
    }

    /// Whether the end was reached and everything held.
    pub fn is_proven(&self) -> bool {
        self.finished && self.surprise.is_none()
    }

    /// What turned out to be other than decided.
    pub fn take_surprise(&mut self) -> Option<Surprise> {
        self.surprise.take()
    }

    /// Reads to the end without using anything.
    pub fn drain(&mut self) -> Result<(), EventsError> {
        while self.next()?.is_some() {}
        Ok(())
    }

    fn place(&self) -> String {
        self.claims.get(self.current).map_or_else(String::new, |(_, _, name)| name.clone())
    }

    fn object(&self) -> usize {
        self.chain.deltas.get(self.current).map_or(0, |(object, _)| *object)
    }

    fn stop(&mut self, surprise: Surprise, what: String) -> EventsError {
        self.surprise = Some(surprise);
        self.receivers.clear();
        EventsError { place: self.place(), what }
    }

    /// The index of the next write to give, in the present batch; none once the batch is used up.
    fn next_in_batch(&mut self) -> Result<Option<usize>, EventsError> {
        let to = self.chain.deltas.get(self.current).map_or(0, |(_, to)| *to);
        while let Some(event) = self.batch.get(self.index) {
            let main = event.at.main;
            let index = self.index;
            self.index += 1;
            let late = self.until_ms.is_some_and(|until| event.time_ms.is_some_and(|time| time > until));
            if main <= self.known {
                if late && main <= self.base_revision {
                    return Err(self.stop(Surprise::BaseTooNew, "writes after the wanted time".to_owned()));
                }
                if main <= self.base_revision && self.lookup.denies(&event) {
                    let why = format!(
                        "it tells revision {main} otherwise than the full does: two histories are in the store"
                    );
                    let surprise = Surprise::Unusable { object: self.object(), why: why.clone() };
                    return Err(self.stop(surprise, why));
                }
                let again = self.prints.again(&event);
                if let Some(revision) = again {
                    return Err(self.conflict(revision));
                }
                continue;
            }
            // The last transaction of what two objects have in common is complete only now.
            if let Some(revision) = self.prints.settle() {
                return Err(self.conflict(revision));
            }
            // A transaction that has begun is given whole; its writes were recorded at one time.
            if self.closed || main > to || (late && main > self.done) {
                self.closed = true;
                continue;
            }
            if main > self.done.saturating_add(1) {
                // What the object really holds is known at its end.
                (self.closed, self.gap) = (true, true);
                continue;
            }
            self.prints.first(&event);
            self.done = main;
            self.last_time_ms = event.time_ms.or(self.last_time_ms);
            self.given += 1;
            return Ok(Some(index));
        }
        Ok(None)
    }

    /// So many stored bytes of the present delta are done.
    fn count(&mut self, bytes: u64) {
        self.progress.fetch_add(bytes.saturating_sub(self.counted), Ordering::Relaxed);
        self.counted = self.counted.max(bytes);
    }

    fn conflict(&mut self, revision: u64) -> EventsError {
        let earlier =
            self.chain.deltas.iter().find(|(_, to)| *to >= revision).map_or(self.object(), |(object, _)| *object);
        let surprise = Surprise::Conflict { objects: [earlier, self.object()], revision };
        self.stop(surprise, format!("another revision {revision} than in the object before"))
    }

    /// Takes the end of an object, and goes on to the next.
    fn end(&mut self, end: Result<Whole, Failure>) -> Result<(), EventsError> {
        let whole = match end {
            Ok(whole) => whole,
            Err(Failure::Damaged(why)) => {
                let what = format!("damage ({why})");
                return Err(self.stop(Surprise::Unusable { object: self.object(), why }, what));
            }
            Err(Failure::Store(fault)) => {
                return Err(self.stop(Surprise::Store(fault), "bytes that could not be read".to_owned()));
            }
        };
        if let Some(revision) = self.prints.settle() {
            return Err(self.conflict(revision));
        }
        let Some(summary) = whole.summary else {
            let surprise = Surprise::Unusable { object: self.object(), why: "it holds no writes".to_owned() };
            return Err(self.stop(surprise, "no writes".to_owned()));
        };
        let (first, last) = self.claims.get(self.current).map_or((0, 0), |claim| (claim.0, claim.1));
        if (summary.first, summary.last) != (first, last) {
            let surprise = Surprise::OtherRange { object: self.object(), first: summary.first, last: summary.last };
            let what = format!("revisions {} to {}, not {first} to {last}", summary.first, summary.last);
            return Err(self.stop(surprise, what));
        }
        if self.gap {
            let why = format!("nothing leads from revision {} to it", self.done);
            return Err(self.stop(Surprise::Unusable { object: self.object(), why }, "a gap".to_owned()));
        }
        let (object, to) = self.chain.deltas.get(self.current).copied().unwrap_or_default();
        let cut_short = self.closed && self.done < to;
        if self.done > self.known {
            self.used.push(Used { object, to: to.min(self.done), stored_sha256: whole.stored_sha256 });
        }
        self.count(self.sizes.get(self.current).copied().unwrap_or_default());
        self.current += 1;
        self.counted = 0;
        self.known = self.done;
        if cut_short || self.current == self.chain.deltas.len() {
            // Nothing of the others is needed.
            self.progress.fetch_add(self.sizes.iter().skip(self.current).sum(), Ordering::Relaxed);
            self.finished = true;
            self.receivers.clear();
        }
        self.closed = false;
        Ok(())
    }

    /// The next batch, or the end of an object.
    fn receive(&mut self) -> Result<(), EventsError> {
        let message = self.receivers.get(self.current).and_then(Option::as_ref).map(Receiver::recv);
        match message {
            Some(Ok(Message::Batch(batch, stored_bytes))) => {
                self.count(stored_bytes);
                for grant in batch.grants() {
                    match self.grants.binary_search_by_key(&grant.id, |known| known.id) {
                        Ok(at) => self.grants[at] = *grant,
                        Err(at) => self.grants.insert(at, *grant),
                    }
                }
                self.batch = batch;
                self.index = 0;
                Ok(())
            }
            Some(Ok(Message::End(end))) => {
                self.batch = Batch::default();
                self.end(end)
            }
            // A thread that ended without a word died.
            _ => {
                let fault = Fault::new(quorate_faults::Code::Internal, format!("cannot decode `{}`", self.place()));
                Err(self.stop(Surprise::Store(fault), "an end without a result".to_owned()))
            }
        }
    }
}

impl Events for ChainEvents {
    fn next(&mut self) -> Result<Option<Event<'_>>, EventsError> {
        if self.chain.deltas.is_empty() {
            self.finished = true;
        }
        if self.surprise.is_some() {
            return Err(EventsError { place: self.place(), what: "a problem that was already reported".to_owned() });
        }
        let index = loop {
            if let Some(index) = self.next_in_batch()? {
                break index;
            }
            if self.finished {
                return Ok(None);
            }
            self.receive()?;
        };
        Ok(self.batch.get(index))
    }

    fn leases(&self) -> &[LeaseGrant] {
        &self.grants
    }
}

/// Fingerprints of the transactions that were given last.
#[derive(Default)]
struct Prints {
    /// The revision that the first one belongs to.
    from: u64,
    kept: VecDeque<u64>,
    /// The transaction that is being given again.
    again: Option<(u64, u64)>,
}

impl Prints {
    /// Takes a write that is given for the first time.
    fn first(&mut self, event: &Event<'_>) {
        let main = event.at.main;
        let newest = self.from + self.kept.len() as u64;
        if self.kept.is_empty() {
            self.from = main;
        }
        if self.kept.is_empty() || main == newest {
            self.kept.push_back(0);
            if self.kept.len() > COMPARED {
                self.kept.pop_front();
                self.from += 1;
            }
        }
        if let Some(print) = self.kept.back_mut() {
            *print = mix(*print, event);
        }
    }

    /// Takes a write that was given before; says which revision differs, once that is certain.
    fn again(&mut self, event: &Event<'_>) -> Option<u64> {
        let main = event.at.main;
        let differs = match self.again {
            Some((revision, _)) if revision != main => self.settle(),
            _ => None,
        };
        let print = self.again.map_or(0, |(_, print)| print);
        self.again = Some((main, mix(print, event)));
        differs
    }

    /// Compares the transaction that was given again, which is complete.
    fn settle(&mut self) -> Option<u64> {
        let (revision, print) = self.again.take()?;
        let at = usize::try_from(revision.checked_sub(self.from)?).ok()?;
        self.kept.get(at).filter(|kept| **kept != print).map(|_| revision)
    }
}

/// A fingerprint that depends on everything that the write says but not on when it was recorded.
fn mix(before: u64, event: &Event<'_>) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let kv = &event.kv;
    let step = |print: u64, number: u64| (print ^ number).wrapping_mul(ODD).rotate_left(29);
    let bytes = |bytes: &[u8]| u64::from(crc32c::crc32c(bytes)) | (bytes.len() as u64) << 32;
    let print = step(step(before, u64::from(event.tombstone)), bytes(kv.key));
    if event.tombstone {
        return print;
    }
    [bytes(kv.value), kv.create_revision as u64, kv.version as u64, kv.lease as u64].into_iter().fold(print, step)
}
