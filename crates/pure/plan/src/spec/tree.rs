//! The cluster file as a tree that remembers where each key and value stands.
//!
//! **Invariant:** depth and size are bounded before anything is built, so no file costs more memory than a small multiple of its
//! length.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::At;

/// Longest file that is read: thousands of members with all their settings.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) at: At,
    pub(super) kind: Kind,
}

/// What stands there. Repeated keys are kept, so that they can be refused by name.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Nothing,
    Flag(bool),
    Number(i64),
    /// A number that is not whole, or too large.
    OddNumber,
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A key and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) at: At,
    pub(super) text: String,
}

impl Node {
    /// Reads the document, or says where and why it is not YAML.
    pub(super) fn parse(text: &str) -> Result<Node, (At, String)> {
        let options = serde_saphyr::options! {
            duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options::<Node>(text, options).map_err(|error| {
            let at = error.location().map(place).unwrap_or_default();
            (at, without_place(&error.to_string()))
        })
    }

    pub(super) fn kind(&self) -> &'static str {
        match &self.kind {
            Kind::Nothing => "nothing",
            Kind::Flag(_) => "true or false",
            Kind::Number(_) => "a number",
            Kind::OddNumber => "a number that is not whole",
            Kind::Text(_) => "text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
        }
    }
}

fn place(location: serde_saphyr::Location) -> At {
    At { line: location.line(), column: location.column() }
}

/// The first line of the reader's words, without the place that we print ourselves.
fn without_place(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    let cut = first.find(" at line ").unwrap_or(first.len());
    first.get(..cut).unwrap_or(first).trim_start_matches("error: ").to_owned()
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Node { at: place(spanned.referenced), kind: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        let spanned = Spanned::<String>::deserialize(deserializer)?;
        Ok(Key { at: place(spanned.referenced), text: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Nothing)
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        Kind::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Kind, E> {
        Ok(Kind::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Kind, E> {
        Ok(Kind::Number(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Kind, E> {
        Ok(i64::try_from(number).map_or(Kind::OddNumber, Kind::Number))
    }

    fn visit_i128<E>(self, _: i128) -> Result<Kind, E> {
        Ok(Kind::OddNumber)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Kind, E> {
        Ok(Kind::OddNumber)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Kind, E> {
        Ok(Kind::OddNumber)
    }

    fn visit_str<E>(self, text: &str) -> Result<Kind, E> {
        Ok(Kind::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Kind, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Kind::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Kind, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Kind::Map(map))
    }
}
