//! What etcd keeps in its database beside the users' keys: indexes, members, leases, alarms, auth.
//!
//! Each fact is read by itself: one that is malformed is said to be so and does not hide the others.

use std::collections::BTreeMap;

use prost::Message;

use crate::ReadAt;
use crate::bolt::{BoltError, Bucket, Db};
use crate::contents::Compaction;
use crate::membership::{Member, MemberId};
use crate::messages::{AlarmMember, Lease};
use crate::mvcc::RevisionKey;

/// The buckets that etcd creates, in the order of their names.
pub const BUCKETS: [&str; 10] =
    ["alarm", "auth", "authRoles", "authUsers", "cluster", "key", "lease", "members", "members_removed", "meta"];

/// A value that is not in the form etcd writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The bucket it is in.
    pub bucket: &'static str,
    /// Its key.
    pub key: String,
    /// What it should be.
    pub wanted: &'static str,
}

const META_KEYS: [&str; 6] =
    ["confState", "consistent_index", "finishedCompactRev", "scheduledCompactRev", "storageVersion", "term"];
const CLUSTER_KEYS: [&str; 2] = ["clusterVersion", "downgrade"];
const AUTH_KEYS: [&str; 2] = ["authEnabled", "authRevision"];

/// Oddities that are kept to be shown; a file with more is beyond reading one by one.
const KEPT: usize = 100;

/// Members that are kept in memory; etcd warns above seven and fails long before this.
const MEMBERS_MAX: usize = 10_000;

/// What the small buckets say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Raft index up to which entries are in this database.
    pub consistent_index: Option<u64>,
    /// Term of the entry at that index (from 3.5 on).
    pub term: Option<u64>,
    /// Version of the storage schema (from 3.6 on).
    pub storage_version: Option<String>,
    /// The version that all members agreed on.
    pub cluster_version: Option<String>,
    /// Revision that was asked to be compacted last.
    pub scheduled_compact: Option<u64>,
    /// Revision up to which compaction is done.
    pub finished_compact: Option<u64>,
    /// Newest revision in the `key` bucket.
    pub last_revision: Option<RevisionKey>,
    /// Members by id.
    pub members: Vec<Member>,
    /// Ids of members that were removed.
    pub removed: Vec<MemberId>,
    /// Raised alarms: member and kind.
    pub alarms: Vec<(MemberId, &'static str)>,
    /// Whether auth is on.
    pub auth_enabled: bool,
    /// Whether a user `root` and a role `root` exist.
    pub auth_root: bool,
    /// Number of leases.
    pub leases: u64,
    /// Keys of the small buckets that no etcd we know writes.
    pub unknown: Vec<(&'static str, String)>,
    /// What is not in its form.
    pub malformed: Vec<Malformed>,
}

impl Facts {
    /// Reads all of them.
    pub fn read<S: ReadAt + ?Sized>(db: &Db<'_, S>, buckets: &[(Vec<u8>, Bucket)]) -> Result<Facts, BoltError> {
        let by_name: BTreeMap<&[u8], &Bucket> =
            buckets.iter().map(|(name, bucket)| (name.as_slice(), bucket)).collect();
        let mut facts = Facts::default();
        let get = |bucket: &str, key: &str| match by_name.get(bucket.as_bytes()) {
            Some(bucket) => db.get(bucket, key.as_bytes()),
            None => Ok(None),
        };
        facts.consistent_index = facts.number("consistent_index", get("meta", "consistent_index")?);
        facts.term = facts.number("term", get("meta", "term")?);
        facts.scheduled_compact = facts.revision("scheduledCompactRev", get("meta", "scheduledCompactRev")?);
        facts.finished_compact = facts.revision("finishedCompactRev", get("meta", "finishedCompactRev")?);
        facts.storage_version = facts.version("meta", "storageVersion", get("meta", "storageVersion")?);
        facts.cluster_version = facts.version("cluster", "clusterVersion", get("cluster", "clusterVersion")?);
        facts.auth_enabled = get("auth", "authEnabled")?.as_deref() == Some(&[1]);
        facts.auth_root = get("authUsers", "root")?.is_some() && get("authRoles", "root")?.is_some();
        if let Some(bucket) = by_name.get(b"key".as_slice())
            && let Some((key, _)) = db.last(bucket)?
        {
            facts.last_revision = RevisionKey::decode(&key);
        }
        let each =
            |name: &str, facts: &mut Facts, visit: fn(&mut Facts, &[u8], &[u8])| match by_name.get(name.as_bytes()) {
                Some(bucket) => db.for_each(bucket, |key, value| visit(facts, key, value)),
                None => Ok(0),
            };
        each("meta", &mut facts, |facts, key, _| facts.known("meta", &META_KEYS, key))?;
        each("cluster", &mut facts, |facts, key, _| facts.known("cluster", &CLUSTER_KEYS, key))?;
        each("auth", &mut facts, |facts, key, _| facts.known("auth", &AUTH_KEYS, key))?;
        each("members", &mut facts, Facts::member)?;
        each("members_removed", &mut facts, Facts::member_removed)?;
        each("alarm", &mut facts, Facts::alarm)?;
        each("lease", &mut facts, Facts::lease)?;
        Ok(facts)
    }

    /// The revision a server would report: the newest write, or what was compacted if that is newer.
    pub fn revision_now(&self) -> u64 {
        let written = self.last_revision.map_or(1, |last| last.revision.main);
        written.max(self.scheduled_compact.unwrap_or(0)).max(self.finished_compact.unwrap_or(0))
    }

    /// The revision up to which a server would call history compacted: it resumes what was scheduled.
    pub fn compact_revision(&self) -> Option<u64> {
        self.scheduled_compact.max(self.finished_compact)
    }

    /// The same, and whether it is done.
    pub fn compaction(&self) -> Compaction {
        Compaction { revision: self.compact_revision(), finished: self.scheduled_compact == self.finished_compact }
    }

    fn malformed(&mut self, bucket: &'static str, key: &[u8], wanted: &'static str) {
        if self.malformed.len() < KEPT {
            let key = String::from_utf8_lossy(key.get(..200).unwrap_or(key)).into_owned();
            self.malformed.push(Malformed { bucket, key, wanted });
        }
    }

    fn known(&mut self, bucket: &'static str, known: &[&str], key: &[u8]) {
        if !known.iter().any(|known| known.as_bytes() == key) && self.unknown.len() < KEPT {
            self.unknown.push((bucket, String::from_utf8_lossy(key.get(..200).unwrap_or(key)).into_owned()));
        }
    }

    fn number(&mut self, key: &str, value: Option<Vec<u8>>) -> Option<u64> {
        let value = value?;
        let number = <[u8; 8]>::try_from(value.as_slice()).ok().map(u64::from_be_bytes);
        if number.is_none() {
            self.malformed("meta", key.as_bytes(), "a number of 8 bytes");
        }
        number
    }

    fn revision(&mut self, key: &str, value: Option<Vec<u8>>) -> Option<u64> {
        let revision = RevisionKey::decode(&value?).filter(|at| !at.tombstone);
        if revision.is_none() {
            self.malformed("meta", key.as_bytes(), "a revision of 17 bytes");
        }
        revision.map(|at| at.revision.main)
    }

    fn version(&mut self, bucket: &'static str, key: &str, value: Option<Vec<u8>>) -> Option<String> {
        let text = String::from_utf8(value?).ok().filter(|text| is_version(text));
        if text.is_none() {
            self.malformed(bucket, key.as_bytes(), "a version such as 3.6.0");
        }
        text
    }

    fn member(&mut self, key: &[u8], value: &[u8]) {
        match Member::from_json(value) {
            Ok(member) if member.id.to_string().as_bytes() == key && self.members.len() < MEMBERS_MAX => {
                self.members.push(member);
            }
            _ => self.malformed("members", key, "a member whose id is its key"),
        }
    }

    fn member_removed(&mut self, key: &[u8], _value: &[u8]) {
        let id = std::str::from_utf8(key).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok());
        match id {
            Some(id) if self.removed.len() < MEMBERS_MAX => self.removed.push(MemberId(id)),
            _ => self.malformed("members_removed", key, "a member id in hex"),
        }
    }

    fn alarm(&mut self, key: &[u8], _value: &[u8]) {
        match AlarmMember::decode(key) {
            Ok(alarm) if self.alarms.len() < MEMBERS_MAX => {
                let kind = match alarm.alarm() {
                    1 => "NOSPACE",
                    2 => "CORRUPT",
                    _ => "unknown",
                };
                self.alarms.push((MemberId(alarm.member_id()), kind));
            }
            _ => self.malformed("alarm", key, "an alarm"),
        }
    }

    fn lease(&mut self, key: &[u8], value: &[u8]) {
        self.leases += 1;
        if lease_id(key, value).is_none() {
            self.malformed("lease", key, "a lease whose id is its key and whose TTL is above zero");
        }
    }
}

/// The id of a well-formed lease record.
pub fn lease_id(key: &[u8], value: &[u8]) -> Option<i64> {
    let id = i64::from_be_bytes(key.try_into().ok()?);
    let lease = Lease::decode(value).ok()?;
    (lease.id == id && lease.ttl > 0).then_some(id)
}

fn is_version(text: &str) -> bool {
    let parts: Vec<_> = text.split('.').collect();
    parts.len() == 3 && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}
