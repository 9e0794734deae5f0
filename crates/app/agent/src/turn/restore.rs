//! Makes the data dir of the only member from the store: the newest state that can be proven.
//!
//! **Invariant:** the ledger has the new ids before there is data with them, and nothing is set aside before the chain that
//! replaces it was read to its end and held. What waits in the spool belongs to that chain.

use std::hash::BuildHasher;

use quorate_backup::Base;
use quorate_backup::events::ChainEvents;
use quorate_backup::session::{Planned, Session, Wanted, Whose};
use quorate_etcd::ledger::{ensure_ledger, observe_ledger};
use quorate_etcd::restore::{self, Restored};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::Warning;
use quorate_plan::chain::{Span, Target};
use quorate_plan::ledger::{Identity, Ledger, LedgerSeen, Origin, State};
use quorate_plan::restore_point::{Content, RestorePoint};
use tracing::{info, warn};

use super::data::in_words;
use super::node::Node;
use super::observe::own_clusters;
use super::publish::Shared;
use crate::backups::restore::{LEASE_TTL, Progress, Restore};
use crate::backups::{size, spooled};

/// What was restored.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The last write that is there.
    pub(super) revision: u64,
    /// The newest one that the store mentions could not be proven, and why.
    pub(super) short: Option<String>,
    pub(super) warnings: Vec<Warning>,
}

/// Brings what was recorded and is not in the store yet there: it is part of the newest state. Nobody may follow meanwhile.
/// Where the store does not take it, nothing may be restored: what is left would be lost.
pub(super) fn flush(node: &Node) -> Result<Option<Span>, Fault> {
    let Some(backup) = &node.spec.backup else { return Ok(None) };
    let flushed = spooled::flush(&node.spool(), backup.spool_max, &backup.store)?;
    match flushed.refused {
        // What cannot be read any more is no reason to do without the rest.
        Some(fault) if matches!(fault.code(), Code::SpoolDamaged | Code::SpoolBroken) => {
            warn!(code = %fault.code(), "not all of the spool can be stored: {}", in_words(&fault));
            Ok(flushed.stored)
        }
        Some(fault) => Err(fault),
        None => Ok(flushed.stored),
    }
}

/// Reads the chain to its end. Returns the revision that it leads to.
pub(super) fn prove(node: &Node) -> Result<u64, Fault> {
    let mut session = open(node)?;
    let proven = session.run(&Wanted::Target(Target::Newest), |_, events, _| {
        // What goes wrong here is looked at by the session.
        let _ = events.drain();
        Ok(())
    })?;
    Ok(proven.revision)
}

/// Makes the data dir, and shows how far it is.
pub(super) fn restore(node: &Node, form: Form, shared: &Shared) -> Result<Outcome, Fault> {
    let mut session = open(node)?;
    // The store may never have seen what clients of a recovered cluster, or of this member, read.
    let recorded = match observe_ledger(&node.ledger()) {
        LedgerSeen::There(ledger) => ledger.highest_revision(),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => 0,
    };
    let highest = session.catalog.highest_revision().max(recorded);
    // Seeded by the system for each process: no two restores make the same cluster.
    let nonce = std::hash::RandomState::new().hash_one(std::process::id());
    let build = |base: &Base, events: &mut ChainEvents, planned: &Planned| {
        let (digest, content) = (planned.digest.clone(), Content::above(planned.revision, highest));
        let point = RestorePoint { revision: planned.revision, digest, nonce: Some(nonce), content };
        let members = vec![(node.name().to_owned(), node.member.peer_urls.clone())];
        let founding = Founding::new(members, &point.token())
            .map_err(|error| Fault::new(Code::RosterBadId, error.to_string()).hint("try again: ids are drawn anew"))?;
        remember(node, &founding)?;
        let restore = Restore { place: &node.target, founding: &founding, name: node.name(), form, content };
        let tell = |progress: &Progress| {
            let (percent, total, revision) = (progress.percent(), size(progress.total), planned.revision);
            info!("restoring: {percent} % of {total}");
            shared.change(|status| status.cause = format!("restoring revision {revision}: {percent} % of {total}"));
        };
        let restored = restore.run_and_tell(base, events, &tell)?;
        Ok((restored, base.facts.clone()))
    };
    let proven = session.run(&Wanted::Target(Target::Newest), build)?;
    let (Restored { rebuilt, .. }, facts) = proven.result;
    let warnings = rebuilt.map(|rebuilt| restore::warnings(&facts, &rebuilt, LEASE_TTL)).unwrap_or_default();
    Ok(Outcome { revision: proven.revision, short: proven.decision.short, warnings })
}

fn open(node: &Node) -> Result<Session, Fault> {
    let Some(backup) = &node.spec.backup else {
        return Err(Fault::new(Code::Internal, "cannot restore: no store is declared"));
    };
    Session::open_for(&backup.store, &node.scratch(), &Whose::Of(own_clusters(node)))
}

/// Writes the new ids into the ledger.
fn remember(node: &Node, founding: &Founding) -> Result<(), Fault> {
    let local = founding.member(node.name()).ok_or_else(|| lost(node))?;
    let before = match observe_ledger(&node.ledger()) {
        LedgerSeen::There(ledger) => *ledger,
        LedgerSeen::Absent => Ledger::default(),
        LedgerSeen::Unreadable(why) => {
            let attempt = format!("cannot read the ledger `{}`", node.ledger().display());
            return Err(Fault::new(Code::LedgerUnreadable, attempt).caused_by(why));
        }
    };
    let identity = Identity { cluster: founding.cluster_id, member: local.id, origin: Origin::Restored };
    ensure_ledger(&RealDisk, &node.ledger(), &before.with(State::Started(identity)))
}

fn lost(node: &Node) -> Fault {
    Fault::new(Code::Internal, format!("`{}` got lost between list and cluster", node.name()))
}
