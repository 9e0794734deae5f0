//! What is stored, asked and told.

use std::collections::BTreeMap;
use std::fmt;

/// A point in the history of a store. Later changes have higher ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lease, by the name that its store gave it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub String);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One key as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// When it came into being.
    pub created: Revision,
    /// When it was changed last.
    pub revision: Revision,
    /// The lease that holds it, and with which it goes.
    pub lease: Option<LeaseId>,
}

/// Which keys are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// This one.
    Key(Vec<u8>),
    /// All that begin so; nothing means all.
    Prefix(Vec<u8>),
}

impl Scope {
    /// One key.
    pub fn key(key: impl Into<Vec<u8>>) -> Scope {
        Scope::Key(key.into())
    }

    /// All keys that begin so.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Scope {
        Scope::Prefix(prefix.into())
    }

    /// Whether the key is meant.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Scope::Key(one) => one == key,
            Scope::Prefix(prefix) => key.starts_with(prefix),
        }
    }

    /// The bytes that were given.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Scope::Key(bytes) | Scope::Prefix(bytes) => bytes,
        }
    }
}

/// Keys as they were at one revision, in the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The revision.
    pub revision: Revision,
    /// The keys.
    pub entries: Vec<Entry>,
}

impl Listing {
    /// Where a watch goes on that is to miss nothing after this listing.
    pub fn position(&self) -> Position {
        let known = self.entries.iter().map(|entry| (entry.key.clone(), entry.revision)).collect();
        Position { revision: self.revision, known: Some(known) }
    }
}

/// How far somebody has seen the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Everything up to this revision was seen.
    pub revision: Revision,
    /// The keys that were there then, and when each was changed last. Stores that keep no history need it to tell what
    /// has been deleted since.
    pub known: Option<BTreeMap<Vec<u8>, Revision>>,
}

impl Position {
    /// A revision alone, from a time when more was not remembered.
    pub fn at(revision: Revision) -> Position {
        Position { revision, known: None }
    }
}

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The key is not there.
    Absent(Vec<u8>),
    /// The key is there and was last changed at this very revision.
    Unchanged(Vec<u8>, Revision),
}

impl Compare {
    /// The key it looks at.
    pub fn key(&self) -> &[u8] {
        match self {
            Compare::Absent(key) | Compare::Unchanged(key, _) => key,
        }
    }
}

/// A change that a transaction makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Write the key. A lease that holds it goes on holding it.
    Put(Vec<u8>, Vec<u8>),
    /// Make the key, held by a lease. A key that is there already makes a conflict of the transaction.
    Hold(Vec<u8>, Vec<u8>, LeaseId),
    /// Delete the key, if it is there.
    Delete(Vec<u8>),
}

impl Change {
    /// The key it changes.
    pub fn key(&self) -> &[u8] {
        match self {
            Change::Put(key, _) | Change::Hold(key, _, _) | Change::Delete(key) => key,
        }
    }
}

/// All of the changes or none, made only if all conditions hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Txn {
    /// The conditions.
    pub when: Vec<Compare>,
    /// The changes; no key twice.
    pub then: Vec<Change>,
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All changes were made, at this revision. Stores that do not tell when they deleted say none.
    Committed(Option<Revision>),
    /// A condition did not hold: nothing was changed.
    Conflict,
}

/// One change, as a watch tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The key was written.
    Put(Entry),
    /// The key was deleted, or went with its lease.
    Delete {
        /// The key.
        key: Vec<u8>,
        /// When, or at the latest when.
        revision: Revision,
    },
}

impl Event {
    /// The key that changed.
    pub fn key(&self) -> &[u8] {
        match self {
            Event::Put(entry) => &entry.key,
            Event::Delete { key, .. } => key,
        }
    }

    /// When it changed.
    pub fn revision(&self) -> Revision {
        match self {
            Event::Put(entry) => entry.revision,
            Event::Delete { revision, .. } => *revision,
        }
    }
}
