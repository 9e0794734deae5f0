//! Carries an order out.
//!
//! ```text
//!   copy of the data, or the backup ──► the new data dir, whole, beside the old one ──► Built ──► two renames ──► Done
//! ```
//!
//! **Invariant:** the ledger names the new cluster before there is data of it; nothing is set aside before what takes its place
//! is whole and on the same disk, so that behind `Built` there is nothing but renames; and whatever was done is found again by
//! the next attempt.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quorate_backup::session::{Session, Wanted, Whose};
use quorate_etcd::aside::ensure_set_aside;
use quorate_etcd::engine::Ingredients;
use quorate_etcd::init::{Request, Target};
use quorate_etcd::ledger::ensure_ledger;
use quorate_etcd::restore::{self, Snapshot};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_etcd_formats::membership::Member;
use quorate_etcd_formats::rebuild::Options;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Disk, RealDisk};
use quorate_plan::chain::Target as ChainTarget;
use quorate_plan::change::recover::Point;
use quorate_plan::change::upgrade::Release;
use quorate_plan::fork::is_claimed;
use quorate_plan::ledger::{Identity, LedgerSeen, Origin, RecoveredAt, State};
use quorate_plan::restore_point::Content;
use tracing::info;

use super::journal::{self, Order, Progress, RecoveryNow, Role, Source};
use super::survey::ids;
use super::{boot, copy};
use crate::backups::restore::{LEASE_TTL, Restore, USUAL};
use crate::turn::{Book, Node, ensure_mounted, ensure_recovery_box, own_clusters, stamp};

/// Each draw has the wanted half with even chances.
const DRAWS: u32 = 256;

/// What it is done with.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The etcd program.
    pub etcd: PathBuf,
    /// Its version.
    pub version: String,
    /// The form of data dirs for it.
    pub form: Form,
    /// The program that is started as the shim: our own.
    pub shim: PathBuf,
    /// How long etcd may take to apply the log of the copy.
    pub boot_limit: Duration,
}

/// Carries it out, from wherever it is. `tell`: what is being done now. Takes as long as it takes: not for async code.
pub(crate) fn carry_out(
    tools: &Tools,
    node: &Node,
    book: &Book,
    now: &RecoveryNow,
    tell: &dyn Fn(String),
) -> Result<Progress, Fault> {
    let work = Work { tools, node, book, order: &now.order, tell };
    // The data may lie on a disk that is not mounted, and nothing is made or given up in its place.
    ensure_mounted(node, &book.read(), "cannot carry the ordered recovery out")?;
    let progress = match &now.order.role {
        Role::Join => work.join()?,
        Role::Begin(source) => {
            // The order may have been cut off before that.
            book.change(|ledger| ledger.generation = ledger.generation.max(now.order.generation))?;
            let revision = match now.progress {
                Progress::Built { revision } => revision,
                Progress::Ordered | Progress::Done { .. } | Progress::Failed { .. } => work.build(source)?,
            };
            work.begin(revision)?
        }
    };
    work.tidy()?;
    work.write(progress.clone())?;
    Ok(progress)
}

struct Work<'a> {
    tools: &'a Tools,
    node: &'a Node,
    book: &'a Book,
    order: &'a Order,
    tell: &'a dyn Fn(String),
}

impl Work<'_> {
    fn say(&self, what: &str) {
        info!("recovery of generation {}: {what}", self.order.generation);
        (self.tell)(format!("recovery of generation {}: {what}", self.order.generation));
    }

    fn write(&self, progress: Progress) -> Result<(), Fault> {
        journal::write(self.node.state_path(), &RecoveryNow { order: self.order.clone(), progress })
    }

    /// Beside a directory, on its disk, under a name that says that it may be removed.
    fn beside(&self, dir: &Path, number: u32) -> PathBuf {
        let mut name = dir.as_os_str().to_owned();
        name.push(format!(".recovery-{}.partial-{number}", self.order.generation));
        PathBuf::from(name)
    }

    /// Where the copy lies.
    fn copy(&self) -> PathBuf {
        self.beside(self.node.target.data_dir(), 0)
    }

    /// Where the new data is made, and the renames that put it in place: a log elsewhere first, since etcd refuses a log without
    /// a database, and would take a database without its log.
    fn made(&self) -> Result<(Target, Vec<(PathBuf, PathBuf)>), Fault> {
        let place = &self.node.target;
        let data = self.beside(place.data_dir(), 1);
        let mut renames = Vec::new();
        let wal = place.wal_dir().map(|wal| match wal.strip_prefix(place.data_dir()) {
            Ok(below) => data.join(below),
            Err(_) => {
                let made = self.beside(wal, 1);
                renames.push((made.clone(), wal.to_owned()));
                made
            }
        });
        renames.push((data.clone(), place.data_dir().to_owned()));
        Ok((Target::new(&data, wal.as_deref())?, renames))
    }

    fn founding(&self) -> Result<Founding, Fault> {
        founding(self.node, self.order)
    }

    /// Makes the new data dir, beside the old one, and proves it. Returns its revision.
    fn build(&self, source: &Source) -> Result<u64, Fault> {
        let (made, renames) = self.made()?;
        // What an attempt left that was cut off.
        for (from, _) in &renames {
            RealDisk.remove_partial(from)?;
        }
        let founding = self.founding()?;
        let revision = match source {
            Source::Data { term, index, at_least } => {
                let copy = self.copy();
                self.say("copying the data");
                let end = copy::copy_data(&self.node.target, &copy, (*term, *index))?;
                self.say(&format!(
                    "applying the log up to entry {}, {} of it known to be committed",
                    end.index, end.commit
                ));
                let run = self.node.state_path().join("recovery");
                let boxed = ensure_recovery_box(self.node, &copy)?;
                boot::apply_log(self.tools, self.node.name(), boxed, &copy, &run, end.index)?;
                let facts = Snapshot::open(&db(&copy), true)?.facts()?;
                check_applied(&self.tools.version, facts.consistent_index, end.index)?;
                let revision = facts.revision_now();
                if let Some(backup) = at_least.filter(|backup| *backup > revision) {
                    let why = format!("the data ends at revision {revision}, and the newest backup at {backup}");
                    return Err(
                        Fault::new(Code::RecoverBackupNewer, why).hint("nothing was changed; choose with `--from`")
                    );
                }
                self.say("making the new cluster's data dir beside it");
                self.restore_copy(&made, &founding, revision)?;
                revision
            }
            Source::Backup { revision } => {
                self.say("restoring the backup beside the data");
                let mut session = self.store()?;
                let (founding, name, form) = (&founding, self.node.name(), self.tools.form);
                let content = self.content(*revision);
                let restore = Restore { place: &made, founding, name, form, content };
                let proven =
                    session.run(&Wanted::Target(ChainTarget::Newest), |base, events, _| restore.run(base, events))?;
                if proven.revision < *revision {
                    let why =
                        format!("the backup can be proven up to revision {} only, and not {revision}", proven.revision);
                    return Err(Fault::new(Code::RecoverChanged, why).hint("run `quorate cluster recover` again"));
                }
                proven.revision
            }
            Source::Point(point) => {
                self.say("restoring an earlier state of the backup beside the data");
                let (target, least) = match point {
                    Point::Time(ms) => (ChainTarget::Time(*ms), 0),
                    Point::Revision(revision) => (ChainTarget::Revision(*revision), *revision),
                };
                let mut session = self.store()?;
                let content = self.content(least);
                let (founding, name, form) = (&founding, self.node.name(), self.tools.form);
                let restore = Restore { place: &made, founding, name, form, content };
                session.run(&Wanted::Target(target), |base, events, _| restore.run(base, events))?.revision
            }
        };
        self.write(Progress::Built { revision })?;
        Ok(revision)
    }

    /// Puts the new cluster in the place of the old one.
    fn begin(&self, revision: u64) -> Result<Progress, Fault> {
        let founding = self.founding()?;
        let local = self.local(&founding)?;
        let ours = Some((founding.cluster_id, local.id));
        let mut renamed = Vec::new();
        if ids(&self.node.target) != ours {
            self.say("putting the new data dir in the place of the old one");
            let (_, renames) = self.made()?;
            // One that is not there any more was put in its place before this attempt.
            let open: Vec<(PathBuf, PathBuf)> =
                renames.into_iter().filter(|(from, _)| from.symlink_metadata().is_ok()).collect();
            let stamp = stamp();
            for (_, to) in open.iter().rev() {
                renamed.extend(self.set_one_aside(to, &stamp)?);
            }
            let identity = Identity { cluster: founding.cluster_id, member: local.id, origin: Origin::Restored };
            self.book.change(|ledger| {
                let mut next = ledger.with(State::Started(identity));
                next.generation = next.generation.max(self.order.generation);
                // The members of the old cluster are not those of the new one.
                next.peers.clear();
                next.confirmed = None;
                let revision = journal::begins_at(self.order, revision);
                next.recovered = Some(RecoveredAt { cluster: founding.cluster_id, revision });
                *ledger = next;
            })?;
            for (from, to) in &open {
                RealDisk.rename_new(from, to)?;
                RealDisk.sync_dir(to.parent().unwrap_or(Path::new("/")))?;
            }
        }
        if ids(&self.node.target) != ours {
            let why = format!("`{}` does not hold what was made for it", self.node.target.data_dir().display());
            return Err(Fault::new(Code::RecoverChanged, why)
                .hint("something has moved it; the old data lies beside it under a name with `.replaced-`"));
        }
        let (cluster, member) = (Some(founding.cluster_id), Some(local.id));
        Ok(Progress::Done { revision: Some(revision), cluster, member, renamed })
    }

    fn local<'f>(&self, founding: &'f Founding) -> Result<&'f Member, Fault> {
        let lost = || Fault::new(Code::Internal, format!("`{}` got lost between list and cluster", self.node.name()));
        founding.member(self.node.name()).ok_or_else(lost)
    }

    fn restore_copy(&self, made: &Target, founding: &Founding, revision: u64) -> Result<(), Fault> {
        let request = Request { founding, local: self.local(founding)?, form: self.tools.form };
        let snapshot = Snapshot::open(&db(&self.copy()), true)?;
        let progress = AtomicU64::new(0);
        let options = Options {
            up_to: None,
            bump: self.content(revision).bump,
            mark_compacted: USUAL.mark_compacted,
            membership: Some((request.founding, request.form)),
            lease_ttl_default: LEASE_TTL,
        };
        let ingredients = Ingredients { base: Some(snapshot.base()), events: None, options, progress: &progress };
        restore::ensure_restored(&RealDisk, made, request, ingredients).map(|_| ())
    }

    /// What becomes of revisions: they are raised above all that were seen anywhere, where the restored state is at least at
    /// revision `least`.
    fn content(&self, least: u64) -> Content {
        Content { bump: Some(journal::bump(self.order, least)), ..USUAL }
    }

    fn store(&self) -> Result<Session, Fault> {
        let Some(backup) = &self.node.spec.backup else {
            return Err(Fault::new(Code::RecoverNothing, "cannot recover from a backup: no store is declared")
                .hint("declare it under `backup` in the cluster file"));
        };
        // A store that clusters share by mistake holds backups of others, which are nothing to recover from.
        let own = own_clusters(self.node);
        let whose = if own.is_empty() { Whose::TheOnly } else { Whose::Of(own) };
        Session::open_for(&backup.store, &self.node.scratch(), &whose)
    }

    /// Lets go of everything, so that this node joins like a new one.
    fn join(&self) -> Result<Progress, Fault> {
        self.say("renaming data dir and ledger");
        let before = match self.book.read() {
            LedgerSeen::There(ledger) => Some(ledger),
            LedgerSeen::Absent => None,
            LedgerSeen::Unreadable(why) => {
                return Err(Fault::new(Code::LedgerUnreadable, "cannot read the ledger").caused_by(why));
            }
        };
        let mut renamed = self.set_aside()?;
        // An attempt that was cut off may have cleared it: then there is nothing to keep.
        if let Some(before) = before.filter(|before| before.state != State::Empty) {
            let path = self.node.ledger();
            if let Some(new) = ensure_set_aside(&RealDisk, &path, &stamp())? {
                renamed.push((path.clone(), new));
            }
            let mut left = before.reset();
            left.generation = 0;
            if let Some(bootstrap) = self.node.spec.bootstrap
                && !left.consumed.contains(&bootstrap.id)
            {
                left.consumed.push(bootstrap.id);
            }
            ensure_ledger(&RealDisk, &path, &left)?;
        }
        Ok(Progress::Done { revision: None, cluster: None, member: None, renamed })
    }

    fn set_aside(&self) -> Result<Vec<(PathBuf, PathBuf)>, Fault> {
        let (target, stamp) = (&self.node.target, stamp());
        let mut renamed = Vec::new();
        for dir in std::iter::once(target.data_dir()).chain(target.wal_dir()) {
            renamed.extend(self.set_one_aside(dir, &stamp)?);
        }
        Ok(renamed)
    }

    fn set_one_aside(&self, dir: &Path, stamp: &str) -> Result<Option<(PathBuf, PathBuf)>, Fault> {
        let Some(new) = ensure_set_aside(&RealDisk, dir, stamp)? else { return Ok(None) };
        info!("renamed `{}` to `{}`", dir.display(), new.display());
        Ok(Some((dir.to_owned(), new)))
    }

    /// The copy is needed no more: all that it held is in place.
    fn tidy(&self) -> Result<(), Fault> {
        Ok(RealDisk.remove_partial(&self.copy())?)
    }
}

/// The new cluster, of this node alone. The same order leads to the same one. A generation that was claimed in the
/// store has an id in the lower half, and any other one in the upper half: so every node can tell which one wins.
pub(super) fn founding(node: &Node, order: &Order) -> Result<Founding, Fault> {
    let Order { generation, nonce, claimed, .. } = order;
    let fail = |error: String| Fault::new(Code::RosterBadId, error).hint("run it again: ids are drawn anew");
    for round in 0..DRAWS {
        let token = format!("{}-recovered-{generation}-{nonce:016x}-{round}", node.spec.token);
        let members = vec![(node.name().to_owned(), node.member.peer_urls.clone())];
        let founding = Founding::new(members, &token).map_err(|error| fail(error.to_string()))?;
        if is_claimed(founding.cluster_id) == *claimed {
            return Ok(founding);
        }
    }
    Err(fail("no id of the wanted half was drawn".to_owned()))
}

/// Whether the database of the copy holds the log to its last entry. From 3.5 on etcd writes the index of every entry into it;
/// before, only of those that change keys, and there its own word before an orderly end is what there is.
fn check_applied(version: &str, applied: Option<u64>, last: u64) -> Result<(), Fault> {
    let tells = Release::parse(version).is_none_or(|release| (release.major, release.minor) >= (3, 5));
    if !tells || applied.is_some_and(|applied| applied >= last) {
        return Ok(());
    }
    let applied = applied.map_or_else(|| "none at all".to_owned(), |applied| applied.to_string());
    let why = format!("the copy's database holds the log up to entry {applied}, and the log ends with {last}");
    Err(Fault::new(Code::RecoverIncomplete, why).hint("nothing was changed; see `quorate explain Q1072`"))
}

fn db(copy: &Path) -> PathBuf {
    copy.join("data/member/snap/db")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_ends_before_its_log_is_refused() {
        let refused = |version, applied| {
            check_applied(version, applied, 31).is_err_and(|fault| fault.code() == Code::RecoverIncomplete)
        };
        assert!(refused("3.5.16", Some(30)) && refused("3.6.0", None) && refused("unknown", Some(30)));
        assert!(!refused("3.5.16", Some(31)) && !refused("3.5.30", Some(34)));
        // Its index is that of the last entry which changed a key.
        assert!(!refused("3.4.23", Some(30)));
    }
}
