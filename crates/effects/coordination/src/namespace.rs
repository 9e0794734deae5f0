//! The part of a store that is ours.
//!
//! **Invariant:** no key outside the namespace is ever read, written or told of.

use quorate_faults::{Code, Fault, Result};
use quorate_kv::{Change, Compare, Entry, Event, Listing, Position, Scope, Txn};

const NAMESPACE_BYTES_MAX: usize = 256;

/// What all our keys begin with.
#[derive(Debug, Clone)]
pub(crate) struct Namespace(Vec<u8>);

impl Namespace {
    pub(crate) fn new(text: &str) -> Result<Namespace> {
        // One that stays as it is when escaped is the same in every store, and in the rules that protect it.
        let plain = quorate_kv::escape(text.as_bytes()) == text && text.len() <= NAMESPACE_BYTES_MAX;
        if !plain || !text.ends_with('/') {
            let attempt = format!("cannot use namespace `{}`", text.escape_debug());
            return Err(Fault::new(Code::CoordinationInvalid, attempt)
                .hint("write a path that ends with a slash, such as `quorate/blue/`"));
        }
        Ok(Namespace(text.as_bytes().to_vec()))
    }

    /// As the beginning of names where no slash may be: `quorate-blue-`.
    pub(crate) fn dashed(&self) -> String {
        String::from_utf8_lossy(&self.0).replace('/', "-")
    }

    fn full(&self, key: &[u8]) -> Vec<u8> {
        [self.0.as_slice(), key].concat()
    }

    pub(crate) fn scope(&self, scope: &Scope) -> Scope {
        match scope {
            Scope::Key(key) => Scope::Key(self.full(key)),
            Scope::Prefix(prefix) => Scope::Prefix(self.full(prefix)),
        }
    }

    pub(crate) fn txn(&self, txn: &Txn) -> Txn {
        let compare = |compare: &Compare| match compare {
            Compare::Absent(key) => Compare::Absent(self.full(key)),
            Compare::Unchanged(key, revision) => Compare::Unchanged(self.full(key), *revision),
        };
        let change = |change: &Change| match change {
            Change::Put(key, value) => Change::Put(self.full(key), value.clone()),
            Change::Hold(key, value, lease) => Change::Hold(self.full(key), value.clone(), lease.clone()),
            Change::Delete(key) => Change::Delete(self.full(key)),
        };
        Txn { when: txn.when.iter().map(compare).collect(), then: txn.then.iter().map(change).collect() }
    }

    pub(crate) fn position(&self, position: Position) -> Position {
        let known =
            position.known.map(|known| known.into_iter().map(|(key, revision)| (self.full(&key), revision)).collect());
        Position { revision: position.revision, known }
    }

    pub(crate) fn own_position(&self, position: Position) -> Position {
        let known = position
            .known
            .map(|known| known.into_iter().filter_map(|(key, revision)| Some((self.own(&key)?, revision))).collect());
        Position { revision: position.revision, known }
    }

    pub(crate) fn own_listing(&self, listing: Listing) -> Listing {
        let entries = listing.entries.into_iter().filter_map(|entry| self.own_entry(entry)).collect();
        Listing { revision: listing.revision, entries }
    }

    pub(crate) fn own_events(&self, events: Vec<Event>) -> Vec<Event> {
        let own = |event| match event {
            Event::Put(entry) => self.own_entry(entry).map(Event::Put),
            Event::Delete { key, revision } => Some(Event::Delete { key: self.own(&key)?, revision }),
        };
        events.into_iter().filter_map(own).collect()
    }

    fn own_entry(&self, entry: Entry) -> Option<Entry> {
        Some(Entry { key: self.own(&entry.key)?, ..entry })
    }

    fn own(&self, key: &[u8]) -> Option<Vec<u8>> {
        key.strip_prefix(self.0.as_slice()).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_a_plain_path_that_ends_with_a_slash() {
        assert_eq!(Namespace::new("quorate/blue/").unwrap().dashed(), "quorate-blue-");
        for text in ["", "/", "quorate", "/a/", "a//b/", "a/../", "a b/", "%41/", "\u{e9}/", &"x/".repeat(200)] {
            assert!(Namespace::new(text).is_err(), "{text}");
        }
    }
}
