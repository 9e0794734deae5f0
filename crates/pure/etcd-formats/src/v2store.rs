//! The member list inside a raft snapshot: a corner of etcd's old v2 key space, as JSON.
//!
//! etcd 3.4 and 3.5 boot from it. Of the tree only `/0/members`, `/0/removed_members` and `/0/version` mean anything;
//! what lies under `/1` is users' v2 data, which 3.6 refuses. The reader walks past all the rest without keeping it.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::membership::{Attributes, Member, MemberId, RaftAttributes, go_json};

/// Members and removed members that are kept; etcd warns above seven members.
const KEPT_MAX: usize = 4096;

/// What a v2 store says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct V2Store {
    /// Members, by ascending id.
    pub members: Vec<Member>,
    /// Members that were removed and may never return, by ascending id.
    pub removed: Vec<MemberId>,
    /// The cluster version, such as `3.5.0`.
    pub version: Option<String>,
    /// Keys and directories directly under `/1`: data of the v2 API.
    pub user_keys: u64,
}

/// Why a v2 store cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum V2Error {
    /// Not JSON of the expected shape.
    #[error("cannot read the member list of {length} bytes")]
    Json {
        length: usize,
        #[source]
        cause: serde_json::Error,
    },
    /// A key under `/0/members` or `/0/removed_members` is not an id.
    #[error("`{key}` is not a member id")]
    NotAnId { key: String },
    /// A member without readable attributes: etcd 3.4 and 3.5 panic on it.
    #[error("member `{id}` has no readable `{attribute}`")]
    Attributes { id: MemberId, attribute: &'static str },
}

impl V2Store {
    /// Reads the JSON of a `.snap` file.
    pub fn read(bytes: &[u8]) -> Result<V2Store, V2Error> {
        let file: StoreFile =
            serde_json::from_slice(bytes).map_err(|cause| V2Error::Json { length: bytes.len(), cause })?;
        let root = file.root.unwrap_or_default().children.unwrap_or_default();
        let user_keys = root.user.unwrap_or_default().children.unwrap_or_default().0;
        let system = root.system.unwrap_or_default().children.unwrap_or_default();
        let mut store = V2Store { user_keys, ..V2Store::default() };
        store.version = system.version.and_then(|leaf| leaf.value);
        for (key, node) in system.members.unwrap_or_default().children.unwrap_or_default().0 {
            store.members.push(member(id(&key)?, node)?);
        }
        for (key, _) in system.removed.unwrap_or_default().children.unwrap_or_default().0 {
            store.removed.push(id(&key)?);
        }
        store.members.sort_by_key(|member| member.id);
        store.removed.sort_unstable();
        Ok(store)
    }
}

fn id(key: &str) -> Result<MemberId, V2Error> {
    match u64::from_str_radix(key, 16) {
        Ok(id) => Ok(MemberId(id)),
        Err(_) => Err(V2Error::NotAnId { key: key.to_owned() }),
    }
}

fn member(id: MemberId, node: Dir<MemberParts>) -> Result<Member, V2Error> {
    let parts = node.children.unwrap_or_default();
    let bad = |attribute| V2Error::Attributes { id, attribute };
    let raft = parts.raft_attributes.and_then(|leaf| leaf.value).ok_or(bad("raftAttributes"))?;
    let raft: RaftAttributes = serde_json::from_str(&raft).map_err(|_| bad("raftAttributes"))?;
    let own = match parts.attributes.and_then(|leaf| leaf.value) {
        Some(text) => serde_json::from_str(&text).map_err(|_| bad("attributes"))?,
        None => Attributes::default(),
    };
    Ok(Member {
        id,
        peer_urls: raft.peer_urls.unwrap_or_default(),
        is_learner: raft.is_learner.unwrap_or_default(),
        name: own.name.unwrap_or_default(),
        client_urls: own.client_urls.unwrap_or_default(),
    })
}

/// The smallest store that etcd 3.4 to 3.6 boot from, with these members.
pub fn encode(members: &[Member]) -> Vec<u8> {
    let nodes = members.iter().zip(1..).map(|(member, index)| {
        let path = format!("/0/members/{}", member.id);
        let attributes = String::from_utf8_lossy(&member.raft_attributes_json()).into_owned();
        let leaf = Node { value: Some(attributes), ..Node::new(format!("{path}/raftAttributes"), index) };
        (member.id.to_string(), Node::new(path, index).dir([("raftAttributes".to_owned(), leaf)]))
    });
    let members_dir = Node::new("/0/members".to_owned(), 1).dir(nodes);
    let system = Node::new("/0".to_owned(), 0).dir([("members".to_owned(), members_dir)]);
    let user = Node::new("/1".to_owned(), 0).dir([]);
    let root = Node::new("/".to_owned(), 0).dir([("0".to_owned(), system), ("1".to_owned(), user)]);
    go_json(&NewStore { root, current_index: members.len(), current_version: 2 })
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct NewStore {
    root: Node,
    current_index: usize,
    current_version: u8,
}

/// A directory (with children, if only none) or a leaf (with a value) of a new store.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    path: String,
    created_index: u64,
    modified_index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<BTreeMap<String, Node>>,
}

impl Node {
    fn new(path: String, index: u64) -> Node {
        Node { path, created_index: index, modified_index: index, value: None, children: None }
    }

    fn dir(self, children: impl IntoIterator<Item = (String, Node)>) -> Node {
        Node { children: Some(children.into_iter().collect()), ..self }
    }
}

#[derive(Deserialize)]
struct StoreFile {
    #[serde(rename = "Root")]
    root: Option<Dir<RootParts>>,
}

/// A directory of the tree, with only the children that are asked for.
#[derive(Deserialize)]
struct Dir<C> {
    #[serde(rename = "Children")]
    children: Option<C>,
}

impl<C> Default for Dir<C> {
    fn default() -> Self {
        Dir { children: None }
    }
}

#[derive(Deserialize, Default)]
struct RootParts {
    #[serde(rename = "0")]
    system: Option<Dir<SystemParts>>,
    #[serde(rename = "1")]
    user: Option<Dir<Count>>,
}

#[derive(Deserialize, Default)]
struct SystemParts {
    members: Option<Dir<Kept<Dir<MemberParts>>>>,
    #[serde(rename = "removed_members")]
    removed: Option<Dir<Kept<IgnoredAny>>>,
    version: Option<Leaf>,
}

#[derive(Deserialize, Default)]
struct MemberParts {
    #[serde(rename = "raftAttributes")]
    raft_attributes: Option<Leaf>,
    attributes: Option<Leaf>,
}

#[derive(Deserialize)]
struct Leaf {
    #[serde(rename = "Value")]
    value: Option<String>,
}

/// Children by name, up to a limit.
struct Kept<V>(BTreeMap<String, V>);

impl<V> Default for Kept<V> {
    fn default() -> Self {
        Kept(BTreeMap::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Kept<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Visit<V> {
            type Value = Kept<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {KEPT_MAX} children")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kept<V>, A::Error> {
                let mut kept = BTreeMap::new();
                while let Some((key, value)) = map.next_entry()? {
                    if kept.len() >= KEPT_MAX {
                        return Err(serde::de::Error::invalid_length(kept.len(), &self));
                    }
                    kept.insert(key, value);
                }
                Ok(Kept(kept))
            }
        }
        deserializer.deserialize_map(Visit(PhantomData))
    }
}

/// How many children there are.
#[derive(Default)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("children")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Count, A::Error> {
                let mut count = 0u64;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count = count.saturating_add(1);
                }
                Ok(Count(count))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, learner: bool) -> Member {
        Member {
            id: MemberId(id),
            peer_urls: vec![format!("http://m{id}:2380")],
            is_learner: learner,
            name: String::new(),
            client_urls: Vec::new(),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let members = vec![member(0xeac6f4d1aeec23d, false), member(u64::MAX, true)];
        let store = V2Store::read(&encode(&members)).unwrap();
        assert_eq!(store, V2Store { members, ..V2Store::default() });
    }

    #[test]
    fn nulls_and_absences_are_an_empty_store() {
        for text in ["{}", r#"{"Root":null}"#, r#"{"Root":{"Children":{"0":null,"1":{"Children":null}}}}"#] {
            assert_eq!(V2Store::read(text.as_bytes()).unwrap(), V2Store::default(), "{text}");
        }
    }

    #[test]
    fn user_data_of_the_v2_api_is_counted() {
        let text = r#"{"Root":{"Children":{"1":{"Children":{"a":{"Value":"1"},"b":{"Children":{"c":{}}}}}}}}"#;
        assert_eq!(V2Store::read(text.as_bytes()).unwrap().user_keys, 2);
    }

    #[test]
    fn a_member_without_raft_attributes_is_named() {
        let text = r#"{"Root":{"Children":{"0":{"Children":{"members":{"Children":{"ab":{"Children":{}}}}}}}}}"#;
        let error = V2Store::read(text.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "member `ab` has no readable `raftAttributes`");
    }

    #[test]
    fn nesting_without_end_is_refused_not_followed() {
        let deep = format!("{{\"Root\":{}", "{\"Children\":{\"x\":".repeat(100_000));
        assert!(matches!(V2Store::read(deep.as_bytes()), Err(V2Error::Json { .. })));
    }
}
