//! The place of this member's data: recorded at every start, and compared when a directory is empty.
//!
//! **Rule:** good local data starts whether its place can be recorded or not; data that is there is never compared.

use std::sync::Arc;

use quorate_etcd::ledger::{ensure_ledger, observe_ledger};
use quorate_etcd::place::{self, Empty};
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::ledger::{AcceptedEmpty, Ledger, LedgerSeen};
use quorate_plan::start::{DataSeen, PlaceState, Verdict};
use serde::Serialize;
use tracing::warn;

use super::Agent;
use super::data::{in_words, is_empty_data, observe_data};
use super::execute::halted;
use super::node::Node;
use super::publish::now_ms;

/// What an operator accepted.
#[derive(Debug, Clone, Serialize)]
pub struct EmptyAccepted {
    /// The data dir.
    pub data_dir: String,
    /// Where the file system that holds it is mounted.
    pub mount_point: String,
}

/// Whether directories without data are where the data was.
pub(super) fn observe_place(node: &Node, ledger: &LedgerSeen, data: &DataSeen) -> PlaceState {
    let LedgerSeen::There(ledger) = ledger else { return PlaceState::NotCompared };
    let Some(places) = &ledger.places else { return PlaceState::NotCompared };
    let empty = match data {
        DataSeen::Absent => Empty { data: true, wal: true },
        DataSeen::There(facts) if matches!(facts.verdict, Verdict::Half(_)) => {
            let data = is_empty_data(&node.target).unwrap_or(true);
            Empty { data, wal: !data }
        }
        DataSeen::There(_) | DataSeen::Unknown(_) => return PlaceState::NotCompared,
    };
    place::observe_places(places, &node.target, empty)
}

/// Why nothing can be said about the data, where its file system is not mounted.
pub(crate) fn unmounted(node: &Node, ledger: &LedgerSeen) -> Option<String> {
    match observe_place(node, ledger, &observe_data(&node.target, None)) {
        PlaceState::NotMounted { mount_point, fs_type, .. } => {
            Some(format!("the {fs_type} file system at `{mount_point}` is not mounted"))
        }
        PlaceState::Unknown(why) => Some(why),
        PlaceState::NotCompared | PlaceState::Same | PlaceState::OtherFileSystem { .. } => None,
    }
}

/// Why an order that renames or replaces the data cannot be carried out. A directory of which not even the name is there was renamed by an
/// attempt at the same order; where a file system is missing, that counts first.
pub(crate) fn ensure_mounted(node: &Node, ledger: &LedgerSeen, attempt: &str) -> Result<(), Fault> {
    match observe_place(node, ledger, &observe_data(&node.target, None)) {
        PlaceState::NotMounted { mount_point, .. } => Err(not_mounted(attempt.to_owned(), &mount_point)),
        PlaceState::Unknown(why) if node.target.data_dir().symlink_metadata().is_ok() => {
            Err(Fault::new(Code::DataNotMounted, attempt.to_owned()).caused_by(why))
        }
        PlaceState::Unknown(_) | PlaceState::NotCompared | PlaceState::Same | PlaceState::OtherFileSystem { .. } => {
            Ok(())
        }
    }
}

/// Writes down that the data dir is empty because its data is lost. The agent must not run.
pub fn accept_empty_member(node: &Node) -> Result<EmptyAccepted, Fault> {
    let state = node.state()?;
    let _lock = state.lock()?;
    let dir = node.target.data_dir().display().to_string();
    let attempt = || format!("cannot accept `{dir}` as empty");
    let seen = observe_ledger(&node.ledger());
    let data = observe_data(&node.target, None);
    if let DataSeen::Unknown(why) = &data {
        return Err(Fault::new(Code::StartUnknown, attempt()).caused_by(why.clone()).hint("see `quorate plan`"));
    }
    if let DataSeen::There(_) = &data {
        return Err(Fault::new(Code::NothingToAccept, attempt())
            .caused_by("there is data")
            .hint("nothing was changed; see `quorate data inspect`"));
    }
    match observe_place(node, &seen, &data) {
        PlaceState::OtherFileSystem { mount_point, .. } => {
            let mut ledger = ledger_of(node, seen)?;
            ledger.accepted_empty = Some(AcceptedEmpty { mount_point: mount_point.clone(), at_ms: now_ms() });
            ensure_ledger(&RealDisk, &node.ledger(), &ledger)?;
            Ok(EmptyAccepted { data_dir: dir, mount_point })
        }
        PlaceState::NotMounted { mount_point, .. } => Err(not_mounted(attempt(), &mount_point)),
        PlaceState::Unknown(why) => Err(Fault::new(Code::DataNotMounted, attempt()).caused_by(why)),
        PlaceState::Same | PlaceState::NotCompared => Err(Fault::new(Code::NothingToAccept, attempt())
            .caused_by("the agent takes it for empty already")
            .hint("nothing was changed; `quorate plan` shows what the agent does next")),
    }
}

/// The fault of a command that needs to see the data.
pub(super) fn not_mounted(attempt: String, mount_point: &str) -> Fault {
    Fault::new(Code::DataNotMounted, attempt)
        .caused_by(format!("the file system at `{mount_point}` is not mounted"))
        .hint(format!(
            "`mount {mount_point}` first; or mount an empty one there, or name another `data-dir` in the file"
        ))
}

fn ledger_of(node: &Node, seen: LedgerSeen) -> Result<Ledger, Fault> {
    match seen {
        LedgerSeen::There(ledger) => Ok(*ledger),
        LedgerSeen::Absent => Ok(Ledger::default()),
        LedgerSeen::Unreadable(why) => {
            let attempt = format!("cannot read the ledger `{}`", node.ledger().display());
            Err(Fault::new(Code::LedgerUnreadable, attempt).hint("see `quorate explain Q0935`").caused_by(why))
        }
    }
}

impl Agent {
    /// Records where the data is. What was accepted for an earlier place is used up by that.
    pub(super) async fn record_places(&self) {
        let (node, book) = (Arc::clone(&self.node), Arc::clone(&self.book));
        let recorded = tokio::task::spawn_blocking(move || {
            let places = place::ensure_places(&RealDisk, &node.target)?;
            book.change(|ledger| {
                ledger.places = Some(places);
                ledger.accepted_empty = None;
                ledger.archiving = false;
            })
        });
        if let Err(fault) = recorded.await.map_err(halted).and_then(|recorded| recorded) {
            let why = in_words(&fault);
            warn!(code = %fault.code(), "cannot record where the data is; an unmounted disk would look like a lost one: {why}");
        }
    }

    /// Writes down that both directories are about to be renamed, or have been: cut off between, half a member is left.
    pub(super) async fn set_archiving(&self, archiving: bool) -> Result<(), Fault> {
        if self.node.target.wal_dir().is_none() {
            return Ok(());
        }
        let book = Arc::clone(&self.book);
        let changed = tokio::task::spawn_blocking(move || book.change(|ledger| ledger.archiving = archiving));
        changed.await.map_err(halted)?.map(|_| ())
    }
}
