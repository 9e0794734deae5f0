//! The files a member begins its life with, made without a server.
//!
//! They are what etcd's own restore tool writes for the same members and token: the WAL byte for byte, the rest in
//! meaning. Every member's files are the same, except for its own id in the WAL (and the CRCs that follow from it).

use prost::Message;

use crate::bolt::build::small_db;
use crate::membership::{ClusterId, Member, MemberId, cluster_id, member_id};
use crate::messages::{
    ConfChange, ConfState, Entry, HardState, Metadata, RaftSnapshot, RaftSnapshotMetadata, WalSnapshot,
};
use crate::snap::{self, SnapName};
use crate::v2store;
use crate::wal::{SegmentName, WalWriter};

/// The page size of the database. etcd reads any; 4096 is what it writes on most machines.
const PAGE_BYTES: u32 = 4096;

/// The term of everything a founded member knows.
const TERM: u64 = 1;

/// A conf change as an entry's type.
const ENTRY_CONF_CHANGE: i32 = 1;

/// A database's buckets, each with its keys and values; all sorted bytewise.
pub type Buckets = Vec<(&'static [u8], Vec<(Vec<u8>, Vec<u8>)>)>;

/// For which etcd the files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Boots on 3.4 to 3.7.
    Any,
    V3_4,
    V3_5,
    V3_6,
    V3_7,
}

/// A cluster on paper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Founding {
    /// The cluster's id.
    pub cluster_id: ClusterId,
    /// Its members, by ascending id.
    pub members: Vec<Member>,
}

/// Why a list of members cannot be a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoundingError {
    /// Nobody is in it.
    #[error("cannot found a cluster without members")]
    NoMembers,
    /// The id that etcd reserves for "nobody".
    #[error(
        "cannot found a cluster with member `{name}`: its peer URLs and the token give the id 0; use another token"
    )]
    IdZero { name: String },
    /// Two members have the same peer URLs, or their URLs run together to the same text.
    #[error("cannot found a cluster with members `{first}` and `{second}`: both have the id `{id}`")]
    SameId { id: MemberId, first: String, second: String },
}

/// A file by name, with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// The three files of a founded member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundingFiles {
    /// For `member/wal`.
    pub wal: NamedFile,
    /// For `member/snap`.
    pub snap: NamedFile,
    /// For `member/snap`.
    pub db: NamedFile,
}

impl Founding {
    /// Computes ids and puts members in order. URLs are taken as given: they must be as Go prints them.
    pub fn new(members: Vec<(String, Vec<String>)>, token: &str) -> Result<Founding, FoundingError> {
        let mut members: Vec<Member> = members
            .into_iter()
            .map(|(name, mut peer_urls)| {
                peer_urls.sort_unstable();
                let id = member_id(&peer_urls, token);
                Member { id, peer_urls, is_learner: false, name, client_urls: Vec::new() }
            })
            .collect();
        members.sort_by_key(|member| member.id);
        if members.is_empty() {
            return Err(FoundingError::NoMembers);
        }
        if let Some(nobody) = members.iter().find(|member| member.id == MemberId(0)) {
            return Err(FoundingError::IdZero { name: nobody.name.clone() });
        }
        if let Some((first, second)) = members.iter().zip(members.iter().skip(1)).find(|(a, b)| a.id == b.id) {
            let (id, first, second) = (first.id, first.name.clone(), second.name.clone());
            return Err(FoundingError::SameId { id, first, second });
        }
        Ok(Founding { cluster_id: cluster_id(members.iter().map(|member| member.id)), members })
    }

    /// The member of that name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// The files of one member.
    pub fn files(&self, local: MemberId, form: Form) -> FoundingFiles {
        let point = SnapName { term: TERM, index: self.last_index() };
        FoundingFiles {
            wal: first_segment(self.wal(local, &self.members, form)),
            snap: NamedFile { name: point.to_string(), bytes: self.snap(form) },
            db: NamedFile { name: "db".to_owned(), bytes: small_db(&self.buckets(form), PAGE_BYTES) },
        }
    }

    /// The WAL for a directory apart from the data dir: it begins at the raft snapshot, without the entries before it.
    ///
    /// The two directories cannot come into being at once. On a WAL with the founders' entries etcd up to 3.6 starts even
    /// while the data dir is missing; on this one it stops, because the commit index lies beyond the log. With the
    /// snapshot in place both are the same to etcd.
    pub fn separate_wal(&self, local: MemberId, form: Form) -> NamedFile {
        first_segment(self.wal(local, &[], form))
    }

    /// The log has one entry per member.
    fn last_index(&self) -> u64 {
        self.members.len() as u64
    }

    fn wal(&self, local: MemberId, entries: &[Member], form: Form) -> Vec<u8> {
        let mut wal = WalWriter::new(0);
        wal.metadata(&Metadata { node_id: Some(local.0), cluster_id: Some(self.cluster_id.0) });
        wal.snapshot(&WalSnapshot { index: Some(0), term: Some(0), conf_state: None });
        for (member, index) in entries.iter().zip(1..) {
            wal.entry(&Entry {
                r#type: Some(ENTRY_CONF_CHANGE),
                term: Some(TERM),
                index: Some(index),
                data: Some(joins(member, form).encode_to_vec()),
            });
        }
        let vote = self.members.iter().map(|member| member.id.0).min();
        wal.state(&HardState { term: Some(TERM), vote, commit: Some(self.last_index()) });
        wal.snapshot(&WalSnapshot {
            index: Some(self.last_index()),
            term: Some(TERM),
            conf_state: (form != Form::V3_4).then(|| self.conf_state(form)),
        });
        wal.finish()
    }

    fn snap(&self, form: Form) -> Vec<u8> {
        snap::encode(&RaftSnapshot {
            data: Some(v2store::encode(&self.members)),
            metadata: Some(RaftSnapshotMetadata {
                conf_state: Some(self.conf_state(form)),
                index: Some(self.last_index()),
                term: Some(TERM),
            }),
        })
    }

    fn conf_state(&self, form: Form) -> ConfState {
        ConfState {
            voters: self.members.iter().map(|member| member.id.0).collect(),
            auto_leave: zero(form, false),
            ..ConfState::default()
        }
    }

    /// What the database holds. All ten buckets are there: etcd would make them, but its offline tools expect some.
    pub fn buckets(&self, form: Form) -> Buckets {
        let mut meta = vec![(b"consistent_index".to_vec(), self.last_index().to_be_bytes().to_vec())];
        if form != Form::V3_4 {
            meta.insert(0, (b"confState".to_vec(), self.conf_state(form).to_json()));
        }
        // Left away from the form for all versions: a server refuses a storage version above its own.
        match form {
            Form::V3_6 => meta.push((b"storageVersion".to_vec(), b"3.6.0".to_vec())),
            Form::V3_7 => meta.push((b"storageVersion".to_vec(), b"3.7.0".to_vec())),
            Form::Any | Form::V3_4 | Form::V3_5 => {}
        }
        if form != Form::V3_4 {
            meta.push((b"term".to_vec(), TERM.to_be_bytes().to_vec()));
        }
        // The keys are hex without padding, so their order is not that of the numbers.
        let mut members: Vec<_> =
            self.members.iter().map(|member| (member.id.to_string().into_bytes(), member.to_json())).collect();
        members.sort_unstable();
        vec![
            (b"alarm", Vec::new()),
            (b"auth", Vec::new()),
            (b"authRoles", Vec::new()),
            (b"authUsers", Vec::new()),
            (b"cluster", Vec::new()),
            (b"key", Vec::new()),
            (b"lease", Vec::new()),
            (b"members", members),
            (b"members_removed", Vec::new()),
            (b"meta", meta),
        ]
    }
}

fn first_segment(bytes: Vec<u8>) -> NamedFile {
    NamedFile { name: SegmentName { sequence: 0, index: 0 }.to_string(), bytes }
}

/// The conf change that brings a member in.
fn joins(member: &Member, form: Form) -> ConfChange {
    ConfChange { id: zero(form, 0), r#type: Some(0), node_id: Some(member.id.0), context: Some(member.to_json()) }
}

/// A zero that etcd never set: written up to 3.6, left away by 3.7.
fn zero<T>(form: Form, zero: T) -> Option<T> {
    (form != Form::V3_7).then_some(zero)
}
