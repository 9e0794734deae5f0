//! Reads pages and walks trees of a bolt file through a small window of memory.
//!
//! Children that lie next to each other in the file are read together, so a freshly written file is read in large
//! pieces and a scattered one page by page.
//!
//! **Invariant:** a walk holds at most one branch page per level and one window or one leaf, whatever the file says.

use super::build::Item;
use super::meta::NO_FREELIST;
use super::page::{BranchItem, HEADER_BYTES, Header, LeafItem, Page};
use super::window::{Failure, Window};
use super::{BoltError, Meta, MetaPages, PageProblem};
use crate::{ReadAt, ReadError};

/// Deepest tree that is followed. Two children per branch and a file of 2^63 bytes would need fewer.
pub const DEPTH_MAX: usize = 48;

/// A bolt file with a valid meta page.
#[derive(Debug)]
pub struct Db<'s, S: ReadAt + ?Sized> {
    source: &'s S,
    meta: Meta,
}

impl<S: ReadAt + ?Sized> Clone for Db<'_, S> {
    fn clone(&self) -> Self {
        Db { source: self.source, meta: self.meta }
    }
}

/// A top-level bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bucket {
    /// A tree with this root page.
    Tree(u64),
    /// A single small leaf kept inside the root tree.
    Inline(Vec<u8>),
}

/// Top-level buckets by name.
pub type Buckets = Vec<(Vec<u8>, Bucket)>;

/// Sees what a walk comes across. Returning `Err` ends the walk.
pub trait Visitor {
    /// What ends a walk early.
    type Stop;
    /// Whether to look at a part of the tree at all.
    fn wants(&self, _subtree: &Subtree) -> bool {
        true
    }
    /// A page, with its overflow pages, is reached. `false` leaves it out.
    fn reached(&mut self, page: u64, pages: u64) -> Result<bool, Self::Stop>;
    /// Something is wrong with a page. The walk goes on beside it, unless this returns `Err`.
    fn problem(&mut self, page: u64, problem: PageProblem) -> Result<(), Self::Stop>;
    /// The bytes of a page could not be had.
    fn unreadable(&mut self, error: ReadError) -> Result<(), Self::Stop>;
    /// One key and value, in order.
    fn item(&mut self, page: u64, item: LeafItem<'_>) -> Result<(), Self::Stop>;
}

/// A part of a tree: a page and the range its keys must lie in.
#[derive(Debug, Clone, Default)]
pub struct Subtree {
    /// Its root page.
    pub page: u64,
    /// No key is below this.
    pub lower: Option<Vec<u8>>,
    /// Every key is below this.
    pub upper: Option<Vec<u8>>,
    /// How far it is from the bucket's root.
    pub depth: usize,
}

impl Subtree {
    /// The whole tree below a root page.
    pub fn root(page: u64) -> Subtree {
        Subtree { page, ..Subtree::default() }
    }
}

impl<'s, S: ReadAt + ?Sized> Db<'s, S> {
    /// Opens the file at the meta page that bbolt would use.
    pub fn open(source: &'s S) -> Result<Self, BoltError> {
        let meta = MetaPages::read(source)?.chosen().ok_or(BoltError::NoMeta)?;
        Db::with_meta(source, meta)
    }

    /// Opens the file at a given meta page.
    pub fn with_meta(source: &'s S, meta: Meta) -> Result<Self, BoltError> {
        let wanted = meta.hwm.saturating_mul(u64::from(meta.page_size));
        if source.len() < wanted {
            return Err(BoltError::TooShort { len: source.len(), wanted });
        }
        Ok(Db { source, meta })
    }

    /// The meta page in force.
    pub fn meta(&self) -> Meta {
        self.meta
    }

    /// The bytes underneath.
    pub fn source(&self) -> &'s S {
        self.source
    }

    /// Every top-level bucket, by name. The first thing wrong ends it.
    pub fn buckets(&self) -> Result<Buckets, BoltError> {
        self.root_tree().map(|(buckets, _)| buckets)
    }

    /// Pages that belong to no bucket: the meta pages, the tree of buckets and the freelist.
    pub fn overhead_pages(&self) -> Result<u64, BoltError> {
        let (_, root) = self.root_tree()?;
        let freelist = match self.meta.freelist {
            NO_FREELIST => 0,
            page => {
                let mut header = [0; HEADER_BYTES];
                self.source.read_exact_at(&mut header, page * u64::from(self.meta.page_size))?;
                Header::decode(&header).map_or(1, |header| u64::from(header.overflow) + 1)
            }
        };
        Ok(2 + root + freelist)
    }

    fn root_tree(&self) -> Result<(Buckets, u64), BoltError> {
        let mut buckets = Vec::new();
        let visit = |page, item: LeafItem<'_>| {
            let bucket =
                bucket_of(&item).ok_or(BoltError::Page { page, problem: PageProblem::Bucket { element: 0 } })?;
            buckets.push((item.key.to_vec(), bucket));
            Ok(())
        };
        let mut strict = Strict { lower: &[], pages: 0, visit };
        self.walk(&Subtree::root(self.meta.root), &mut strict)?;
        let pages = strict.pages;
        Ok((buckets, pages))
    }

    /// Visits every item of a bucket in order, and says how many pages it takes. The first thing wrong ends it.
    pub fn for_each(&self, bucket: &Bucket, mut visit: impl FnMut(&[u8], &[u8])) -> Result<u64, BoltError> {
        self.for_each_from(bucket, &[], |key, value| visit(key, value))
    }

    /// Visits every item of a bucket from `lower` on (and perhaps a few before it), in order.
    pub fn for_each_from(
        &self,
        bucket: &Bucket,
        lower: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<u64, BoltError> {
        let visit = |_, item: LeafItem<'_>| {
            visit(item.key, item.value);
            Ok(())
        };
        let mut strict = Strict { lower, pages: 0, visit };
        match bucket {
            Bucket::Tree(root) => self.walk(&Subtree::root(*root), &mut strict)?,
            Bucket::Inline(bytes) => walk_inline(bytes, self.meta.root, &mut strict)?,
        }
        Ok(strict.pages)
    }

    /// The value of one key of a bucket.
    pub fn get(&self, bucket: &Bucket, wanted: &[u8]) -> Result<Option<Vec<u8>>, BoltError> {
        self.descend(
            bucket,
            |items| items.take_while(|item| item.key <= wanted).last().map(|item| item.child),
            |items| items.filter(|item| item.key == wanted).last().map(|item| item.value.to_vec()),
        )
    }

    /// The last item of a bucket.
    pub fn last(&self, bucket: &Bucket) -> Result<Option<Item>, BoltError> {
        self.descend(
            bucket,
            |items| items.last().map(|item| item.child),
            |items| items.last().map(|item| (item.key.to_vec(), item.value.to_vec())),
        )
    }

    fn descend<T>(
        &self,
        bucket: &Bucket,
        branch: impl Fn(&mut dyn Iterator<Item = BranchItem<'_>>) -> Option<u64>,
        leaf: impl Fn(&mut dyn Iterator<Item = LeafItem<'_>>) -> Option<T>,
    ) -> Result<Option<T>, BoltError> {
        let mut page = match bucket {
            Bucket::Tree(root) => *root,
            Bucket::Inline(bytes) => {
                let page = self.meta.root;
                let image = Page::new(bytes).map_err(|problem| BoltError::Page { page, problem })?;
                return strictly(page, image.leaf_items(), leaf);
            }
        };
        let mut window = Window::default();
        for _ in 0..DEPTH_MAX {
            let image = window.page(self.source, &self.meta, page, 1).map_err(|failure| failure.into_error(page))?;
            if !image.is_branch() {
                return strictly(page, image.leaf_items(), leaf);
            }
            match strictly(page, image.branch_items(), &branch)? {
                Some(child) => page = child,
                None => return Ok(None),
            }
        }
        Err(BoltError::Page { page, problem: PageProblem::TooDeep { limit: DEPTH_MAX } })
    }

    /// Walks a subtree in key order, telling the visitor of pages, problems and items.
    pub fn walk<V: Visitor>(&self, subtree: &Subtree, visitor: &mut V) -> Result<(), V::Stop> {
        let mut window = Window::default();
        self.walk_page(&mut window, subtree, 1, visitor)
    }

    fn walk_page<V: Visitor>(
        &self,
        window: &mut Window,
        at: &Subtree,
        ahead: u64,
        visitor: &mut V,
    ) -> Result<(), V::Stop> {
        let page = match window.page(self.source, &self.meta, at.page, ahead) {
            Ok(page) => page,
            Err(Failure::Read(error)) => return visitor.unreadable(error),
            Err(Failure::Page(problem)) => return visitor.problem(at.page, problem),
        };
        if !visitor.reached(at.page, u64::from(page.header.overflow) + 1)? {
            return Ok(());
        }
        if page.header.count == 0 && (at.depth > 0 || page.is_branch()) {
            return visitor.problem(at.page, PageProblem::Empty);
        }
        if !page.is_branch() {
            let used = walk_leaf(&page, at, visitor)?;
            return self.check_overflow(&page, at.page, used, visitor);
        }
        let children = self.children(&page, at, visitor)?;
        for (index, child) in children.iter().enumerate().filter(|(_, child)| visitor.wants(child)).collect::<Vec<_>>()
        {
            let ahead = worth_reading(&children[index..], Window::pages(&self.meta));
            self.walk_page(window, child, ahead, visitor)?;
        }
        Ok(())
    }

    /// The children of a branch, each with the range its keys must lie in. What is wrong with the branch is reported.
    fn children<V: Visitor>(&self, page: &Page<'_>, at: &Subtree, visitor: &mut V) -> Result<Vec<Subtree>, V::Stop> {
        let mut children: Vec<Subtree> = Vec::with_capacity(usize::from(page.header.count));
        if at.depth + 1 >= DEPTH_MAX {
            visitor.problem(at.page, PageProblem::TooDeep { limit: DEPTH_MAX })?;
            return Ok(children);
        }
        for (element, item) in page.branch_items().enumerate() {
            let item = match item {
                Ok(item) => item,
                Err(problem) => {
                    visitor.problem(at.page, problem)?;
                    break;
                }
            };
            if let Some(before) = children.last_mut() {
                if before.lower.as_deref() >= Some(item.key) {
                    visitor.problem(at.page, PageProblem::Order { element: element as u32 })?;
                }
                before.upper = Some(item.key.to_vec());
            }
            if !in_range(item.key, at) {
                visitor.problem(at.page, PageProblem::Bounds)?;
            }
            children.push(Subtree {
                page: item.child,
                lower: Some(item.key.to_vec()),
                upper: at.upper.clone(),
                depth: at.depth + 1,
            });
        }
        if children.len() == 1 && page.header.count == 1 {
            visitor.problem(at.page, PageProblem::SingleChild)?;
        }
        self.check_overflow(page, at.page, page.used_bytes().ok(), visitor)?;
        Ok(children)
    }

    /// A page takes the pages that its elements need; writers before bbolt took one more for an exact fit.
    fn check_overflow<V: Visitor>(
        &self,
        page: &Page<'_>,
        id: u64,
        used: Option<usize>,
        visitor: &mut V,
    ) -> Result<(), V::Stop> {
        let Some(used) = used else { return Ok(()) };
        let (page_size, overflow) = (self.meta.page_size as usize, page.header.overflow);
        let needed = used.div_ceil(page_size) - 1;
        if overflow as usize == needed || overflow as usize == used / page_size {
            return Ok(());
        }
        visitor.problem(id, PageProblem::Overflow { overflow, used })
    }

    /// The children of a subtree's root if that is a branch; the subtree itself if it is a leaf or cannot be read.
    pub fn split<V: Visitor>(&self, subtree: &Subtree, visitor: &mut V) -> Result<Option<Vec<Subtree>>, V::Stop> {
        let mut window = Window::default();
        match window.page(self.source, &self.meta, subtree.page, 1) {
            Ok(page) if page.is_branch() && page.header.count > 0 => {
                if !visitor.reached(subtree.page, u64::from(page.header.overflow) + 1)? {
                    return Ok(Some(Vec::new()));
                }
                self.children(&page, subtree, visitor).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Hands the items to `find`, and fails if it came across one that is wrong.
fn strictly<I, T>(
    page: u64,
    items: impl Iterator<Item = Result<I, PageProblem>>,
    find: impl Fn(&mut dyn Iterator<Item = I>) -> Option<T>,
) -> Result<Option<T>, BoltError> {
    let mut wrong = None;
    let mut sound = items.map_while(|item| item.map_err(|problem| wrong = Some(problem)).ok());
    let found = find(&mut sound);
    match wrong {
        Some(problem) => Err(BoltError::Page { page, problem }),
        None => Ok(found),
    }
}

/// How many pages to read from the first child on, so that neighbours come along and strangers do not.
fn worth_reading(children: &[Subtree], most: u64) -> u64 {
    /// Pages between two children that are cheaper to read than to skip: overflow of the first, usually.
    const GAP_PAGES: u64 = 4;
    let Some(first) = children.first() else { return 1 };
    let mut last = first.page;
    for child in &children[1..] {
        let near = child.page > last && child.page - last <= GAP_PAGES && child.page - first.page < most;
        if !near {
            break;
        }
        last = child.page;
    }
    last - first.page + 1
}

/// Walks a leaf and returns how many bytes it uses, unless it cannot be walked to its end.
fn walk_leaf<V: Visitor>(page: &Page<'_>, at: &Subtree, visitor: &mut V) -> Result<Option<usize>, V::Stop> {
    let mut before: Option<&[u8]> = None;
    let mut used = HEADER_BYTES * (1 + usize::from(page.header.count));
    for (element, item) in page.leaf_items().enumerate() {
        let item = match item {
            Ok(item) => item,
            Err(problem) => return visitor.problem(at.page, problem).map(|()| None),
        };
        if before.is_some_and(|before| before >= item.key) {
            return visitor.problem(at.page, PageProblem::Order { element: element as u32 }).map(|()| None);
        }
        if before.is_none() && at.lower.as_deref().is_some_and(|lower| item.key < lower) {
            visitor.problem(at.page, PageProblem::Bounds)?;
        }
        before = Some(item.key);
        used += item.key.len() + item.value.len();
        visitor.item(at.page, item)?;
    }
    if before.zip(at.upper.as_deref()).is_some_and(|(last, upper)| last >= upper) {
        visitor.problem(at.page, PageProblem::Bounds)?;
    }
    Ok(Some(used))
}

/// Walks a bucket that is kept inside page `host`.
pub fn walk_inline<V: Visitor>(image: &[u8], host: u64, visitor: &mut V) -> Result<(), V::Stop> {
    match Page::new(image) {
        Ok(page) if !page.is_branch() && page.header.id == 0 && page.header.overflow == 0 => {
            match walk_leaf(&page, &Subtree::root(host), visitor)? {
                Some(used) if used != image.len() => visitor.problem(host, PageProblem::Bucket { element: 0 }),
                _ => Ok(()),
            }
        }
        Ok(_) => visitor.problem(host, PageProblem::Bucket { element: 0 }),
        Err(problem) => visitor.problem(host, problem),
    }
}

/// The bucket that a root-tree item stands for.
pub fn bucket_of(item: &LeafItem<'_>) -> Option<Bucket> {
    let (root, rest) = item.value.split_first_chunk::<8>().filter(|_| item.is_bucket)?;
    let (_sequence, inline) = rest.split_first_chunk::<8>()?;
    match u64::from_le_bytes(*root) {
        0 => Some(Bucket::Inline(inline.to_vec())),
        root => inline.is_empty().then_some(Bucket::Tree(root)),
    }
}

fn in_range(key: &[u8], at: &Subtree) -> bool {
    at.lower.as_deref().is_none_or(|lower| key >= lower) && at.upper.as_deref().is_none_or(|upper| key < upper)
}

/// Ends at the first thing that is wrong.
struct Strict<'k, F> {
    lower: &'k [u8],
    pages: u64,
    visit: F,
}

impl<F: FnMut(u64, LeafItem<'_>) -> Result<(), BoltError>> Visitor for Strict<'_, F> {
    type Stop = BoltError;

    fn wants(&self, subtree: &Subtree) -> bool {
        subtree.upper.as_deref().is_none_or(|upper| upper > self.lower)
    }

    fn reached(&mut self, _page: u64, pages: u64) -> Result<bool, BoltError> {
        self.pages += pages;
        Ok(true)
    }

    fn problem(&mut self, page: u64, problem: PageProblem) -> Result<(), BoltError> {
        // A single-child branch reads well; it is the checker's business.
        if problem == PageProblem::SingleChild { Ok(()) } else { Err(BoltError::Page { page, problem }) }
    }

    fn unreadable(&mut self, error: ReadError) -> Result<(), BoltError> {
        Err(error.into())
    }

    fn item(&mut self, page: u64, item: LeafItem<'_>) -> Result<(), BoltError> {
        (self.visit)(page, item)
    }
}
