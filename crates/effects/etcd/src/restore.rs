//! Restores a member: a data dir whose database comes from a snapshot, with or without the writes after it.
//!
//! The way is that of `init`: look, decide, build under a partial name, sync, rename. Only the database differs.
//!
//! **Invariant:** nothing is in place before the snapshot's hash was found right.

use std::fs::File;
use std::path::Path;

use quorate_etcd_formats::ReadAt;
use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::rebuild::Rebuilt;
use quorate_etcd_formats::snapshot_file::{Body, HASH_BYTES, has_hash};
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Disk, DiskFile};
use quorate_host::locks::{self, Lock};
use quorate_plan::Warning;

use crate::datadir::{FileSource, not_a_database, not_etcd};
use crate::engine::{BaseFile, Ingredients, no_hash, read_fault, write_database};
use crate::init::{self, Done, Request, Target, left_overs};

/// A snapshot file, open, with nobody writing to it.
pub struct Snapshot {
    source: FileSource,
    name: String,
    check_hash: bool,
    _lock: Option<Lock>,
}

/// What a restore led to.
#[derive(Debug)]
pub struct Restored {
    /// How it ended.
    pub done: Done,
    /// What was written; `None` if the member was there already.
    pub rebuilt: Option<Rebuilt>,
}

impl Snapshot {
    /// Opens a snapshot. One without a hash is refused, unless `skip_hash`.
    pub fn open(path: &Path, skip_hash: bool) -> Result<Snapshot, Fault> {
        let name = path.display().to_string();
        let attempt = || format!("cannot restore `{name}`");
        let file = File::open(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Fault::new(Code::NotFound, attempt())
                .caused_by(error)
                .hint("check the path, and that its disk is mounted"),
            _ => Fault::io(attempt(), error),
        })?;
        if !file.metadata().is_ok_and(|meta| meta.is_file()) {
            return Err(not_etcd(attempt(), "it is not a file; give a snapshot, or the file `member/snap/db`"));
        }
        // The db of a running etcd is a mix of two states.
        let lock = match locks::share_lock(&file) {
            Ok(Some(lock)) => Some(lock),
            Ok(None) => {
                return Err(Fault::new(Code::DataInUse, format!("{}: a running etcd holds it", attempt()))
                    .hint("take a snapshot of that etcd instead: `etcdctl snapshot save snap.db`"));
            }
            // Some network file systems know no locks; no etcd runs on those.
            Err(_) => None,
        };
        let source = FileSource::of(file).map_err(|error| Fault::io(attempt(), error))?;
        if !skip_hash && !has_hash(source.len()) {
            return Err(no_hash(&name));
        }
        Ok(Snapshot { source, name, check_hash: !skip_hash, _lock: lock })
    }

    /// The file as the engine takes it.
    pub fn base(&self) -> BaseFile<'_> {
        BaseFile { source: &self.source, name: &self.name, check_hash: self.check_hash }
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.source.len()
    }

    /// What names the snapshot: the hash that it carries, or that of its bytes. The first is checked only by a restore.
    pub fn sha256(&self) -> Result<[u8; 32], Fault> {
        let fail = |error| read_fault(&self.name, error);
        let len = self.source.len();
        if has_hash(len) {
            let mut stored = [0; HASH_BYTES as usize];
            self.source.read_exact_at(&mut stored, len - HASH_BYTES).map_err(fail)?;
            return Ok(stored);
        }
        quorate_etcd_formats::snapshot_file::sha256(&self.source, len, |_| ()).map_err(fail)
    }

    /// What its small buckets say.
    pub fn facts(&self) -> Result<Facts, Fault> {
        let fail = |error| not_a_database(format!("cannot restore `{}`", self.name), error);
        let body = Body::new(&self.source);
        let db = Db::open(&body).map_err(fail)?;
        let buckets = db.buckets().map_err(fail)?;
        Facts::read(&db, &buckets).map_err(fail)
    }
}

/// Makes the member from the ingredients, unless it is there. Safe to repeat, also after being killed at any point.
pub fn ensure_restored(
    disk: &impl Disk,
    target: &Target,
    request: Request<'_>,
    ingredients: Ingredients<'_>,
) -> Result<Restored, Fault> {
    let mut rebuilt = None;
    let mut unused = Some(ingredients);
    let mut fill = |file: &mut dyn DiskFile| {
        // Lost a race for the place once already; a history cannot be read a second time.
        let Some(ingredients) = unused.take() else { return Err(left_overs::busy(target.data_dir())) };
        rebuilt = Some(write_database(file, ingredients)?);
        Ok(())
    };
    let done = init::ensure_member_with(disk, target, request, &mut fill)?;
    Ok(Restored { done, rebuilt })
}

/// What the operator should know about restored data.
pub fn warnings(facts: &Facts, rebuilt: &Rebuilt, lease_ttl: i64) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if rebuilt.leases_created > 0 {
        let ids: Vec<String> = rebuilt.leases_created_ids.iter().take(3).map(|id| format!("{id:x}")).collect();
        let more = if rebuilt.leases_created > ids.len() as u64 { ", …" } else { "" };
        let text = format!(
            "live keys refer to {} leases that nothing is known of ({}{more}); each was made with {lease_ttl} seconds to live",
            rebuilt.leases_created,
            ids.join(", "),
        );
        warnings.push(Warning { code: Code::RestoreLeases, text });
    }
    for (member, kind) in &facts.alarms {
        let text = format!("the alarm {kind} of the old member `{member}` comes with the data; disarm it");
        warnings.push(Warning { code: Code::RestoreAlarm, text });
    }
    warnings
}
