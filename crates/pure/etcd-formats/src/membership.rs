//! Members and clusters: their ids, and the JSON that etcd keeps of them.
//!
//! Ids are 64-bit numbers that etcdctl prints as hex without padding. JSON holds them as bare numbers up to 2^64-1, so
//! they never pass through a float.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use sha1::{Digest, Sha1};

/// The id of a member.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemberId(pub u64);

/// The id of a cluster.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl Serialize for MemberId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ClusterId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MemberId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<MemberId, D::Error> {
        hex_id(deserializer).map(MemberId)
    }
}

impl<'de> Deserialize<'de> for ClusterId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ClusterId, D::Error> {
        hex_id(deserializer).map(ClusterId)
    }
}

/// An id as we print it: lower-case hex in a string, without padding.
fn hex_id<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed = u64::from_str_radix(&text, 16).ok().filter(|id| format!("{id:x}") == text);
    parsed.ok_or_else(|| serde::de::Error::custom("an id is up to 16 hex digits"))
}

/// The id etcd gives a founding member: SHA-1 over its peer URLs, sorted and run together, and the token.
pub fn member_id(peer_urls: &[String], token: &str) -> MemberId {
    let mut sorted: Vec<&str> = peer_urls.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let mut hash = Sha1::new();
    for url in sorted {
        hash.update(url);
    }
    hash.update(token);
    MemberId(first_eight(hash))
}

/// The id etcd gives a cluster: SHA-1 over its founding members' ids in ascending order.
pub fn cluster_id(ids: impl IntoIterator<Item = MemberId>) -> ClusterId {
    let mut sorted: Vec<MemberId> = ids.into_iter().collect();
    sorted.sort_unstable();
    let mut hash = Sha1::new();
    for id in sorted {
        hash.update(id.0.to_be_bytes());
    }
    ClusterId(first_eight(hash))
}

fn first_eight(hash: Sha1) -> u64 {
    let digest = hash.finalize();
    digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// A member of a cluster, as etcd stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Its id.
    pub id: MemberId,
    /// Where the other members reach it.
    pub peer_urls: Vec<String>,
    /// Whether it only listens to the log and does not vote.
    pub is_learner: bool,
    /// Its name; empty until its server has started once after being added.
    pub name: String,
    /// Where clients reach it; empty until its server has started.
    pub client_urls: Vec<String>,
}

/// Why bytes are not a member.
#[derive(Debug, thiserror::Error)]
#[error("cannot read a member record of {length} bytes")]
pub struct MemberError {
    /// How long the record is.
    pub length: usize,
    #[source]
    cause: serde_json::Error,
}

impl Member {
    /// The JSON etcd keeps in the `members` bucket and in conf changes, byte for byte.
    pub fn to_json(&self) -> Vec<u8> {
        let stored = StoredMember {
            id: self.id.0,
            raft: RaftAttributes { peer_urls: Some(self.peer_urls.clone()), is_learner: Some(self.is_learner) },
            attributes: Attributes { name: Some(self.name.clone()), client_urls: Some(self.client_urls.clone()) },
        };
        go_json(&stored)
    }

    /// Reads that JSON, as leniently as etcd: fields may be absent or null, unknown ones are skipped.
    pub fn from_json(bytes: &[u8]) -> Result<Member, MemberError> {
        let stored: StoredMember =
            serde_json::from_slice(bytes).map_err(|cause| MemberError { length: bytes.len(), cause })?;
        Ok(Member {
            id: MemberId(stored.id),
            peer_urls: stored.raft.peer_urls.unwrap_or_default(),
            is_learner: stored.raft.is_learner.unwrap_or_default(),
            name: stored.attributes.name.unwrap_or_default(),
            client_urls: stored.attributes.client_urls.unwrap_or_default(),
        })
    }

    /// The JSON of `raftAttributes` in the v2 store.
    pub(crate) fn raft_attributes_json(&self) -> Vec<u8> {
        go_json(&RaftAttributes { peer_urls: Some(self.peer_urls.clone()), is_learner: Some(self.is_learner) })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredMember {
    id: u64,
    #[serde(flatten)]
    raft: RaftAttributes,
    #[serde(flatten)]
    attributes: Attributes,
}

/// How the cluster reaches and counts a member.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct RaftAttributes {
    #[serde(rename = "peerURLs")]
    pub(crate) peer_urls: Option<Vec<String>>,
    #[serde(rename = "isLearner", skip_serializing_if = "is_empty_bool")]
    pub(crate) is_learner: Option<bool>,
}

/// What a member says of itself.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Attributes {
    #[serde(skip_serializing_if = "is_empty_text")]
    pub(crate) name: Option<String>,
    #[serde(rename = "clientURLs", skip_serializing_if = "is_empty_list")]
    pub(crate) client_urls: Option<Vec<String>>,
}

fn is_empty_bool(value: &Option<bool>) -> bool {
    *value != Some(true)
}

fn is_empty_text(value: &Option<String>) -> bool {
    value.as_deref().is_none_or(str::is_empty)
}

fn is_empty_list(value: &Option<Vec<String>>) -> bool {
    value.as_deref().is_none_or(<[String]>::is_empty)
}

/// JSON as Go's encoder writes it: compact, and with `<`, `>`, `&` and the two line separators escaped.
pub(crate) fn go_json(value: &impl Serialize) -> Vec<u8> {
    // Structures of strings, numbers and lists always serialise; there is nothing to report.
    let text = serde_json::to_string(value).unwrap_or_default();
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            other => out.push(other),
        }
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(list: &[&str]) -> Vec<String> {
        list.iter().map(|&url| url.to_owned()).collect()
    }

    #[test]
    fn ids_are_those_etcd_computes() {
        let id = member_id(&urls(&["http://127.0.0.1:2380"]), "etcd-cluster");
        assert_eq!(id.to_string(), "b71f75320dc06a6c");
        assert_eq!(cluster_id([id]).to_string(), "1c45a069f3a1d796");
    }

    #[test]
    fn ids_of_three_members_are_those_the_restore_tool_computes() {
        let ids = [21380, 21381, 21382].map(|port| member_id(&[format!("http://127.0.0.1:{port}")], "tok2"));
        assert_eq!(ids, [MemberId(14664307013850871418), MemberId(5933004850344994746), MemberId(4357444920725069473)]);
        assert_eq!(cluster_id(ids), ClusterId(2896442439880236257));
    }

    #[test]
    fn the_order_of_urls_and_members_does_not_matter() {
        let one = member_id(&urls(&["http://a:1", "http://b:1"]), "t");
        let other = member_id(&urls(&["http://b:1", "http://a:1"]), "t");
        assert_eq!(one, other);
        assert_eq!(cluster_id([MemberId(1), MemberId(2)]), cluster_id([MemberId(2), MemberId(1)]));
    }

    #[test]
    fn ids_print_without_padding() {
        assert_eq!(MemberId(0xeac6f4d1aeec23d).to_string(), "eac6f4d1aeec23d");
        assert_eq!(serde_json::to_string(&ClusterId(0xab)).unwrap(), "\"ab\"");
    }

    #[test]
    fn json_is_gos_byte_for_byte() {
        let mut member = Member {
            id: MemberId(u64::MAX),
            peer_urls: urls(&["http://127.0.0.1:2380"]),
            is_learner: false,
            name: "m0".to_owned(),
            client_urls: Vec::new(),
        };
        let plain = br#"{"id":18446744073709551615,"peerURLs":["http://127.0.0.1:2380"],"name":"m0"}"#;
        assert_eq!(member.to_json(), plain);
        assert_eq!(Member::from_json(plain).unwrap(), member);

        member.is_learner = true;
        member.name = "a<b>&c".to_owned();
        member.client_urls = urls(&["http://c:2379"]);
        let full = br#"{"id":18446744073709551615,"peerURLs":["http://127.0.0.1:2380"],"isLearner":true,"name":"a\u003cb\u003e\u0026c","clientURLs":["http://c:2379"]}"#;
        assert_eq!(member.to_json(), full);
        assert_eq!(Member::from_json(full).unwrap(), member);
    }

    #[test]
    fn reading_takes_nulls_gaps_and_unknown_fields() {
        let member = Member::from_json(br#"{"peerURLs":null,"id":7,"new":{"a":[1]}}"#).unwrap();
        assert_eq!((member.id, member.peer_urls.len()), (MemberId(7), 0));
        assert!(Member::from_json(b"{\"id\":1.5}").is_err());
        assert!(Member::from_json(b"").is_err());
    }
}
