//! Restores, and compares with what really happened.
//!
//! **Rule:** a restored state is equal in every key, value, version, revision and lease, or it was refused with a reason,
//! and a follower had said before that this moment is lost.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use quorate_backup::session::{Session, Wanted};
use quorate_etcd::datadir::FileSource;
use quorate_etcd::engine::{BaseFile, Ingredients, write_database};
use quorate_etcd_formats::rebuild::Options;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, RealDisk};
use quorate_plan::chain::Target;
use quorate_testkit::quorate;

use super::truth::{State, state_at};
use crate::backup_support::{OneWrite, writes_of};

/// What a restore gave.
#[derive(Debug)]
pub(crate) enum Verdict {
    Equal,
    Refused(String),
    Differs(String),
}

/// The history as it was, by place.
pub(crate) struct History {
    pub(crate) writes: Vec<OneWrite>,
}

impl History {
    /// Restores through the library and compares.
    pub(crate) fn check(&self, store: &str, scratch: &Path, revision: u64) -> Verdict {
        let dir = tempfile::tempdir_in(scratch).unwrap();
        let mut round = 0;
        let mut session = match Session::open(store, dir.path()) {
            Ok(session) => session,
            Err(fault) => return Verdict::Differs(format!("the store cannot be opened: {fault}")),
        };
        session.threads = 1;
        let made = session.run(&Wanted::Target(Target::Revision(revision)), |base, events, _| {
            round += 1;
            assert!(round < 50, "{round} rounds for revision {revision}");
            let source = FileSource::open(base.path()).map_err(|error| Fault::io("cannot read", error))?;
            let base = Some(BaseFile { source: &source, name: &base.name, check_hash: false });
            let path = dir.path().join(format!("db-{round}"));
            let mut file = RealDisk.create_file(&path, Access::mode(0o600))?;
            let progress = std::sync::atomic::AtomicU64::new(0);
            let options = Options::copy();
            write_database(&mut file, Ingredients { base, events: Some(events), options, progress: &progress })?;
            Ok(path)
        });
        let proven = match made {
            Ok(proven) => proven,
            Err(fault) if matches!(fault.code(), Code::ChainTarget | Code::ChainShort | Code::ChainNone) => {
                return Verdict::Refused(fault.to_string());
            }
            Err(fault) => return Verdict::Differs(format!("{} {fault}", fault.code())),
        };
        if proven.revision != revision {
            return Verdict::Differs(format!("revision {} came instead", proven.revision));
        }
        let restored = writes_of(&std::fs::read(&proven.result).unwrap());
        let base = session.catalog.objects[proven.base].last;
        match self.compare(&restored, revision, base) {
            Ok(()) => Verdict::Equal,
            Err(why) => Verdict::Differs(why),
        }
    }

    /// Restores with the command itself and compares.
    pub(crate) fn check_command(&self, store: &str, env: &[(String, String)], root: &Path, revision: u64) -> Verdict {
        let dir = format!("restored-{revision}");
        let mut command = Command::new(quorate());
        let to = revision.to_string();
        command.current_dir(root).args(["backup", "restore", "--store", store, "--name", "n1", "--data-dir", &dir]);
        command.args(["--member", "n1=http://127.0.0.1:2380", "--exact", "--to-revision", &to]);
        let output = command.envs(env.iter().map(|(key, value)| (key, value))).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            let refused = ["Q0803", "Q0804", "Q0805"].iter().any(|code| words.contains(code));
            return if refused { Verdict::Refused(words) } else { Verdict::Differs(words) };
        }
        let restored = writes_of(&std::fs::read(root.join(&dir).join("member/snap/db")).unwrap());
        match self.compare(&restored, revision, u64::MAX) {
            Ok(()) => Verdict::Equal,
            Err(why) => Verdict::Differs(why),
        }
    }

    /// `base`: the full's revision; every write after it must be there.
    fn compare(&self, restored: &[OneWrite], revision: u64, base: u64) -> Result<(), String> {
        let at = |at: (u64, u64)| self.writes.binary_search_by_key(&at, |write| write.at).ok();
        for write in restored {
            let truth = at(write.at).map(|index| &self.writes[index]);
            if truth != Some(write) || write.at.0 > revision {
                return Err(format!("a write that never was so: {} instead of {}", show(Some(write)), show(truth)));
            }
        }
        let after = |write: &&OneWrite| write.at.0 > base && write.at.0 <= revision;
        let (there, wanted) = (restored.iter().filter(after).count(), self.writes.iter().filter(after).count());
        if there != wanted {
            return Err(format!("{there} of {wanted} writes after the full at {base}"));
        }
        let (restored, truth) = (state_at(restored, revision), state_at(&self.writes, revision));
        same_state(&restored, &truth)
    }
}

/// Checks many revisions on two threads.
pub(crate) fn check_all(history: &History, store: &str, scratch: &Path, revisions: &[u64]) -> Vec<(u64, Verdict)> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut verdicts = Vec::new();
        while let Some(revision) = revisions.get(next.fetch_add(1, Ordering::Relaxed)) {
            verdicts.push((*revision, history.check(store, scratch, *revision)));
        }
        verdicts
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut verdicts = work();
        verdicts.extend(other.join().unwrap());
        verdicts.sort_by_key(|(revision, _)| *revision);
        verdicts
    })
}

/// Whether two states are the same in everything.
pub(crate) fn same_state(one: &State, truth: &State) -> Result<(), String> {
    for key in one.keys().chain(truth.keys()) {
        if one.get(key) != truth.get(key) {
            return Err(format!("{} instead of {}", show(one.get(key)), show(truth.get(key))));
        }
    }
    Ok(())
}

fn show(write: Option<&OneWrite>) -> String {
    let Some(write) = write else { return "nothing".to_owned() };
    let key = write.key.escape_ascii().to_string();
    format!(
        "{:?} `{}` tombstone {} version {} created {} lease {:x} value of {} bytes",
        write.at,
        &key[..key.len().min(40)],
        write.tombstone,
        write.version,
        write.create_revision,
        write.lease,
        write.value.len()
    )
}
