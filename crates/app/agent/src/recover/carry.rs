//! Carries an order out.
//!
//! **Invariant:** the ledger names the new cluster before there is data of it; nothing is set aside before what takes its place
//! is whole; and whatever was done is found again by the next attempt.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quorate_backup::session::{Session, Wanted};
use quorate_etcd::aside::ensure_set_aside;
use quorate_etcd::engine::Ingredients;
use quorate_etcd::init::Request;
use quorate_etcd::ledger::ensure_ledger;
use quorate_etcd::restore::{self, Snapshot};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_etcd_formats::rebuild::Options;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Disk, RealDisk};
use quorate_plan::chain::Target;
use quorate_plan::ledger::{Identity, LedgerSeen, Origin, State};
use tracing::info;

use super::journal::{self, Order, Progress, RecoveryNow, Role, Source};
use super::survey::ids;
use super::{boot, copy};
use crate::backups::restore::{LEASE_TTL, Restore, USUAL};
use crate::turn::{Book, Node, stamp};

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
    let progress = match &now.order.role {
        Role::Join => work.join()?,
        Role::Begin(source) => {
            // The order may have been cut off before that.
            book.change(|ledger| ledger.generation = ledger.generation.max(now.order.generation))?;
            let revision = match now.progress {
                Progress::Built { revision } => revision,
                Progress::Ordered | Progress::Done { .. } | Progress::Failed { .. } => work.build(source)?,
            };
            work.begin(source, revision)?
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

    /// Where the copy lies: beside the data, on its disk, under a name that says that it may be removed.
    fn copy(&self) -> PathBuf {
        let mut name = self.node.target.data_dir().as_os_str().to_owned();
        name.push(format!(".recovery-{}.partial-0", self.order.generation));
        PathBuf::from(name)
    }

    /// The new cluster, of this node alone. The same order leads to the same one.
    fn founding(&self) -> Result<Founding, Fault> {
        let Order { generation, nonce, .. } = self.order;
        let token = format!("{}-recovered-{generation}-{nonce:016x}", self.node.spec.token);
        Founding::new(vec![(self.node.name().to_owned(), self.node.member.peer_urls.clone())], &token)
            .map_err(|error| Fault::new(Code::RosterBadId, error.to_string()).hint("run it again: ids are drawn anew"))
    }

    /// Makes and proves what the new data dir is made from. Returns its revision.
    fn build(&self, source: &Source) -> Result<u64, Fault> {
        let revision = match source {
            Source::Data { term, index, at_least } => {
                let copy = self.copy();
                self.say("copying the data");
                let end = copy::copy_data(&self.node.target, &copy, (*term, *index))?;
                self.say(&format!(
                    "applying the log up to entry {}, {} of it known to be committed",
                    end.index, end.commit
                ));
                boot::apply_log(self.tools, self.node.name(), &copy, &self.node.state_path().join("recovery"))?;
                let revision = Snapshot::open(&db(&copy), true)?.facts()?.revision_now();
                if let Some(backup) = at_least.filter(|backup| *backup > revision) {
                    let why = format!("the data ends at revision {revision}, and the newest backup at {backup}");
                    return Err(
                        Fault::new(Code::RecoverBackupNewer, why).hint("nothing was changed; choose with `--from`")
                    );
                }
                revision
            }
            Source::Backup { revision } => {
                self.say("reading the backup to its end");
                let mut session = self.store()?;
                let proven = session.run(&Wanted::Target(Target::Newest), |_, events, _| {
                    // What goes wrong here is looked at by the session.
                    let _ = events.drain();
                    Ok(())
                })?;
                if proven.revision < *revision {
                    let why =
                        format!("the backup can be proven up to revision {} only, and not {revision}", proven.revision);
                    return Err(Fault::new(Code::RecoverChanged, why).hint("run `quorate cluster recover` again"));
                }
                proven.revision
            }
        };
        self.write(Progress::Built { revision })?;
        Ok(revision)
    }

    /// Puts the new cluster in the place of the old one.
    fn begin(&self, source: &Source, revision: u64) -> Result<Progress, Fault> {
        let founding = self.founding()?;
        let lost = || Fault::new(Code::Internal, format!("`{}` got lost between list and cluster", self.node.name()));
        let local = founding.member(self.node.name()).ok_or_else(lost)?;
        let there = ids(&self.node.target);
        let mut renamed = Vec::new();
        if there != Some((founding.cluster_id, local.id)) {
            self.say("renaming the data dir");
            renamed = self.set_aside()?;
            self.say("making the new cluster's data dir");
            let identity = Identity { cluster: founding.cluster_id, member: local.id, origin: Origin::Restored };
            self.book.change(|ledger| {
                let mut next = ledger.with(State::Started(identity));
                next.generation = next.generation.max(self.order.generation);
                // The members of the old cluster are not those of the new one.
                next.peers.clear();
                next.confirmed = None;
                *ledger = next;
            })?;
            let request = Request { founding: &founding, local, form: self.tools.form };
            match source {
                Source::Data { .. } => self.restore_copy(request)?,
                Source::Backup { .. } => self.restore_backup(request, revision)?,
            }
        }
        let (cluster, member) = (Some(founding.cluster_id), Some(local.id));
        Ok(Progress::Done { revision: Some(revision), cluster, member, renamed })
    }

    fn restore_copy(&self, request: Request<'_>) -> Result<(), Fault> {
        let snapshot = Snapshot::open(&db(&self.copy()), true)?;
        let progress = AtomicU64::new(0);
        let options = Options {
            up_to: None,
            bump: USUAL.bump,
            mark_compacted: USUAL.mark_compacted,
            membership: Some((request.founding, request.form)),
            lease_ttl_default: LEASE_TTL,
        };
        let ingredients = Ingredients { base: Some(snapshot.base()), events: None, options, progress: &progress };
        restore::ensure_restored(&RealDisk, &self.node.target, request, ingredients).map(|_| ())
    }

    fn restore_backup(&self, request: Request<'_>, revision: u64) -> Result<(), Fault> {
        let mut session = self.store()?;
        let (place, name) = (&self.node.target, self.node.name());
        let restore = Restore { place, founding: request.founding, name, form: request.form, content: USUAL };
        let proven = session.run(&Wanted::Target(Target::Newest), |base, events, _| restore.run(base, events))?;
        if proven.revision < revision {
            let why = format!("the backup reached revision {revision} a moment ago, and {} now", proven.revision);
            return Err(Fault::new(Code::RecoverChanged, why).hint("see `quorate backup verify`"));
        }
        Ok(())
    }

    fn store(&self) -> Result<Session, Fault> {
        let Some(backup) = &self.node.spec.backup else {
            return Err(Fault::new(Code::RecoverNothing, "cannot recover from a backup: no store is declared")
                .hint("declare it under `backup` in the cluster file"));
        };
        Session::open(&backup.store, &self.node.scratch())
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
            if let Some(new) = ensure_set_aside(&RealDisk, dir, &stamp)? {
                info!("renamed `{}` to `{}`", dir.display(), new.display());
                renamed.push((dir.to_owned(), new));
            }
        }
        Ok(renamed)
    }

    /// The copy is needed no more: all that it held is in place.
    fn tidy(&self) -> Result<(), Fault> {
        Ok(RealDisk.remove_partial(&self.copy())?)
    }
}

fn db(copy: &Path) -> PathBuf {
    copy.join("data/member/snap/db")
}
