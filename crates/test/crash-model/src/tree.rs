//! A directory tree as a value: read from disk, compared, and written out again.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use quorate_host::durable::Owner;

/// Bytes and where in a file they go.
pub(crate) type Piece = (usize, Rc<[u8]>);

/// A file or a directory, without its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    mode: u32,
    /// `None`: whoever made it.
    owner: Option<(u32, u32)>,
    /// `None`: a directory.
    bytes: Option<Rc<[u8]>>,
}

impl Node {
    /// A directory of whoever makes it.
    pub fn dir(mode: u32) -> Node {
        Node { mode, owner: None, bytes: None }
    }

    /// An empty file of whoever makes it.
    pub fn file(mode: u32) -> Node {
        Node { mode, owner: None, bytes: Some(Rc::new([])) }
    }

    /// A file's content.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }

    /// The permission bits.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    pub(crate) fn set_owner(&mut self, owner: Owner) {
        self.owner = Some((owner.uid, owner.gid));
    }

    pub(crate) fn put(&mut self, offset: usize, bytes: Rc<[u8]>) {
        if offset == 0 && self.bytes.as_ref().is_none_or(|there| there.len() <= bytes.len()) {
            // Shared rather than copied: a file is mostly written in one go, and there are thousands of trees.
            self.bytes = Some(bytes);
            return;
        }
        let mut content = self.bytes.as_deref().unwrap_or_default().to_vec();
        lay(&mut content, offset, &bytes);
        self.bytes = Some(content.into());
    }

    /// The same for several pieces, each over those before it; the content is copied once.
    pub(crate) fn put_all(&mut self, pieces: &[Piece]) {
        if let [(offset, bytes)] = pieces {
            return self.put(*offset, Rc::clone(bytes));
        }
        let mut content = self.bytes.as_deref().unwrap_or_default().to_vec();
        pieces.iter().for_each(|(offset, bytes)| lay(&mut content, *offset, bytes));
        self.bytes = Some(content.into());
    }
}

fn lay(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    content.resize(content.len().max(offset + bytes.len()), 0);
    content[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The ends tell most contents apart, and equality compares the rest.
        let bytes = self.bytes.as_deref().unwrap_or_default();
        let middle = bytes.len() / 2;
        let samples = (bytes.first_chunk::<16>(), bytes[middle..].first_chunk::<16>(), bytes.last_chunk::<16>());
        (self.mode, self.owner, bytes.len(), samples).hash(state);
    }
}

/// Files and directories by their path below a root; the root itself has the empty path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tree(BTreeMap<PathBuf, Node>);

impl Tree {
    /// Every node, parents before what they hold.
    pub fn nodes(&self) -> impl Iterator<Item = (&Path, &Node)> {
        self.0.iter().map(|(path, node)| (path.as_path(), node))
    }

    /// One node.
    pub fn get(&self, path: impl AsRef<Path>) -> Option<&Node> {
        self.0.get(path.as_ref())
    }

    /// Adds or replaces a node.
    pub fn insert(&mut self, path: PathBuf, node: Node) {
        self.0.insert(path, node);
    }

    /// The part of the tree at `path`, as a tree of its own. Empty if there is nothing.
    #[must_use]
    pub fn below(&self, path: impl AsRef<Path>) -> Tree {
        let part = self.0.iter().filter_map(|(at, node)| Some((at.strip_prefix(&path).ok()?.to_owned(), node.clone())));
        Tree(part.collect())
    }

    /// Reads what is on disk. Owners that are our own count as "whoever made it".
    pub fn read(root: &Path) -> io::Result<Tree> {
        let us = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut tree = Tree::default();
        let mut stack = vec![PathBuf::new()];
        while let Some(path) = stack.pop() {
            let at = root.join(&path);
            let meta = at.symlink_metadata()?;
            let bytes = if meta.is_dir() {
                for entry in std::fs::read_dir(&at)? {
                    stack.push(path.join(entry?.file_name()));
                }
                None
            } else {
                Some(std::fs::read(&at)?.into())
            };
            let owner = Some((meta.uid(), meta.gid())).filter(|owner| *owner != us);
            tree.insert(path, Node { mode: meta.mode() & 0o7777, owner, bytes });
        }
        Ok(tree)
    }

    /// Writes the tree below `root`, which must exist and be empty.
    #[expect(clippy::disallowed_methods, reason = "scenery for a test, in a directory that is thrown away")]
    pub fn write(&self, root: &Path) -> io::Result<()> {
        for (path, node) in &self.0 {
            let at = root.join(path);
            match &node.bytes {
                Some(bytes) => std::fs::write(&at, bytes)?,
                None if path.as_os_str().is_empty() => {}
                None => std::fs::create_dir(&at)?,
            }
            std::fs::set_permissions(&at, std::fs::Permissions::from_mode(node.mode))?;
            if let Some((uid, gid)) = node.owner {
                std::os::unix::fs::chown(&at, Some(uid), Some(gid))?;
            }
        }
        Ok(())
    }
}
