//! The protobuf messages inside etcd's files, declared by hand with the fields that are used here.
//!
//! Scalars are optional, because etcd up to 3.6 writes zeros out (`Some(0)`) where 3.7 leaves them away (`None`): with
//! both expressible, what is written can be byte for byte what each version writes. Reading is the same for both: the
//! getters answer 0 for what is absent, and unknown fields are skipped.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod request;

pub use request::{RequestKind, RequestView};

use prost::Message;

/// One WAL record. Readers use [`crate::wal::RecordView`], which does not copy the data.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Record {
    #[prost(int64, optional, tag = "1")]
    pub r#type: Option<i64>,
    #[prost(uint32, optional, tag = "2")]
    pub crc: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub data: Option<Vec<u8>>,
}

/// Whose WAL it is.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Metadata {
    #[prost(uint64, optional, tag = "1")]
    pub node_id: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub cluster_id: Option<u64>,
}

/// One entry of the raft log. Readers use [`crate::wal::EntryView`], which does not copy the data.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Entry {
    #[prost(int32, optional, tag = "1")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "2")]
    pub term: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub index: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub data: Option<Vec<u8>>,
}

/// What a member must remember of its votes and of what is committed.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HardState {
    #[prost(uint64, optional, tag = "1")]
    pub term: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub vote: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub commit: Option<u64>,
}

/// A WAL record that marks a raft snapshot.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WalSnapshot {
    #[prost(uint64, optional, tag = "1")]
    pub index: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub term: Option<u64>,
    /// Since 3.5.
    #[prost(message, optional, tag = "3")]
    pub conf_state: Option<ConfState>,
}

/// Who votes and who learns.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConfState {
    #[prost(uint64, repeated, packed = "false", tag = "1")]
    pub voters: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub learners: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub voters_outgoing: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "4")]
    pub learners_next: Vec<u64>,
    #[prost(bool, optional, tag = "5")]
    pub auto_leave: Option<bool>,
}

/// A change of membership, carried by an entry.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConfChange {
    #[prost(uint64, optional, tag = "1")]
    pub id: Option<u64>,
    /// 0 add, 1 remove, 2 update, 3 add as learner.
    #[prost(int32, optional, tag = "2")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "3")]
    pub node_id: Option<u64>,
    /// The member as JSON.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub context: Option<Vec<u8>>,
}

/// A raft snapshot, as a `.snap` file holds it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RaftSnapshot {
    /// The v2 store as JSON.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub data: Option<Vec<u8>>,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<RaftSnapshotMetadata>,
}

/// The point in the log that a raft snapshot stands for.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RaftSnapshotMetadata {
    #[prost(message, optional, tag = "1")]
    pub conf_state: Option<ConfState>,
    #[prost(uint64, optional, tag = "2")]
    pub index: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub term: Option<u64>,
}

/// The envelope of a `.snap` file.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SnapEnvelope {
    #[prost(uint32, optional, tag = "1")]
    pub crc: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub data: Option<Vec<u8>>,
}

/// A lease, as the `lease` bucket holds it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Lease {
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// Seconds.
    #[prost(int64, tag = "2")]
    pub ttl: i64,
    /// Seconds left at the last checkpoint.
    #[prost(int64, tag = "3")]
    pub remaining_ttl: i64,
}

/// A raised alarm: the key of the `alarm` bucket.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AlarmMember {
    #[prost(uint64, optional, tag = "1")]
    pub member_id: Option<u64>,
    /// 1 no space, 2 corrupt.
    #[prost(int32, optional, tag = "2")]
    pub alarm: Option<i32>,
}

/// A user, as the `authUsers` bucket holds it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct User {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub name: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub password: Option<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub roles: Vec<Vec<u8>>,
}

/// A role, as the `authRoles` bucket holds it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Role {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub name: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "2")]
    pub permissions: Vec<Permission>,
}

/// What a role may do with a range of keys.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Permission {
    /// 0 read, 1 write, 2 both.
    #[prost(int32, optional, tag = "1")]
    pub r#type: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub key: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub range_end: Option<Vec<u8>>,
}

impl ConfState {
    /// All ids in all lists: what a reader caps before it keeps one.
    pub fn ids(&self) -> usize {
        [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next]
            .into_iter()
            .fold(0, |sum, ids| sum.saturating_add(ids.len()))
    }

    /// The JSON of `meta/confState`, as every version writes it.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = String::from("{");
        let lists = [
            ("voters", &self.voters),
            ("learners", &self.learners),
            ("voters_outgoing", &self.voters_outgoing),
            ("learners_next", &self.learners_next),
        ];
        for (name, ids) in lists {
            if !ids.is_empty() {
                let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
                text.push_str(&format!("\"{name}\":[{}],", ids.join(",")));
            }
        }
        text.push_str(&format!("\"auto_leave\":{}}}", self.auto_leave()));
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_written_when_set_and_left_away_when_not() {
        let gogo = ConfState { voters: vec![1], auto_leave: Some(false), ..Default::default() };
        let google = ConfState { voters: vec![1], ..Default::default() };
        assert_eq!(gogo.encode_to_vec(), [0x08, 0x01, 0x28, 0x00]);
        assert_eq!(google.encode_to_vec(), [0x08, 0x01]);
        assert!(!ConfState::decode(&[0x08, 0x01][..]).unwrap().auto_leave());
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let state = HardState::decode(&[0x08, 0x02, 0x7a, 0x01, 0xff, 0x18, 0x05][..]).unwrap();
        assert_eq!((state.term(), state.vote(), state.commit()), (2, 0, 5));
    }

    #[test]
    fn conf_state_json_is_gos() {
        let state = ConfState { voters: vec![u64::MAX, 2], learners: vec![3], ..Default::default() };
        assert_eq!(state.to_json(), br#"{"voters":[18446744073709551615,2],"learners":[3],"auto_leave":false}"#);
    }
}
