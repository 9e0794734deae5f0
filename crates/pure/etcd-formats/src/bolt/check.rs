//! Checks a whole bolt file: every page reached once, every table and order right, the freelist in agreement.
//!
//! Large trees are split below their root and checked on several threads; what is learnt of each part is put together
//! in key order.
//!
//! **Invariant:** memory is one bit per page, one window per thread and a bounded list of problems.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::page::{FREELIST, HEADER_BYTES, Header, LeafItem};
use super::tree::{self, Bucket, Db, Subtree, Visitor};
use super::{BoltError, PageProblem, meta};
use crate::{ReadAt, ReadError};

/// Problems that are kept word for word; more are only counted.
pub const PROBLEMS_MAX: usize = 100;

/// Looks at the items of one bucket. Parts of a bucket are looked at apart and joined in key order.
pub trait ItemCheck: Send {
    /// One item that does not hold a bucket.
    fn item(&mut self, page: u64, key: &[u8], value: &[u8]);
    /// Takes in what was learnt of the part that follows.
    fn absorb(&mut self, later: Self);
    /// The same of a part further on, with items between the two that were not looked at.
    fn absorb_apart(&mut self, later: Self)
    where
        Self: Sized,
    {
        self.absorb(later);
    }
}

/// Asked before every page whether to go on; once it says no, a check ends with what it has.
pub type GoOn<'a> = dyn Fn() -> bool + Sync + 'a;

/// What was found in the file's structure.
#[derive(Debug, Default)]
pub struct Structure {
    /// What is wrong, by page.
    pub problems: Vec<(u64, PageProblem)>,
    /// How many more problems there were.
    pub problems_more: u64,
    /// Reads that failed.
    pub unreadable: Vec<ReadError>,
    /// What is wrong with the freelist.
    pub freelist: Option<FreelistProblem>,
    /// Pages that belong to the tree.
    pub pages_reached: u64,
    /// Pages that may be used again.
    pub pages_free: u64,
    /// Whether the check was told to end before it had seen everything: nothing is said of the freelist then.
    pub unfinished: bool,
}

/// What is wrong with a persisted freelist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FreelistProblem {
    /// Its page is not a freelist page.
    #[error("the freelist page {0} is not a freelist")]
    NotAFreelist(u64),
    /// Ids are out of range or not ascending.
    #[error("the freelist lists page {0} out of order or out of range")]
    BadId(u64),
    /// A page of the tree is listed as free.
    #[error("page {0} is in use and listed as free")]
    InUse(u64),
    /// Pages that are neither in use nor free.
    #[error("{0} pages are neither in use nor listed as free")]
    Lost(u64),
}

/// How a check is run.
pub struct Run<'a> {
    /// Threads to use.
    pub workers: usize,
    /// Counts bytes examined, for whoever shows progress.
    pub progress: &'a AtomicU64,
    /// Whether to go on; always, where none is given.
    pub go_on: Option<&'a GoOn<'a>>,
}

/// Checks the whole file. `begin` makes the item check of each bucket; the finished ones come back by bucket name.
pub fn check<S, C>(db: &Db<'_, S>, run: &Run<'_>, begin: impl Fn(&[u8]) -> C + Sync) -> (Structure, Vec<(Vec<u8>, C)>)
where
    S: ReadAt + ?Sized,
    C: ItemCheck,
{
    let reached = Reached::new(db.meta().hwm);
    let shared = Shared::new(db, &reached, run);
    let mut problems = Problems::default();
    let mut names: Vec<(Vec<u8>, Bucket, u64)> = Vec::new();
    let mut root = RootVisitor { part: Part::new(&shared, None::<C>), buckets: &mut names };
    // Told to end among the bucket names, it knows of fewer buckets; `shared` remembers.
    let _ = db.walk(&Subtree::root(db.meta().root), &mut root);
    problems.absorb(root.part.problems);

    let mut checks = Vec::new();
    for (name, bucket, host) in names {
        let (check, found) = check_bucket(&shared, &bucket, host, &|| begin(&name));
        problems.absorb(found);
        checks.push((name, check));
    }

    let mut structure = problems.into_structure();
    structure.pages_reached = reached.count();
    if shared.is_stopped() {
        return (Structure { unfinished: true, ..structure }, checks);
    }
    let (freelist, listed) = check_freelist(db, &reached, &mut structure.unreadable);
    structure.freelist = freelist;
    structure.pages_free = listed.unwrap_or_else(|| db.meta().hwm.saturating_sub(2 + structure.pages_reached));
    (structure, checks)
}

/// Runs an item check over one bucket, and says how many pages the bucket takes. The first thing wrong is an error.
pub fn scan_bucket<S, C>(
    db: &Db<'_, S>,
    run: &Run<'_>,
    bucket: &Bucket,
    begin: impl Fn() -> C + Sync,
) -> Result<(C, u64), BoltError>
where
    S: ReadAt + ?Sized,
    C: ItemCheck,
{
    let reached = Reached::new(db.meta().hwm);
    let shared = Shared::new(db, &reached, run);
    let (check, mut found) = check_bucket(&shared, bucket, db.meta().root, &begin);
    if !found.unreadable.is_empty() {
        return Err(BoltError::Read(found.unreadable.swap_remove(0)));
    }
    // A single-child branch reads well; it is a full check's business.
    match found.pages.into_iter().find(|(_, problem)| *problem != PageProblem::SingleChild) {
        Some((page, problem)) => Err(BoltError::Page { page, problem }),
        None => Ok((check, reached.count())),
    }
}

fn check_bucket<S: ReadAt + ?Sized, C: ItemCheck>(
    shared: &Shared<'_, '_, S>,
    bucket: &Bucket,
    host: u64,
    begin: &(impl Fn() -> C + Sync),
) -> (C, Problems) {
    let mut whole = Part::new(shared, Some(begin()));
    let parts = match bucket {
        Bucket::Inline(image) => {
            // An inline bucket has no page of its own before which to stop.
            let _ = tree::walk_inline(image, host, &mut whole);
            Vec::new()
        }
        Bucket::Tree(root) => split(shared, Subtree::root(*root), &mut whole),
    };
    let mut problems = whole.problems;
    let mut check = whole.check.unwrap_or_else(begin);
    let mut joined = true;
    for (part_check, part_problems, part_whole) in run_parts(shared, &parts, begin) {
        if joined {
            check.absorb(part_check)
        } else {
            check.absorb_apart(part_check)
        }
        problems.absorb(part_problems);
        joined = part_whole;
    }
    (check, problems)
}

/// Enough parts that every thread has work until the end.
const PARTS_MIN: usize = 16;

fn split<S: ReadAt + ?Sized, C: ItemCheck>(
    shared: &Shared<'_, '_, S>,
    root: Subtree,
    whole: &mut Part<'_, '_, '_, S, C>,
) -> Vec<Subtree> {
    let mut parts = vec![root];
    // Two rounds reach thousands of parts in any real file.
    for _ in 0..2 {
        if parts.len() >= PARTS_MIN || shared.run.workers < 2 {
            break;
        }
        let mut finer = Vec::new();
        for part in parts {
            match shared.db.split(&part, whole) {
                Ok(Some(children)) => finer.extend(children),
                Ok(None) => finer.push(part),
                Err(Stopped) => return Vec::new(),
            }
        }
        parts = finer;
    }
    parts
}

fn run_parts<S: ReadAt + ?Sized, C: ItemCheck>(
    shared: &Shared<'_, '_, S>,
    parts: &[Subtree],
    begin: &(impl Fn() -> C + Sync),
) -> Vec<(C, Problems, bool)> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(parts.len()));
    let work = || {
        while let Some((index, part)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            parts.get(index).map(|part| (index, part))
        } {
            let mut visitor = Part::new(shared, Some(begin()));
            let whole = shared.db.walk(part, &mut visitor).is_ok();
            let result = (visitor.check.unwrap_or_else(begin), visitor.problems, whole);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, result));
        }
    };
    if shared.run.workers < 2 || parts.len() < 2 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 1..shared.run.workers {
                scope.spawn(work);
            }
            work();
        });
    }
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

struct Shared<'r, 's, S: ReadAt + ?Sized> {
    db: &'r Db<'s, S>,
    reached: &'r Reached,
    run: &'r Run<'r>,
    stopped: AtomicBool,
}

impl<'r, 's, S: ReadAt + ?Sized> Shared<'r, 's, S> {
    fn new(db: &'r Db<'s, S>, reached: &'r Reached, run: &'r Run<'r>) -> Self {
        Shared { db, reached, run, stopped: AtomicBool::new(false) }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Asks whether to go on; a no is final.
    fn ask(&self) -> Result<(), Stopped> {
        let Some(go_on) = self.run.go_on else { return Ok(()) };
        if self.is_stopped() || !go_on() {
            self.stopped.store(true, Ordering::Relaxed);
            return Err(Stopped);
        }
        Ok(())
    }
}

/// One bit per page.
struct Reached {
    bits: Vec<AtomicU64>,
}

impl Reached {
    fn new(pages: u64) -> Reached {
        Reached { bits: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Marks a page; `false` if it was marked before.
    fn mark(&self, page: u64) -> bool {
        let bit = 1u64 << (page % 64);
        self.bits.get((page / 64) as usize).is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }

    fn is_marked(&self, page: u64) -> bool {
        let bit = 1u64 << (page % 64);
        self.bits.get((page / 64) as usize).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn count(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
}

#[derive(Default)]
struct Problems {
    pages: Vec<(u64, PageProblem)>,
    more: u64,
    unreadable: Vec<ReadError>,
}

impl Problems {
    fn add(&mut self, page: u64, problem: PageProblem) {
        if self.pages.len() < PROBLEMS_MAX { self.pages.push((page, problem)) } else { self.more += 1 }
    }

    fn absorb(&mut self, later: Problems) {
        for (page, problem) in later.pages {
            self.add(page, problem);
        }
        self.more += later.more;
        self.unreadable.extend(later.unreadable);
        self.unreadable.truncate(PROBLEMS_MAX);
    }

    fn into_structure(self) -> Structure {
        Structure {
            problems: self.pages,
            problems_more: self.more,
            unreadable: self.unreadable,
            ..Structure::default()
        }
    }
}

/// A walk was told to end before it had seen everything.
struct Stopped;

struct Part<'p, 'r, 's, S: ReadAt + ?Sized, C> {
    shared: &'p Shared<'r, 's, S>,
    check: Option<C>,
    problems: Problems,
}

impl<'p, 'r, 's, S: ReadAt + ?Sized, C> Part<'p, 'r, 's, S, C> {
    fn new(shared: &'p Shared<'r, 's, S>, check: Option<C>) -> Self {
        Part { shared, check, problems: Problems::default() }
    }

    fn mark(&mut self, page: u64, pages: u64) -> bool {
        let bytes = pages * u64::from(self.shared.db.meta().page_size);
        self.shared.run.progress.fetch_add(bytes, Ordering::Relaxed);
        let mut fresh = true;
        for page in page..page + pages {
            if !self.shared.reached.mark(page) {
                self.problems.add(page, PageProblem::ReachedTwice);
                fresh = false;
            }
        }
        fresh
    }
}

impl<S: ReadAt + ?Sized, C: ItemCheck> Visitor for Part<'_, '_, '_, S, C> {
    type Stop = Stopped;

    fn reached(&mut self, page: u64, pages: u64) -> Result<bool, Stopped> {
        self.shared.ask()?;
        Ok(self.mark(page, pages))
    }

    fn problem(&mut self, page: u64, problem: PageProblem) -> Result<(), Stopped> {
        self.problems.add(page, problem);
        Ok(())
    }

    fn unreadable(&mut self, error: ReadError) -> Result<(), Stopped> {
        self.problems.unreadable.push(error);
        Ok(())
    }

    fn item(&mut self, page: u64, item: LeafItem<'_>) -> Result<(), Stopped> {
        if item.is_bucket {
            // etcd keeps no bucket inside a bucket.
            self.problems.add(page, PageProblem::Bucket { element: 0 });
        } else if let Some(check) = &mut self.check {
            check.item(page, item.key, item.value);
        }
        Ok(())
    }
}

/// Collects the top-level buckets.
struct RootVisitor<'b, 'p, 'r, 's, S: ReadAt + ?Sized, C> {
    part: Part<'p, 'r, 's, S, C>,
    buckets: &'b mut Vec<(Vec<u8>, Bucket, u64)>,
}

/// etcd has ten buckets; a file with many more is not etcd's, and is not followed for ever.
const BUCKETS_MAX: usize = 1000;

impl<S: ReadAt + ?Sized, C: ItemCheck> Visitor for RootVisitor<'_, '_, '_, '_, S, C> {
    type Stop = Stopped;

    fn reached(&mut self, page: u64, pages: u64) -> Result<bool, Stopped> {
        self.part.reached(page, pages)
    }

    fn problem(&mut self, page: u64, problem: PageProblem) -> Result<(), Stopped> {
        self.part.problem(page, problem)
    }

    fn unreadable(&mut self, error: ReadError) -> Result<(), Stopped> {
        self.part.unreadable(error)
    }

    fn item(&mut self, page: u64, item: LeafItem<'_>) -> Result<(), Stopped> {
        match tree::bucket_of(&item) {
            Some(bucket) if self.buckets.len() < BUCKETS_MAX => self.buckets.push((item.key.to_vec(), bucket, page)),
            _ => self.part.problems.add(page, PageProblem::Bucket { element: 0 }),
        }
        Ok(())
    }
}

/// Compares a persisted freelist with what was reached. Returns what is wrong, and how many pages it lists.
fn check_freelist<S: ReadAt + ?Sized>(
    db: &Db<'_, S>,
    reached: &Reached,
    unreadable: &mut Vec<ReadError>,
) -> (Option<FreelistProblem>, Option<u64>) {
    let meta = db.meta();
    if meta.freelist == meta::NO_FREELIST {
        return (None, None);
    }
    match read_freelist(db, reached) {
        Ok((listed, own_pages)) => {
            let lost = meta.hwm.saturating_sub(2 + own_pages + listed + reached.count());
            ((lost > 0).then_some(FreelistProblem::Lost(lost)), Some(listed))
        }
        Err(FreelistFailure::Problem(problem)) => (Some(problem), None),
        Err(FreelistFailure::Read(error)) => {
            unreadable.push(error);
            (None, None)
        }
    }
}

enum FreelistFailure {
    Read(ReadError),
    Problem(FreelistProblem),
}

fn read_freelist<S: ReadAt + ?Sized>(db: &Db<'_, S>, reached: &Reached) -> Result<(u64, u64), FreelistFailure> {
    let meta = db.meta();
    let page_size = u64::from(meta.page_size);
    let start = meta.freelist * page_size;
    let mut head = [0; HEADER_BYTES + 8];
    db.source().read_exact_at(&mut head, start).map_err(FreelistFailure::Read)?;
    let not_a_freelist = || FreelistFailure::Problem(FreelistProblem::NotAFreelist(meta.freelist));
    let header = Header::decode(&head).ok_or_else(not_a_freelist)?;
    let first = head.last_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let (count, ids_at) = match header.count {
        0xFFFF => (first, HEADER_BYTES as u64 + 8),
        count => (u64::from(count), HEADER_BYTES as u64),
    };
    let own_pages = u64::from(header.overflow) + 1;
    let in_range = header.id == meta.freelist && header.flags == FREELIST && own_pages <= meta.hwm - meta.freelist;
    let room = own_pages.saturating_mul(page_size).saturating_sub(ids_at) / 8;
    if !in_range || count > room {
        return Err(not_a_freelist());
    }
    for page in meta.freelist..meta.freelist + own_pages {
        if reached.is_marked(page) {
            return Err(FreelistFailure::Problem(FreelistProblem::InUse(page)));
        }
    }
    let own = meta.freelist..meta.freelist + own_pages;
    let mut last = 1;
    let mut chunk = vec![0u8; 64 << 10];
    let mut done = 0;
    while done < count {
        let ids = (count - done).min(chunk.len() as u64 / 8);
        let bytes = &mut chunk[..(ids * 8) as usize];
        db.source().read_exact_at(bytes, start + ids_at + done * 8).map_err(FreelistFailure::Read)?;
        for id in bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)) {
            if id <= last || id >= meta.hwm || own.contains(&id) {
                return Err(FreelistFailure::Problem(FreelistProblem::BadId(id)));
            }
            if reached.is_marked(id) {
                return Err(FreelistFailure::Problem(FreelistProblem::InUse(id)));
            }
            last = id;
        }
        done += ids;
    }
    Ok((count, own_pages))
}
