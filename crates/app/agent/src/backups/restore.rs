//! Makes one member's data dir from a chain of backups: a full, and the writes behind it.
//!
//! **Rule:** whoever restores from a store does it here: the agent, the sidecar, `backup restore` and `backup drill`. The
//! session that lends the chain has checked every object's hash, and says afterwards whether all of it held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use quorate_backup::Base;
use quorate_backup::events::ChainEvents;
use quorate_etcd::datadir::FileSource;
use quorate_etcd::engine::{BaseFile, Ingredients};
use quorate_etcd::init::{Request, Target};
use quorate_etcd::restore::{Restored, ensure_restored};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_etcd_formats::rebuild::{BUMP_DEFAULT, Options};
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::restore_point::Content;

/// Seconds that an unknown lease is given.
pub const LEASE_TTL: i64 = 3600;

/// Clients never see revisions go back, and watchers notice.
pub const USUAL: Content = Content { bump: Some(BUMP_DEFAULT), mark_compacted: true };

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// One data dir to make.
#[derive(Debug, Clone, Copy)]
pub struct Restore<'r> {
    /// Where.
    pub place: &'r Target,
    /// Of which cluster.
    pub founding: &'r Founding,
    /// For which of its members.
    pub name: &'r str,
    /// For which etcd.
    pub form: Form,
    /// What becomes of revisions and history.
    pub content: Content,
}

/// How far a restore is: stored bytes of the full and of the deltas whose writes were taken.
#[derive(Debug, Clone)]
pub struct Progress {
    /// All of them.
    pub total: u64,
    /// Those that are done.
    pub done: Arc<AtomicU64>,
}

impl Progress {
    /// Of this chain.
    pub fn of(base: &Base, events: &ChainEvents) -> Progress {
        Progress { total: base.bytes.saturating_add(events.stored_bytes()), done: events.progress() }
    }

    /// In percent.
    pub fn percent(&self) -> u64 {
        let done = self.done.load(Ordering::Relaxed).min(self.total);
        done.saturating_mul(100).checked_div(self.total).unwrap_or(100)
    }
}

impl Restore<'_> {
    /// Makes it.
    pub fn run(&self, base: &Base, events: &mut ChainEvents) -> Result<Restored, Fault> {
        let lost = || Fault::new(Code::Internal, format!("`{}` got lost between list and cluster", self.name));
        let local = self.founding.member(self.name).ok_or_else(lost)?;
        let name = base.name.clone();
        let source =
            FileSource::open(base.path()).map_err(|error| Fault::io(format!("cannot read `{name}`"), error))?;
        let done = Progress::of(base, events).done;
        let options = Options {
            up_to: None,
            bump: self.content.bump,
            mark_compacted: self.content.mark_compacted,
            membership: Some((self.founding, self.form)),
            lease_ttl_default: LEASE_TTL,
        };
        // Its hash was checked when it was brought here.
        let file = BaseFile { source: &source, name: &name, check_hash: false };
        let ingredients = Ingredients { base: Some(file), events: Some(events), options, progress: &done };
        let request = Request { founding: self.founding, local, form: self.form };
        ensure_restored(&RealDisk, self.place, request, ingredients)
    }

    /// The same, and tells now and then how far it is.
    pub fn run_and_tell(
        &self,
        base: &Base,
        events: &mut ChainEvents,
        tell: &(dyn Fn(&Progress) + Sync),
    ) -> Result<Restored, Fault> {
        let progress = Progress::of(base, events);
        std::thread::scope(|scope| {
            let (over, ended) = channel::<()>();
            scope.spawn(move || {
                while ended.recv_timeout(TELL_EVERY) == Err(RecvTimeoutError::Timeout) {
                    tell(&progress);
                }
            });
            let made = self.run(base, events);
            drop(over);
            made
        })
    }
}
