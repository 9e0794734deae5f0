//! What is in a data dir or a snapshot file, told without judging it.
//!
//! What cannot be read is left out and said so, so that half a disk still tells its half.

use std::sync::atomic::AtomicU64;

use serde::Serialize;

use crate::ReadAt;
use crate::bolt::check::Run;
use crate::bolt::{BoltError, Db, MetaPages};
use crate::contents::{self, Variant, Want};
use crate::database::Facts;
use crate::dir::{DataDir, InUse};
use crate::membership::{ClusterId, Member, MemberId};
use crate::snap::SnapFile;
use crate::snapshot_file::{Body, has_hash};
use crate::v2store::V2Store;
use crate::wal::{self, ScanOptions, Tail, WalFile};

/// What is wanted beside what is cheap.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    /// etcd's hashes. `None`: only where the database is small.
    pub hash: Option<bool>,
    /// Keys, live keys and free pages.
    pub count: bool,
    /// Threads to use.
    pub workers: usize,
    /// Counts bytes examined, for whoever shows progress.
    pub progress: &'a AtomicU64,
}

/// Databases below this size are hashed without being asked.
pub const HASH_BYTES_MAX: u64 = 64 << 20;

/// What was examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A member's data dir.
    DataDir,
    /// A file with a hash, as `etcdctl snapshot save` writes it.
    Snapshot,
    /// A database without a hash.
    Database,
}

/// What is in it. Absent fields could not be had: they do not exist there, or `unread` says why.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// What was examined.
    pub kind: Kind,
    /// Whether a running etcd holds it. Absent for files.
    pub running: Option<bool>,
    /// The process that holds it, if known.
    pub running_pid: Option<u32>,
    /// Of the WAL. A snapshot file does not say.
    pub cluster_id: Option<ClusterId>,
    /// Of the WAL: whose data dir it is.
    pub member_id: Option<MemberId>,
    /// The member's name, where the member list has one.
    pub name: Option<String>,
    /// What the database says.
    #[serde(flatten)]
    pub database: Database,
    /// What the WAL says.
    pub wal: Option<WalInfo>,
    /// What raft must remember.
    pub hard_state: Option<HardState>,
    /// The newest raft snapshot.
    pub raft_snapshot: Option<RaftSnapshot>,
    /// What could not be read, and why.
    pub unread: Vec<String>,
}

/// What the database says.
#[derive(Debug, Default, Serialize)]
pub struct Database {
    /// Members and learners.
    pub members: Option<Vec<MemberInfo>>,
    /// Members that were removed.
    pub members_removed: Option<Vec<MemberId>>,
    /// Version of the storage schema; only 3.6 and later write one.
    pub storage_version: Option<String>,
    /// Version that the members agreed on.
    pub cluster_version: Option<String>,
    /// The newest revision.
    pub revision: Option<u64>,
    /// The revision up to which history is gone.
    pub compact_revision: Option<u64>,
    /// Raft index up to which the database has applied the log.
    pub consistent_index: Option<u64>,
    /// Term of that entry.
    pub term: Option<u64>,
    /// Size of the file.
    pub size_bytes: Option<u64>,
    /// Size up to the last page that was ever used.
    pub used_bytes: Option<u64>,
    /// Bytes per page.
    pub page_bytes: Option<u32>,
    /// Transaction of the meta page in force.
    pub transaction: Option<u64>,
    /// Number of leases.
    pub leases: Option<u64>,
    /// Raised alarms.
    pub alarms: Option<Vec<Alarm>>,
    /// Whether auth is on.
    pub auth_enabled: Option<bool>,
    /// Items in all buckets.
    pub items: Option<u64>,
    /// Items in the `key` bucket.
    pub keys: Option<u64>,
    /// User keys that exist now.
    pub live_keys: Option<u64>,
    /// Pages that may be used again.
    pub free_pages: Option<u64>,
    /// What `etcdutl snapshot status` prints as hash (there in hex).
    pub hash: Option<u32>,
    /// What the Hash RPC answers, by version.
    pub hash_rpc: Option<Vec<Variant>>,
    /// What the HashKV RPC answers at `revision`, by version.
    pub hashkv: Option<Vec<Variant>>,
}

/// A member.
#[derive(Debug, Serialize)]
pub struct MemberInfo {
    /// Its id.
    pub id: MemberId,
    /// Its name; empty if it never started.
    pub name: String,
    /// Where peers reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
    /// Whether it learns and does not vote.
    pub learner: bool,
}

/// A raised alarm.
#[derive(Debug, Serialize)]
pub struct Alarm {
    /// Who raised it.
    pub member_id: MemberId,
    /// What it says.
    pub alarm: &'static str,
}

/// The WAL.
#[derive(Debug, Serialize)]
pub struct WalInfo {
    /// Its segments, oldest first.
    pub segments: Vec<Segment>,
    /// First entry still in it.
    pub first_index: Option<u64>,
    /// Last entry.
    pub last_index: Option<u64>,
}

/// A WAL segment.
#[derive(Debug, Serialize)]
pub struct Segment {
    /// File name.
    pub name: String,
    /// Size of the file, zeros prepared for later included.
    pub size_bytes: u64,
}

/// What raft must remember.
#[derive(Debug, Serialize)]
pub struct HardState {
    /// Current term.
    pub term: u64,
    /// Who got this member's vote in it; 0 for nobody.
    pub vote: MemberId,
    /// Last entry known to be committed.
    pub commit: u64,
}

/// A raft snapshot.
#[derive(Debug, Serialize)]
pub struct RaftSnapshot {
    /// File name.
    pub file: String,
    /// Last entry in it.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// Who votes.
    pub voters: Vec<MemberId>,
    /// Who learns.
    pub learners: Vec<MemberId>,
}

/// Looks at a snapshot file or a copied database.
pub fn file(source: &dyn ReadAt, settings: Settings<'_>) -> Result<Inspection, BoltError> {
    let kind = if has_hash(source.len()) { Kind::Snapshot } else { Kind::Database };
    let mut unread = Vec::new();
    let database = database(&Body::new(source), source.len(), settings, &mut unread)?;
    Ok(Inspection { database, unread, ..Inspection::empty(kind) })
}

/// Looks at a data dir. While etcd runs on it, only at what does not change underfoot.
pub fn data_dir(dir: &DataDir<'_>, settings: Settings<'_>) -> Inspection {
    let mut found = Inspection::empty(Kind::DataDir);
    (found.running, found.running_pid) = match &dir.in_use {
        InUse::No => (Some(false), None),
        InUse::Yes { pid } => (Some(true), *pid),
        InUse::Unknown(why) => {
            found.unread.push(format!("whether etcd runs on it: {why}"));
            (None, None)
        }
    };
    for entry in &dir.entries {
        if let crate::dir::Kind::Unreadable(why) = &entry.kind {
            found.unread.push(format!("{}: {why}", entry.path));
        }
    }
    match dir.db() {
        None if found.unread.is_empty() => found.unread.push("member/snap/db: there is none".to_owned()),
        None => {}
        Some(db) if dir.in_use == InUse::No => {
            let read = database(db.source, db.source.len(), settings, &mut found.unread);
            read.map_or_else(|error| found.unread.push(format!("{}: {error}", db.path)), |read| found.database = read);
        }
        Some(db) => found.database = metas_only(db.source, &mut found.unread),
    }
    log(dir, &mut found);
    let members = found.database.members.iter().flatten();
    found.name = members.filter(|member| Some(member.id) == found.member_id).map(|member| member.name.clone()).next();
    found
}

impl Inspection {
    fn empty(kind: Kind) -> Inspection {
        Inspection {
            kind,
            running: None,
            running_pid: None,
            cluster_id: None,
            member_id: None,
            name: None,
            database: Database::default(),
            wal: None,
            hard_state: None,
            raft_snapshot: None,
            unread: Vec::new(),
        }
    }
}

fn metas_only(source: &dyn ReadAt, unread: &mut Vec<String>) -> Database {
    let meta = MetaPages::read(source).ok().and_then(|metas| metas.chosen());
    let Some(meta) = meta else {
        unread.push("member/snap/db: no meta page is valid".to_owned());
        return Database::default();
    };
    Database {
        size_bytes: Some(source.len()),
        used_bytes: Some(meta.hwm.saturating_mul(u64::from(meta.page_size))),
        page_bytes: Some(meta.page_size),
        transaction: Some(meta.txid),
        ..Database::default()
    }
}

fn database(
    source: &dyn ReadAt,
    file_bytes: u64,
    settings: Settings<'_>,
    unread: &mut Vec<String>,
) -> Result<Database, BoltError> {
    let db = Db::open(source)?;
    let meta = db.meta();
    let buckets = db.buckets()?;
    let facts = Facts::read(&db, &buckets)?;
    unread.extend(
        facts.malformed.iter().map(|wrong| {
            format!("`{}` in bucket `{}` is not {}", wrong.key.escape_debug(), wrong.bucket, wrong.wanted)
        }),
    );
    let used_bytes = meta.hwm.saturating_mul(u64::from(meta.page_size));
    let hashes = settings.hash.unwrap_or(used_bytes < HASH_BYTES_MAX);
    let mut found = Database {
        size_bytes: Some(file_bytes),
        used_bytes: Some(used_bytes),
        page_bytes: Some(meta.page_size),
        transaction: Some(meta.txid),
        ..Database::of(&facts)
    };
    if settings.count || hashes {
        let want = Want { hashes, run: Run { workers: settings.workers, progress: settings.progress, go_on: None } };
        let contents = contents::examine(&db, &buckets, facts.compaction(), &want)?;
        if settings.count {
            found.items = Some(contents.items);
            found.keys = Some(contents.revisions);
            found.live_keys = Some(contents.live_keys);
            found.free_pages = Some(contents.free_pages);
        }
        if let Some(hashes) = contents.hashes {
            found.hash = Some(hashes.snapshot_status);
            found.hash_rpc = Some(hashes.hash_rpc);
            found.hashkv = Some(hashes.hashkv);
        }
    }
    Ok(found)
}

impl Database {
    fn of(facts: &Facts) -> Database {
        let info = |member: &Member| MemberInfo {
            id: member.id,
            name: member.name.clone(),
            peer_urls: member.peer_urls.clone(),
            client_urls: member.client_urls.clone(),
            learner: member.is_learner,
        };
        let alarm = |(member_id, alarm): &(MemberId, &'static str)| Alarm { member_id: *member_id, alarm };
        Database {
            members: Some(facts.members.iter().map(info).collect()),
            members_removed: Some(facts.removed.clone()),
            storage_version: facts.storage_version.clone(),
            cluster_version: facts.cluster_version.clone(),
            revision: Some(facts.revision_now()),
            compact_revision: facts.compact_revision(),
            consistent_index: facts.consistent_index,
            term: facts.term,
            leases: Some(facts.leases),
            alarms: Some(facts.alarms.iter().map(alarm).collect()),
            auth_enabled: Some(facts.auth_enabled),
            ..Database::default()
        }
    }
}

fn log(dir: &DataDir<'_>, found: &mut Inspection) {
    let files = dir.wal_files();
    let segment = |file: &crate::dir::Named<'_>| Segment { name: file.name.to_owned(), size_bytes: file.source.len() };
    let mut info = WalInfo { segments: files.iter().map(segment).collect(), first_index: None, last_index: None };
    let sources: Vec<_> = files.iter().map(|file| WalFile { name: file.name, source: file.source }).collect();
    // A running etcd appends to the newest segment, which at worst looks torn; every record before that is final.
    match wal::scan(&sources, &ScanOptions::default()) {
        Ok(wal) => {
            (found.cluster_id, found.member_id) = (wal.cluster_id(), wal.member_id());
            (info.first_index, info.last_index) = (wal.first_entry, wal.last_entry.map(|(index, _)| index));
            found.hard_state = wal.hard_state.map(|state| HardState {
                term: state.term(),
                vote: MemberId(state.vote()),
                commit: state.commit(),
            });
            if let Tail::Corrupt(damage) = &wal.tail {
                found.unread.push(format!("{} after offset {}: {}", damage.file, damage.offset, damage.problem));
            }
        }
        Err(error) => found.unread.push(format!("{error}: {}", error.source)),
    }
    if !info.segments.is_empty() {
        found.wal = Some(info);
    }
    for file in dir.snap_files().iter().rev() {
        match SnapFile::read(file.source) {
            Ok(snap) => {
                complete_members(&mut found.database, &snap);
                let ids = |ids: &[u64]| ids.iter().copied().map(MemberId).collect();
                found.raft_snapshot = Some(RaftSnapshot {
                    file: file.name.to_owned(),
                    index: snap.point.index,
                    term: snap.point.term,
                    voters: ids(&snap.conf_state.voters),
                    learners: ids(&snap.conf_state.learners),
                });
                break;
            }
            Err(error) => found.unread.push(format!("{}: {error}", file.path)),
        }
    }
}

/// etcd 3.5.0 to 3.5.19 do not write client URLs into the database's member list; the raft snapshot has them.
fn complete_members(database: &mut Database, snap: &SnapFile) {
    let Ok(store) = V2Store::read(snap.store_json()) else { return };
    for member in database.members.iter_mut().flatten() {
        let Some(known) = store.members.iter().find(|known| known.id == member.id) else { continue };
        if member.client_urls.is_empty() {
            member.client_urls.clone_from(&known.client_urls);
        }
        if member.name.is_empty() {
            member.name.clone_from(&known.name);
        }
    }
}
